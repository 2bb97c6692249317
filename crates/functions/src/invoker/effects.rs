//! What an invocation has done so far and nobody sees until it commits.

use edgefaas_broker::Message;
use edgefaas_crdt::{Hlc, Operation};
use edgefaas_platform::{Budget, Taken};
use edgefaas_state::objects::{FieldKey, Objects, Pending, PendingError, PendingFields};
use edgefaas_state::store::Batch;

/// The most messages that one invocation may publish.
pub const MAX_PUBLISHES: usize = 10_000;
/// The most fields that one invocation may write.
pub const MAX_FIELDS: usize = 10_000;
/// The most bytes that one invocation may publish and write.
pub const MAX_BYTES: usize = 16 << 20;

/// Held-back messages and pending writes.
pub struct Effects {
    publishes: Vec<Message>,
    publish_bytes: usize,
    /// What the messages and fields take of the budget for those of all invocations, and how many bytes one may take.
    taken: Taken,
    max_bytes: usize,
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
    #[error("one invocation may publish and write at most {max_bytes} bytes on this node")]
    Bytes {
        /// The limit.
        max_bytes: usize,
    },
    /// Those of others have the memory.
    #[error(
        "what all invocations have published and written and not committed has no room for more; try again later"
    )]
    Memory,
}

impl Effects {
    /// Nothing yet, of an invocation that so many others led to. `budget`: of all invocations, of which one has half.
    pub fn of(depth: u8, budget: &Budget) -> Self {
        let max_bytes = (budget.max_bytes() / 2).min(MAX_BYTES);
        let (publishes, fields) = (Vec::new(), PendingFields::default());
        Self { publishes, publish_bytes: 0, taken: budget.take_none(), max_bytes, fields, depth }
    }

    /// Holds a message back.
    pub fn publish(&mut self, message: Message) -> Result<(), EffectsFull> {
        if self.publishes.len() >= MAX_PUBLISHES {
            return Err(EffectsFull::Publishes);
        }
        let bytes = message.weight();
        if self.publish_bytes + bytes + self.fields.bytes() > self.max_bytes {
            return Err(self.too_many_bytes());
        }
        if !self.taken.grow(bytes) {
            return Err(EffectsFull::Memory);
        }
        self.publish_bytes += bytes;
        self.publishes.push(message);
        Ok(())
    }

    fn too_many_bytes(&self) -> EffectsFull {
        EffectsFull::Bytes { max_bytes: self.max_bytes }
    }

    /// Why there is no room for a write.
    pub fn no_room(&self) -> EffectsFull {
        match self.max_bytes - self.publish_bytes - self.fields.bytes() > self.taken.free() {
            true => EffectsFull::Memory,
            false => self.too_many_bytes(),
        }
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
        let max_bytes = (self.max_bytes - self.publish_bytes).min(self.fields.bytes() + self.taken.free());
        let done = self.fields.operate(objects, key, operation, now, (MAX_FIELDS, max_bytes));
        self.taken.resize(self.publish_bytes + self.fields.bytes());
        done
    }

    /// The batch to commit and the messages to send after it, and what they take of the budget until then.
    pub fn into_parts(self) -> (Batch, Vec<Message>, Taken) {
        let mut batch = Batch::default();
        batch.caused_at(self.depth);
        for (key, operation) in self.fields.into_operations() {
            batch.operate(key, operation);
        }
        (batch, self.publishes, self.taken)
    }
}
