//! An instance in the coordinator: its workflow, its state and its inbox.

use std::sync::Arc;

use edgefaas_functions::durable::AnswerTo;
use edgefaas_functions::invoker::PlaceInQueue;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_functions::trace::Entry;
use edgefaas_workflow::instance::FrameId;
use edgefaas_workflow::{ErrorKind, WorkflowError};
use parking_lot::Mutex;
use serde_json::Value;
use ulid::Ulid;

use super::inbox::Inbox;
use super::kept_call::KeptCall;
use super::place::{Held, Place};
use super::root_budget::RootBudget;
use super::run_state::RunState;

impl Running {
    /// The instance's timer has fired and is cleared.
    pub(crate) fn timer_fired(&self) {
        self.state.lock().registered.due_ms = None;
    }

    pub(crate) fn is_durable(&self) -> bool {
        // A call with a key, or one that does not wait, makes its instance durable, as it does with an invocation.
        self.workflow.program.durable || self.kept_call.is_some()
    }
}

/// An instance that has not ended, or has failed and can be retried.
pub struct Running {
    pub(crate) id: Ulid,
    pub(crate) workflow: Arc<LiveWorkflow>,
    pub(crate) depth: u8,
    pub(crate) trace_parent: Option<String>,
    /// The door of the call that started it.
    pub(crate) entry: Entry,
    /// The parent instance and the task that waits, if it waits for the end.
    pub(crate) parent: Option<(Ulid, FrameId)>,
    /// The answer's MQTT topic, if a client waits for one.
    pub(crate) answer: Option<AnswerTo>,
    /// The call, if its outcome is kept.
    pub(crate) kept_call: Option<KeptCall>,
    /// Its place, if it runs after others.
    pub(crate) held: Option<Held>,
    pub(crate) input_bytes: usize,
    /// See [`Environment::memory_bytes`](edgefaas_workflow::Environment::memory_bytes).
    pub(crate) memory_bytes: u64,
    /// The budget of the root and all of its descendants.
    pub(crate) root: Arc<RootBudget>,
    pub(crate) state: Mutex<RunState>,
    pub(crate) inbox: Mutex<Inbox>,
}

impl Running {
    /// Charges the instance's memory.
    pub(crate) fn charge(&self, instance_bytes: usize) -> bool {
        self.state.lock().charge_for(self.input_bytes, instance_bytes)
    }

    /// The place of a call, which is made now, in the queue of its function. Instances begin in the order of their messages, so the
    /// first call of one takes that of its arrival.
    pub(crate) fn place_of_call(&self) -> PlaceInQueue {
        let has_called = std::mem::replace(&mut self.state.lock().open.has_called, true);
        match self.parent.is_some() || has_called {
            true => PlaceInQueue::OfChain,
            false => PlaceInQueue::OfArrival,
        }
    }

    /// Releases the compute slot, so that others may compute where memory is short.
    pub(crate) fn has_settled(&self) {
        // The slot takes another lock when it is dropped, so this lock is released first.
        let slot = self.state.lock().computing.slot.take();
        drop(slot);
    }
}

/// A start of a workflow.
#[derive(Clone)]
pub struct Start {
    /// The workflow.
    pub workflow: Arc<LiveWorkflow>,
    /// Input of the instance.
    pub input: Arc<Value>,
    /// Size of the encoded input, in bytes.
    pub input_bytes: usize,
    /// The id of the instance.
    pub id: Ulid,
    /// Depth of the chain of functions and workflows that led to it.
    pub depth: u8,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// The door of the call.
    pub entry: Entry,
    /// Destination of the answer.
    pub answer: Option<AnswerTo>,
    /// The call, if its outcome is kept. The instance is then durable.
    pub kept_call: Option<KeptCall>,
    /// Its place, if it runs after others.
    pub(crate) place: Option<Place>,
    /// The parent instance, and its task that waits for the end.
    pub(crate) parent: Option<(Ulid, FrameId)>,
    /// The budget of its root instance; `None` for a root.
    pub(crate) root: Option<Arc<RootBudget>>,
    /// True for an instance that was recovered from the disk.
    pub(crate) is_recovered: bool,
    /// See [`Running::memory_bytes`].
    pub(crate) memory_bytes: Option<u64>,
}

impl Start {
    /// A start inside the node, without a parent, an answer or a trace.
    pub fn new(workflow: Arc<LiveWorkflow>, input: Value, input_bytes: usize) -> Self {
        Self {
            workflow,
            input: Arc::new(input),
            input_bytes,
            id: Ulid::generate(),
            depth: 0,
            trace_parent: None,
            entry: Entry::Internal,
            parent: None,
            root: None,
            is_recovered: false,
            memory_bytes: None,
            answer: None,
            kept_call: None,
            place: None,
        }
    }
}

/// Like [`input_of`], for a payload with a media type.
///
/// # Errors
/// A validation error if the type is `application/json` or ends with `+json` (RFC 6839) and the payload is neither JSON nor
/// empty.
pub fn declared_input_of(payload: &[u8], content_type: Option<&str>) -> Result<Value, WorkflowError> {
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    if payload.is_empty() || !(media_type == "application/json" || media_type.ends_with("+json")) {
        return Ok(input_of(payload));
    }
    serde_json::from_slice(payload).map_err(|error| {
        let detail = format!("the input is declared as {media_type} and is not JSON: {error}");
        WorkflowError::new(ErrorKind::Validation, detail).at("/input")
    })
}

/// A payload as the input of a workflow: JSON unchanged, other text as a string, other bytes in base64, null for an
/// empty payload.
pub fn input_of(payload: &[u8]) -> Value {
    let mut event = serde_json::Map::new();
    edgefaas_workflow::event::set_data(&mut event, payload);
    event.remove("data").or_else(|| event.remove("data_base64")).unwrap_or_default()
}
