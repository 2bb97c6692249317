//! Topics with their last messages, in the order of their names and within bounds of count and bytes. No I/O, no clock.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::time::Instant;

use crate::message::{Message, QoS};

/// Maximum bytes of a last message that are kept.
pub const MAX_LAST_PAYLOAD_BYTES: usize = 1024;
/// Maximum length of a topic that is taken in, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// Below this, payloads are not kept at all.
const MIN_PAYLOAD_BYTES: usize = 16;
/// Approximate bytes of a topic beside its name and payload: the entry in a tree that is half full, and two allocations.
const ENTRY_BYTES: usize = 224;
/// Maximum number of topics that are counted as left out.
const MAX_LEFT_OUT: usize = 40_000;
/// Bytes of the set of topics that are left out, at most: also while it grows.
const LEFT_OUT_BYTES: usize = 1 << 20;

/// Bounds of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeBounds {
    /// Maximum number of topics.
    pub topics: usize,
    /// Maximum memory, in bytes.
    pub bytes: usize,
}

impl Default for TreeBounds {
    fn default() -> TreeBounds {
        TreeBounds { topics: 20_000, bytes: 8 << 20 }
    }
}

/// The topics.
pub(super) struct TopicTree {
    topics: BTreeMap<Box<str>, WatchedTopic>,
    bounds: TreeBounds,
    /// Bytes of all topics.
    bytes: usize,
    /// Bytes of a payload that are kept; smaller the more topics there are.
    max_payload: usize,
    /// Hashes of topics that found no room.
    left_out: HashSet<u64>,
    hasher: RandomState,
    /// The origin of the seconds of rates.
    started: Instant,
}

/// One topic.
#[derive(Debug, Clone, Default)]
pub struct WatchedTopic {
    messages: u64,
    rate: Rate,
    last: Option<LastMessage>,
}

/// The last message of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastMessage {
    /// The first bytes of the payload: at most [`MAX_LAST_PAYLOAD_BYTES`], fewer if there are many topics.
    pub payload: Vec<u8>,
    /// Size of the whole payload, in bytes.
    pub payload_bytes: usize,
    /// Its quality of service.
    pub qos: QoS,
    /// It was published as a retained message.
    pub retain: bool,
    /// The time at which it came.
    pub unix_ms: u64,
}

/// Messages of the current second and of the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    second: u32,
    count: u32,
    before: u32,
}

impl TopicTree {
    pub(super) fn new(bounds: TreeBounds, now: Instant) -> TopicTree {
        TopicTree {
            topics: BTreeMap::new(),
            bounds,
            bytes: 0,
            max_payload: MAX_LAST_PAYLOAD_BYTES,
            left_out: HashSet::new(),
            hasher: RandomState::new(),
            started: now,
        }
    }

    /// Number of topics.
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Number of topics that found no room; 40,000 stands for that many or more.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// Counts a message, and keeps it as the last one of its topic.
    pub(super) fn record(&mut self, message: &Message, now: Instant, unix_ms: u64) {
        let name = message.topic().as_str();
        if !self.topics.contains_key(name) && !self.insert(name) {
            return;
        }
        let (second, max_payload) = (self.second_of(now), self.max_payload);
        let Some(topic) = self.topics.get_mut(name) else { return };
        let before = topic.payload_capacity();
        topic.messages += 1;
        topic.rate.count(second);
        topic.keep(message, max_payload, unix_ms);
        let after = topic.payload_capacity();
        self.bytes = (self.bytes + after).saturating_sub(before);
        while self.bytes > self.max_topic_bytes() && self.shrink_payloads() {}
    }

    /// Adds a topic without a message, unless it is known or finds no room. False says that it is left out.
    pub(super) fn insert(&mut self, name: &str) -> bool {
        if self.topics.contains_key(name) {
            return true;
        }
        let cost = name.len() + ENTRY_BYTES;
        if self.topics.len() >= self.bounds.topics || name.len() > MAX_NAME_BYTES {
            return self.leave_out(name);
        }
        while self.bytes + cost > self.max_topic_bytes() {
            if !self.shrink_payloads() {
                return self.leave_out(name);
            }
        }
        self.bytes += cost;
        self.topics.insert(name.into(), WatchedTopic::default());
        true
    }

    /// Visits the topics that begin with `prefix`, behind `after`, up to `max` of them; says whether there may be more.
    pub(super) fn visit<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        mut visit: impl FnMut(&'a str, &WatchedTopic),
    ) -> Option<&'a str> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let topics = self.topics.range::<str, _>((start, Bound::Unbounded));
        let mut last = None;
        for (visited, (name, topic)) in topics.enumerate() {
            if !name.starts_with(prefix) {
                return None;
            }
            if visited == max {
                return last;
            }
            visit(name, topic);
            last = Some(&**name);
        }
        None
    }

    /// One topic.
    pub(super) fn get(&self, name: &str) -> Option<&WatchedTopic> {
        self.topics.get(name)
    }

    /// The position of a rate: whole seconds since the start, and the fraction of the current one.
    pub(super) fn position(&self, now: Instant) -> (u32, f64) {
        let since = now.saturating_duration_since(self.started);
        (self.second_of(now), f64::from(since.subsec_nanos()) / 1e9)
    }

    fn second_of(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }

    fn max_topic_bytes(&self) -> usize {
        self.bounds.bytes.saturating_sub(LEFT_OUT_BYTES)
    }

    fn leave_out(&mut self, name: &str) -> bool {
        if self.left_out.len() < MAX_LEFT_OUT {
            self.left_out.insert(self.hasher.hash_one(name));
        }
        false
    }

    /// Halves the payloads; false if none are kept any more. Runs seven times at most in the life of a tree.
    fn shrink_payloads(&mut self) -> bool {
        if self.max_payload == 0 {
            return false;
        }
        let halved = self.max_payload / 2;
        self.max_payload = if halved < MIN_PAYLOAD_BYTES { 0 } else { halved };
        for topic in self.topics.values_mut() {
            let before = topic.payload_capacity();
            if let Some(last) = &mut topic.last {
                last.payload.truncate(self.max_payload);
                last.payload.shrink_to_fit();
            }
            self.bytes = (self.bytes + topic.payload_capacity()).saturating_sub(before);
        }
        true
    }
}

impl WatchedTopic {
    /// Messages since the tree began.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The last message; `None` if there was none since the tree began.
    pub fn last(&self) -> Option<&LastMessage> {
        self.last.as_ref()
    }

    /// Messages a second over the last one to two seconds, at a [position](TopicTree::position).
    pub(super) fn rate(&self, (second, fraction): (u32, f64)) -> f64 {
        let Rate { second: of, count, before } = self.rate;
        let counted = match second.saturating_sub(of) {
            0 => count.saturating_add(before),
            1 => count,
            _ => 0,
        };
        f64::from(counted) / (1.0 + fraction)
    }

    fn payload_capacity(&self) -> usize {
        self.last.as_ref().map_or(0, |last| last.payload.capacity())
    }

    fn keep(&mut self, message: &Message, max_payload: usize, unix_ms: u64) {
        let whole = message.payload();
        let cut = whole.get(..max_payload).unwrap_or(whole);
        // The memory of the last payload is used again.
        let mut payload = self.last.take().map(|last| last.payload).unwrap_or_default();
        payload.clear();
        payload.reserve_exact(cut.len());
        payload.extend_from_slice(cut);
        self.last = Some(LastMessage {
            payload,
            payload_bytes: whole.len(),
            qos: message.qos(),
            retain: message.retain(),
            unix_ms,
        });
    }
}

impl Rate {
    fn count(&mut self, second: u32) {
        if second != self.second {
            self.before = if self.second + 1 == second { self.count } else { 0 };
            (self.second, self.count) = (second, 0);
        }
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::topic::TopicName;

    fn message(topic: &str, payload: &[u8]) -> Message {
        Message::new(TopicName::new(topic).expect("valid"), payload.to_vec())
    }

    fn names(tree: &TopicTree, prefix: &str, after: Option<&str>, max: usize) -> Vec<String> {
        let mut names = Vec::new();
        tree.visit(prefix, after, max, |name, _| names.push(name.to_owned()));
        names
    }

    #[test]
    fn a_rate_is_that_of_the_last_one_to_two_seconds() {
        let started = Instant::now();
        let at = |ms| started + Duration::from_millis(ms);
        let mut tree = TopicTree::new(TreeBounds::default(), started);
        let rate = |tree: &TopicTree, ms| {
            let position = tree.position(at(ms));
            tree.get("a").map(|topic| topic.rate(position))
        };
        assert_eq!(rate(&tree, 0), None);
        (0..10).for_each(|_| tree.record(&message("a", b""), at(100), 0));
        assert_eq!(rate(&tree, 0), Some(10.0));
        (0..5).for_each(|_| tree.record(&message("a", b""), at(1_200), 0));
        assert_eq!(rate(&tree, 1_500), Some(10.0), "15 messages in one and a half seconds");
        assert_eq!(rate(&tree, 2_250), Some(4.0), "5 messages in one and a quarter");
        assert_eq!(rate(&tree, 3_000), Some(0.0));
        tree.record(&message("a", b""), at(9_000), 0);
        assert_eq!(rate(&tree, 9_000), Some(1.0), "what came before is over");
    }

    #[test]
    fn topics_are_visited_a_part_at_a_time() {
        let mut tree = TopicTree::new(TreeBounds::default(), Instant::now());
        ["b", "a/2", "a/1", "a", "a-b", "$x"].iter().for_each(|name| {
            tree.insert(name);
        });
        assert_eq!(names(&tree, "", None, 9), ["$x", "a", "a-b", "a/1", "a/2", "b"]);
        assert_eq!(names(&tree, "a/", None, 9), ["a/1", "a/2"]);
        assert_eq!(names(&tree, "a/", Some("$x"), 9), ["a/1", "a/2"], "`after` is before the prefix");
        assert_eq!(names(&tree, "a/", Some("a/1"), 9), ["a/2"]);
        assert_eq!(names(&tree, "a/", Some("b"), 9), Vec::<String>::new());
        assert_eq!(tree.visit("", None, 2, |_, _| {}), Some("a"));
        assert_eq!(tree.visit("", Some("a"), 4, |_, _| {}), None, "none follows the last one");
    }

    #[test]
    fn payloads_give_way_to_topics() {
        let bounds = TreeBounds { topics: 1000, bytes: LEFT_OUT_BYTES + 100_000 };
        let mut tree = TopicTree::new(bounds, Instant::now());
        let payload = [7; 2000];
        tree.record(&message("first", &payload), Instant::now(), 5);
        let last = |tree: &TopicTree, name: &str| tree.get(name).and_then(|topic| topic.last().cloned());
        let first = last(&tree, "first").expect("a message");
        assert_eq!((first.payload.len(), first.payload_bytes, first.unix_ms), (1024, 2000, 5));
        for number in 0..300 {
            tree.record(&message(&format!("t/{number}"), &payload), Instant::now(), 6);
        }
        assert_eq!((tree.len(), tree.left_out()), (301, 0));
        let first = last(&tree, "first").expect("a message");
        assert!(first.payload.len() < 128, "{}", first.payload.len());
        assert_eq!(first.payload_bytes, 2000);
        for number in 0..700 {
            tree.record(&message(&format!("u/{number}"), &payload), Instant::now(), 7);
        }
        assert!(last(&tree, "first").is_some_and(|last| last.payload.is_empty()));
        assert_eq!(tree.len() + tree.left_out(), 1001, "each topic is known or left out");
        assert!(tree.left_out() > 0);
    }

    #[test]
    fn long_names_are_left_out() {
        let mut tree = TopicTree::new(TreeBounds::default(), Instant::now());
        tree.record(&message(&"x".repeat(MAX_NAME_BYTES + 1), b""), Instant::now(), 0);
        assert_eq!((tree.len(), tree.left_out()), (0, 1));
    }

    proptest! {
        #[test]
        fn the_bounds_hold_and_counts_are_right(
            published in proptest::collection::vec((0_u16..400, 0_usize..1500), 1..2000),
            max_topics in 1_usize..300,
            spare in 0_usize..60_000,
        ) {
            let now = Instant::now();
            let bounds = TreeBounds { topics: max_topics, bytes: LEFT_OUT_BYTES + spare };
            let mut tree = TopicTree::new(bounds, now);
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            for (topic, size) in published {
                let name = format!("level/{topic}");
                tree.record(&message(&name, &vec![1; size]), now, 0);
                *counts.entry(name).or_default() += 1;
                prop_assert!(tree.len() <= max_topics);
                prop_assert!(tree.bytes <= spare);
            }
            let mut bytes = 0;
            tree.visit("", None, usize::MAX, |name, topic| {
                bytes += name.len() + ENTRY_BYTES + topic.payload_capacity();
                // A topic that is known was known from its first message on: none is ever removed.
                assert_eq!(Some(&topic.messages()), counts.get(name));
            });
            prop_assert_eq!(bytes, tree.bytes, "the charge is that of the topics");
            prop_assert_eq!(tree.len() + tree.left_out(), counts.len());
        }
    }
}
