//! The way out to one subscriber: encoded bytes, the messages that wait, and what is in flight.
//!
//! A publisher encodes straight into the buffer of a connected subscriber. What has to be sent again after a lost
//! connection is kept as well: in the store, and in memory while it is in flight or about to be. No I/O, no clock.
//!
//! Every QoS 1 or 2 message for a subscriber has a number. Its packet identifier follows from the number, so that a
//! message that is sent again, even after a restart, has the one it had before:
//!
//! ```text
//!   first        first + sent         first + slots.len()               next
//!     | in flight    | waiting in memory     | waiting in the store       |
//!     +--------------+-----------------------+----------------------------+
//!        slots[..sent]        slots[sent..]            spilled
//! ```

mod backlog;
mod kept;
mod link;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use self::backlog::Backlog;
pub(crate) use self::link::MayRead;
pub(crate) use self::link::seconds_left;
use self::link::{Doubtful, Link};
pub(crate) use self::totals::{Bounds, Totals};
use self::totals::{CLAIM_BYTES, FREE_BYTES};
use crate::message::{Message, QoS};
use crate::monitor::Figures;
use crate::stored::{self, Moment, QueueRecord};
use crate::wal::{Entry, Progress, Ticket, Transaction};
use crate::wire::{Encoder, PublishAck2Reason};

/// Capacity above which an emptied buffer is given back.
const KEPT_CAPACITY_BYTES: usize = 16 * 1024;
/// Packet identifiers: from 1 on, one for each number, again and again.
const PACKET_IDS: u64 = 65_535;
/// Most numbers in flight at a time, acknowledged ones between others included: far from meeting the same identifier.
const LARGEST_SPAN: usize = 60_000;
/// Numbers that may be gone between messages of a stored session; each costs a few bytes of memory.
const LARGEST_GAP: u64 = 1 << 20;
/// The same while the client is away.
const LARGEST_GAP_AWAY: u64 = 4096;
/// Messages of a stored session that wait in memory; more are fetched when they have been sent.
const MEMORY_MESSAGES: usize = 512;
/// Bytes of them.
const MEMORY_BYTES: usize = 256 * 1024;
/// Messages fetched from the store at a time.
const PAGE_MESSAGES: usize = 256;

#[derive(Debug)]
pub(crate) struct Outbox {
    link: Option<Link>,
    /// Of a session that outlives its connections.
    stored: Option<Backlog>,
    first: u64,
    slots: VecDeque<Slot>,
    sent: usize,
    /// Of those sent: not done.
    open: usize,
    /// Of those not sent: given up.
    gone: usize,
    /// Bytes that wait in `slots[sent..]`.
    memory_bytes: usize,
    bounds: Bounds,
    totals: Arc<Totals>,
    /// Of the common share, for what is here and for what was taken last.
    claimed_bytes: usize,
    taken_bytes: usize,
}

#[derive(Debug)]
enum Slot {
    /// Acknowledged, or given up.
    Done,
    /// QoS 1, waits for PUBACK. With the filter it came by, where it may have to wait again.
    Published(Option<Arc<Figures>>),
    /// QoS 2, waits for PUBREC.
    PublishedOnce(Option<Arc<Figures>>),
    /// QoS 2, PUBREC came, waits for PUBCOMP.
    Released(Option<Arc<Figures>>),
    Waiting(Box<Waiting>),
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    delivery: Delivery,
    received: Instant,
    figures: Arc<Figures>,
    /// QoS 2: not sent before it is stored under its number.
    after: Option<Ticket>,
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

/// What the subscribers of one message share.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    message: Option<Message>,
    /// The stored form, for one way of delivery.
    record: Option<(Delivery, Bytes)>,
}

impl Copies {
    /// A copy of the message to keep.
    pub(crate) fn message(&mut self, message: &Message) -> Message {
        self.message.get_or_insert_with(|| message.clone()).clone()
    }

    fn record(&mut self, message: &Message, delivery: &Delivery, received_unix_ms: u64) -> Bytes {
        match &self.record {
            Some((same, record)) if same == delivery => record.clone(),
            _ => {
                let record =
                    Bytes::from(stored::encode(&QueueRecord::of(message, delivery, received_unix_ms)));
                self.record = Some((delivery.clone(), record.clone()));
                record
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// On its way, or waiting. `wake`: the connection has to be told; `pressure`: more than half of the bound is used.
    Accepted { wake: bool, pressure: bool },
    /// On its way, but there was no room for it: who published it is to wait until there [is](Outbox::has_room), and then to
    /// [`trim`](Outbox::trim).
    Over { wake: bool },
    /// QoS 0 for a client that is not connected.
    Skipped,
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
    NotAuthorized,
    Closed,
}

/// A client acknowledged something it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongAck;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Answer with PUBREL, once this is stored.
    Send(Option<Ticket>),
    /// Answer with PUBREL, packet identifier not found.
    NotFound,
    /// The client refused the message: nothing to answer.
    Ended,
}

/// What [`Outbox::take`] found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Somebody waited for the room there is now.
    pub awaited: bool,
    /// Messages that were lost meanwhile.
    pub lost: u64,
    /// It goes on when the store has got further.
    pub awaits_store: bool,
    /// Fetch these from the store.
    pub page: Option<Page>,
}

/// Messages of a session in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub session: u64,
    pub from: u64,
    pub messages: usize,
}

impl Outbox {
    /// For a client that is going to be connected. `session`: the number of a session that outlives the connection.
    pub(crate) fn new(session: Option<u64>, bounds: Bounds, totals: Arc<Totals>) -> Outbox {
        Outbox {
            link: None,
            stored: session.map(|session| Backlog::new(session, totals.clone())),
            first: 0,
            slots: VecDeque::new(),
            sent: 0,
            open: 0,
            gone: 0,
            memory_bytes: 0,
            bounds,
            totals,
            claimed_bytes: 0,
            taken_bytes: 0,
        }
    }

    /// The client is there: what was in flight is sent again.
    pub(crate) fn connect(&mut self, encoder: Encoder, window: NonZeroU16, alias_maximum: u16) {
        self.link = Some(Link::new(encoder, window, alias_maximum));
    }

    /// What waits now goes only where the client may subscribe; `may_read` is asked under this lock.
    pub(crate) fn doubt(&mut self, may_read: MayRead) {
        let spilled = self.stored.as_ref().map_or(0, |stored| stored.spilled.len());
        let before = self.first + (self.slots.len() + spilled) as u64;
        if let Some(link) = self.link.as_mut().filter(|_| before > self.first + self.sent as u64) {
            link.doubtful = Some(Doubtful { before, may_read });
        }
    }

    /// The client is gone. What is stored waits in the store alone; everything else is given up, and counted.
    pub(crate) fn disconnect(&mut self) -> u64 {
        let link = self.link.take();
        let mut lost = 0;
        for (figures, count) in link.into_iter().flat_map(|link| link.buffered) {
            figures.unqueued(count);
        }
        let (slots, sent) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.sent));
        (self.open, self.gone, self.memory_bytes) = (0, 0, 0);
        self.totals
            .release(std::mem::take(&mut self.claimed_bytes) + std::mem::take(&mut self.taken_bytes));
        if self.stored.is_none() {
            for slot in &slots {
                if let Slot::Waiting(waiting) = slot {
                    waiting.figures.unqueued(1);
                    waiting.figures.lost(1);
                    lost += 1;
                }
            }
        }
        if let Some(stored) = &mut self.stored {
            stored.sent_before = stored.sent_before.max(self.first + sent as u64);
            for slot in slots.into_iter().rev() {
                stored.unfetch(slot);
            }
            stored.fetching = false;
            stored.mark = None;
            // Changes of these have to be stored before they are read again.
            stored.readable_to = self.first;
            self.skip_gone();
        } else {
            self.first = 0;
        }
        lost
    }

    /// The session is over; says how many messages are lost with it.
    pub(crate) fn forget(&mut self) -> u64 {
        let waiting = self.waiting().0;
        self.disconnect();
        if let Some(stored) = &mut self.stored {
            stored.forget();
        }
        // Nothing comes in any more.
        self.stored = None;
        waiting
    }

    /// Encodes a message, or queues it. `copies` are shared by all subscribers of one message: the first that has to keep
    /// it makes them.
    pub(crate) fn push(
        &mut self,
        dated: Dated<'_>,
        copies: &mut Copies,
        delivery: &Delivery,
        figures: &Arc<Figures>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> Pushed {
        let weight = dated.message.weight();
        if delivery.qos == QoS::AtMostOnce {
            let is_full = self.is_full(weight);
            let Some(link) = &mut self.link else {
                return if self.stored.is_some() { Pushed::Skipped } else { Pushed::Lost(Loss::Closed) };
            };
            if is_full {
                return Pushed::Lost(Loss::Full);
            }
            let wake = link.buffer.is_empty();
            return match link.publish(dated, delivery, None, false, figures, now.instant) {
                Ok(()) => Pushed::Accepted { wake, pressure: self.is_pressed() },
                Err(loss) => Pushed::Lost(loss),
            };
        }
        if self.stored.is_some() {
            return self.push_stored(dated, copies, delivery, figures, now, transaction);
        }
        let is_full = self.is_full(weight);
        let Some(link) = &mut self.link else { return Pushed::Lost(Loss::Closed) };
        if is_full {
            if link.stalled {
                return Pushed::Lost(Loss::Full);
            }
            link.awaited = true;
            return Pushed::Full;
        }
        let wake = link.buffer.is_empty();
        if self.sent < self.slots.len() || self.open >= link.window || self.sent >= LARGEST_SPAN {
            let message = copies.message(dated.message);
            self.wait(message, dated.received, delivery.clone(), figures.clone(), None);
            return Pushed::Accepted { wake: false, pressure: self.is_pressed() };
        }
        let packet_id = packet_id(self.first + self.slots.len() as u64);
        match link.publish(dated, delivery, Some(packet_id), false, figures, now.instant) {
            Ok(()) => {
                self.slots.push_back(in_flight(delivery.qos, None));
                self.sent += 1;
                self.open += 1;
                Pushed::Accepted { wake, pressure: self.is_pressed() }
            }
            Err(loss) => Pushed::Lost(loss),
        }
    }

    fn wait(
        &mut self,
        message: Message,
        received: Instant,
        delivery: Delivery,
        figures: Arc<Figures>,
        after: Option<Ticket>,
    ) {
        figures.queued(1);
        self.memory_bytes += message.weight();
        let waiting = Waiting { message, delivery, received, figures, after };
        self.slots.push_back(Slot::Waiting(Box::new(waiting)));
    }

    /// A publisher gave up waiting: until something is taken, nobody else waits.
    pub(crate) fn give_up(&mut self) {
        if let Some(link) = &mut self.link {
            link.stalled = true;
        }
    }

    /// Moves what is encoded to the end of `out`, after what can be encoded by now.
    pub(crate) fn take(
        &mut self,
        out: &mut BytesMut,
        now: Instant,
        progress: Progress,
        transaction: &mut Transaction<'_>,
    ) -> Taken {
        let mut taken = Taken::default();
        self.pump(now, progress, transaction, &mut taken);
        if let Some(stored) = &mut self.stored {
            let waiting = self.slots.len() - self.sent;
            let from = self.first + self.slots.len() as u64;
            let room = waiting < MEMORY_MESSAGES / 2 && self.memory_bytes < MEMORY_BYTES;
            if room && !stored.spilled.is_empty() && !stored.fetching {
                match stored.readable(from, progress) {
                    Ok(messages) => {
                        let messages = stored.within(messages, MEMORY_BYTES);
                        stored.fetching = true;
                        taken.page = Some(Page { session: stored.session, from, messages });
                    }
                    Err(()) => taken.awaits_store = true,
                }
            }
        }
        let is_full = self.is_full(0) || self.is_stored_full(0);
        let Some(link) = &mut self.link else { return taken };
        if link.buffer.is_empty() {
            self.totals.release(std::mem::take(&mut self.taken_bytes));
            if self.slots.len() == self.sent {
                // Claimed for a message that could not be sent.
                self.totals.release(std::mem::take(&mut self.claimed_bytes));
            }
            // What waited may have expired, which makes room too.
            taken.awaited = !is_full && std::mem::take(&mut link.awaited);
            return taken;
        }
        if out.is_empty() {
            std::mem::swap(out, &mut link.buffer);
        } else {
            out.extend_from_slice(&link.buffer);
        }
        link.buffer.clear();
        if link.buffer.capacity() > KEPT_CAPACITY_BYTES {
            link.buffer = BytesMut::new();
        }
        link.buffered_messages = 0;
        // What was taken before is written by now.
        self.totals.release(std::mem::replace(&mut self.taken_bytes, self.claimed_bytes));
        self.claimed_bytes = 0;
        for (figures, count) in link.buffered.drain(..) {
            figures.sent(count);
        }
        link.stalled = false;
        taken.awaited = std::mem::take(&mut link.awaited);
        taken
    }

    /// PUBACK.
    pub(crate) fn acknowledged(
        &mut self,
        id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(()),
            Some((at, Slot::Published(_))) => {
                self.done(at, transaction);
                Ok(())
            }
            Some((_, Slot::PublishedOnce(_) | Slot::Released(_))) => Err(WrongAck),
        }
    }

    /// PUBREC.
    pub(crate) fn received(
        &mut self,
        id: NonZeroU16,
        failed: bool,
        transaction: &mut Transaction<'_>,
    ) -> Result<Release, WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) if failed => Ok(Release::Ended),
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(Release::NotFound),
            Some((_, Slot::Published(_))) => Err(WrongAck),
            Some((at, Slot::PublishedOnce(_) | Slot::Released(_))) if failed => {
                self.done(at, transaction);
                Ok(Release::Ended)
            }
            Some((_, Slot::Released(_))) => Ok(Release::Send(None)),
            Some((at, Slot::PublishedOnce(figures))) => {
                self.slots[at] = Slot::Released(figures.clone());
                let number = self.first + at as u64;
                let released = || Some(stored::encode(&QueueRecord::Released));
                let stored = self.stored.as_mut();
                let ticket = stored
                    .map(|stored| stored.change(number, released().map(Bytes::from), true, transaction));
                Ok(Release::Send(ticket))
            }
        }
    }

    /// PUBCOMP.
    pub(crate) fn completed(
        &mut self,
        id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(()),
            Some((at, Slot::Released(_))) => {
                self.done(at, transaction);
                Ok(())
            }
            Some((_, Slot::Published(_) | Slot::PublishedOnce(_))) => Err(WrongAck),
        }
    }

    /// Messages that were sent and are not done, also those of a client that has gone since.
    pub(crate) fn in_flight(&self) -> u64 {
        let away = self.stored.as_ref().map_or(0, |stored| stored.spilled_in_flight);
        (self.open + away) as u64
    }

    /// Messages that wait in the store and in memory, those in flight not included.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let in_memory = self.waiting_in_memory();
        match &self.stored {
            Some(stored) => ((in_memory + stored.spilled_waiting()) as u64, stored.waiting_bytes),
            None => (in_memory as u64, self.memory_bytes as u64),
        }
    }

    fn waiting_in_memory(&self) -> usize {
        self.slots.len() - self.sent - self.gone
    }

    /// The slot in flight that has this packet identifier.
    fn slot(&self, id: NonZeroU16) -> Option<(usize, &Slot)> {
        let first = u64::from(packet_id(self.first).get());
        let at = ((u64::from(id.get()) + PACKET_IDS - first) % PACKET_IDS) as usize;
        (at < self.sent).then(|| (at, &self.slots[at]))
    }

    fn done(&mut self, at: usize, transaction: &mut Transaction<'_>) {
        self.slots[at] = Slot::Done;
        self.open -= 1;
        if let Some(stored) = &mut self.stored {
            stored.change(self.first + at as u64, None, false, transaction);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while let Some(Slot::Done) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
            match self.sent {
                0 => self.gone -= 1,
                _ => self.sent -= 1,
            }
        }
        if self.slots.is_empty() {
            if self.slots.capacity() > 64 {
                self.slots = VecDeque::new();
            }
            self.skip_gone();
        }
    }

    /// Encodes what waits, as far as the client's window, the buffer and the store allow.
    fn pump(
        &mut self,
        now: Instant,
        progress: Progress,
        transaction: &mut Transaction<'_>,
        taken: &mut Taken,
    ) {
        let Some(link) = &mut self.link else { return };
        // What is in the store needs not be here as well.
        let most_bytes = if self.stored.is_some() { MEMORY_BYTES } else { self.bounds.bytes };
        while let Some(slot) = self.slots.get_mut(self.sent) {
            let number = self.first + self.sent as u64;
            let full = link.buffer.len() >= most_bytes && !link.buffer.is_empty();
            if self.open >= link.window || full || self.sent >= LARGEST_SPAN {
                return;
            }
            match slot {
                Slot::Waiting(waiting) => {
                    if let Some(after) = waiting.after {
                        match progress.of(after) {
                            None => {
                                taken.awaits_store = true;
                                return;
                            }
                            // It will be stored no more, and sent again by its publisher.
                            Some(Err(_)) => return,
                            Some(Ok(())) => waiting.after = None,
                        }
                    }
                    let Waiting { message, delivery, received, figures, .. } = &**waiting;
                    let weight = message.weight();
                    figures.unqueued(1);
                    self.memory_bytes -= weight;
                    let duplicate = self.stored.as_ref().is_some_and(|stored| number < stored.sent_before);
                    if let Some(stored) = &mut self.stored {
                        stored.weigh(-(weight as i64));
                    }
                    let dated = Dated { message, received: *received };
                    let id = Some(packet_id(number));
                    let sent = match link.may_have(number, message.topic()) {
                        true => link.publish(dated, delivery, id, duplicate, figures, now),
                        false => Err(Loss::NotAuthorized),
                    };
                    match sent {
                        Ok(()) => {
                            if let Some(stored) = &mut self.stored {
                                stored.mark_sent(number, transaction);
                            }
                            let kept = self.stored.is_some().then(|| figures.clone());
                            *slot = in_flight(delivery.qos, kept);
                            self.open += 1;
                        }
                        Err(_) => {
                            figures.lost(1);
                            taken.lost += 1;
                            if let Some(stored) = &mut self.stored {
                                stored.change(number, None, false, transaction);
                            }
                            *slot = Slot::Done;
                        }
                    }
                }
                Slot::Released(_) => {
                    let reason = PublishAck2Reason::Success;
                    // Without reason and properties it fits every client.
                    let _ = link.encoder.pubrel(&mut link.buffer, packet_id(number), reason);
                    self.open += 1;
                }
                Slot::Done => self.gone -= 1,
                Slot::Published(_) | Slot::PublishedOnce(_) => self.open += 1,
            }
            self.sent += 1;
        }
        self.shrink();
    }

    /// Whether there is no room for one more message of this weight.
    fn is_full(&mut self, weight: usize) -> bool {
        let Some(link) = &self.link else { return false };
        let messages = link.buffered_messages + self.memory_messages();
        let bytes = link.buffer.len() + self.memory_part() + weight;
        if messages >= self.bounds.messages || (messages > 0 && bytes > self.bounds.bytes) {
            return true;
        }
        if bytes <= FREE_BYTES + self.claimed_bytes {
            return false;
        }
        let wanted = (bytes - FREE_BYTES - self.claimed_bytes).next_multiple_of(CLAIM_BYTES);
        let claimed = self.totals.claim(wanted);
        self.claimed_bytes += if claimed { wanted } else { 0 };
        !claimed
    }

    /// Whether the client is there and has room.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.link.is_some() && !self.is_full(0) && !self.is_stored_full(0)
    }

    fn is_pressed(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let messages = link.buffered_messages + self.memory_messages();
        messages > self.bounds.messages / 2
            || link.buffer.len() + self.memory_part() > self.bounds.bytes / 2
    }

    /// Waiting messages that count for the bounds in memory; those of a stored session have bounds of their own.
    fn memory_messages(&self) -> usize {
        if self.stored.is_some() { 0 } else { self.waiting_in_memory() }
    }

    fn memory_part(&self) -> usize {
        if self.stored.is_some() { 0 } else { self.memory_bytes }
    }
}

/// The packet identifier of a number.
fn packet_id(number: u64) -> NonZeroU16 {
    let id = (number % PACKET_IDS) as u16;
    NonZeroU16::MIN.saturating_add(id)
}

fn in_flight(qos: QoS, figures: Option<Arc<Figures>>) -> Slot {
    if qos == QoS::ExactlyOnce { Slot::PublishedOnce(figures) } else { Slot::Published(figures) }
}
