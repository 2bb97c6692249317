//! What an instance asks for: calls, messages, subscriptions, and notes about its tasks.

use std::sync::Arc;

use serde_json::Value;

use super::event::FrameId;
use super::filter::ActiveFilter;
use super::request::RequestParts;
use crate::data::Data;
use crate::program::{HttpOutput, NodeId};

/// An action that the host must carry out.
#[derive(Debug, Clone)]
pub enum Action {
    /// Call a function; [`Event::Ended`] is awaited.
    Call {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The function.
        function: Arc<str>,
        /// What it gets.
        body: Arc<Value>,
    },
    /// Send an HTTP request; [`Event::Ended`] with what [`read_answer`] makes of it is awaited.
    Request {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// What to send.
        request: Box<RequestParts>,
        /// What is read of the answer.
        output: HttpOutput,
    },
    /// Run a script; [`Event::Ended`] is awaited if `wait` says so.
    Script {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// Its text.
        code: Arc<str>,
        /// What it sees: `{arguments, environment}`.
        input: Arc<Value>,
        /// Its end is awaited.
        wait: bool,
    },
    /// Run a workflow; [`Event::Ended`] is awaited if `wait` says so.
    Workflow {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The workflow.
        name: Arc<str>,
        /// Its input.
        input: Arc<Value>,
        /// Its end is awaited.
        wait: bool,
    },
    /// Publish a message. Nothing is awaited.
    Publish(Outgoing),
    /// From now on, [`Event::Message`] is awaited for events that these filters may take.
    Listen {
        /// Names it.
        frame: FrameId,
        /// The filters; their index is the event's `source`.
        filters: Vec<ActiveFilter>,
        /// The length of this queue is wanted, as [`Event::QueueLength`].
        queue: Option<crate::synthesizer::Queue>,
    },
    /// The end of [`Action::Listen`].
    Unlisten {
        /// What [`Action::Listen`] named.
        frame: FrameId,
    },
    /// Cancel the call of this frame; its end is ignored.
    Cancel {
        /// Names it.
        frame: FrameId,
    },
    /// Send [`Event::Continue`] when others had their turn.
    Continue,
    /// What happened to a task, where [`Environment::observed`] asks for it.
    Note(Note),
}

/// A message that a workflow sends.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The task.
    pub node: NodeId,
    /// The topic; none for an event that names none.
    pub topic: Option<String>,
    /// A CloudEvent, or the payload.
    pub content: Content,
    /// 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// User properties.
    pub headers: Vec<(String, String)>,
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
    /// The frame that the task has, or that of the list it is in.
    pub frame: FrameId,
    /// The task; none for the workflow as a whole.
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
        }
    }
}
