//! Fields of durability `memory` that are newer than the disk.

use std::collections::HashMap;

use super::working::Working;
use crate::objects::FieldKey;
use crate::objects::change::FIELD_BYTES;

/// Fields beyond which all are written immediately, and bytes.
const MAX_FIELDS: usize = 20_000;
const MAX_BYTES: u64 = 4 << 20;

/// A field that is newer than the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unwritten {
    /// What it counts for its quota beyond what is on the disk.
    pub counted_bytes: u64,
    /// What its record will take, about.
    record_bytes: u64,
}

/// All of them, with the bytes that writing them takes.
#[derive(Debug, Default)]
pub(super) struct UnwrittenFields {
    fields: HashMap<FieldKey, Unwritten>,
    bytes: u64,
}

impl UnwrittenFields {
    /// Adds a field that was changed and is not written, in the place of what was known of it.
    pub fn add(&mut self, key: FieldKey, working: &Working) {
        self.remove(&key);
        let value_bytes = working.slot.0.read().field.size_bytes() as u64;
        let record_bytes = FIELD_BYTES + key.as_bytes().len() as u64 + value_bytes;
        self.bytes += record_bytes;
        self.fields.insert(key, Unwritten { counted_bytes: working.size.counted_bytes, record_bytes });
    }

    /// A field has been written, if it was one of them.
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

    /// Whether they are as many as may wait.
    pub fn is_full(&self) -> bool {
        self.fields.len() > MAX_FIELDS || self.bytes > MAX_BYTES
    }

    /// Bytes that writing all of them takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
