//! The retained store: the last message of each topic that was published with the retain flag.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::message::{Message, QoS};
use crate::moment::{Moment, seconds_left};
use crate::stats::Counter;
use crate::stored::{self, Damage, MAX_RECORD_OVERHEAD_BYTES, MessageRecord, RetainedRecord};
use crate::topic::{SYS_PREFIX, TopicFilter, TopicName};
use crate::wal::{Change, Space, Transaction, Wal};

/// The retained messages in memory and in the write-ahead log.
pub(crate) struct RetainedStore {
    messages: RwLock<Retained>,
    wal: Arc<Wal>,
    refused: Counter,
}

impl RetainedStore {
    pub(super) fn new(wal: Arc<Wal>, max_messages: usize, max_bytes: usize) -> RetainedStore {
        let messages = RwLock::new(Retained::new(max_messages, max_bytes));
        RetainedStore { messages, wal, refused: Counter::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.read().len()
    }

    /// Messages but for those of the broker itself.
    pub(crate) fn len_of_clients(&self) -> usize {
        let messages = self.messages.read();
        messages.len() - messages.own
    }

    /// Number of messages that were not retained because the store was full.
    pub(super) fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Retains a message in place of the one before, or deletes that; false if the store is full.
    pub(super) fn retain(
        &self,
        message: &Message,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> bool {
        let is_kept = !message.payload().is_empty();
        // A QoS 0 publish cannot be refused; a deletion makes room.
        let has_room = || match message.qos() {
            // The room for the message was reserved before.
            QoS::AtLeastOnce | QoS::ExactlyOnce => !self.wal.is_full(),
            QoS::AtMostOnce => {
                !self.wal.is_full() && self.wal.has_room(message.weight() + MAX_RECORD_OVERHEAD_BYTES)
            }
        };
        // Messages of the broker itself are in memory alone.
        let is_own = message.topic().as_str().starts_with(SYS_PREFIX);
        let no_room = is_kept && !is_own && !has_room();
        let mut messages = self.messages.write();
        let set = if no_room { Err(Refused) } else { messages.set(message, now.instant) };
        delete_expired(&mut messages, transaction);
        if set.is_err() {
            let is_news = messages.note_refusal(now.instant);
            drop(messages);
            self.refused.add(1);
            if is_news {
                let (topic, refused) = (message.topic().as_str(), self.refused.get());
                let full = if no_room { "the store" } else { "the store of retained messages" };
                tracing::warn!(topic, refused, "{full} is full; messages are not retained");
            }
            return false;
        }
        if is_own {
            return true;
        }
        let value = is_kept.then(|| {
            let message = MessageRecord::of(message);
            stored::encode(&RetainedRecord { message, received_unix_ms: now.unix_ms }).into()
        });
        let key = stored::retained_key(message.topic().as_str());
        // Appended under the lock: changes of one topic are stored in their order.
        transaction.append(Change { space: Space::State, key, value }, message.qos() > QoS::AtMostOnce);
        true
    }

    /// The retained message of a topic and when the broker received it.
    pub(super) fn get(&self, topic: &TopicName, now: Instant) -> Option<(Message, Instant)> {
        self.messages.read().get(topic, now).map(|kept| (kept.message.clone(), kept.received))
    }

    /// The retained message of a topic, by its name.
    pub(crate) fn of_topic(&self, topic: &str, now: &Moment) -> Option<RetainedMessage> {
        let messages = self.messages.read();
        let kept = messages.messages.get(topic).filter(|kept| kept.is_alive(now.instant));
        kept.map(|kept| kept.as_retained(now))
    }

    /// Visits the messages of topics that begin with `prefix`, behind `after`, up to `max` of them, under the lock of the
    /// store. Gives the position to go on behind; `None` at the end.
    pub(crate) fn visit(
        &self,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        now: &Moment,
        mut visit: impl FnMut(RetainedMessage),
    ) -> Option<String> {
        let messages = self.messages.read();
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let kept = messages.messages.range::<str, _>((start, Bound::Unbounded));
        let mut last: Option<&TopicName> = None;
        for (visited, (topic, kept)) in kept.enumerate() {
            if !topic.as_str().starts_with(prefix) {
                return None;
            }
            if visited == max {
                return last.map(|topic| topic.as_str().to_owned());
            }
            last = Some(topic);
            if kept.is_alive(now.instant) {
                visit(kept.as_retained(now));
            }
        }
        None
    }

    /// See [`Retained::slice`].
    pub(super) fn slice(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        max_visited: usize,
        now: Instant,
    ) -> Slice {
        self.messages.read().slice(filter, after, max_visited, now)
    }

    /// Visits some topics and deletes those among them that have expired; says where to go on, if not at the beginning.
    pub(crate) fn expire(
        &self,
        after: Option<&TopicName>,
        max_visited: usize,
        now: Instant,
    ) -> Option<TopicName> {
        let slice = self.messages.read().expired(after, max_visited, now);
        if !slice.topics.is_empty() {
            let mut transaction = self.wal.begin();
            let mut messages = self.messages.write();
            for topic in &slice.topics {
                messages.expire(topic, now);
            }
            delete_expired(&mut messages, &mut transaction);
        }
        slice.after
    }

    /// Brings back a message from the store; false for one that has expired.
    pub(crate) fn restore(&self, record: RetainedRecord<'_>, now: &Moment) -> Result<bool, Damage> {
        let received = now.instant_of(record.received_unix_ms);
        let kept = Kept { message: record.message.message()?, received };
        let is_alive = kept.is_alive(now.instant);
        if is_alive {
            // A message over the limits of this run stays in the store, for a run with wider ones.
            let _ = self.messages.write().set(&kept.message, kept.received);
        }
        Ok(is_alive)
    }
}

/// Deletes expired messages from the store.
fn delete_expired(messages: &mut Retained, transaction: &mut Transaction<'_>) {
    for topic in messages.take_gone() {
        if !topic.as_str().starts_with(SYS_PREFIX) {
            let key = stored::retained_key(topic.as_str());
            transaction.append(Change { space: Space::State, key, value: None }, false);
        }
    }
}

/// Retained messages in the order of their topics: a subscription looks only at the topics that start like its filter.
#[derive(Debug)]
struct Retained {
    messages: BTreeMap<TopicName, Kept>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
    swept: Option<Instant>,
    /// Topics of expired messages that are to be deleted from the store as well.
    gone: Vec<TopicName>,
    /// Messages of the broker itself, which count for no limit.
    own: usize,
    /// The last refusal in the log.
    refusal_logged: Option<Instant>,
}

/// Minimum time between two refusals in the log: a client may publish thousands a second, and the disk of the log may be the full one.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two sweeps of a full store for expired messages.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A part of the topics that match a filter.
#[derive(Debug)]
pub(super) struct Slice {
    pub topics: VecDeque<TopicName>,
    /// Position to continue at; `None` at the end.
    pub after: Option<TopicName>,
    /// Number of topics that were visited.
    pub visited: usize,
}

/// A retained message, as an operator sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct RetainedMessage {
    /// The message.
    pub message: Message,
    /// The time at which the broker received it.
    pub received_unix_ms: u64,
}

#[derive(Debug, Clone)]
struct Kept {
    pub message: Message,
    pub received: Instant,
}

/// The store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refused;

impl Retained {
    fn new(max_messages: usize, max_bytes: usize) -> Retained {
        Retained {
            messages: BTreeMap::new(),
            bytes: 0,
            max_messages,
            max_bytes,
            swept: None,
            gone: Vec::new(),
            own: 0,
            refusal_logged: None,
        }
    }

    /// Notes that a message was refused; true if the log is to say so.
    fn note_refusal(&mut self, now: Instant) -> bool {
        let is_news = self
            .refusal_logged
            .is_none_or(|logged| now.saturating_duration_since(logged) >= REFUSAL_LOG_INTERVAL);
        if is_news {
            self.refusal_logged = Some(now);
        }
        is_news
    }

    fn len(&self) -> usize {
        self.messages.len()
    }

    /// Keeps a message in place of the one before; one without payload only removes it.
    fn set(&mut self, message: &Message, now: Instant) -> Result<(), Refused> {
        // Messages of the broker itself are few, and never refused.
        let own = message.topic().as_str().starts_with(SYS_PREFIX);
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
            // The sweep visits the whole store, so it runs at most once a second.
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
    fn get(&self, topic: &TopicName, now: Instant) -> Option<&Kept> {
        self.messages.get(topic).filter(|kept| kept.is_alive(now))
    }

    /// The topics after `after` that match a filter and have a message, visiting no more than `max_visited`: a filter may
    /// match or pass by all of them, and meanwhile the thread serves no other client.
    fn slice(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        max_visited: usize,
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
            if slice.visited >= max_visited {
                slice.after = Some(topic.clone());
                break;
            }
        }
        slice
    }

    /// Expired messages among `max_visited` topics after `after`, and where to go on.
    fn expired(&self, after: Option<&TopicName>, max_visited: usize, now: Instant) -> Slice {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slice = Slice { topics: VecDeque::new(), after: None, visited: 0 };
        for (topic, kept) in self.messages.range::<TopicName, _>((start, Bound::Unbounded)) {
            slice.visited += 1;
            if !kept.is_alive(now) {
                slice.topics.push_back(topic.clone());
            }
            if slice.visited >= max_visited {
                slice.after = Some(topic.clone());
                break;
            }
        }
        slice
    }

    /// Removes a message if it has expired.
    fn expire(&mut self, topic: &TopicName, now: Instant) {
        if let Some(kept) = self.messages.get(topic)
            && !kept.is_alive(now)
        {
            self.bytes -= kept.message.weight();
            self.messages.remove(topic);
            self.gone.push(topic.clone());
        }
    }

    /// Topics of removed messages that are to be deleted from the store.
    fn take_gone(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.gone)
    }

    /// Removes all expired messages.
    fn sweep(&mut self, now: Instant) {
        let gone = self.messages.extract_if(.., |_, kept| !kept.is_alive(now));
        self.gone.extend(gone.map(|(topic, _)| topic));
        self.bytes = self.messages.values().map(|kept| kept.message.weight()).sum();
        self.swept = Some(now);
    }
}

impl Kept {
    fn as_retained(&self, now: &Moment) -> RetainedMessage {
        let received_unix_ms = now.unix_ms_of(self.received);
        RetainedMessage { message: self.message.clone(), received_unix_ms }
    }

    fn is_alive(&self, now: Instant) -> bool {
        match self.message.properties().and_then(|properties| properties.expiry_seconds) {
            Some(seconds) => seconds_left(seconds, now - self.received).is_some(),
            None => true,
        }
    }
}
