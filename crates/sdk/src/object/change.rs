use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::FieldType;
use crate::event::{Event, ObjectChange, PayloadError, Trigger};

/// The origin of a change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Origin {
    /// This node.
    Local,
    /// Another node.
    Remote,
}

/// Access to the body of an object event.
impl Event {
    /// The change of an object; `None` for other events.
    ///
    /// ```
    /// use edgefaas::prelude::*;
    ///
    /// fn crowded(event: Event) -> Result<(), Error> {
    ///     let Some(change) = event.object() else { return Ok(()) };
    ///     let (before, now): (i64, i64) = (event.previous()?, event.value()?);
    ///     if before < 100 && now >= 100 {
    ///         log::warn!("{} has {now} people", change.object);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn object(&self) -> Option<&ObjectChange> {
        match self.trigger() {
            Trigger::Object(change) => Some(change),
            _ => None,
        }
    }

    /// The field's value before the change; null for a new field, so use `Option<T>` for registers. An error if the event is
    /// not a change of an object, or the value has another shape.
    pub fn previous<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned")]
        struct Part<T> {
            previous: T,
        }
        self.part::<T, Part<T>>().map(|part| part.previous)
    }

    /// The field's value after the change, null if the field was deleted; otherwise as [`previous`](Self::previous).
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned")]
        struct Part<T> {
            value: T,
        }
        self.part::<T, Part<T>>().map(|part| part.value)
    }

    /// True if the field was deleted, and not changed. False for events of other kinds.
    pub fn is_deleted(&self) -> bool {
        #[derive(Deserialize)]
        struct Part {
            #[serde(default)]
            deleted: bool,
        }
        self.part::<bool, Part>().is_ok_and(|part| part.deleted)
    }

    /// The type of the field that was changed.
    pub fn field_type(&self) -> Result<FieldType, PayloadError> {
        #[derive(Deserialize)]
        struct Part {
            r#type: FieldType,
        }
        self.part::<FieldType, Part>().map(|part| part.r#type)
    }

    /// The origin of the change.
    pub fn origin(&self) -> Result<Origin, PayloadError> {
        #[derive(Deserialize)]
        struct Part {
            origin: Origin,
        }
        self.part::<Origin, Part>().map(|part| part.origin)
    }

    fn part<T, P: DeserializeOwned>(&self) -> Result<P, PayloadError> {
        if self.object().is_none() {
            return Err(PayloadError::NoChange { kind: self.kind() });
        }
        serde_json::from_slice(self.bytes()).map_err(|source| PayloadError::NotJson {
            what: "change of an object",
            wanted: std::any::type_name::<T>(),
            source,
        })
    }
}
