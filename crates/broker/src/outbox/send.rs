//! Waiting messages are encoded and handed to the connection.

use std::time::Instant;

use bytes::BytesMut;

use super::direct::Way;
use super::outcome::{Loss, Page, Taken};
use super::slot::{Slot, Waiting};
use super::{MAX_SPAN, MEMORY_BYTES, MEMORY_MESSAGES, Outbox, packet_id};
use crate::delivery::Dated;
use crate::wal::{Progress, Transaction};
use crate::wire::PublishAck2Reason;

impl Outbox {
    /// Encodes waiting messages as far as possible, and moves all encoded bytes to the end of `out`. The connection is the
    /// writer from now on if `out` has bytes, until it takes again.
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
            // Waiting messages may have expired, which makes room too.
            taken.awaited = !is_full && std::mem::take(&mut link.awaited);
            link.way = match (out.is_empty(), link.way) {
                (false, _) => Way::Connection,
                (true, Way::Free(last)) => Way::Free(last),
                (true, _) => Way::Free(None),
            };
            return taken;
        }
        link.take_all(out);
        link.way = Way::Connection;
        // Bytes that were taken before are written by now.
        self.totals.release(std::mem::replace(&mut self.taken_bytes, self.claimed_bytes));
        self.claimed_bytes = 0;
        taken.awaited = std::mem::take(&mut link.awaited);
        taken
    }

    /// Encodes waiting messages, as far as the client's window, the buffer and the store allow.
    fn pump(
        &mut self,
        now: Instant,
        progress: Progress,
        transaction: &mut Transaction<'_>,
        taken: &mut Taken,
    ) {
        let Some(link) = &mut self.link else { return };
        // Messages in the store need not be buffered as well.
        let max_bytes = if self.stored.is_some() { MEMORY_BYTES } else { self.bounds.bytes };
        while let Some(slot) = self.slots.get_mut(self.sent) {
            let number = self.first + self.sent as u64;
            let full = link.buffer.len() >= max_bytes && !link.buffer.is_empty();
            if self.open >= link.window || full || self.sent >= MAX_SPAN {
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
                            // The message is never stored, and its publisher sends it again.
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
                            *slot = Slot::in_flight(delivery.qos, kept);
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
}
