//! An instance as the coordinator keeps it: what it is, how far it is, and the events that come to it.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_broker::{Message, Ticket};
use edgefaas_functions::durable::AnswerTo;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_platform::Taken;
use edgefaas_state::store::Batch;
use edgefaas_workflow::instance::FrameId;
use edgefaas_workflow::{Event, Instance, WorkflowError};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use super::compute::Computed;
use super::inbox::Inbox;
use super::root::{Charge, RootBudget};
use super::spans::OpenSpans;

/// Bytes of an instance beside its data, everything included that the node keeps for it.
pub(crate) const INSTANCE_BYTES: usize = 5120;

/// The output of a workflow, or its error.
pub(crate) type Ended = Result<Arc<Value>, WorkflowError>;

/// An event in flight to an instance, with the effects that are committed with it.
pub(crate) struct Queued {
    pub(crate) event: Event,
    pub(crate) effects: Option<StepEffects>,
    /// It is in the journal's inbox already, from this moment on.
    pub(crate) inbox: Option<(u32, Option<Ticket>)>,
    /// Its part of the root's budget, until what it led to is committed.
    pub(crate) charge: Option<Charge>,
}

/// What a function has changed and published.
pub(crate) struct StepEffects {
    pub batch: Batch,
    pub source: Arc<str>,
    pub messages: Vec<Message>,
    /// Of the budget of all that is not committed.
    pub _taken: Taken,
}

impl Queued {
    /// An event that nothing comes with.
    pub fn now(event: Event) -> Self {
        Self { event, effects: None, inbox: None, charge: None }
    }

    /// An event that is in the journal's inbox since before the start.
    pub fn from_inbox(event: Event, number: u32) -> Self {
        Self { event, effects: None, inbox: Some((number, None)), charge: None }
    }

    /// An event that is on the disk, or will be at `ticket`.
    pub fn recorded(event: Event, number: u32, ticket: Ticket) -> Self {
        Self { event, effects: None, inbox: Some((number, Some(ticket))), charge: None }
    }
}

impl Running {
    /// The timers have let go of it.
    pub(crate) fn timer_fired(&self) {
        self.state.lock().due_ms = None;
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.workflow.program.durable
    }
}

impl RunState {
    /// Adds events for the one who works on the journal. Of the length of a queue only the last one counts.
    pub(crate) fn queue_up(&mut self, queued: impl IntoIterator<Item = Queued>) {
        for queued in queued {
            if let Event::QueueLength { frame, .. } = queued.event {
                let is_same =
                    |event: &Event| matches!(event, Event::QueueLength { frame: of, .. } if *of == frame);
                self.queue.retain(|waiting| !is_same(&waiting.event));
            }
            self.queue.push(queued);
        }
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
        self.state.lock().charge_for(self, instance_bytes)
    }

    /// Others may compute where memory is short.
    pub(crate) fn has_settled(&self) {
        // Dropped without the lock: it takes another.
        let place = self.state.lock().place.take();
        drop(place);
    }

    /// The span that this one's is in.
    pub(crate) fn parent_span(&self) -> Option<String> {
        self.parent.map(|(id, _)| id.to_string())
    }
}

pub(crate) struct RunState {
    pub(crate) instance: Instance,
    /// Calls that run, to be called off.
    pub(crate) calls: Vec<(FrameId, Arc<Notify>)>,
    /// Instances that it runs and waits for.
    pub(crate) children: Vec<(FrameId, Ulid)>,
    /// Filters that it listens with.
    pub(crate) listens: Vec<FrameId>,
    /// Events that wait for the one who works on the journal.
    pub(crate) queue: Vec<Queued>,
    /// Somebody works on the journal.
    pub(crate) busy: bool,
    /// Its part of the root's budget.
    pub(crate) charge: Charge,
    /// It has computed, and what comes of that is not settled.
    pub(crate) place: Option<Computed>,
    pub(crate) refusal: Refusal,
    pub(crate) pace: Pace,
    /// It counts as running.
    pub(crate) counted: bool,
    pub(crate) due_ms: Option<u64>,
    pub(crate) log: Log,
    pub(crate) waiter: Option<oneshot::Sender<Ended>>,
    pub(crate) started: Instant,
    /// Its end has been told.
    pub(crate) told: bool,
    /// When the last message is stored that it has published, if it has to be; only of one that is not durable.
    pub(crate) published: Option<Ticket>,
    pub(crate) spans: OpenSpans,
}

/// Whether an instance that exceeds its root's budget is to be told so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is within the budget.
    #[default]
    None,
    /// It is to be told.
    Due,
    /// The event is in flight.
    Sent,
    /// It was told after it had begun so many tasks: the next one fails.
    Told { steps: u64 },
}

/// How long the last turn of an instance took, which is what the next one is expected to take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Pace {
    /// No longer than an instance may hold a worker.
    #[default]
    Quick,
    Slow,
}

impl RunState {
    /// Charges what an instance holds; says whether it may go on.
    pub(crate) fn charge_for(&mut self, running: &Running, instance_bytes: usize) -> bool {
        let data_bytes = running.input_bytes.max(instance_bytes);
        self.charge.set_bytes(INSTANCE_BYTES.saturating_add(data_bytes))
    }

    pub(crate) fn new(instance: Instance, charge: Charge) -> Self {
        Self {
            instance,
            calls: Vec::new(),
            children: Vec::new(),
            listens: Vec::new(),
            queue: Vec::new(),
            busy: false,
            charge,
            place: None,
            refusal: Refusal::default(),
            pace: Pace::default(),
            counted: false,
            due_ms: None,
            log: Log::default(),
            waiter: None,
            started: Instant::now(),
            told: false,
            published: None,
            spans: OpenSpans::default(),
        }
    }
}

/// How far an instance's log has got.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The start is on the disk.
    pub(crate) started: bool,
    pub(crate) next: u32,
    /// Events up to here are in the snapshot.
    pub(crate) snapshot: u32,
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
