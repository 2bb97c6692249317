//! Any bytes as what a few clients do to a broker: an entry point for fuzzing, and for the test beside it.
//!
//! The first byte picks the broker's limits. Then each operation is a byte, its argument the bytes that follow. Nothing
//! may panic or hang, what comes out has to be packets, and no client gets more than its receive maximum.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_broker::{Broker, BrokerConfig, Change, Hooks, MemoryStorage, Peer, Space};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many clients there are.
const CLIENTS: usize = 4;
/// Turns of the runtime for what was sent to have its effect.
const TURNS: usize = 12;
/// The receive maximum that some clients ask for.
const SMALL: usize = 3;

/// Runs a broker against `input`.
pub fn run(input: &[u8]) {
    let limits = input.first().copied().unwrap_or(0);
    let broker = || {
        let hooks = Hooks::default();
        Broker::open(config(limits), hooks, Arc::new(MemoryStorage::default())).expect("an empty store")
    };
    within_time(async { drive(&broker(), input.get(1..).unwrap_or_default()).await });
}

/// Runs this on a runtime of its own, and not for long.
pub fn within_time(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(20), work).await.expect("it does not hang");
    });
}

/// Limits that are reached soon, one for each bit, or not.
pub fn config(limits: u8) -> BrokerConfig {
    let small = |bit: u8, few: usize, many: usize| if limits >> bit & 1 == 1 { few } else { many };
    BrokerConfig {
        max_packet_bytes: small(0, 200, 100_000) as u32,
        receive_maximum: NonZeroU16::new(small(1, 2, 1000) as u16).expect("not 0"),
        max_inflight: NonZeroU16::new(small(2, 2, 1000) as u16).expect("not 0"),
        session_queue_messages: small(3, 4, 10_000),
        session_queue_bytes: small(4, 400, 1 << 20),
        stored_queue_messages: small(3, 3, 10_000),
        max_subscriptions_per_session: small(5, 2, 1000),
        max_retained_messages: small(6, 2, 1000),
        max_sessions: small(6, 2, 1000),
        max_connections: small(7, 2, 1000),
        publish_wait: Duration::from_millis(2),
        write_timeout: Duration::from_millis(50),
        connect_timeout: Duration::from_millis(50),
        ..BrokerConfig::default()
    }
}

struct Client {
    stream: DuplexStream,
    level: u8,
    maximum: usize,
    got: Vec<u8>,
    /// Identifiers of messages that it has not acknowledged in full.
    inflight: BTreeSet<u16>,
}

/// Waits until all changes so far are stored: the CONNACK of a session that is kept waits for its record.
async fn stored(broker: &Broker) {
    let nothing = Change { space: Space::Hook, key: vec![255], value: None };
    if let Some(ticket) = broker.record(vec![nothing]) {
        broker.durable(ticket).await.expect("the store takes it");
    }
}

/// Lets clients do to a broker what `input` says, then ends their connections.
pub async fn drive(broker: &Broker, input: &[u8]) {
    let mut input = Input { bytes: input };
    let cancel = CancellationToken::new();
    let mut serving = JoinSet::new();
    let (maintained, ended) = (broker.clone(), cancel.clone());
    serving.spawn(async move { maintained.maintain(ended).await });
    let mut clients: [Option<Client>; CLIENTS] = Default::default();
    while !input.bytes.is_empty() {
        let operation = input.byte();
        let slot = &mut clients[usize::from(operation) % CLIENTS];
        match operation >> 5 {
            0 => *slot = None,
            1 | 2 => {
                let (stream, other) = tokio::io::duplex(16 * 1024);
                let peer = Peer::tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
                let (serves, cancel) = (broker.clone(), cancel.clone());
                serving.spawn(async move { serves.serve(other, peer, cancel).await });
                let (connect, level, maximum) = connect(&mut input);
                let client = Client { stream, level, maximum, got: Vec::new(), inflight: BTreeSet::new() };
                *slot = Some(client);
                send(slot, &connect).await;
                turns(TURNS).await;
                stored(broker).await;
            }
            3 => {
                let length = usize::from(input.byte());
                let bytes = input.take(length);
                send(slot, bytes).await;
            }
            4..=6 => {
                if let Some(level) = slot.as_ref().map(|client| client.level) {
                    let bytes = packet(&mut input, level);
                    send(slot, &bytes).await;
                }
            }
            _ => acknowledge(slot).await,
        }
        turns(TURNS).await;
        for slot in &mut clients {
            receive(slot).await;
        }
    }
    drop(clients);
    cancel.cancel();
    while let Some(ended) = serving.join_next().await {
        ended.expect("a connection's task does not panic");
    }
}

/// Writes; a client that the broker does not read is given up.
async fn send(slot: &mut Option<Client>, bytes: &[u8]) {
    let Some(client) = slot else { return };
    for (kind, id) in frames(bytes).filter_map(|(first_byte, body)| Some((first_byte >> 4, id(body)?))) {
        // By bytes that happen to be one as well.
        if matches!(kind, 4 | 5 | 7) {
            client.inflight.remove(&id);
        }
    }
    let written = tokio::select! {
        biased;
        written = client.stream.write_all(bytes) => written.is_ok(),
        () = turns(200) => false,
    };
    if !written {
        *slot = None;
    }
}

/// Takes what has come and holds it against the protocol.
async fn receive(slot: &mut Option<Client>) {
    let Some(client) = slot else { return };
    let mut ended = false;
    loop {
        let mut bytes = [0; 4096];
        let read = tokio::select! {
            biased;
            read = client.stream.read(&mut bytes) => read.unwrap_or(0),
            () = std::future::ready(()) => break,
        };
        if read == 0 {
            ended = true;
            break;
        }
        client.got.extend_from_slice(&bytes[..read]);
    }
    let mut taken = 0;
    let got = std::mem::take(&mut client.got);
    for (first_byte, body) in frames(&got) {
        taken += 1 + length(body.len()).len() + body.len();
        match first_byte >> 4 {
            3 if first_byte & 6 > 0 => {
                let topic = usize::from(id(body).expect("a topic"));
                let id = id(&body[2 + topic..]).expect("an identifier");
                client.inflight.insert(id);
                assert!(id > 0 && client.inflight.len() <= client.maximum, "{:?}", client.inflight);
            }
            2..=7 | 9 | 11 | 13 => {}
            14 if client.level == 5 => {}
            kind => panic!("a server does not send packet type {kind}"),
        }
    }
    client.got = got[taken..].to_vec();
    if ended {
        *slot = None;
    }
}

/// Acknowledges all that the client knows of, as if each was of every QoS in turn.
async fn acknowledge(slot: &mut Option<Client>) {
    let Some(client) = slot else { return };
    let all: Vec<u16> = client.inflight.iter().copied().collect();
    for (at, id) in all.into_iter().enumerate() {
        let [high, low] = id.to_be_bytes();
        let bytes: &[u8] =
            if at % 2 == 0 { &[0x40, 2, high, low] } else { &[0x50, 2, high, low, 0x70, 2, high, low] };
        send(slot, bytes).await;
    }
}

/// Whole frames at the start of some bytes: first byte and body.
fn frames(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let first_byte = *rest.first()?;
        let (mut length, mut at) = (0, 1);
        loop {
            let byte = usize::from(*rest.get(at)?);
            length |= (byte & 127) << (7 * (at - 1));
            at += 1;
            if byte < 128 || at > 4 {
                break;
            }
        }
        let body = rest.get(at..at.checked_add(length)?)?;
        rest = &rest[at + length..];
        Some((first_byte, body))
    })
}

fn id(body: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*body.first()?, *body.get(1)?]))
}

/// A CONNECT that is legal, its level, and the receive maximum it asks for.
fn connect(input: &mut Input<'_>) -> (Vec<u8>, u8, usize) {
    let (choice, name) = (input.byte(), input.byte() % 5);
    let level = if choice & 1 == 0 { 4 } else { 5 };
    let few = choice & 2 > 0 && level == 5;
    let will = choice & 4 > 0;
    let clean = if choice & 8 > 0 || name == 0 { 2 } else { 0 };
    let mut body = [text(b"MQTT"), vec![level, clean | if will { 0x0c } else { 0 }, 0, 0]].concat();
    if level == 5 {
        let mut properties = vec![0x11, 0, 0, 0, choice >> 4, 0x22, 0, choice >> 6];
        if few {
            properties.extend([0x21, 0, SMALL as u8]);
        }
        body.extend([vec![properties.len() as u8], properties].concat());
    }
    body.extend(text(&b"name"[..usize::from(name)]));
    if will {
        body.extend(if level == 5 { vec![5, 0x18, 0, 0, 0, choice >> 5 & 1] } else { Vec::new() });
        body.extend([text(topic(choice)), text(b"gone")].concat());
    }
    (framed(0x10, &body), level, if few { SMALL } else { 65_535 })
}

/// A packet that is legal or nearly so.
fn packet(input: &mut Input<'_>, level: u8) -> Vec<u8> {
    let (choice, argument) = (input.byte(), input.byte());
    let identifier = [0, argument >> 4];
    let none: &[u8] = if level == 5 { &[0] } else { &[] };
    match choice % 8 {
        0..=2 => {
            let (qos, retain) = (choice >> 3 & 3, choice >> 5 & 1);
            let identifier: &[u8] = if qos > 0 { &identifier } else { &[] };
            let properties = match (level, choice >> 6) {
                (5, 1) => vec![3, 0x23, 0, argument & 3],
                (5, 2) => vec![5, 0x02, 0, 0, 0, argument & 1],
                (5, 3) => vec![7, 0x26, 0, 1, b'n', 0, 1, b'v'],
                _ => none.to_vec(),
            };
            let payload = vec![b'x'; usize::from(argument & 15) * 40];
            let topic = if choice >> 6 == 1 && argument & 8 > 0 { &b""[..] } else { topic(argument) };
            framed(0x30 | qos << 1 | retain, &[&text(topic), identifier, &properties, &payload].concat())
        }
        3 => {
            let filters: [&[u8]; 8] =
                [b"#", b"a/+", b"a/b", b"+/b", b"$share/g/a/+", b"$share/g/#", b"$SYS/#", b"a/#/b"];
            let filter = filters[usize::from(argument % 8)];
            let options = choice >> 3 & if level == 5 { 0x1f } else { 3 };
            framed(0x82, &[&identifier, none, &text(filter), &[options]].concat())
        }
        4 => framed(0xa2, &[&identifier, none, &text(topic(argument))].concat()),
        5 => {
            let kind = 4 + (choice >> 3 & 3);
            framed(kind << 4 | if kind == 6 { 2 } else { 0 }, &[0, argument & 31])
        }
        6 => vec![0xc0, 0],
        _ if level == 5 => {
            framed(0xe0, &[if choice & 8 > 0 { 4 } else { 0 }, 5, 0x11, 0, 0, 0, argument & 1])
        }
        _ => vec![0xe0, 0],
    }
}

fn topic(choice: u8) -> &'static [u8] {
    [&b"a/b"[..], b"a/c", b"a", b"b/b", b"$d/b", b"a/b"][usize::from(choice % 6)]
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

fn framed(first_byte: u8, body: &[u8]) -> Vec<u8> {
    [&[first_byte][..], &length(body.len()), body].concat()
}

fn length(bytes: usize) -> Vec<u8> {
    let (mut left, mut encoded) = (bytes, Vec::new());
    loop {
        encoded.push((left % 128) as u8 | if left > 127 { 128 } else { 0 });
        left /= 128;
        if left == 0 {
            return encoded;
        }
    }
}

async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Bytes as long as there are some, then zeros.
struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(bytes.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }
}
