//! The path of an invocation: route, admit, run, commit, reply.

mod admission;
mod commit;
mod effects;
mod host;
mod object_calls;
mod unfinished;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use edgefaas_broker::Broker;
use edgefaas_isolates::{Isolates, Limits, LogLevel, Program, Reply, RunError, Start};
use edgefaas_platform::{Budget, Clock, Taken};
use edgefaas_state::objects::Recoveries;
use edgefaas_state::store::Store;
use host::InvocationHost;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use unfinished::{Progress, Unfinished};

pub use admission::{Admission, Ticket};
pub use workers::Workers;

use crate::ingress::body::BodyBudget;
use crate::ingress::replies::ReplyBudget;
use crate::journal::InvocationJournal;

use crate::invocation::{Invocation, InvocationError, MAX_DEPTH, Outcome, Timing};
use crate::logs::Logs;
use crate::memory_plan::MemoryPlan;
use crate::outgoing::HttpClient;
use crate::registry::{LiveFunction, Registry};
use crate::secrets::Secrets;
use crate::trace::{Traces, new_trace_parent, of_invocation};
use crate::workflow::Coordinator;
pub use effects::Effects;

/// Runs invocations, wherever they come from.
pub struct Dispatcher {
    registry: Arc<Registry>,
    isolates: Arc<Isolates>,
    store: Arc<Store>,
    logs: Arc<Logs>,
    secrets: Arc<Secrets>,
    journal: Arc<InvocationJournal>,
    coordinator: Arc<Coordinator>,
    traces: Arc<Traces>,
    recoveries: Arc<Recoveries>,
    clock: Clock,
    broker: Broker,
    max_message_bytes: usize,
    /// Events under way, over all functions: queues are bounded in number, and the largest events that fit them all are
    /// more than a small machine has.
    event_bytes: Budget,
    /// Of what invocations have published and written, until it is committed.
    effect_bytes: Budget,
    /// Replies that wait for their clients, over all connections of the gateway.
    replies: ReplyBudget,
    bodies: BodyBudget,
    http: HttpClient,
    isolate_permits: Semaphore,
    draining: AtomicBool,
    under_way: TaskTracker,
    invocations: AtomicU64,
    failures: AtomicU64,
}

/// The longest time that an invocation waits for memory, which is also at most half of its function's time limit.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// What a dispatcher works with.
pub struct DispatcherParts {
    /// Routes and functions.
    pub registry: Arc<Registry>,
    /// Where functions run.
    pub isolates: Arc<Isolates>,
    /// Where changes are committed.
    pub store: Arc<Store>,
    /// Where functions log.
    pub logs: Arc<Logs>,
    /// What functions may be told.
    pub secrets: Arc<Secrets>,
    /// Durable invocations.
    pub journal: Arc<InvocationJournal>,
    /// Instances of workflows.
    pub coordinator: Arc<Coordinator>,
    /// Where the time went.
    pub traces: Arc<Traces>,
    /// Which objects have not come from the peers yet.
    pub recoveries: Arc<Recoveries>,
    /// The time.
    pub clock: Clock,
    /// Where functions publish.
    pub broker: Broker,
    /// The largest message the broker takes, in bytes.
    pub max_message_bytes: usize,
    /// How the memory is shared out.
    pub plan: Arc<MemoryPlan>,
}

/// An invocation that has its place: it runs or waits for its turn.
pub struct Admitted {
    invocation: Invocation,
    function: Arc<LiveFunction>,
    ticket: Ticket,
    since: Instant,
    event_bytes: Taken,
    _under_way: TaskTrackerToken,
}

/// What a function's time limit is for.
enum Deadline {
    /// Waiting, making the program and running together: somebody waits for the answer.
    OfAll,
    /// Waiting and making the program, and once more running: a run that began late is not to be cut short, since it
    /// would count as a failed attempt.
    OfEach,
}

impl Admitted {
    /// The function's name.
    pub fn function_name(&self) -> Arc<str> {
        self.function.name.clone()
    }
}

impl Dispatcher {
    /// A dispatcher that is open.
    pub fn new(parts: DispatcherParts) -> Self {
        let DispatcherParts {
            registry,
            isolates,
            store,
            logs,
            secrets,
            journal,
            coordinator,
            traces,
            recoveries,
            clock,
            broker,
            max_message_bytes,
            plan,
        } = parts;
        Self {
            isolate_permits: Semaphore::new(isolates.max_isolates() as usize),
            registry,
            isolates,
            store,
            logs,
            secrets,
            journal,
            coordinator,
            traces,
            recoveries,
            clock,
            broker,
            max_message_bytes,
            event_bytes: Budget::new(plan.event_bytes as usize),
            effect_bytes: Budget::new(plan.effect_bytes as usize),
            replies: ReplyBudget::new(plan.reply_bytes as usize),
            bodies: BodyBudget::new(plan.body_bytes as usize),
            http: HttpClient::new(plan.answer_bytes as usize),
            draining: AtomicBool::new(false),
            under_way: TaskTracker::new(),
            invocations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Routes, admits, runs and commits one invocation. Dropping the future ends it; what it had not
    /// committed by then is lost.
    pub async fn dispatch(self: &Arc<Self>, invocation: Invocation) -> Outcome {
        let id = invocation.id.clone();
        match self.admit(invocation) {
            Ok(admitted) => self.run(admitted).await,
            Err(error) => Outcome { id, result: Err(error), timing: Timing::default() },
        }
    }

    /// Finds the function and gives the invocation its place, without waiting.
    pub fn admit(&self, invocation: Invocation) -> Result<Admitted, InvocationError> {
        let routes = self.registry.routes();
        let Some(function) = routes.function(&invocation.function) else {
            let near = routes.near_functions(&invocation.function);
            return Err(InvocationError::UnknownFunction { name: invocation.function, near });
        };
        self.admit_to(function.clone(), invocation)
    }

    /// Gives the invocation its place at a function that is known already.
    pub fn admit_to(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
    ) -> Result<Admitted, InvocationError> {
        // Before the question whether the node is draining: the drain waits for whoever had a no.
        let under_way = self.under_way.token();
        match self.enter(&function, &invocation) {
            Ok((ticket, event_bytes)) => Ok(Admitted {
                invocation,
                function,
                ticket,
                since: Instant::now(),
                event_bytes,
                _under_way: under_way,
            }),
            Err(error) => {
                function.metrics.record_rejected();
                Err(error)
            }
        }
    }

    fn enter(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
    ) -> Result<(Ticket, Taken), InvocationError> {
        self.check(function, invocation)?;
        let event_bytes = self.take_event_bytes(invocation.event.body.len())?;
        let capacity = function.admission.capacity();
        let full = |_| InvocationError::QueueFull { function: function.name.to_string(), capacity };
        Ok((function.admission.enter().map_err(full)?, event_bytes))
    }

    /// Whether an invocation can be taken now, however much room there is.
    pub(crate) fn check(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
    ) -> Result<(), InvocationError> {
        // What runs already may still call others: it is to finish.
        if self.draining.load(Ordering::SeqCst) && invocation.depth == 0 {
            return Err(InvocationError::Draining);
        }
        self.check_durable(function, invocation)
    }

    /// Whether an invocation can be taken at all. One that is kept on the disk is also taken while the node drains: it runs
    /// after the next start.
    pub(crate) fn check_durable(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
    ) -> Result<(), InvocationError> {
        let name = || function.name.to_string();
        if invocation.depth > MAX_DEPTH {
            return Err(InvocationError::TooDeep { function: name(), depth: invocation.depth });
        }
        let (actual_bytes, limit_bytes) = (invocation.event.body.len(), function.spec.limits.payload_bytes);
        if actual_bytes > limit_bytes {
            return Err(InvocationError::PayloadTooLarge { function: name(), actual_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Takes so much of what there is for events.
    pub(crate) fn take_event_bytes(&self, bytes: usize) -> Result<Taken, InvocationError> {
        let max_bytes = self.event_bytes.most();
        self.event_bytes.take(bytes).ok_or(InvocationError::NoMemory { max_bytes })
    }

    /// What there is for replies that wait for their clients.
    pub fn replies(&self) -> &ReplyBudget {
        &self.replies
    }

    /// Keeps a drain from ending while an answer is on its way.
    pub fn answering(&self) -> TaskTrackerToken {
        self.under_way.token()
    }

    /// Waits for the turn, runs and commits.
    pub async fn run(self: &Arc<Self>, admitted: Admitted) -> Outcome {
        let Admitted { mut invocation, function, ticket, since, event_bytes, _under_way } = admitted;
        let (id, depth) = (invocation.id.clone(), invocation.depth);
        let traced = self.begin_trace(&mut invocation);
        let mut unfinished = Unfinished::new(self, &function, id, traced, since);
        let (deadline, progress) = (Deadline::OfAll, &mut unfinished.progress);
        let mut state = Duration::ZERO;
        let result = match self.execute(invocation, &function, ticket, since, deadline, progress).await {
            Ok((reply, effects)) => {
                let committing = Instant::now();
                let committed = self.commit(&function, effects, depth).await;
                state = committing.elapsed();
                committed.map(|()| reply)
            }
            Err(error) => Err(error),
        };
        drop(event_bytes);
        let result = result.map_err(|error| self.mask(&function, error));
        let (id, traced, timing) = unfinished.finish();
        let outcome = self.ended(&function, Outcome { id, result, timing });
        self.end_trace(traced, &function, &outcome, state);
        outcome
    }

    /// What a span tells of an invocation, if it is one of those that are recorded.
    pub(crate) fn begin_trace(&self, invocation: &mut Invocation) -> Option<(Invocation, u64)> {
        if !self.traces.is_on() {
            return None;
        }
        if invocation.trace_parent.is_none() {
            if invocation.parent.is_some() || !self.traces.sample(self.clock.now_unix_ms()) {
                return None;
            }
            invocation.trace_parent = Some(new_trace_parent());
        }
        Some((invocation.clone(), self.clock.now_unix_us()))
    }

    /// Records the span of an invocation.
    pub(crate) fn end_trace(
        &self,
        traced: Option<(Invocation, u64)>,
        function: &LiveFunction,
        outcome: &Outcome,
        state: Duration,
    ) {
        let Some((invocation, started_unix_us)) = traced else { return };
        if let Some(span) = of_invocation(&invocation, outcome, started_unix_us, state.as_micros() as u64) {
            self.traces.add(span, |text| self.secrets.mask(&function.app, &function.spec.secrets, text));
        }
    }

    /// Counts an outcome, and logs it if it is a failure.
    pub(crate) fn ended(&self, function: &LiveFunction, outcome: Outcome) -> Outcome {
        self.invocations.fetch_add(1, Ordering::Relaxed);
        function.metrics.record(&outcome);
        if let Err(error) = &outcome.result {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.log_failure(function, &outcome.id, error);
        }
        outcome
    }

    /// Counts an invocation whose caller went away, which is no failure of the function.
    fn cancelled(&self, function: &LiveFunction, outcome: &Outcome) {
        self.invocations.fetch_add(1, Ordering::Relaxed);
        function.metrics.record(outcome);
    }

    /// Gives a durable invocation its place at the gate. It was counted when it was accepted.
    pub(crate) fn admit_durable(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
    ) -> Result<Admitted, InvocationError> {
        let under_way = self.under_way.token();
        self.check(&function, &invocation)?;
        let event_bytes = self.take_event_bytes(invocation.event.body.len())?;
        let ticket = function.admission.enter_durable();
        let since = Instant::now();
        Ok(Admitted { invocation, function, ticket, since, event_bytes, _under_way: under_way })
    }

    /// Waits for the turn and runs. What comes of it is not committed, and nobody has been told: that is left to the
    /// caller.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        admitted: Admitted,
    ) -> (Result<(Reply, Effects), InvocationError>, Timing) {
        let Admitted { invocation, function, ticket, since, event_bytes, _under_way } = admitted;
        let mut unfinished = Unfinished::new(self, &function, invocation.id.clone(), None, since);
        let (deadline, progress) = (Deadline::OfEach, &mut unfinished.progress);
        let result = self.execute(invocation, &function, ticket, since, deadline, progress).await;
        drop(event_bytes);
        let (_, _, timing) = unfinished.finish();
        (result, timing)
    }

    async fn execute(
        self: &Arc<Self>,
        invocation: Invocation,
        function: &Arc<LiveFunction>,
        ticket: Ticket,
        since: Instant,
        deadline: Deadline,
        progress: &mut Progress,
    ) -> Result<(Reply, Effects), InvocationError> {
        let limits = &function.spec.limits;
        let name = || function.name.to_string();
        let mut run_limits = Limits {
            memory_bytes: limits.memory_bytes,
            timeout: limits.timeout,
            cpu: limits.cpu.unwrap_or(Duration::MAX),
            reply_bytes: limits.reply_bytes,
        };
        let ready_by = since + limits.timeout;
        let in_time = |_| InvocationError::QueueTimeout { function: name(), limit: limits.timeout };
        let admitted = tokio::time::timeout_at(ready_by.into(), async {
            let permit = ticket.turn().await;
            let permit = permit.map_err(|_| InvocationError::DroppedFromQueue { function: name() })?;
            let objects = &function.spec.permissions.objects;
            if self.recoveries.is_active() && self.waits_for_objects(&function.app, objects) {
                self.recoveries.wait_for(&function.app, objects).await;
            }
            let program = function.program(&self.isolates, &self.store).await;
            let program =
                program.map_err(|reason| InvocationError::NotRunnable { function: name(), reason })?;
            // A nested call waits neither for memory nor for an isolate: its caller holds both, and all of them waiting for
            // each other would end only with their deadlines. Memory comes first: those that wait for it hold no isolate.
            let start = match invocation.parent {
                Some(_) => self.isolates.start_nested(&program, run_limits),
                None => self.start(&program, run_limits).await,
            };
            let start = start.ok_or_else(|| InvocationError::NoGuestMemory {
                function: name(),
                waited: since.elapsed(),
                max_bytes: self.isolates.memory().reading().max_bytes,
            })?;
            let isolate = match invocation.parent {
                Some(_) => self.isolate_permits.try_acquire().ok(),
                None => self.isolate_permits.acquire().await.ok(),
            };
            let max = self.isolates.max_isolates();
            let isolate = isolate.ok_or_else(|| InvocationError::NoIsolate { function: name(), max })?;
            Ok((permit, program, isolate, start))
        });
        let admitted = admitted.await.map_err(in_time);
        progress.timing.queue = since.elapsed();
        let (_permit, program, isolate, start) = admitted??;

        if let Deadline::OfAll = deadline {
            run_limits.timeout = limits.timeout.saturating_sub(progress.timing.queue);
        }
        progress.usage = Some(start.usage());
        let meta = edgefaas_isolates::InvocationMeta {
            id: invocation.id.clone(),
            function: name(),
            deadline_unix_ms: self.clock.now_unix_ms() + run_limits.timeout.as_millis() as u64,
        };
        let effects = Arc::new(Mutex::new(Effects::of(invocation.depth, &self.effect_bytes)));
        let host = InvocationHost::new(self.clone(), function.clone(), &invocation, effects.clone());
        let run =
            self.isolates.run_started(&program, start, &meta, invocation.event, run_limits, Box::new(host));
        let completion = run.await;
        // Nothing that follows needs it, and the disk may take its time.
        drop(isolate);
        progress.usage = None;
        (progress.timing.start, progress.timing.execution) = (completion.start, completion.execution);
        function.metrics.record_use(&completion);
        let reply = completion.result.map_err(|error| {
            let error = match error {
                // The limit that the user set, not what was left of it.
                RunError::TimedOut { .. } => RunError::TimedOut { limit: limits.timeout },
                other => other,
            };
            InvocationError::Run { function: name(), error }
        })?;
        let nothing = Effects::of(0, &self.effect_bytes);
        let effects = std::mem::replace(&mut *effects.lock(), nothing);
        Ok((reply, effects))
    }

    /// Memory for an isolate, or an instance that has waited; nothing after [`MEMORY_WAIT`].
    async fn start(&self, program: &Program, limits: Limits) -> Option<Start> {
        if let Some(start) = self.isolates.try_start(program, limits) {
            return Some(start);
        }
        // In the queue of the function, whose permit it has: neither of its later invocations passes it.
        let wait = MEMORY_WAIT.min(limits.timeout / 2);
        let started = tokio::time::timeout(wait, self.isolates.start(program, limits)).await;
        started.ok().flatten()
    }

    /// Whether a function that uses such objects is to have them first as its peers have them.
    fn waits_for_objects(&self, app: &str, patterns: &[String]) -> bool {
        let waits = |pattern: &String| self.store.objects().recovers_before(app, pattern);
        patterns.iter().any(waits)
    }

    /// The error without secrets in it, as it may be told.
    pub(crate) fn mask(&self, function: &LiveFunction, mut error: InvocationError) -> InvocationError {
        let names = &function.spec.secrets;
        let mask =
            |text: &mut String| *text = self.secrets.mask(&function.app, names, std::mem::take(text));
        if let InvocationError::Run {
            error: RunError::Failed { message, stack, .. } | RunError::Trapped { message, stack, .. },
            ..
        } = &mut error
        {
            mask(message);
            stack.iter_mut().for_each(mask);
        }
        error
    }

    fn log_failure(&self, function: &LiveFunction, invocation: &str, error: &InvocationError) {
        let mut text = format!("{}: {}", error.title(), error.detail());
        if let Some(stack) = error.stack() {
            text.push('\n');
            text.push_str(stack.trim_end());
        }
        self.logs.add(&function.name, invocation, LogLevel::Error, text);
    }

    /// Logs that an event found no room and is lost.
    pub fn log_dropped(&self, function: &LiveFunction, error: &InvocationError) {
        self.logs.add(&function.name, "", LogLevel::Warn, format!("{}: {error}", error.title()));
    }

    /// Turns new invocations away and waits for those under way; true if they all ended within `grace`.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        self.under_way.close();
        tokio::time::timeout(grace, self.under_way.wait()).await.is_ok()
    }

    /// New invocations are turned away.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// How many invocations are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Invocations that ran since the start, and those of them that failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.invocations.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// Why nothing can be committed any more, if so.
    pub fn store_failure(&self) -> Option<String> {
        self.store.committer().failure()
    }

    /// The largest message the broker takes, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Reads the bodies of requests.
    pub fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// How many isolates run now.
    pub fn isolates_running(&self) -> u32 {
        self.isolates.running()
    }

    /// Instances of workflows.
    pub(crate) fn coordinator(&self) -> &Arc<Coordinator> {
        &self.coordinator
    }

    /// Where the time went.
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// What functions and workflows may be told.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The time.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where functions run.
    pub(crate) fn isolates(&self) -> &Isolates {
        &self.isolates
    }

    /// Sends the requests of functions and workflows.
    pub(crate) fn http(&self) -> &HttpClient {
        &self.http
    }

    /// A place for an isolate that is no function's; nothing once the node stops.
    pub(crate) async fn isolate_permit(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.isolate_permits.acquire().await.ok()
    }

    /// Durable invocations.
    pub fn journal(&self) -> &Arc<InvocationJournal> {
        &self.journal
    }

    /// The store.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The functions' logs.
    pub(crate) fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Where functions publish.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The functions.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}
