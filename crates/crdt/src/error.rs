//! Errors of operations.

use std::fmt;
use std::sync::Arc;

use automerge::AutomergeError;

use crate::{BoundedCounterError, CounterOverflow, FieldType, GCounterOverflow, ReplicaId};

/// A field was used as another type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` is a {actual}, not a {wanted}")]
pub struct WrongType {
    /// The field's name. For a value in a map, followed by its keys, as in `rooms/lobby`.
    pub field: String,
    /// The type of the field.
    pub actual: FieldType,
    /// The type as which it was used.
    pub wanted: FieldType,
}

impl WrongType {
    /// The same of a value in the field of this name; what a field says of itself begins with its keys.
    pub fn below(mut self, field: &str) -> Self {
        let slash = if self.field.is_empty() { "" } else { "/" };
        self.field = format!("{field}{slash}{}", self.field);
        self
    }
}

/// An operation was refused; the field is unchanged. `field` is its name, for a value in a map with the keys after it.
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
    /// The g-counter is full.
    #[error("field `{field}`: {overflow}")]
    GCounterOverflow {
        /// The field's name.
        field: String,
        /// What did not fit.
        overflow: GCounterOverflow,
    },
    /// This node's share of a bounded counter does not suffice.
    #[error(
        "field `{field}`: taking {amount} needs a share of as much, and this node may take {share} of {value} now; \
         ask the other nodes for more or take less"
    )]
    BelowFloor {
        /// The field's name.
        field: String,
        /// What the counter holds as far as this node knows.
        value: i64,
        /// What this node may take now.
        share: u64,
        /// What was to be taken.
        amount: u64,
    },
    /// An index is beyond a list's, text's or array's end.
    #[error("field `{field}`: index {index} is out of range, the length is {length}")]
    IndexOutOfRange {
        /// The field's name.
        field: String,
        /// The index.
        index: u64,
        /// How long it is.
        length: u64,
    },
    /// A JSON pointer (RFC 6901) that cannot be followed.
    #[error("field `{field}`: the JSON pointer `{pointer}` cannot be followed: {problem}")]
    BadPointer {
        /// The field's name.
        field: String,
        /// The pointer.
        pointer: String,
        /// The fault.
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
    /// Maps or JSON values nest too deep.
    #[error("field `{field}`: it would nest deeper than {limit} levels; use fewer")]
    TooDeep {
        /// The field's name.
        field: String,
        /// The maximum number of levels.
        limit: usize,
    },
    /// A document would not be readable any more.
    #[error("field `{field}`: the document takes {bytes} bytes and may take {limit_bytes}; split it")]
    TooLarge {
        /// The field's name.
        field: String,
        /// The size of the document, in bytes.
        bytes: usize,
        /// The maximum size, in bytes.
        limit_bytes: usize,
    },
    /// A replica that was folded, which is permanent, still writes.
    #[error(
        "field `{field}`: replica {replica} was folded with all up to incarnation {up_to} of its node; \
         it must start again with a higher one"
    )]
    Folded {
        /// The field's name.
        field: String,
        /// The writer.
        replica: ReplicaId,
        /// The last folded incarnation.
        up_to: u32,
    },
    /// A replica made all the updates that can be told apart.
    #[error("field `{field}`: replica {replica} has made 2^64 - 1 updates; restart its node")]
    Exhausted {
        /// The field's name.
        field: String,
        /// The writer.
        replica: ReplicaId,
    },
    /// The document engine refused an edit.
    #[error("field `{field}`: the document cannot be edited: {error}")]
    Document {
        /// The field's name.
        field: String,
        /// The error of the document engine.
        error: LibraryError<AutomergeError>,
    },
}

/// An error of a library. A clone shares it; two are equal if their texts are.
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
