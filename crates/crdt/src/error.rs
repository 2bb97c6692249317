//! Errors of operations.

use std::fmt;
use std::sync::Arc;

use crate::{BoundedCounterError, CounterOverflow, FieldType, GCounterOverflow, ReplicaId};

/// A field was used as a type that it does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is a {actual}, not a {wanted}")]
pub struct WrongType {
    /// The field's name. For a value in a map, the keys follow the name, as in `rooms/lobby`.
    pub field: String,
    /// The type of the field.
    pub actual: FieldType,
    /// The type as which it was used.
    pub wanted: FieldType,
}

impl WrongType {
    /// Prepends the name `field` to the path of the error. A [`Field`](crate::Field) does not know its name, so that its own
    /// errors contain only the keys of nested maps.
    pub fn below(mut self, field: &str) -> Self {
        let slash = if self.field.is_empty() { "" } else { "/" };
        self.field = format!("{field}{slash}{}", self.field);
        self
    }
}

/// An operation was rejected, and the field is unchanged. `field` is the field's name; for a value in a map, the keys follow
/// the name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The operation belongs to another type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The field was deleted, and not all members know that yet: until then its type is reserved.
    #[error(
        "field `{field}` was a {was} when it was deleted, and can be a {wanted} once all members of the cluster know of \
         the deletion; use another name, or try again later"
    )]
    DeletedAs {
        /// The field's name.
        field: String,
        /// The type of the deleted field.
        was: FieldType,
        /// The type as which it was used.
        wanted: FieldType,
    },
    /// The new value of the counter is outside the range of a 64-bit integer.
    #[error("field `{field}`: {overflow}")]
    CounterOverflow {
        /// The field's name.
        field: String,
        /// The value of the counter and the amount to be added.
        overflow: CounterOverflow,
    },
    /// The new value of the g-counter is outside the range of an unsigned 64-bit integer.
    #[error("field `{field}`: {overflow}")]
    GCounterOverflow {
        /// The field's name.
        field: String,
        /// The value of the counter and the amount to be added.
        overflow: GCounterOverflow,
    },
    /// This node's share of a bounded counter is smaller than the amount to be taken.
    #[error(
        "field `{field}`: taking {amount} needs a share of as much, and this node may take {share} of {value} now; \
         ask the other nodes for more or take less"
    )]
    BelowFloor {
        /// The field's name.
        field: String,
        /// The value of the counter that this node knows.
        value: i64,
        /// The amount that this node may take now.
        share: u64,
        /// The amount to be taken.
        amount: u64,
    },
    /// An index is beyond the end of a list, text or array.
    #[error("field `{field}`: index {index} is out of range, the length is {length}")]
    IndexOutOfRange {
        /// The field's name.
        field: String,
        /// The index.
        index: u64,
        /// The length of the list, text or array.
        length: u64,
    },
    /// A JSON pointer (RFC 6901) is invalid, or a value on its path does not exist or is neither an object nor an array.
    #[error("field `{field}`: the JSON pointer `{pointer}` cannot be followed: {problem}")]
    BadPointer {
        /// The field's name.
        field: String,
        /// The pointer.
        pointer: String,
        /// The reason.
        problem: &'static str,
    },
    /// A text is not valid JSON.
    #[error("field `{field}`: the value is not valid JSON: {error}")]
    BadJson {
        /// The field's name.
        field: String,
        /// The parser's error, with line and column.
        error: LibraryError<serde_json::Error>,
    },
    /// Maps or JSON values would be nested too deeply.
    #[error("field `{field}`: it would nest deeper than {limit} levels; use fewer")]
    TooDeep {
        /// The field's name.
        field: String,
        /// The maximum number of levels.
        limit: usize,
    },
    /// A list, text or JSON document would exceed the maximum size of its values and positions.
    #[error(
        "field `{field}`: it would take {bytes} bytes and may take {limit_bytes}; remove a part of it first, or use several \
         fields"
    )]
    TooLarge {
        /// The field's name.
        field: String,
        /// The size of the document, in bytes.
        bytes: usize,
        /// The maximum size, in bytes.
        limit_bytes: usize,
    },
    /// The replica was folded and can no longer write. Folding is permanent.
    #[error(
        "field `{field}`: replica {replica} was folded with all up to incarnation {up_to} of its node; \
         it must start again with a higher one"
    )]
    Folded {
        /// The field's name.
        field: String,
        /// The replica that writes.
        replica: ReplicaId,
        /// The last folded incarnation.
        up_to: u32,
    },
    /// The replica has used all numbers of updates.
    #[error("field `{field}`: replica {replica} has made 2^64 - 1 updates; restart its node")]
    Exhausted {
        /// The field's name.
        field: String,
        /// The replica that writes.
        replica: ReplicaId,
    },
    /// The position of a new element between two others would be too long, after very many insertions between elements that
    /// were inserted just before.
    #[error(
        "field `{field}`: there is no room at this place: a position may have {limit} parts; remove elements around it and \
         insert them again"
    )]
    TooCrowded {
        /// The field's name.
        field: String,
        /// The maximum number of parts of a position.
        limit: usize,
    },
}

/// An error of a library. Clones share it. Two errors are equal if their texts are equal.
#[derive(Debug)]
pub struct LibraryError<E>(Arc<E>);

impl<E> LibraryError<E> {
    pub(crate) fn new(error: E) -> Self {
        Self(Arc::new(error))
    }
}

impl<E> Clone for LibraryError<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: fmt::Display> PartialEq for LibraryError<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl<E: fmt::Display> Eq for LibraryError<E> {}

impl<E: fmt::Display> fmt::Display for LibraryError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl ApplyError {
    pub(crate) fn bounded(name: &str, error: BoundedCounterError) -> Self {
        let field = name.to_owned();
        match error {
            BoundedCounterError::BelowFloor { value, share, amount } => {
                Self::BelowFloor { field, value, share, amount }
            }
            BoundedCounterError::Overflow { value, amount } => {
                Self::CounterOverflow { field, overflow: CounterOverflow { value, amount } }
            }
        }
    }
}
