//! The coordinator, its parts, limits and figures.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use edgefaas_broker::Broker;
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::logs::Logs;
use edgefaas_functions::outgoing::HttpClient;
use edgefaas_functions::publisher::Publisher;
use edgefaas_functions::registry::{LiveWorkflow, Registry, SharedInterests};
use edgefaas_functions::secrets::Secrets;
use edgefaas_functions::trace::Traces;
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::Isolates;
use edgefaas_platform::Clock;
use edgefaas_state::store::{Durability, Store};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use ulid::Ulid;

use super::at_work::OutsideWork;
use super::compute;
use super::documents::FetchedDocuments;
use super::event_queue::Queued;
use super::instance::Running;
use super::instance_view::EndedInstances;
use super::place::Places;
use super::root_budget::{NodeBudget, RootBudget, RootLimits, SMALL_INSTANCE_BYTES};
use super::roots_elsewhere::RootsElsewhere;
use super::start_lanes::Lanes;
use super::start_rules::{StartRules, Watched};
use super::start_turn::StartTurns;
use super::timers::Timers;
use super::tokens::Tokens;

/// A workflow with fewer instances may always start a small instance.
const GUARANTEED_INSTANCES: u64 = 4;
/// Part of the maximum of running instances that each workflow may run although that maximum is reached.
const GUARANTEED_SHARE: usize = 16;

/// Limits of the instances of a node.
#[derive(Debug, Clone, Copy)]
pub struct WorkflowLimits {
    /// Instances that run at the same time.
    pub running: usize,
    /// Running and waiting instances.
    pub instances: usize,
    /// Bytes of all instances and of the events that wait for them.
    pub bytes: usize,
    /// Limits of each root instance with its descendants.
    pub root: RootLimits,
}

impl WorkflowLimits {
    /// Limits for `bytes` bytes of instances: each root has half of them, at most 64 MiB.
    pub fn within(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let root = RootLimits { descendants: 1000, bytes: (bytes / 2).min(64 << 20) };
        Self { running: 4096, instances: 200_000, bytes, root }
    }
}

/// All instances of a node.
pub struct Coordinator {
    pub(crate) registry: Arc<Registry>,
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) durable: Arc<DurableQueue>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) broker: Broker,
    pub(crate) store: Arc<Store>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) traces: Arc<Traces>,
    pub(crate) isolates: Arc<Isolates>,
    pub(crate) http: Arc<HttpClient>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) instances: Mutex<HashMap<Ulid, Arc<Running>>>,
    pub(crate) interests: Arc<SharedInterests>,
    pub(crate) timers: Timers,
    pub(crate) workers: Arc<Workers>,
    pub(crate) compute: compute::Compute,
    pub(crate) clock: Clock,
    pub(crate) time: NodeTime,
    pub(crate) limits: WorkflowLimits,
    pub(crate) budget: NodeBudget,
    /// Budgets of trees whose root is on another node.
    pub(crate) roots_elsewhere: Mutex<RootsElsewhere>,
    pub(crate) running: AtomicUsize,
    /// Notified when an instance ends or stops running, and when events that publishers wait for were handled.
    pub(crate) room: Arc<Notify>,
    pub(crate) runtime: Value,
    pub(crate) ended: Mutex<EndedInstances>,
    /// Failed instances that are kept, the oldest in front.
    pub(crate) faulted: Mutex<VecDeque<Ulid>>,
    /// The durability of a step before the next step starts.
    pub(crate) durability: Durability,
    /// Digests of the definitions on the disk.
    pub(crate) definitions: Mutex<HashSet<[u8; 32]>>,
    pub(crate) script: tokio::sync::OnceCell<edgefaas_isolates::Program>,
    pub(crate) tokens: Tokens,
    pub(crate) documents: FetchedDocuments,
    pub(crate) rules: StartRules,
    pub(crate) lanes: Lanes,
    pub(crate) turns: Arc<StartTurns>,
    /// Starts that wait for the end of another instance.
    pub(crate) places: Places<(Arc<Running>, Queued)>,
    /// The number of the next recorded start event.
    pub(crate) next_start_event: AtomicU64,
    /// True while publishers wait for room.
    pub(crate) has_waiting_publishers: AtomicBool,
    pub(crate) rules_due: Notify,
    pub(crate) watched: Mutex<Vec<Watched>>,
    /// The end of the last instance, for workflows with `schedule.after`.
    pub(crate) ends: Mutex<HashMap<Arc<str>, Option<Instant>>>,
    pub(crate) figures: Figures,
    pub(crate) outside: OutsideWork,
}

/// Counters since the start of the node.
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
    /// Instances that have not ended, or have failed and can be retried.
    pub instances: u64,
    /// Running instances.
    pub running: u64,
    pub started: u64,
    pub completed: u64,
    pub faulted: u64,
    pub cancelled: u64,
    pub rejected: u64,
    /// Messages that workflows waited for.
    pub events: u64,
    /// Events of QoS 0 that were dropped because their workflow had no room.
    pub events_dropped: u64,
}

/// A monotonic clock that continues after a restart.
pub(crate) struct NodeTime {
    clock: Clock,
    started: Instant,
    /// The time at `started`, in microseconds: its milliseconds change together with those of the wall clock.
    base_us: AtomicU64,
}

impl NodeTime {
    fn new(clock: Clock) -> Self {
        let (started, since_unix_epoch) = clock.moment();
        Self { started, base_us: AtomicU64::new(since_unix_epoch.as_micros() as u64), clock }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let passed = self.clock.instant().saturating_duration_since(self.started);
        (self.base_us.load(Ordering::Relaxed) + passed.as_micros() as u64) / 1000
    }

    /// Advances the clock to at least `ms`, the latest recorded time.
    pub(crate) fn not_before(&self, ms: u64) {
        self.base_us.fetch_max(ms.saturating_mul(1000), Ordering::Relaxed);
    }
}

/// The parts that a coordinator works with.
pub struct CoordinatorParts {
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Gives the lengths of function queues that workflows watch.
    pub durable: Arc<DurableQueue>,
    /// Publishes events and messages.
    pub publisher: Arc<Publisher>,
    /// Knows the subscriptions, and when a message is stored.
    pub broker: Broker,
    /// Stores durable instances.
    pub store: Arc<Store>,
    /// Keeps the log lines of workflows.
    pub logs: Arc<Logs>,
    /// Secrets of workflows.
    pub secrets: Arc<Secrets>,
    /// Spans of instances.
    pub traces: Arc<Traces>,
    /// Runs scripts.
    pub isolates: Arc<Isolates>,
    /// Sends requests of workflows.
    pub http: Arc<HttpClient>,
    /// Refuses instances while the node stops.
    pub drain: Arc<Drain>,
    /// Events that instances wait for.
    pub interests: Arc<SharedInterests>,
    /// Runs the tasks that advance instances.
    pub workers: Arc<Workers>,
    /// The wall clock.
    pub clock: Clock,
    /// Limits of number and size of instances.
    pub limits: WorkflowLimits,
    /// The durability of a step before the next step of a durable instance starts.
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
        let rules = StartRules::new(budget.bytes());
        let time = NodeTime::new(clock.clone());
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
            roots_elsewhere: Mutex::default(),
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
            tokens: Tokens::default(),
            documents: FetchedDocuments::default(),
            rules,
            lanes: Lanes::new(limits.root.bytes),
            turns: Arc::default(),
            places: Places::default(),
            next_start_event: AtomicU64::new(0),
            has_waiting_publishers: AtomicBool::new(false),
            rules_due: Notify::new(),
            watched: Mutex::default(),
            ends: Mutex::default(),
            figures: Figures::default(),
            outside: OutsideWork::default(),
        }
    }

    /// The current figures.
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

    pub(crate) fn find(&self, id: Ulid) -> Option<Arc<Running>> {
        self.instances.lock().get(&id).cloned()
    }

    /// True if a workflow has fewer than [`GUARANTEED_INSTANCES`] instances: it may start a small one beyond the budget.
    pub(crate) fn may_exceed_budget(workflow: &LiveWorkflow) -> bool {
        workflow.figures.live.load(Ordering::Relaxed) < GUARANTEED_INSTANCES
    }

    /// True if a workflow may start another root instance. Beyond the limit of the node it may while it runs less than a sixteenth
    /// of that itself, so that instances that never end leave room to other workflows; up to twice the limit in all.
    pub(crate) fn may_run_another(&self, workflow: &LiveWorkflow) -> bool {
        let (running, limit) = (self.running.load(Ordering::Relaxed), self.limits.running);
        let guaranteed = (limit / GUARANTEED_SHARE).max(1) as u64;
        running < limit
            || running < limit.saturating_mul(2)
                && workflow.figures.running.load(Ordering::Relaxed) < guaranteed
    }

    /// Counts a start that found no room.
    pub fn count_rejected(&self, workflow: &LiveWorkflow) {
        workflow.figures.rejected.fetch_add(1, Ordering::Relaxed);
        self.figures.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a workflow may start an instance of `bytes` bytes: it fits the budget, or may exceed it.
    pub(crate) fn has_room_for(&self, workflow: &LiveWorkflow, bytes: usize) -> bool {
        self.budget.has_room(bytes) || bytes <= SMALL_INSTANCE_BYTES && Self::may_exceed_budget(workflow)
    }

    /// A budget for a root instance and its descendants.
    pub(crate) fn root_budget(&self, id: Ulid) -> Arc<RootBudget> {
        RootBudget::new(id, self.limits.root, self.budget.clone())
    }

    /// The notification of free room, for the publisher of a refused message.
    pub fn wait_for_room(&self) -> Arc<Notify> {
        self.has_waiting_publishers.store(true, Ordering::Relaxed);
        self.room.clone()
    }

    /// Notifies a waiting publisher after events were handled.
    pub(crate) fn notify_publishers(&self) {
        if self.has_waiting_publishers.load(Ordering::Relaxed)
            && self.has_waiting_publishers.swap(false, Ordering::Relaxed)
        {
            self.room.notify_one();
        }
    }

    pub(crate) fn next_start_event(&self) -> u64 {
        self.next_start_event.fetch_add(1, Ordering::Relaxed)
    }

    /// Marks the numbers below `number` as used.
    pub(crate) fn start_events_from(&self, number: u64) {
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
