//! Changes of fields, as batches carry them to the writer.

use edgefaas_crdt::{FieldDelta, Operation};

/// What a new field costs on the disk beside its value, about.
pub(crate) const FIELD_BYTES: u64 = 64;

/// What is to happen to a field.
#[derive(Debug, Clone)]
pub(crate) enum FieldChange {
    /// Something that was asked for here.
    Operate(Operation),
    /// What a peer has.
    Merge(FieldDelta),
    /// What an archive has, which peers may not have.
    Import(FieldDelta),
}

impl FieldChange {
    /// What it adds to the disk, about.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Operate(operation) => FIELD_BYTES + operation.size_bytes() as u64,
            Self::Merge(delta) | Self::Import(delta) => FIELD_BYTES + delta.size_bytes() as u64,
        }
    }
}
