//! Changes and values of objects' fields between the types of the function world and ours.

use super::bindings::objects;
use crate::host::{Change, FieldType, FieldValue, HostError};

/// A change that the guest requests.
pub fn field_change(change: &objects::FieldChange) -> Change<'_> {
    match change {
        objects::FieldChange::CounterAdd(amount) => Change::CounterAdd(*amount),
        objects::FieldChange::RegisterSet(value) => Change::RegisterSet(value),
        objects::FieldChange::GCounterAdd(amount) => Change::GCounterAdd(*amount),
        objects::FieldChange::BoundedCounterAdd(amount) => Change::BoundedCounterAdd(*amount),
        objects::FieldChange::MvRegisterSet(value) => Change::MvRegisterSet(value),
        objects::FieldChange::GSetAdd(element) => Change::GSetAdd(element),
        objects::FieldChange::SetAdd(element) => Change::SetAdd(element),
        objects::FieldChange::SetRemove(element) => Change::SetRemove(element),
        objects::FieldChange::SetClear => Change::SetClear,
        objects::FieldChange::MapRemove(key) => Change::MapRemove(key),
        objects::FieldChange::MapClear => Change::MapClear,
        objects::FieldChange::EwFlagSet(enabled) => Change::EwFlagSet(*enabled),
        objects::FieldChange::DwFlagSet(enabled) => Change::DwFlagSet(*enabled),
        objects::FieldChange::ListInsert(item) => {
            Change::ListInsert { index: item.index, value: &item.value }
        }
        objects::FieldChange::ListPush(value) => Change::ListPush(value),
        objects::FieldChange::ListSet(item) => Change::ListSet { index: item.index, value: &item.value },
        objects::FieldChange::ListRemove(index) => Change::ListRemove(*index),
        objects::FieldChange::TextSplice(edit) => {
            Change::TextSplice { at: edit.at, delete: edit.delete, insert: &edit.insert }
        }
        objects::FieldChange::JsonSet(part) => {
            Change::JsonSet { pointer: &part.pointer, value: &part.value }
        }
        objects::FieldChange::JsonRemove(pointer) => Change::JsonRemove { pointer },
    }
}

/// A field type of the guest.
pub fn field_type(field_type: objects::FieldType) -> FieldType {
    match field_type {
        objects::FieldType::Counter => FieldType::Counter,
        objects::FieldType::Register => FieldType::Register,
        objects::FieldType::GCounter => FieldType::GCounter,
        objects::FieldType::BoundedCounter => FieldType::BoundedCounter,
        objects::FieldType::MvRegister => FieldType::MvRegister,
        objects::FieldType::GSet => FieldType::GSet,
        objects::FieldType::Set => FieldType::Set,
        objects::FieldType::Map => FieldType::Map,
        objects::FieldType::EwFlag => FieldType::EwFlag,
        objects::FieldType::DwFlag => FieldType::DwFlag,
        objects::FieldType::List => FieldType::List,
        objects::FieldType::Text => FieldType::Text,
        objects::FieldType::Json => FieldType::Json,
    }
}

/// The value of a field as the guest sees it.
///
/// # Errors
/// Keys, which are not a value of a field.
pub fn guest_value(value: FieldValue) -> Result<objects::FieldValue, HostError> {
    Ok(match value {
        FieldValue::Integer(value) => objects::FieldValue::Integer(value),
        FieldValue::Unsigned(value) => objects::FieldValue::Unsigned(value),
        FieldValue::Register(value) => objects::FieldValue::Register(value.map(Vec::from)),
        FieldValue::Values(values) => {
            objects::FieldValue::Values(values.into_iter().map(Vec::from).collect())
        }
        FieldValue::Flag(value) => objects::FieldValue::Flag(value),
        FieldValue::Text(text) => objects::FieldValue::Text(text),
        FieldValue::Json(json) => objects::FieldValue::Json(json),
        FieldValue::Keys(_) => return Err(mistaken()),
    })
}

/// The keys of a map as the guest sees them.
pub fn guest_keys(value: FieldValue) -> Result<Vec<(String, objects::FieldType)>, HostError> {
    match value {
        FieldValue::Keys(keys) => {
            Ok(keys.into_iter().map(|(key, known)| (key, guest_field_type(known))).collect())
        }
        _ => Err(mistaken()),
    }
}

/// A bounded counter's share as the guest sees it.
pub fn guest_share(value: FieldValue) -> Result<u64, HostError> {
    match value {
        FieldValue::Unsigned(share) => Ok(share),
        _ => Err(mistaken()),
    }
}

fn guest_field_type(field_type: FieldType) -> objects::FieldType {
    match field_type {
        FieldType::Counter => objects::FieldType::Counter,
        FieldType::Register => objects::FieldType::Register,
        FieldType::GCounter => objects::FieldType::GCounter,
        FieldType::BoundedCounter => objects::FieldType::BoundedCounter,
        FieldType::MvRegister => objects::FieldType::MvRegister,
        FieldType::GSet => objects::FieldType::GSet,
        FieldType::Set => objects::FieldType::Set,
        FieldType::Map => objects::FieldType::Map,
        FieldType::EwFlag => objects::FieldType::EwFlag,
        FieldType::DwFlag => objects::FieldType::DwFlag,
        FieldType::List => objects::FieldType::List,
        FieldType::Text => objects::FieldType::Text,
        FieldType::Json => objects::FieldType::Json,
    }
}

fn mistaken() -> HostError {
    HostError::Failed("the node's answer is of another kind than what was asked for".to_owned())
}
