use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::HostError;
use crate::host::Host;

/// A stateful object: fields that outlive the run and are the same for every function.
///
/// Reads see the state of this node and what the run itself has written. Writes take effect together
/// when the run succeeds, and not at all if it fails. `NotPermitted` if no `objects` permission covers
/// the name, `Invalid` if a field has another type.
#[derive(Debug, Clone)]
pub struct Object {
    pub(crate) host: Host,
    pub(crate) name: String,
}

/// A field that counts up and down; additions on several nodes add up.
#[derive(Debug, Clone)]
pub struct Counter {
    object: Object,
    field: String,
}

/// A field that holds a value; the last write wins. Values are JSON, so that functions in all languages
/// share them.
#[derive(Debug, Clone)]
pub struct Register {
    object: Object,
    field: String,
}

impl Object {
    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A counter field.
    pub fn counter(&self, field: impl Into<String>) -> Counter {
        Counter { object: self.clone(), field: field.into() }
    }

    /// A register field.
    pub fn register(&self, field: impl Into<String>) -> Register {
        Register { object: self.clone(), field: field.into() }
    }
}

impl Counter {
    /// Adds to it; negative to subtract. `Invalid` if the value would leave the range of `i64`.
    pub fn add(&self, amount: i64) -> Result<(), HostError> {
        self.object.host.counter_add(&self.object.name, &self.field, amount)
    }

    /// Its value; 0 if it was never added to.
    pub fn value(&self) -> Result<i64, HostError> {
        self.object.host.counter_value(&self.object.name, &self.field)
    }
}

impl Register {
    /// Sets it. `Invalid` if the value can't be made JSON or is over the node's limit.
    pub fn set<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), HostError> {
        let json = serde_json::to_vec(value)
            .map_err(|error| self.invalid(format_args!("the value can't be made JSON: {error}")))?;
        self.object.host.register_set(&self.object.name, &self.field, &json)
    }

    /// Its value; none if it was never set. `Invalid` if it holds JSON of another shape.
    pub fn get<T: DeserializeOwned>(&self) -> Result<Option<T>, HostError> {
        let Some(json) = self.object.host.register_get(&self.object.name, &self.field)? else {
            return Ok(None);
        };
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            self.invalid(format_args!("its value is no {}: {error}", std::any::type_name::<T>()))
        })
    }

    fn invalid(&self, reason: std::fmt::Arguments<'_>) -> HostError {
        HostError::Invalid(format!("register `{}` of object `{}`: {reason}", self.field, self.object.name))
    }
}
