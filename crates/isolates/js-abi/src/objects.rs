//! What functions do with the fields of stateful objects.
//!
//! Values are bytes; the SDKs keep JSON in them. Elements of sets are the same when their bytes are, which is why the
//! SDKs write them in one form (RFC 8785). Positions in lists and texts count from 0, those in texts by Unicode code
//! point. Pointers are those of RFC 6901; the empty one is the whole document.

use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

/// The types that a field, or an entry of a map, may have.
///
/// The order of the variants is part of the binary encoding: new types are added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FieldType {
    /// Counts up and down.
    Counter,
    /// Holds a value; the last write wins.
    Register,
    /// Counts up.
    GCounter,
    /// Counts up and down, but never below its floor.
    BoundedCounter,
    /// Holds the values of all writes that did not know of one another.
    MvRegister,
    /// Holds elements, which stay for good.
    GSet,
    /// Holds elements that come and go; an add that a remove did not know of wins.
    Set,
    /// Holds fields of any type by key.
    Map,
    /// Is on or off; an enable that a disable did not know of wins.
    EwFlag,
    /// Is on or off; a disable that an enable did not know of wins.
    DwFlag,
    /// Holds values in an order.
    List,
    /// Holds text that several edit at once.
    Text,
    /// Holds a JSON document that several edit at once.
    Json,
}

/// A change that a function asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// Adds to a counter; negative to subtract.
    CounterAdd(i64),
    /// Sets a register.
    RegisterSet(&'a [u8]),
    /// Adds to a counter that only grows.
    GCounterAdd(u64),
    /// Adds to a bounded counter; negative to take from it.
    BoundedCounterAdd(i64),
    /// Sets a register that keeps concurrent values.
    MvRegisterSet(&'a [u8]),
    /// Adds an element to a set that only grows.
    GSetAdd(&'a [u8]),
    /// Adds an element.
    SetAdd(&'a [u8]),
    /// Removes an element; nothing happens if it is not in the set.
    SetRemove(&'a [u8]),
    /// Removes all elements.
    SetClear,
    /// Removes the entry of a key.
    MapRemove(&'a str),
    /// Removes all entries.
    MapClear,
    /// Enables or disables a flag.
    EwFlagSet(bool),
    /// Enables or disables a flag.
    DwFlagSet(bool),
    /// Puts a value before the one at `index`; the list's length puts it at the end.
    ListInsert {
        /// Where it will be.
        index: u32,
        /// What is put there.
        value: &'a [u8],
    },
    /// Puts a value at the end.
    ListPush(&'a [u8]),
    /// Replaces the value at `index`.
    ListSet {
        /// Which one is replaced.
        index: u32,
        /// What takes its place.
        value: &'a [u8],
    },
    /// Removes the value at an index.
    ListRemove(u32),
    /// Deletes `delete` code points from `at` on and puts `insert` there.
    TextSplice {
        /// Where, in code points.
        at: u32,
        /// How many code points go.
        delete: u32,
        /// What comes.
        insert: &'a str,
    },
    /// Sets a part of a JSON document.
    JsonSet {
        /// Which part.
        pointer: &'a str,
        /// JSON text.
        value: &'a str,
    },
    /// Removes a part of a JSON document.
    JsonRemove {
        /// Which part.
        pointer: &'a str,
    },
}

/// What a function wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read<'a> {
    /// All of a field: which [`FieldValue`] it is depends on the type.
    Value(FieldType),
    /// Whether a [`FieldType::GSet`] or [`FieldType::Set`] has an element: a [`FieldValue::Flag`].
    Contains {
        /// Which of the two the function takes it for.
        field_type: FieldType,
        /// The element.
        element: &'a [u8],
    },
    /// The keys of a map and the types of their entries: [`FieldValue::Keys`].
    MapKeys,
    /// What this node may take from a bounded counter without asking others: [`FieldValue::Unsigned`].
    Share,
}

/// What the node says to a [`Read`]. A field that was never written has the value that its type begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldValue<'a> {
    /// Of a counter or bounded counter.
    Integer(i64),
    /// Of a g-counter, or a share.
    Unsigned(u64),
    /// Of a register; none if it was never set.
    Register(Option<&'a [u8]>),
    /// Of an mv-register, a g-set, a set or a list.
    #[serde(borrow)]
    Values(Vec<&'a [u8]>),
    /// Of an ew-flag or dw-flag, or whether a set has an element.
    Flag(bool),
    /// Of a text.
    Text(&'a str),
    /// Of a json field; of a map, one JSON object of all that is in it.
    Json(&'a str),
    /// Of a map, in order.
    Keys(Vec<(&'a str, FieldType)>),
}

impl FieldType {
    /// All types, in order.
    pub const ALL: [Self; 13] = [
        Self::Counter,
        Self::Register,
        Self::GCounter,
        Self::BoundedCounter,
        Self::MvRegister,
        Self::GSet,
        Self::Set,
        Self::Map,
        Self::EwFlag,
        Self::DwFlag,
        Self::List,
        Self::Text,
        Self::Json,
    ];

    /// The type's name in errors, JSON and WIT.
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

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Change<'_> {
    /// The type of the field that can be changed so.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::CounterAdd(_) => FieldType::Counter,
            Self::RegisterSet(_) => FieldType::Register,
            Self::GCounterAdd(_) => FieldType::GCounter,
            Self::BoundedCounterAdd(_) => FieldType::BoundedCounter,
            Self::MvRegisterSet(_) => FieldType::MvRegister,
            Self::GSetAdd(_) => FieldType::GSet,
            Self::SetAdd(_) | Self::SetRemove(_) | Self::SetClear => FieldType::Set,
            Self::MapRemove(_) | Self::MapClear => FieldType::Map,
            Self::EwFlagSet(_) => FieldType::EwFlag,
            Self::DwFlagSet(_) => FieldType::DwFlag,
            Self::ListInsert { .. } | Self::ListPush(_) | Self::ListSet { .. } | Self::ListRemove(_) => {
                FieldType::List
            }
            Self::TextSplice { .. } => FieldType::Text,
            Self::JsonSet { .. } | Self::JsonRemove { .. } => FieldType::Json,
        }
    }
}

impl Read<'_> {
    /// The type of the field that can be asked so.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Value(field_type) | Self::Contains { field_type, .. } => *field_type,
            Self::MapKeys => FieldType::Map,
            Self::Share => FieldType::BoundedCounter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_name() {
        for (index, field_type) in FieldType::ALL.into_iter().enumerate() {
            assert_eq!(FieldType::from_name(field_type.as_str()), Some(field_type));
            assert_eq!(field_type as usize, index, "ALL is in the order of the encoding");
        }
        assert_eq!(FieldType::from_name("Counter"), None);
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let path = alloc::vec!["a", ""];
        for change in [
            Change::CounterAdd(i64::MIN),
            Change::RegisterSet(&[0, 255]),
            Change::ListInsert { index: u32::MAX, value: b"1" },
            Change::TextSplice { at: 1, delete: 2, insert: "\u{1f600}" },
            Change::JsonSet { pointer: "/a/0", value: "null" },
        ] {
            let request =
                crate::Request::ObjectChange { object: "o", field: "f", path: path.clone(), change };
            let bytes = crate::encode(&request).unwrap();
            assert_eq!(crate::decode::<crate::Request<'_>>(&bytes).unwrap(), request);
        }
        let read = Read::Contains { field_type: FieldType::GSet, element: b"\"x\"" };
        let request = crate::Request::ObjectRead { object: "o", field: "f", path, read };
        let bytes = crate::encode(&request).unwrap();
        assert_eq!(crate::decode::<crate::Request<'_>>(&bytes).unwrap(), request);
        for value in [
            FieldValue::Register(None),
            FieldValue::Values(alloc::vec![&b"1"[..], &[]]),
            FieldValue::Keys(alloc::vec![("k", FieldType::Json)]),
        ] {
            let answer = crate::Answer::Field(value);
            let bytes = crate::encode(&answer).unwrap();
            assert_eq!(crate::decode::<crate::Answer<'_>>(&bytes).unwrap(), answer);
        }
    }
}
