//! Limits of an object: its quota of bytes, its fields, and its tombstones.

use std::collections::HashMap;
use std::sync::Arc;

use edgefaas_crdt::{Field, FieldState, Operation};

use super::working::Working;
use super::{FieldWriter, failed};
use crate::error::{CommitError, FieldRefused, StoreError};
use crate::objects::change::FieldChange;
use crate::objects::key::FieldKey;
use crate::objects::{MAX_FIELDS_PER_OBJECT, MAX_RECORDS_PER_OBJECT, record};

/// Maximum number of objects whose sizes are cached; the size of any other object is computed again.
const MAX_SIZES: usize = 65_536;

/// What an object has on the disk, with the changes that are not written yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ObjectSize {
    pub(super) bytes: u64,
    fields: usize,
    tombstones: usize,
}

impl ObjectSize {
    pub(super) fn count(&mut self, (fields, tombstones): (i64, i64)) {
        self.fields = self.fields.saturating_add_signed(fields as isize);
        self.tombstones = self.tombstones.saturating_add_signed(tombstones as isize);
    }
}

/// What there is of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Nothing,
    Live,
    Tombstone,
}

impl FieldWriter {
    /// Refuses an operation that an object has no room for.
    pub(super) fn check_quota(
        &mut self,
        key: &FieldKey,
        operation: &Operation,
        quota_bytes: u64,
    ) -> Result<(), CommitError> {
        if self.sizes.len() > MAX_SIZES {
            self.sizes.clear();
        }
        let size = match self.sizes.get(key.object_prefix()) {
            Some(size) => *size,
            None => {
                let mut size = ObjectSize::default();
                for entry in self.objects.space().prefix(key.object_prefix()) {
                    let (key, value) = entry.into_inner().map_err(|error| failed(error.into()))?;
                    size.bytes += (key.len() + value.len()) as u64;
                    if record::split_change_key(&key).is_none() {
                        let is_tombstone = record::is_tombstone(&value);
                        size.fields += usize::from(!is_tombstone);
                        size.tombstones += usize::from(is_tombstone);
                    }
                }
                // Unwritten fields count as well.
                let prefix = key.object_prefix();
                let unwritten = self.unwritten.iter().filter(|(key, _)| key.object_prefix() == prefix);
                let of_group = self.working.iter().filter(|(key, _)| key.object_prefix() == prefix);
                for (key, unwritten) in unwritten {
                    size.bytes += if self.working.contains_key(key) { 0 } else { unwritten.counted_bytes };
                }
                for (_, working) in of_group {
                    size.bytes += working.size.counted_bytes;
                    size.count(working.counts());
                }
                self.sizes.insert(prefix.into(), size);
                size
            }
        };
        let new_bytes = operation.size_bytes() as u64;
        if self.grows(key, operation) && size.bytes + new_bytes > quota_bytes {
            let (object, bytes) = (key.object().to_owned(), size.bytes);
            return Err(
                FieldRefused::OverQuota { object, bytes, more_bytes: new_bytes, quota_bytes }.into()
            );
        }
        let has_most_fields = size.fields >= MAX_FIELDS_PER_OBJECT;
        let has_most_records = size.fields + size.tombstones >= MAX_RECORDS_PER_OBJECT;
        if !has_most_fields && !has_most_records {
            return Ok(());
        }
        let object = || key.object().to_owned();
        match self.presence(key).map_err(failed)? {
            Presence::Live => Ok(()),
            Presence::Nothing if has_most_records && !has_most_fields => {
                let (fields, deleted) = (size.fields, size.tombstones);
                Err(FieldRefused::TooManyDeletions { object: object(), fields, deleted }.into())
            }
            // The field takes the place of its tombstone.
            Presence::Tombstone if !has_most_fields => Ok(()),
            _ => Err(FieldRefused::TooManyFields { object: object() }.into()),
        }
    }

    /// What there is of a field, with the earlier changes of its group.
    fn presence(&self, key: &FieldKey) -> Result<Presence, StoreError> {
        let of = |field: &FieldState| match field.live() {
            Some(_) => Presence::Live,
            None if field.is_deleted() => Presence::Tombstone,
            None => Presence::Nothing,
        };
        if let Some(working) = self.working.get(key) {
            return Ok(working.read(of));
        }
        let slot = self.objects.slot(key)?;
        Ok(slot.map_or(Presence::Nothing, |slot| of(&slot.0.read().field)))
    }

    /// True if a change may make its field larger.
    pub fn grow(&self, changes: &[(FieldKey, FieldChange)]) -> bool {
        changes.iter().any(|(key, change)| match change {
            FieldChange::Operate(operation) => self.grows(key, operation),
            FieldChange::Merge { .. } | FieldChange::Import(_) => true,
            FieldChange::Delete
            | FieldChange::Expire
            | FieldChange::Touch
            | FieldChange::Forget
            | FieldChange::Drop { .. } => false,
        })
    }

    /// True if an operation may make its field larger. Operations that do not are accepted even over the quota.
    fn grows(&self, key: &FieldKey, operation: &Operation) -> bool {
        let Operation::RegisterSet(value) = operation else { return grows(operation) };
        let length = |field: Option<&Field>| {
            let register = field.and_then(|field| field.register(key.field()).ok());
            register.and_then(|register| register.get()).map_or(0, |value| value.len())
        };
        value.len() > self.objects.read(key, length).unwrap_or(0)
    }
}

/// True if the operation may make its field larger. Removals are accepted even over the quota.
fn grows(operation: &Operation) -> bool {
    match operation {
        Operation::MapUpdate(_, inner) => grows(inner),
        Operation::TextSplice { insert, .. } => !insert.is_empty(),
        Operation::SetRemove(_)
        | Operation::SetClear
        | Operation::MapRemove(_)
        | Operation::MapClear
        | Operation::ListRemove(_)
        | Operation::JsonRemove { .. } => false,
        _ => true,
    }
}

/// Restores the counted size of a field that is rolled back.
pub(super) fn uncount(sizes: &mut HashMap<Arc<str>, ObjectSize>, key: &FieldKey, working: &Working) {
    if let Some(size) = sizes.get_mut(key.object_prefix()) {
        let (fields, tombstones) = working.counts();
        size.count((-fields, -tombstones));
        size.bytes = size.bytes.saturating_sub(working.size.counted_bytes) + working.size.carried_bytes;
    }
}
