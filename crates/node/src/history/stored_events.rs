//! Events in the store, so that a restart keeps them: what happened before the power was pulled is what one looks for after it.
//!
//! ```text
//! V NUMBER   an event
//! ```
//!
//! NUMBER is the event's, 8 bytes, big-endian. New events are stored together, at most each 10 seconds, and at a clean stop; the
//! same batch deletes those that are not kept any more. A crash loses those of the last 15 seconds.

use std::sync::Arc;

use edgefaas_functions::records::{Damage, Records, decode, encode, prefixed, warn_damaged};
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::events::{Event, Happened, Kind, MAX_EVENTS};

/// Key spaces of hooks, durable invocations, workflows and samples have no such kind.
const EVENT: u8 = b'V';

/// The stored form; another form of events gets another variant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Stored {
    V1 { unix_ms: u64, kind: Kind, subject: String, text: String },
}

/// The records of the store.
pub struct StoredEvents {
    store: Arc<Store>,
    records: Records,
    /// Numbers in the store, ascending.
    numbers: Vec<u64>,
}

impl StoredEvents {
    /// Reads the stored events, oldest first. Damaged records are skipped, with a warning. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<Store>) -> Result<(Self, Vec<Event>), StoreError> {
        let records = Records::new(store.clone());
        let (mut numbers, mut events) = (Vec::new(), Vec::new());
        records.for_each(EVENT, |key, value| {
            match decoded(key, value) {
                Ok(event) => events.push(event),
                Err(damage) => warn_damaged("an event of the node's history", key, damage),
            }
            // A damaged one is deleted with those that are not kept.
            numbers.extend(number_of(key));
        })?;
        // The next event gets the number behind the last one that could be read, and replaces what is damaged there.
        let last = events.last().map(|event: &Event| event.number).unwrap_or_default();
        numbers.retain(|number| *number <= last);
        // The store holds more only if something else wrote it.
        events.drain(..events.len().saturating_sub(MAX_EVENTS));
        Ok((Self { store, records, numbers }, events))
    }

    /// True if there is something to store of the kept events, of which `last` is the newest.
    pub fn is_behind(&self, last: u64) -> bool {
        self.numbers.last().copied().unwrap_or_default() < last
    }

    /// Stores the kept events that are not stored yet, and deletes the others.
    ///
    /// # Errors
    /// The events could not be stored, for example since the disk is full; the next call may succeed.
    pub async fn save(&mut self, kept: Vec<Event>) -> Result<(), CommitError> {
        let stored = self.numbers.last().copied().unwrap_or_default();
        let first = kept.first().map_or(u64::MAX, |event| event.number);
        let mut batch = Batch::default();
        for number in self.numbers.iter().take_while(|number| **number < first) {
            self.records.delete(&mut batch, key(*number));
        }
        let mut added = Vec::new();
        for event in kept.into_iter().filter(|event| event.number > stored) {
            let Event { number, unix_ms, happened: Happened { kind, subject, text } } = event;
            self.records.put(&mut batch, key(number), encode(&Stored::V1 { unix_ms, kind, subject, text }));
            added.push(number);
        }
        self.store.committer().commit(batch, Durability::Written).await?;
        self.numbers.retain(|number| *number >= first);
        self.numbers.extend(added);
        Ok(())
    }
}

fn key(number: u64) -> Vec<u8> {
    prefixed(EVENT, &number.to_be_bytes())
}

fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

fn decoded(key: &[u8], value: &[u8]) -> Result<Event, Damage> {
    let number = number_of(key).ok_or(Damage::Fields)?;
    let Stored::V1 { unix_ms, kind, subject, text } = decode(value)?;
    Ok(Event { number, unix_ms, happened: Happened { kind, subject, text } })
}

#[cfg(test)]
mod tests {
    use edgefaas_platform::Clock;
    use edgefaas_state::store::StoreOptions;
    use proptest::prelude::*;

    use super::*;
    use crate::history::events::Events;

    fn store(dir: &tempfile::TempDir) -> Arc<Store> {
        Arc::new(Store::open(&StoreOptions::small(dir.path()), Clock::system()).unwrap())
    }

    fn happened(text: String) -> Happened {
        Happened { kind: Kind::BridgeAway, subject: "cloud".into(), text }
    }

    fn count(stored: &StoredEvents) -> usize {
        stored.store.spaces().invocations.iter().count()
    }

    #[tokio::test]
    async fn a_restart_keeps_the_last_events_and_goes_on_with_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let (mut stored, kept) = StoredEvents::load(store(&dir)).unwrap();
        let events = Events::restored(Clock::new(|| 7), kept);
        for number in 1..=MAX_EVENTS + 20 {
            events.add(happened(number.to_string()));
            if number % 7 == 0 {
                stored.save(events.kept(None)).await.unwrap();
                assert!(!stored.is_behind(number as u64));
            }
        }
        assert!(stored.is_behind(MAX_EVENTS as u64 + 20));
        stored.save(events.kept(None)).await.unwrap();
        assert_eq!(count(&stored), MAX_EVENTS);
        let (stored, kept) = StoredEvents::load(stored.store.clone()).unwrap();
        assert_eq!(kept, events.kept(None));
        assert!(!stored.is_behind(MAX_EVENTS as u64 + 20));
        let again = Events::restored(Clock::new(|| 8), kept);
        again.add(happened("next".into()));
        assert_eq!(again.kept(Some(1))[0].number, MAX_EVENTS as u64 + 21);
        assert_eq!(again.kept(None).len(), MAX_EVENTS);
    }

    #[tokio::test]
    async fn a_damaged_event_is_skipped_and_deleted_in_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let (mut stored, kept) = StoredEvents::load(store(&dir)).unwrap();
        let events = Events::restored(Clock::new(|| 7), kept);
        (0..3).for_each(|number| events.add(happened(number.to_string())));
        stored.save(events.kept(None)).await.unwrap();
        let mut batch = Batch::default();
        stored.records.put(&mut batch, key(2), vec![1, 2, 3]);
        stored.store.committer().commit(batch, Durability::Written).await.unwrap();
        let (mut stored, kept) = StoredEvents::load(stored.store.clone()).unwrap();
        assert_eq!(kept.iter().map(|event| event.number).collect::<Vec<_>>(), [1, 3]);
        // The last one, which the next one replaces.
        let mut batch = Batch::default();
        stored.records.put(&mut batch, key(3), vec![1, 2, 3]);
        stored.store.committer().commit(batch, Durability::Written).await.unwrap();
        (stored, _) = StoredEvents::load(stored.store.clone()).unwrap();
        let events = Events::restored(Clock::new(|| 7), kept[..1].to_vec());
        events.add(happened("2".into()));
        events.add(happened("3".into()));
        assert!(stored.is_behind(3));
        stored.save(events.kept(None)).await.unwrap();
        let (mut stored, kept) = StoredEvents::load(stored.store.clone()).unwrap();
        assert_eq!(kept, events.kept(None));
        let events = Events::restored(Clock::new(|| 7), kept);
        (0..MAX_EVENTS).for_each(|number| events.add(happened(number.to_string())));
        stored.save(events.kept(None)).await.unwrap();
        assert_eq!((count(&stored), stored.numbers.len()), (MAX_EVENTS, MAX_EVENTS));
    }

    #[test]
    fn the_stored_form_is_what_earlier_nodes_wrote() {
        let stored = |kind| encode(&Stored::V1 { unix_ms: 1, kind, subject: "s".into(), text: "t".into() });
        // Kinds are stored by their place: a new one goes to the end.
        let places: Vec<_> = Kind::ALL.map(|kind| stored(kind)[3]).to_vec();
        assert_eq!(places, (0..Kind::ALL.len() as u8).collect::<Vec<_>>());
        assert_eq!(Kind::ALL.map(|kind| kind.to_string())[..3], ["start", "deploy", "remove"]);
        assert_eq!(stored(Kind::Start)[..8], [1, 0, 1, 0, 1, b's', 1, b't']);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(key in prop::collection::vec(any::<u8>(), 0..12), value in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&key, &value);
            // With a right checksum.
            let _ = decoded(&key, &encode(&value));
        }
    }
}
