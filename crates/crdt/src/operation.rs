//! Operations on fields, and the values that functions read.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::FieldType;

/// A change that a function requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds to a counter; negative to subtract.
    CounterAdd(i64),
    /// Sets a register.
    RegisterSet(Bytes),
    /// Adds to a g-counter.
    GCounterAdd(u64),
    /// Adds to a bounded counter, or takes from this node's share of it if negative.
    BoundedCounterAdd(i64),
    /// Requests more share from the other nodes: this node lacks this amount beyond its share; 0 withdraws the
    /// request.
    BoundedCounterWant(u64),
    /// Grants a part of this node's share to nodes that requested it; no effect if no node did.
    BoundedCounterGrant,
    /// Sets an mv-register and replaces all values that this replica has.
    MvRegisterSet(Bytes),
    /// Adds an element to a g-set.
    GSetAdd(Bytes),
    /// Adds an element to a set.
    SetAdd(Bytes),
    /// Removes an element from a set.
    SetRemove(Bytes),
    /// Removes all elements from a set.
    SetClear,
    /// Applies an operation to the value of a key. A missing key is created.
    MapUpdate(String, Box<Operation>),
    /// Removes a key from a map.
    MapRemove(String),
    /// Removes all keys from a map.
    MapClear,
    /// Sets a flag whose enabling wins.
    EwFlagSet(bool),
    /// Sets a flag whose disabling wins.
    DwFlagSet(bool),
    /// Inserts an element before the one at an index; the list's length appends.
    ListInsert(u32, Bytes),
    /// Appends an element to a list.
    ListPush(Bytes),
    /// Replaces the element at an index.
    ListSet(u32, Bytes),
    /// Removes the element at an index.
    ListRemove(u32),
    /// Replaces characters in a text. Positions count Unicode scalar values.
    TextSplice {
        /// The position of the first character.
        at: u32,
        /// The number of characters to delete.
        delete: u32,
        /// The text to insert.
        insert: String,
    },
    /// Sets a value in a JSON document.
    JsonSet {
        /// A JSON pointer (RFC 6901) to the value, whose parent must exist. `-` or the array's length appends to an
        /// array; the empty pointer replaces the whole document.
        pointer: String,
        /// The new value, as JSON text.
        value: String,
    },
    /// Removes a value from a JSON document; no effect if it does not exist.
    JsonRemove {
        /// A JSON pointer (RFC 6901); the empty pointer leaves null.
        pointer: String,
    },
}

/// The value of a field, for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value of a counter or bounded counter.
    Integer(i64),
    /// The value of a g-counter.
    Unsigned(u64),
    /// The value of a register; `None` if it was never set.
    Register(Option<Bytes>),
    /// The values of an mv-register or a set: sorted and unique.
    Values(Vec<Bytes>),
    /// The state of a flag.
    Flag(bool),
    /// The entries of a map.
    Map(BTreeMap<String, (FieldType, Value)>),
    /// The elements of a list.
    List(Vec<Bytes>),
    /// The characters of a text.
    Text(String),
    /// A JSON document as JSON text, with sorted keys.
    Json(String),
}

impl Operation {
    /// The type of the fields to which the operation applies.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::CounterAdd(_) => FieldType::Counter,
            Self::RegisterSet(_) => FieldType::Register,
            Self::GCounterAdd(_) => FieldType::GCounter,
            Self::BoundedCounterAdd(_) | Self::BoundedCounterWant(_) | Self::BoundedCounterGrant => {
                FieldType::BoundedCounter
            }
            Self::MvRegisterSet(_) => FieldType::MvRegister,
            Self::GSetAdd(_) => FieldType::GSet,
            Self::SetAdd(_) | Self::SetRemove(_) | Self::SetClear => FieldType::Set,
            Self::MapUpdate(..) | Self::MapRemove(_) | Self::MapClear => FieldType::Map,
            Self::EwFlagSet(_) => FieldType::EwFlag,
            Self::DwFlagSet(_) => FieldType::DwFlag,
            Self::ListInsert(..) | Self::ListPush(_) | Self::ListSet(..) | Self::ListRemove(_) => {
                FieldType::List
            }
            Self::TextSplice { .. } => FieldType::Text,
            Self::JsonSet { .. } | Self::JsonRemove { .. } => FieldType::Json,
        }
    }

    /// The size of its values, keys and text, in bytes; numbers and flags count 8.
    pub fn size_bytes(&self) -> usize {
        let (mut operation, mut keys) = (self, 0);
        while let Self::MapUpdate(key, inner) = operation {
            keys += key.len();
            operation = inner;
        }
        keys + match operation {
            Self::RegisterSet(bytes)
            | Self::MvRegisterSet(bytes)
            | Self::GSetAdd(bytes)
            | Self::SetAdd(bytes)
            | Self::SetRemove(bytes)
            | Self::ListPush(bytes) => bytes.len(),
            Self::ListInsert(_, bytes) | Self::ListSet(_, bytes) => 8 + bytes.len(),
            Self::MapRemove(key) => key.len(),
            Self::TextSplice { insert, .. } => 8 + insert.len(),
            Self::JsonSet { pointer, value } => pointer.len() + value.len(),
            Self::JsonRemove { pointer } => pointer.len(),
            _ => 8,
        }
    }
}
