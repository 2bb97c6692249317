//! Uncommitted writes of an invocation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytes::Bytes;
use edgefaas_crdt::{ApplyError, CounterOverflow, Field, FieldType, Hlc, Operation, WrongType};

use super::Objects;
use super::key::FieldKey;
use crate::error::StoreError;

/// Memory of a pending write beside its names and value, in bytes.
const ENTRY_BYTES: usize = 128;

/// Pending writes of one invocation, by field.
#[derive(Default)]
pub struct PendingFields {
    fields: HashMap<FieldKey, Pending>,
    bytes: usize,
}

/// A pending write of a field. Increments are added up, and the last value of a register replaces earlier ones. All
/// other operations are kept in order, with the field as the invocation sees it.
#[derive(Debug, Clone)]
pub enum Pending {
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

/// A write was refused; earlier pending writes are unchanged.
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
    /// The invocation writes the maximum number of fields.
    #[error("there are too many fields")]
    TooMany,
}

impl Pending {
    /// The type of the field.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Added(_) => FieldType::Counter,
            Self::Set(_) => FieldType::Register,
            Self::Changed { field, .. } => field.field_type(),
        }
    }
}

impl PendingFields {
    /// The pending write of a field.
    pub fn get(&self, key: &FieldKey) -> Option<&Pending> {
        self.fields.get(key)
    }

    /// Memory of all pending writes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation on a field at time `now`. The invocation writes at most `max_fields` fields and `max_bytes`
    /// bytes.
    pub fn operate(
        &mut self,
        objects: &Objects,
        key: FieldKey,
        operation: Operation,
        now: Hlc,
        (max_fields, max_bytes): (usize, usize),
    ) -> Result<(), PendingError> {
        let wanted = operation.field_type();
        let wrong = |actual| WrongType { field: key.field().to_owned(), actual, wanted };
        let count = self.fields.len();
        let bytes = operation.size_bytes();
        let room = |new_bytes: usize, less_bytes: usize| match self.bytes + new_bytes - less_bytes {
            total if total > max_bytes => Err(PendingError::NoRoom),
            total => Ok(total),
        };
        match self.fields.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let pending = entry.get_mut();
                if pending.field_type() != wanted {
                    return Err(ApplyError::from(wrong(pending.field_type())).into());
                }
                match (pending, operation) {
                    (Pending::Added(sum), Operation::CounterAdd(amount)) => {
                        let overflow = CounterOverflow { value: *sum, amount };
                        let field = key.field().to_owned();
                        *sum = sum
                            .checked_add(amount)
                            .ok_or(ApplyError::CounterOverflow { field, overflow })?;
                    }
                    (Pending::Set(value), Operation::RegisterSet(new)) => {
                        self.bytes = room(new.len(), value.len())?;
                        *value = new;
                    }
                    (Pending::Changed { field, operations }, operation) => {
                        let total = room(bytes + ENTRY_BYTES, 0)?;
                        field.apply_local(key.field(), operation.clone(), objects.replica(), now)?;
                        operations.push(operation);
                        self.bytes = total;
                    }
                    (pending, _) => return Err(ApplyError::from(wrong(pending.field_type())).into()),
                }
            }
            Entry::Vacant(entry) => {
                if count >= max_fields {
                    return Err(PendingError::TooMany);
                }
                let total = room(bytes + key.as_bytes().len() + ENTRY_BYTES, 0)?;
                let stored_type = objects.read(&key, |field| field.map(Field::field_type))?;
                if let Some(actual) = stored_type.filter(|actual| *actual != wanted) {
                    return Err(ApplyError::from(wrong(actual)).into());
                }
                entry.insert(match operation {
                    Operation::CounterAdd(amount) => Pending::Added(amount),
                    Operation::RegisterSet(value) => Pending::Set(value),
                    operation => {
                        let stored = objects.read(&key, |field| field.cloned())?;
                        let mut field = Box::new(stored.unwrap_or_else(|| Field::empty(wanted)));
                        field.apply_local(key.field(), operation.clone(), objects.replica(), now)?;
                        Pending::Changed { field, operations: vec![operation] }
                    }
                });
                self.bytes = total;
            }
        }
        Ok(())
    }

    /// All operations; operations on the same field are in order.
    pub fn into_operations(self) -> impl Iterator<Item = (FieldKey, Operation)> {
        self.fields.into_iter().flat_map(|(key, pending)| {
            let operations = match pending {
                Pending::Added(0) => Vec::new(),
                Pending::Added(amount) => vec![Operation::CounterAdd(amount)],
                Pending::Set(value) => vec![Operation::RegisterSet(value)],
                Pending::Changed { operations, .. } => operations,
            };
            operations.into_iter().map(move |operation| (key.clone(), operation))
        })
    }
}
