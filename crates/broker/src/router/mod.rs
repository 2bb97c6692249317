//! The router: from a publish through hooks and the retained store to the queues of its subscribers.
//!
//! ```text
//! publish   hooks, room in the store, one transaction of the write-ahead log
//!   retained  the last message of each topic
//!   matching  subscribers by topic, over `subscriptions` and the filter trie
//!   deferred  deliveries that found a full queue
//! replay    retained messages for a new subscription
//! topic_watch  topics with their last messages, while a caller watches them
//! ```

mod deferred;
mod matching;
mod outcome;
mod publish;
mod replay;
mod retained;
mod subscriptions;
mod topic_tree;
mod topic_watch;
mod trie;

use std::sync::Arc;

use parking_lot::RwLock;

pub(crate) use self::deferred::{Deferred, DeferredDelivery};
pub(crate) use self::outcome::Blocked;
pub use self::outcome::{PublishOutcome, Published, Routed};
pub(crate) use self::replay::Replay;
pub use self::retained::RetainedMessage;
use self::retained::RetainedStore;
use self::subscriptions::{Entry, Subscriptions};
pub use self::topic_tree::{LastMessage, MAX_LAST_PAYLOAD_BYTES, WatchedTopic};
use self::topic_watch::TopicWatch;
pub use self::topic_watch::WatchTotals;
pub use self::trie::FilterTrie;
use crate::config::{BrokerConfig, WhenQueueFull};
use crate::hook::{PublishHook, PublishHooks};
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS};
use crate::moment::Moment;
use crate::monitor::{Figures, Monitor};
use crate::outbox::Totals;
use crate::protocol::Subscription;
use crate::stats::{BrokerStats, MessageCounters};
use crate::stored::{self, SubscriptionRecord};
use crate::topic::{TopicFilter, TopicName};
use crate::wal::{Change, Space, Ticket, Wal};

/// Retained messages that are visited under one lock when the topics begin to be watched.
const WATCH_SLICE: usize = 512;

/// Everything that a publish reaches: hooks, the retained store, subscriptions and the queues behind them.
pub(crate) struct Router {
    hooks: PublishHooks,
    wal: Arc<Wal>,
    totals: Arc<Totals>,
    when_queue_full: WhenQueueFull,
    monitor: Monitor,
    subscriptions: RwLock<Subscriptions>,
    retained: RetainedStore,
    topics: TopicWatch,
    counters: MessageCounters,
}

impl Router {
    pub(crate) fn new(
        config: &BrokerConfig,
        hooks: Vec<Arc<dyn PublishHook>>,
        wal: Arc<Wal>,
        totals: Arc<Totals>,
    ) -> Router {
        Router {
            hooks: PublishHooks::new(hooks),
            retained: RetainedStore::new(
                wal.clone(),
                config.max_retained_messages,
                config.max_retained_bytes,
            ),
            topics: TopicWatch::default(),
            wal,
            totals,
            when_queue_full: config.when_queue_full,
            monitor: Monitor::new(),
            subscriptions: RwLock::new(Subscriptions::new()),
            counters: MessageCounters::default(),
        }
    }

    pub(crate) fn retained(&self) -> &RetainedStore {
        &self.retained
    }

    pub(crate) fn topics(&self) -> &TopicWatch {
        &self.topics
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Fills in the numbers of messages and subscriptions.
    pub(crate) fn fill_stats(&self, stats: &mut BrokerStats) {
        {
            let subscriptions = self.subscriptions.read();
            stats.subscriptions = subscriptions.len() as u64;
            stats.shared_subscriptions = subscriptions.shared() as u64;
        }
        stats.retained = self.retained.len() as u64;
        stats.retained_refused = self.retained.refused();
        stats.messages_in = self.counters.received.get();
        stats.messages_out = self.counters.delivered.get();
        stats.messages_dropped = self.counters.dropped.get();
        stats.messages_rejected = self.counters.rejected.get();
        stats.messages_consumed = self.counters.consumed.get();
        stats.hook_panics += self.hooks.panics();
    }

    /// Counts messages that were lost for a session after they had been queued for it.
    pub(crate) fn count_dropped(&self, messages: u64) {
        self.counters.dropped.add(messages);
    }

    /// Counts a publish that a limit refused.
    pub(crate) fn count_rejected(&self) {
        self.counters.rejected.add(1);
    }

    /// Adds or replaces a subscription; gives the moment at which it is stored.
    pub(crate) fn subscribe(&self, mailbox: &Arc<Mailbox>, subscription: &Subscription) -> Option<Ticket> {
        let mut subscriptions = self.subscriptions.write();
        subscriptions.insert(&self.monitor, mailbox, subscription);
        mailbox.session.map(|session| {
            let record = SubscriptionRecord::of(subscription.options, subscription.identifier);
            let change = Change {
                space: Space::State,
                key: stored::subscription_key(session, subscription.filter.as_str()),
                value: Some(stored::encode(&record).into()),
            };
            // Appended under the lock: changes of one subscription are stored in their order.
            self.wal.begin().append(change, true)
        })
    }

    /// Removes a subscription; says whether there was one, and when that is stored.
    pub(crate) fn unsubscribe(
        &self,
        mailbox: &Arc<Mailbox>,
        filter: &TopicFilter,
    ) -> (bool, Option<Ticket>) {
        let mut subscriptions = self.subscriptions.write();
        let removed = subscriptions.remove(&self.monitor, mailbox, filter);
        let ticket = mailbox.session.filter(|_| removed).map(|session| {
            let key = stored::subscription_key(session, filter.as_str());
            self.wal.begin().append(Change { space: Space::State, key, value: None }, true)
        });
        (removed, ticket)
    }

    /// Removes the subscriptions of a session that has ended; their entries in the store are the caller's.
    pub(crate) fn forget_session<'a>(
        &self,
        mailbox: &Arc<Mailbox>,
        filters: impl Iterator<Item = &'a TopicFilter>,
    ) {
        let mut subscriptions = self.subscriptions.write();
        for filter in filters {
            subscriptions.remove(&self.monitor, mailbox, filter);
        }
    }

    /// Brings back a subscription from the store; gives the figures of its filter.
    pub(crate) fn restore(&self, mailbox: &Arc<Mailbox>, subscription: &Subscription) -> Arc<Figures> {
        self.subscriptions.write().insert(&self.monitor, mailbox, subscription);
        self.monitor.figures(&subscription.filter)
    }

    /// Bytes of the filters of all subscriptions.
    pub(crate) fn subscription_bytes(&self) -> usize {
        self.subscriptions.read().bytes()
    }

    /// Begins to watch the topics, those with a retained message first; false if that was begun before. Blocks for a walk
    /// over the retained messages, a slice at a time.
    pub(crate) fn watch_topics(&self, now: &Moment) -> bool {
        if !self.topics.begin(now.instant) {
            return false;
        }
        let mut after = None;
        loop {
            let mut names = Vec::new();
            after = self.retained.visit("", after.as_deref(), WATCH_SLICE, now, |kept| {
                names.push(kept.message.topic().clone());
            });
            self.topics.add(names.iter().map(TopicName::as_str));
            if after.is_none() {
                return true;
            }
        }
    }

    /// True if there is a subscription that matches a topic.
    pub(crate) fn has_subscribers(&self, topic: &str) -> bool {
        let mut found = false;
        self.subscriptions.read().for_each_match(topic, |_| found = true);
        found
    }

    /// True if there may be a subscription to a topic that starts with these two levels.
    pub(crate) fn has_subscribers_below(&self, first: &str, second: &str) -> bool {
        self.subscriptions.read().has_below(first, second)
    }

    /// True if the broker would store a message, as a retained one or for a session that outlives its connection.
    pub(crate) fn keeps(&self, message: &Message) -> bool {
        message.qos() > QoS::AtMostOnce && (message.retain() || self.has_stored_subscriber(message))
    }

    /// True if a session that is stored subscribes to a message of QoS 1 or 2 with more than QoS 0.
    fn has_stored_subscriber(&self, message: &Message) -> bool {
        let mut found = false;
        self.subscriptions.read().for_each_match(message.topic().as_str(), |entry| {
            found |= match entry {
                Entry::One(subscriber) => subscriber.is_stored(),
                Entry::Group(group) => !group.all(|member| !member.is_stored()),
            };
        });
        found
    }
}
