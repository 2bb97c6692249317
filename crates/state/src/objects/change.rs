//! Changes of fields, as batches carry them to the writer.

use edgefaas_crdt::{FieldType, Operation, StateDelta};

/// Approximate size on the disk of a new field beside its value.
pub(crate) const FIELD_BYTES: u64 = 64;

/// A change of a field.
#[derive(Debug, Clone)]
pub(crate) enum FieldChange {
    /// An operation of this node.
    Operate(Operation),
    /// A delta from a peer, with the depth of the call chain that made it.
    Merge { delta: StateDelta, depth: u8 },
    /// A delta from an archive, which peers may lack.
    Import(StateDelta),
    /// A deletion by this node.
    Delete,
    /// A deletion by this node, if the time to live of the object is over.
    Expire,
    /// The time to live of the object begins.
    Touch,
    /// The object has expired, or does not expire any more: its last change need not be known.
    Forget,
    /// Drops the tombstone of a deletion that was made up to this time.
    Drop { up_to_ms: u64 },
}

/// A change of this node that its peers lack.
#[derive(Debug, Clone)]
pub struct PeerDelta {
    /// The change.
    pub delta: StateDelta,
    /// Greatest depth of the call chains that made it.
    pub depth: u8,
}

impl PeerDelta {
    pub(super) fn merge(&mut self, later: Self) {
        self.delta.merge(later.delta);
        self.depth = self.depth.max(later.depth);
    }
}

impl FieldChange {
    /// Approximate bytes that the change adds to the disk.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Operate(operation) => FIELD_BYTES + operation.size_bytes() as u64,
            Self::Merge { delta, .. } | Self::Import(delta) => FIELD_BYTES + delta.size_bytes() as u64,
            // Removals release more than they write.
            Self::Delete | Self::Expire | Self::Forget | Self::Drop { .. } => 0,
            Self::Touch => FIELD_BYTES,
        }
    }

    /// The type of field that the change makes; `None` if it makes none.
    pub fn field_type(&self) -> Option<FieldType> {
        match self {
            Self::Operate(operation) => Some(operation.field_type()),
            Self::Merge { delta, .. } | Self::Import(delta) => Some(delta.field_type()),
            Self::Delete | Self::Expire | Self::Touch | Self::Forget | Self::Drop { .. } => None,
        }
    }
}
