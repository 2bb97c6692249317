//! The topics with their last messages, while a caller watches them. It costs a publish one relaxed load while no caller does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;

use super::topic_tree::{TopicTree, TreeBounds, WatchedTopic};
use crate::message::Message;
use crate::moment::Moment;

/// The tree of topics, if it is watched.
#[derive(Default)]
pub(crate) struct TopicWatch {
    is_active: AtomicBool,
    tree: Mutex<Option<TopicTree>>,
}

/// Numbers of watched topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchTotals {
    /// Topics that are known.
    pub topics: usize,
    /// Topics that found no room, at most 40,000 of them.
    pub left_out: usize,
}

impl TopicWatch {
    /// Counts a message that was accepted.
    pub(super) fn saw(&self, message: &Message, now: &Moment) {
        if self.is_active.load(Relaxed) {
            self.record(message, now);
        }
    }

    #[cold]
    fn record(&self, message: &Message, now: &Moment) {
        if let Some(tree) = &mut *self.tree.lock() {
            tree.record(message, now.instant, now.unix_ms);
        }
    }

    /// Begins to watch; false if that was begun before.
    pub(crate) fn begin(&self, now: Instant) -> bool {
        let mut tree = self.tree.lock();
        let begins = tree.is_none();
        if begins {
            *tree = Some(TopicTree::new(TreeBounds::default(), now));
            self.is_active.store(true, Relaxed);
        }
        begins
    }

    /// Ends it, and frees the memory.
    pub(crate) fn end(&self) {
        self.is_active.store(false, Relaxed);
        let tree = self.tree.lock().take();
        // Freed without the lock.
        drop(tree);
    }

    /// Adds topics that have had no message.
    pub(super) fn add<'a>(&self, names: impl Iterator<Item = &'a str>) {
        if let Some(tree) = &mut *self.tree.lock() {
            for name in names {
                tree.insert(name);
            }
        }
    }

    /// Visits topics that begin with `prefix`, behind `after`, up to `max` of them, under the lock of the tree. `visit` gets
    /// the name, the topic and its messages a second. Gives the position to go on behind; `None` at the end.
    pub(crate) fn visit(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        now: Instant,
        mut visit: impl FnMut(&str, &WatchedTopic, f64),
    ) -> Option<String> {
        let tree = self.tree.lock();
        let Some(tree) = &*tree else { return None };
        let position = tree.position(now);
        let after = tree.visit(prefix, after, max, |name, topic| visit(name, topic, topic.rate(position)));
        after.map(str::to_owned)
    }

    /// One topic and its messages a second.
    pub(crate) fn topic(&self, name: &str, now: Instant) -> Option<(WatchedTopic, f64)> {
        let tree = self.tree.lock();
        let tree = tree.as_ref()?;
        tree.get(name).map(|topic| (topic.clone(), topic.rate(tree.position(now))))
    }

    /// Numbers of topics; 0 while they are not watched.
    pub(crate) fn totals(&self) -> WatchTotals {
        let tree = self.tree.lock();
        let of = |tree: &TopicTree| WatchTotals { topics: tree.len(), left_out: tree.left_out() };
        tree.as_ref().map(of).unwrap_or_default()
    }
}
