//! Errors of expressions: text that does not compile, and evaluations without a value.

use std::fmt;

use super::meter::Stop;
use crate::data::Limited;

/// Maximum length of an expression in a message, in bytes.
const EXCERPT_BYTES: usize = 80;

/// Text that is not an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// The fault.
    pub message: String,
    /// The position, in bytes from the start of `text`.
    pub offset: usize,
    /// The text as it was given.
    pub text: String,
}

/// The reason why an expression has no value. Messages show at most 100 bytes of the data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An error of jq's, or `error(…)`.
    #[error("`{expression}`: {message}")]
    Failed {
        /// The start of the expression.
        expression: String,
        /// The error.
        message: String,
    },
    /// It has more than one output.
    #[error("`{expression}` has several values, and one is wanted; put `[` and `]` around it for an array")]
    Several {
        /// The start of the expression.
        expression: String,
    },
    /// It exceeded a limit of the evaluation.
    #[error("an expression may take {limit} and this one takes more")]
    Budget {
        /// The limit, with its unit.
        limit: &'static str,
    },
    /// A value, created or received, is too large.
    #[error("{what} has more than {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, with its unit.
        limit: &'static str,
    },
}

impl EvalError {
    /// An error of jq's in the expression `source`.
    pub(super) fn failed(source: &str, message: impl Into<String>) -> Self {
        Self::Failed { expression: excerpt(source), message: message.into() }
    }

    /// The expression `source` has more than one output.
    pub(super) fn several(source: &str) -> Self {
        Self::Several { expression: excerpt(source) }
    }
}

impl From<Stop> for EvalError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Steps => Self::Budget { limit: "250,000 steps" },
            Stop::Stack => {
                Self::Budget { limit: "1 MiB of stack: its functions call themselves too deeply" }
            }
            Stop::Chain => {
                Self::Budget { limit: "3,000 calls of functions that pass functions to themselves" }
            }
            Stop::Memory => Self::TooLarge {
                what: "what an expression makes",
                limit: "its instance may hold (workflows.root_memory)",
            },
            Stop::Allocated => Self::Budget { limit: "128 MiB of memory" },
            Stop::StringBytes => Self::TooLarge { what: "a string", limit: "16 MiB" },
            Stop::Items => Self::TooLarge { what: "an array or an object", limit: "1,000,000 items" },
            Stop::ValueBytes => Self::TooLarge { what: "a value", limit: "64 MiB" },
            Stop::Depth => Self::TooLarge { what: "the nesting of a value", limit: "256 levels" },
        }
    }
}

fn excerpt(source: &str) -> String {
    Limited::of(EXCERPT_BYTES, &source)
}

impl std::error::Error for ExpressionError {}

impl fmt::Display for ExpressionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.text.floor_char_boundary(self.offset.saturating_sub(EXCERPT_BYTES / 2));
        let around = Limited::of(EXCERPT_BYTES, &self.text.get(from..).unwrap_or_default());
        let cut = if from > 0 { "…" } else { "" };
        write!(out, "in the expression `{cut}{around}`, at byte {}: {}", self.offset, self.message)
    }
}
