//! Commit of an invocation: its changes and its messages, all of them or none.
//!
//! A message that is to be kept (for a persistent session, as a retained one, for a durable trigger) is in the batch of
//! the changes, as an outgoing message. The broker stores it in its own write-ahead log a moment later, and deletes the
//! outgoing message in the same group. After a crash between the two, the next start publishes what is left over. So
//! the reply has to wait for one write only, and neither changes nor messages can be lost alone.

use std::sync::Arc;

use edgefaas_broker::{Client, Message, NotStored, Origin, PublishOutcome, QoS, RejectReason, Ticket};
use edgefaas_isolates::LogLevel;
use edgefaas_state::store::{Batch, CommitError, Durability};

use super::{Dispatcher, Effects};
use crate::ingress::mqtt::is_open;
use crate::invocation::InvocationError;
use crate::registry::LiveFunction;

/// A message of an invocation and, if it is in the invocation's batch, its number there.
type Outgoing = (Message, Option<u64>);

impl Dispatcher {
    /// Commits what an invocation changed and publishes what it published. Returns when both have reached the operating
    /// system: they survive `kill -9`.
    ///
    /// # Errors
    /// The store refused the changes, and nothing is published; or the store failed.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        effects: Effects,
        depth: u8,
    ) -> Result<(), InvocationError> {
        let committed = self.commit_effects(&function.name, effects, depth).await;
        committed.map_err(|error| InvocationError::Commit { function: function.name.to_string(), error })
    }

    async fn commit_effects(
        self: &Arc<Self>,
        source: &Arc<str>,
        effects: Effects,
        depth: u8,
    ) -> Result<(), CommitError> {
        let (mut batch, publishes, taken) = effects.into_parts();
        if publishes.is_empty() {
            batch.charge(taken);
            return self.store.committer().commit(batch, Durability::Written).await;
        }
        let depth = depth.saturating_add(1);
        let outgoing = self.put_kept(&mut batch, source, depth, publishes);
        let stored_at = if batch.is_empty() {
            self.publish_all(source, depth, outgoing)
        } else {
            // A caller who goes away now must not get the changes without the messages: what is handed to
            // the writer is committed in any case.
            let (dispatcher, source) = (self.clone(), source.clone());
            let both = tokio::spawn(async move {
                let _taken = taken;
                dispatcher.store.committer().commit(batch, Durability::Written).await?;
                Ok(dispatcher.publish_all(&source, depth, outgoing))
            });
            both.await.unwrap_or(Err(CommitError::Closed))?
        };
        match stored_at {
            None => Ok(()),
            // Rare, and large: others need no room for it.
            Some(ticket) => Box::pin(self.broker.durable(ticket))
                .await
                .map_err(|error: NotStored| CommitError::Failed(error.to_string())),
        }
    }

    /// Adds the messages to `batch` that will be kept.
    fn put_kept(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        publishes: Vec<Message>,
    ) -> Vec<Outgoing> {
        let number = |message: Message| {
            let number =
                self.is_kept(&message).then(|| self.put_outgoing_message(batch, source, depth, &message));
            (message, number)
        };
        publishes.into_iter().map(number).collect()
    }

    /// Whether anybody may keep a message on the disk. If a subscription that does so comes later than this question, the
    /// message's own ticket is awaited.
    fn is_kept(&self, message: &Message) -> bool {
        if message.qos() == QoS::AtMostOnce {
            return false;
        }
        let topic = message.topic().as_str();
        // Others are calls, or what only the node publishes.
        if !is_open(topic) || self.broker.keeps(message) || self.coordinator.takes_messages(&self.registry)
        {
            return true;
        }
        let mut durable = false;
        self.registry.routes().for_each_mqtt(topic, |route| durable |= route.qos > QoS::AtMostOnce);
        durable
    }

    /// Publishes in order. Gives the moment at which everything is stored that is not in a batch already.
    fn publish_all(&self, source: &Arc<str>, depth: u8, outgoing: Vec<Outgoing>) -> Option<Ticket> {
        let mut stored_at = None;
        for (message, number) in outgoing {
            if let Some(number) = number
                && self.waits_behind_others(source, number)
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

    /// Publishes on behalf of a function or workflow. What is lost is logged. Gives the moment at which it is stored, if
    /// it has to be.
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
        let forget = || number.map(crate::journal::forget_outgoing).into_iter().collect();
        let published = self.broker.publish_with(&origin, message, forget());
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
                    self.broker.record(forget());
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
}

#[cfg(test)]
mod tests;
