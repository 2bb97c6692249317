//! Retained messages for a new subscription, found and queued a slice at a time.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::Router;
use crate::delivery::{Dated, Delivery};
use crate::mailbox::Mailbox;
use crate::message::QoS;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::outbox::{Copies, Loss, Pushed};
use crate::protocol::Subscription;
use crate::topic::{TopicFilter, TopicName};

/// Number of retained topics that one call visits.
const SLICE_TOPICS: usize = 256;

/// The retained messages of one subscription that are not queued yet.
#[derive(Debug)]
pub(crate) struct Replay {
    pub filter: TopicFilter,
    qos: QoS,
    identifier: Option<NonZeroU32>,
    figures: Arc<Figures>,
    /// Found and not queued yet.
    topics: VecDeque<TopicName>,
    walk: Walk,
}

/// Progress of the visit to the retained topics.
#[derive(Debug)]
enum Walk {
    Start,
    After(TopicName),
    Done,
}

impl Router {
    /// The retained messages for a subscription.
    pub(crate) fn replay(&self, subscription: &Subscription) -> Replay {
        Replay {
            filter: subscription.filter.clone(),
            qos: subscription.options.qos,
            identifier: subscription.identifier,
            figures: self.monitor.figures(&subscription.filter),
            topics: VecDeque::new(),
            walk: Walk::Start,
        }
    }

    /// Queues retained messages, as far as the mailbox has room; true if there was room for more than one call visits.
    pub(crate) fn continue_replay(
        &self,
        replays: &mut VecDeque<Replay>,
        mailbox: &Mailbox,
        now: &Moment,
    ) -> bool {
        let mut budget = SLICE_TOPICS;
        if self.wal.is_behind() {
            // A retained message is stored once more for a session that is kept. The replay goes on after the next commit.
            return false;
        }
        while let Some(next) = replays.front_mut() {
            let Some(topic) = next.topics.front() else {
                let after = match &next.walk {
                    Walk::Start => None,
                    Walk::After(topic) => Some(topic),
                    Walk::Done => {
                        replays.pop_front();
                        continue;
                    }
                };
                if budget == 0 {
                    return true;
                }
                let slice = self.retained.slice(&next.filter, after, budget, now.instant);
                budget = budget.saturating_sub(slice.visited.max(1));
                next.walk = slice.after.map_or(Walk::Done, Walk::After);
                next.topics = slice.topics;
                continue;
            };
            if let Some((message, received)) = self.retained.get(topic, now.instant) {
                let delivery = Delivery {
                    qos: message.qos().min(next.qos),
                    retain: true,
                    identifiers: next.identifier.into_iter().collect(),
                };
                let dated = Dated { message: &message, received };
                if self.wal.is_behind() || !mailbox.has_room() {
                    return false;
                }
                let mut transaction = self.wal.begin();
                match mailbox.push(
                    dated,
                    &mut Copies::default(),
                    &delivery,
                    &next.figures,
                    now,
                    &mut transaction,
                ) {
                    Pushed::Accepted { .. } | Pushed::Over { .. } => self.counters.delivered.add(1),
                    Pushed::Skipped => {}
                    // The replay goes on when the client has taken or acknowledged something.
                    Pushed::Full | Pushed::Lost(Loss::Full) => return false,
                    Pushed::Lost(_) => self.counters.dropped.add(1),
                }
            }
            next.topics.pop_front();
        }
        false
    }
}
