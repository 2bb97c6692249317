//! The last message of each topic that was published with the retain flag.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::message::Message;
use crate::outbox::seconds_left;
use crate::publish::OWN_PREFIX;
use crate::topic::{TopicFilter, TopicName};

/// Retained messages in the order of their topics: a subscription looks only at the topics that start like its filter.
#[derive(Debug)]
pub(crate) struct Retained {
    messages: BTreeMap<TopicName, Kept>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
    swept: Option<Instant>,
    /// What was swept away, to be deleted from the store as well.
    gone: Vec<TopicName>,
    /// The broker's own, which have no bound.
    own: usize,
}

/// How often a full store is looked through for expired messages.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A part of the topics that match a filter.
#[derive(Debug)]
pub(crate) struct Slice {
    pub topics: VecDeque<TopicName>,
    /// Where to go on; `None` at the end.
    pub after: Option<TopicName>,
    /// How many were looked at.
    pub visited: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub message: Message,
    pub received: Instant,
}

/// The store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

impl Retained {
    pub(crate) fn new(max_messages: usize, max_bytes: usize) -> Retained {
        Retained {
            messages: BTreeMap::new(),
            bytes: 0,
            max_messages,
            max_bytes,
            swept: None,
            gone: Vec::new(),
            own: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Keeps a message in place of the one before; one without payload only removes it.
    pub(crate) fn set(&mut self, message: &Message, now: Instant) -> Result<(), Refused> {
        // The broker's own are few, and never refused.
        let own = message.topic().as_str().starts_with(OWN_PREFIX);
        let before = self.messages.get(message.topic()).map(|kept| kept.message.weight());
        let weight = message.weight();
        let bytes = self.bytes - before.unwrap_or(0);
        if message.payload().is_empty() {
            self.own -= usize::from(own && self.messages.remove(message.topic()).is_some());
            self.messages.remove(message.topic());
            self.bytes = bytes;
            return Ok(());
        }
        let is_full = |store: &Retained, bytes: usize| {
            !own && (bytes + weight > store.max_bytes
                || (before.is_none() && store.messages.len() - store.own >= store.max_messages))
        };
        let mut bytes = bytes;
        if is_full(self, bytes) {
            // Looked for at most once a second: a full store is looked through.
            if self.swept.is_none_or(|swept| now - swept >= SWEEP_INTERVAL) {
                self.sweep(now);
                let before = self.messages.get(message.topic()).map(|kept| kept.message.weight());
                bytes = self.bytes - before.unwrap_or(0);
            }
            if is_full(self, bytes) {
                return Err(Refused);
            }
        }
        let message = message.clone();
        self.bytes = bytes + weight;
        let before = self.messages.insert(message.topic().clone(), Kept { message, received: now });
        self.own += usize::from(own && before.is_none());
        Ok(())
    }

    /// The message of a topic, unless it has expired.
    pub(crate) fn get(&self, topic: &TopicName, now: Instant) -> Option<&Kept> {
        self.messages.get(topic).filter(|kept| kept.is_alive(now))
    }

    /// The topics after `after` that match a filter and have a message, looking at no more than `most`: a filter may
    /// match, or pass by, all there are, and the broker has others to serve.
    pub(crate) fn slice(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        most: usize,
        now: Instant,
    ) -> Slice {
        if !filter.has_wildcards() {
            let kept = self.messages.get(filter.as_str()).filter(|kept| kept.is_alive(now));
            let topics = kept.map(|kept| kept.message.topic().clone()).into_iter().collect();
            return Slice { topics, after: None, visited: 1 };
        }
        let prefix = filter.literal_prefix();
        let start = after.map_or(Bound::Included(prefix), |topic| Bound::Excluded(topic.as_str()));
        let mut slice = Slice { topics: VecDeque::new(), after: None, visited: 0 };
        let kept = self.messages.range::<str, _>((start, Bound::Unbounded));
        for (topic, kept) in kept.take_while(|(topic, _)| topic.as_str().starts_with(prefix)) {
            slice.visited += 1;
            if filter.matches(topic.as_str()) && kept.is_alive(now) {
                slice.topics.push_back(topic.clone());
            }
            if slice.visited >= most {
                slice.after = Some(topic.clone());
                break;
            }
        }
        slice
    }

    /// Expired messages among `most` topics after `after`, and where to go on.
    pub(crate) fn expired(&self, after: Option<&TopicName>, most: usize, now: Instant) -> Slice {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slice = Slice { topics: VecDeque::new(), after: None, visited: 0 };
        for (topic, kept) in self.messages.range::<TopicName, _>((start, Bound::Unbounded)) {
            slice.visited += 1;
            if !kept.is_alive(now) {
                slice.topics.push_back(topic.clone());
            }
            if slice.visited >= most {
                slice.after = Some(topic.clone());
                break;
            }
        }
        slice
    }

    /// Removes a message if it has expired.
    pub(crate) fn expire(&mut self, topic: &TopicName, now: Instant) {
        if let Some(kept) = self.messages.get(topic)
            && !kept.is_alive(now)
        {
            self.bytes -= kept.message.weight();
            self.messages.remove(topic);
            self.gone.push(topic.clone());
        }
    }

    /// What was removed because it had expired: to be deleted from the store.
    pub(crate) fn take_gone(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.gone)
    }

    /// Makes room: messages that have expired are in nobody's way.
    fn sweep(&mut self, now: Instant) {
        let gone = self.messages.extract_if(.., |_, kept| !kept.is_alive(now));
        self.gone.extend(gone.map(|(topic, _)| topic));
        self.bytes = self.messages.values().map(|kept| kept.message.weight()).sum();
        self.swept = Some(now);
    }
}

impl Kept {
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        match self.message.properties().and_then(|properties| properties.expiry_seconds) {
            Some(seconds) => seconds_left(seconds, now - self.received).is_some(),
            None => true,
        }
    }
}
