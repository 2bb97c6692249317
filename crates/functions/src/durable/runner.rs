//! Attempts of pending invocations: start, retry, end, dead letter.

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

use super::dead_letters::DeadKey;
use super::invocation_records::{self, Dead, Ended, Pending, StoredOutcome};
use super::{
    Acceptance, AnswerTo, CachedPending, Claim, Digest, DurableQueue, FunctionQueue, Keep, KeyClaim, Slot,
    max_pending,
};
use crate::answer::{Answer, NODE_PROPERTY};
use crate::dead_letter::{self, DeadLetter};
use crate::invocation::{Invocation, InvocationError, Outcome, Timing};
use crate::invoker::{Attempt, Effects, PlaceInQueue};
use crate::problem::Problem;
use crate::publisher::{ClientRecord, Outgoing};
use crate::records;
use crate::registry::LiveFunction;
use crate::remote::RemoteErrorKind;

/// Wait after the node was overloaded or the disk was full. This does not count as an attempt.
const OVERLOADED_WAIT: Duration = Duration::from_millis(200);
/// Wait after the program of the function could not be prepared. This does not count as an attempt.
const NOT_RUNNABLE_WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to publish waiting messages.
const NO_ROOM_WAIT: Duration = Duration::from_millis(50);
/// Time between two removals of expired outcomes.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Options of a durable invocation.
#[derive(Debug, Default)]
pub struct Durable {
    /// Set if the outcome is kept.
    pub keep: Option<Keep>,
    /// Invocations with the same key run one after another.
    pub order_key: Option<u64>,
    /// The destination of the answer.
    pub answer: Option<AnswerTo>,
    /// The claim of a new idempotency key.
    pub claim: Option<KeyClaim>,
}

/// The result of [`DurableQueue::accept`].
#[derive(Debug)]
pub enum Accepted {
    /// The id of the invocation, which is stored: the new one, or an earlier one with the same idempotency key.
    As(Ulid),
    /// Another request has used the idempotency key.
    Conflict,
}

impl DurableQueue {
    /// Accepts a durable invocation: it is on the disk when this completes. `key` has the digests of the idempotency key and
    /// of the request. Dropping the future does not cancel the acceptance once it was handed to the writer.
    ///
    /// # Errors
    /// The invocation is over a limit, its queue, the memory for events or the disk is full, or the node is stopping.
    pub async fn accept(
        self: &Arc<Self>,
        function: Arc<LiveFunction>,
        invocation: Invocation,
        mut durable: Durable,
        key: Option<(Digest, Digest)>,
    ) -> Result<Accepted, InvocationError> {
        let failed = |error| InvocationError::NotStored { function: function.name.to_string(), error };
        let id = Ulid::from_string(&invocation.id).unwrap_or_default();
        // Until it is on the disk, memory holds the event twice: the original and the encoded record.
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
        // A task of its own: the writer commits the batch even if this future is dropped, and then the invocation has to run.
        let (queue, to) = (self.clone(), function.clone());
        let storing =
            tokio::spawn(async move { queue.store_accepted(&to, invocation, durable, bytes).await });
        let stored = storing.await.unwrap_or_else(|_| Err(failed(CommitError::Closed)));
        if stored.is_err() {
            function.metrics.record_rejected();
            // Requests with the same key may wait for it.
            self.notify_ended(id);
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

    /// Prepares an invocation for storing. The caller has to store [`Acceptance::entries`] in one batch.
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

    /// Adds a stored invocation to its queue and starts what is ready. Without `ticket` it is on the disk; with it, it will be
    /// when the ticket is durable.
    pub fn run_accepted(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        acceptance: Acceptance,
        ticket: Option<Ticket>,
    ) {
        if let Some((sequence, cached)) = acceptance.accepted(ticket, max_pending(function)) {
            let (queue, function) = (self.clone(), function.clone());
            self.workers.spawn(async move {
                queue.drop_oldest(&function, sequence, cached).await;
            });
        }
        self.start_ready(&function.name);
    }

    /// Starts the pending invocations of a function that may run now.
    pub(super) fn start_ready(self: &Arc<Self>, name: &Arc<str>) {
        let routes = self.registry.routes();
        let function = routes.function(name);
        // The invocations of a function that is no longer deployed fail, one after another.
        let (max_running, order) = function.map_or((1, QueueOrder::Fifo), |function| {
            (function.spec.limits.concurrency as usize, function.spec.limits.queue.order)
        });
        while !self.drain.is_draining()
            && !self.publisher.is_full(name)
            && let Some((sequence, cached)) = self.start_next(name, max_running, order)
        {
            let (queue, name) = (self.clone(), name.clone());
            self.workers.spawn(async move {
                let in_flight = queue.drain.in_flight();
                queue.run_pending(&name, sequence, cached).await;
                drop(in_flight);
                queue.start_ready(&name);
            });
        }
    }

    /// Publishes waiting messages, starts pending invocations when they are due, and removes expired outcomes. Runs until
    /// `cancel` fires. A node runs it once.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut expired_at = Instant::now();
        let sleeper = self.clock.sleeper();
        loop {
            self.publisher.publish_waiting();
            let names: Vec<_> = self.queues.lock().keys().cloned().collect();
            for name in &names {
                self.start_ready(name);
            }
            if expired_at.elapsed() >= EXPIRY_INTERVAL || self.is_over_limits() {
                expired_at = Instant::now();
                if let Err(error) = self.remove_expired().await {
                    tracing::warn!(%error, "expired outcomes could not be removed");
                }
            }
            let due = self.queues.lock().values().filter_map(FunctionQueue::next_due).min();
            let wait = due.map(|due| due.saturating_duration_since(self.clock.instant()));
            // `finish` notifies of room in the queue of a function. Nothing notifies of room on the disk or in the queue of a
            // session, so that waiting messages are tried again after a short time.
            let at_most = if self.publisher.is_idle() { EXPIRY_INTERVAL } else { NO_ROOM_WAIT };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.wake.notified() => {}
                () = self.publisher.message_waits() => {}
                () = sleeper.sleep(wait, at_most) => {}
            }
        }
    }

    async fn run_pending(self: &Arc<Self>, name: &Arc<str>, sequence: u64, cached: Option<CachedPending>) {
        let Some((pending, ticket, claim)) = self.load_pending(name, sequence, cached).await else {
            return;
        };
        let routes = self.registry.routes();
        let Some(function) = routes.function(name).cloned() else {
            let near = routes.near_functions(name);
            let error = InvocationError::UnknownFunction { name: name.to_string(), near };
            return self.fail(name, sequence, pending, error, Ran::default(), Burial::DeadLetter).await;
        };
        drop(routes);
        let mut invocation = invocation(name, &pending);
        let traced = self.invoker.begin_trace(&mut invocation);
        let admitted = self.invoker.admit_durable(function.clone(), invocation, PlaceInQueue::OfChain);
        let (result, ran) = match admitted {
            Ok(admitted) => {
                let attempt = self.invoker.attempt(admitted).await;
                let Attempt { result, timing, node } =
                    self.invoker.trace_attempt(traced, &function, attempt);
                (result, Ran { timing, node })
            }
            Err(error) => (Err(error), Ran::default()),
        };
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            // The invocation was not stored. Its caller has got an error.
            return self.finish(name, sequence);
        }
        drop(claim);
        let result = match result {
            Ok((reply, effects)) => {
                self.complete(&function, sequence, &pending, reply, effects, ran.clone()).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else { return };
        let error = self.invoker.mask(&function, error);
        match failure_kind(&error) {
            FailureKind::Overloaded => {
                self.retry_at(name, sequence, self.clock.instant() + OVERLOADED_WAIT);
            }
            FailureKind::NotRunnable => {
                // Somebody may have to do something: the lists of invocations say what it waits for.
                self.last_errors.set(pending.id, Problem::of(&error, None).into());
                self.retry_at(name, sequence, self.clock.instant() + NOT_RUNNABLE_WAIT);
            }
            // It is still pending on the disk, and runs after the next start of the node.
            FailureKind::StoreFailed => self.finish(name, sequence),
            FailureKind::Attempt if pending.attempt < function.spec.retry.attempts => {
                self.retry_later(&function, sequence, pending, error, ran).await;
            }
            FailureKind::Attempt | FailureKind::Permanent => {
                self.fail(name, sequence, pending, error, ran, Burial::DeadLetter).await;
            }
        }
    }

    /// The invocation, from the cache or from the disk. Removes it from the queue and returns `None` if it is lost.
    pub(super) async fn load_pending(
        &self,
        name: &str,
        sequence: u64,
        cached: Option<CachedPending>,
    ) -> Option<(Pending, Option<Ticket>, Option<KeyClaim>)> {
        let (ticket, pending, claim) =
            cached.map_or((None, None, None), |cached| (cached.ticket, cached.pending, cached.claim));
        if let Some(pending) = pending {
            return Some((*pending, ticket, claim));
        }
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            self.finish(name, sequence);
            return None;
        }
        let key = invocation_records::pending_key(name, sequence);
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

    /// Commits the effects, the outcome and the messages of an invocation in one batch. Then publishes the messages.
    async fn complete(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        pending: &Pending,
        reply: Reply,
        effects: Effects,
        ran: Ran,
    ) -> Result<(), InvocationError> {
        let name = &function.name;
        let node_name = self.node_name(&ran);
        let Ran { timing, node } = ran;
        let (mut batch, messages, _taken) = effects.into_parts();
        let depth = pending.depth.saturating_add(1);
        let mut outgoing: Vec<_> =
            messages.iter().map(|message| Outgoing::new(name, depth, None, message)).collect();
        outgoing.extend(self.answer_of(name, pending, Ok(reply.clone()), node_name.as_deref()));
        let kept = pending.keep.is_some().then(|| Ended {
            outcome: StoredOutcome::new(Ok(reply.clone()), pending.attempt, timing),
            node: node_name.as_deref().map(str::to_owned),
        });
        let outcome = Outcome { id: Ulid(pending.id).to_string(), result: Ok(reply), timing, node };
        let ending = self.end(&mut batch, name, sequence, pending, kept, outgoing);
        loop {
            match self.store.committer().commit(batch.clone(), Durability::Written).await {
                Ok(()) => break,
                // The function has run, so its result waits for room on the disk instead of a new attempt.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Err(error) => {
                    return Err(InvocationError::Commit { function: name.to_string(), error });
                }
            }
        }
        ending.after_commit(self, name, sequence, pending);
        self.invoker.ended(function, outcome);
        Ok(())
    }

    /// Schedules the next attempt of a failed invocation. The wait survives a restart.
    async fn retry_later(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        mut pending: Pending,
        error: InvocationError,
        ran: Ran,
    ) {
        let retry = function.spec.retry;
        let wait = retry.wait_after(pending.attempt, rand::random());
        let detail = format!("attempt {} of {} failed", pending.attempt, retry.attempts);
        let id = Ulid(pending.id).to_string();
        // Logs the failure: the line about the next attempt follows it.
        let outcome = Outcome { id, result: Err(error), timing: ran.timing, node: ran.node };
        let outcome = self.invoker.ended(function, outcome);
        if let Err(error) = &outcome.result {
            self.last_errors.set(pending.id, Problem::of(error, None).into());
        }
        let shown_wait = Duration::from_millis(wait.as_millis() as u64);
        let wait_text = format!("{detail}, the next one in {shown_wait:?}");
        self.logs.add(&function.name, &outcome.id, LogLevel::Warn, wait_text);
        pending.attempt += 1;
        pending.due_unix_ms = self.clock.now_unix_ms() + wait.as_millis() as u64;
        let mut keeps_error = true;
        loop {
            let mut batch = Batch::default();
            let key = invocation_records::pending_key(&function.name, sequence);
            self.records.put(&mut batch, key, records::encode(&pending));
            if keeps_error {
                self.last_errors.put(&self.records, &mut batch, pending.id);
            }
            match self.store.committer().commit(batch, Durability::Written).await {
                // The error needs room, the number of the attempt does not.
                Err(CommitError::DiskFull { .. }) if keeps_error => keeps_error = false,
                // The next attempt reads its number from the disk: without this write it would never rise.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(function = &*function.name, %error, "a failed attempt could not be recorded");
                    // It is still pending on the disk, and runs after the next start of the node.
                    return self.finish(&function.name, sequence);
                }
            }
        }
        self.retried.fetch_add(1, Ordering::Relaxed);
        self.retry_at(&function.name, sequence, self.clock.instant() + wait);
    }

    /// Ends an invocation that failed permanently: stores its dead letter and its outcome.
    pub(super) async fn fail(
        self: &Arc<Self>,
        name: &Arc<str>,
        sequence: u64,
        pending: Pending,
        error: InvocationError,
        ran: Ran,
        burial: Burial,
    ) {
        let id = Ulid(pending.id);
        let problem = Problem::of(&error, Some(&id.to_string()));
        let node_name = self.node_name(&ran);
        let is_dead = burial == Burial::DeadLetter;
        let letter = is_dead.then(|| dead_letter(name, &pending, &problem, node_name.as_deref()));
        let letter = letter.and_then(|letter| letter.message(self.publisher.max_message_bytes()));
        let kept_letter = is_dead.then(|| self.keep_dead(name, &pending, problem.clone()));
        let depth = pending.depth.saturating_add(1);
        let mut outgoing: Vec<_> =
            letter.iter().map(|letter| Outgoing::new(name, depth, None, letter)).collect();
        outgoing.extend(self.answer_of(name, &pending, Err(problem.clone()), node_name.as_deref()));
        let outcome = StoredOutcome::new(Err(problem), pending.attempt, ran.timing);
        let ended = Ended { outcome, node: node_name.as_deref().map(str::to_owned) };
        // Logs the failure of the last attempt, before the next invocation can start.
        if let Some(function) = self.registry.routes().function(name) {
            let (id, timing, node) = (id.to_string(), ran.timing, ran.node);
            self.invoker.ended(function, Outcome { id, result: Err(error), timing, node });
        }
        let committed = loop {
            let mut batch = Batch::default();
            let (ended, outgoing) = (Some(ended.clone()), outgoing.clone());
            let ending = self.end(&mut batch, name, sequence, &pending, ended, outgoing);
            if let Some(kept) = &kept_letter {
                batch.append(kept.clone());
            }
            match ending.commit(self, batch).await {
                // There are no more attempts: the dead letter waits for room on the disk.
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                committed => break committed,
            }
        };
        match committed {
            Ok(committed) => {
                if is_dead {
                    self.dead_lettered.fetch_add(1, Ordering::Relaxed);
                    let attempts = if pending.attempt == 1 { "attempt" } else { "attempts" };
                    let text = format!("failed permanently after {} {attempts}", pending.attempt);
                    self.logs.add(name, &id.to_string(), LogLevel::Error, text);
                }
                committed.after_commit(self, name, sequence, &pending);
            }
            // It is still pending on the disk.
            Err(_) => self.finish(name, sequence),
        }
    }

    /// The batch that keeps a dead letter, and deletes those that make room for it.
    fn keep_dead(&self, name: &Arc<str>, pending: &Pending, problem: Problem) -> Batch {
        let key = DeadKey { ended_unix_ms: self.clock.now_unix_ms(), id: Ulid(pending.id) };
        let dead = Dead { pending: pending.clone(), attempts: pending.attempt, problem: problem.into() };
        let record = records::encode(&dead);
        let mut batch = Batch::default();
        let removed = self.dead.add(name, key, record.len());
        if removed.iter().all(|(removed, _)| *removed != key) {
            self.records.put(&mut batch, invocation_records::dead_key(key, name), record);
        }
        for (key, function) in removed {
            self.records.delete(&mut batch, invocation_records::dead_key(key, &function));
        }
        batch
    }

    /// Ends an evicted invocation, which makes room for a newer one.
    async fn drop_oldest(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        sequence: u64,
        cached: Option<CachedPending>,
    ) {
        let name = &function.name;
        let Some((pending, ticket, claim)) = self.load_pending(name, sequence, cached).await else {
            return;
        };
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            return self.finish(name, sequence);
        }
        drop(claim);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let error = InvocationError::DroppedFromQueue { function: name.to_string() };
        self.fail(name, sequence, pending, error, Ran::default(), Burial::DeadLetter).await;
        self.start_ready(name);
    }

    /// Adds the end of an invocation to `batch`.
    fn end(
        &self,
        batch: &mut Batch,
        name: &str,
        sequence: u64,
        pending: &Pending,
        kept: Option<Ended>,
        outgoing: Vec<Outgoing>,
    ) -> Ending {
        self.records.delete(batch, invocation_records::pending_key(name, sequence));
        self.last_errors.delete(&self.records, batch, pending.id);
        let kept_bytes = kept.map(|ended| self.keep(batch, name, pending, ended));
        Ending { kept_bytes, outgoing: self.publisher.put_all(batch, outgoing) }
    }

    /// The name of the node that ran the last attempt; `None` in no cluster.
    fn node_name(&self, ran: &Ran) -> Option<Arc<str>> {
        ran.node.clone().or_else(|| self.invoker.this_node().map(|this| this.name.clone()))
    }

    fn answer_of(
        &self,
        name: &str,
        pending: &Pending,
        result: Result<Reply, Problem>,
        node: Option<&str>,
    ) -> Option<Outgoing> {
        let to = pending.answer.as_ref()?;
        let answer = Answer {
            topic: TopicName::new(to.topic.as_str()).ok()?,
            correlation_data: to.correlation_data.clone(),
            depth: pending.depth,
            requester: to.requester.as_ref().map(ClientRecord::client),
        };
        let message = answer.message(result, node, self.publisher.max_message_bytes())?;
        Some(Outgoing::new(name, pending.depth.saturating_add(1), to.requester.clone(), &message))
    }
}

/// What is left of an invocation that ends without success, beside its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Burial {
    /// A dead letter: the message, and the record for operators.
    DeadLetter,
    /// Nothing.
    Silent,
}

/// Times and node of the last attempt of an invocation.
#[derive(Clone, Default)]
pub(super) struct Ran {
    timing: Timing,
    /// The name of the node; `None` for this one.
    node: Option<Arc<str>>,
}

/// The end of an invocation in a batch.
struct Ending {
    kept_bytes: Option<u64>,
    outgoing: Vec<(u64, Outgoing)>,
}

impl Ending {
    async fn commit(self, queue: &DurableQueue, batch: Batch) -> Result<Self, CommitError> {
        queue.store.committer().commit(batch, Durability::Written).await?;
        Ok(self)
    }

    /// Updates memory and publishes the messages, after the batch was committed.
    fn after_commit(self, queue: &DurableQueue, name: &str, sequence: u64, pending: &Pending) {
        if let Some(bytes) = self.kept_bytes {
            queue.kept(bytes);
        }
        queue.last_errors.forget(pending.id);
        // Before `finish`, which lets the next invocation of the same order key start.
        queue.publisher.send(self.outgoing);
        queue.finish(name, sequence);
        queue.notify_ended(Ulid(pending.id));
    }
}

/// The kind of failure of a durable invocation.
enum FailureKind {
    /// The function could not run or commit now. Not an attempt: it is tried again soon.
    Overloaded,
    /// The function cannot run before a deploy, a node or the network changes. Not an attempt either.
    NotRunnable,
    /// The store failed. Nothing can be committed until the node restarts.
    StoreFailed,
    /// The attempt failed. Another one may succeed.
    Attempt,
    /// No attempt can succeed.
    Permanent,
}

fn failure_kind(error: &InvocationError) -> FailureKind {
    use InvocationError as E;
    match error {
        E::QueueFull { .. }
        | E::DroppedFromQueue { .. }
        | E::QueueTimeout { .. }
        | E::ObjectsMissing { .. }
        | E::NoIsolate { .. }
        | E::NoMemory { .. }
        | E::NoGuestMemory { .. }
        | E::OverBudget { .. }
        | E::Draining
        // The same attempt is repeated: a node that has run it answers again, without a second effect.
        | E::NodeLost { .. }
        | E::Cancelled { .. }
        | E::Run { error: RunError::NoCapacity { .. } | RunError::NodeOutOfMemory { .. }, .. }
        | E::Commit { error: CommitError::DiskFull { .. }, .. } => FailureKind::Overloaded,
        // A new deploy may repair the function.
        E::NotRunnable { .. } | E::NoNode { .. } => FailureKind::NotRunnable,
        E::Commit { error: CommitError::Failed(_) | CommitError::Closed, .. } | E::NotStored { .. } => {
            FailureKind::StoreFailed
        }
        E::Remote { error, .. } => match error.kind {
            RemoteErrorKind::DiskFull | RemoteErrorKind::ShareUsed => FailureKind::Overloaded,
            RemoteErrorKind::NotRunnable => FailureKind::NotRunnable,
            RemoteErrorKind::Commit | RemoteErrorKind::Unknown => FailureKind::Attempt,
        },
        E::UnknownFunction { .. } | E::UnknownWorkflow { .. } | E::PayloadTooLarge { .. } | E::TooDeep { .. } | E::Discarded { .. } => FailureKind::Permanent,
        E::Run { .. }
        | E::Workflow { .. }
        | E::Commit { error: CommitError::Field(_) | CommitError::KeyTooLong { .. }, .. } => {
            FailureKind::Attempt
        }
    }
}

/// The next attempt of a pending invocation.
pub(super) fn invocation(function: &str, pending: &Pending) -> Invocation {
    Invocation {
        id: Ulid(pending.id).to_string(),
        function: function.to_owned(),
        principal: pending.principal.clone(),
        parent: None,
        trace_parent: pending.trace_parent.clone(),
        attempt: pending.attempt,
        depth: pending.depth,
        lineage: None,
        placed_by: None,
        order_key: pending.order_key,
        event: pending.event.clone(),
    }
}

/// The dead letter of an invocation: the original payload and the error.
fn dead_letter(function: &str, pending: &Pending, problem: &Problem, node: Option<&str>) -> DeadLetter {
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
    about.extend(node.map(|node| (NODE_PROPERTY, node.to_owned())));
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
