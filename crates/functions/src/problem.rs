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

/// Who reads a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Callers on this machine, and those that proved who they are.
    Trusted,
    /// Everyone else.
    Public,
}

/// What is left of the detail for [`Audience::Public`].
const WITHHELD: &str = "the reason is in the node's log, under the id of this invocation";

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

    /// The document for its reader: messages of the code that ran, positions in it and paths of the node are for
    /// [`Audience::Trusted`] alone. What a caller can do something about stays: limits, queues, names.
    pub fn shown_to(self, audience: Audience) -> Self {
        let is_of_code = self.invocation.is_some() && (self.status >= 500 || self.fault.is_some());
        if audience == Audience::Trusted || !is_of_code {
            return self;
        }
        let fault = self.fault.map(|fault| Box::new(Fault { instance: None, ..*fault }));
        // A workflow's title is its own text, too.
        let title = if fault.is_some() { "Workflow faulted".into() } else { self.title };
        Self { fault, title, detail: WITHHELD.to_owned(), near: Vec::new(), ..self }
    }

    /// The document's text.
    pub fn to_json(&self) -> Vec<u8> {
        // Strings and numbers only: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_isolates::RunError;
    use edgefaas_workflow::{ErrorKind, WorkflowError};

    use super::*;

    #[test]
    fn the_public_learns_nothing_of_the_code() {
        let failed = RunError::Failed {
            message: "no such table: customers".into(),
            location: Some("src/db.ts:7:3".into()),
            stack: None,
        };
        let failed = InvocationError::Run { function: "f".into(), error: failed };
        let workflow = InvocationError::Workflow {
            workflow: "w".into(),
            error: Box::new(
                WorkflowError::new(ErrorKind::Runtime, "no such table: customers").with_status(422),
            ),
        };
        for error in [failed, workflow] {
            let problem = Problem::of(&error, Some("01J"));
            assert_eq!(problem.clone().shown_to(Audience::Trusted), problem);
            let shown = String::from_utf8(problem.shown_to(Audience::Public).to_json()).unwrap();
            assert!(
                shown.contains("01J") && !shown.contains("customers") && !shown.contains("db.ts"),
                "{shown}"
            );
        }
        let full = InvocationError::QueueFull { function: "f".into(), capacity: 7 };
        let full = Problem::of(&full, Some("01J"));
        assert_eq!(full.clone().shown_to(Audience::Public), full, "the caller can do something about it");
    }
}
