//! Fields of durability `memory` that are newer than the disk.

use std::collections::HashMap;

use super::working::Working;
use crate::objects::FieldKey;
use crate::objects::change::FIELD_BYTES;

/// Maximum number of unwritten fields, and of their bytes; beyond either, all fields are written immediately.
const MAX_FIELDS: usize = 20_000;
const MAX_BYTES: u64 = 4 << 20;

/// A field that is newer than the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unwritten {
    /// Bytes that count for the quota beyond the record on the disk.
    pub counted_bytes: u64,
    /// Approximate size of the record to be written.
    record_bytes: u64,
}

/// All unwritten fields, with the bytes of their records.
#[derive(Debug, Default)]
pub(super) struct UnwrittenFields {
    fields: HashMap<FieldKey, Unwritten>,
    bytes: u64,
}

impl UnwrittenFields {
    /// Adds a changed field that is not written, or replaces its entry.
    pub fn add(&mut self, key: FieldKey, working: &Working) {
        self.remove(&key);
        let value_bytes = working.slot.0.read().field.size_bytes() as u64;
        let record_bytes = FIELD_BYTES + key.as_bytes().len() as u64 + value_bytes;
        self.bytes += record_bytes;
        self.fields.insert(key, Unwritten { counted_bytes: working.size.counted_bytes, record_bytes });
    }

    /// Removes a field that was written.
    pub fn remove(&mut self, key: &FieldKey) {
        if let Some(unwritten) = self.fields.remove(key) {
            self.bytes -= unwritten.record_bytes;
        }
    }

    pub fn get(&self, key: &FieldKey) -> Option<&Unwritten> {
        self.fields.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&FieldKey, &Unwritten)> {
        self.fields.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// True if the maximum is reached.
    pub fn is_full(&self) -> bool {
        self.fields.len() > MAX_FIELDS || self.bytes > MAX_BYTES
    }

    /// Bytes of all records to be written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
