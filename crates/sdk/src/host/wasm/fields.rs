//! Changes and values of fields between this crate's types and the bindings'.

use super::node::objects as node;
use crate::object::{Change, FieldType, FieldValue};

impl From<Change<'_>> for node::FieldChange {
    fn from(change: Change<'_>) -> Self {
        let item = |index, value: &[u8]| node::ListItem { index, value: value.to_owned() };
        match change {
            Change::CounterAdd(amount) => Self::CounterAdd(amount),
            Change::RegisterSet(value) => Self::RegisterSet(value.to_owned()),
            Change::GCounterAdd(amount) => Self::GCounterAdd(amount),
            Change::BoundedCounterAdd(amount) => Self::BoundedCounterAdd(amount),
            Change::MvRegisterSet(value) => Self::MvRegisterSet(value.to_owned()),
            Change::GSetAdd(element) => Self::GSetAdd(element.to_owned()),
            Change::SetAdd(element) => Self::SetAdd(element.to_owned()),
            Change::SetRemove(element) => Self::SetRemove(element.to_owned()),
            Change::SetClear => Self::SetClear,
            Change::MapRemove(key) => Self::MapRemove(key.to_owned()),
            Change::MapClear => Self::MapClear,
            Change::EwFlagSet(enabled) => Self::EwFlagSet(enabled),
            Change::DwFlagSet(enabled) => Self::DwFlagSet(enabled),
            Change::ListInsert { index, value } => Self::ListInsert(item(index, value)),
            Change::ListPush(value) => Self::ListPush(value.to_owned()),
            Change::ListSet { index, value } => Self::ListSet(item(index, value)),
            Change::ListRemove(index) => Self::ListRemove(index),
            Change::TextSplice { at, delete, insert } => {
                Self::TextSplice(node::TextEdit { at, delete, insert: insert.to_owned() })
            }
            Change::JsonSet { pointer, value } => {
                Self::JsonSet(node::JsonPart { pointer: pointer.to_owned(), value: value.to_owned() })
            }
            Change::JsonRemove(pointer) => Self::JsonRemove(pointer.to_owned()),
        }
    }
}

impl From<node::FieldValue> for FieldValue {
    fn from(value: node::FieldValue) -> Self {
        match value {
            node::FieldValue::Integer(value) => Self::Integer(value),
            node::FieldValue::Unsigned(value) => Self::Unsigned(value),
            node::FieldValue::Register(value) => Self::Register(value),
            node::FieldValue::Values(values) => Self::Values(values),
            node::FieldValue::Flag(value) => Self::Flag(value),
            node::FieldValue::Text(text) => Self::Text(text),
            node::FieldValue::Json(json) => Self::Json(json),
        }
    }
}

impl From<FieldType> for node::FieldType {
    fn from(field_type: FieldType) -> Self {
        match field_type {
            FieldType::Counter => Self::Counter,
            FieldType::Register => Self::Register,
            FieldType::GCounter => Self::GCounter,
            FieldType::BoundedCounter => Self::BoundedCounter,
            FieldType::MvRegister => Self::MvRegister,
            FieldType::GSet => Self::GSet,
            FieldType::Set => Self::Set,
            FieldType::Map => Self::Map,
            FieldType::EwFlag => Self::EwFlag,
            FieldType::DwFlag => Self::DwFlag,
            FieldType::List => Self::List,
            FieldType::Text => Self::Text,
            FieldType::Json => Self::Json,
        }
    }
}

impl From<node::FieldType> for FieldType {
    fn from(field_type: node::FieldType) -> Self {
        match field_type {
            node::FieldType::Counter => Self::Counter,
            node::FieldType::Register => Self::Register,
            node::FieldType::GCounter => Self::GCounter,
            node::FieldType::BoundedCounter => Self::BoundedCounter,
            node::FieldType::MvRegister => Self::MvRegister,
            node::FieldType::GSet => Self::GSet,
            node::FieldType::Set => Self::Set,
            node::FieldType::Map => Self::Map,
            node::FieldType::EwFlag => Self::EwFlag,
            node::FieldType::DwFlag => Self::DwFlag,
            node::FieldType::List => Self::List,
            node::FieldType::Text => Self::Text,
            node::FieldType::Json => Self::Json,
        }
    }
}
