//! The outbox of one subscriber: encoded bytes, messages that wait, and messages in flight.
//!
//! A publisher encodes straight into the buffer of a connected subscriber. Messages that have to be sent again after a
//! lost connection are kept as well: in the store, and in memory while they are in flight or soon will be. No I/O, no clock.
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

mod acks;
mod backlog;
mod copies;
mod direct;
mod link;
mod outcome;
mod persistent;
mod send;
mod slot;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use self::backlog::Backlog;
pub(crate) use self::copies::Copies;
pub(crate) use self::link::MayRead;
use self::link::{Link, Recheck};
pub(crate) use self::outcome::{Loss, Page, Pushed, Release, Taken, WrongAck};
use self::slot::{Slot, Waiting};
pub(crate) use self::totals::{Bounds, Totals};
use self::totals::{CLAIM_BYTES, FREE_BYTES};
use crate::delivery::{Dated, Delivery};
use crate::message::{Message, QoS};
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::wal::{Ticket, Transaction};
use crate::wire::Encoder;

/// Packet identifiers: from 1 on, one for each number, again and again.
const PACKET_IDS: u64 = 65_535;
/// Numbers in flight at a time, acknowledged ones between others included: far from using one packet identifier twice.
const MAX_SPAN: usize = 60_000;
/// Numbers without a message between messages of a stored session; each costs a few bytes of memory.
const MAX_GAP: u64 = 1 << 20;
/// `MAX_GAP` while the client is not connected.
const MAX_GAP_AWAY: u64 = 4096;
/// Messages of a stored session that wait in memory; more are fetched when they have been sent.
const MEMORY_MESSAGES: usize = 512;
/// Bytes of the messages of a stored session that wait in memory.
const MEMORY_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Outbox {
    link: Option<Link>,
    /// The stored messages of a session that outlives its connections.
    stored: Option<Backlog>,
    first: u64,
    slots: VecDeque<Slot>,
    sent: usize,
    /// Number of sent messages that are not done.
    open: usize,
    /// Number of dropped messages among those not sent.
    gone: usize,
    /// Bytes that wait in `slots[sent..]`.
    memory_bytes: usize,
    bounds: Bounds,
    totals: Arc<Totals>,
    /// Bytes of the common bound, for buffered messages and for bytes that were taken last.
    claimed_bytes: usize,
    taken_bytes: usize,
}

impl Outbox {
    /// An outbox for a client that is going to be connected. `session`: the number of a session that outlives the
    /// connection.
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

    /// A client is connected: messages that were in flight are sent again.
    pub(crate) fn connect(&mut self, encoder: Encoder, window: NonZeroU16, alias_maximum: u16) {
        self.link = Some(Link::new(encoder, window, alias_maximum));
    }

    /// Checks permissions again for all messages that wait now: the client gets only those to whose topics it may
    /// subscribe. `may_read` is called under the lock of the outbox.
    pub(crate) fn recheck(&mut self, may_read: MayRead) {
        let spilled = self.stored.as_ref().map_or(0, |stored| stored.spilled.len());
        let before = self.first + (self.slots.len() + spilled) as u64;
        if let Some(link) = self.link.as_mut().filter(|_| before > self.first + self.sent as u64) {
            link.recheck = Some(Recheck { before, may_read });
        }
    }

    /// The connection is lost. Stored messages wait in the store alone; all others are dropped. Gives their number.
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

    /// Ends the session; gives the number of messages that are lost with it.
    pub(crate) fn forget(&mut self) -> u64 {
        let waiting = self.waiting().0;
        self.disconnect();
        if let Some(stored) = &mut self.stored {
            stored.forget();
        }
        // No message is accepted any more.
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
        if self.sent < self.slots.len() || self.open >= link.window || self.sent >= MAX_SPAN {
            let message = copies.message(dated.message);
            self.wait(message, dated.received, delivery.clone(), figures.clone(), None);
            return Pushed::Accepted { wake: false, pressure: self.is_pressed() };
        }
        let packet_id = packet_id(self.first + self.slots.len() as u64);
        match link.publish(dated, delivery, Some(packet_id), false, figures, now.instant) {
            Ok(()) => {
                self.slots.push_back(Slot::in_flight(delivery.qos, None));
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

    /// A publisher gave up waiting: until the connection takes something, no publisher waits.
    pub(crate) fn give_up(&mut self) {
        if let Some(link) = &mut self.link {
            link.stalled = true;
        }
    }

    /// Messages that were sent and are not done, also those of a client that has disconnected since.
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

    /// True if there is no room for one more message of this weight.
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

    /// True if the client is connected and has room.
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
