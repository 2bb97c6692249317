//! Uncommitted writes and deletions of an invocation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use edgefaas_crdt::{ApplyError, CounterOverflow, Field, FieldType, Hlc, Operation, WrongType};

use super::Objects;
use super::key::{FieldKey, object_prefix};
use crate::error::StoreError;

/// Memory of a pending change beside its names and value, in bytes.
const ENTRY_BYTES: usize = 128;

/// Pending changes of one invocation, by field.
#[derive(Default)]
pub struct PendingFields {
    fields: HashMap<FieldKey, Pending>,
    bytes: usize,
}

/// Pending changes of a field. A deletion replaces earlier changes of the same invocation.
#[derive(Debug, Clone)]
pub struct Pending {
    start: Start,
    write: Option<Write>,
    /// Memory of the write, in bytes.
    bytes: usize,
}

/// The field that the pending write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The stored field.
    Stored,
    /// None: the invocation has deleted the stored field.
    Deleted,
}

/// A pending write of a field. Increments are added up, and the last value of a register replaces earlier ones. All
/// other operations are kept in order, with the field as the invocation sees it.
#[derive(Debug, Clone)]
pub enum Write {
    /// Sum of increments of a counter.
    Added(i64),
    /// Last value set in a register.
    Set(Bytes),
    /// Other operations, and the field as this invocation sees it.
    Changed {
        /// The field with the operations applied.
        field: Box<Field>,
        /// Operations in order.
        operations: Vec<Operation>,
    },
}

/// A change of a field, as a batch takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PendingChange {
    /// The field is deleted.
    Delete,
    /// An operation on the field.
    Operate(Operation),
}

/// Limits of the pending changes of one invocation.
#[derive(Debug, Clone, Copy)]
pub struct PendingLimits {
    /// Maximum number of fields that the invocation writes or deletes.
    pub max_fields: usize,
    /// Maximum memory of its changes, in bytes.
    pub max_bytes: usize,
}

/// A change was refused; earlier pending changes are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum PendingError {
    /// The operation does not fit its field.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The field could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The memory limit is reached.
    #[error("there is no room for it")]
    NoRoom,
    /// The invocation changes the maximum number of fields.
    #[error("there are too many fields")]
    TooMany,
}

impl Pending {
    /// The pending write; `None` if the field is deleted, and nothing written to it since.
    pub fn write(&self) -> Option<&Write> {
        self.write.as_ref()
    }

    /// The field that the write changes.
    pub fn start(&self) -> Start {
        self.start
    }
}

impl Write {
    /// The type of the field.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Added(_) => FieldType::Counter,
            Self::Set(_) => FieldType::Register,
            Self::Changed { field, .. } => field.field_type(),
        }
    }

    /// The first operation on `field`, which is `None` if it does not exist.
    fn first(
        objects: &Objects,
        key: &FieldKey,
        operation: Operation,
        field: impl FnOnce() -> Result<Option<Field>, StoreError>,
        now: Hlc,
    ) -> Result<Self, PendingError> {
        Ok(match operation {
            Operation::CounterAdd(amount) => Self::Added(amount),
            Operation::RegisterSet(value) => Self::Set(value),
            operation => {
                let mut field = Box::new(field()?.unwrap_or_else(|| Field::empty(operation.field_type())));
                field.apply_local(key.field(), operation.clone(), objects.replica(), now)?;
                Self::Changed { field, operations: vec![operation] }
            }
        })
    }

    fn into_operations(self) -> Vec<Operation> {
        match self {
            Self::Added(0) => Vec::new(),
            Self::Added(amount) => vec![Operation::CounterAdd(amount)],
            Self::Set(value) => vec![Operation::RegisterSet(value)],
            Self::Changed { operations, .. } => operations,
        }
    }
}

impl PendingFields {
    /// The pending changes of a field.
    pub fn get(&self, key: &FieldKey) -> Option<&Pending> {
        self.fields.get(key)
    }

    /// Memory of all pending changes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation on a field at time `now`.
    ///
    /// # Errors
    /// The operation does not fit the field as the invocation sees it, the field cannot be read, or a limit is reached.
    pub fn operate(
        &mut self,
        objects: &Objects,
        key: FieldKey,
        operation: Operation,
        now: Hlc,
        limits: PendingLimits,
    ) -> Result<(), PendingError> {
        let wanted = operation.field_type();
        let wrong = |actual| ApplyError::from(WrongType { field: key.field().to_owned(), actual, wanted });
        let count = self.fields.len();
        let bytes = operation.size_bytes();
        let total_bytes = self.bytes;
        let room = |more_bytes: usize, less_bytes: usize| match total_bytes + more_bytes - less_bytes {
            total if total > limits.max_bytes => Err(PendingError::NoRoom),
            total => Ok(total),
        };
        match self.fields.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let pending = entry.get_mut();
                let Some(write) = &mut pending.write else {
                    let total = room(bytes, 0)?;
                    reserved_for(objects, &key, wanted)?;
                    pending.write = Some(Write::first(objects, &key, operation, || Ok(None), now)?);
                    (pending.bytes, self.bytes) = (bytes, total);
                    return Ok(());
                };
                if write.field_type() != wanted {
                    return Err(wrong(write.field_type()).into());
                }
                match (write, operation) {
                    (Write::Added(sum), Operation::CounterAdd(amount)) => {
                        let overflow = CounterOverflow { value: *sum, amount };
                        let field = key.field().to_owned();
                        *sum = sum
                            .checked_add(amount)
                            .ok_or(ApplyError::CounterOverflow { field, overflow })?;
                    }
                    (Write::Set(value), Operation::RegisterSet(new)) => {
                        self.bytes = room(new.len(), value.len())?;
                        pending.bytes = new.len();
                        *value = new;
                    }
                    (Write::Changed { field, operations }, operation) => {
                        let total = room(bytes + ENTRY_BYTES, 0)?;
                        field.apply_local(key.field(), operation.clone(), objects.replica(), now)?;
                        operations.push(operation);
                        pending.bytes += bytes + ENTRY_BYTES;
                        self.bytes = total;
                    }
                    (write, _) => return Err(wrong(write.field_type()).into()),
                }
            }
            Entry::Vacant(entry) => {
                if count >= limits.max_fields {
                    return Err(PendingError::TooMany);
                }
                let total = room(bytes + entry_bytes(&key), 0)?;
                let stored_type = objects.read(&key, |field| field.map(Field::field_type))?;
                if let Some(actual) = stored_type.filter(|actual| *actual != wanted) {
                    return Err(wrong(actual).into());
                }
                if stored_type.is_none() {
                    reserved_for(objects, &key, wanted)?;
                }
                let stored = || objects.read(&key, |field| field.cloned());
                let write = Write::first(objects, &key, operation, stored, now)?;
                entry.insert(Pending { start: Start::Stored, write: Some(write), bytes });
                self.bytes = total;
            }
        }
        Ok(())
    }

    /// Deletes a field. A field that does not exist is no error.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn delete(&mut self, key: FieldKey, limits: PendingLimits) -> Result<(), PendingError> {
        self.delete_all(std::iter::once(key), limits)
    }

    /// Deletes all fields of an object: those in the store, and those that the invocation has written.
    ///
    /// # Errors
    /// The object cannot be read, or a limit is reached.
    pub fn delete_object(
        &mut self,
        objects: &Objects,
        app: &str,
        object: &str,
        limits: PendingLimits,
    ) -> Result<(), PendingError> {
        let mut keys = objects.fields(app, object, None, limits.max_fields.saturating_add(1))?;
        let prefix = object_prefix(app, object);
        keys.extend(self.fields.keys().filter(|key| key.object_prefix() == prefix).cloned());
        self.delete_all(keys, limits)
    }

    fn delete_all(
        &mut self,
        keys: impl IntoIterator<Item = FieldKey>,
        limits: PendingLimits,
    ) -> Result<(), PendingError> {
        let (known, new): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| self.fields.contains_key(key));
        if self.fields.len() + new.len() > limits.max_fields {
            return Err(PendingError::TooMany);
        }
        let new_bytes: usize = new.iter().map(entry_bytes).sum();
        if new_bytes > 0 && self.bytes + new_bytes > limits.max_bytes {
            return Err(PendingError::NoRoom);
        }
        self.bytes += new_bytes;
        for key in known.into_iter().chain(new) {
            let deleted = Pending { start: Start::Deleted, write: None, bytes: 0 };
            if let Some(before) = self.fields.insert(key, deleted) {
                self.bytes -= before.bytes;
            }
        }
        Ok(())
    }

    /// All changes; changes of the same field are in order.
    pub fn into_changes(self) -> impl Iterator<Item = (FieldKey, PendingChange)> {
        self.fields.into_iter().flat_map(|(key, pending)| {
            let deletion = (pending.start == Start::Deleted).then_some(PendingChange::Delete);
            let operations = pending.write.map(Write::into_operations).unwrap_or_default();
            let changes = deletion.into_iter().chain(operations.into_iter().map(PendingChange::Operate));
            changes.map(move |change| (key.clone(), change))
        })
    }
}

/// Memory of the entry of a field beside its write, in bytes.
fn entry_bytes(key: &FieldKey) -> usize {
    key.as_bytes().len() + ENTRY_BYTES
}

/// Checks that a field that does not exist, or is deleted in the same invocation, may have the type `wanted`: its tombstone, if
/// there is one or will be, reserves its type.
fn reserved_for(objects: &Objects, key: &FieldKey, wanted: FieldType) -> Result<(), PendingError> {
    match objects.type_after_deletion(key)? {
        Some(was) if was != wanted => {
            Err(ApplyError::DeletedAs { field: key.field().to_owned(), was, wanted }.into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
