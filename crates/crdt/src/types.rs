//! The types of fields and their names.

use std::fmt;
use std::str::FromStr;

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldType {
    /// See [`Field::Counter`](crate::Field::Counter).
    Counter,
    /// See [`Field::Register`](crate::Field::Register).
    Register,
    /// See [`Field::GCounter`](crate::Field::GCounter).
    GCounter,
    /// See [`Field::BoundedCounter`](crate::Field::BoundedCounter).
    BoundedCounter,
    /// See [`Field::MvRegister`](crate::Field::MvRegister).
    MvRegister,
    /// See [`Field::GSet`](crate::Field::GSet).
    GSet,
    /// See [`Field::Set`](crate::Field::Set).
    Set,
    /// See [`Field::Map`](crate::Field::Map).
    Map,
    /// See [`Field::EwFlag`](crate::Field::EwFlag).
    EwFlag,
    /// See [`Field::DwFlag`](crate::Field::DwFlag).
    DwFlag,
    /// See [`Field::List`](crate::Field::List).
    List,
    /// See [`Field::Text`](crate::Field::Text).
    Text,
    /// See [`Field::Json`](crate::Field::Json).
    Json,
}

/// No field type has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no field type `{name}`; the types are {}", FieldType::ALL.map(FieldType::name).join(", "))]
pub struct UnknownFieldType {
    /// The name.
    pub name: String,
}

impl FieldType {
    /// All types, in the order of the variants.
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

    /// Name of the type, also used by [`Display`](fmt::Display) and [`FromStr`].
    pub const fn name(self) -> &'static str {
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

    /// True for lists, texts and JSON.
    pub(crate) fn is_document(self) -> bool {
        matches!(self, Self::List | Self::Text | Self::Json)
    }

    /// Number of the type in the binary encoding.
    pub(crate) fn number(self) -> u8 {
        if self.is_document() { self as u8 + DOCUMENTS } else { self as u8 }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let document = number.checked_sub(DOCUMENTS).and_then(Self::of_former_document);
        document
            .or_else(|| Self::ALL.get(usize::from(number)).copied().filter(|found| !found.is_document()))
    }

    /// The type of a document with history, as development versions wrote it.
    pub(crate) fn of_former_document(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied().filter(|found| found.is_document())
    }
}

/// Distance of the numbers of lists, texts and JSON in the binary encoding from those of documents with history.
const DOCUMENTS: u8 = 5;

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FieldType {
    type Err = UnknownFieldType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|field_type| field_type.name() == name);
        found.ok_or_else(|| UnknownFieldType { name: name.to_owned() })
    }
}
