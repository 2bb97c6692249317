//! What an invocation has done so far and nobody sees until it commits.

use edgefaas_broker::Message;
use edgefaas_crdt::{Hlc, Operation};

use crate::objects::{FieldKey, Objects, Pending, PendingError, PendingFields};
use crate::store::Batch;

/// The most messages that one invocation may publish.
pub const MAX_PUBLISHES: usize = 10_000;
/// The most fields that one invocation may write.
pub const MAX_FIELDS: usize = 10_000;
/// The most bytes that one invocation may publish and write.
pub const MAX_BYTES: usize = 16 << 20;

/// Held-back messages and pending writes.
#[derive(Default)]
pub struct Effects {
    publishes: Vec<Message>,
    publish_bytes: usize,
    fields: PendingFields,
    depth: u8,
}

/// There is no room for more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EffectsFull {
    /// Too many messages.
    #[error("one invocation may publish at most {MAX_PUBLISHES} messages")]
    Publishes,
    /// Too many bytes.
    #[error("one invocation may publish and write at most {MAX_BYTES} bytes")]
    Bytes,
}

impl Effects {
    /// Nothing yet, of an invocation that so many others led to.
    pub fn of(depth: u8) -> Self {
        Self { depth, ..Self::default() }
    }

    /// Holds a message back.
    pub fn publish(&mut self, message: Message) -> Result<(), EffectsFull> {
        if self.publishes.len() >= MAX_PUBLISHES {
            return Err(EffectsFull::Publishes);
        }
        let bytes = self.publish_bytes + message.weight();
        if bytes + self.fields.bytes() > MAX_BYTES {
            return Err(EffectsFull::Bytes);
        }
        self.publish_bytes = bytes;
        self.publishes.push(message);
        Ok(())
    }

    /// The pending write of a field.
    pub fn pending(&self, key: &FieldKey) -> Option<&Pending> {
        self.fields.get(key)
    }

    /// Adds an operation on a field.
    ///
    /// # Errors
    /// The operation does not fit the field as the invocation sees it, or there is no room.
    pub fn operate(
        &mut self,
        objects: &Objects,
        key: FieldKey,
        operation: Operation,
        now_ms: u64,
    ) -> Result<(), PendingError> {
        // What is shown of it before the commit needs no better time: the writer gives it its own.
        let now = Hlc { wall_ms: now_ms, logical: 0 };
        self.fields.operate(objects, key, operation, now, (MAX_FIELDS, MAX_BYTES - self.publish_bytes))
    }

    /// The batch to commit and the messages to send after it.
    pub fn into_parts(self) -> (Batch, Vec<Message>) {
        let mut batch = Batch::default();
        batch.caused_at(self.depth);
        for (key, operation) in self.fields.into_operations() {
            batch.operate(key, operation);
        }
        (batch, self.publishes)
    }
}
