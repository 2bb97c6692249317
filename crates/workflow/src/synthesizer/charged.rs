//! Events and keys in memory, each with its size.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::weight::weight;

/// Memory of an event or a key, in addition to its value: the reference counts, and its slot in a collection. The
/// slot counts twice, because collections allocate more capacity than they need.
const SLOT_BYTES: usize = 16 + 2 * size_of::<(i64, Charged)>();

/// A shared event or key. Serialized as its value in human-readable formats, as JSON text in others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Charged {
    value: Arc<Value>,
    /// Computed from the value; not serialized.
    bytes: usize,
}

/// Events with their times, oldest first. Serialized as a list.
#[derive(Debug, Clone, Default)]
pub(super) struct Timed {
    events: VecDeque<(i64, Charged)>,
    bytes: usize,
}

impl Charged {
    /// Measures the value, which visits all of it.
    pub(super) fn new(value: Arc<Value>) -> Self {
        let bytes = weight(&value) + SLOT_BYTES;
        Self { value, bytes }
    }

    /// The memory of the value and its slot, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn share(&self) -> Arc<Value> {
        Arc::clone(&self.value)
    }

    pub(super) fn into_value(self) -> Arc<Value> {
        self.value
    }
}

impl Timed {
    pub(super) fn push(&mut self, at: i64, event: &Arc<Value>) {
        let event = Charged::new(Arc::clone(event));
        self.bytes += event.bytes();
        self.events.push_back((at, event));
    }

    /// Drops the oldest event. Returns true if there was one.
    pub(super) fn pop(&mut self) -> bool {
        let Some((_, event)) = self.events.pop_front() else { return false };
        self.bytes = self.bytes.saturating_sub(event.bytes());
        release_room(&mut self.events);
        true
    }

    /// The time of the oldest event.
    pub(super) fn first(&self) -> Option<i64> {
        self.events.front().map(|(at, _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// The number of events before a time.
    pub(super) fn len_before(&self, time: i64) -> usize {
        self.events.partition_point(|(at, _)| *at < time)
    }

    /// The memory of all events, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest `events` events.
    pub(super) fn oldest(&self, events: usize) -> Vec<Arc<Value>> {
        self.events.iter().take(events).map(|(_, event)| event.share()).collect()
    }

    pub(super) fn into_events(self) -> Vec<Arc<Value>> {
        self.events.into_iter().map(|(_, event)| event.into_value()).collect()
    }

    pub(super) fn shift(&mut self, by_ms: i64) {
        self.events.iter_mut().for_each(|(at, _)| *at = at.saturating_add(by_ms));
    }
}

/// Shrinks a queue whose capacity is much larger than its length, after a burst of events.
pub(super) fn release_room<T>(held: &mut VecDeque<T>) {
    if held.capacity() > 64 && held.len() < held.capacity() / 4 {
        held.shrink_to(held.len() * 2);
    }
}

impl Deref for Charged {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl Serialize for Charged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => self.value.serialize(serializer),
            false => serializer.collect_str(&*self.value),
        }
    }
}

impl<'de> Deserialize<'de> for Charged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Ok(Self::new(Arc::new(Value::deserialize(deserializer)?)));
        }
        let text = String::deserialize(deserializer)?;
        serde_json::from_str(&text)
            .map(|value| Self::new(Arc::new(value)))
            .map_err(serde::de::Error::custom)
    }
}

impl Serialize for Timed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.events.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let events = VecDeque::<(i64, Charged)>::deserialize(deserializer)?;
        let bytes = events.iter().map(|(_, event)| event.bytes()).sum();
        Ok(Self { events, bytes })
    }
}
