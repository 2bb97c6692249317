//! What a function may ask of a field, and what it reads.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::FieldType;

/// A change that a function asks for.
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
    /// Tells the other nodes that this one lacks so much beyond its share; 0 to want nothing.
    BoundedCounterWant(u64),
    /// Gives nodes that want something a part of this node's share; nothing if none does.
    BoundedCounterGrant,
    /// Sets an mv-register, in place of all values it has here.
    MvRegisterSet(Bytes),
    /// Adds an element to a g-set.
    GSetAdd(Bytes),
    /// Adds an element to a set.
    SetAdd(Bytes),
    /// Takes an element out of a set.
    SetRemove(Bytes),
    /// Takes all elements out of a set.
    SetClear,
    /// Carries out an operation on the value of a key, which is made if it is not there.
    MapUpdate(String, Box<Operation>),
    /// Takes a key out of a map.
    MapRemove(String),
    /// Takes all keys out of a map.
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
    /// Takes out the element at an index.
    ListRemove(u32),
    /// Takes characters out of a text and puts others there. Positions count Unicode scalar values.
    TextSplice {
        /// Where.
        at: u32,
        /// How many go.
        delete: u32,
        /// What comes.
        insert: String,
    },
    /// Sets a value in a JSON document.
    JsonSet {
        /// Where: a JSON pointer (RFC 6901), whose parent must be there. `-` or its length appends to an array; the
        /// empty pointer replaces the whole.
        pointer: String,
        /// What: JSON text.
        value: String,
    },
    /// Takes a value out of a JSON document; nothing happens if it is not there.
    JsonRemove {
        /// Where: a JSON pointer (RFC 6901); the empty one leaves null.
        pointer: String,
    },
}

/// What a field holds, for its readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of a counter or bounded counter.
    Integer(i64),
    /// Of a g-counter.
    Unsigned(u64),
    /// Of a register; none if it was never set.
    Register(Option<Bytes>),
    /// Of an mv-register or a set: sorted, each once.
    Values(Vec<Bytes>),
    /// Of a flag.
    Flag(bool),
    /// Of a map.
    Map(BTreeMap<String, (FieldType, Value)>),
    /// Of a list.
    List(Vec<Bytes>),
    /// Of a text.
    Text(String),
    /// Of a JSON document: JSON text, keys sorted.
    Json(String),
}

impl Operation {
    /// The type of field it works on.
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

    /// Whether it takes something out of a list, a text or a document and puts nothing in.
    pub(crate) fn only_removes(&self) -> bool {
        match self {
            Self::ListRemove(_) | Self::JsonRemove { .. } => true,
            Self::TextSplice { insert, .. } => insert.is_empty(),
            _ => false,
        }
    }

    /// How many bytes of values, keys and text it carries; numbers and flags count 8.
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
