//! JSON form of errors for HTTP and MQTT clients: `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use serde::Serialize;

use crate::invocation::InvocationError;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// A problem document. Without a `type`, which means `about:blank`, status and title identify the kind of problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The members that only the error of a workflow has.
    #[serde(flatten)]
    pub fault: Option<Box<Fault>>,
    /// A short title, the same for all problems of one kind.
    pub title: Cow<'static, str>,
    /// The HTTP status code.
    pub status: u16,
    /// The message for this problem: the cause, the name of the function, and what the caller can do.
    pub detail: String,
    /// The id of the invocation, if the problem belongs to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// Names similar to the unknown one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

/// The readers of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Callers on this machine and authenticated callers.
    Trusted,
    /// All other callers.
    Public,
}

/// The detail that replaces a withheld one for [`Audience::Public`].
const WITHHELD: &str = "the reason is in the node's log, under the id of this invocation";

/// The members that only the error of a workflow has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The URI of the error type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The task that raised it: a JSON pointer into the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

impl Problem {
    /// A problem without an invocation.
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

    /// The problem document of an invocation's error.
    pub fn of(error: &InvocationError, invocation: Option<&str>) -> Self {
        let near = match error {
            InvocationError::UnknownFunction { near, .. }
            | InvocationError::UnknownWorkflow { near, .. } => near.clone(),
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

    /// The document for an audience. Only [`Audience::Trusted`] sees messages of the function's code, positions in it and
    /// paths of the node. Errors that the caller can avoid (limits, full queues, unknown names) stay unchanged.
    pub fn shown_to(self, audience: Audience) -> Self {
        let is_of_code = self.invocation.is_some() && (self.status >= 500 || self.fault.is_some());
        if audience == Audience::Trusted || !is_of_code {
            return self;
        }
        let fault = self.fault.map(|fault| Box::new(Fault { instance: None, ..*fault }));
        // The title of a workflow's error is text of the workflow, too.
        let title = if fault.is_some() { "Workflow faulted".into() } else { self.title };
        Self { fault, title, detail: WITHHELD.to_owned(), near: Vec::new(), ..self }
    }

    /// The document as JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        // This cannot fail: it has only strings and numbers.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_isolates::RunError;
    use edgefaas_workflow::{ErrorKind, WorkflowError};

    use super::*;

    #[test]
    fn public_callers_see_no_details_of_the_code() {
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
        assert_eq!(full.clone().shown_to(Audience::Public), full, "the caller can avoid this error");
    }
}
