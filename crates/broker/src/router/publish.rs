//! One publish: hooks, room in the store, the retained store, subscribers.

use std::sync::Arc;

use super::outcome::{Blocked, PublishOutcome, Published};
use super::subscriptions::{Entry, Subscriber};
use super::{DeferredDelivery, Router};
use crate::client::Origin;
use crate::config::WhenQueueFull;
use crate::hook::{Decision, HookEffects, RejectReason, call_recorded};
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS, Version};
use crate::moment::Moment;
use crate::stored::MAX_RECORD_OVERHEAD_BYTES;
use crate::topic::SYS_PREFIX;
use crate::wal::{Change, Reservation};

/// The store has no room for a message that must be stored.
struct NoRoom;

impl Router {
    /// Asks the hooks about a message, retains it and hands it to its subscribers. QoS 1 and 2 messages for a full queue are
    /// added to `deferred`; without it they are lost for that subscriber. `changes` are stored in the same commit as
    /// those of the message itself. Never waits.
    ///
    /// # Errors
    /// [`Blocked`] if a hook has no room for it, or the store has none and the protocol has no refusal.
    pub(crate) fn publish(
        &self,
        origin: &Origin,
        publisher: Option<&Arc<Mailbox>>,
        message: Message,
        changes: Vec<Change>,
        now: &Moment,
        deferred: Option<&mut Vec<DeferredDelivery>>,
    ) -> Result<Published, Blocked> {
        let rejected = |reason| {
            self.counters.rejected.add(1);
            Ok(Published::rejected(reason))
        };
        let own = matches!(origin, Origin::Broker);
        if !own {
            self.counters.received.add(1);
            if message.topic().as_str().starts_with(SYS_PREFIX) {
                return rejected(RejectReason::NotAuthorized);
            }
        }
        // Held until all changes are appended.
        let Ok(_reservation) = self.admit(&message) else {
            return match origin {
                // MQTT 3.1.1 has no refusal: the message waits until there is room. Where the queue of a subscriber is full
                // and not the store, no notification comes, and the connection tries again by its timer.
                Origin::Client(client) if client.version == Version::V311 => {
                    Err(Blocked { message, until: self.wal.room_again().clone() })
                }
                _ => rejected(RejectReason::QuotaExceeded),
            };
        };
        let mut effects = HookEffects { changes, ..HookEffects::default() };
        let mut rewritten = None;
        let decision = match own {
            true => Decision::Forward,
            false => self.hooks.decide(origin, &message, &mut rewritten, &mut effects),
        };
        let is_consumed = match decision {
            Decision::Forward => false,
            Decision::Consume => true,
            Decision::Reject(reason) => return rejected(reason),
            Decision::Block(until) => return Err(Blocked { message, until }),
        };
        let message = rewritten.unwrap_or(message);
        self.topics.saw(&message, now);
        let HookEffects { changes, hold, recorded } = effects;
        let mut transaction = self.wal.begin();
        for change in changes {
            transaction.append(change, true);
        }
        if is_consumed {
            self.counters.consumed.add(1);
            let ticket = transaction.ticket();
            drop(transaction);
            call_recorded(recorded, ticket);
            return Ok(Published { outcome: PublishOutcome::Consumed, ticket, hold });
        }
        let retain_refused = message.retain() && !self.retained.retain(&message, now, &mut transaction);
        let publisher = match origin {
            Origin::Bridge { client_id } => Some(client_id),
            // A will has no connection any more.
            Origin::Client(client) => Some(&client.client_id),
            _ => publisher.map(|publisher| &publisher.client_id),
        };
        let mut routed = self.route(&message, publisher, now, &mut transaction, deferred);
        routed.retain_refused = retain_refused;
        self.counters.dropped.add(routed.dropped as u64);
        let ticket = transaction.ticket();
        drop(transaction);
        call_recorded(recorded, ticket);
        Ok(Published { outcome: PublishOutcome::Routed(routed), ticket, hold })
    }

    /// Reserves room for a message that many sessions store. Refuses a message that has to be stored and can't be, or for
    /// which an older one would have to be dropped where the configuration forbids that.
    fn admit(&self, message: &Message) -> Result<Option<Reservation<'_>>, NoRoom> {
        if message.qos() == QoS::AtMostOnce {
            return Ok(None);
        }
        let is_full = self.wal.is_full();
        if is_full && message.retain() && (!message.payload().is_empty() || self.wal.is_stalled()) {
            return Err(NoRoom);
        }
        let weight = message.weight();
        let copy_bytes = weight + MAX_RECORD_OVERHEAD_BYTES;
        // A retained message is stored once more.
        let is_retained = message.retain() && !message.payload().is_empty();
        let max_copies = self.totals.sessions() + usize::from(is_retained);
        let is_small = self.wal.is_small(copy_bytes.saturating_mul(max_copies));
        let drops_oldest = !is_full && self.when_queue_full == WhenQueueFull::DropOldest;
        if is_small && drops_oldest {
            return Ok(None);
        }
        let refuses = |subscriber: &Subscriber| {
            !drops_oldest
                && subscriber.is_stored()
                && (is_full || subscriber.mailbox.is_stored_full(weight))
        };
        let (mut refused, mut copies) = (false, usize::from(is_retained));
        self.subscriptions.read().for_each_match(message.topic().as_str(), |entry| match entry {
            Entry::One(subscriber) => {
                refused |= refuses(subscriber);
                copies += usize::from(subscriber.is_stored());
            }
            // A member that has room gets it.
            Entry::Group(group) => {
                refused |= group.all(refuses);
                copies += usize::from(group.all(Subscriber::is_stored));
            }
        });
        if refused {
            return Err(NoRoom);
        }
        match copies {
            0 => Ok(None),
            _ => self.wal.reserve(copies.saturating_mul(copy_bytes)).map(Some).ok_or(NoRoom),
        }
    }
}
