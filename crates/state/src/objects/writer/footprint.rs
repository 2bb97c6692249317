//! Effect of changes of fields on the disk, estimated before they are applied.
//!
//! A small field is written as a whole at each change, and a large one whenever its change records are as large as its base
//! record. So a change of a few bytes may write a record of kilobytes, and the disk has to have room for that.

use std::collections::HashSet;

use edgefaas_crdt::Operation;

use super::{FieldWriter, LARGE_FIELD_BYTES};
use crate::objects::FieldKey;
use crate::objects::change::FieldChange;

/// Upper estimate of the bytes that changes of fields write and replace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Rewritten records, without [`FieldChange::size_bytes`] of the changes themselves.
    pub rewritten_bytes: u64,
    /// Replaced records.
    pub replaced_bytes: u64,
}

impl FieldWriter {
    /// The footprint of the changes of one batch, beside earlier changes of the group and unwritten fields. A field
    /// that cannot be read counts 0: applying the change reports the error.
    pub fn footprint(&self, changes: &[(FieldKey, FieldChange)]) -> Footprint {
        let mut all = Footprint::default();
        let mut seen = HashSet::new();
        for (key, change) in changes {
            if changes.len() > 1 && !seen.insert(key) {
                continue;
            }
            // The record is counted with an earlier change of the group, or as an unwritten field.
            let is_counted = self.working.get(key).is_some_and(|working| working.is_changed())
                || self.unwritten.get(key).is_some();
            if is_counted {
                continue;
            }
            let Ok(Some(slot)) = self.objects.slot(key) else { continue };
            let stored = slot.0.read();
            let record_bytes = stored.base_bytes + stored.changes_bytes;
            let appends = stored.changes_follow
                && stored.field.size_bytes() >= LARGE_FIELD_BYTES
                && stored.changes_bytes + change.size_bytes() <= stored.base_bytes
                && (stored.is_folded || !self.objects.is_folded(key));
            drop(stored);
            match remainder(change) {
                Remainder::Nothing => all.replaced_bytes += record_bytes,
                Remainder::Value(bytes) => {
                    all.rewritten_bytes += bytes.min(record_bytes);
                    all.replaced_bytes += record_bytes;
                }
                Remainder::Everything if appends => {}
                Remainder::Everything => {
                    all.rewritten_bytes += record_bytes;
                    all.replaced_bytes += record_bytes;
                }
            }
        }
        all
    }
}

/// The part of a field's record that is still in the record after a change.
enum Remainder {
    Nothing,
    /// A value of this many bytes.
    Value(u64),
    Everything,
}

fn remainder(change: &FieldChange) -> Remainder {
    match change {
        FieldChange::Operate(Operation::SetClear | Operation::MapClear)
        | FieldChange::Delete
        | FieldChange::Expire
        | FieldChange::Touch
        | FieldChange::Forget
        | FieldChange::Drop { .. } => Remainder::Nothing,
        FieldChange::Operate(Operation::RegisterSet(value)) => Remainder::Value(value.len() as u64),
        _ => Remainder::Everything,
    }
}
