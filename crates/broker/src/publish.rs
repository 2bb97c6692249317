//! The way of a message: hooks, the retained store, subscribers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::broker::{Blocked, PublishOutcome, Published, Routed, Shared, Waiting};
use crate::client::Origin;
use crate::config::WhenQueueFull;
use crate::hook::{HookEffects, PublishHook, Publishing, RejectReason, Verdict};
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS, Version};
use crate::monitor::Figures;
use crate::outbox::{Copies, Dated, Delivery, Pushed};
use crate::retained::{Refused, Retained};
use crate::stored::{self, MessageRecord, Moment, RetainedRecord};
use crate::subscriptions::{Entry, Subscriber};
use crate::wal::{Change, Reservation, Space, Ticket, Transaction};

/// The broker's own figures: published by itself alone, and not stored.
pub(crate) const OWN_PREFIX: &str = "$SYS/";

/// What a stored message takes beside its topic, payload and properties, at most.
const STORED_BYTES: usize = 64;

/// There is no room for a message that has to be stored.
struct NoRoom;

impl Shared {
    /// Hooks, retained store, subscribers. QoS 1 and 2 messages for a full queue go to `waiting`; without it they are
    /// lost for that subscriber. What is stored is stored with `changes`.
    pub(crate) fn publish(
        &self,
        origin: &Origin,
        publisher: Option<&Arc<Mailbox>>,
        message: Message,
        changes: Vec<Change>,
        now: &Moment,
        waiting: Option<&mut Vec<Waiting>>,
    ) -> Result<Published, Blocked> {
        let rejected = |reason| {
            self.counters.messages_rejected.add(1);
            Ok(Published { outcome: PublishOutcome::Rejected(reason), ticket: None, hold: None })
        };
        let own = matches!(origin, Origin::Broker);
        if !own {
            self.counters.messages_in.add(1);
            if message.topic().as_str().starts_with(OWN_PREFIX) {
                return rejected(RejectReason::NotAuthorized);
            }
        }
        // Until all of it is appended.
        let Ok(_reservation) = self.admit(&message) else {
            return match origin {
                // It could not be told: it waits until there is room.
                Origin::Client(client) if client.version == Version::V311 => {
                    Err(Blocked { message, until: Arc::default() })
                }
                _ => rejected(RejectReason::QuotaExceeded),
            };
        };
        let mut effects = HookEffects { changes, ..HookEffects::default() };
        let mut consumed = false;
        let mut rewritten = None;
        for hook in self.hooks.publish.iter().filter(|_| !own) {
            match self.ask(hook.as_ref(), origin, rewritten.as_ref().unwrap_or(&message), &mut effects) {
                Verdict::Forward => {}
                Verdict::Rewrite(new) => rewritten = Some(new),
                Verdict::Consume => {
                    consumed = true;
                    break;
                }
                Verdict::Reject(reason) => return rejected(reason),
                Verdict::Block(until) => return Err(Blocked { message, until }),
            }
        }
        let message = rewritten.unwrap_or(message);
        let HookEffects { changes, hold, recorded } = effects;
        let mut transaction = self.wal.begin();
        for change in changes {
            transaction.append(change, true);
        }
        if consumed {
            self.counters.messages_consumed.add(1);
            let ticket = transaction.ticket();
            drop(transaction);
            tell(recorded, ticket);
            return Ok(Published { outcome: PublishOutcome::Consumed, ticket, hold });
        }
        let retain_refused = message.retain() && self.retain(&message, now, &mut transaction);
        let publisher = match origin {
            Origin::Bridge { client_id } => Some(client_id),
            // A will has no connection any more.
            Origin::Client(client) => Some(&client.client_id),
            _ => publisher.map(|publisher| &publisher.client_id),
        };
        let mut routed = self.route(&message, publisher, now, &mut transaction, waiting);
        routed.retain_refused = retain_refused;
        self.counters.messages_dropped.add(routed.dropped as u64);
        let ticket = transaction.ticket();
        drop(transaction);
        tell(recorded, ticket);
        Ok(Published { outcome: PublishOutcome::Routed(routed), ticket, hold })
    }

    /// Refuses a message that has to be stored and can't be, or that must not cost an older one its place. Keeps room for
    /// one that many sessions store.
    fn admit(&self, message: &Message) -> Result<Option<Reservation<'_>>, NoRoom> {
        if message.qos() == QoS::AtMostOnce {
            return Ok(None);
        }
        let no_store = self.wal.is_full();
        if no_store && message.retain() && (!message.payload().is_empty() || self.wal.is_stalled()) {
            return Err(NoRoom);
        }
        let weight = message.weight();
        let copy_bytes = weight + STORED_BYTES;
        // As a retained one it is stored once more.
        let is_retained = message.retain() && !message.payload().is_empty();
        let most_copies = self.totals.sessions() + usize::from(is_retained);
        let is_small = self.wal.is_small(copy_bytes.saturating_mul(most_copies));
        if !no_store && is_small && self.config.when_queue_full == WhenQueueFull::DropOldest {
            return Ok(None);
        }
        let drops = !no_store && self.config.when_queue_full == WhenQueueFull::DropOldest;
        let is_stored = |subscriber: &Subscriber| {
            subscriber.options.qos > QoS::AtMostOnce && subscriber.mailbox.is_stored()
        };
        let refuses = |subscriber: &Subscriber| {
            !drops && is_stored(subscriber) && (no_store || subscriber.mailbox.is_stored_full(weight))
        };
        let (mut refused, mut copies) = (false, usize::from(is_retained));
        self.subscriptions.read().for_each_match(message.topic().as_str(), |entry| match entry {
            Entry::One(subscriber) => {
                refused |= refuses(subscriber);
                copies += usize::from(is_stored(subscriber));
            }
            // One that has room gets it.
            Entry::Group(group) => {
                refused |= group.all(refuses);
                copies += usize::from(group.all(is_stored));
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

    /// Whether a session that is stored subscribes to a message of QoS 1 or 2 with more than QoS 0.
    pub(crate) fn has_stored_subscriber(&self, message: &Message) -> bool {
        let is_stored = |subscriber: &Subscriber| {
            subscriber.options.qos > QoS::AtMostOnce && subscriber.mailbox.is_stored()
        };
        let mut found = false;
        self.subscriptions.read().for_each_match(message.topic().as_str(), |entry| {
            found |= match entry {
                Entry::One(subscriber) => is_stored(subscriber),
                Entry::Group(group) => !group.all(|member| !is_stored(member)),
            };
        });
        found
    }

    fn ask(
        &self,
        hook: &dyn PublishHook,
        origin: &Origin,
        message: &Message,
        effects: &mut HookEffects,
    ) -> Verdict {
        let mut publishing = Publishing::new(origin, message, effects);
        catch_unwind(AssertUnwindSafe(|| hook.on_publish(&mut publishing))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(
                topic = message.topic().as_str(),
                ?origin,
                panic = text.unwrap_or("not text"),
                "a publish hook panicked; its message is rejected"
            );
            self.counters.hook_panics.add(1);
            Verdict::Reject(RejectReason::Unspecified)
        })
    }

    /// Says whether the retained store refused the message.
    fn retain(&self, message: &Message, now: &Moment, transaction: &mut Transaction<'_>) -> bool {
        let is_kept = !message.payload().is_empty();
        // What is published with QoS 0 cannot be refused; to delete makes room.
        let has_room = || match message.qos() {
            // It found its room before it came here.
            QoS::AtLeastOnce | QoS::ExactlyOnce => !self.wal.is_full(),
            QoS::AtMostOnce => !self.wal.is_full() && self.wal.has_room(message.weight() + STORED_BYTES),
        };
        let no_store = is_kept && !has_room();
        let mut retained = self.retained.write();
        let set = if no_store { Err(Refused) } else { retained.set(message, now.instant) };
        forget_expired(&mut retained, transaction);
        if set.is_err() {
            drop(retained);
            self.counters.retained_refused.add(1);
            tracing::warn!(
                topic = message.topic().as_str(),
                "the retained store is full; message not retained"
            );
            return true;
        }
        if message.topic().as_str().starts_with(OWN_PREFIX) {
            return false;
        }
        let value = is_kept.then(|| {
            let message = MessageRecord::of(message);
            stored::encode(&RetainedRecord { message, received_unix_ms: now.unix_ms }).into()
        });
        let key = stored::retained_key(message.topic().as_str());
        // Appended under the lock: changes of one topic are stored in their order.
        transaction.append(Change { space: Space::State, key, value }, message.qos() > QoS::AtMostOnce);
        false
    }

    /// Hands a message to everybody who subscribes to its topic. One client gets it once, with the highest QoS and all
    /// subscription identifiers of its matching subscriptions (MQTT 5, section 3.3.4); shared subscriptions by
    /// themselves.
    fn route(
        &self,
        message: &Message,
        publisher: Option<&Arc<str>>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
        mut waiting: Option<&mut Vec<Waiting>>,
    ) -> Routed {
        let mut routed = Routed::default();
        let mut delivered = 0;
        let mut copies = Copies::default();
        let dated = Dated { message, received: now.instant };
        // Says whether the subscriber has it, or may still get it.
        let mut deliver = |mailbox: &Arc<Mailbox>, delivery: Delivery, figures: &Arc<Figures>| match mailbox
            .push(dated, &mut copies, &delivery, figures, now, transaction)
        {
            Pushed::Accepted { pressure, .. } => {
                delivered += 1;
                routed.pressure |= pressure;
                routed.subscribers += 1;
                true
            }
            Pushed::Skipped => true,
            Pushed::Full => {
                routed.subscribers += 1;
                match &mut waiting {
                    Some(waiting) => waiting.push(Waiting {
                        mailbox: mailbox.clone(),
                        message: Some((copies.message(message), delivery)),
                        figures: figures.clone(),
                        received: now.instant,
                    }),
                    None => {
                        routed.dropped += 1;
                        figures.lost(1);
                    }
                }
                true
            }
            Pushed::Over { .. } => {
                delivered += 1;
                routed.subscribers += 1;
                routed.pressure = true;
                match &mut waiting {
                    Some(waiting) => waiting.push(Waiting {
                        mailbox: mailbox.clone(),
                        message: None,
                        figures: figures.clone(),
                        received: now.instant,
                    }),
                    None => {
                        let dropped = mailbox.trim(transaction);
                        routed.dropped += dropped as usize;
                        figures.lost(dropped);
                    }
                }
                true
            }
            Pushed::Lost(_) => {
                routed.subscribers += 1;
                routed.dropped += 1;
                routed.pressure = true;
                figures.lost(1);
                false
            }
        };
        let second = self.monitor.second(now.instant);
        let mut seen: *const Figures = std::ptr::null();
        let mut several: Vec<&Subscriber> = Vec::new();
        let subscriptions = self.subscriptions.read();
        subscriptions.for_each_match(message.topic().as_str(), |entry| {
            let figures = match entry {
                Entry::One(subscriber) => &subscriber.figures,
                Entry::Group(group) => &group.figures,
            };
            // Those of one filter come one after another.
            if !std::ptr::eq(Arc::as_ptr(figures), seen) {
                seen = Arc::as_ptr(figures);
                figures.arrived(second);
            }
            match entry {
                Entry::One(subscriber) => {
                    let mailbox = &subscriber.mailbox;
                    let own = subscriber.options.no_local
                        && publisher.is_some_and(|publisher| *publisher == mailbox.client_id);
                    if own {
                        return;
                    }
                    if mailbox.subscriptions.load(std::sync::atomic::Ordering::Relaxed) == 1 {
                        deliver(mailbox, subscriber.delivery(message), figures);
                    } else {
                        several.push(subscriber);
                    }
                }
                Entry::Group(group) => {
                    let weight = message.weight();
                    group.deliver(weight, |member| {
                        deliver(&member.mailbox, member.delivery(message), figures)
                    });
                }
            }
        });
        several.sort_by_key(|subscriber| Arc::as_ptr(&subscriber.mailbox));
        for same in several.chunk_by(|one, next| Arc::ptr_eq(&one.mailbox, &next.mailbox)) {
            let mut delivery = same[0].delivery(message);
            for subscriber in &same[1..] {
                let further = subscriber.delivery(message);
                delivery.qos = delivery.qos.max(further.qos);
                delivery.retain |= further.retain;
                delivery.identifiers.extend(further.identifiers);
            }
            deliver(&same[0].mailbox, delivery, &same[0].figures);
        }
        drop(subscriptions);
        self.counters.messages_out.add(delivered);
        routed
    }
}

/// Deletes from the store what was retained and has expired.
pub(crate) fn forget_expired(retained: &mut Retained, transaction: &mut Transaction<'_>) {
    for topic in retained.take_gone() {
        if !topic.as_str().starts_with(OWN_PREFIX) {
            let key = stored::retained_key(topic.as_str());
            transaction.append(Change { space: Space::State, key, value: None }, false);
        }
    }
}

/// Tells hooks that what they recorded is on its way to the store. A panic in one is contained.
fn tell(recorded: Vec<Box<dyn FnOnce(Ticket) + Send>>, ticket: Option<Ticket>) {
    let Some(ticket) = ticket else { return };
    for then in recorded {
        if catch_unwind(AssertUnwindSafe(|| then(ticket))).is_err() {
            tracing::error!("a publish hook panicked after its message was recorded");
        }
    }
}
