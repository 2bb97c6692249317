//! Messages that functions and workflows publish, on behalf of the node.
//!
//! A message that has to survive a crash is committed in one batch with what its invocation changed, as an outgoing message
//! ([`record`]). The broker stores it in its own write-ahead log a moment later, and deletes the outgoing message in the same
//! group. After a crash between the two, the next start publishes what is left over. A message for which there is no room
//! (the next function's queue is full, or a session's, or the disk) waits by its number ([`waiting`]), in the order in which
//! its source published.

mod record;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use edgefaas_broker::{
    Broker, Change, Client, Message, Origin, PublishOutcome, QoS, RejectReason, Space, Ticket,
};
use edgefaas_isolates::LogLevel;
use edgefaas_state::store::{Batch, Store, StoreError};
use record::{OUTGOING, outgoing_key, parse_outgoing_key};
use tokio::sync::Notify;
use waiting::Waiting;

use crate::logs::Logs;
use crate::records::{self, Damage, Records};
pub use record::{ClientRecord, Outgoing};

/// A message of a commit and, if it is in the batch of that, its number there.
pub type Numbered = (Message, Option<u64>);

/// Publishes messages of functions and workflows.
pub struct Publisher {
    broker: Broker,
    records: Records,
    logs: Arc<Logs>,
    max_message_bytes: usize,
    waiting: Waiting,
    next_number: AtomicU64,
    has_waiting: Notify,
}

impl Publisher {
    /// Reads the outgoing messages that an earlier run of the node has left: they wait until
    /// [`publish_waiting`](Self::publish_waiting). Blocks.
    ///
    /// # Errors
    /// The store cannot be read. A damaged message is left out with a warning.
    pub fn open(
        broker: Broker,
        store: Arc<Store>,
        logs: Arc<Logs>,
        max_message_bytes: usize,
    ) -> Result<Self, StoreError> {
        let (records, waiting) = (Records::new(store), Waiting::default());
        let mut last = 0;
        // What is published from now on does not overtake what an earlier run of the node has left.
        records.for_each(OUTGOING, |key, value| {
            let number = parse_outgoing_key(key);
            last = last.max(number.unwrap_or(0));
            match (number, records::decode::<Outgoing>(value)) {
                (Some(number), Ok(outgoing)) => waiting.wait(&outgoing.source, number),
                (_, Err(damage)) => records::warn_damaged("a message to be published", key, damage),
                (None, _) => records::warn_damaged("a message to be published", key, Damage::Fields),
            }
        })?;
        let next_number = AtomicU64::new(last + 1);
        let has_waiting = Notify::new();
        Ok(Self { broker, records, logs, max_message_bytes, waiting, next_number, has_waiting })
    }

    /// The largest message that the broker takes, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Completes when a message begins to wait.
    pub async fn has_waiting(&self) {
        self.has_waiting.notified().await;
    }

    /// True if no message waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if so many messages of a source wait that its next invocation has to. Now and then it is false nevertheless, for
    /// one invocation.
    pub fn is_full(&self, source: &str) -> bool {
        self.waiting.is_full(source)
    }

    /// Adds a message to a batch; it is published when that is committed. Gives its number.
    pub fn put(&self, batch: &mut Batch, source: &str, depth: u8, message: &Message) -> u64 {
        let outgoing = Outgoing::new(source, depth, None, message);
        self.put_outgoing(batch, &outgoing)
    }

    /// Adds messages to a batch; they are to be [sent](Self::send) when that is committed.
    pub fn put_all(
        &self,
        batch: &mut Batch,
        outgoing: impl IntoIterator<Item = Outgoing>,
    ) -> Vec<(u64, Outgoing)> {
        outgoing.into_iter().map(|outgoing| (self.put_outgoing(batch, &outgoing), outgoing)).collect()
    }

    /// The same for messages of one source.
    pub fn put_messages(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        messages: &[Message],
    ) -> Vec<(u64, Outgoing)> {
        self.put_all(batch, messages.iter().map(|message| Outgoing::new(source, depth, None, message)))
    }

    fn put_outgoing(&self, batch: &mut Batch, outgoing: &Outgoing) -> u64 {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.records.put(batch, outgoing_key(number), records::encode(outgoing));
        number
    }

    /// Publishes messages whose batch is committed, after those of the same source that wait. A message for which there is no
    /// room waits itself.
    pub fn send(&self, outgoing: Vec<(u64, Outgoing)>) {
        for (number, outgoing) in outgoing {
            let source = &outgoing.source;
            if !self.waiting.waits_behind_others(source, number) && !self.try_publish(number, &outgoing) {
                self.let_wait(source, number);
            }
        }
    }

    /// Publishes the messages of a commit in order. Gives the moment at which everything is stored that was in no batch.
    pub fn publish_all(&self, source: &Arc<str>, depth: u8, messages: Vec<Numbered>) -> Option<Ticket> {
        let mut stored_at = None;
        for (message, number) in messages {
            if let Some(number) = number
                && self.waiting.waits_behind_others(source, number)
            {
                continue;
            }
            let is_awaited = message.qos() > QoS::AtMostOnce && number.is_none();
            let (_, ticket) = self.offer(source, depth, None, message, number);
            if is_awaited {
                stored_at = stored_at.max(ticket);
            }
        }
        stored_at
    }

    /// Publishes a message that was in no batch. Its loss is logged. Gives the moment at which it is stored, if it has to be.
    pub fn publish(&self, source: &Arc<str>, depth: u8, message: Message) -> Option<Ticket> {
        self.offer(source, depth, None, message, None).1
    }

    /// Publishes an answer: only where `requester`, the client that asked, may publish. False if the broker refused.
    pub fn answer(
        &self,
        source: &Arc<str>,
        depth: u8,
        requester: Option<Arc<Client>>,
        message: Message,
    ) -> bool {
        self.offer(source, depth, requester, message, None).0
    }

    /// Publishes messages that wait, as far as there is room now.
    pub fn publish_waiting(&self) {
        for source in self.waiting.sources() {
            while let Some(number) = self.waiting.first(&source) {
                let key = outgoing_key(number);
                match self.records.get::<Outgoing>("a message to be published", &key) {
                    Ok(Some(outgoing)) if !self.try_publish(number, &outgoing) => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(function = source, number, %error, "a message is lost");
                        self.broker.record(vec![forget(number)]);
                    }
                }
                self.waiting.published(&source);
            }
        }
    }

    fn let_wait(&self, source: &str, number: u64) {
        self.waiting.wait(source, number);
        self.has_waiting.notify_one();
    }

    /// Publishes a message and, if it has a number, deletes it among the outgoing ones, both or neither. Says whether the
    /// broker took it, and when it is stored.
    fn offer(
        &self,
        source: &Arc<str>,
        depth: u8,
        requester: Option<Arc<Client>>,
        message: Message,
        number: Option<u64>,
    ) -> (bool, Option<Ticket>) {
        let origin = Origin::Node { source: source.clone(), depth, requester };
        let topic = message.topic().clone();
        let topic = topic.as_str();
        let forgotten = || number.map(forget).into_iter().collect();
        let published = self.broker.publish_with(&origin, message, forgotten());
        let (taken, lost) = match published.outcome {
            PublishOutcome::Rejected(reason) => {
                // It is stored, and goes out when there is room.
                if let Some(number) = number
                    && reason == RejectReason::QuotaExceeded
                {
                    self.let_wait(source, number);
                    return (true, None);
                }
                if number.is_some() {
                    self.broker.record(forgotten());
                }
                (false, format!("the message on {topic} was refused: {reason:?}"))
            }
            PublishOutcome::Routed(routed) if routed.dropped > 0 => {
                let dropped = routed.dropped;
                (true, format!("the message on {topic} is lost for {dropped} subscribers: queue full"))
            }
            _ => return (true, published.ticket),
        };
        self.logs.add(source, "", LogLevel::Warn, lost);
        (taken, published.ticket)
    }

    /// Publishes a stored message and forgets it, both or neither; false if there is no room for it somewhere.
    fn try_publish(&self, number: u64, outgoing: &Outgoing) -> bool {
        let source: Arc<str> = outgoing.source.as_str().into();
        let requester = outgoing.requester.as_ref().map(ClientRecord::client);
        let origin = Origin::Node { source: source.clone(), depth: outgoing.depth, requester };
        let message = match outgoing.message() {
            Ok(message) => message,
            Err(damage) => {
                tracing::warn!(function = &*source, number, %damage, "a message is lost");
                self.broker.record(vec![forget(number)]);
                return true;
            }
        };
        let topic = message.topic().clone();
        let lost = match self.broker.publish_with(&origin, message, vec![forget(number)]).outcome {
            PublishOutcome::Rejected(RejectReason::QuotaExceeded) => return false,
            PublishOutcome::Rejected(reason) => {
                self.broker.record(vec![forget(number)]);
                format!("the message on {} was refused: {reason:?}", topic.as_str())
            }
            PublishOutcome::Routed(routed) if routed.dropped > 0 => {
                let dropped = routed.dropped;
                format!("the message on {} is lost for {dropped} subscribers: queue full", topic.as_str())
            }
            _ => return true,
        };
        self.logs.add(&source, "", LogLevel::Warn, lost);
        true
    }
}

/// Deletes an outgoing message, which is published.
pub(crate) fn forget(number: u64) -> Change {
    Change { space: Space::Hook, key: outgoing_key(number), value: None }
}
