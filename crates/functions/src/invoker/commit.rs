//! Commit of an invocation: its changes and its messages, all of them or none.
//!
//! A message that is to be kept (for a persistent session, as a retained one, for a durable trigger) is in the batch of
//! the changes, as an outgoing message. The broker stores it in its own write-ahead log a moment later, and deletes the
//! outgoing message in the same group. After a crash between the two, the next start publishes what is left over. So
//! the reply has to wait for one write only, and neither changes nor messages can be lost alone.

use std::sync::Arc;

use edgefaas_broker::{Message, NotStored, QoS};
use edgefaas_state::store::{Batch, CommitError, Durability, StoreFailure};

use super::{Effects, Invoker};
use crate::invocation::InvocationError;
use crate::publisher::Numbered;
use crate::registry::LiveFunction;
use crate::topics::is_open;

impl Invoker {
    /// Commits what an invocation changed and publishes what it published. Returns when both have reached the operating
    /// system: they survive `kill -9`.
    ///
    /// # Errors
    /// The store refused the changes, and nothing is published; or the store failed.
    pub async fn commit(
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
            self.publisher.publish_all(source, depth, outgoing)
        } else {
            // A caller who goes away now must not get the changes without the messages: what is handed to
            // the writer is committed in any case.
            let (invoker, source) = (self.clone(), source.clone());
            let both = tokio::spawn(async move {
                let _taken = taken;
                invoker.store.committer().commit(batch, Durability::Written).await?;
                Ok(invoker.publisher.publish_all(&source, depth, outgoing))
            });
            both.await.unwrap_or(Err(CommitError::Closed))?
        };
        match stored_at {
            None => Ok(()),
            // Rare, and large: others need no room for it.
            Some(ticket) => Box::pin(self.broker.durable(ticket))
                .await
                .map_err(|_: NotStored| StoreFailure::BrokerLog.into()),
        }
    }

    /// Adds the messages to `batch` that will be kept.
    fn put_kept(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        publishes: Vec<Message>,
    ) -> Vec<Numbered> {
        let number = |message: Message| {
            let number = self.is_kept(&message).then(|| self.publisher.put(batch, source, depth, &message));
            (message, number)
        };
        publishes.into_iter().map(number).collect()
    }

    /// Whether any workflow or instance waits for messages, whichever they are.
    fn may_run_workflows(&self) -> bool {
        !self.interests.is_empty() || !self.registry.routes().starts().is_empty()
    }

    /// Whether anybody may keep a message on the disk. If a subscription that does so comes later than this question, the
    /// message's own ticket is awaited.
    fn is_kept(&self, message: &Message) -> bool {
        if message.qos() == QoS::AtMostOnce {
            return false;
        }
        let topic = message.topic().as_str();
        // Others are calls, or what only the node publishes.
        if !is_open(topic) || self.broker.keeps(message) || self.may_run_workflows() {
            return true;
        }
        let mut durable = false;
        self.registry.routes().for_each_mqtt(topic, |route| durable |= route.qos > QoS::AtMostOnce);
        durable
    }
}

#[cfg(test)]
mod tests;
