//! Fields of objects.

use bytes::Bytes;

use crate::causal::{Flag, GSet, Map, MvRegister, Set};
use crate::document::Document;
use crate::dotted::{Dotted, Payload};
use crate::{BoundedCounter, Counter, FieldType, GCounter, Hlc, Register, Value, WrongType};

/// The state of one field at one replica.
///
/// The binary encoding and [`merge`](Self::merge) depend on the order of the types. New types must be added at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A counter that can be increased and decreased.
    Counter(Counter),
    /// A register: the last write wins.
    Register(Register),
    /// A counter that can only be increased.
    GCounter(GCounter),
    /// A counter whose value never falls below zero.
    BoundedCounter(BoundedCounter),
    /// A register that keeps concurrent values.
    MvRegister(MvRegister),
    /// A set that only grows.
    GSet(GSet),
    /// A set with removal. Adding wins over a concurrent removal.
    Set(Set),
    /// A map of keys to fields. An update wins over a concurrent removal.
    Map(Map),
    /// A flag. Enabling wins over concurrent disabling.
    EwFlag(Flag),
    /// A flag. Disabling wins over concurrent enabling.
    DwFlag(Flag),
    /// A list of byte strings.
    List(Document),
    /// A text.
    Text(Document),
    /// A JSON document.
    Json(Document),
}

impl Field {
    /// A field without writes.
    pub fn empty(field_type: FieldType) -> Self {
        match field_type {
            FieldType::Counter => Self::Counter(Counter::default()),
            FieldType::Register => Self::Register(Register::default()),
            FieldType::GCounter => Self::GCounter(GCounter::default()),
            FieldType::BoundedCounter => Self::BoundedCounter(BoundedCounter::default()),
            FieldType::MvRegister => Self::MvRegister(MvRegister::default()),
            FieldType::GSet => Self::GSet(GSet::default()),
            FieldType::Set => Self::Set(Set::default()),
            FieldType::Map => Self::Map(Map::default()),
            FieldType::EwFlag => Self::EwFlag(Flag::default()),
            FieldType::DwFlag => Self::DwFlag(Flag::default()),
            FieldType::List => Self::List(Document::empty(field_type)),
            FieldType::Text => Self::Text(Document::empty(field_type)),
            FieldType::Json => Self::Json(Document::empty(field_type)),
        }
    }

    /// The type of the field.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Counter(_) => FieldType::Counter,
            Self::Register(_) => FieldType::Register,
            Self::GCounter(_) => FieldType::GCounter,
            Self::BoundedCounter(_) => FieldType::BoundedCounter,
            Self::MvRegister(_) => FieldType::MvRegister,
            Self::GSet(_) => FieldType::GSet,
            Self::Set(_) => FieldType::Set,
            Self::Map(_) => FieldType::Map,
            Self::EwFlag(_) => FieldType::EwFlag,
            Self::DwFlag(_) => FieldType::DwFlag,
            Self::List(_) => FieldType::List,
            Self::Text(_) => FieldType::Text,
            Self::Json(_) => FieldType::Json,
        }
    }

    /// The counter, or an error if the field has another type. `name` is the field's name in the error.
    pub fn counter(&self, name: &str) -> Result<&Counter, WrongType> {
        match self {
            Self::Counter(counter) => Ok(counter),
            other => Err(other.wrong_type(name, FieldType::Counter)),
        }
    }

    /// The register, or an error if the field has another type. `name` is the field's name in the error.
    pub fn register(&self, name: &str) -> Result<&Register, WrongType> {
        match self {
            Self::Register(register) => Ok(register),
            other => Err(other.wrong_type(name, FieldType::Register)),
        }
    }

    /// The bounded counter, or an error if the field has another type. `name` is the field's name in the error.
    pub fn bounded_counter(&self, name: &str) -> Result<&BoundedCounter, WrongType> {
        match self {
            Self::BoundedCounter(counter) => Ok(counter),
            other => Err(other.wrong_type(name, FieldType::BoundedCounter)),
        }
    }

    /// The value of the field, as a copy, which can be large for sets, maps and documents.
    pub fn value(&self) -> Value {
        match self {
            Self::Counter(counter) => Value::Integer(counter.value()),
            Self::Register(register) => Value::Register(register.get().cloned()),
            Self::GCounter(counter) => Value::Unsigned(counter.value()),
            Self::BoundedCounter(counter) => Value::Integer(counter.value()),
            Self::MvRegister(register) => Value::Values(register.values()),
            Self::GSet(set) => Value::Values(set.iter().cloned().collect()),
            Self::Set(set) => Value::Values(set.iter().cloned().collect()),
            Self::Map(map) => {
                let values =
                    map.iter().map(|(key, field)| (key.to_owned(), (field.field_type(), field.value())));
                Value::Map(values.collect())
            }
            Self::EwFlag(flag) => Value::Flag(flag.enable_wins()),
            Self::DwFlag(flag) => Value::Flag(flag.disable_wins()),
            Self::List(document) => Value::List(document.list()),
            Self::Text(document) => Value::Text(document.text()),
            Self::Json(document) => Value::Json(document.json()),
        }
    }

    /// The field at a path of keys through nested maps; `None` if a key does not exist. The field is only for reading, since
    /// the outermost map has the dots of all nested values.
    ///
    /// # Errors
    ///
    /// A field on the path is not a map. The error's `field` is the path of keys to it.
    pub fn at_path(&self, path: &[String]) -> Result<Option<&Self>, WrongType> {
        let mut at = self;
        for (depth, key) in path.iter().enumerate() {
            let Self::Map(map) = at else {
                return Err(at.wrong_type(&path[..depth].join("/"), FieldType::Map));
            };
            match map.get(key) {
                Some(field) => at = field,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// True if the set or g-set contains an element.
    ///
    /// # Errors
    ///
    /// The field is not a set. The error's `field` is empty, since a field does not know its name.
    pub fn contains(&self, element: &[u8]) -> Result<bool, WrongType> {
        match self {
            Self::GSet(set) => Ok(set.contains(element)),
            Self::Set(set) => Ok(set.contains(element)),
            other => Err(other.wrong_type("", FieldType::Set)),
        }
    }

    /// Approximate size in memory, in bytes. The calculation does not visit the elements.
    pub fn size_bytes(&self) -> usize {
        let inner = match self {
            Self::Counter(counter) => counter.tally.size_bytes(),
            Self::Register(register) => register.get().map_or(0, Bytes::len),
            Self::GCounter(counter) => counter.tally.size_bytes(),
            Self::BoundedCounter(counter) => counter.size_bytes(),
            Self::GSet(set) => set.elements.size_bytes(),
            Self::Set(set) => set.elements.size_bytes() + set.dotted.size_bytes(),
            Self::Map(map) => {
                let bounded: usize = map.bounded.values().map(|counter| 128 + counter.size_bytes()).sum();
                bounded + map.dotted.size_bytes()
            }
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. })
            | Self::List(Document { dotted, .. })
            | Self::Text(Document { dotted, .. })
            | Self::Json(Document { dotted, .. }) => dotted.size_bytes(),
        };
        size_of::<Self>() + inner
    }

    /// The latest timestamp in the field; zero if it has none. A clock should observe this time when the field is read from
    /// the store.
    pub fn latest(&self) -> Hlc {
        match self {
            Self::Register(register) => register.written_at().map(|at| at.hlc).unwrap_or_default(),
            Self::Map(map) => {
                let times = map.dotted.leaves().values().filter_map(|leaf| match &leaf.payload {
                    Payload::Written(written) => Some(written.at.hlc),
                    _ => None,
                });
                times.max().unwrap_or_default().max(map.dotted.latest())
            }
            Self::Json(document) => document.dotted.latest(),
            _ => Hlc::default(),
        }
    }

    /// Combines all incarnations of `node` up to `up_to_incarnation` into one entry; true if this changed anything.
    ///
    /// Call this only when every living replica has seen all writes of those incarnations and none of them writes any more:
    /// deltas of them that arrive later count as seen. Replicas may fold at different times: a folded field and a field that
    /// is not yet folded can be merged. Bounded counters have nothing to fold.
    pub fn fold(&mut self, node: u64, up_to_incarnation: u32) -> bool {
        match self {
            Self::Counter(counter) => counter.tally.fold(node, up_to_incarnation),
            Self::GCounter(counter) => counter.tally.fold(node, up_to_incarnation),
            other => other.dotted_mut().is_some_and(|dotted| dotted.context.fold(node, up_to_incarnation)),
        }
    }

    pub(crate) fn wrong_type(&self, name: &str, wanted: FieldType) -> WrongType {
        WrongType { field: name.to_owned(), actual: self.field_type(), wanted }
    }

    /// The values with dots of the field; `None` if its type has none.
    pub(crate) fn dotted(&self) -> Option<&Dotted> {
        match self {
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::Map(Map { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. })
            | Self::List(Document { dotted, .. })
            | Self::Text(Document { dotted, .. })
            | Self::Json(Document { dotted, .. }) => Some(dotted),
            _ => None,
        }
    }

    pub(crate) fn dotted_mut(&mut self) -> Option<&mut Dotted> {
        match self {
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::Map(Map { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. })
            | Self::List(Document { dotted, .. })
            | Self::Text(Document { dotted, .. })
            | Self::Json(Document { dotted, .. }) => Some(dotted),
            _ => None,
        }
    }
}
