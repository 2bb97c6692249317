use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::canonical::canonical;
use super::{Change, FieldType, FieldValue, Read};
use crate::HostError;
use crate::host::Host;

/// The position of a field: in an object, or under keys of nested maps.
#[derive(Debug, Clone)]
pub struct Place {
    pub host: Host,
    pub object: String,
    pub field: String,
    /// Empty for the field itself.
    pub path: Vec<String>,
}

impl Place {
    /// The position of an entry of this map.
    pub fn entry(&self, key: String) -> Self {
        let mut entry = self.clone();
        entry.path.push(key);
        entry
    }

    pub fn change(&self, change: Change<'_>) -> Result<(), HostError> {
        self.host.object_change(&self.object, &self.field, &self.path, change)
    }

    pub fn read(&self, read: Read<'_>) -> Result<FieldValue, HostError> {
        self.host.object_read(&self.object, &self.field, &self.path, read)
    }

    /// A counter's value.
    pub fn integer(&self, field_type: FieldType) -> Result<i64, HostError> {
        match self.read(Read::Value(field_type))? {
            FieldValue::Integer(value) => Ok(value),
            _ => Err(self.mistaken(field_type)),
        }
    }

    /// The JSON texts that are here.
    pub fn values<T: DeserializeOwned>(&self, field_type: FieldType) -> Result<Vec<T>, HostError> {
        match self.read(Read::Value(field_type))? {
            FieldValue::Values(values) => values.iter().map(|json| self.parse(field_type, json)).collect(),
            _ => Err(self.mistaken(field_type)),
        }
    }

    /// What is here as one JSON text.
    pub fn document<T: DeserializeOwned>(&self, field_type: FieldType) -> Result<T, HostError> {
        match self.read(Read::Value(field_type))? {
            FieldValue::Json(json) => self.parse(field_type, json.as_bytes()),
            _ => Err(self.mistaken(field_type)),
        }
    }

    /// A flag's value, or whether a set has an element.
    pub fn flag(&self, read: Read<'_>) -> Result<bool, HostError> {
        match self.read(read)? {
            FieldValue::Flag(value) => Ok(value),
            _ => Err(self.mistaken(read.field_type())),
        }
    }

    /// A value as JSON.
    pub fn json<T: Serialize + ?Sized>(
        &self,
        field_type: FieldType,
        value: &T,
    ) -> Result<String, HostError> {
        serde_json::to_string(value).map_err(|error| self.no_json(field_type, &error))
    }

    /// A value as the one JSON that equal values have.
    pub fn element<T: Serialize + ?Sized>(
        &self,
        field_type: FieldType,
        value: &T,
    ) -> Result<String, HostError> {
        let value = serde_json::to_value(value).map_err(|error| self.no_json(field_type, &error))?;
        Ok(canonical(&value))
    }

    pub fn parse<T: DeserializeOwned>(&self, field_type: FieldType, json: &[u8]) -> Result<T, HostError> {
        serde_json::from_slice(json).map_err(|error| {
            let wanted = std::any::type_name::<T>();
            self.invalid(field_type, format_args!("its value is not a {wanted}: {error}"))
        })
    }

    pub fn invalid(&self, field_type: FieldType, reason: fmt::Arguments<'_>) -> HostError {
        let Self { object, field, path, .. } = self;
        let keys: String = path.iter().flat_map(|key| ["/", key]).collect();
        HostError::Invalid(format!("{field_type} `{field}{keys}` of object `{object}`: {reason}"))
    }

    /// The node answered with something of another kind: it is newer or older than it says.
    pub fn mistaken(&self, field_type: FieldType) -> HostError {
        self.invalid(field_type, format_args!("the node gave something else than what was asked for"))
    }

    fn no_json(&self, field_type: FieldType, error: &serde_json::Error) -> HostError {
        self.invalid(field_type, format_args!("the value can't be made JSON: {error}"))
    }
}
