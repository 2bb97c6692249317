//! The last message of each topic that was published with the retain flag.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use crate::message::Message;
use crate::outbox::seconds_left;
use crate::topic::{TopicFilter, TopicName};

/// Retained messages in the order of their topics: a subscription looks only at the topics that start like its filter.
#[derive(Debug)]
pub(crate) struct Retained {
    messages: BTreeMap<TopicName, Kept>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
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
        Retained { messages: BTreeMap::new(), bytes: 0, max_messages, max_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Keeps a message in place of the one before; one without payload only removes it.
    pub(crate) fn set(&mut self, message: &Message, now: Instant) -> Result<(), Refused> {
        let before = self.messages.get(message.topic()).map(|kept| kept.message.weight());
        let weight = message.weight();
        let bytes = self.bytes - before.unwrap_or(0);
        if message.payload().is_empty() {
            self.messages.remove(message.topic());
            self.bytes = bytes;
            return Ok(());
        }
        if bytes + weight > self.max_bytes || (before.is_none() && self.messages.len() >= self.max_messages)
        {
            return Err(Refused);
        }
        let message = message.clone();
        self.bytes = bytes + weight;
        self.messages.insert(message.topic().clone(), Kept { message, received: now });
        Ok(())
    }

    /// The message of a topic, unless it has expired.
    pub(crate) fn get(&self, topic: &TopicName, now: Instant) -> Option<&Kept> {
        self.messages.get(topic).filter(|kept| kept.is_alive(now))
    }

    /// The topics that match a filter and have a message.
    pub(crate) fn matching(&self, filter: &TopicFilter, now: Instant) -> Vec<TopicName> {
        if !filter.has_wildcards() {
            let kept = self.messages.get(filter.as_str()).filter(|kept| kept.is_alive(now));
            return kept.map(|kept| kept.message.topic().clone()).into_iter().collect();
        }
        let prefix = filter.literal_prefix();
        self.messages
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(topic, _)| topic.as_str().starts_with(prefix))
            .filter(|(topic, kept)| filter.matches(topic.as_str()) && kept.is_alive(now))
            .map(|(topic, _)| topic.clone())
            .collect()
    }
}

impl Kept {
    fn is_alive(&self, now: Instant) -> bool {
        match self.message.properties().and_then(|properties| properties.expiry_seconds) {
            Some(seconds) => seconds_left(seconds, now - self.received).is_some(),
            None => true,
        }
    }
}
