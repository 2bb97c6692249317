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

    /// Whether a message would be accepted now.
    pub(crate) fn has_room(&self, message: &Message) -> bool {
        !self.is_full(message.weight())
    }

    /// A publisher gave up waiting: until something is taken, nobody else waits.
    pub(crate) fn give_up(&mut self) {
        self.stalled = true;
    }

    /// Moves what is encoded to the end of `out` and says whether a publisher waits for the room.
    pub(crate) fn take(&mut self, out: &mut BytesMut, now: Instant, lost: &mut u64) -> bool {
        self.pump(now, lost);
        if self.buffer.is_empty() {
            return false;
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
