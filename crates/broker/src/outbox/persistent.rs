//! Outboxes of persistent sessions: messages that are written to the store and read from it, and messages that are
//! dropped since the queue is full.

use std::sync::Arc;
use std::time::Instant;

use super::backlog::Spilled;
use super::copies::Copies;
use super::outcome::{Loss, Page, Pushed};
use super::slot::Slot;
use super::{MAX_GAP, MAX_GAP_AWAY, MAX_SPAN, MEMORY_BYTES, MEMORY_MESSAGES, Outbox, packet_id};
use crate::delivery::{Dated, Delivery};
use crate::message::QoS;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::stored;
use crate::wal::{Entry, Transaction};

impl Outbox {
    /// Brings back a message from the store: its number and weight, when it came and after how many seconds it expires.
    /// Called in the order of numbers.
    pub(crate) fn restore(
        &mut self,
        number: u64,
        weight: u32,
        expiry: Option<(Instant, u32)>,
        figures: &Arc<Figures>,
    ) {
        let Some(stored) = &mut self.stored else { return };
        if stored.spilled.is_empty() {
            self.first = number;
        }
        let next = self.first + stored.spilled.len() as u64;
        // A damaged number far off would be paid for with memory.
        if number < next || number - next > MAX_GAP + MAX_SPAN as u64 {
            tracing::warn!(
                session = stored.session,
                number,
                "a stored message is out of place and left out"
            );
            return;
        }
        let weight = weight.max(Spilled::MIN_WEIGHT);
        stored.spilled.extend((next..number).map(|_| Spilled::GONE));
        stored.spill(weight, expiry, figures);
        stored.readable_to = number + 1;
        stored.weigh(i64::from(weight));
    }

    /// Once all is [restored](Self::restore): messages with smaller numbers may have been sent.
    pub(crate) fn restore_mark(&mut self, mark: u64) {
        if let Some(stored) = &mut self.stored {
            (stored.sent_before, stored.marked) = (mark, mark);
            if stored.spilled.is_empty() {
                // New messages come after all that were sent.
                self.first = mark;
            }
        }
    }

    /// Before a disconnect: stores exactly which messages were sent.
    pub(crate) fn mark(&mut self, transaction: &mut Transaction<'_>) {
        let sent = self.first + self.sent as u64;
        if let Some(stored) = self.stored.as_mut().filter(|stored| stored.marked > 0) {
            stored.mark_to(sent.max(stored.sent_before), transaction);
        }
    }

    /// True if one more message for a session that is kept would drop an older one.
    pub(crate) fn is_stored_full(&self, weight: usize) -> bool {
        self.stored.as_ref().is_some_and(|stored| {
            let messages = self.waiting_in_memory() + stored.spilled_waiting();
            messages >= self.bounds.stored_messages
                || (messages > 0 && stored.waiting_bytes + weight as u64 > self.bounds.stored_bytes)
                || stored.totals.is_stored_full(stored.waiting_bytes, weight)
        })
    }

    /// True if a session that is kept is over its bounds.
    pub(super) fn is_over(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| {
            let messages = self.waiting_in_memory() + stored.spilled_waiting();
            messages > self.bounds.stored_messages
                || (messages > 1 && stored.waiting_bytes > self.bounds.stored_bytes)
                || stored.totals.is_stored_full(stored.waiting_bytes, 0)
        })
    }

    /// True if a message that came [over](Pushed::Over) the bounds has room by now, or no client takes messages. If
    /// not, the next [`take`](Outbox::take) reports that a publisher waits.
    pub(crate) fn has_room(&mut self) -> bool {
        let is_over = self.is_over();
        match &mut self.link {
            Some(link) if is_over && !link.stalled => {
                link.awaited = true;
                false
            }
            _ => true,
        }
    }

    /// Drops the oldest messages until the session is within its bounds; gives their number.
    pub(crate) fn trim(&mut self, transaction: &mut Transaction<'_>) -> u64 {
        let mut dropped = 0;
        while self.is_over() && self.drop_oldest(transaction) {
            dropped += 1;
        }
        dropped
    }

    pub(super) fn push_stored(
        &mut self,
        dated: Dated<'_>,
        copies: &mut Copies,
        delivery: &Delivery,
        figures: &Arc<Figures>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> Pushed {
        let weight = dated.message.weight();
        let window = self.link.as_ref().map_or(0, |link| link.window);
        // The message is sent immediately, and needs no room.
        let next_in_turn = self.sent == self.slots.len()
            && self.open < window
            && self.sent < MAX_SPAN
            && self.stored.as_ref().is_some_and(|stored| stored.spilled.is_empty())
            && !self.is_full(weight);
        let mut over = false;
        while !next_in_turn && self.is_stored_full(weight) {
            match &mut self.link {
                // The publisher can wait for a while; the message is kept meanwhile, even if the publisher disconnects.
                Some(link) if !link.stalled => {
                    link.awaited = true;
                    over = true;
                    break;
                }
                _ => {}
            }
            if !self.drop_oldest(transaction) {
                return Pushed::Lost(Loss::Full);
            }
            figures.lost(1);
        }
        let pressure = self.is_pressed();
        let (first, in_memory) = (self.first, self.slots.len());
        let accepted = |wake| match over {
            true => Pushed::Over { wake },
            false => Pushed::Accepted { wake, pressure },
        };
        let Some(stored) = &mut self.stored else { return Pushed::Lost(Loss::Closed) };
        let number = first + in_memory as u64 + stored.spilled.len() as u64;
        let received_unix_ms = now.unix_ms_of(dated.received);
        let record = copies.record(dated.message, delivery, received_unix_ms);
        let ticket = stored.add(number, record, transaction);
        let room = in_memory - self.sent < MEMORY_MESSAGES && self.memory_bytes < MEMORY_BYTES;
        let Some(link) = self.link.as_mut().filter(|_| stored.spilled.is_empty() && room) else {
            let expiry = dated.message.expiry_seconds().map(|seconds| (dated.received, seconds));
            stored.spill(u32::try_from(weight).unwrap_or(u32::MAX), expiry, figures);
            stored.weigh(weight as i64);
            return accepted(false);
        };
        let wake = link.buffer.is_empty();
        if next_in_turn && delivery.qos == QoS::AtLeastOnce {
            let packet_id = packet_id(number);
            return match link.publish(dated, delivery, Some(packet_id), false, figures, now.instant) {
                Ok(()) => {
                    stored.mark_sent(number, transaction);
                    self.slots.push_back(Slot::Published(Some(figures.clone())));
                    self.sent += 1;
                    self.open += 1;
                    Pushed::Accepted { wake, pressure }
                }
                Err(loss) => {
                    stored.change(number, None, false, transaction);
                    self.slots.push_back(Slot::Done);
                    self.sent += 1;
                    self.shrink();
                    Pushed::Lost(loss)
                }
            };
        }
        stored.weigh(weight as i64);
        let message = copies.message(dated.message);
        let after = (delivery.qos == QoS::ExactlyOnce).then_some(ticket);
        self.wait(message, dated.received, delivery.clone(), figures.clone(), after);
        // The connection is to wait for the store.
        accepted(wake && next_in_turn)
    }

    /// Drops the oldest waiting message; false if none waits.
    pub(super) fn drop_oldest(&mut self, transaction: &mut Transaction<'_>) -> bool {
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
                self.gone += 1;
                return true;
            }
        }
        let from = self.first + self.slots.len() as u64;
        // Messages in flight take no room, and their exchange has begun.
        let Some(at) = stored.oldest(from) else { return false };
        stored.give_up(from, at, transaction);
        self.bound_gap(at as u64, transaction);
        true
    }

    /// Deletes up to `max_messages` messages that wait in the store only and have expired; gives their number.
    pub(crate) fn expire(
        &mut self,
        max_messages: usize,
        now: Instant,
        transaction: &mut Transaction<'_>,
    ) -> usize {
        let from = self.first + self.slots.len() as u64;
        let Some(stored) = &mut self.stored else { return 0 };
        let second = stored.totals.second_of(now);
        if stored.next_expiry.is_none_or(|next| next.get() > second) {
            return 0;
        }
        let (mut expired, mut last, mut next_expiry) = (0, 0, None);
        // A message that was perhaps sent before is completed (MQTT-4.3.3-7).
        let sent = usize::try_from(stored.sent_before.saturating_sub(from)).unwrap_or(usize::MAX);
        for at in sent..stored.spilled.len() {
            let spilled = stored.spilled[at];
            let Some(expires) = spilled.expires.filter(|_| spilled.weight >= Spilled::MIN_WEIGHT) else {
                continue;
            };
            if expires.get() > second || expired == max_messages {
                next_expiry = [next_expiry, Some(expires)].into_iter().flatten().min();
                continue;
            }
            if let Some(figures) = stored.give_up(from, at, transaction) {
                figures.lost(1);
            }
            (expired, last) = (expired + 1, at as u64);
        }
        stored.next_expiry = next_expiry;
        self.bound_gap(last, transaction);
        expired
    }

    /// The message at a position of those in the store only was dropped: if that is far away, the outbox no longer waits for
    /// the messages in flight before it.
    fn bound_gap(&mut self, at: u64, transaction: &mut Transaction<'_>) {
        let max_gap = if self.link.is_some() { MAX_GAP } else { MAX_GAP_AWAY };
        if at >= max_gap {
            // The client has left messages unacknowledged while so many after them were dropped.
            self.give_up_in_flight(transaction);
        }
        self.skip_gone();
    }

    /// Drops the messages in flight.
    pub(super) fn give_up_in_flight(&mut self, transaction: &mut Transaction<'_>) {
        let Some(stored) = &mut self.stored else { return };
        for (at, slot) in self.slots.iter_mut().take(self.sent).enumerate() {
            if !matches!(slot, Slot::Done) {
                *slot = Slot::Done;
                stored.change(self.first + at as u64, None, false, transaction);
            }
        }
        self.open = 0;
        self.shrink();
        let from = self.first + self.slots.len() as u64;
        let Some(stored) = &mut self.stored else { return };
        let perhaps_sent = usize::try_from(stored.sent_before.saturating_sub(from)).unwrap_or(usize::MAX);
        for at in 0..perhaps_sent.min(stored.spilled.len()) {
            if stored.spilled[at].weight > 0
                && let Some(figures) = stored.give_up(from, at, transaction)
            {
                figures.lost(1);
            }
        }
    }

    /// Skips numbers at the front that the store does not have any more.
    pub(super) fn skip_gone(&mut self) {
        let Some(stored) = &mut self.stored else { return };
        if self.slots.is_empty() {
            while stored.spilled.front().is_some_and(|spilled| spilled.weight == 0) {
                stored.spilled.pop_front();
                self.first += 1;
            }
        }
    }

    /// Adds a page that was fetched from the store: all messages of the page that the store has, in order.
    pub(crate) fn fetched(
        &mut self,
        page: Page,
        entries: &[Entry],
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) {
        let from = self.first + self.slots.len() as u64;
        let Some(stored) = &mut self.stored else { return };
        if !std::mem::take(&mut stored.fetching) || page.from != from {
            // Numbers at the front were skipped meanwhile: the page is fetched anew.
            return;
        }
        let mut entries = entries.iter().filter_map(|(key, value)| {
            let (session, number) = stored::parse_queue_key(key)?;
            (session == page.session).then_some((number, value))
        });
        let mut next = entries.next();
        for number in from..from + page.messages as u64 {
            let Some(spilled @ Spilled { weight, .. }) = stored.spilled.pop_front() else { break };
            let figures = (weight > 0).then(|| stored.unspill(spilled)).flatten();
            while next.is_some_and(|(found, _)| found < number) {
                next = entries.next();
            }
            let value = next.filter(|(found, _)| *found == number).map(|(_, value)| value);
            let slot = value.zip(figures);
            let slot = slot.and_then(|(value, figures)| stored.slot(number, weight, value, figures, now));
            let slot = slot.unwrap_or_else(|| {
                // Missing or damaged: no message waits under this number.
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
            self.gone += usize::from(matches!(slot, Slot::Done));
            self.slots.push_back(slot);
        }
        self.shrink();
    }
}
