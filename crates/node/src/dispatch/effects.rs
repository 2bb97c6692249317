//! What an invocation has done so far and nobody sees until it commits.

use std::collections::HashMap;

use bytes::Bytes;
use edgefaas_broker::Message;
use edgefaas_crdt::Operation;

use crate::objects::FieldKey;
use crate::store::Batch;

/// The most messages that one invocation may publish.
pub const MAX_PUBLISHES: usize = 10_000;
/// The most fields that one invocation may write.
pub const MAX_FIELDS: usize = 10_000;
/// The most bytes that one invocation may publish and write.
pub const MAX_BYTES: usize = 16 << 20;

/// What a pending write costs beside its names and value.
const ENTRY_BYTES: usize = 128;

/// Held-back messages and pending writes.
#[derive(Default)]
pub struct Effects {
    publishes: Vec<Message>,
    fields: HashMap<FieldKey, Pending>,
    bytes: usize,
}

/// A pending write of a field: additions add up, of several values the last one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// Added to a counter.
    Added(i64),
    /// Set in a register.
    Set(Bytes),
}

/// There is no room for more.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EffectsFull {
    /// Too many messages.
    #[error("one invocation may publish at most {MAX_PUBLISHES} messages")]
    Publishes,
    /// Too many fields.
    #[error("one invocation may write at most {MAX_FIELDS} fields")]
    Fields,
    /// Too many bytes.
    #[error("one invocation may publish and write at most {MAX_BYTES} bytes")]
    Bytes,
}

impl Effects {
    /// Holds a message back.
    pub fn publish(&mut self, message: Message) -> Result<(), EffectsFull> {
        if self.publishes.len() >= MAX_PUBLISHES {
            return Err(EffectsFull::Publishes);
        }
        self.take(message.weight())?;
        self.publishes.push(message);
        Ok(())
    }

    /// The pending write of a field.
    pub fn pending(&self, key: &FieldKey) -> Option<&Pending> {
        self.fields.get(key)
    }

    /// Replaces the pending write of a field.
    pub fn write(&mut self, key: FieldKey, pending: Pending) -> Result<(), EffectsFull> {
        let key_bytes = key.app.len() + key.object.len() + key.field.len() + ENTRY_BYTES;
        let size = |pending: &Pending| match pending {
            Pending::Added(_) => key_bytes,
            Pending::Set(value) => key_bytes + value.len(),
        };
        let before = self.fields.get(&key).map_or(0, size);
        if before == 0 && self.fields.len() >= MAX_FIELDS {
            return Err(EffectsFull::Fields);
        }
        self.bytes -= before;
        if let Err(full) = self.take(size(&pending)) {
            self.bytes += before;
            return Err(full);
        }
        self.fields.insert(key, pending);
        Ok(())
    }

    /// The batch to commit and the messages to send after it.
    pub fn into_parts(self) -> (Batch, Vec<Message>) {
        let mut batch = Batch::default();
        for (key, pending) in self.fields {
            let operation = match pending {
                Pending::Added(0) => continue,
                Pending::Added(amount) => Operation::CounterAdd(amount),
                Pending::Set(value) => Operation::RegisterSet(value),
            };
            batch.operate(key, operation);
        }
        (batch, self.publishes)
    }

    fn take(&mut self, bytes: usize) -> Result<(), EffectsFull> {
        if self.bytes + bytes > MAX_BYTES {
            return Err(EffectsFull::Bytes);
        }
        self.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(field: &str) -> FieldKey {
        FieldKey { app: "a".into(), object: "o".into(), field: field.into() }
    }

    #[test]
    fn a_rewritten_field_is_counted_once() {
        let mut effects = Effects::default();
        for _ in 0..100 {
            let value = Pending::Set(Bytes::from(vec![0; MAX_BYTES / 2]));
            effects.write(key("f"), value).unwrap();
        }
        let more = Pending::Set(Bytes::from(vec![0; MAX_BYTES / 2]));
        assert_eq!(effects.write(key("g"), more), Err(EffectsFull::Bytes));
        assert!(effects.pending(&key("f")).is_some());
        assert!(effects.pending(&key("g")).is_none());
    }

    #[test]
    fn adding_nothing_writes_nothing() {
        let mut effects = Effects::default();
        effects.write(key("f"), Pending::Added(0)).unwrap();
        assert!(effects.into_parts().0.is_empty());
    }
}
