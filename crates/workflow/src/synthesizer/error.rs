//! Errors of rules, and of events that cannot be counted.

use crate::duration::TextError;
use crate::expression::{EvalError, ExpressionError};

/// A rule is invalid. The message has the fault, its place in the rule, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A value is not of the type that its key has.
    #[error("`{}` is {found}, not {expected}", shown(.pointer))]
    Type {
        /// The location in the rule, as a JSON pointer; empty for the rule itself.
        pointer: String,
        /// The expected type, with its article.
        expected: &'static str,
        /// The type of the value, with its article.
        found: &'static str,
    },
    /// The key is unknown.
    #[error("`{}` is not a key of an event rule; {}", .pointer, near_or_known(.near, .known))]
    UnknownKey {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The most similar key, if one is similar enough.
        near: Option<&'static str>,
        /// All known keys.
        known: &'static [&'static str],
    },
    /// A required key is missing.
    #[error("`{pointer}` is missing; {help}")]
    Missing {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// What to write.
        help: &'static str,
    },
    /// The rule has no condition.
    #[error("the event rule has no condition; add one of {}", list(.known))]
    NoCondition {
        /// All conditions.
        known: &'static [&'static str],
    },
    /// Two keys exclude each other.
    #[error("`{pointer}` does not go with `{other}`; {help}")]
    Conflict {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The other key, as a JSON pointer.
        other: String,
        /// The remedy.
        help: &'static str,
    },
    /// A number is out of range.
    #[error("`{pointer}` is {found}, but must be {allowed}")]
    Number {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The value in the rule.
        found: String,
        /// The allowed range.
        allowed: String,
    },
    /// A text is not a valid duration.
    #[error(
        "`{pointer}` is `{text}`, which is not a valid duration: {reason}; write `200ms`, `30s`, `5m`, `1h`, `1d` or `PT30S`"
    )]
    Duration {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The value in the rule.
        text: String,
        /// The fault.
        reason: TextError,
    },
    /// An expression is invalid.
    #[error("the expression `{text}` of `{pointer}` cannot be used: {reason}")]
    Expression {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The value in the rule.
        text: String,
        /// The fault.
        reason: RuleExpressionError,
    },
    /// A name or topic filter is invalid.
    #[error("`{pointer}` is `{text}`: {reason}")]
    Text {
        /// The location in the rule, as a JSON pointer.
        pointer: String,
        /// The value in the rule.
        text: String,
        /// The fault and the remedy.
        reason: &'static str,
    },
}

/// The expression of a rule cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleExpressionError {
    /// There is no jq text inside of `${ }`.
    #[error("it is empty")]
    Empty,
    /// The text does not start with `${` and end with `}`.
    #[error("it is not of the form `${{ .data.room }}`")]
    NoBraces,
    /// The jq text does not compile.
    #[error(transparent)]
    Invalid(#[from] ExpressionError),
}

impl RuleError {
    /// The location in the rule, as a JSON pointer (RFC 6901); empty for the rule itself.
    pub fn pointer(&self) -> &str {
        match self {
            Self::NoCondition { .. } => "",
            Self::Type { pointer, .. }
            | Self::UnknownKey { pointer, .. }
            | Self::Missing { pointer, .. }
            | Self::Conflict { pointer, .. }
            | Self::Number { pointer, .. }
            | Self::Duration { pointer, .. }
            | Self::Expression { pointer, .. }
            | Self::Text { pointer, .. } => pointer,
        }
    }
}

/// An event cannot be counted. The synthesizer is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SynthesisError {
    /// The key's expression failed.
    #[error("the key of an event could not be computed: {reason}; check `key` against the events it gets")]
    Key {
        /// The error of the expression.
        reason: EvalError,
    },
    /// The key is `null`.
    #[error(
        "an event has no key: the expression of `key` gives null; check it, or give it a default with `//`"
    )]
    NoKey,
    /// The key is too long.
    #[error(
        "the key of an event has {bytes} bytes as JSON, the maximum is {max_bytes}; make `key` pick a smaller part"
    )]
    LongKey {
        /// Its length as JSON, in bytes.
        bytes: usize,
        /// The maximum, in bytes as JSON.
        max_bytes: usize,
    },
    /// The threshold's expression failed.
    #[error(
        "the value of an event could not be computed: {reason}; check `threshold.value` against the events it gets"
    )]
    Value {
        /// The error of the expression.
        reason: EvalError,
    },
    /// The threshold's value is not a number.
    #[error(
        "the value of an event is {found}, not a number; make `threshold.value` give one (`tonumber` reads texts)"
    )]
    NotANumber {
        /// The type of the value, with its article.
        found: &'static str,
    },
    /// The index of the filter is out of range.
    #[error("an event came from filter {source_index}, but the rule has {sources} filters, counted from 0")]
    Source {
        /// The filter's index.
        source_index: usize,
        /// Number of filters.
        sources: usize,
    },
}

fn shown(pointer: &str) -> &str {
    if pointer.is_empty() { "events" } else { pointer }
}

fn near_or_known(near: &Option<&str>, known: &[&str]) -> String {
    match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", list(known)),
    }
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
