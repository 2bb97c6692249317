//! Deliveries that found a full queue, and whose publisher waits for room.

use std::sync::Arc;
use std::time::Instant;

use super::Router;
use crate::delivery::{Dated, Delivery};
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::outbox::{Copies, Pushed};
use crate::wal::Ticket;

/// A message that waits for room in a subscriber's queue.
pub(crate) struct DeferredDelivery {
    pub(super) mailbox: Arc<Mailbox>,
    /// `None` if the queue has the message already, and has to get room for it.
    pub(super) message: Option<(Message, Delivery)>,
    pub(super) figures: Arc<Figures>,
    pub(super) received: Instant,
}

/// The outcome of another attempt.
pub(crate) enum Deferred {
    /// The queue has room or the message is lost; with the position of its change in the write-ahead log, if any.
    Settled(Option<Ticket>),
    /// The queue has no room. [`DeferredDelivery::room`] is notified when there may be room.
    Full,
}

impl DeferredDelivery {
    /// Notification that the queue may have room.
    pub(crate) fn room(&self) -> &Arc<tokio::sync::Notify> {
        &self.mailbox.room
    }
}

impl Router {
    /// Tries a delivery again.
    pub(crate) fn retry(&self, deferred: &DeferredDelivery, now: &Moment) -> Deferred {
        let DeferredDelivery { mailbox, message, figures, received } = deferred;
        let Some((message, delivery)) = message else {
            return if mailbox.has_room() { Deferred::Settled(None) } else { Deferred::Full };
        };
        let dated = Dated { message, received: *received };
        let mut transaction = self.wal.begin();
        match mailbox.push(dated, &mut Copies::default(), delivery, figures, now, &mut transaction) {
            Pushed::Accepted { .. } | Pushed::Over { .. } => self.counters.delivered.add(1),
            Pushed::Skipped => {}
            Pushed::Full => return Deferred::Full,
            Pushed::Lost(_) => {
                figures.lost(1);
                self.counters.dropped.add(1);
            }
        }
        Deferred::Settled(transaction.ticket())
    }

    /// Tries a delivery for the last time: without room, the message is lost, or the queue drops its oldest ones. Until
    /// the subscriber reads again, no publisher waits for its queue.
    pub(crate) fn give_up(&self, deferred: &DeferredDelivery, now: &Moment) -> Option<Ticket> {
        let DeferredDelivery { mailbox, message, figures, received } = deferred;
        let mut transaction = self.wal.begin();
        let lost = match message {
            // The publisher waited for the last delivery only; the others may have had room for long.
            Some((message, delivery)) => {
                let dated = Dated { message, received: *received };
                match mailbox.push(dated, &mut Copies::default(), delivery, figures, now, &mut transaction)
                {
                    Pushed::Accepted { .. } | Pushed::Over { .. } => {
                        self.counters.delivered.add(1);
                        0
                    }
                    Pushed::Skipped => 0,
                    Pushed::Full => {
                        mailbox.give_up();
                        1
                    }
                    Pushed::Lost(_) => 1,
                }
            }
            None if mailbox.has_room() => 0,
            None => {
                mailbox.give_up();
                mailbox.trim(&mut transaction)
            }
        };
        figures.lost(lost);
        self.counters.dropped.add(lost);
        transaction.ticket()
    }
}
