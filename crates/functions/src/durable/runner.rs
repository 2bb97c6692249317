//! Running what is pending: attempts, waits between them, the end of each, and the messages that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use edgefaas_broker::Ticket;
use edgefaas_broker::topic::TopicName;
use edgefaas_isolates::{LogLevel, Reply, RunError, Trigger};
use edgefaas_manifest::QueueOrder;
use edgefaas_platform::Taken;
use edgefaas_state::store::{Batch, CommitError, Durability};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::record::{self, Pending, StoredOutcome};
use super::{Acceptance, AnswerTo, Claim, Digest, DurableQueue, Keep, KeyClaim, Memory, Slot};
use crate::answer::Answer;
use crate::dead_letter::{self, DeadLetter};
use crate::invocation::{Invocation, InvocationError, Outcome, Timing};
use crate::invoker::Effects;
use crate::problem::Problem;
use crate::publisher::{ClientRecord, Outgoing};
use crate::records;
use crate::registry::LiveFunction;

/// How long a pending invocation waits that found the node overloaded, which is no attempt.
const OVERLOADED_WAIT: Duration = Duration::from_millis(200);
/// How long one waits whose function could not be made ready to run, which is no attempt either.
const NOT_RUNNABLE_WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to publish what found no room.
const NO_ROOM_WAIT: Duration = Duration::from_millis(50);
/// Time between two looks at what is to be forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How a durable invocation is to be treated.
#[derive(Debug, Default)]
pub struct Durable {
    /// Whether the outcome is kept.
    pub keep: Option<Keep>,
    /// Those with the same key run one after another.
    pub order_key: Option<u64>,
    /// Where the answer goes.
    pub answer: Option<AnswerTo>,
    /// The idempotency key that is used for the first time.
    pub claim: Option<KeyClaim>,
}

/// What became of a request over HTTP that asked for a durable invocation.
#[derive(Debug)]
pub enum Accepted {
    /// It is on the disk, or was there already.
    As(Ulid),
    /// Its idempotency key was used for something else.
    Conflict,
}

impl DurableQueue {
    /// Accepts a durable invocation: it is on the disk when this completes. `key` is an idempotency key with what has to
    /// be the same. If the future is dropped, it is accepted all the same.
    ///
    /// # Errors
    /// There is no room for it, in the queue or on the disk.
    pub async fn accept(
        self: &Arc<Self>,
        function: Arc<LiveFunction>,
        invocation: Invocation,
        mut durable: Durable,
        key: Option<(Digest, Digest)>,
    ) -> Result<Accepted, InvocationError> {
        let failed = |error| InvocationError::NotStored { function: function.name.to_string(), error };
        let id = Ulid::from_string(&invocation.id).unwrap_or_default();
        // Until it is on the disk it is there twice: as it came, and as it is to be written.
        let bytes = self.invoker.take_event_bytes(2 * invocation.event.body.len());
        let bytes = bytes.inspect_err(|_| function.metrics.record_rejected())?;
        if let Some((key, request)) = key {
            let claim = self.claim(key, request, id);
            match claim.map_err(|error| failed(CommitError::Failed((&error).into())))? {
                Claim::New(claim) => durable.claim = Some(claim),
                Claim::Known(id) => return Ok(Accepted::As(id)),
                Claim::Conflict => return Ok(Accepted::Conflict),
            }
        }
        // What is handed to the writer is committed in any case, and then has to run.
        let (queue, to) = (self.clone(), function.clone());
        let storing =
            tokio::spawn(async move { queue.store_accepted(&to, invocation, durable, bytes).await });
        let stored = storing.await.unwrap_or_else(|_| Err(failed(CommitError::Closed)));
        if stored.is_err() {
            function.metrics.record_rejected();
            // Others may wait for it that came with the same key.
            self.tell_ended(id);
        }
        stored.map(|()| Accepted::As(id))
    }

    async fn store_accepted(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        invocation: Invocation,
        durable: Durable,
        _bytes: Taken,
    ) -> Result<(), InvocationError> {
        self.invoker.check(function, &invocation)?;
        let slot = self.reserve(function).map_err(|_| {
            let (function, capacity) = (function.name.to_string(), function.admission.capacity());
            InvocationError::QueueFull { function, capacity }
        })?;
        let mut acceptance = self.prepare(slot, invocation, durable);
        let mut batch = Batch::default();
        for (key, value) in std::mem::take(&mut acceptance.entries) {
            self.records.put(&mut batch, key, value);
        }
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed
            .map_err(|error| InvocationError::NotStored { function: function.name.to_string(), error })?;
        self.run_accepted(function, acceptance, None);
        Ok(())
    }

    /// Makes an invocation ready to be stored.
    pub fn prepare(&self, slot: Slot, invocation: Invocation, durable: Durable) -> Acceptance {
        let Durable { keep, order_key, answer, claim } = durable;
        let pending = Pending {
            id: Ulid::from_string(&invocation.id).unwrap_or_default().0,
            attempt: invocation.attempt,
            due_unix_ms: 0,
            order_key,
            keep,
            answer,
            principal: invocation.principal,
            trace_parent: invocation.trace_parent,
            depth: invocation.depth,
            event: invocation.event,
        };
        self.prepare_pending(slot, pending, claim)
    }

    /// An invocation is stored, or will be at `ticket`: it runs when it is its turn.
    pub fn run_accepted(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        acceptance: Acceptance,
        ticket: Option<Ticket>,
    ) {
        let limits = &function.spec.limits;
        let most = limits.queue.capacity as usize + limits.concurrency as usize;
        if let Some((sequence, memory)) = acceptance.accepted(ticket, most) {
            let (queue, function) = (self.clone(), function.clone());
            self.workers.spawn(async move {
                queue.drop_oldest(&function, sequence, memory).await;
            });
        }
        self.pump(&function.name);
    }

    /// Starts what may run of a function's pending invocations.
    fn pump(self: &Arc<Self>, name: &Arc<str>) {
        let routes = self.registry.routes();
        let function = routes.function(name);
        // A function that is gone has its invocations given up, one after another.
        let (most, order) = function.map_or((1, QueueOrder::Fifo), |function| {
            (function.spec.limits.concurrency as usize, function.spec.limits.queue.order)
        });
        while !self.drain.is_draining()
            && !self.publisher.is_full(name)
            && let Some((sequence, memory)) = self.next(name, most, order)
        {
            let (queue, name) = (self.clone(), name.clone());
            self.workers.spawn(async move {
                let in_flight = queue.drain.in_flight();
                queue.run_pending(&name, sequence, memory).await;
                drop(in_flight);
                queue.pump(&name);
            });
        }
    }

    /// Publishes what was left to be published at the last stop, then starts what is pending, and from then on what
    /// comes due. Runs until `cancel` fires; one for each node.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut tidied = Instant::now();
        loop {
            self.publisher.publish_waiting();
            let names: Vec<_> = self.lanes.lock().keys().cloned().collect();
            for name in &names {
                self.pump(name);
            }
            if tidied.elapsed() >= TIDY_INTERVAL || self.is_over() {
                tidied = Instant::now();
                if let Err(error) = self.tidy().await {
                    tracing::warn!(%error, "outcomes could not be forgotten");
                }
            }
            let due = self.lanes.lock().values().filter_map(super::Lane::next_due).min();
            let wait = due.map_or(TIDY_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
            // Room in an invocation's queue is told; that on the disk and in a session's queue is not.
            let wait = if self.publisher.is_idle() { wait } else { wait.min(NO_ROOM_WAIT) };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.timer.notified() => {}
                () = self.publisher.has_waiting() => {}
                () = tokio::time::sleep(wait.min(TIDY_INTERVAL)) => {}
            }
        }
    }

    async fn run_pending(self: &Arc<Self>, name: &Arc<str>, sequence: u64, memory: Option<Memory>) {
        let Some((pending, ticket, claim)) = self.recall(name, sequence, memory).await else { return };
        let routes = self.registry.routes();
        let Some(function) = routes.function(name).cloned() else {
            let near = routes.near_functions(name);
            let error = InvocationError::UnknownFunction { name: name.to_string(), near };
            return self.give_up(name, sequence, pending, error, Timing::default()).await;
        };
        drop(routes);
        let admitted = self.invoker.admit_durable(function.clone(), invocation(name, &pending));
        let (result, timing) = match admitted {
            Ok(admitted) => self.invoker.attempt(admitted).await,
            Err(error) => (Err(error), Timing::default()),
        };
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            // It was never accepted, and whoever asked has been told so.
            return self.finish(name, sequence);
        }
        drop(claim);
        let result = match result {
            Ok((reply, effects)) => {
                self.complete(&function, sequence, &pending, reply, effects, timing).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else { return };
        let error = self.invoker.mask(&function, error);
        match fate(&error) {
            Fate::Wait(wait) => self.retry_at(name, sequence, Instant::now() + wait),
            // On the disk it is pending still: it runs when the node has been started again.
            Fate::StoreFailed => self.finish(name, sequence),
            Fate::Failed if pending.attempt < function.spec.retry.attempts => {
                self.again(&function, sequence, pending, error, timing).await;
            }
            Fate::Failed | Fate::Hopeless => self.give_up(name, sequence, pending, error, timing).await,
        }
    }

    /// The invocation, from memory or from the disk.
    async fn recall(
        &self,
        name: &str,
        sequence: u64,
        memory: Option<Memory>,
    ) -> Option<(Pending, Option<Ticket>, Option<KeyClaim>)> {
        let (ticket, remembered, claim) =
            memory.map_or((None, None, None), |memory| (memory.ticket, memory.pending, memory.claim));
        if let Some(pending) = remembered {
            return Some((*pending, ticket, claim));
        }
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            self.finish(name, sequence);
            return None;
        }
        let key = record::pending_key(name, sequence);
        match self.records.get("a pending invocation", &key) {
            Ok(Some(pending)) => return Some((pending, None, None)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(function = name, sequence, %error, "a pending invocation is lost");
            }
        }
        self.finish(name, sequence);
        None
    }

    /// Everything that an invocation came to, in one batch; then its messages.
    async fn complete(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        pending: &Pending,
        reply: Reply,
        effects: Effects,
        timing: Timing,
    ) -> Result<(), InvocationError> {
        let name = &function.name;
        let (mut batch, messages, _taken) = effects.into_parts();
        let depth = pending.depth.saturating_add(1);
        let mut outgoing: Vec<_> =
            messages.iter().map(|message| Outgoing::new(name, depth, None, message)).collect();
        outgoing.extend(self.answer_of(name, pending, Ok(reply.clone())));
        let kept =
            pending.keep.is_some().then(|| StoredOutcome::new(Ok(reply.clone()), pending.attempt, timing));
        let outcome = Outcome { id: Ulid(pending.id).to_string(), result: Ok(reply), timing };
        let ending = self.end(&mut batch, name, sequence, pending, kept, outgoing);
        loop {
            match self.store.committer().commit(batch.clone(), Durability::Written).await {
                Ok(()) => break,
                // It has run, and what it did outside is done: only its result waits for room.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Err(error) => {
                    return Err(InvocationError::Commit { function: name.to_string(), error });
                }
            }
        }
        ending.follow(self, name, sequence, pending);
        self.invoker.ended(function, outcome);
        Ok(())
    }

    /// A failed one is to run again, after a wait that survives a restart.
    async fn again(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        mut pending: Pending,
        error: InvocationError,
        timing: Timing,
    ) {
        let retry = function.spec.retry;
        let wait = retry.wait_after(pending.attempt, rand::random());
        let detail = format!("attempt {} of {} failed", pending.attempt, retry.attempts);
        let id = Ulid(pending.id).to_string();
        self.logs.add(&function.name, &id, LogLevel::Warn, format!("{detail}, the next one in {wait:?}"));
        self.invoker.ended(function, Outcome { id, result: Err(error), timing });
        pending.attempt += 1;
        pending.due_unix_ms = self.clock.now_unix_ms() + wait.as_millis() as u64;
        loop {
            let mut batch = Batch::default();
            let key = record::pending_key(&function.name, sequence);
            self.records.put(&mut batch, key, records::encode(&pending));
            match self.store.committer().commit(batch, Durability::Written).await {
                // The next run takes the count from the disk: it would be this one again, and again.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(function = &*function.name, %error, "a failed attempt could not be noted");
                    // On the disk it is pending still: it runs when the node has been started again.
                    return self.finish(&function.name, sequence);
                }
            }
        }
        self.retried.fetch_add(1, Ordering::Relaxed);
        self.retry_at(&function.name, sequence, Instant::now() + wait);
    }

    /// The last word about a failure: dead letter, outcome, and pending no more.
    async fn give_up(
        self: &Arc<Self>,
        name: &Arc<str>,
        sequence: u64,
        pending: Pending,
        error: InvocationError,
        timing: Timing,
    ) {
        let id = Ulid(pending.id);
        let problem = Problem::of(&error, Some(&id.to_string()));
        let letter = dead_letter(name, &pending, &problem).message(self.publisher.max_message_bytes());
        let depth = pending.depth.saturating_add(1);
        let mut outgoing: Vec<_> =
            letter.iter().map(|letter| Outgoing::new(name, depth, None, letter)).collect();
        outgoing.extend(self.answer_of(name, &pending, Err(problem.clone())));
        let outcome = StoredOutcome::new(Err(problem), pending.attempt, timing);
        let committed = loop {
            let mut batch = Batch::default();
            let (outcome, outgoing) = (Some(outcome.clone()), outgoing.clone());
            let ending = self.end(&mut batch, name, sequence, &pending, outcome, outgoing);
            match ending.commit(self, batch).await {
                // It has had its last run; only the word about it waits for room.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                committed => break committed,
            }
        };
        match committed {
            Ok(committed) => {
                self.dead_lettered.fetch_add(1, Ordering::Relaxed);
                committed.follow(self, name, sequence, &pending);
            }
            // On the disk it is pending still.
            Err(_) => self.finish(name, sequence),
        }
        let id = id.to_string();
        self.logs.add(name, &id, LogLevel::Error, format!("given up after {} attempts", pending.attempt));
        if let Some(function) = self.registry.routes().function(name) {
            self.invoker.ended(function, Outcome { id, result: Err(error), timing });
        }
    }

    /// One that waited makes room for a newer one.
    async fn drop_oldest(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        memory: Option<Memory>,
    ) {
        let name = &function.name;
        let Some((pending, ticket, claim)) = self.recall(name, sequence, memory).await else { return };
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            return self.finish(name, sequence);
        }
        drop(claim);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let error = InvocationError::DroppedFromQueue { function: name.to_string() };
        self.give_up(name, sequence, pending, error, Timing::default()).await;
        self.pump(name);
    }

    /// Adds to `batch` that an invocation is over.
    fn end(
        &self,
        batch: &mut Batch,
        name: &str,
        sequence: u64,
        pending: &Pending,
        kept: Option<StoredOutcome>,
        outgoing: Vec<Outgoing>,
    ) -> Ending {
        self.records.delete(batch, record::pending_key(name, sequence));
        let kept_bytes = kept.map(|outcome| self.keep(batch, name, pending, outcome));
        Ending { kept_bytes, outgoing: self.publisher.put_all(batch, outgoing) }
    }

    fn answer_of(&self, name: &str, pending: &Pending, result: Result<Reply, Problem>) -> Option<Outgoing> {
        let to = pending.answer.as_ref()?;
        let answer = Answer {
            topic: TopicName::new(to.topic.as_str()).ok()?,
            correlation_data: to.correlation_data.clone(),
            depth: pending.depth,
            requester: to.requester.as_ref().map(ClientRecord::client),
        };
        let message = answer.message(result, self.publisher.max_message_bytes())?;
        Some(Outgoing::new(name, pending.depth.saturating_add(1), to.requester.clone(), &message))
    }
}

/// What is committed with the end of an invocation, and what follows.
struct Ending {
    kept_bytes: Option<u64>,
    outgoing: Vec<(u64, Outgoing)>,
}

impl Ending {
    async fn commit(self, queue: &DurableQueue, batch: Batch) -> Result<Self, CommitError> {
        queue.store.committer().commit(batch, Durability::Written).await?;
        Ok(self)
    }

    fn follow(self, queue: &DurableQueue, name: &str, sequence: u64, pending: &Pending) {
        if let Some(bytes) = self.kept_bytes {
            queue.kept(bytes);
        }
        // Before the next one of its key may start.
        queue.publisher.send(self.outgoing);
        queue.finish(name, sequence);
        queue.tell_ended(Ulid(pending.id));
    }
}

/// What an error means for an invocation that is to run at least once.
enum Fate {
    /// It did not get to run: no attempt, and so long until it is tried again.
    Wait(Duration),
    /// Nothing can be committed until the node is started again.
    StoreFailed,
    /// Another attempt may do better.
    Failed,
    /// None would.
    Hopeless,
}

fn fate(error: &InvocationError) -> Fate {
    use InvocationError as E;
    match error {
        E::QueueFull { .. }
        | E::DroppedFromQueue { .. }
        | E::QueueTimeout { .. }
        | E::NoIsolate { .. }
        | E::NoMemory { .. }
        | E::NoGuestMemory { .. }
        | E::OverBudget { .. }
        | E::Draining
        | E::Cancelled { .. }
        | E::Run { error: RunError::NoCapacity { .. } | RunError::NodeOutOfMemory { .. }, .. }
        | E::Commit { error: CommitError::DiskFull { .. }, .. } => Fate::Wait(OVERLOADED_WAIT),
        // A deploy may bring one that runs.
        E::NotRunnable { .. } => Fate::Wait(NOT_RUNNABLE_WAIT),
        E::Commit { error: CommitError::Failed(_) | CommitError::Closed, .. } | E::NotStored { .. } => {
            Fate::StoreFailed
        }
        E::UnknownFunction { .. } | E::PayloadTooLarge { .. } | E::TooDeep { .. } => Fate::Hopeless,
        E::Run { .. }
        | E::Workflow { .. }
        | E::Commit { error: CommitError::Field(_) | CommitError::KeyTooLong { .. }, .. } => Fate::Failed,
    }
}

fn invocation(function: &str, pending: &Pending) -> Invocation {
    Invocation {
        id: Ulid(pending.id).to_string(),
        function: function.to_owned(),
        principal: pending.principal.clone(),
        parent: None,
        trace_parent: pending.trace_parent.clone(),
        attempt: pending.attempt,
        depth: pending.depth,
        lineage: None,
        event: pending.event.clone(),
    }
}

/// The dead letter of an invocation: the original payload, and why it was given up.
fn dead_letter(function: &str, pending: &Pending, problem: &Problem) -> DeadLetter {
    let (origin, content_type) = match &pending.event.trigger {
        Trigger::Mqtt(message) => {
            (Some((dead_letter::TOPIC_PROPERTY, message.topic.clone())), message.content_type.clone())
        }
        Trigger::Http(request) => {
            let content_type = request.headers.iter().find(|(name, _)| name == "content-type");
            let content_type = content_type.map(|(_, value)| value.clone());
            (Some(("request", format!("{} {}", request.method, request.path))), content_type)
        }
        _ => (None, None),
    };
    let mut about =
        vec![("invocation", Ulid(pending.id).to_string()), ("attempts", pending.attempt.to_string())];
    about.extend(origin);
    DeadLetter {
        name: function.to_owned(),
        title: problem.title.to_string(),
        detail: problem.detail.clone(),
        status: problem.status,
        about,
        content_type,
        payload: pending.event.body.clone(),
    }
}
