//! Any bytes as damage to what a broker has stored: an entry point for fuzzing, and for the test beside it.
//!
//! A broker opens over what another one left, changed here and there, with a checksum that was made right again or not.
//! It has to open, and to serve.

use std::sync::{Arc, OnceLock};

use edgefaas_broker::{Broker, Change, Hooks, MemoryStorage, Space, Storage};

use crate::connection::{config, drive, within_time};

type Entries = Vec<(Space, Vec<u8>, Vec<u8>)>;

/// What clients do for something to be stored: sessions, subscriptions, queues, a will, retained messages, and QoS 2
/// exchanges half-way.
const BEFORE: &[u8] = include_bytes!("../../../../fuzz/seeds/connection/stored");

/// Opens a broker over damaged entries and lets clients use it.
pub fn run(input: &[u8]) {
    let (&count, mut rest) = input.split_first().unwrap_or((&0, &[]));
    let mut entries = stored().clone();
    for _ in 0..count % 8 {
        let Some((damage, after)) = rest.split_at_checked(5) else { break };
        rest = after;
        harm(&mut entries, damage);
    }
    within_time(async {
        let storage = Arc::new(MemoryStorage::default());
        let writer = Broker::open(config(0), Hooks::default(), storage.clone()).expect("an empty store");
        let change =
            |(space, key, value): (_, _, Vec<u8>)| Change { space, key, value: Some(value.into()) };
        if let Some(ticket) = writer.record(entries.into_iter().map(change).collect()) {
            writer.durable(ticket).await.expect("it is stored");
        }
        drop(writer);
        let broker =
            Broker::open(config(0), Hooks::default(), storage).expect("a damaged record is left out");
        drive(&broker, rest).await;
    });
}

/// One change: which entry, how, where, to what.
fn harm(entries: &mut Entries, damage: &[u8]) {
    let &[entry, how, where_to, offset, byte] = damage else { return };
    if entries.is_empty() {
        return;
    }
    let at = usize::from(entry) % entries.len();
    let (_, key, value) = &mut entries[at];
    let body = value.len().saturating_sub(4);
    match how % 8 {
        0 => drop(entries.remove(at)),
        1 => value.truncate(usize::from(offset)),
        2 => value.extend([byte; 3]),
        3 => {
            let at = usize::from(offset) % key.len().max(1);
            if let Some(changed) = key.get_mut(at) {
                *changed = byte;
            }
        }
        4 => {
            let other = entries[usize::from(where_to) % entries.len()].2.clone();
            entries[at].2 = other;
        }
        // The fields, with a checksum that fits them.
        _ if body > 0 => {
            value.truncate(body);
            let at = usize::from(offset) % body;
            match how % 8 {
                5 => value[at] = byte,
                6 => value.insert(at, byte),
                _ => drop(value.remove(at)),
            }
            let checksum = crc32fast::hash(value).to_le_bytes();
            value.extend(checksum);
        }
        _ => {}
    }
}

/// What a broker stored.
fn stored() -> &'static Entries {
    static STORED: OnceLock<Entries> = OnceLock::new();
    STORED.get_or_init(|| {
        let storage = Arc::new(MemoryStorage::default());
        within_time(async {
            let broker =
                Broker::open(config(0), Hooks::default(), storage.clone()).expect("an empty store");
            drive(&broker, &BEFORE[1..]).await;
            let ticket = broker.record(vec![Change {
                space: Space::Hook,
                key: vec![0],
                value: Some(vec![0].into()),
            }]);
            broker.durable(ticket.expect("a change")).await.expect("all of it is stored");
        });
        let scan = |space| {
            let entries = storage.scan(space, &[], 10_000).expect("readable");
            entries.into_iter().map(move |(key, value)| (space, key, value)).collect::<Entries>()
        };
        let entries = [scan(Space::State), scan(Space::Queue)].concat();
        let kinds =
            |kind: u8| entries.iter().any(|(space, key, _)| *space == Space::State && key[0] == kind);
        assert!(b"suir".iter().all(|kind| kinds(*kind)), "every kind of record is stored");
        assert!(entries.iter().any(|(space, _, _)| *space == Space::Queue), "messages wait");
        entries
    })
}
