//! The coordinator: instances of workflows, advanced where the messages pass.
//!
//! ```text
//! start (HTTP, MQTT, call, schedule, event) --> Instance --advance--> actions --> functions, messages, waits
//!                                                  ^                                  |
//!                                                  +------------ event <--------------+
//! ```
//!
//! When a function ends, the task that ran it advances the instance and runs the next function: there is no hop through
//! a topic or a queue between two steps. An instance that waits is data in a table and holds neither an isolate nor a
//! task. [`drive`] tells an instance what happened, [`actions`] does what it asks for, [`ending`] tells who waits for its end,
//! [`event_log`] keeps those that are durable, [`schedule`] starts what starts
//! by itself, [`timers`] wakes. [`root`] bounds what a root and its descendants hold, [`inbox`] the events that wait for
//! an instance; [`lanes`] evaluates the filters of workflows that events start.

mod actions;
mod compute;
mod discard;
mod drive;
mod ending;
mod event_log;
mod events;
mod inbox;
mod inspect;
mod lanes;
mod messages;
mod root;
mod schedule;
mod script;
mod spans;
mod timers;
mod turn;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use edgefaas_broker::{Broker, Ticket};
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::{AnswerTo, DurableQueue};
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::invoker::{Callees, Invoker, WorkflowCall};
use edgefaas_functions::logs::Logs;
use edgefaas_functions::outgoing::HttpClient;
use edgefaas_functions::publisher::Publisher;
use edgefaas_functions::registry::{LiveWorkflow, Registry, SharedInterests};
use edgefaas_functions::secrets::Secrets;
use edgefaas_functions::trace::Traces;
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{HostFuture, Isolates, Reply};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Durability, Store};
use edgefaas_workflow::Instance;
use edgefaas_workflow::instance::FrameId;
pub use events::trace_parent;
use inbox::Inbox;
pub use inspect::{ChangeError, InstanceView};
use lanes::Lanes;
use parking_lot::Mutex;
use root::RootBudget;
pub use root::RootLimits;
use root::{Charge, MODEST_BYTES, NodeBudget};
pub use schedule::run as run_schedules;
use serde_json::Value;
use spans::OpenSpans;
use timers::Timers;
pub use timers::run as run_timers;
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

/// Bytes of an instance beside its data, everything included that the node keeps for it.
const INSTANCE_BYTES: usize = 5120;

/// A workflow with fewer instances finds room for a small one.
const MODEST_INSTANCES: u64 = 4;

/// How many instances there may be.
#[derive(Debug, Clone, Copy)]
pub struct WorkflowLimits {
    /// Instances that run something at the same time.
    pub running: usize,
    /// Instances, those that wait included.
    pub instances: usize,
    /// Bytes of all instances and of the events that wait for them.
    pub bytes: usize,
    /// Limits of each root instance with its descendants.
    pub root: RootLimits,
}

impl WorkflowLimits {
    /// Limits for instances that may have this much memory together: half of it for each root, within 64 MiB.
    pub fn within(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let root = RootLimits { descendants: 1000, bytes: (bytes / 2).min(64 << 20) };
        Self { running: 4096, instances: 200_000, bytes, root }
    }
}

/// All instances of a node.
pub struct Coordinator {
    registry: Arc<Registry>,
    invoker: Arc<Invoker>,
    durable: Arc<DurableQueue>,
    publisher: Arc<Publisher>,
    broker: Broker,
    store: Arc<Store>,
    logs: Arc<Logs>,
    secrets: Arc<Secrets>,
    traces: Arc<Traces>,
    isolates: Arc<Isolates>,
    http: Arc<HttpClient>,
    drain: Arc<Drain>,
    instances: Mutex<HashMap<Ulid, Arc<Running>>>,
    interests: Arc<SharedInterests>,
    timers: Timers,
    workers: Arc<Workers>,
    compute: compute::Compute,
    clock: Clock,
    time: NodeTime,
    limits: WorkflowLimits,
    budget: NodeBudget,
    running: AtomicUsize,
    /// Room for one more, after there was none.
    room: Arc<Notify>,
    runtime: Value,
    ended: Mutex<inspect::Ended>,
    /// Those that failed and are kept, the one that failed first in front.
    faulted: Mutex<VecDeque<Ulid>>,
    /// How certain a step is before the next one begins.
    durability: Durability,
    /// Definitions that are on the disk.
    definitions: Mutex<HashSet<[u8; 32]>>,
    script: tokio::sync::OnceCell<edgefaas_isolates::Program>,
    rules: schedule::StartRules,
    lanes: Lanes,
    /// The number of the next event that may start a workflow and is recorded on the disk.
    next_start_event: AtomicU64,
    /// Publishers wait for room.
    is_pressed: AtomicBool,
    rules_due: Notify,
    watched: Mutex<Vec<schedule::Watched>>,
    /// When the last instance ended of those workflows whose next one comes after it.
    ends: Mutex<HashMap<Arc<str>, Option<Instant>>>,
    pub(crate) figures: Figures,
}

/// What the coordinator has done since the start.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Figures {
    pub started: AtomicU64,
    pub completed: AtomicU64,
    pub faulted: AtomicU64,
    pub cancelled: AtomicU64,
    pub rejected: AtomicU64,
    pub events: AtomicU64,
    pub events_dropped: AtomicU64,
}

/// The figures of workflows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WorkflowReading {
    /// That have not ended, or failed and can be retried.
    pub instances: u64,
    /// Those of them that run something.
    pub running: u64,
    pub started: u64,
    pub completed: u64,
    pub faulted: u64,
    pub cancelled: u64,
    pub rejected: u64,
    /// Messages that workflows waited for.
    pub events: u64,
    /// Events of QoS 0 that a workflow did not get because it had no room.
    pub events_dropped: u64,
}

/// A clock that neither jumps nor goes back, and goes on where it was before a restart.
struct NodeTime {
    started: Instant,
    base_ms: AtomicU64,
}

impl NodeTime {
    fn now_ms(&self) -> u64 {
        self.base_ms.load(Ordering::Relaxed) + self.started.elapsed().as_millis() as u64
    }

    /// What was written down before lies in the past.
    fn not_before(&self, ms: u64) {
        self.base_ms.fetch_max(ms, Ordering::Relaxed);
    }
}

/// An instance that has not ended, or that failed and can be retried.
pub struct Running {
    pub(crate) id: Ulid,
    pub(crate) workflow: Arc<LiveWorkflow>,
    pub(crate) depth: u8,
    pub(crate) trace_parent: Option<String>,
    /// The instance that runs this one, if it waits for it.
    parent: Option<(Ulid, FrameId)>,
    /// Where the answer goes.
    answer: Option<AnswerTo>,
    input_bytes: usize,
    /// See [`Environment::memory_bytes`](edgefaas_workflow::Environment::memory_bytes).
    memory_bytes: u64,
    /// The budget that it shares with its root and all of the root's descendants.
    pub(crate) root: Arc<RootBudget>,
    state: Mutex<RunState>,
    inbox: Mutex<Inbox>,
}

impl Running {
    /// Charges what the instance holds.
    fn charge(&self, instance_bytes: usize) -> bool {
        self.state.lock().charge_for(self, instance_bytes)
    }

    /// Others may compute where memory is short.
    fn has_settled(&self) {
        // Dropped without the lock: it takes another.
        let place = self.state.lock().place.take();
        drop(place);
    }

    /// The span that this one's is in.
    pub(crate) fn parent_span(&self) -> Option<String> {
        self.parent.map(|(id, _)| id.to_string())
    }
}

struct RunState {
    instance: Instance,
    /// Calls that run, to be called off.
    calls: Vec<(FrameId, Arc<Notify>)>,
    /// Instances that it runs and waits for.
    children: Vec<(FrameId, Ulid)>,
    /// Filters that it listens with.
    listens: Vec<FrameId>,
    /// Events that wait for the one who works on the journal.
    queue: Vec<drive::Queued>,
    /// Somebody works on the journal.
    busy: bool,
    /// Its part of the root's budget.
    charge: Charge,
    /// It has computed, and what comes of that is not settled.
    place: Option<compute::Computed>,
    refusal: Refusal,
    pace: Pace,
    /// It counts as running.
    counted: bool,
    due_ms: Option<u64>,
    log: event_log::Log,
    waiter: Option<oneshot::Sender<drive::Ended>>,
    started: Instant,
    /// Its end has been told.
    told: bool,
    /// When the last message is stored that it has published, if it has to be; only of one that is not durable.
    published: Option<Ticket>,
    spans: OpenSpans,
}

/// Whether an instance that exceeds its root's budget is to be told so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Refusal {
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
enum Pace {
    /// No longer than an instance may hold a worker.
    #[default]
    Quick,
    Slow,
}

impl RunState {
    /// Charges what an instance holds; says whether it may go on.
    fn charge_for(&mut self, running: &Running, instance_bytes: usize) -> bool {
        let data_bytes = running.input_bytes.max(instance_bytes);
        self.charge.set_bytes(INSTANCE_BYTES.saturating_add(data_bytes))
    }

    fn new(instance: Instance, charge: Charge) -> Self {
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
            log: event_log::Log::default(),
            waiter: None,
            started: Instant::now(),
            told: false,
            published: None,
            spans: OpenSpans::default(),
        }
    }
}

/// The parts that a coordinator works with.
pub struct CoordinatorParts {
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Invocations that wait count for queues that workflows watch.
    pub durable: Arc<DurableQueue>,
    /// Publishes events and messages.
    pub publisher: Arc<Publisher>,
    /// Says who subscribes, and when a message is stored.
    pub broker: Broker,
    /// Where durable instances are kept.
    pub store: Arc<Store>,
    /// Where workflows log.
    pub logs: Arc<Logs>,
    /// Secrets of workflows.
    pub secrets: Arc<Secrets>,
    /// Spans of instances.
    pub traces: Arc<Traces>,
    /// Where scripts run.
    pub isolates: Arc<Isolates>,
    /// Sends requests of workflows.
    pub http: Arc<HttpClient>,
    /// Refuses instances while the node stops.
    pub drain: Arc<Drain>,
    /// Events that instances wait for.
    pub interests: Arc<SharedInterests>,
    /// Where instances advance.
    pub workers: Arc<Workers>,
    /// The wall clock.
    pub clock: Clock,
    /// How many instances there may be, and how large.
    pub limits: WorkflowLimits,
    /// When a step of a durable instance is safe enough for the next one to begin.
    pub durability: Durability,
    /// The node's id, as workflows see it.
    pub node_id: String,
}

impl Coordinator {
    /// A coordinator without instances.
    pub fn new(parts: CoordinatorParts) -> Self {
        let CoordinatorParts {
            registry,
            invoker,
            durable,
            publisher,
            broker,
            store,
            logs,
            secrets,
            traces,
            isolates,
            http,
            drain,
            interests,
            workers,
            clock,
            limits,
            durability,
            node_id,
        } = parts;
        let budget = NodeBudget::new(limits.bytes);
        let rules = schedule::StartRules::new(budget.bytes());
        let time = NodeTime { started: Instant::now(), base_ms: AtomicU64::new(clock.now_unix_ms()) };
        let runtime = serde_json::json!({
            "name": "edgefaas",
            "version": env!("CARGO_PKG_VERSION"),
            "metadata": {"node": node_id},
        });
        Self {
            registry,
            invoker,
            durable,
            publisher,
            broker,
            store,
            logs,
            secrets,
            traces,
            isolates,
            http,
            drain,
            instances: Mutex::default(),
            interests,
            timers: Timers::default(),
            workers,
            compute: compute::Compute::new(budget.clone()),
            budget,
            clock,
            time,
            limits,
            running: AtomicUsize::new(0),
            room: Arc::default(),
            runtime,
            ended: Mutex::default(),
            faulted: Mutex::default(),
            durability,
            definitions: Mutex::default(),
            script: tokio::sync::OnceCell::new(),
            rules,
            lanes: Lanes::new(limits.root.bytes),
            next_start_event: AtomicU64::new(0),
            is_pressed: AtomicBool::new(false),
            rules_due: Notify::new(),
            watched: Mutex::default(),
            ends: Mutex::default(),
            figures: Figures::default(),
        }
    }

    /// The figures of now.
    pub fn reading(&self) -> WorkflowReading {
        let figures = &self.figures;
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        WorkflowReading {
            instances: self.instances.lock().len() as u64,
            running: self.running.load(Ordering::Relaxed) as u64,
            started: read(&figures.started),
            completed: read(&figures.completed),
            faulted: read(&figures.faulted),
            cancelled: read(&figures.cancelled),
            rejected: read(&figures.rejected),
            events: read(&figures.events),
            events_dropped: read(&figures.events_dropped),
        }
    }

    fn find(&self, id: Ulid) -> Option<Arc<Running>> {
        self.instances.lock().get(&id).cloned()
    }

    /// Whether a workflow has so few instances that a small one finds room whatever others hold.
    fn is_modest(workflow: &LiveWorkflow) -> bool {
        workflow.figures.live.load(Ordering::Relaxed) < MODEST_INSTANCES
    }

    /// Whether there is room for an instance of so many bytes.
    fn finds_room(&self, workflow: &LiveWorkflow, bytes: usize) -> bool {
        self.budget.has_room(bytes) || bytes <= MODEST_BYTES && Self::is_modest(workflow)
    }

    /// A budget for a root instance and its descendants.
    fn root_budget(&self, id: Ulid) -> Arc<RootBudget> {
        RootBudget::new(id, self.limits.root, self.budget.clone())
    }

    /// Notified when there may be room for a message that was refused.
    pub fn wait_for_room(&self) -> Arc<Notify> {
        self.is_pressed.store(true, Ordering::Relaxed);
        self.room.clone()
    }

    /// Events that waited are handled.
    fn room_is_free(&self) {
        if self.is_pressed.load(Ordering::Relaxed) && self.is_pressed.swap(false, Ordering::Relaxed) {
            self.room.notify_one();
        }
    }

    fn next_start_event(&self) -> u64 {
        self.next_start_event.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers below this are used.
    fn start_events_from(&self, number: u64) {
        self.next_start_event.fetch_max(number, Ordering::Relaxed);
    }

    /// Waits until no instance runs anything and no filter is evaluated, or `grace` is over.
    pub async fn settled(&self, grace: Duration) {
        let until = Instant::now() + grace;
        let is_busy = || self.running.load(Ordering::Relaxed) > 0 || self.lanes.waiting() > 0;
        while is_busy() && Instant::now() < until {
            let _ = tokio::time::timeout(Duration::from_millis(20), self.room.notified()).await;
        }
    }
}

impl Callees for Coordinator {
    fn call_workflow(self: Arc<Self>, call: WorkflowCall) -> HostFuture<Result<Reply, InvocationError>> {
        let WorkflowCall { workflow, body, depth, trace_parent, lineage } = call;
        let mut start = Start::new(workflow, input_of(&body), body.len());
        (start.depth, start.trace_parent) = (depth, trace_parent);
        start.root = lineage.and_then(|lineage| lineage.ancestor::<RootBudget>());
        Box::pin(async move { self.run_workflow(start).await.result })
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
