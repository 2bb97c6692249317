//! The path of an invocation: admit, run, commit.

mod callee;
mod commit;
mod effects;
mod host;
mod object_calls;
mod object_values;
mod unfinished;

use std::sync::atomic::{AtomicU64, Ordering};
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

pub use callee::{Callees, WorkflowCall};
pub use effects::Effects;

use crate::drain::Drain;
use crate::invocation::{Invocation, InvocationError, MAX_DEPTH, Outcome, Timing};
use crate::logs::Logs;
use crate::outgoing::HttpClient;
use crate::publisher::Publisher;
use crate::registry::{LiveFunction, Registry, SharedInterests, Ticket};
use crate::secrets::Secrets;
use crate::trace::{Traces, new_trace_parent, of_invocation};

/// Runs invocations, wherever they come from.
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
    callees: OnceLock<Weak<dyn Callees>>,
    /// Events in flight, over all functions: queues are bounded in number, and the largest events that fit them all are
    /// more than a small machine has.
    event_bytes: Budget,
    /// Of what invocations have published and written, until it is committed.
    effect_bytes: Budget,
    isolate_permits: Semaphore,
    invocations: AtomicU64,
    failures: AtomicU64,
}

/// The longest time that an invocation waits for memory, which is also at most half of its function's time limit.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// The parts that an invoker works with.
pub struct InvokerParts {
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Where functions run.
    pub isolates: Arc<Isolates>,
    /// Where changes are committed.
    pub store: Arc<Store>,
    /// Where functions log.
    pub logs: Arc<Logs>,
    /// Secrets of functions.
    pub secrets: Arc<Secrets>,
    /// Spans of invocations.
    pub traces: Arc<Traces>,
    /// Objects that have not been transferred from the peers yet.
    pub recoveries: Arc<Recoveries>,
    /// Events that workflow instances wait for.
    pub interests: Arc<SharedInterests>,
    /// The wall clock.
    pub clock: Clock,
    /// Says who keeps a message.
    pub broker: Broker,
    /// Publishes the messages of invocations.
    pub publisher: Arc<Publisher>,
    /// Sends the requests of functions.
    pub http: Arc<HttpClient>,
    /// Refuses invocations while the node stops.
    pub drain: Arc<Drain>,
    /// Bytes of events in flight.
    pub event_bytes: usize,
    /// Bytes of uncommitted effects.
    pub effect_bytes: usize,
}

/// An invocation that has its place: it runs or waits for its turn.
pub struct Admitted {
    invocation: Invocation,
    function: Arc<LiveFunction>,
    ticket: Ticket,
    since: Instant,
    event_bytes: Taken,
    _in_flight: TaskTrackerToken,
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

impl Invoker {
    /// An invoker without [callees](Self::set_callees).
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
            callees: OnceLock::new(),
            event_bytes: Budget::new(event_bytes),
            effect_bytes: Budget::new(effect_bytes),
            invocations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Sets, once, what functions may call that is no function.
    pub fn set_callees(&self, callees: Weak<dyn Callees>) {
        let _ = self.callees.set(callees);
    }

    fn callees(&self) -> Option<Arc<dyn Callees>> {
        self.callees.get().and_then(Weak::upgrade)
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
        let in_flight = self.drain.in_flight();
        match self.enter(&function, &invocation) {
            Ok((ticket, event_bytes)) => Ok(Admitted {
                invocation,
                function,
                ticket,
                since: Instant::now(),
                event_bytes,
                _in_flight: in_flight,
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
    pub fn check(&self, function: &LiveFunction, invocation: &Invocation) -> Result<(), InvocationError> {
        // What runs already may still call others: it is to finish.
        if self.drain.is_draining() && invocation.depth == 0 {
            return Err(InvocationError::Draining);
        }
        self.check_durable(function, invocation)
    }

    /// Whether an invocation can be taken at all. One that is kept on the disk is also taken while the node drains: it runs
    /// after the next start.
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

    /// Takes so much of what there is for events.
    pub fn take_event_bytes(&self, bytes: usize) -> Result<Taken, InvocationError> {
        let max_bytes = self.event_bytes.max_bytes();
        self.event_bytes.take(bytes).ok_or(InvocationError::NoMemory { max_bytes })
    }

    /// Waits for the turn, runs and commits.
    pub async fn run(self: &Arc<Self>, admitted: Admitted) -> Outcome {
        let Admitted { mut invocation, function, ticket, since, event_bytes, _in_flight } = admitted;
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
    pub fn begin_trace(&self, invocation: &mut Invocation) -> Option<(Invocation, u64)> {
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
    pub fn end_trace(
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
    pub fn ended(&self, function: &LiveFunction, outcome: Outcome) -> Outcome {
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
    pub fn admit_durable(
        &self,
        function: Arc<LiveFunction>,
        invocation: Invocation,
    ) -> Result<Admitted, InvocationError> {
        let in_flight = self.drain.in_flight();
        self.check(&function, &invocation)?;
        let event_bytes = self.take_event_bytes(invocation.event.body.len())?;
        let ticket = function.admission.enter_durable();
        let since = Instant::now();
        Ok(Admitted { invocation, function, ticket, since, event_bytes, _in_flight: in_flight })
    }

    /// Waits for the turn and runs. What comes of it is not committed, and nobody has been told: that is left to the
    /// caller.
    pub async fn attempt(
        self: &Arc<Self>,
        admitted: Admitted,
    ) -> (Result<(Reply, Effects), InvocationError>, Timing) {
        let Admitted { invocation, function, ticket, since, event_bytes, _in_flight } = admitted;
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
                program.map_err(|error| InvocationError::NotRunnable { function: name(), error })?;
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
    pub fn mask(&self, function: &LiveFunction, mut error: InvocationError) -> InvocationError {
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
    pub fn log_dropped(&self, function: &Arc<str>, error: &InvocationError) {
        self.logs.add(function, "", LogLevel::Warn, format!("{}: {error}", error.title()));
    }

    /// Invocations that ran since the start, and those of them that failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.invocations.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// A place for an isolate that is no function's; nothing once the node stops.
    pub async fn isolate_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.isolate_permits.acquire().await.ok()
    }
}
