//! The output of an instance: calls, messages, subscriptions, and notes about its tasks.

use std::sync::Arc;

use serde_json::Value;

use super::authorization::Credentials;
use super::event::FrameId;
use super::filter::ActiveFilter;
use super::request::RequestParts;
use crate::data::Data;
use crate::program::{HttpOutput, NodeId};

/// An action that the host must carry out.
#[derive(Debug, Clone)]
pub enum Action {
    /// Call a function. The instance waits for [`Event::Ended`].
    Call {
        /// The frame that waits for the result.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The function.
        function: Arc<str>,
        /// The input of the function. It shares the memory of the instance's data.
        body: Data,
    },
    /// Send an HTTP request. The instance waits for [`Event::Ended`] with the result of [`read_answer`].
    Request {
        /// The frame that waits for the result.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The request.
        request: Box<RequestParts>,
        /// The part of the response that the task uses.
        output: HttpOutput,
    },
    /// Read a document that describes a service, and use it as the task says. The instance waits for [`Event::Ended`]: of a call of
    /// OpenAPI with the result of [`read_answer`](super::read_answer), of a call of AsyncAPI with an
    /// [`Address`](crate::api_document::Address).
    Document {
        /// The frame that waits for the result.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The document.
        document: Box<DocumentSource>,
        /// The arguments and credentials of the call of OpenAPI.
        parameters: Arc<Value>,
        /// The authorization of that call.
        credentials: Option<Box<Credentials>>,
    },
    /// Run a script. The instance waits for [`Event::Ended`] if `wait` is true.
    Script {
        /// The frame of the run.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The source text.
        code: Arc<str>,
        /// The variables of the script: `{arguments, environment}`.
        input: Arc<Value>,
        /// True if the instance waits for the end.
        wait: bool,
    },
    /// Run a workflow. The instance waits for [`Event::Ended`] if `wait` is true.
    Workflow {
        /// The frame of the run.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The workflow.
        name: Arc<str>,
        /// Its input.
        input: Arc<Value>,
        /// True if the instance waits for the end.
        wait: bool,
    },
    /// Publish a message. The instance does not wait.
    Publish(Outgoing),
    /// From now on, the instance waits for [`Event::Message`], for events that match these filters.
    Listen {
        /// The frame that listens.
        frame: FrameId,
        /// The filters; their index is the event's `source`.
        filters: Vec<ActiveFilter>,
        /// The queue whose length the host must report with [`Event::QueueLength`].
        queue: Option<crate::synthesizer::Queue>,
    },
    /// The end of [`Action::Listen`].
    Unlisten {
        /// The frame of [`Action::Listen`].
        frame: FrameId,
    },
    /// Cancel the call of this frame; its end is ignored.
    Cancel {
        /// The frame of the call.
        frame: FrameId,
    },
    /// Send [`Event::Continue`] after other instances had their turn.
    Continue,
    /// A change of a task, if [`Environment::observed`] is set.
    Note(Note),
}

/// The place of a document, with all expressions evaluated.
#[derive(Debug, Clone)]
pub enum DocumentSource {
    /// A file of the app.
    File(Arc<str>),
    /// The answer to a request.
    Request(RequestParts),
}

/// A message that a workflow sends.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The task.
    pub node: NodeId,
    /// The topic; `None` for an event without a topic.
    pub topic: Option<String>,
    /// A CloudEvent, or the payload.
    pub content: Content,
    /// The quality of service, 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// User properties.
    pub headers: Vec<(String, String)>,
    /// The [`weight`](crate::weight) of the content, in bytes.
    pub content_bytes: usize,
}

/// The content of a message.
#[derive(Debug, Clone)]
pub enum Content {
    /// A CloudEvent in its JSON form.
    CloudEvent(Arc<Value>),
    /// Any payload: text as it is, everything else as JSON.
    Payload(Value),
}

/// A change of a task, for traces and lifecycle events.
#[derive(Debug, Clone)]
pub struct Note {
    /// The kind of change.
    pub kind: NoteKind,
    /// The frame of the task, or of the list that contains it.
    pub frame: FrameId,
    /// The task; `None` for the workflow as a whole.
    pub node: Option<NodeId>,
    /// Input, output or error.
    pub value: Data,
}

/// The kinds of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NoteKind {
    Started,
    Completed,
    Faulted,
    Skipped,
    Retried,
    Cancelled,
    /// A listen with correlations has begun.
    CorrelationStarted,
    /// It has ended; the value has the correlated values, by name.
    CorrelationCompleted,
}

impl NoteKind {
    /// The word in the type of a lifecycle event (specification, section "Lifecycle Events").
    pub fn word(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
            Self::Faulted => "faulted",
            Self::Skipped => "skipped",
            Self::Retried => "retried",
            Self::Cancelled => "cancelled",
            Self::CorrelationStarted => "correlation-started",
            Self::CorrelationCompleted => "correlation-completed",
        }
    }
}
