//! A field of an object: one of the types, by name.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Counter, CounterOverflow, Hlc, Register, ReplicaId};

/// The state of one field at one replica.
///
/// The order of the variants is part of the binary encoding and of [`merge`](Self::merge): new types
/// are added at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Field {
    /// A counter that goes up and down.
    Counter(Counter),
    /// A value whose last writer wins.
    Register(Register),
}

/// The part of a field that an operation changed; deltas merge with one another while they wait to be
/// sent, so that backpressure never makes a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDelta(pub(crate) Field);

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldType {
    /// See [`Field::Counter`].
    Counter,
    /// See [`Field::Register`].
    Register,
}

/// A change that a function asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds to a counter; negative to subtract.
    CounterAdd(i64),
    /// Sets a register.
    RegisterSet(Bytes),
}

/// What a merge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// The field had seen all of it already.
    Unchanged,
    /// The field is different now: keep it and tell others.
    Changed,
    /// Replicas that did not know of each other made the field with different types. Every replica
    /// keeps `kept` and loses the data of `lost`.
    TypeConflict {
        /// The type that the field has now.
        kept: FieldType,
        /// The type whose data is gone.
        lost: FieldType,
    },
}

/// A field was used as something that it is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is a {actual}, not a {wanted}")]
pub struct WrongType {
    /// The field's name.
    pub field: String,
    /// What the field is.
    pub actual: FieldType,
    /// What it was used as.
    pub wanted: FieldType,
}

/// An operation was refused; the field is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The operation belongs to another type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The counter is full.
    #[error("field `{field}`: {overflow}")]
    CounterOverflow {
        /// The field's name.
        field: String,
        /// What did not fit.
        overflow: CounterOverflow,
    },
}

impl Field {
    /// A field that nobody has written to.
    pub fn empty(field_type: FieldType) -> Self {
        match field_type {
            FieldType::Counter => Self::Counter(Counter::default()),
            FieldType::Register => Self::Register(Register::default()),
        }
    }

    /// Which type it is.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Counter(_) => FieldType::Counter,
            Self::Register(_) => FieldType::Register,
        }
    }

    /// The counter that it is; `name` is for the error.
    pub fn counter(&self, name: &str) -> Result<&Counter, WrongType> {
        match self {
            Self::Counter(counter) => Ok(counter),
            other => Err(other.wrong_type(name, FieldType::Counter)),
        }
    }

    /// The register that it is; `name` is for the error.
    pub fn register(&self, name: &str) -> Result<&Register, WrongType> {
        match self {
            Self::Register(register) => Ok(register),
            other => Err(other.wrong_type(name, FieldType::Register)),
        }
    }

    /// Carries out an operation of this replica and gives what changed. `now` comes from the replica's
    /// [`HybridClock`](crate::HybridClock); `name` is for the error.
    pub fn apply_local(
        &mut self,
        name: &str,
        operation: Operation,
        replica: ReplicaId,
        now: Hlc,
    ) -> Result<FieldDelta, ApplyError> {
        match (self, operation) {
            (Self::Counter(counter), Operation::CounterAdd(amount)) => {
                let delta = counter.add(amount, replica);
                delta
                    .map(|delta| FieldDelta(Self::Counter(delta)))
                    .map_err(|overflow| ApplyError::CounterOverflow { field: name.to_owned(), overflow })
            }
            (Self::Register(register), Operation::RegisterSet(value)) => {
                Ok(FieldDelta(Self::Register(register.set(value, replica, now))))
            }
            (field, operation) => Err(field.wrong_type(name, operation.field_type()).into()),
        }
    }

    /// Takes in a delta of any replica.
    ///
    /// If the types differ, the one that comes first in [`FieldType`] is kept, here as everywhere else:
    /// a merge that failed would leave the replicas apart for good.
    pub fn merge(&mut self, delta: FieldDelta) -> Merged {
        let (ours, theirs) = (self.field_type(), delta.0.field_type());
        let changed = match (&mut *self, delta.0) {
            (Self::Counter(ours), Self::Counter(theirs)) => ours.merge(&theirs),
            (Self::Register(ours), Self::Register(theirs)) => ours.merge(theirs),
            (_, other) => {
                if theirs < ours {
                    *self = other;
                }
                return Merged::TypeConflict { kept: ours.min(theirs), lost: ours.max(theirs) };
            }
        };
        if changed { Merged::Changed } else { Merged::Unchanged }
    }

    fn wrong_type(&self, name: &str, wanted: FieldType) -> WrongType {
        WrongType { field: name.to_owned(), actual: self.field_type(), wanted }
    }
}

impl FieldDelta {
    /// Which type of field it belongs to.
    pub fn field_type(&self) -> FieldType {
        self.0.field_type()
    }

    /// Takes another delta of the same field into this one.
    pub fn merge(&mut self, other: Self) -> Merged {
        self.0.merge(other)
    }
}

/// A whole state is a delta too: what a replica that knows nothing is sent.
impl From<Field> for FieldDelta {
    fn from(field: Field) -> Self {
        Self(field)
    }
}

/// What a replica that knew nothing makes of a delta.
impl From<FieldDelta> for Field {
    fn from(delta: FieldDelta) -> Self {
        delta.0
    }
}

impl Operation {
    /// The type of field it works on.
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::CounterAdd(_) => FieldType::Counter,
            Self::RegisterSet(_) => FieldType::Register,
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Register => "register",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1, 0);
    const NOW: Hlc = Hlc { wall_ms: 1, logical: 0 };

    #[test]
    fn a_field_used_as_another_type_says_what_it_is() {
        let mut field = Field::empty(FieldType::Counter);
        let error = field.apply_local("x", Operation::RegisterSet("v".into()), A, NOW).unwrap_err();
        assert_eq!(error.to_string(), "field `x` is a counter, not a register");
        assert_eq!(field.register("x").unwrap_err().to_string(), error.to_string());
        let register = Field::empty(FieldType::Register);
        assert_eq!(
            register.counter("y").unwrap_err().to_string(),
            "field `y` is a register, not a counter"
        );
    }

    #[test]
    fn an_overflow_names_the_field() {
        let mut field = Field::empty(FieldType::Counter);
        field.apply_local("hits", Operation::CounterAdd(i64::MAX), A, NOW).unwrap();
        let error = field.apply_local("hits", Operation::CounterAdd(1), A, NOW).unwrap_err();
        assert_eq!(
            error.to_string(),
            "field `hits`: adding 1 to a counter of 9223372036854775807 leaves the range of a 64-bit integer"
        );
    }

    #[test]
    fn merges_tell_whether_there_was_news() {
        let mut there = Field::empty(FieldType::Counter);
        let delta = there.apply_local("x", Operation::CounterAdd(1), A, NOW).unwrap();
        let mut here = Field::empty(FieldType::Counter);
        assert_eq!(here.merge(delta.clone()), Merged::Changed);
        assert_eq!(here.merge(delta), Merged::Unchanged);
    }

    #[test]
    fn fields_made_with_different_types_agree_on_the_first() {
        let mut counter = Field::empty(FieldType::Counter);
        let mut register = Field::empty(FieldType::Register);
        let added = counter.apply_local("x", Operation::CounterAdd(1), A, NOW).unwrap();
        let set = register.apply_local("x", Operation::RegisterSet("v".into()), A, NOW).unwrap();
        let conflict = Merged::TypeConflict { kept: FieldType::Counter, lost: FieldType::Register };
        assert_eq!(counter.merge(set), conflict);
        assert_eq!(register.merge(added), conflict);
        assert_eq!(counter, register);
        assert_eq!(counter.counter("x").unwrap().value(), 1);
    }
}
