//! An instance as the coordinator keeps it: what it is, how far it is, and the events that come to it.

use std::sync::Arc;

use edgefaas_functions::durable::AnswerTo;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_workflow::instance::FrameId;
use parking_lot::Mutex;
use serde_json::Value;
use ulid::Ulid;

use super::inbox::Inbox;
use super::root::RootBudget;
use super::run_state::RunState;

impl Running {
    /// Its timer has fired and is not set any more.
    pub(crate) fn timer_fired(&self) {
        self.state.lock().registered.due_ms = None;
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.workflow.program.durable
    }
}

/// An instance that has not ended, or that failed and can be retried.
pub struct Running {
    pub(crate) id: Ulid,
    pub(crate) workflow: Arc<LiveWorkflow>,
    pub(crate) depth: u8,
    pub(crate) trace_parent: Option<String>,
    /// The instance that runs this one, if it waits for it.
    pub(crate) parent: Option<(Ulid, FrameId)>,
    /// Where the answer goes.
    pub(crate) answer: Option<AnswerTo>,
    pub(crate) input_bytes: usize,
    /// See [`Environment::memory_bytes`](edgefaas_workflow::Environment::memory_bytes).
    pub(crate) memory_bytes: u64,
    /// The budget that it shares with its root and all of the root's descendants.
    pub(crate) root: Arc<RootBudget>,
    pub(crate) state: Mutex<RunState>,
    pub(crate) inbox: Mutex<Inbox>,
}

impl Running {
    /// Charges what the instance holds.
    pub(crate) fn charge(&self, instance_bytes: usize) -> bool {
        self.state.lock().charge_for(self.input_bytes, instance_bytes)
    }

    /// Others may compute where memory is short.
    pub(crate) fn has_settled(&self) {
        // Dropped without the lock: it takes another.
        let place = self.state.lock().computing.place.take();
        drop(place);
    }

    /// The span that this one's is in.
    pub(crate) fn parent_span(&self) -> Option<String> {
        self.parent.map(|(id, _)| id.to_string())
    }
}

/// A start of a workflow.
#[derive(Clone)]
pub struct Start {
    /// The workflow.
    pub workflow: Arc<LiveWorkflow>,
    /// Its input.
    pub input: Arc<Value>,
    /// The size of the input as it came.
    pub input_bytes: usize,
    /// The id of the instance.
    pub id: Ulid,
    /// How many functions and workflows have called one another before it.
    pub depth: u8,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// Where the answer is published.
    pub answer: Option<AnswerTo>,
    /// The instance that runs this one, and its task that waits for the end.
    pub(crate) parent: Option<(Ulid, FrameId)>,
    /// The budget of the root instance that it is a descendant of; without one it is a root itself.
    pub(crate) root: Option<Arc<RootBudget>>,
    /// It was there before the node was started.
    pub(crate) is_recovered: bool,
    /// See [`Running::memory_bytes`].
    pub(crate) memory_bytes: Option<u64>,
}

impl Start {
    /// A start by nobody in particular.
    pub fn new(workflow: Arc<LiveWorkflow>, input: Value, input_bytes: usize) -> Self {
        Self {
            workflow,
            input: Arc::new(input),
            input_bytes,
            id: Ulid::generate(),
            depth: 0,
            trace_parent: None,
            parent: None,
            root: None,
            is_recovered: false,
            memory_bytes: None,
            answer: None,
        }
    }
}

/// A payload as the input of a workflow: JSON as it is, other text as a string, anything else in base64; null if there
/// is none.
pub fn input_of(payload: &[u8]) -> Value {
    let mut event = serde_json::Map::new();
    edgefaas_workflow::event::set_data(&mut event, payload);
    event.remove("data").or_else(|| event.remove("data_base64")).unwrap_or_default()
}
