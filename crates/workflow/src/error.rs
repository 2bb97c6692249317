//! Errors of running workflows, in the format of the DSL (specification, section "Errors") and of RFC 9457.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::data::{Data, Limited};

/// Prefix of the types of all errors that the DSL defines.
pub const TYPE_PREFIX: &str = "https://serverlessworkflow.io/spec/1.0.0/errors/";

/// The beginning of the same types in the specification's section on errors and in its examples.
const OTHER_TYPE_PREFIX: &str = "https://serverlessworkflow.io/dsl/errors/types/";

/// The name of the type of an error, from either spelling of the specification. `None` for a type of the user.
pub(crate) fn type_name(kind: &str) -> Option<&str> {
    kind.strip_prefix(TYPE_PREFIX).or_else(|| kind.strip_prefix(OTHER_TYPE_PREFIX))
}

/// An error that a workflow raises, catches or ends with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.summary())]
pub struct WorkflowError {
    /// A URI that identifies the kind of the error.
    #[serde(rename = "type")]
    pub kind: String,
    /// An HTTP status code.
    pub status: u16,
    /// A short description of the kind.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    /// A description of this occurrence of the error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The task that failed, as a JSON pointer into the definition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instance: Option<String>,
}

/// The kinds of errors that the DSL defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ErrorKind {
    Configuration,
    Validation,
    Expression,
    Authentication,
    Authorization,
    Timeout,
    Communication,
    Runtime,
}

impl ErrorKind {
    /// The last part of the type URI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Validation => "validation",
            Self::Expression => "expression",
            Self::Authentication => "authentication",
            Self::Authorization => "authorization",
            Self::Timeout => "timeout",
            Self::Communication => "communication",
            Self::Runtime => "runtime",
        }
    }

    /// The HTTP status of this kind.
    pub fn status(self) -> u16 {
        match self {
            Self::Configuration | Self::Validation | Self::Expression => 400,
            Self::Authentication => 401,
            Self::Authorization => 403,
            Self::Timeout => 408,
            Self::Communication | Self::Runtime => 500,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Configuration => "Configuration Error",
            Self::Validation => "Validation Error",
            Self::Expression => "Expression Error",
            Self::Authentication => "Authentication Error",
            Self::Authorization => "Authorization Error",
            Self::Timeout => "Timeout Error",
            Self::Communication => "Communication Error",
            Self::Runtime => "Runtime Error",
        }
    }
}

impl WorkflowError {
    /// Creates an error of a kind that the DSL defines.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE_PREFIX}{}", kind.name()),
            status: kind.status(),
            title: Some(kind.title().to_owned()),
            detail: Some(detail.into()),
            instance: None,
        }
    }

    /// Creates the error for an exhausted budget of the instance, or of its root instance with all descendants: a runtime
    /// error with status 503, which `try` can catch. `detail` names the budget, its limit and the key that changes it.
    pub fn over_budget(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Runtime, detail).with_status(503)
    }

    /// Returns the error with another status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the task of the error to `path`, unless the error already has a task.
    pub fn at(mut self, path: &str) -> Self {
        self.instance.get_or_insert_with(|| path.to_owned());
        self
    }

    /// The JSON form of the error, for expressions and callers.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_else(|_| json!({"type": self.kind, "status": self.status}))
    }

    /// Returns the error with each of its texts cut to at most `max_bytes` bytes; `…` marks a cut.
    pub fn shortened(&self, max_bytes: usize) -> Self {
        let cut = |text: &String| Limited::of(max_bytes, text);
        Self {
            kind: cut(&self.kind),
            status: self.status,
            title: self.title.as_ref().map(cut),
            detail: self.detail.as_ref().map(cut),
            instance: self.instance.as_ref().map(cut),
        }
    }

    /// The value of the error in expressions.
    pub(crate) fn to_data(&self) -> Data {
        Data::from_json(&self.to_json()).unwrap_or_default()
    }

    /// The name of the type; the whole type if the DSL does not define it.
    pub fn short_kind(&self) -> &str {
        type_name(&self.kind).unwrap_or(&self.kind)
    }

    fn summary(&self) -> String {
        let mut text = format!("{} ({})", self.title.as_deref().unwrap_or(self.short_kind()), self.status);
        if let Some(detail) = &self.detail {
            text.push_str(": ");
            text.push_str(detail);
        }
        if let Some(instance) = &self.instance {
            text.push_str(" at ");
            text.push_str(instance);
        }
        text
    }
}
