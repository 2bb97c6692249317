//! The way out to one subscriber: encoded bytes, the messages that wait for a packet identifier, and what is in flight.
//!
//! A publisher encodes straight into the subscriber's buffer, so a delivered message is neither copied into a queue nor
//! kept. Only QoS 1 and 2 messages beyond the client's Receive Maximum are queued. No I/O, no clock.

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::message::{Message, QoS};
use crate::wire::{Encoder, PublishHeader};

/// Capacity above which an emptied buffer is given back.
const KEPT_CAPACITY_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Outbox {
    encoder: Encoder,
    buffer: BytesMut,
    buffered_messages: usize,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    inflight: Inflight,
    max_messages: usize,
    max_bytes: usize,
    /// A publisher waits for room.
    awaited: bool,
    /// A publisher has waited in vain, and nothing was taken since.
    stalled: bool,
    closed: bool,
}

/// How a subscription wants a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: Vec<NonZeroU32>,
}

/// A message and when the broker got it, for its expiry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dated<'a> {
    pub message: &'a Message,
    pub received: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// On its way, or waiting for a packet identifier. `wake`: the connection has to be told; `pressure`: more than
    /// half of the bound is used.
    Accepted { wake: bool, pressure: bool },
    /// No room for this QoS 1 or 2 message; there may be later.
    Full,
    /// Lost for this subscriber.
    Lost(Loss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Full,
    TooLarge,
    Expired,
    Closed,
}

/// A client acknowledged something it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongAck;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Answer with PUBREL.
    Send,
    /// Answer with PUBREL, packet identifier not found.
    NotFound,
    /// The client refused the message: nothing to answer.
    Ended,
}

#[derive(Debug)]
struct Pending {
    message: Message,
    delivery: Delivery,
    received: Instant,
}

impl Outbox {
    pub(crate) fn new(
        encoder: Encoder,
        window: NonZeroU16,
        max_messages: usize,
        max_bytes: usize,
    ) -> Outbox {
        Outbox {
            encoder,
            buffer: BytesMut::new(),
            buffered_messages: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            inflight: Inflight::new(window),
            max_messages,
            max_bytes,
            awaited: false,
            stalled: false,
            closed: false,
        }
    }

    /// Encodes a message, or queues it when it needs a packet identifier and none is free. `owned` is shared by all
    /// subscribers of one message: the first that has to keep it makes the copy.
    pub(crate) fn push(
        &mut self,
        dated: Dated<'_>,
        owned: &mut Option<Message>,
        delivery: &Delivery,
        now: Instant,
    ) -> Pushed {
        if self.closed {
            return Pushed::Lost(Loss::Closed);
        }
        let weight = dated.message.weight();
        if self.is_full(weight) {
            if delivery.qos == QoS::AtMostOnce || self.stalled {
                return Pushed::Lost(Loss::Full);
            }
            self.awaited = true;
            return Pushed::Full;
        }
        let wake = self.buffer.is_empty();
        if delivery.qos > QoS::AtMostOnce && (!self.pending.is_empty() || self.inflight.is_full()) {
            let message = owned.get_or_insert_with(|| dated.message.clone()).clone();
            self.pending_bytes += weight;
            self.pending.push_back(Pending {
                message,
                delivery: delivery.clone(),
                received: dated.received,
            });
            return Pushed::Accepted { wake: false, pressure: self.is_pressed() };
        }
        match self.encode(dated, delivery, now) {
            Ok(()) => Pushed::Accepted { wake, pressure: self.is_pressed() },
            Err(loss) => Pushed::Lost(loss),
        }
    }

    /// A publisher gave up waiting: until something is taken, nobody else waits.
    pub(crate) fn give_up(&mut self) {
        self.stalled = true;
    }

    /// Moves what is encoded to the end of `out` and says whether a publisher waits for the room.
    pub(crate) fn take(&mut self, out: &mut BytesMut, now: Instant, lost: &mut u64) -> bool {
        self.pump(now, lost);
        if self.buffer.is_empty() {
            // What waited may have expired, which makes room too.
            return !self.is_full(0) && std::mem::take(&mut self.awaited);
        }
        if out.is_empty() {
            std::mem::swap(out, &mut self.buffer);
        } else {
            out.extend_from_slice(&self.buffer);
        }
        self.buffer.clear();
        if self.buffer.capacity() > KEPT_CAPACITY_BYTES {
            self.buffer = BytesMut::new();
        }
        self.buffered_messages = 0;
        self.stalled = false;
        std::mem::take(&mut self.awaited)
    }

    /// PUBACK.
    pub(crate) fn acknowledged(&mut self, id: NonZeroU16) -> Result<(), WrongAck> {
        match self.inflight.state(id) {
            Slot::Free => Ok(()),
            Slot::Published => {
                self.inflight.free(id);
                Ok(())
            }
            Slot::PublishedOnce | Slot::Released => Err(WrongAck),
        }
    }

    /// PUBREC.
    pub(crate) fn received(&mut self, id: NonZeroU16, failed: bool) -> Result<Release, WrongAck> {
        match self.inflight.state(id) {
            Slot::Published => Err(WrongAck),
            Slot::Free if failed => Ok(Release::Ended),
            Slot::Free => Ok(Release::NotFound),
            Slot::PublishedOnce | Slot::Released if failed => {
                self.inflight.free(id);
                Ok(Release::Ended)
            }
            Slot::PublishedOnce | Slot::Released => {
                self.inflight.set(id, Slot::Released);
                Ok(Release::Send)
            }
        }
    }

    /// PUBCOMP.
    pub(crate) fn completed(&mut self, id: NonZeroU16) -> Result<(), WrongAck> {
        match self.inflight.state(id) {
            Slot::Free => Ok(()),
            Slot::Released => {
                self.inflight.free(id);
                Ok(())
            }
            Slot::Published | Slot::PublishedOnce => Err(WrongAck),
        }
    }

    /// Nothing goes in or out any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.buffer = BytesMut::new();
        self.pending = VecDeque::new();
        self.pending_bytes = 0;
    }

    /// Encodes what waits for packet identifiers, as far as there are some.
    fn pump(&mut self, now: Instant, lost: &mut u64) {
        while !self.inflight.is_full() && (self.buffer.len() < self.max_bytes || self.buffer.is_empty()) {
            let Some(next) = self.pending.pop_front() else { return };
            self.pending_bytes -= next.message.weight();
            let dated = Dated { message: &next.message, received: next.received };
            *lost += u64::from(self.encode(dated, &next.delivery, now).is_err());
        }
    }

    fn encode(&mut self, dated: Dated<'_>, delivery: &Delivery, now: Instant) -> Result<(), Loss> {
        let expiry_seconds =
            match dated.message.properties().and_then(|properties| properties.expiry_seconds) {
                None => None,
                Some(seconds) => Some(seconds_left(seconds, now - dated.received).ok_or(Loss::Expired)?),
            };
        let packet_id = match delivery.qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => Some(self.inflight.allocate(Slot::Published).ok_or(Loss::Full)?),
            QoS::ExactlyOnce => Some(self.inflight.allocate(Slot::PublishedOnce).ok_or(Loss::Full)?),
        };
        let header = PublishHeader {
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id,
            subscription_identifiers: &delivery.identifiers,
            expiry_seconds,
        };
        if self.encoder.publish(&mut self.buffer, dated.message, header).is_err() {
            if let Some(packet_id) = packet_id {
                self.inflight.free(packet_id);
            }
            return Err(Loss::TooLarge);
        }
        self.buffered_messages += 1;
        Ok(())
    }

    fn is_full(&self, weight: usize) -> bool {
        let messages = self.buffered_messages + self.pending.len();
        let bytes = self.buffer.len() + self.pending_bytes;
        messages >= self.max_messages || (messages > 0 && bytes + weight > self.max_bytes)
    }

    fn is_pressed(&self) -> bool {
        let messages = self.buffered_messages + self.pending.len();
        messages > self.max_messages / 2 || self.buffer.len() + self.pending_bytes > self.max_bytes / 2
    }
}

/// What is left of a Message Expiry Interval; `None` when it is over. An interval of 0 allows delivery at once only.
pub(crate) fn seconds_left(expiry_seconds: u32, age: Duration) -> Option<u32> {
    let over = age >= Duration::from_secs(expiry_seconds.into()) && !age.is_zero();
    (!over).then(|| expiry_seconds - u32::try_from(age.as_secs()).unwrap_or(expiry_seconds))
}

/// Packet identifiers in use, 1 to `window`, and how far each exchange is.
#[derive(Debug)]
struct Inflight {
    window: usize,
    /// Grows up to `window`; identifier `n` is at `n - 1`.
    slots: Vec<Slot>,
    used: usize,
    next: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    /// QoS 1, waits for PUBACK.
    Published,
    /// QoS 2, waits for PUBREC.
    PublishedOnce,
    /// QoS 2, waits for PUBCOMP.
    Released,
}

impl Inflight {
    fn new(window: NonZeroU16) -> Inflight {
        Inflight { window: window.get().into(), slots: Vec::new(), used: 0, next: 0 }
    }

    fn is_full(&self) -> bool {
        self.used >= self.window
    }

    fn allocate(&mut self, slot: Slot) -> Option<NonZeroU16> {
        if self.is_full() {
            return None;
        }
        // Terminates: fewer slots are used than there are.
        loop {
            let at = self.next;
            self.next = (at + 1) % self.window;
            if at == self.slots.len() {
                self.slots.push(slot);
            } else if self.slots[at] == Slot::Free {
                self.slots[at] = slot;
            } else {
                continue;
            }
            self.used += 1;
            return u16::try_from(at + 1).ok().and_then(NonZeroU16::new);
        }
    }

    fn state(&self, id: NonZeroU16) -> Slot {
        self.slots.get(usize::from(id.get()) - 1).copied().unwrap_or(Slot::Free)
    }

    fn set(&mut self, id: NonZeroU16, slot: Slot) {
        self.slots[usize::from(id.get()) - 1] = slot;
    }

    fn free(&mut self, id: NonZeroU16) {
        self.set(id, Slot::Free);
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::message::Version;
    use crate::topic::TopicName;
    use crate::wire::{Decoder, Packet};

    #[derive(Debug, Clone)]
    enum Action {
        Push(QoS),
        /// Acknowledge one of those in flight, as far as its QoS says next.
        Acknowledge(usize),
        Take,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]).prop_map(Action::Push),
            3 => any::<usize>().prop_map(Action::Acknowledge),
            2 => Just(Action::Take),
        ]
    }

    #[derive(Default)]
    struct Client {
        /// By packet identifier: QoS, and whether PUBREC was sent.
        inflight: BTreeMap<NonZeroU16, (QoS, bool)>,
        got: Vec<u32>,
    }

    impl Client {
        fn read(&mut self, bytes: BytesMut, window: usize) {
            let mut bytes = bytes;
            let mut decoder = Decoder::with_version(Version::V311, 1 << 20);
            while let Some(packet) = decoder.decode(&mut bytes).expect("valid") {
                let Packet::Publish(publish) = packet else { panic!("only PUBLISH is in an outbox") };
                self.got.push(u32::from_be_bytes(publish.payload[..].try_into().expect("4 bytes")));
                if let Some(id) = publish.packet_id {
                    assert!(self.inflight.insert(id, (publish.qos, false)).is_none(), "{id} is in use");
                }
            }
            assert!(self.inflight.len() <= window, "more than {window} in flight");
        }

        fn acknowledge(&mut self, outbox: &mut Outbox, at: usize) {
            if self.inflight.is_empty() {
                return;
            }
            let id = *self.inflight.keys().nth(at % self.inflight.len()).expect("within");
            match self.inflight[&id] {
                (QoS::ExactlyOnce, false) => {
                    assert_eq!(outbox.received(id, false), Ok(Release::Send));
                    self.inflight.insert(id, (QoS::ExactlyOnce, true));
                }
                (QoS::ExactlyOnce, true) => {
                    assert_eq!(outbox.completed(id), Ok(()));
                    self.inflight.remove(&id);
                }
                _ => {
                    assert_eq!(outbox.received(id, false), Err(WrongAck));
                    assert_eq!(outbox.acknowledged(id), Ok(()));
                    self.inflight.remove(&id);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_arrives_in_order_and_within_the_window(
            window in 1..5u16,
            limit in 1..20usize,
            actions in prop::collection::vec(action(), 0..200),
        ) {
            let now = Instant::now();
            let window = NonZeroU16::new(window).expect("not 0");
            let mut outbox = Outbox::new(Encoder::new(Version::V311, None), window, limit, 1 << 20);
            let (mut client, mut lost) = (Client::default(), 0);
            // Numbers of accepted messages: those of QoS 0 may pass the others.
            let (mut quick, mut careful) = (Vec::new(), Vec::new());
            let mut number = 0u32;
            for action in actions {
                match action {
                    Action::Push(qos) => {
                        number += 1;
                        let topic = TopicName::new("t").expect("valid");
                        let message = Message::new(topic, number.to_be_bytes().to_vec());
                        let delivery = Delivery { qos, retain: false, identifiers: Vec::new() };
                        let dated = Dated { message: &message, received: now };
                        match outbox.push(dated, &mut None, &delivery, now) {
                            Pushed::Accepted { .. } if qos == QoS::AtMostOnce => quick.push(number),
                            Pushed::Accepted { .. } => careful.push(number),
                            Pushed::Full => prop_assert_ne!(qos, QoS::AtMostOnce),
                            Pushed::Lost(loss) => prop_assert_eq!((qos, loss), (QoS::AtMostOnce, Loss::Full)),
                        }
                        prop_assert!(outbox.buffered_messages + outbox.pending.len() <= limit);
                    }
                    Action::Acknowledge(at) => client.acknowledge(&mut outbox, at),
                    Action::Take => {
                        let mut out = BytesMut::new();
                        outbox.take(&mut out, now, &mut lost);
                        client.read(out, window.get().into());
                    }
                }
            }
            while client.got.len() < quick.len() + careful.len() {
                let mut out = BytesMut::new();
                outbox.take(&mut out, now, &mut lost);
                client.read(out, window.get().into());
                while !client.inflight.is_empty() {
                    client.acknowledge(&mut outbox, 0);
                }
            }
            let (got_quick, got_careful): (Vec<u32>, Vec<u32>) =
                client.got.iter().partition(|number| quick.contains(number));
            prop_assert_eq!((got_quick, got_careful, lost), (quick, careful, 0));
        }
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
}
