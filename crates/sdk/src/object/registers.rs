use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Change, FieldType, FieldValue, Place, Read};
use crate::HostError;

/// A field that holds a value; the last write wins. Values are JSON, so that functions in all languages
/// share them.
#[derive(Debug, Clone)]
pub struct Register {
    place: Place,
}

/// A field that holds the values of all writes that did not know of one another; a write replaces those it knew of.
#[derive(Debug, Clone)]
pub struct MvRegister {
    place: Place,
}

impl Register {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Sets it. `Invalid` if the value can't be made JSON or is over the node's limit.
    pub fn set<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::Register, value)?;
        let Place { host, object, field, path } = &self.place;
        if path.is_empty() {
            return host.register_set(object, field, json.as_bytes());
        }
        self.place.change(Change::RegisterSet(json.as_bytes()))
    }

    /// Its value; none if it was never set. `Invalid` if it holds JSON of another shape.
    pub fn get<T: DeserializeOwned>(&self) -> Result<Option<T>, HostError> {
        let Place { host, object, field, path } = &self.place;
        let json = if path.is_empty() {
            host.register_get(object, field)?
        } else {
            match self.place.read(Read::Value(FieldType::Register))? {
                FieldValue::Register(json) => json,
                _ => return Err(self.place.mistaken(FieldType::Register)),
            }
        };
        json.map(|json| self.place.parse(FieldType::Register, &json)).transpose()
    }
}

impl MvRegister {
    pub(super) fn at(place: Place) -> Self {
        Self { place }
    }

    /// Sets it. `Invalid` if the value can't be made JSON or is over the node's limit.
    pub fn set<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), HostError> {
        let json = self.place.json(FieldType::MvRegister, value)?;
        self.place.change(Change::MvRegisterSet(json.as_bytes()))
    }

    /// Its values: none if it was never set, several after concurrent writes. `Invalid` if one is JSON of another shape.
    pub fn get<T: DeserializeOwned>(&self) -> Result<Vec<T>, HostError> {
        self.place.values(FieldType::MvRegister)
    }
}
