//! Errors as HTTP and MQTT clients see them: `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use serde::Serialize;

use crate::invocation::InvocationError;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// A problem document. Where `type` is left out, which means `about:blank`, status and title say what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Of a workflow's error.
    #[serde(flatten)]
    pub fault: Option<Box<Fault>>,
    /// A few words, the same for every problem of the kind.
    pub title: Cow<'static, str>,
    /// The HTTP status code.
    pub status: u16,
    /// What happened, to what, and what to do.
    pub detail: String,
    /// The invocation, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// Names like the unknown one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

/// What only a workflow's error has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The URI of its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The task that raised it: a JSON pointer into the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

impl Problem {
    /// A problem that is no invocation's.
    pub fn new(status: u16, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            fault: None,
            title: title.into(),
            status,
            detail: detail.into(),
            invocation: None,
            near: Vec::new(),
        }
    }

    /// An invocation's error.
    pub fn of(error: &InvocationError, invocation: Option<&str>) -> Self {
        let near = match error {
            InvocationError::UnknownFunction { near, .. } => near.clone(),
            _ => Vec::new(),
        };
        if let InvocationError::Workflow { error, .. } = error {
            return Self {
                fault: Some(Box::new(Fault { kind: error.kind.clone(), instance: error.instance.clone() })),
                title: error.title.clone().unwrap_or_else(|| error.short_kind().to_owned()).into(),
                status: error.status,
                detail: error.detail.clone().unwrap_or_default(),
                invocation: invocation.map(str::to_owned),
                near,
            };
        }
        Self {
            fault: None,
            title: error.title().into(),
            status: error.status(),
            detail: error.detail(),
            invocation: invocation.map(str::to_owned),
            near,
        }
    }

    /// The document's text.
    pub fn to_json(&self) -> Vec<u8> {
        // Strings and numbers only: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}
