//! Commit of an invocation: all of its changes and messages, or none.
//!
//! A message that the broker has to store (for a persistent session, as a retained message, for a durable trigger) is in the
//! batch of the changes, as an outgoing message. Then the broker stores it in its own write-ahead log, and deletes the
//! outgoing message in the same group. After a crash between the two, the next start publishes the remaining outgoing
//! messages. So the reply waits for one write only, and neither changes nor messages can be lost alone.

use std::sync::Arc;

use edgefaas_broker::{Message, NotStored, QoS};
use edgefaas_state::store::{Batch, CommitError, Durability, StoreFailure};

use super::{Effects, Invoker};
use crate::invocation::InvocationError;
use crate::publisher::Numbered;
use crate::registry::LiveFunction;
use crate::topics::is_open;

impl Invoker {
    /// Commits the changes of an invocation and publishes its messages. Returns when both were written to the operating
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
        let outgoing = self.put_stored(&mut batch, source, depth, publishes);
        let stored_at = if batch.is_empty() {
            self.publisher.publish_all(source, depth, outgoing)
        } else {
            // A task of its own: if the caller drops this future, the writer still commits the batch, so the messages have to
            // be published too.
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
            // Boxed, because it is rare and its future is large.
            Some(ticket) => Box::pin(self.broker.durable(ticket))
                .await
                .map_err(|_: NotStored| StoreFailure::BrokerLog.into()),
        }
    }

    /// Adds the messages that the broker has to store to `batch`.
    fn put_stored(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        publishes: Vec<Message>,
    ) -> Vec<Numbered> {
        let number = |message: Message| {
            let number =
                self.is_stored(&message).then(|| self.publisher.put(batch, source, depth, &message));
            (message, number)
        };
        publishes.into_iter().map(number).collect()
    }

    /// True if any workflow or instance waits for events.
    fn may_run_workflows(&self) -> bool {
        !self.interests.is_empty() || !self.registry.routes().starts().is_empty()
    }

    /// True if the broker may have to store a message. If a subscription that requires it is added after this check, the
    /// commit waits for the ticket of the message instead.
    fn is_stored(&self, message: &Message) -> bool {
        if message.qos() == QoS::AtMostOnce {
            return false;
        }
        let topic = message.topic().as_str();
        // Under `$faas/` they are calls or messages of the node.
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
