//! Conversion of operations and values of objects between the types of guests and those of the replica.

use bytes::Bytes;
use edgefaas_crdt::{Field, FieldType, Operation, Value};
use edgefaas_isolates::{Change, FieldType as GuestType, FieldValue, HostError, Read};
use edgefaas_state::objects::{FieldKey, MAX_PATH, json_of_value, name_error};

/// Cache of checked and permitted field keys: a function that uses a field mostly uses it again.
#[derive(Default)]
pub struct UsedKeys {
    /// True for a field of the function's own object, which has an empty name in host calls.
    keys: Vec<(bool, FieldKey)>,
    next: usize,
}

impl UsedKeys {
    /// Maximum number of cached keys. When it is reached, a new key replaces the oldest.
    const MAX: usize = 8;

    pub fn get(&self, object: &str, field: &str) -> Option<&FieldKey> {
        let is_own = object.is_empty();
        let matches = |(own, key): &&(bool, FieldKey)| {
            *own == is_own && key.field() == field && (is_own || key.object() == object)
        };
        self.keys.iter().find(matches).map(|(_, key)| key)
    }

    pub fn add(&mut self, is_own: bool, key: FieldKey) {
        if self.keys.len() < Self::MAX {
            self.keys.push((is_own, key));
        } else {
            self.keys[self.next] = (is_own, key);
            self.next = (self.next + 1) % Self::MAX;
        }
    }
}

/// The operation for a change of a guest.
pub fn operation(change: Change<'_>) -> Operation {
    let bytes = Bytes::copy_from_slice;
    match change {
        Change::CounterAdd(amount) => Operation::CounterAdd(amount),
        Change::RegisterSet(value) => Operation::RegisterSet(bytes(value)),
        Change::GCounterAdd(amount) => Operation::GCounterAdd(amount),
        Change::BoundedCounterAdd(amount) => Operation::BoundedCounterAdd(amount),
        Change::MvRegisterSet(value) => Operation::MvRegisterSet(bytes(value)),
        Change::GSetAdd(value) => Operation::GSetAdd(bytes(value)),
        Change::SetAdd(value) => Operation::SetAdd(bytes(value)),
        Change::SetRemove(value) => Operation::SetRemove(bytes(value)),
        Change::SetClear => Operation::SetClear,
        Change::MapRemove(key) => Operation::MapRemove(key.to_owned()),
        Change::MapClear => Operation::MapClear,
        Change::EwFlagSet(flag) => Operation::EwFlagSet(flag),
        Change::DwFlagSet(flag) => Operation::DwFlagSet(flag),
        Change::ListInsert { index, value } => Operation::ListInsert(index, bytes(value)),
        Change::ListPush(value) => Operation::ListPush(bytes(value)),
        Change::ListSet { index, value } => Operation::ListSet(index, bytes(value)),
        Change::ListRemove(index) => Operation::ListRemove(index),
        Change::TextSplice { at, delete, insert } => {
            Operation::TextSplice { at, delete, insert: insert.to_owned() }
        }
        Change::JsonSet { pointer, value } => {
            Operation::JsonSet { pointer: pointer.to_owned(), value: value.to_owned() }
        }
        Change::JsonRemove { pointer } => Operation::JsonRemove { pointer: pointer.to_owned() },
    }
}

/// Wraps an operation on an entry of nested maps: the operation on the field that holds the maps. `path` has the keys.
pub fn at_path(path: &[&str], operation: Operation) -> Result<Operation, HostError> {
    if path.len() > MAX_PATH {
        return Err(HostError::Invalid(format!("maps may be nested {MAX_PATH} deep, not {}", path.len())));
    }
    if let Some(reason) = path.iter().find_map(|key| name_error("map's key", key)) {
        return Err(HostError::Invalid(reason));
    }
    let nest = |operation, key: &&str| Operation::MapUpdate((*key).to_owned(), Box::new(operation));
    Ok(path.iter().rev().fold(operation, nest))
}

/// The type of the map entry that an operation changes; `None` if it changes the whole field.
pub fn in_map(operation: &Operation) -> Option<FieldType> {
    match operation {
        Operation::MapUpdate(_, inner) => in_map(inner).or(Some(inner.field_type())),
        _ => None,
    }
}

/// The result of a read, as the guest gets it. `node` is the id of this node, for its share of a bounded counter.
pub fn value_of(read: &Read<'_>, field: &Field, node: u64) -> FieldValue {
    match read {
        Read::Contains { element, .. } => FieldValue::Flag(field.contains(element).unwrap_or(false)),
        Read::Share => {
            let share = field.bounded_counter("").map_or(0, |counter| counter.share(node));
            FieldValue::Unsigned(share)
        }
        Read::MapKeys => match field.value() {
            Value::Map(entries) => FieldValue::Keys(
                entries.into_iter().map(|(key, (kind, _))| (key, guest_type(kind))).collect(),
            ),
            _ => FieldValue::Keys(Vec::new()),
        },
        Read::Value(_) => match field.value() {
            Value::Integer(number) => FieldValue::Integer(number),
            Value::Unsigned(number) => FieldValue::Unsigned(number),
            Value::Register(value) => FieldValue::Register(value),
            Value::Values(values) | Value::List(values) => FieldValue::Values(values),
            Value::Flag(flag) => FieldValue::Flag(flag),
            Value::Text(text) => FieldValue::Text(text),
            Value::Json(text) => FieldValue::Json(text),
            map @ Value::Map(_) => FieldValue::Json(json_of_value(&map).to_string()),
        },
    }
}

pub fn field_type(of: GuestType) -> FieldType {
    match of {
        GuestType::Counter => FieldType::Counter,
        GuestType::Register => FieldType::Register,
        GuestType::GCounter => FieldType::GCounter,
        GuestType::BoundedCounter => FieldType::BoundedCounter,
        GuestType::MvRegister => FieldType::MvRegister,
        GuestType::GSet => FieldType::GSet,
        GuestType::Set => FieldType::Set,
        GuestType::Map => FieldType::Map,
        GuestType::EwFlag => FieldType::EwFlag,
        GuestType::DwFlag => FieldType::DwFlag,
        GuestType::List => FieldType::List,
        GuestType::Text => FieldType::Text,
        GuestType::Json => FieldType::Json,
    }
}

pub fn guest_type(of: FieldType) -> GuestType {
    match of {
        FieldType::Counter => GuestType::Counter,
        FieldType::Register => GuestType::Register,
        FieldType::GCounter => GuestType::GCounter,
        FieldType::BoundedCounter => GuestType::BoundedCounter,
        FieldType::MvRegister => GuestType::MvRegister,
        FieldType::GSet => GuestType::GSet,
        FieldType::Set => GuestType::Set,
        FieldType::Map => GuestType::Map,
        FieldType::EwFlag => GuestType::EwFlag,
        FieldType::DwFlag => GuestType::DwFlag,
        FieldType::List => GuestType::List,
        FieldType::Text => GuestType::Text,
        FieldType::Json => GuestType::Json,
    }
}
