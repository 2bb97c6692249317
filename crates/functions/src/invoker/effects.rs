//! Uncommitted effects of an invocation: writes, deletions and messages.

use edgefaas_broker::Message;
use edgefaas_crdt::{Hlc, Operation};
use edgefaas_platform::{Budget, Taken};
use edgefaas_state::objects::{
    FieldKey, Objects, Pending, PendingChange, PendingError, PendingFields, PendingLimits,
};
use edgefaas_state::store::Batch;

/// Maximum number of messages that one invocation may publish.
pub const MAX_PUBLISHES: usize = 10_000;
/// Maximum number of fields that one invocation may write or delete.
pub const MAX_FIELDS: usize = 10_000;
/// Maximum number of bytes that one invocation may publish and write.
pub const MAX_BYTES: usize = 16 << 20;

/// Uncommitted messages and writes.
pub struct Effects {
    publishes: Vec<Message>,
    publish_bytes: usize,
    /// Bytes of the messages and fields, taken from the budget of all invocations.
    taken: Taken,
    /// Maximum for this invocation.
    max_bytes: usize,
    fields: PendingFields,
    depth: u8,
}

/// A limit of uncommitted effects is reached.
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
    /// The budget of all invocations is used up.
    #[error(
        "the uncommitted messages and writes of all invocations take all the memory for them; try again later"
    )]
    Memory,
}

impl Effects {
    /// Without effects. `depth` is that of the invocation. `budget` is that of all invocations: one may take half of it, and
    /// at most [`MAX_BYTES`].
    pub fn of(depth: u8, budget: &Budget) -> Self {
        let max_bytes = (budget.max_bytes() / 2).min(MAX_BYTES);
        let (publishes, fields) = (Vec::new(), PendingFields::default());
        Self { publishes, publish_bytes: 0, taken: budget.take_none(), max_bytes, fields, depth }
    }

    /// Adds a message.
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

    /// The error after a write did not fit.
    pub fn no_room(&self) -> EffectsFull {
        match self.max_bytes - self.publish_bytes - self.fields.bytes() > self.taken.free() {
            true => EffectsFull::Memory,
            false => self.too_many_bytes(),
        }
    }

    /// The uncommitted changes of a field.
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
        // This time is only for reads before the commit: the writer sets the time of the committed operation.
        let now = Hlc { wall_ms: now_ms, logical: 0 };
        let limits = self.field_limits();
        let done = self.fields.operate(objects, key, operation, now, limits);
        self.taken.resize(self.publish_bytes + self.fields.bytes());
        done
    }

    /// Deletes a field.
    ///
    /// # Errors
    /// There is no room.
    pub fn delete_field(&mut self, key: FieldKey) -> Result<(), PendingError> {
        let done = self.fields.delete(key, self.field_limits());
        self.taken.resize(self.publish_bytes + self.fields.bytes());
        done
    }

    /// Deletes all fields of an object, as the invocation sees it.
    ///
    /// # Errors
    /// The object cannot be read, or there is no room.
    pub fn delete_object(
        &mut self,
        objects: &Objects,
        app: &str,
        object: &str,
    ) -> Result<(), PendingError> {
        let done = self.fields.delete_object(objects, app, object, self.field_limits());
        self.taken.resize(self.publish_bytes + self.fields.bytes());
        done
    }

    fn field_limits(&self) -> PendingLimits {
        let max_bytes = (self.max_bytes - self.publish_bytes).min(self.fields.bytes() + self.taken.free());
        PendingLimits { max_fields: MAX_FIELDS, max_bytes }
    }

    /// The batch to commit, the messages to publish after it, and the bytes that both take from the budget until then.
    pub fn into_parts(self) -> (Batch, Vec<Message>, Taken) {
        let mut batch = Batch::default();
        batch.caused_at(self.depth);
        for (key, change) in self.fields.into_changes() {
            match change {
                PendingChange::Delete => batch.delete_field(key),
                PendingChange::Operate(operation) => batch.operate(key, operation),
            }
        }
        (batch, self.publishes, self.taken)
    }
}
