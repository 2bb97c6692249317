//! Subscribers of one message, and its way into their queues.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::outcome::Routed;
use super::subscriptions::{Entry, Subscriber};
use super::{DeferredDelivery, Router};
use crate::delivery::{Dated, Delivery};
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::outbox::{Copies, Pushed};
use crate::wal::Transaction;

/// Maximum of subscribers of a message to which its publisher writes itself: each write takes some microseconds.
const MAX_DIRECT: usize = 4;

impl Router {
    /// Queues a message for every matching subscription. One client gets it once, with the highest QoS and all
    /// subscription identifiers of its matching subscriptions (MQTT 5, section 3.3.4); shared subscriptions each get
    /// their own copy.
    pub(super) fn route(
        &self,
        message: &Message,
        publisher: Option<&Arc<str>>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
        mut deferred: Option<&mut Vec<DeferredDelivery>>,
    ) -> Routed {
        let mut routed = Routed::default();
        let mut delivered = 0;
        let mut copies = Copies::default();
        let mut woken: [Option<Arc<Mailbox>>; MAX_DIRECT] = Default::default();
        let dated = Dated { message, received: now.instant };
        // Says whether the subscriber has it, or may still get it.
        let mut deliver = |mailbox: &Arc<Mailbox>, delivery: Delivery, figures: &Arc<Figures>| {
            let pushed = mailbox.push_only(dated, &mut copies, &delivery, figures, now, transaction);
            if let Pushed::Accepted { wake: true, .. } | Pushed::Over { wake: true } = pushed {
                match woken.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = Some(mailbox.clone()),
                    None => mailbox.wake.notify_one(),
                }
            }
            match pushed {
                Pushed::Accepted { pressure, .. } => {
                    delivered += 1;
                    routed.pressure |= pressure;
                    routed.subscribers += 1;
                    true
                }
                Pushed::Skipped => true,
                Pushed::Full => {
                    routed.subscribers += 1;
                    match &mut deferred {
                        Some(deferred) => deferred.push(DeferredDelivery {
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
                    match &mut deferred {
                        Some(deferred) => deferred.push(DeferredDelivery {
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
            // Subscriptions of one filter come one after another.
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
                    if mailbox.subscriptions.load(Relaxed) == 1 {
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
        for mailbox in woken.iter().flatten() {
            mailbox.send_or_wake(now.instant);
        }
        self.counters.delivered.add(delivered);
        routed
    }
}
