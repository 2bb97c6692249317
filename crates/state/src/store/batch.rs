//! Changes that happen together, what they take, and how their commit ends.

use std::sync::Arc;

use edgefaas_crdt::{FieldDelta, Operation};
use edgefaas_platform::Taken;
use fjall::{Keyspace, OwnedWriteBatch, UserValue};

use crate::objects::{FieldChange, FieldKey};

/// What an entry costs beside its key and value: in the journal, in memory and in a table.
pub(super) const ENTRY_BYTES: u64 = 40;

/// How far a batch has got when its commit is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the operating system: survives `kill -9`, and a power cut after the next sync.
    Written,
    /// On the disk: survives a power cut.
    Synced,
}

/// Changes that happen together or not at all.
#[derive(Clone, Default)]
pub struct Batch {
    pub(super) writes: Vec<Write>,
    pub(super) fields: Vec<(FieldKey, FieldChange)>,
    pub(super) depth: u8,
    /// Shares of memory budgets that its bytes take until it is written.
    pub(super) charges: Vec<Arc<Taken>>,
}

#[derive(Clone)]
pub(super) enum Write {
    /// A value that many entries share is in memory once, in the engine too.
    Put(Keyspace, Vec<u8>, UserValue),
    Delete(Keyspace, Vec<u8>),
}

impl Write {
    pub(super) fn key(&self) -> &[u8] {
        let (Self::Put(_, key, _) | Self::Delete(_, key)) = self;
        key
    }

    /// What it takes, with what the engine adds to it.
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

    /// Takes in what a peer has of a field.
    pub fn merge(&mut self, key: FieldKey, delta: FieldDelta) {
        self.fields.push((key, FieldChange::Merge(delta)));
    }

    /// Takes in what an archive has of a field; peers are told of it.
    pub fn import(&mut self, key: FieldKey, delta: FieldDelta) {
        self.fields.push((key, FieldChange::Import(delta)));
    }

    /// How many functions have called or triggered one another before the one that changes objects.
    pub fn caused_at(&mut self, depth: u8) {
        self.depth = depth;
    }

    /// Holds a share of a memory budget until the batch is written or refused, also if nobody waits for that any more.
    pub fn charge(&mut self, share: Taken) {
        if share.bytes() > 0 {
            self.charges.push(Arc::new(share));
        }
    }

    /// Adds all of another one.
    pub fn append(&mut self, mut other: Self) {
        self.charges.append(&mut other.charges);
        self.writes.append(&mut other.writes);
        self.fields.append(&mut other.fields);
        self.depth = self.depth.max(other.depth);
    }

    /// Nothing to write.
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
