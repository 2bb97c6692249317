//! An outbox against a client that remembers, with and without a store.

use std::collections::BTreeMap;

use proptest::prelude::*;

use edgefaas_platform::Clock;

use super::backlog::PAGE_MESSAGES;
use super::*;
use bytes::BytesMut;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::message::{Properties, Version};
use crate::moment::seconds_left;
use crate::monitor::Monitor;
use crate::stored::{self, QueueRecord};
use crate::topic::TopicName;
use crate::wal::{Change, Entry, MemoryStorage, Space, Storage, StorageError, Wal};
use crate::wire::{Decoder, Packet};

#[derive(Debug, Clone)]
enum Action {
    Push(QoS),
    /// Acknowledge one of those in flight, as far as its QoS says next.
    Acknowledge(usize),
    /// The connection takes bytes, behind a packet of its own or not, and writes them.
    Take(bool),
    /// A publisher writes directly, as many bytes as the socket takes.
    Direct(usize),
    /// The store stores all changes.
    Store,
    /// The connection is lost, and the client is back.
    Reconnect,
    /// The broker is killed: changes that are not stored are lost.
    Crash,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]).prop_map(Action::Push),
        5 => any::<usize>().prop_map(Action::Acknowledge),
        3 => any::<bool>().prop_map(Action::Take),
        3 => any::<usize>().prop_map(Action::Direct),
        2 => Just(Action::Store),
        1 => Just(Action::Reconnect),
        1 => Just(Action::Crash),
    ]
}

/// A store that stores when the test says so.
#[derive(Default)]
struct Disk(parking_lot::Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Storage for Disk {
    fn scan(&self, _: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError> {
        let entries = self.0.lock();
        Ok(entries.range(from.to_vec()..).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn wake(&self, _: &Arc<Wal>) {}
}

impl Disk {
    fn store(&self, wal: &Wal) {
        while let Some(mut group) = wal.take() {
            let changes =
                std::mem::take(&mut group.fresh).into_iter().chain(std::mem::take(&mut group.changes));
            for Change { key, value, .. } in changes.filter(|change| change.space == Space::Queue) {
                match value {
                    Some(value) => self.0.lock().insert(key, value.into()),
                    None => self.0.lock().remove(&key),
                };
            }
            wal.committed(&group, true);
        }
    }
}

/// A packet that the connection writes by itself.
const PING: [u8; 2] = [0xc0, 0];

/// A client that keeps its session.
#[derive(Default)]
struct Client {
    /// Messages in flight by packet identifier: QoS, whether PUBREC was sent, whether PUBREL came.
    inflight: BTreeMap<NonZeroU16, (QoS, bool, bool)>,
    /// QoS 2 messages that it has and that are not completed.
    received: BTreeMap<NonZeroU16, u32>,
    got: Vec<(QoS, u32)>,
    /// Bytes of a packet that has not come as a whole.
    begun: BytesMut,
}

impl Client {
    fn read(&mut self, bytes: BytesMut, window: usize) {
        self.begun.extend_from_slice(&bytes);
        let mut decoder = Decoder::with_version(Version::V311, 1 << 20);
        while let Some(packet) = decoder.decode(&mut self.begun).expect("valid") {
            let publish = match packet {
                Packet::Publish(publish) => publish,
                // A packet of the connection.
                Packet::PingReq => continue,
                Packet::PubRel { packet_id } => {
                    self.inflight.insert(packet_id, (QoS::ExactlyOnce, true, true));
                    continue;
                }
                other => panic!("{other:?} is not for an outbox"),
            };
            let number = u32::from_be_bytes(publish.payload[..].try_into().expect("4 bytes"));
            let Some(id) = publish.packet_id else {
                self.got.push((QoS::AtMostOnce, number));
                continue;
            };
            let before = self.inflight.insert(id, (publish.qos, false, false));
            assert!(before.is_none(), "{id} is in use");
            if publish.qos == QoS::ExactlyOnce {
                match self.received.insert(id, number) {
                    // Method A of MQTT 5, figure 4.3: known, thus not delivered again.
                    Some(known) => {
                        assert_eq!(known, number, "another message under the same identifier")
                    }
                    None => self.got.push((QoS::ExactlyOnce, number)),
                }
            } else {
                self.got.push((publish.qos, number));
            }
        }
        assert!(self.inflight.len() <= window, "more than {window} in flight");
    }

    /// The connection is lost.
    fn leave(&mut self) {
        self.inflight.clear();
        self.begun.clear();
    }

    fn acknowledge(&mut self, outbox: &mut Outbox, at: usize, wal: &Arc<Wal>, disk: &Disk) {
        if self.inflight.is_empty() {
            return;
        }
        let mut transaction = wal.begin();
        let id = *self.inflight.keys().nth(at % self.inflight.len()).expect("within");
        match self.inflight[&id] {
            (QoS::ExactlyOnce, false, _) => {
                let released = outbox.received(id, false, &mut transaction);
                drop(transaction);
                assert!(matches!(released, Ok(Release::Send(_))));
                // PUBREL leaves once that is stored.
                disk.store(wal);
                self.inflight.insert(id, (QoS::ExactlyOnce, true, true));
            }
            (QoS::ExactlyOnce, true, _) => {
                assert_eq!(outbox.completed(id, &mut transaction), Ok(()));
                self.inflight.remove(&id);
                self.received.remove(&id);
            }
            _ => {
                assert_eq!(outbox.received(id, false, &mut transaction), Err(WrongAck));
                assert_eq!(outbox.acknowledged(id, &mut transaction), Ok(()));
                self.inflight.remove(&id);
            }
        }
    }
}

struct World {
    disk: Arc<Disk>,
    wal: Arc<Wal>,
    outbox: Outbox,
    figures: Arc<Figures>,
    window: NonZeroU16,
    bounds: Bounds,
    now: Moment,
    /// A page that the store is loading. It arrives with the next take; other operations may come first.
    page: Option<Page>,
    /// The time of the last direct write, from `now`.
    direct: Duration,
}

impl World {
    fn new(session: Option<u64>, window: u16, messages: usize) -> World {
        let disk = Arc::<Disk>::default();
        let window = NonZeroU16::new(window).expect("not 0");
        let bounds = Bounds { messages, bytes: 1 << 20, stored_messages: 1 << 20, stored_bytes: 1 << 30 };
        let figures = Monitor::new().figures(&crate::topic::TopicFilter::new("t").expect("valid"));
        let totals = Arc::new(Totals::new(1 << 40, 1 << 40));
        let mut world = World {
            wal: Wal::new(disk.clone(), 32 << 20),
            disk,
            outbox: Outbox::new(session, bounds, totals),
            figures,
            window,
            bounds,
            now: Moment::now(&Clock::system()),
            page: None,
            direct: Duration::ZERO,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.page = None;
        self.outbox.connect(Encoder::new(Version::V311, None), self.window, 0);
    }

    fn push(&mut self, qos: QoS, number: u32) -> Pushed {
        self.push_expiring(qos, number, None)
    }

    fn push_expiring(&mut self, qos: QoS, number: u32, expiry_seconds: Option<u32>) -> Pushed {
        let message = Message::new(TopicName::new("t").expect("valid"), number.to_be_bytes().to_vec())
            .with_properties(Properties { expiry_seconds, ..Properties::default() });
        let delivery = Delivery { qos, retain: false, identifiers: Vec::new() };
        let dated = Dated { message: &message, received: self.now.instant };
        let mut transaction = self.wal.begin();
        self.outbox.push(
            dated,
            &mut Copies::default(),
            &delivery,
            &self.figures,
            &self.now,
            &mut transaction,
        )
    }

    fn take(&mut self) -> BytesMut {
        self.take_behind(BytesMut::new())
    }

    /// A direct write, of which the socket takes some bytes: these.
    fn write_directly(&mut self, at: usize) -> BytesMut {
        // The client is at rest.
        self.direct += Duration::from_millis(1);
        let now = self.now.instant + self.direct;
        let Some(bytes) = self.outbox.lend(now) else { return BytesMut::new() };
        let sent = BytesMut::from(&bytes[..at % (bytes.len() + 1)]);
        let all = sent.len() == bytes.len();
        let awaited = self.outbox.link.as_ref().is_some_and(|link| link.awaited);
        assert_eq!(self.outbox.written(sent.len(), now), all && !awaited);
        sent
    }

    fn take_behind(&mut self, own: BytesMut) -> BytesMut {
        let mut out = own;
        let mut transaction = self.wal.begin();
        if let Some(page) = self.page.take() {
            let from = stored::queue_key(page.session, page.from);
            let entries = self.disk.scan(Space::Queue, &from, page.messages).expect("it can");
            self.outbox.fetched(page, &entries, &self.now, &mut transaction);
        }
        let progress = self.wal.progress();
        let taken = self.outbox.take(&mut out, self.now.instant, progress, &mut transaction);
        assert_eq!(taken.lost, 0);
        self.page = taken.page;
        out
    }

    /// A new broker with the same store.
    fn crash(&mut self) {
        self.wal = Wal::new(self.disk.clone(), 32 << 20);
        let totals = Arc::new(Totals::new(1 << 40, 1 << 40));
        self.outbox = Outbox::new(Some(1), self.bounds, totals);
        for (key, value) in self.disk.0.lock().iter() {
            let (_, number) = stored::parse_queue_key(key).expect("a key");
            let expiry = match stored::decode::<QueueRecord<'_>>(value) {
                Ok(QueueRecord::Message { message, received_unix_ms, .. }) => {
                    message.expiry_seconds().map(|seconds| (self.now.instant_of(received_unix_ms), seconds))
                }
                _ => None,
            };
            self.outbox.restore(number, value.len() as u32, expiry, &self.figures);
        }
        self.connect();
    }
}

proptest! {
    /// A session without a store: everything accepted arrives, in order, within the window and the bounds.
    #[test]
    fn what_is_accepted_arrives_in_order_and_within_the_window(
        window in 1..5u16,
        limit in 1..20usize,
        actions in prop::collection::vec(action(), 0..200),
    ) {
        let mut world = World::new(None, window, limit);
        let mut client = Client::default();
        // Numbers of accepted messages: those of QoS 0 may pass the others.
        let (mut quick, mut careful) = (Vec::new(), Vec::new());
        let mut number = 0u32;
        for action in actions {
            match action {
                Action::Push(qos) => {
                    number += 1;
                    match world.push(qos, number) {
                        Pushed::Accepted { .. } if qos == QoS::AtMostOnce => quick.push(number),
                        Pushed::Accepted { .. } => careful.push(number),
                        Pushed::Full => prop_assert_ne!(qos, QoS::AtMostOnce),
                        other => prop_assert_eq!((qos, other), (QoS::AtMostOnce, Pushed::Lost(Loss::Full))),
                    }
                    prop_assert!(world.outbox.waiting().0 <= limit as u64);
                }
                Action::Acknowledge(at) => {
                    let World { outbox, wal, disk, .. } = &mut world;
                    client.acknowledge(outbox, at, wal, disk);
                }
                Action::Direct(at) => client.read(world.write_directly(at), window.into()),
                Action::Take(true) => {
                    client.read(world.take_behind(BytesMut::from(&PING[..])), window.into());
                }
                _ => client.read(world.take(), window.into()),
            }
        }
        while client.got.len() < quick.len() + careful.len() {
            client.read(world.take(), window.into());
            while !client.inflight.is_empty() {
                let World { outbox, wal, disk, .. } = &mut world;
                client.acknowledge(outbox, 0, wal, disk);
            }
        }
        let (got_quick, got_careful): (Vec<_>, Vec<_>) =
            client.got.iter().partition(|(qos, _)| *qos == QoS::AtMostOnce);
        let numbers = |got: Vec<(QoS, u32)>| got.into_iter().map(|(_, number)| number).collect::<Vec<_>>();
        prop_assert_eq!((numbers(got_quick), numbers(got_careful)), (quick, careful));
        prop_assert_eq!(world.disk.0.lock().len(), 0);
    }

    /// A session with a store, through lost connections and crashes: what was stored when it was accepted arrives,
    /// QoS 1 at least once, QoS 2 exactly once, first deliveries in order; and nothing is left behind.
    #[test]
    fn what_is_stored_arrives_through_crashes(
        window in 1..5u16,
        actions in prop::collection::vec(action(), 0..200),
    ) {
        let mut world = World::new(Some(1), window, 1 << 20);
        let mut client = Client::default();
        let (mut number, mut stored, mut unstored) = (0u32, Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Push(QoS::AtMostOnce) => {}
                Action::Push(qos) => {
                    number += 1;
                    let accepted = matches!(world.push(qos, number), Pushed::Accepted { .. });
                    prop_assert!(accepted);
                    unstored.push((qos, number));
                }
                Action::Acknowledge(at) => {
                    let World { outbox, wal, disk, .. } = &mut world;
                    let (waiting, before) = (wal.so_far(), wal.progress());
                    client.acknowledge(outbox, at, wal, disk);
                    // A PUBREC makes the store store all changes.
                    if wal.progress() != before && wal.progress().of(waiting).is_some() {
                        stored.append(&mut unstored);
                    }
                }
                Action::Direct(at) => client.read(world.write_directly(at), window.into()),
                Action::Take(true) => {
                    client.read(world.take_behind(BytesMut::from(&PING[..])), window.into());
                }
                Action::Take(false) => client.read(world.take(), window.into()),
                Action::Store => {
                    world.disk.store(&world.wal);
                    stored.append(&mut unstored);
                }
                Action::Reconnect => {
                    prop_assert_eq!(world.outbox.disconnect(), 0);
                    client.leave();
                    world.connect();
                }
                Action::Crash => {
                    world.crash();
                    client.leave();
                    unstored.clear();
                }
            }
        }
        world.disk.store(&world.wal);
        stored.append(&mut unstored);
        let mut rounds = 0;
        while world.outbox.waiting().0 + world.outbox.in_flight() > 0 || !world.outbox.slots.is_empty() {
            rounds += 1;
            prop_assert!(rounds < 10_000, "it does not end: {:?}", world.outbox);
            client.read(world.take(), window.into());
            while !client.inflight.is_empty() {
                let World { outbox, wal, disk, .. } = &mut world;
                client.acknowledge(outbox, 0, wal, disk);
            }
            world.disk.store(&world.wal);
        }
        for (qos, number) in &stored {
            let times = client.got.iter().filter(|(_, got)| got == number).count();
            match qos {
                QoS::ExactlyOnce => prop_assert_eq!(times, 1, "QoS 2 message {}", number),
                _ => prop_assert!(times >= 1, "QoS 1 message {}", number),
            }
        }
        let mut first = Vec::new();
        for (_, number) in &client.got {
            if !first.contains(number) {
                first.push(*number);
            }
        }
        prop_assert!(first.is_sorted(), "first deliveries: {:?}", first);
        prop_assert_eq!(world.disk.0.lock().len(), 0);
        prop_assert_eq!(world.outbox.waiting(), (0, 0));
    }
}

#[test]
fn a_full_queue_gives_its_oldest_message_up() {
    let mut world = World::new(Some(1), 1, 1 << 20);
    world.outbox.bounds.stored_messages = 3;
    world.outbox.disconnect();
    for number in 1..=5 {
        assert!(matches!(world.push(QoS::AtLeastOnce, number), Pushed::Accepted { .. }));
    }
    assert_eq!(world.outbox.waiting().0, 3);
    world.disk.store(&world.wal);
    assert_eq!(world.disk.0.lock().len(), 3);
    world.connect();
    let mut client = Client::default();
    while client.got.len() < 3 {
        client.read(world.take(), 1);
        let World { outbox, wal, disk, .. } = &mut world;
        client.acknowledge(outbox, 0, wal, disk);
        world.disk.store(&world.wal);
    }
    assert_eq!(client.got.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [3, 4, 5]);
}

#[test]
fn a_client_at_rest_is_written_to_directly_and_others_are_not() {
    let mut world = World::new(None, 10, 100);
    let now = world.now.instant;
    let after = |us| now + Duration::from_micros(us);
    world.push(QoS::AtMostOnce, 1);
    assert_eq!(world.outbox.lend(now), None, "the connection has not begun");
    assert!(!world.take().is_empty());
    world.push(QoS::AtMostOnce, 2);
    assert_eq!(world.outbox.lend(now), None, "the connection writes what it has taken");
    assert!(!world.take().is_empty());
    assert!(world.take().is_empty());
    world.push(QoS::AtLeastOnce, 3);
    let bytes = world.outbox.lend(now).expect("at rest").len();
    assert!(world.outbox.written(bytes, now));
    assert_eq!((world.outbox.in_flight(), world.outbox.waiting().0), (1, 0));
    world.push(QoS::AtMostOnce, 4);
    assert_eq!(world.outbox.lend(after(50)), None, "another one came a moment ago");
    assert!(world.outbox.lend(after(150)).is_some());
    assert!(!world.outbox.written(0, after(150)), "the socket takes nothing: the connection writes");
    assert!(!world.take().is_empty());
    assert!(world.take().is_empty());
    world.push(QoS::AtMostOnce, 5);
    let bytes = world.outbox.lend(after(400)).expect("at rest").to_vec();
    assert!(!world.outbox.written(3, after(400)));
    world.push(QoS::AtMostOnce, 6);
    assert_eq!(world.outbox.lend(after(900)), None, "a packet is begun");
    let mut out = BytesMut::from(&PING[..]);
    world.outbox.take_rest(&mut out);
    assert!(out.starts_with(&bytes[3..]) && out.ends_with(&PING), "{out:?}");
    assert_eq!(world.outbox.lend(after(2000)), None, "the connection ends");
}

#[test]
fn a_publisher_that_waits_for_room_hears_of_a_direct_write() {
    let mut world = World::new(None, 10, 1);
    assert!(world.take().is_empty());
    assert!(matches!(world.push(QoS::AtLeastOnce, 1), Pushed::Accepted { wake: true, .. }));
    assert_eq!(world.push(QoS::AtLeastOnce, 2), Pushed::Full);
    let bytes = world.outbox.lend(world.now.instant).expect("at rest").len();
    assert!(!world.outbox.written(bytes, world.now.instant), "the connection tells the publisher");
    let mut transaction = world.wal.begin();
    let progress = world.wal.progress();
    let taken = world.outbox.take(&mut BytesMut::new(), world.now.instant, progress, &mut transaction);
    assert!(taken.awaited);
}

#[test]
fn topics_get_numbers_that_the_client_keeps() {
    let mut world = World::new(None, 1, 100);
    world.outbox.connect(Encoder::new(Version::V5, None), world.window, 1);
    world.push(QoS::AtMostOnce, 1);
    world.push(QoS::AtMostOnce, 2);
    let out = world.take();
    assert_eq!(&out[..], b"\x30\x0b\x00\x01t\x03\x23\x00\x01\x00\x00\x00\x01\x30\x0a\x00\x00\x03\x23\x00\x01\x00\x00\x00\x02");
}

#[test]
fn all_subscribers_together_have_a_bound() {
    let storage = Arc::new(MemoryStorage::default());
    let wal = Wal::new(storage, 32 << 20);
    let totals = Arc::new(Totals::new(1 << 40, 64 * 1024));
    let world = World::new(None, 1, 1 << 20);
    let mut outboxes: Vec<Outbox> = (0..4)
        .map(|_| {
            let mut outbox = Outbox::new(None, world.bounds, totals.clone());
            outbox.connect(Encoder::new(Version::V311, None), world.window, 0);
            outbox
        })
        .collect();
    let message = Message::new(TopicName::new("t").expect("valid"), vec![0; 1024]);
    let delivery = Delivery { qos: QoS::AtMostOnce, retain: false, identifiers: Vec::new() };
    let dated = Dated { message: &message, received: world.now.instant };
    let mut accepted = 0;
    for outbox in &mut outboxes {
        for _ in 0..100 {
            let mut transaction = wal.begin();
            let pushed = outbox.push(
                dated,
                &mut Copies::default(),
                &delivery,
                &world.figures,
                &world.now,
                &mut transaction,
            );
            accepted += usize::from(matches!(pushed, Pushed::Accepted { .. }));
        }
    }
    assert!((60..110).contains(&accepted), "{accepted} messages of 1 KiB");
    outboxes.iter_mut().for_each(|outbox| assert_eq!(outbox.disconnect(), 0));
    assert_eq!(totals.buffered_bytes(), 0);
}

#[test]
fn an_expiry_interval_is_over_when_its_seconds_are() {
    assert_eq!(seconds_left(2, Duration::ZERO), Some(2));
    assert_eq!(seconds_left(2, Duration::from_millis(1999)), Some(1));
    assert_eq!(seconds_left(2, Duration::from_secs(2)), None);
    assert_eq!(seconds_left(0, Duration::ZERO), Some(0));
    assert_eq!(seconds_left(0, Duration::from_millis(1)), None);
    assert_eq!(seconds_left(u32::MAX, Duration::from_secs(u64::MAX)), None);
}

#[test]
fn what_expires_while_the_client_is_away_is_deleted_and_the_rest_arrives() {
    let mut world = World::new(Some(1), 10, 1 << 20);
    world.outbox.disconnect();
    for number in 0..30 {
        world.push_expiring(QoS::AtLeastOnce, number, [Some(60), None, Some(600)][number as usize % 3]);
    }
    world.disk.store(&world.wal);
    world.crash();
    world.outbox.disconnect();
    let later = world.now.instant + Duration::from_secs(62);
    let mut expire = |max_messages| {
        let mut transaction = world.wal.begin();
        world.outbox.expire(max_messages, later, &mut transaction)
    };
    assert_eq!((expire(7), expire(7), expire(7)), (7, 3, 0));
    world.disk.store(&world.wal);
    assert_eq!(world.outbox.waiting().0, 20);
    assert_eq!(world.disk.0.lock().len(), 20);
    let mut client = Client::default();
    world.connect();
    while client.got.len() < 20 {
        client.read(world.take(), 10);
        let World { outbox, wal, disk, .. } = &mut world;
        while !client.inflight.is_empty() {
            client.acknowledge(outbox, 0, wal, disk);
        }
        world.disk.store(&world.wal);
    }
    let wanted: Vec<u32> = (0..30).filter(|number| number % 3 != 0).collect();
    assert_eq!(client.got.iter().map(|(_, number)| *number).collect::<Vec<_>>(), wanted);
}

#[test]
fn a_page_is_asked_for_anew_when_its_start_turned_out_to_be_gone() {
    let mut world = World::new(Some(1), 1000, 1 << 20);
    world.outbox.disconnect();
    for number in 0..400 {
        assert!(matches!(world.push(QoS::AtLeastOnce, number), Pushed::Accepted { .. }));
    }
    world.disk.store(&world.wal);
    // Gone on the disk, as after acknowledgements out of order.
    for number in PAGE_MESSAGES as u64..300 {
        world.disk.0.lock().remove(&stored::queue_key(1, number));
    }
    world.crash();
    let mut client = Client::default();
    let wanted: Vec<u32> = (0..PAGE_MESSAGES as u32).chain(300..400).collect();
    let mut rounds = 0;
    while client.got.len() < wanted.len() {
        rounds += 1;
        assert!(rounds < 100, "it does not end after {} messages", client.got.len());
        client.read(world.take(), 1000);
        // All of the first page is acknowledged while the second is being read.
        let World { outbox, wal, disk, .. } = &mut world;
        while !client.inflight.is_empty() {
            client.acknowledge(outbox, 0, wal, disk);
        }
        world.disk.store(&world.wal);
    }
    assert_eq!(client.got.iter().map(|(_, number)| *number).collect::<Vec<_>>(), wanted);
}
