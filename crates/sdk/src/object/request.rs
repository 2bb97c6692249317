use std::fmt;

use serde::{Deserialize, Serialize};

/// The types that a field, or an entry of a map, may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FieldType {
    /// [`Counter`](super::Counter).
    Counter,
    /// [`Register`](super::Register).
    Register,
    /// [`GCounter`](super::GCounter).
    GCounter,
    /// [`BoundedCounter`](super::BoundedCounter).
    BoundedCounter,
    /// [`MvRegister`](super::MvRegister).
    MvRegister,
    /// [`GSet`](super::GSet).
    GSet,
    /// [`Set`](super::Set).
    Set,
    /// [`Map`](super::Map).
    Map,
    /// A [`Flag`](super::Flag) whose enabling wins.
    EwFlag,
    /// A [`Flag`](super::Flag) whose disabling wins.
    DwFlag,
    /// [`List`](super::List).
    List,
    /// [`Text`](super::Text).
    Text,
    /// [`Document`](super::Document).
    Json,
}

impl FieldType {
    /// The type's name in errors, events and JSON, such as `g-counter`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Register => "register",
            Self::GCounter => "g-counter",
            Self::BoundedCounter => "bounded-counter",
            Self::MvRegister => "mv-register",
            Self::GSet => "g-set",
            Self::Set => "set",
            Self::Map => "map",
            Self::EwFlag => "ew-flag",
            Self::DwFlag => "dw-flag",
            Self::List => "list",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A change of a field; the names are those of the function world.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    CounterAdd(i64),
    RegisterSet(&'a [u8]),
    GCounterAdd(u64),
    BoundedCounterAdd(i64),
    MvRegisterSet(&'a [u8]),
    GSetAdd(&'a [u8]),
    SetAdd(&'a [u8]),
    SetRemove(&'a [u8]),
    SetClear,
    MapRemove(&'a str),
    MapClear,
    EwFlagSet(bool),
    DwFlagSet(bool),
    ListInsert { index: u32, value: &'a [u8] },
    ListPush(&'a [u8]),
    ListSet { index: u32, value: &'a [u8] },
    ListRemove(u32),
    TextSplice { at: u32, delete: u32, insert: &'a str },
    JsonSet { pointer: &'a str, value: &'a str },
    JsonRemove(&'a str),
}

/// A question about a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Read<'a> {
    Value(FieldType),
    Contains { field_type: FieldType, element: &'a [u8] },
    MapKeys,
    Share,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldValue {
    Integer(i64),
    Unsigned(u64),
    Register(Option<Vec<u8>>),
    Values(Vec<Vec<u8>>),
    Flag(bool),
    Text(String),
    Json(String),
    Keys(Vec<(String, FieldType)>),
}

impl Read<'_> {
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Value(field_type) | Self::Contains { field_type, .. } => *field_type,
            Self::MapKeys => FieldType::Map,
            Self::Share => FieldType::BoundedCounter,
        }
    }
}
