//! Messages that functions and workflows publish, on behalf of the node.
//!
//! A message that has to survive a crash is committed in one batch with the changes of its invocation, as an outgoing message
//! ([`message_record`]). Then the broker stores it in its own write-ahead log, and deletes the outgoing message in the same
//! group. After a crash between the two, the next start publishes the remaining outgoing messages. If the queue of the next
//! function or of a session is full, or the disk, the message waits by its number ([`waiting`]), in the order in which its
//! source published.

mod message_record;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use edgefaas_broker::{
    Broker, Change, Client, Message, Origin, PublishOutcome, QoS, RejectReason, Space, Ticket,
};
use edgefaas_isolates::LogLevel;
use edgefaas_state::store::{Batch, Store, StoreError};
use message_record::{OUTGOING, outgoing_key, parse_outgoing_key};
use tokio::sync::Notify;
use waiting::Waiting;

use crate::logs::Logs;
use crate::records::{self, Damage, Records};
pub use message_record::{ClientRecord, Outgoing};

/// A message of a commit. The number is that of its outgoing message, if it is in the batch of the commit.
pub type Numbered = (Message, Option<u64>);

/// Publishes messages of functions and workflows.
pub struct Publisher {
    broker: Broker,
    records: Records,
    logs: Arc<Logs>,
    max_message_bytes: usize,
    waiting: Waiting,
    next_number: AtomicU64,
    message_waits: Notify,
}

impl Publisher {
    /// Reads the outgoing messages that an earlier incarnation of the node did not publish: they wait until
    /// [`publish_waiting`](Self::publish_waiting). Blocks.
    ///
    /// # Errors
    /// The store cannot be read. A damaged message is skipped with a warning.
    pub fn open(
        broker: Broker,
        store: Arc<Store>,
        logs: Arc<Logs>,
        max_message_bytes: usize,
    ) -> Result<Self, StoreError> {
        let (records, waiting) = (Records::new(store), Waiting::default());
        let mut last = 0;
        // They wait, so that new messages of the same source do not overtake them.
        records.for_each(OUTGOING, |key, value| {
            let number = parse_outgoing_key(key);
            last = last.max(number.unwrap_or(0));
            match (number, records::decode::<Outgoing>(value)) {
                (Some(number), Ok(outgoing)) => waiting.add(&outgoing.source, number),
                (_, Err(damage)) => records::warn_damaged("a message to be published", key, damage),
                (None, _) => records::warn_damaged("a message to be published", key, Damage::Fields),
            }
        })?;
        let next_number = AtomicU64::new(last + 1);
        let message_waits = Notify::new();
        Ok(Self { broker, records, logs, max_message_bytes, waiting, next_number, message_waits })
    }

    /// Maximum size of a message, in bytes (`broker.max_packet`).
    pub fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Completes when a message begins to wait.
    pub async fn message_waits(&self) {
        self.message_waits.notified().await;
    }

    /// True if no message waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if too many messages of a source wait, so that its next invocation has to wait. After 1 s without progress it is
    /// false for one invocation.
    pub fn is_full(&self, source: &str) -> bool {
        self.waiting.is_full(source)
    }

    /// Adds a message to a batch and returns its number. The caller publishes it with
    /// [`publish_all`](Self::publish_all) after the commit.
    pub fn put(&self, batch: &mut Batch, source: &str, depth: u8, message: &Message) -> u64 {
        let outgoing = Outgoing::new(source, depth, None, message);
        self.put_outgoing(batch, &outgoing)
    }

    /// Adds messages to a batch. The caller has to [send](Self::send) them after the commit.
    pub fn put_all(
        &self,
        batch: &mut Batch,
        outgoing: impl IntoIterator<Item = Outgoing>,
    ) -> Vec<(u64, Outgoing)> {
        outgoing.into_iter().map(|outgoing| (self.put_outgoing(batch, &outgoing), outgoing)).collect()
    }

    /// Adds messages of one source to a batch. The caller has to [send](Self::send) them after the commit.
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

    /// Publishes messages of a committed batch. A message waits if the broker has no room for it, or if other messages of the
    /// same source wait.
    pub fn send(&self, outgoing: Vec<(u64, Outgoing)>) {
        for (number, outgoing) in outgoing {
            let source = &outgoing.source;
            if !self.waiting.add_behind_others(source, number) && !self.try_publish(number, &outgoing) {
                self.add_waiting(source, number);
            }
        }
    }

    /// Publishes the messages of a commit in order. Returns the ticket at which those messages are durable that the broker
    /// has to store and that were not in the batch.
    pub fn publish_all(&self, source: &Arc<str>, depth: u8, messages: Vec<Numbered>) -> Option<Ticket> {
        let mut stored_at = None;
        for (message, number) in messages {
            if let Some(number) = number
                && self.waiting.add_behind_others(source, number)
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

    /// Publishes a message that was not in a batch. Logs if it is lost. Returns the ticket at which it is durable, if the
    /// broker has to store it.
    pub fn publish(&self, source: &Arc<str>, depth: u8, message: Message) -> Option<Ticket> {
        self.offer(source, depth, None, message, None).1
    }

    /// Publishes an answer, if the rules of `requester` allow it. False if the broker refused it.
    pub fn answer(
        &self,
        source: &Arc<str>,
        depth: u8,
        requester: Option<Arc<Client>>,
        message: Message,
    ) -> bool {
        self.offer(source, depth, requester, message, None).0
    }

    /// Publishes the waiting messages for which the broker has room now.
    pub fn publish_waiting(&self) {
        for source in self.waiting.sources() {
            while let Some(number) = self.waiting.first(&source) {
                let key = outgoing_key(number);
                match self.records.get::<Outgoing>("a message to be published", &key) {
                    Ok(Some(outgoing)) if !self.try_publish(number, &outgoing) => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(function = source, number, %error, "a message is lost");
                        self.broker.record(vec![delete_outgoing(number)]);
                    }
                }
                self.waiting.published(&source);
            }
        }
    }

    fn add_waiting(&self, source: &str, number: u64) {
        self.waiting.add(source, number);
        self.message_waits.notify_one();
    }

    /// Publishes a message and, if it has a number, deletes its outgoing message atomically. Returns true if the broker
    /// accepted it or it waits, and the ticket at which it is durable.
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
        let deletion = || number.map(delete_outgoing).into_iter().collect();
        let published = self.broker.publish_with(&origin, message, deletion());
        let (accepted, reason) = match published.outcome {
            PublishOutcome::Rejected(reason) => {
                // The outgoing message is stored: it is published when there is room.
                if let Some(number) = number
                    && reason == RejectReason::QuotaExceeded
                {
                    self.add_waiting(source, number);
                    return (true, None);
                }
                if number.is_some() {
                    self.broker.record(deletion());
                }
                (false, format!("the message on {topic} was refused: {reason:?}"))
            }
            PublishOutcome::Routed(routed) if routed.dropped > 0 => {
                let dropped = routed.dropped;
                (true, format!("the message on {topic} is lost for {dropped} subscribers: queue full"))
            }
            _ => return (true, published.ticket),
        };
        self.logs.add(source, "", LogLevel::Warn, reason);
        (accepted, published.ticket)
    }

    /// Publishes a stored message and deletes its outgoing message atomically. False if there is no room for it now.
    fn try_publish(&self, number: u64, outgoing: &Outgoing) -> bool {
        let source: Arc<str> = outgoing.source.as_str().into();
        let requester = outgoing.requester.as_ref().map(ClientRecord::client);
        let origin = Origin::Node { source: source.clone(), depth: outgoing.depth, requester };
        let message = match outgoing.message() {
            Ok(message) => message,
            Err(damage) => {
                tracing::warn!(function = &*source, number, %damage, "a message is lost");
                self.broker.record(vec![delete_outgoing(number)]);
                return true;
            }
        };
        let topic = message.topic().clone();
        let reason = match self.broker.publish_with(&origin, message, vec![delete_outgoing(number)]).outcome
        {
            PublishOutcome::Rejected(RejectReason::QuotaExceeded) => return false,
            PublishOutcome::Rejected(reason) => {
                self.broker.record(vec![delete_outgoing(number)]);
                format!("the message on {} was refused: {reason:?}", topic.as_str())
            }
            PublishOutcome::Routed(routed) if routed.dropped > 0 => {
                let dropped = routed.dropped;
                format!("the message on {} is lost for {dropped} subscribers: queue full", topic.as_str())
            }
            _ => return true,
        };
        self.logs.add(&source, "", LogLevel::Warn, reason);
        true
    }
}

/// The change of the broker's store that deletes a published outgoing message.
pub(crate) fn delete_outgoing(number: u64) -> Change {
    Change { space: Space::Hook, key: outgoing_key(number), value: None }
}
