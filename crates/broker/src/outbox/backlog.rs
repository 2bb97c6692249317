//! Messages of a session that are in the store only, and their index in memory.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::slot::{Slot, Waiting};
use super::totals::Totals;
use crate::delivery::Delivery;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::stored::{self, QueueRecord};
use crate::wal::{Change, Progress, Space, Ticket, Transaction};

/// Messages fetched from the store at a time.
pub(super) const PAGE_MESSAGES: usize = 256;
/// Distance of the stored mark from the last message that was sent, in messages.
const MARK_AHEAD: u64 = 256;

/// Messages of a session in the store.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) session: u64,
    pub(super) totals: Arc<Totals>,
    /// The messages after those in `slots`.
    pub(super) spilled: VecDeque<Spilled>,
    pub(super) spilled_messages: usize,
    /// Number of these that were in flight at the disconnect. They take no room, and count for no bound.
    pub(super) spilled_in_flight: usize,
    /// Earliest second at which a message that is only in the store can expire; `None` if none ever expires.
    pub(super) next_expiry: Option<NonZeroU32>,
    /// Below this number no message waits that could be [dropped](Self::oldest).
    pub(super) waits_from: u64,
    /// Figures of the filters that they matched.
    pub(super) sources: Vec<Arc<Figures>>,
    /// Position in `sources`, by address.
    pub(super) source_of: HashMap<usize, u32>,
    /// Bytes that wait, in memory and in the store.
    pub(super) waiting_bytes: u64,
    /// Numbers below were perhaps sent on an earlier connection.
    pub(super) sent_before: u64,
    /// The mark in the store, below which numbers were perhaps sent. It is ahead of the sent numbers by up to
    /// `MARK_AHEAD`, so that not every message changes it.
    pub(super) marked: u64,
    /// The last change.
    pub(super) ticket: Option<Ticket>,
    /// Numbers below can be read once the ticket is stored.
    pub(super) mark: Option<(u64, Ticket)>,
    pub(super) readable_to: u64,
    pub(super) fetching: bool,
}

/// A message that is in the store only.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spilled {
    /// Weight of the message, in bytes; 0 for a message that does not exist any more.
    pub(super) weight: u32,
    pub(super) source: u32,
    /// The [second](Totals::expiry_second) in which it expires.
    pub(super) expires: Option<NonZeroU32>,
}

impl Spilled {
    pub(super) const GONE: Spilled = Spilled { weight: 0, source: 0, expires: None };

    /// The least weight of a message that waits; damaged ones may look lighter.
    pub(super) const MIN_WEIGHT: u32 = 2;

    /// True if the message was in flight at the disconnect: a waiting message has a greater weight.
    pub(super) fn is_in_flight(self) -> bool {
        self.weight == 1
    }
}

impl Backlog {
    pub(super) fn new(session: u64, totals: Arc<Totals>) -> Backlog {
        totals.count_session(true);
        Backlog {
            session,
            totals,
            spilled: VecDeque::new(),
            spilled_messages: 0,
            spilled_in_flight: 0,
            next_expiry: None,
            waits_from: 0,
            sources: Vec::new(),
            source_of: HashMap::new(),
            waiting_bytes: 0,
            sent_before: 0,
            marked: 0,
            ticket: None,
            mark: None,
            readable_to: 0,
            fetching: false,
        }
    }

    /// Stores a new message.
    pub(super) fn add(&mut self, number: u64, record: Bytes, transaction: &mut Transaction<'_>) -> Ticket {
        let key = stored::queue_key(self.session, number);
        let ticket = transaction.append_fresh(Change { space: Space::Queue, key, value: Some(record) });
        self.ticket = Some(ticket);
        ticket
    }

    pub(super) fn change(
        &mut self,
        number: u64,
        value: Option<Bytes>,
        awaited: bool,
        transaction: &mut Transaction<'_>,
    ) -> Ticket {
        let key = stored::queue_key(self.session, number);
        let ticket = transaction.append(Change { space: Space::Queue, key, value }, awaited);
        self.ticket = Some(ticket);
        ticket
    }

    /// A message is sent for the first time, or again.
    pub(super) fn mark_sent(&mut self, number: u64, transaction: &mut Transaction<'_>) {
        if number >= self.marked {
            self.mark_to(number + MARK_AHEAD, transaction);
        }
    }

    /// Stores that numbers from this one on were not sent.
    pub(super) fn mark_to(&mut self, number: u64, transaction: &mut Transaction<'_>) {
        if self.marked != number {
            self.marked = number;
            let (key, value) = (stored::mark_key(self.session), stored::encode(&number));
            transaction.append(Change { space: Space::State, key, value: Some(value.into()) }, false);
        }
    }

    /// A message waits in the store only. `expiry`: when it came, and after how many seconds it expires.
    pub(super) fn spill(&mut self, weight: u32, expiry: Option<(Instant, u32)>, figures: &Arc<Figures>) {
        let expires = self.expires(expiry);
        let spilled =
            Spilled { weight: weight.max(Spilled::MIN_WEIGHT), source: self.source(figures), expires };
        figures.queued(1);
        self.spilled_messages += 1;
        self.spilled.push_back(spilled);
    }

    /// Gives the second in which a message of the store expires, and schedules the next expiry.
    fn expires(&mut self, expiry: Option<(Instant, u32)>) -> Option<NonZeroU32> {
        let (received, seconds) = expiry?;
        let expires = NonZeroU32::new(self.totals.expiry_second(received, seconds));
        self.next_expiry = [self.next_expiry, expires].into_iter().flatten().min();
        expires
    }

    /// A message does not wait in the store only any more; gives the figures of the filter that it matched.
    pub(super) fn unspill(&mut self, spilled: Spilled) -> Option<Arc<Figures>> {
        self.spilled_messages -= 1;
        self.spilled_in_flight -= usize::from(spilled.is_in_flight());
        let figures = self.sources.get(spilled.source as usize).cloned();
        if let Some(figures) = &figures {
            figures.unqueued(1);
        }
        if self.spilled_messages == 0 {
            self.sources.clear();
            self.source_of.clear();
        }
        figures
    }

    pub(super) fn source(&mut self, figures: &Arc<Figures>) -> u32 {
        let next = self.sources.len() as u32;
        let source = *self.source_of.entry(Arc::as_ptr(figures) as usize).or_insert(next);
        if source == next {
            self.sources.push(figures.clone());
        }
        source
    }

    /// A message from memory waits in the store again, before all others there.
    pub(super) fn unfetch(&mut self, slot: Slot) {
        let mut expiry = None;
        let (weight, figures) = match slot {
            Slot::Done => return self.spilled.push_front(Spilled::GONE),
            Slot::Waiting(waiting) => {
                let weight = u32::try_from(waiting.message.weight()).unwrap_or(u32::MAX);
                expiry = waiting.message.expiry_seconds().map(|seconds| (waiting.received, seconds));
                (weight.max(Spilled::MIN_WEIGHT), Some(waiting.figures))
            }
            // The message was in flight, not waiting.
            Slot::Published(figures) | Slot::PublishedOnce(figures) | Slot::Released(figures) => {
                self.weigh(1);
                if let Some(figures) = &figures {
                    figures.queued(1);
                }
                (1, figures)
            }
        };
        let Some(figures) = figures else { return self.spilled.push_front(Spilled::GONE) };
        let expires = self.expires(expiry);
        let spilled = Spilled { weight, source: self.source(&figures), expires };
        self.spilled_messages += 1;
        self.spilled_in_flight += usize::from(spilled.is_in_flight());
        self.spilled.push_front(spilled);
        self.waits_from = 0;
    }

    /// Number of messages that wait in the store only.
    pub(super) fn spilled_waiting(&self) -> usize {
        self.spilled_messages - self.spilled_in_flight
    }

    /// The position of the oldest message that waits in the store only; the first there has the number `from`.
    pub(super) fn oldest(&mut self, from: u64) -> Option<usize> {
        let start = from.max(self.waits_from).max(self.sent_before);
        let skipped = usize::try_from(start - from).unwrap_or(usize::MAX);
        let waits = |spilled: &Spilled| spilled.weight > 1;
        match self.spilled.iter().skip(skipped).position(waits) {
            Some(at) => {
                self.waits_from = start + at as u64;
                Some(skipped + at)
            }
            // Also messages that were perhaps sent on an earlier connection.
            None => self.spilled.iter().position(waits),
        }
    }

    /// Drops the message at a position, the first having the number `from`; gives the figures of the filter that it
    /// matched.
    pub(super) fn give_up(
        &mut self,
        from: u64,
        at: usize,
        transaction: &mut Transaction<'_>,
    ) -> Option<Arc<Figures>> {
        let spilled = std::mem::replace(&mut self.spilled[at], Spilled::GONE);
        let figures = self.unspill(spilled);
        self.weigh(-i64::from(spilled.weight));
        self.change(from + at as u64, None, false, transaction);
        figures
    }

    /// Forgets all messages: the session has ended.
    pub(super) fn forget(&mut self) {
        for spilled in std::mem::take(&mut self.spilled) {
            if spilled.weight > 0 {
                self.unspill(spilled);
            }
        }
        let bytes = i64::try_from(self.waiting_bytes).unwrap_or(i64::MAX);
        self.weigh(-bytes);
    }

    /// Counts bytes that wait, or do so no more.
    pub(super) fn weigh(&mut self, bytes: i64) {
        self.waiting_bytes = self.waiting_bytes.saturating_add_signed(bytes);
        self.totals.weigh(bytes);
    }

    /// Number of messages from a number on that can be read now; an error if it is 0 until the next commit of the store.
    pub(super) fn readable(&mut self, from: u64, progress: Progress) -> Result<usize, ()> {
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

    /// Number of the first `messages` in the store that have at most `bytes` together; at least 1.
    pub(super) fn within(&self, messages: usize, bytes: usize) -> usize {
        let mut left = bytes as u64;
        let fits = self.spilled.iter().take(messages).take_while(|spilled| {
            let weight = u64::from(spilled.weight);
            let fits = weight <= left;
            left = left.saturating_sub(weight);
            fits
        });
        fits.count().max(1)
    }

    /// A fetched record as a slot; `None` if it can't be used.
    pub(super) fn slot(
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

impl Drop for Backlog {
    fn drop(&mut self) {
        self.totals.count_session(false);
    }
}
