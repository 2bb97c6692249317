//! Errors of rules, and of events that cannot be counted.

use crate::duration::TextError;
use crate::expression::{EvalError, ExpressionError};

/// A rule that cannot be used. `Display` says what is wrong, where in the rule, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A value is not of the type that its key has.
    #[error("`{}` is {found}, not {expected}", shown(.pointer))]
    Type {
        /// Where in the rule, as a JSON pointer; empty for the rule itself.
        pointer: String,
        /// What belongs there, with its article.
        expected: &'static str,
        /// What stands there, with its article.
        found: &'static str,
    },
    /// There is no such key.
    #[error("`{}` is not a key of an event rule; {}", .pointer, near_or_known(.near, .known))]
    UnknownKey {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// The key that may have been meant.
        near: Option<&'static str>,
        /// All keys there.
        known: &'static [&'static str],
    },
    /// A key that must be there is not.
    #[error("`{pointer}` is missing; {help}")]
    Missing {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// What to write.
        help: &'static str,
    },
    /// The rule has no condition.
    #[error("the event rule says not when it fires; add one of {}", list(.known))]
    NoCondition {
        /// The keys of which it needs one.
        known: &'static [&'static str],
    },
    /// Keys that do not go together.
    #[error("`{pointer}` does not go with `{other}`; {help}")]
    Conflict {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// The other key, as a JSON pointer.
        other: String,
        /// What to do.
        help: &'static str,
    },
    /// A number that can never be right.
    #[error("`{pointer}` is {found}, but must be {allowed}")]
    Number {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        allowed: String,
    },
    /// A text that is no duration.
    #[error(
        "`{pointer}` is `{text}`, which is no duration: {reason}; write `200ms`, `30s`, `5m`, `1h`, `1d` or `PT30S`"
    )]
    Duration {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// What stands there.
        text: String,
        /// Why it is none.
        reason: TextError,
    },
    /// An expression that cannot be used.
    #[error("the expression `{text}` of `{pointer}` cannot be used: {reason}")]
    Expression {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// What stands there.
        text: String,
        /// Why it cannot be used.
        reason: RuleExpressionError,
    },
    /// A name or topic filter that is none.
    #[error("`{pointer}` is `{text}`: {reason}")]
    Text {
        /// Where in the rule, as a JSON pointer.
        pointer: String,
        /// What stands there.
        text: String,
        /// What is wrong with it and what to do.
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
    /// The place in the rule, as a JSON pointer (RFC 6901); empty for the rule itself.
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

/// An event that could not be counted. The synthesizer is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SynthesisError {
    /// The key's expression failed.
    #[error("the key of an event could not be computed: {reason}; check `key` against the events it gets")]
    Key {
        /// The error of the expression.
        reason: EvalError,
    },
    /// The key is `null`: the event has none.
    #[error(
        "an event has no key: the expression of `key` gives null; check it, or give it a default with `//`"
    )]
    NoKey,
    /// The key is too long to be kept.
    #[error(
        "the key of an event has {bytes} bytes as JSON, the maximum is {max_bytes}; make `key` pick a smaller part"
    )]
    LongKey {
        /// Its length as JSON.
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
    /// The threshold's value is no number.
    #[error(
        "the value of an event is {found}, not a number; make `threshold.value` give one (`tonumber` reads texts)"
    )]
    NotANumber {
        /// What it is, with its article.
        found: &'static str,
    },
    /// There is no such filter.
    #[error("an event came from filter {source_index}, but the rule has {sources} filters, counted from 0")]
    Source {
        /// The filter's index.
        source_index: usize,
        /// How many there are.
        sources: usize,
    },
}

/// What kind of value this is, with its article.
pub(super) fn kind_of(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
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
