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

use std::collections::{HashMap, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::journal::{Change, Entry, Progress, Space, Ticket, Transaction};
use crate::message::{Message, QoS};
use crate::monitor::Figures;
use crate::stored::{self, Moment, QueueRecord};
use crate::topic::TopicName;
use crate::wire::{Encoder, PublishAck2Reason, PublishHeader, TopicAlias};

/// Capacity above which an emptied buffer is given back.
const KEPT_CAPACITY_BYTES: usize = 16 * 1024;
/// Packet identifiers: from 1 on, one for each number, again and again.
const PACKET_IDS: u64 = 65_535;
/// Most numbers in flight at a time, acknowledged ones between others included: far from meeting the same identifier.
const LARGEST_SPAN: usize = 60_000;
/// Messages of a stored session that wait in memory; more are fetched when they have been sent.
const MEMORY_MESSAGES: usize = 512;
/// Bytes of them.
const MEMORY_BYTES: usize = 256 * 1024;
/// Messages fetched from the store at a time.
const PAGE_MESSAGES: usize = 256;

/// What a subscriber may have in memory before it counts for all subscribers together.
const FREE_BYTES: usize = 8 * 1024;
/// What it takes of the common share at a time.
const CLAIM_BYTES: usize = 32 * 1024;

/// What waits for all subscribers together.
#[derive(Debug)]
pub(crate) struct Totals {
    stored_bytes: AtomicI64,
    max_stored_bytes: i64,
    buffered_bytes: AtomicI64,
    max_buffered_bytes: i64,
}

impl Totals {
    pub(crate) fn new(max_stored_bytes: i64, max_buffered_bytes: i64) -> Totals {
        Totals {
            stored_bytes: AtomicI64::new(0),
            max_stored_bytes,
            buffered_bytes: AtomicI64::new(0),
            max_buffered_bytes,
        }
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        u64::try_from(self.stored_bytes.load(Relaxed)).unwrap_or(0)
    }

    pub(crate) fn buffered_bytes(&self) -> u64 {
        u64::try_from(self.buffered_bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Takes a share of what may be buffered, if there is one.
    fn claim(&self, bytes: usize) -> bool {
        let before = self.buffered_bytes.fetch_add(bytes as i64, Relaxed);
        let claimed = before + bytes as i64 <= self.max_buffered_bytes;
        if !claimed {
            self.release(bytes);
        }
        claimed
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.buffered_bytes.fetch_sub(bytes as i64, Relaxed);
        }
    }
}

/// What may wait for one subscriber.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub messages: usize,
    pub bytes: usize,
    /// What may wait in the store for a session that is kept.
    pub stored_messages: usize,
    pub stored_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    link: Option<Link>,
    /// Of a session that outlives its connections.
    stored: Option<Stored>,
    first: u64,
    slots: VecDeque<Slot>,
    sent: usize,
    /// Of those sent: not done.
    open: usize,
    /// Bytes that wait in `slots[sent..]`.
    memory_bytes: usize,
    bounds: Bounds,
    totals: Arc<Totals>,
    /// Of the common share, for what is here and for what was taken last.
    claimed_bytes: usize,
    taken_bytes: usize,
}

/// The connected client.
#[derive(Debug)]
struct Link {
    encoder: Encoder,
    buffer: BytesMut,
    buffered_messages: usize,
    /// Whose messages are in the buffer.
    buffered: Vec<(Arc<Figures>, u64)>,
    window: usize,
    aliases: Aliases,
    /// A publisher waits for room.
    awaited: bool,
    /// A publisher has waited in vain, and nothing was taken since.
    stalled: bool,
}

/// Topics that the client knows by number.
#[derive(Debug)]
struct Aliases {
    maximum: u16,
    known: HashMap<TopicName, NonZeroU16>,
}

/// What the store has for a session.
#[derive(Debug)]
struct Stored {
    session: u64,
    totals: Arc<Totals>,
    /// The messages after those in `slots`.
    spilled: VecDeque<Spilled>,
    spilled_messages: usize,
    /// By which filters they came.
    sources: Vec<Arc<Figures>>,
    /// Position in `sources`, by address.
    source_of: HashMap<usize, u32>,
    /// Bytes that wait, in memory and in the store.
    waiting_bytes: u64,
    /// Numbers below were perhaps sent on an earlier connection.
    sent_before: u64,
    /// The last change.
    ticket: Option<Ticket>,
    /// Numbers below can be read once the ticket is stored.
    mark: Option<(u64, Ticket)>,
    readable_to: u64,
    fetching: bool,
}

/// What is known of a message in the store.
#[derive(Debug, Clone, Copy)]
struct Spilled {
    /// 0 for one that is not there any more.
    weight: u32,
    source: u32,
}

impl Spilled {
    const GONE: Spilled = Spilled { weight: 0, source: 0 };
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// On its way, or waiting. `wake`: the connection has to be told; `pressure`: more than half of the bound is used.
    Accepted { wake: bool, pressure: bool },
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
            stored: session.map(|session| Stored::new(session, totals.clone())),
            first: 0,
            slots: VecDeque::new(),
            sent: 0,
            open: 0,
            memory_bytes: 0,
            bounds,
            totals,
            claimed_bytes: 0,
            taken_bytes: 0,
        }
    }

    /// Brings back what the store has: the numbers of messages with their weights, in order.
    pub(crate) fn restore(&mut self, number: u64, weight: u32, figures: &Arc<Figures>) {
        let Some(stored) = &mut self.stored else { return };
        if stored.spilled.is_empty() {
            self.first = number;
        }
        let next = self.first + stored.spilled.len() as u64;
        // A damaged number far off would be paid for with memory.
        if number < next || number - next > u64::from(u32::MAX) {
            return;
        }
        stored.spilled.extend((next..number).map(|_| Spilled::GONE));
        stored.spill(weight, figures);
        stored.sent_before = number + 1;
        stored.readable_to = number + 1;
        stored.weigh(i64::from(weight));
    }

    /// The client is there: what was in flight is sent again.
    pub(crate) fn connect(&mut self, encoder: Encoder, window: NonZeroU16, alias_maximum: u16) {
        self.link = Some(Link {
            encoder,
            buffer: BytesMut::new(),
            buffered_messages: 0,
            buffered: Vec::new(),
            window: window.get().into(),
            aliases: Aliases { maximum: alias_maximum, known: HashMap::new() },
            awaited: false,
            stalled: false,
        });
    }

    /// The client is gone. What is stored waits in the store alone; everything else is given up, and counted.
    pub(crate) fn disconnect(&mut self) -> u64 {
        let link = self.link.take();
        let mut lost = 0;
        for (figures, count) in link.into_iter().flat_map(|link| link.buffered) {
            figures.unqueued(count);
        }
        let (slots, sent) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.sent));
        (self.open, self.memory_bytes) = (0, 0);
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
        waiting
    }

    /// Encodes a message, or queues it. `owned` is shared by all subscribers of one message: the first that has to keep
    /// it makes the copy.
    pub(crate) fn push(
        &mut self,
        dated: Dated<'_>,
        owned: &mut Option<Message>,
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
            return self.push_stored(dated, owned, delivery, figures, now, transaction);
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
            let message = owned.get_or_insert_with(|| dated.message.clone()).clone();
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

    /// Whether one more message for a session that is kept would cost an older one.
    pub(crate) fn is_stored_full(&self, weight: usize) -> bool {
        self.stored.as_ref().is_some_and(|stored| {
            let messages = self.slots.len() - self.sent + stored.spilled_messages;
            let total = stored.totals.stored_bytes.load(Relaxed) + weight as i64;
            messages >= self.bounds.stored_messages
                || (messages > 0 && stored.waiting_bytes + weight as u64 > self.bounds.stored_bytes)
                || total > stored.totals.max_stored_bytes
        })
    }

    fn push_stored(
        &mut self,
        dated: Dated<'_>,
        owned: &mut Option<Message>,
        delivery: &Delivery,
        figures: &Arc<Figures>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> Pushed {
        let weight = dated.message.weight();
        let mut dropped = 0;
        while self.is_stored_full(weight) {
            match &mut self.link {
                // Its publisher can wait for a while.
                Some(link) if !link.stalled && dropped == 0 => {
                    link.awaited = true;
                    return Pushed::Full;
                }
                _ => {}
            }
            if !self.drop_oldest(transaction) {
                return Pushed::Lost(Loss::Full);
            }
            dropped += 1;
            figures.lost(1);
        }
        let (first, in_memory) = (self.first, self.slots.len());
        let pressure = self.is_pressed();
        let Some(stored) = &mut self.stored else { return Pushed::Lost(Loss::Closed) };
        let number = first + in_memory as u64 + stored.spilled.len() as u64;
        let received_unix_ms = now.unix_ms_of(dated.received);
        let record = stored::encode(&QueueRecord::of(dated.message, delivery, received_unix_ms));
        let ticket = stored.change(number, Some(record), true, transaction);
        let room = in_memory - self.sent < MEMORY_MESSAGES && self.memory_bytes < MEMORY_BYTES;
        let Some(link) = self.link.as_mut().filter(|_| stored.spilled.is_empty() && room) else {
            stored.spill(u32::try_from(weight).unwrap_or(u32::MAX), figures);
            stored.weigh(weight as i64);
            return Pushed::Accepted { wake: false, pressure };
        };
        let wake = link.buffer.is_empty();
        let next_in_turn = self.sent == in_memory && self.open < link.window && self.sent < LARGEST_SPAN;
        if next_in_turn && delivery.qos == QoS::AtLeastOnce {
            let packet_id = packet_id(number);
            return match link.publish(dated, delivery, Some(packet_id), false, figures, now.instant) {
                Ok(()) => {
                    self.slots.push_back(Slot::Published(Some(figures.clone())));
                    self.sent += 1;
                    self.open += 1;
                    Pushed::Accepted { wake, pressure }
                }
                Err(loss) => {
                    stored.change(number, None, false, transaction);
                    self.slots.push_back(Slot::Done);
                    Pushed::Lost(loss)
                }
            };
        }
        stored.weigh(weight as i64);
        let message = owned.get_or_insert_with(|| dated.message.clone()).clone();
        let after = (delivery.qos == QoS::ExactlyOnce).then_some(ticket);
        self.wait(message, dated.received, delivery.clone(), figures.clone(), after);
        // It learns that it waits for the store.
        Pushed::Accepted { wake: wake && next_in_turn, pressure }
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

    /// Gives the oldest waiting message up; false if none waits.
    fn drop_oldest(&mut self, transaction: &mut Transaction<'_>) -> bool {
        let Some(stored) = &mut self.stored else { return false };
        let waiting = self.slots.iter_mut().enumerate().skip(self.sent);
        for (at, slot) in waiting {
            if let Slot::Waiting(waiting) = slot {
                let weight = waiting.message.weight();
                waiting.figures.unqueued(1);
                self.memory_bytes -= weight;
                stored.weigh(-(weight as i64));
                stored.change(self.first + at as u64, None, false, transaction);
                *slot = Slot::Done;
                return true;
            }
        }
        let from = self.first + self.slots.len() as u64;
        let Some(at) = stored.spilled.iter().position(|spilled| spilled.weight > 0) else { return false };
        let Spilled { weight, source } = std::mem::replace(&mut stored.spilled[at], Spilled::GONE);
        stored.unspill(source);
        stored.weigh(-i64::from(weight));
        stored.change(from + at as u64, None, false, transaction);
        self.skip_gone();
        true
    }

    /// Numbers at the front that the store has not any more are not waited for.
    fn skip_gone(&mut self) {
        let Some(stored) = &mut self.stored else { return };
        if self.slots.is_empty() {
            while stored.spilled.front().is_some_and(|spilled| spilled.weight == 0) {
                stored.spilled.pop_front();
                self.first += 1;
            }
        }
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

    /// Takes in what was fetched from the store: all there is of the page's messages, in order.
    pub(crate) fn fetched(
        &mut self,
        page: Page,
        entries: &[Entry],
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) {
        let from = self.first + self.slots.len() as u64;
        let Some(stored) = &mut self.stored else { return };
        if !stored.fetching || page.from != from {
            // Asked for by an earlier connection.
            return;
        }
        stored.fetching = false;
        let mut entries = entries.iter().filter_map(|(key, value)| {
            let (session, number) = stored::parse_queue_key(key)?;
            (session == page.session).then_some((number, value))
        });
        let mut next = entries.next();
        for number in from..from + page.messages as u64 {
            let Some(Spilled { weight, source }) = stored.spilled.pop_front() else { break };
            let figures = (weight > 0).then(|| stored.unspill(source)).flatten();
            while next.is_some_and(|(found, _)| found < number) {
                next = entries.next();
            }
            let value = next.filter(|(found, _)| *found == number).map(|(_, value)| value);
            let slot = value.zip(figures);
            let slot = slot.and_then(|(value, figures)| stored.slot(number, weight, value, figures, now));
            let slot = slot.unwrap_or_else(|| {
                // Not there, or damaged: nothing waits under this number.
                stored.weigh(-i64::from(weight));
                if weight > 0 && value.is_some() {
                    stored.change(number, None, false, transaction);
                }
                Slot::Done
            });
            if let Slot::Waiting(waiting) = &slot {
                waiting.figures.queued(1);
                self.memory_bytes += waiting.message.weight();
                // The weight in the store is an estimate by size there.
                stored.weigh(waiting.message.weight() as i64 - i64::from(weight));
            }
            self.slots.push_back(slot);
        }
        self.shrink();
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
                let ticket = stored.map(|stored| stored.change(number, released(), true, transaction));
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

    /// Messages that wait in the store and in memory, those in flight not included.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let in_memory = self.slots.len() - self.sent;
        match &self.stored {
            Some(stored) => ((in_memory + stored.spilled_messages) as u64, stored.waiting_bytes),
            None => (in_memory as u64, self.memory_bytes as u64),
        }
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
            self.sent = self.sent.saturating_sub(1);
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
        while let Some(slot) = self.slots.get_mut(self.sent) {
            let number = self.first + self.sent as u64;
            let full = link.buffer.len() >= self.bounds.bytes && !link.buffer.is_empty();
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
                            Some(_) => waiting.after = None,
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
                    match link.publish(dated, delivery, id, duplicate, figures, now) {
                        Ok(()) => {
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
                Slot::Done => {}
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
        if self.stored.is_some() { 0 } else { self.slots.len() - self.sent }
    }

    fn memory_part(&self) -> usize {
        if self.stored.is_some() { 0 } else { self.memory_bytes }
    }
}

impl Link {
    fn publish(
        &mut self,
        dated: Dated<'_>,
        delivery: &Delivery,
        packet_id: Option<NonZeroU16>,
        duplicate: bool,
        figures: &Arc<Figures>,
        now: Instant,
    ) -> Result<(), Loss> {
        let expiry_seconds =
            match dated.message.properties().and_then(|properties| properties.expiry_seconds) {
                None => None,
                Some(seconds) => {
                    let age = now.saturating_duration_since(dated.received);
                    Some(seconds_left(seconds, age).ok_or(Loss::Expired)?)
                }
            };
        let alias = self.aliases.of(dated.message.topic());
        let header = PublishHeader {
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id,
            subscription_identifiers: &delivery.identifiers,
            expiry_seconds,
            duplicate,
            alias,
        };
        if self.encoder.publish(&mut self.buffer, dated.message, header).is_err() {
            return Err(Loss::TooLarge);
        }
        if let Some(TopicAlias { number, known: false }) = alias {
            self.aliases.known.insert(dated.message.topic().detached(), number);
        }
        self.buffered_messages += 1;
        figures.queued(1);
        match self.buffered.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, figures) => *count += 1,
            _ => self.buffered.push((figures.clone(), 1)),
        }
        Ok(())
    }
}

impl Aliases {
    /// The first topics get the numbers there are, and keep them.
    fn of(&self, topic: &TopicName) -> Option<TopicAlias> {
        if self.maximum == 0 {
            return None;
        }
        if let Some(&number) = self.known.get(topic) {
            return Some(TopicAlias { number, known: true });
        }
        let number = u16::try_from(self.known.len() + 1).ok().filter(|number| *number <= self.maximum)?;
        NonZeroU16::new(number).map(|number| TopicAlias { number, known: false })
    }
}

impl Stored {
    fn new(session: u64, totals: Arc<Totals>) -> Stored {
        Stored {
            session,
            totals,
            spilled: VecDeque::new(),
            spilled_messages: 0,
            sources: Vec::new(),
            source_of: HashMap::new(),
            waiting_bytes: 0,
            sent_before: 0,
            ticket: None,
            mark: None,
            readable_to: 0,
            fetching: false,
        }
    }

    fn change(
        &mut self,
        number: u64,
        value: Option<Vec<u8>>,
        awaited: bool,
        transaction: &mut Transaction<'_>,
    ) -> Ticket {
        let key = stored::queue_key(self.session, number);
        let ticket = transaction.append(Change { space: Space::Queue, key, value }, awaited);
        self.ticket = Some(ticket);
        ticket
    }

    /// A message waits in the store only.
    fn spill(&mut self, weight: u32, figures: &Arc<Figures>) {
        let spilled = Spilled { weight: weight.max(1), source: self.source(figures) };
        figures.queued(1);
        self.spilled_messages += 1;
        self.spilled.push_back(spilled);
    }

    /// A message does not wait in the store only any more; gives the filter it came by.
    fn unspill(&mut self, source: u32) -> Option<Arc<Figures>> {
        self.spilled_messages -= 1;
        let figures = self.sources.get(source as usize).cloned();
        if let Some(figures) = &figures {
            figures.unqueued(1);
        }
        if self.spilled_messages == 0 {
            self.sources.clear();
            self.source_of.clear();
        }
        figures
    }

    fn source(&mut self, figures: &Arc<Figures>) -> u32 {
        let next = self.sources.len() as u32;
        let source = *self.source_of.entry(Arc::as_ptr(figures) as usize).or_insert(next);
        if source == next {
            self.sources.push(figures.clone());
        }
        source
    }

    /// What was in memory waits in the store again, before everything else there.
    fn unfetch(&mut self, slot: Slot) {
        let (weight, figures) = match slot {
            Slot::Done => return self.spilled.push_front(Spilled::GONE),
            Slot::Waiting(waiting) => {
                (u32::try_from(waiting.message.weight()).unwrap_or(u32::MAX), Some(waiting.figures))
            }
            // It was in flight, not waiting.
            Slot::Published(figures) | Slot::PublishedOnce(figures) | Slot::Released(figures) => {
                self.weigh(1);
                if let Some(figures) = &figures {
                    figures.queued(1);
                }
                (1, figures)
            }
        };
        let Some(figures) = figures else { return self.spilled.push_front(Spilled::GONE) };
        let spilled = Spilled { weight: weight.max(1), source: self.source(&figures) };
        self.spilled_messages += 1;
        self.spilled.push_front(spilled);
    }

    /// The session is over.
    fn forget(&mut self) {
        for spilled in std::mem::take(&mut self.spilled) {
            if spilled.weight > 0 {
                self.unspill(spilled.source);
            }
        }
        let bytes = i64::try_from(self.waiting_bytes).unwrap_or(i64::MAX);
        self.weigh(-bytes);
    }

    /// Counts bytes that wait, or do so no more.
    fn weigh(&mut self, bytes: i64) {
        self.waiting_bytes = self.waiting_bytes.saturating_add_signed(bytes);
        self.totals.stored_bytes.fetch_add(bytes, Relaxed);
    }

    /// How many messages from a number on can be read now, or that the store has to get further.
    fn readable(&mut self, from: u64, progress: Progress) -> Result<usize, ()> {
        if let Some((to, ticket)) = self.mark
            && progress.of(ticket).is_some()
        {
            self.readable_to = self.readable_to.max(to);
            self.mark = None;
        }
        if self.readable_to <= from && self.mark.is_none() {
            let to = from + self.spilled.len() as u64;
            match self.ticket.filter(|ticket| progress.of(*ticket).is_none()) {
                Some(ticket) => self.mark = Some((to, ticket)),
                None => self.readable_to = to,
            }
        }
        match self.readable_to.saturating_sub(from) {
            0 => Err(()),
            readable => Ok(usize::try_from(readable).unwrap_or(usize::MAX).min(PAGE_MESSAGES)),
        }
    }

    /// A fetched record as a slot; `None` if it can't be used.
    fn slot(
        &mut self,
        number: u64,
        weight: u32,
        value: &[u8],
        figures: Arc<Figures>,
        now: &Moment,
    ) -> Option<Slot> {
        let record = stored::decode::<QueueRecord<'_>>(value);
        let slot = record.and_then(|record| match record {
            QueueRecord::Released => {
                self.weigh(-i64::from(weight));
                Ok(Slot::Released(Some(figures)))
            }
            QueueRecord::Message { message, qos, retain, identifiers, received_unix_ms } => {
                Ok(Slot::Waiting(Box::new(Waiting {
                    message: message.message()?,
                    delivery: Delivery { qos: stored::qos(qos)?, retain, identifiers },
                    received: now.instant_of(received_unix_ms),
                    figures,
                    after: None,
                })))
            }
        });
        match slot {
            Ok(slot) => Some(slot),
            Err(damage) => {
                tracing::warn!(session = self.session, number, %damage, "a stored message is lost");
                None
            }
        }
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

/// What is left of a Message Expiry Interval; `None` when it is over. An interval of 0 allows delivery at once only.
pub(crate) fn seconds_left(expiry_seconds: u32, age: Duration) -> Option<u32> {
    let over = age >= Duration::from_secs(expiry_seconds.into()) && !age.is_zero();
    (!over).then(|| expiry_seconds - u32::try_from(age.as_secs()).unwrap_or(expiry_seconds))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::journal::{Journal, MemoryStorage, Storage};
    use crate::message::Version;
    use crate::monitor::Monitor;
    use crate::wire::{Decoder, Packet};

    #[derive(Debug, Clone)]
    enum Action {
        Push(QoS),
        /// Acknowledge one of those in flight, as far as its QoS says next.
        Acknowledge(usize),
        Take,
        /// The store gets on.
        Store,
        /// The connection is lost, and the client is back.
        Reconnect,
        /// The broker is killed: what is not stored is gone.
        Crash,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            6 => prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]).prop_map(Action::Push),
            5 => any::<usize>().prop_map(Action::Acknowledge),
            3 => Just(Action::Take),
            2 => Just(Action::Store),
            1 => Just(Action::Reconnect),
            1 => Just(Action::Crash),
        ]
    }

    /// A store that gets on when it is told to.
    #[derive(Default)]
    struct Disk(parking_lot::Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

    impl Storage for Disk {
        fn scan(
            &self,
            _: Space,
            from: &[u8],
            limit: usize,
        ) -> Result<Vec<Entry>, crate::journal::StorageError> {
            let entries = self.0.lock();
            Ok(entries.range(from.to_vec()..).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
        }

        fn wake(&self, _: &Arc<Journal>) {}
    }

    impl Disk {
        fn store(&self, journal: &Journal) {
            while let Some(mut group) = journal.take() {
                for Change { key, value, .. } in std::mem::take(&mut group.changes) {
                    match value {
                        Some(value) => self.0.lock().insert(key, value),
                        None => self.0.lock().remove(&key),
                    };
                }
                journal.committed(&group, true);
            }
        }
    }

    /// What a client that keeps its session knows.
    #[derive(Default)]
    struct Client {
        /// By packet identifier: QoS, whether PUBREC was sent, whether PUBREL came.
        inflight: BTreeMap<NonZeroU16, (QoS, bool, bool)>,
        /// QoS 2 messages that it has and that are not completed.
        received: BTreeMap<NonZeroU16, u32>,
        got: Vec<(QoS, u32)>,
    }

    impl Client {
        fn read(&mut self, bytes: BytesMut, window: usize) {
            let mut bytes = bytes;
            let mut decoder = Decoder::with_version(Version::V311, 1 << 20);
            while let Some(packet) = decoder.decode(&mut bytes).expect("valid") {
                let publish = match packet {
                    Packet::Publish(publish) => publish,
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

        fn acknowledge(&mut self, outbox: &mut Outbox, at: usize, journal: &Arc<Journal>, disk: &Disk) {
            if self.inflight.is_empty() {
                return;
            }
            let mut transaction = journal.begin();
            let id = *self.inflight.keys().nth(at % self.inflight.len()).expect("within");
            match self.inflight[&id] {
                (QoS::ExactlyOnce, false, _) => {
                    let released = outbox.received(id, false, &mut transaction);
                    drop(transaction);
                    assert!(matches!(released, Ok(Release::Send(_))));
                    // PUBREL leaves once that is stored.
                    disk.store(journal);
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
        journal: Arc<Journal>,
        outbox: Outbox,
        figures: Arc<Figures>,
        window: NonZeroU16,
        bounds: Bounds,
        now: Moment,
    }

    impl World {
        fn new(session: Option<u64>, window: u16, messages: usize) -> World {
            let disk = Arc::<Disk>::default();
            let window = NonZeroU16::new(window).expect("not 0");
            let bounds =
                Bounds { messages, bytes: 1 << 20, stored_messages: 1 << 20, stored_bytes: 1 << 30 };
            let figures = Monitor::new().figures(&crate::topic::TopicFilter::new("t").expect("valid"));
            let totals = Arc::new(Totals::new(1 << 40, 1 << 40));
            let mut world = World {
                journal: Journal::new(disk.clone()),
                disk,
                outbox: Outbox::new(session, bounds, totals),
                figures,
                window,
                bounds,
                now: Moment::now(),
            };
            world.connect();
            world
        }

        fn connect(&mut self) {
            self.outbox.connect(Encoder::new(Version::V311, None), self.window, 0);
        }

        fn push(&mut self, qos: QoS, number: u32) -> Pushed {
            let message = Message::new(TopicName::new("t").expect("valid"), number.to_be_bytes().to_vec());
            let delivery = Delivery { qos, retain: false, identifiers: Vec::new() };
            let dated = Dated { message: &message, received: self.now.instant };
            let mut transaction = self.journal.begin();
            self.outbox.push(dated, &mut None, &delivery, &self.figures, &self.now, &mut transaction)
        }

        fn take(&mut self) -> BytesMut {
            let mut out = BytesMut::new();
            let mut transaction = self.journal.begin();
            let progress = self.journal.progress();
            let taken = self.outbox.take(&mut out, self.now.instant, progress, &mut transaction);
            assert_eq!(taken.lost, 0);
            if let Some(page) = taken.page {
                let from = stored::queue_key(page.session, page.from);
                let entries = self.disk.scan(Space::Queue, &from, page.messages).expect("it can");
                self.outbox.fetched(page, &entries, &self.now, &mut transaction);
            }
            out
        }

        /// A new broker that has what is stored.
        fn crash(&mut self) {
            self.journal = Journal::new(self.disk.clone());
            let totals = Arc::new(Totals::new(1 << 40, 1 << 40));
            self.outbox = Outbox::new(Some(1), self.bounds, totals);
            for (key, value) in self.disk.0.lock().iter() {
                let (_, number) = stored::parse_queue_key(key).expect("a key");
                self.outbox.restore(number, value.len() as u32, &self.figures);
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
                        let World { outbox, journal, disk, .. } = &mut world;
                        client.acknowledge(outbox, at, journal, disk);
                    }
                    _ => client.read(world.take(), window.into()),
                }
            }
            while client.got.len() < quick.len() + careful.len() {
                client.read(world.take(), window.into());
                while !client.inflight.is_empty() {
                    let World { outbox, journal, disk, .. } = &mut world;
                    client.acknowledge(outbox, 0, journal, disk);
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
                        let World { outbox, journal, disk, .. } = &mut world;
                        let (waiting, before) = (journal.so_far(), journal.progress());
                        client.acknowledge(outbox, at, journal, disk);
                        // A PUBREC makes the store get on.
                        if journal.progress() != before && journal.progress().of(waiting).is_some() {
                            stored.append(&mut unstored);
                        }
                    }
                    Action::Take => client.read(world.take(), window.into()),
                    Action::Store => {
                        world.disk.store(&world.journal);
                        stored.append(&mut unstored);
                    }
                    Action::Reconnect => {
                        prop_assert_eq!(world.outbox.disconnect(), 0);
                        client.inflight.clear();
                        world.connect();
                    }
                    Action::Crash => {
                        world.crash();
                        client.inflight.clear();
                        unstored.clear();
                    }
                }
            }
            world.disk.store(&world.journal);
            stored.append(&mut unstored);
            let mut rounds = 0;
            while world.outbox.waiting().0 > 0 || !world.outbox.slots.is_empty() {
                rounds += 1;
                prop_assert!(rounds < 10_000, "it does not end: {:?}", world.outbox);
                client.read(world.take(), window.into());
                while !client.inflight.is_empty() {
                    let World { outbox, journal, disk, .. } = &mut world;
                    client.acknowledge(outbox, 0, journal, disk);
                }
                world.disk.store(&world.journal);
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
        world.disk.store(&world.journal);
        assert_eq!(world.disk.0.lock().len(), 3);
        world.connect();
        let mut client = Client::default();
        while client.got.len() < 3 {
            client.read(world.take(), 1);
            let World { outbox, journal, disk, .. } = &mut world;
            client.acknowledge(outbox, 0, journal, disk);
            world.disk.store(&world.journal);
        }
        assert_eq!(client.got.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [3, 4, 5]);
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
        let journal = Journal::new(storage);
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
                let mut transaction = journal.begin();
                let pushed =
                    outbox.push(dated, &mut None, &delivery, &world.figures, &world.now, &mut transaction);
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
}
