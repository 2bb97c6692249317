//! A batch: changes that commit together, their sizes, and the durability of a commit.

use std::sync::Arc;

use edgefaas_crdt::{FieldDelta, Operation, StateDelta};
use edgefaas_platform::Taken;
use fjall::{Keyspace, OwnedWriteBatch, UserValue};

use crate::objects::{FieldChange, FieldKey};

/// Overhead of an entry beside its key and value, in bytes: in the engine's journal, in memory and in a table.
pub(super) const ENTRY_BYTES: u64 = 40;

/// Durability of a batch when its commit is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Handed to the operating system: survives `kill -9`, and a power cut after the next sync.
    Written,
    /// The batch is on the disk: it survives a power cut.
    Synced,
}

/// Changes that commit together or not at all.
#[derive(Clone, Default)]
pub struct Batch {
    pub(super) writes: Vec<Write>,
    pub(super) fields: Vec<(FieldKey, FieldChange)>,
    pub(super) depth: u8,
    /// Charged memory of the batch, released once it is written.
    pub(super) charges: Vec<Arc<Taken>>,
}

#[derive(Clone)]
pub(super) enum Write {
    /// Entries that share a value share its memory, also inside the engine.
    Put(Keyspace, Vec<u8>, UserValue),
    Delete(Keyspace, Vec<u8>),
}

impl Write {
    pub(super) fn key(&self) -> &[u8] {
        let (Self::Put(_, key, _) | Self::Delete(_, key)) = self;
        key
    }

    /// Size with the engine's overhead.
    pub(super) fn size_bytes(&self) -> u64 {
        let value_bytes = match self {
            Self::Put(_, _, value) => value.len(),
            Self::Delete(..) => 0,
        };
        ENTRY_BYTES + (self.key().len() + value_bytes) as u64
    }

    pub(super) fn add_to(self, batch: &mut OwnedWriteBatch) {
        match self {
            Self::Put(space, key, value) => batch.insert(&space, key, value),
            Self::Delete(space, key) => batch.remove(&space, key),
        }
    }
}

impl Batch {
    /// Puts a value.
    pub fn put(&mut self, space: &Keyspace, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.writes.push(Write::Put(space.clone(), key.into(), UserValue::from(value.into())));
    }

    /// Deletes a value.
    pub fn delete(&mut self, space: &Keyspace, key: impl Into<Vec<u8>>) {
        self.writes.push(Write::Delete(space.clone(), key.into()));
    }

    /// Changes a field of an object.
    pub fn operate(&mut self, key: FieldKey, operation: Operation) {
        self.fields.push((key, FieldChange::Operate(operation)));
    }

    /// Merges a delta of a peer into a field. `depth` is the depth of the call chain on the peer.
    pub fn merge(&mut self, key: FieldKey, delta: impl Into<StateDelta>, depth: u8) {
        let delta = delta.into();
        self.fields.push((key, FieldChange::Merge { delta, depth }));
    }

    /// Merges a delta of an archive into a field; peers get it as well.
    pub fn import(&mut self, key: FieldKey, delta: FieldDelta) {
        self.fields.push((key, FieldChange::Import(delta.into())));
    }

    /// Deletes a field of an object. A field that does not exist is no error.
    pub fn delete_field(&mut self, key: FieldKey) {
        self.fields.push((key, FieldChange::Delete));
    }

    /// Deletes the fields of an object, if its time to live is over when the batch is applied.
    pub fn expire(&mut self, app: &str, object: &str, fields: Vec<FieldKey>) {
        self.fields.extend(fields.into_iter().map(|key| (key, FieldChange::Expire)));
        self.forget_last_change(app, object);
    }

    /// Forgets the last change of an object that has expired, or that does not expire any more.
    pub fn forget_last_change(&mut self, app: &str, object: &str) {
        // The field has no meaning: the change is one of the object.
        self.fields.push((FieldKey::new(app, object, "*"), FieldChange::Forget));
    }

    /// Begins the time to live of the object of a field, if its last change is not known.
    pub fn touch(&mut self, key: FieldKey) {
        self.fields.push((key, FieldChange::Touch));
    }

    /// Drops the tombstone of a field, if the field is deleted and the deletion was made up to this time, in milliseconds since
    /// the Unix epoch. Every member must have the tombstone.
    pub fn drop_tombstone(&mut self, key: FieldKey, up_to_ms: u64) {
        self.fields.push((key, FieldChange::Drop { up_to_ms }));
    }

    /// Sets the depth of the call chain whose operations change objects.
    pub fn caused_at(&mut self, depth: u8) {
        self.depth = depth;
    }

    /// Holds a share of a memory budget until the batch is written or refused, even after its caller stopped waiting.
    pub fn charge(&mut self, share: Taken) {
        if share.bytes() > 0 {
            self.charges.push(Arc::new(share));
        }
    }

    /// Appends all changes of another batch.
    pub fn append(&mut self, mut other: Self) {
        self.charges.append(&mut other.charges);
        self.writes.append(&mut other.writes);
        self.fields.append(&mut other.fields);
        self.depth = self.depth.max(other.depth);
    }

    /// True if the batch contains no change.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.fields.is_empty()
    }

    pub(super) fn longest_key_bytes(&self) -> usize {
        let keys = self.writes.iter().map(|write| write.key().len());
        let fields = self.fields.iter().map(|(key, _)| key.as_bytes().len());
        keys.chain(fields).max().unwrap_or(0)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        let writes = self.writes.iter().map(Write::size_bytes);
        let fields =
            self.fields.iter().map(|(key, change)| key.as_bytes().len() as u64 + change.size_bytes());
        writes.sum::<u64>() + fields.sum::<u64>()
    }
}
