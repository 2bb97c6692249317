//! Changes of fields, as batches carry them to the writer.

use edgefaas_crdt::{FieldDelta, Operation};

/// Approximate size on the disk of a new field beside its value.
pub(crate) const FIELD_BYTES: u64 = 64;

/// A change of a field.
#[derive(Debug, Clone)]
pub(crate) enum FieldChange {
    /// An operation of this node.
    Operate(Operation),
    /// A delta from a peer.
    Merge(FieldDelta),
    /// A delta from an archive, which peers may lack.
    Import(FieldDelta),
}

impl FieldChange {
    /// Approximate bytes that the change adds to the disk.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Operate(operation) => FIELD_BYTES + operation.size_bytes() as u64,
            Self::Merge(delta) | Self::Import(delta) => FIELD_BYTES + delta.size_bytes() as u64,
        }
    }
}
