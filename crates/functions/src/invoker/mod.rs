//! The steps of an invocation: admit, run, commit.

mod commit;
mod effects;
mod elsewhere;
mod host;
mod object_calls;
mod object_values;
mod sent_spans;
mod unfinished;
mod workflow_call;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use edgefaas_broker::Broker;
use edgefaas_isolates::{Isolates, Limits, LogLevel, Program, Reply, RunError, Start};
use edgefaas_platform::{Budget, Clock, Taken};
use edgefaas_state::objects::Recoveries;
use edgefaas_state::store::Store;
use host::InvocationHost;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::task_tracker::TaskTrackerToken;
use unfinished::{Progress, Unfinished};

pub use effects::Effects;
pub use workflow_call::{WorkflowCall, WorkflowRunner};

use crate::drain::Drain;
use crate::invocation::{Invocation, InvocationError, MAX_DEPTH, Outcome, Timing};
use crate::logs::Logs;
use crate::outgoing::HttpClient;
use crate::publisher::Publisher;
use crate::registry::{LiveFunction, Registry, SharedInterests, Ticket};
use crate::remote::{Elsewhere, RemoteNode};
use crate::secrets::Secrets;
use crate::trace::conventions::{self, Answered};
use crate::trace::{TraceSpan, Traces, new_trace_parent, of_invocation, trace_id};

/// Runs invocations of functions.
pub struct Invoker {
    registry: Arc<Registry>,
    isolates: Arc<Isolates>,
    store: Arc<Store>,
    logs: Arc<Logs>,
    secrets: Arc<Secrets>,
    traces: Arc<Traces>,
    recoveries: Arc<Recoveries>,
    interests: Arc<SharedInterests>,
    clock: Clock,
    broker: Broker,
    publisher: Arc<Publisher>,
    http: Arc<HttpClient>,
    drain: Arc<Drain>,
    workflow_runner: OnceLock<Weak<dyn WorkflowRunner>>,
    elsewhere: OnceLock<Elsewhere>,
    /// Bytes of events in flight, over all functions. Queues limit only the number of events: full queues of large events
    /// would need more memory than a small machine has.
    event_bytes: Budget,
    /// Bytes of uncommitted effects, over all invocations.
    effect_bytes: Budget,
    isolate_permits: Semaphore,
    /// Invocations that have called a workflow and wait for it.
    in_workflows: Arc<AtomicUsize>,
    invocations: AtomicU64,
    failures: AtomicU64,
}

/// Maximum time that an invocation waits for memory; at most half of the time limit of its function.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// Parts of the node that an invoker uses.
pub struct InvokerParts {
    /// The deployed functions and workflows.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub isolates: Arc<Isolates>,
    /// Commits changes of objects.
    pub store: Arc<Store>,
    /// The logs of functions.
    pub logs: Arc<Logs>,
    /// Secrets of functions.
    pub secrets: Arc<Secrets>,
    /// Spans of invocations.
    pub traces: Arc<Traces>,
    /// Objects that were not transferred from the peers yet.
    pub recoveries: Arc<Recoveries>,
    /// Events that workflow instances wait for.
    pub interests: Arc<SharedInterests>,
    /// The wall clock.
    pub clock: Clock,
    /// Knows if a message has to be stored.
    pub broker: Broker,
    /// Publishes the messages of invocations.
    pub publisher: Arc<Publisher>,
    /// Sends the requests of functions.
    pub http: Arc<HttpClient>,
    /// No invocation is admitted while the node drains.
    pub drain: Arc<Drain>,
    /// Maximum number of bytes of events in flight.
    pub event_bytes: usize,
    /// Maximum number of bytes of uncommitted effects.
    pub effect_bytes: usize,
}

/// The place of a durable invocation in the queue of its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceInQueue {
    /// Behind those that have arrived. The ages of chains have whole milliseconds, so only this keeps the order of two of them.
    OfArrival,
    /// That of the workflow instance that it descends from, as if it had arrived when the instance started.
    OfChain,
}

/// An admitted invocation: it has a permit to run or a slot in the queue of its function, or is placed on another node.
pub struct Admitted {
    entered: Entered,
    place: Place,
}

/// An admitted invocation without its place.
struct Entered {
    invocation: Invocation,
    function: Arc<LiveFunction>,
    since: Instant,
    /// The time limit of the function, or less if the caller waits for less.
    time_limit: Duration,
    event_bytes: Taken,
    _in_flight: TaskTrackerToken,
}

/// The place of an admitted invocation.
enum Place {
    /// This node.
    Here(Ticket),
    /// Another one.
    Elsewhere(RemoteNode),
}

/// The end of [`Invoker::attempt`].
pub struct Attempt {
    /// The reply and its effects, or the error. An attempt on another node has no effects left to commit.
    pub result: Result<(Reply, Effects), InvocationError>,
    /// Times of the attempt.
    pub timing: Timing,
    /// The name of the node that ran it; `None` for this one.
    pub node: Option<Arc<str>>,
}

/// The phases that the time limit of a function applies to.
enum Deadline {
    /// One limit for waiting, preparing and running together, because a caller waits for the answer.
    Total,
    /// One limit for waiting and preparing, and another one for running: a long wait must not make an attempt fail.
    PerPhase,
}

/// The time limit of an invocation.
struct Time {
    since: Instant,
    limit: Duration,
    deadline: Deadline,
}

impl Admitted {
    /// The name of the function.
    pub fn function_name(&self) -> Arc<str> {
        self.entered.function.name.clone()
    }
}

impl Entered {
    fn here(self, ticket: Ticket) -> Admitted {
        Admitted { entered: self, place: Place::Here(ticket) }
    }
}

impl Invoker {
    /// An invoker without a [`WorkflowRunner`](Self::set_workflow_runner).
    pub fn new(parts: InvokerParts) -> Self {
        let InvokerParts {
            registry,
            isolates,
            store,
            logs,
            secrets,
            traces,
            recoveries,
            interests,
            clock,
            broker,
            publisher,
            http,
            drain,
            event_bytes,
            effect_bytes,
        } = parts;
        Self {
            isolate_permits: Semaphore::new(isolates.max_isolates() as usize),
            registry,
            isolates,
            store,
            logs,
            secrets,
            traces,
            recoveries,
            interests,
            clock,
            broker,
            publisher,
            http,
            drain,
            workflow_runner: OnceLock::new(),
            elsewhere: OnceLock::new(),
            event_bytes: Budget::new(event_bytes),
            effect_bytes: Budget::new(effect_bytes),
            in_workflows: Arc::default(),
            invocations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Sets the runner of the workflows that functions call. Only the first call has an effect.
    pub fn set_workflow_runner(&self, runner: Weak<dyn WorkflowRunner>) {
        let _ = self.workflow_runner.set(runner);
    }

    fn workflow_runner(&self) -> Option<Arc<dyn WorkflowRunner>> {
        self.workflow_runner.get().and_then(Weak::upgrade)
    }

    /// Number of running invocations that have called a workflow and wait for it.
    pub fn in_workflows(&self) -> usize {
        self.in_workflows.load(Ordering::Relaxed)
    }

    /// A piece of work that the drain waits for while the token exists.
    pub fn in_flight(&self) -> TaskTrackerToken {
        self.drain.in_flight()
    }

    /// Finds the function by name and admits the invocation. Does not wait.
    pub fn admit(&self, invocation: Invocation) -> Result<Admitted, InvocationError> {
        let routes = self.registry.routes();
        let Some(function) = routes.function(&invocation.function) else {
            let near = routes.near_functions(&invocation.function);
            return Err(InvocationError::UnknownFunction { name: invocation.function, near });
        };
        self.admit_to(function.clone(), invocation)
    }

    /// Admits an invocation of this function: takes memory for its event, and a permit or a slot in the queue. Does not wait.
    pub fn admit_to(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
    ) -> Result<Admitted, InvocationError> {
        self.admit_for(function, invocation, Duration::MAX)
    }

    /// [`admit_to`](Self::admit_to) for a caller that waits at most `remaining`.
    pub fn admit_for(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
        remaining: Duration,
    ) -> Result<Admitted, InvocationError> {
        // Taken before `is_draining` is checked: the drain waits for an invocation that was admitted just before it began.
        let in_flight = self.drain.in_flight();
        match self.enter(&function, &invocation) {
            Ok((place, event_bytes)) => {
                let time_limit = function.spec.limits.timeout.min(remaining);
                let since = Instant::now();
                let _in_flight = in_flight;
                let entered = Entered { invocation, function, since, time_limit, event_bytes, _in_flight };
                Ok(Admitted { entered, place })
            }
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
    ) -> Result<(Place, Taken), InvocationError> {
        self.check(function, invocation)?;
        let event_bytes = self.take_event_bytes(invocation.event.body.len())?;
        Ok((self.place(function, invocation)?, event_bytes))
    }

    /// Checks that the node does not drain and that the invocation is within the limits of size and depth.
    pub fn check(&self, function: &LiveFunction, invocation: &Invocation) -> Result<(), InvocationError> {
        // Nested calls are admitted while the node drains, so that running invocations can finish.
        if self.drain.is_draining() && invocation.depth == 0 {
            return Err(InvocationError::Draining);
        }
        self.check_durable(function, invocation)
    }

    /// Checks that the invocation is within the limits of size and depth. A durable invocation is also accepted while the node
    /// drains: it runs after the next start.
    pub fn check_durable(
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

    /// Takes bytes from the budget of events in flight.
    pub fn take_event_bytes(&self, bytes: usize) -> Result<Taken, InvocationError> {
        let max_bytes = self.event_bytes.max_bytes();
        self.event_bytes.take(bytes).ok_or(InvocationError::NoMemory { max_bytes })
    }

    /// Waits for the permit, runs the function and commits its effects; on the node that the invocation is placed on.
    pub async fn run(self: &Arc<Self>, admitted: Admitted) -> Outcome {
        let Admitted { entered, place } = admitted;
        let ticket = match place {
            Place::Here(ticket) => ticket,
            // Boxed: its future is large.
            Place::Elsewhere(node) => return Box::pin(self.run_elsewhere(entered, node)).await,
        };
        let Entered { mut invocation, function, since, time_limit, event_bytes, _in_flight } = entered;
        let (id, depth) = (invocation.id.clone(), invocation.depth);
        let traced = self.begin_trace(&mut invocation);
        let mut unfinished = Unfinished::new(self, &function, id, traced, since);
        let (time, progress) =
            (Time { since, limit: time_limit, deadline: Deadline::Total }, &mut unfinished.progress);
        let mut state = Duration::ZERO;
        let result = match self.execute(invocation, &function, ticket, time, progress).await {
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
        let outcome = self.ended(&function, Outcome { id, result, timing, node: None });
        self.end_trace(traced, &function, &outcome, state);
        outcome
    }

    /// The data for the span of an invocation: a copy of it and its start in microseconds since the Unix epoch. `None` if its
    /// trace is not recorded. Sets a new `traceparent` if the invocation begins a trace.
    pub fn begin_trace(&self, invocation: &mut Invocation) -> Option<(Invocation, u64)> {
        if !self.traces.is_on() {
            return None;
        }
        if invocation.trace_parent.as_deref().and_then(trace_id).is_none() {
            invocation.trace_parent = None;
            let began_elsewhere = invocation.parent.is_some() || invocation.placed_by.is_some();
            if began_elsewhere || !self.traces.sample(self.clock.now_unix_ms()) {
                return None;
            }
            invocation.trace_parent = Some(new_trace_parent());
        }
        Some((invocation.clone(), self.clock.now_unix_us()))
    }

    /// Records the span of an invocation.
    pub fn end_trace(
        &self,
        traced: Option<(Invocation, u64)>,
        function: &LiveFunction,
        outcome: &Outcome,
        state: Duration,
    ) {
        self.end_trace_of(traced, function, outcome, (state, Answered::ByOutcome));
    }

    fn end_trace_of(
        &self,
        traced: Option<(Invocation, u64)>,
        function: &LiveFunction,
        outcome: &Outcome,
        (state, answered): (Duration, Answered),
    ) {
        let Some((invocation, started_unix_us)) = traced else { return };
        let span = of_invocation(&invocation, outcome, started_unix_us, state.as_micros() as u64);
        let Some(mut span) = span else { return };
        if invocation.trace_parent.as_deref().is_some_and(|parent| self.traces.exports(parent)) {
            span.attributes = conventions::of_invocation(&invocation, outcome, answered);
        }
        self.record(span, function);
    }

    /// Records a span of a function.
    fn record(&self, span: TraceSpan, function: &LiveFunction) {
        self.traces.add(span, |text| self.secrets.mask(&function.app, text));
    }

    /// Counts an outcome, and logs it if it is a failure.
    pub fn ended(&self, function: &LiveFunction, outcome: Outcome) -> Outcome {
        self.invocations.fetch_add(1, Ordering::Relaxed);
        // The node that ran it counts it among those of the function.
        if outcome.node.is_none() {
            function.metrics.record(&outcome);
        }
        if let Err(error) = &outcome.result {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.log_failure(function, &outcome.id, error);
        }
        outcome
    }

    /// Counts an invocation whose caller stopped waiting. This is not a failure of the function.
    fn cancelled(&self, function: &LiveFunction, outcome: &Outcome) {
        self.invocations.fetch_add(1, Ordering::Relaxed);
        function.metrics.record(outcome);
    }

    /// Admits a durable invocation. Its slot in the queue was reserved when it was accepted.
    pub fn admit_durable(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
        place_in_queue: PlaceInQueue,
    ) -> Result<Admitted, InvocationError> {
        let in_flight = self.drain.in_flight();
        self.check(&function, &invocation)?;
        let event_bytes = self.take_event_bytes(invocation.event.body.len())?;
        let node = match function.is_placed() {
            true => self.node_of(&function, &invocation, &[])?,
            false => None,
        };
        let place = match node {
            Some(node) => Place::Elsewhere(node),
            None => Place::Here(self.enter_durable(&function, &invocation, place_in_queue)),
        };
        let (since, time_limit) = (Instant::now(), function.spec.limits.timeout);
        let _in_flight = in_flight;
        let entered = Entered { invocation, function, since, time_limit, event_bytes, _in_flight };
        Ok(Admitted { entered, place })
    }

    /// The place of a durable invocation, or of a step of a workflow, in the queue of its function on this node.
    pub(super) fn enter_durable(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
        place: PlaceInQueue,
    ) -> Ticket {
        let lineage = invocation.lineage.as_ref().filter(|_| place == PlaceInQueue::OfChain);
        let age = lineage.map(|lineage| lineage.age(self.clock.now_unix_ms()));
        function.admission.enter_durable(age.unwrap_or_default())
    }

    /// Waits for the permit and runs the function. The caller has to commit the effects and count the outcome.
    pub async fn attempt(self: &Arc<Self>, admitted: Admitted) -> Attempt {
        let Admitted { entered, place } = admitted;
        let ticket = match place {
            Place::Here(ticket) => ticket,
            Place::Elsewhere(node) => return Box::pin(self.attempt_elsewhere(entered, node)).await,
        };
        let Entered { invocation, function, since, time_limit, event_bytes, _in_flight } = entered;
        let mut unfinished = Unfinished::new(self, &function, invocation.id.clone(), None, since);
        let (time, progress) =
            (Time { since, limit: time_limit, deadline: Deadline::PerPhase }, &mut unfinished.progress);
        let result = self.execute(invocation, &function, ticket, time, progress).await;
        drop(event_bytes);
        let (_, _, timing) = unfinished.finish();
        Attempt { result, timing, node: None }
    }

    /// Records the span of an attempt, before its effects are committed: `traced` is from [`begin_trace`](Self::begin_trace).
    pub fn trace_attempt(
        &self,
        traced: Option<(Invocation, u64)>,
        function: &LiveFunction,
        attempt: Attempt,
    ) -> Attempt {
        let Some((invocation, _)) = &traced else { return attempt };
        let (Attempt { result, timing, node }, id) = (attempt, invocation.id.clone());
        let (result, effects) = match result {
            Ok((reply, effects)) => (Ok(reply), Some(effects)),
            Err(error) => (Err(error), None),
        };
        let outcome = Outcome { id, result, timing, node };
        self.end_trace_of(traced, function, &outcome, (Duration::ZERO, Answered::Otherwise));
        let Outcome { result, timing, node, .. } = outcome;
        let none = || Effects::of(0, &self.effect_bytes);
        let result = result.map(|reply| (reply, effects.unwrap_or_else(none)));
        Attempt { result, timing, node }
    }

    async fn execute(
        self: &Arc<Self>,
        invocation: Invocation,
        function: &Arc<LiveFunction>,
        ticket: Ticket,
        time: Time,
        progress: &mut Progress,
    ) -> Result<(Reply, Effects), InvocationError> {
        let limits = &function.spec.limits;
        let Time { since, limit: time_limit, deadline } = time;
        let name = || function.name.to_string();
        let mut run_limits = Limits {
            memory_bytes: limits.memory_bytes,
            timeout: time_limit,
            cpu: limits.cpu.unwrap_or(Duration::MAX),
            reply_bytes: limits.reply_bytes,
        };
        let ready_by = since + time_limit;
        let in_time = |_| InvocationError::QueueTimeout { function: name(), limit: limits.timeout };
        let admitted = tokio::time::timeout_at(ready_by.into(), async {
            let permit = ticket.permit().await;
            let permit = permit.map_err(|_| InvocationError::DroppedFromQueue { function: name() })?;
            let objects = &function.spec.permissions.objects;
            if self.recoveries.is_active() && self.waits_for_objects(&function.app, objects) {
                let all_here = self.recoveries.wait_for(&function.app, objects);
                // Of two limits with one end, this one says what is missing.
                tokio::time::timeout_at(ready_by.into(), all_here).await.map_err(|_| {
                    InvocationError::ObjectsMissing { function: name(), limit: limits.timeout }
                })?;
            }
            let program = function.program(&self.isolates, &self.store).await;
            let program =
                program.map_err(|error| InvocationError::NotRunnable { function: name(), error })?;
            // A nested call waits neither for memory nor for an isolate. Its caller holds both: callers that wait for each
            // other would be in a deadlock until their time limits. Memory is taken first, so that an invocation that waits for
            // it holds no isolate.
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

        if let Deadline::Total = deadline {
            run_limits.timeout = time_limit.saturating_sub(progress.timing.queue);
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
        // The commit needs no isolate, and may wait for the disk.
        drop(isolate);
        progress.usage = None;
        (progress.timing.start, progress.timing.execution) = (completion.start, completion.execution);
        function.metrics.record_use(&completion);
        let reply = completion.result.map_err(|error| {
            let error = match error {
                // The limit in the manifest, not the remaining time.
                RunError::TimedOut { .. } => RunError::TimedOut { limit: limits.timeout },
                other => other,
            };
            InvocationError::Run { function: name(), error }
        })?;
        let nothing = Effects::of(0, &self.effect_bytes);
        let effects = std::mem::replace(&mut *effects.lock(), nothing);
        Ok((reply, effects))
    }

    /// The turn on this thread, and memory for a new isolate or a warm one. `None` if there was none within [`MEMORY_WAIT`].
    async fn start(&self, program: &Program, limits: Limits) -> Option<Start> {
        let turn = self.isolates.turn(program).await;
        if let Some(start) = self.isolates.try_start(program, limits) {
            return Some(start.after(turn));
        }
        // It keeps its permit while it waits.
        let wait = MEMORY_WAIT.min(limits.timeout / 2);
        let started = tokio::time::timeout(wait, self.isolates.start(program, limits)).await;
        Some(started.ok().flatten()?.after(turn))
    }

    /// True if a function that uses objects with these name patterns has to wait until they were transferred from the peers.
    fn waits_for_objects(&self, app: &str, patterns: &[String]) -> bool {
        let waits = |pattern: &String| self.store.objects().recovers_before(app, pattern);
        patterns.iter().any(waits)
    }

    /// Masks secrets in the message and stack of an error.
    pub fn mask(&self, function: &LiveFunction, mut error: InvocationError) -> InvocationError {
        let mask = |text: &mut String| *text = self.secrets.mask(&function.app, std::mem::take(text));
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

    /// Logs that an event was lost because the function could not be invoked.
    pub fn log_dropped(&self, function: &Arc<str>, error: &InvocationError) {
        self.logs.add(function, "", LogLevel::Warn, format!("{}: {error}", error.title()));
    }

    /// Number of invocations since the start of the node, and of those that failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.invocations.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// A permit for an isolate that is not of a function (scripts of workflows). `None` if the node is stopping.
    pub async fn isolate_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.isolate_permits.acquire().await.ok()
    }
}
