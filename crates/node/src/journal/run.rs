//! Running what is pending: attempts, waits between them, the end of each, and the messages that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Change, Message, Origin, Properties, PublishOutcome, QoS, RejectReason, Space, Ticket,
};
use edgefaas_isolates::{LogLevel, Reply, RunError, Trigger};
use edgefaas_manifest::QueueOrder;
use edgefaas_platform::Taken;
use edgefaas_state::store::{Batch, CommitError, Durability};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::record::{self, Outgoing, Pending, StoredOutcome};
use super::{Acceptance, AnswerTo, Claim, Digest, InvocationJournal, Keep, KeyClaim, Memory, Slot};
use crate::answer::Answer;
use crate::dispatch::{Dispatcher, Effects};
use crate::invocation::{Invocation, InvocationError, Outcome, Timing};
use crate::problem::Problem;
use crate::registry::LiveFunction;

/// How long a pending invocation waits that found the node overloaded, which is no attempt.
const OVERLOADED_WAIT: Duration = Duration::from_millis(200);
/// How long one waits whose function could not be made ready to run, which is no attempt either.
const NOT_RUNNABLE_WAIT: Duration = Duration::from_secs(1);
/// Time between two attempts to publish what found no room.
const NO_ROOM_WAIT: Duration = Duration::from_millis(50);
/// Time between two looks at what is to be forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// The reason that a dead letter gives, at most.
const REASON_CHARS: usize = 1000;

/// The user property of a dead letter that has the topic of the message which could not be handled.
pub const DEAD_LETTER_TOPIC: &str = "topic";

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

impl Dispatcher {
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
        let bytes = self.take_event_bytes(2 * invocation.event.body.len());
        let bytes = bytes.inspect_err(|_| function.metrics.record_rejected())?;
        if let Some((key, request)) = key {
            let claim = self.journal().claim(key, request, id);
            match claim.map_err(|error| failed(CommitError::Failed(error.to_string())))? {
                Claim::New(claim) => durable.claim = Some(claim),
                Claim::Known(id) => return Ok(Accepted::As(id)),
                Claim::Conflict => return Ok(Accepted::Conflict),
            }
        }
        // What is handed to the writer is committed in any case, and then has to run.
        let (dispatcher, to) = (self.clone(), function.clone());
        let storing =
            tokio::spawn(async move { dispatcher.store_accepted(&to, invocation, durable, bytes).await });
        let stored = storing.await.unwrap_or_else(|_| Err(failed(CommitError::Closed)));
        if stored.is_err() {
            function.metrics.record_rejected();
            // Others may wait for it that came with the same key.
            self.journal().tell_ended(id);
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
        self.check(function, &invocation)?;
        let slot = self.journal().reserve(function).map_err(|_| {
            let (function, capacity) = (function.name.to_string(), function.admission.capacity());
            InvocationError::QueueFull { function, capacity }
        })?;
        let mut acceptance = self.prepare(slot, invocation, durable);
        let mut batch = Batch::default();
        for (key, value) in std::mem::take(&mut acceptance.entries) {
            self.journal().put(&mut batch, key, value);
        }
        let committed = self.store().committer().commit(batch, Durability::Synced).await;
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
        self.journal().prepare(slot, pending, claim)
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
            let (dispatcher, function) = (self.clone(), function.clone());
            self.journal().workers.spawn(async move {
                dispatcher.drop_oldest(&function, sequence, memory).await;
            });
        }
        self.pump(&function.name);
    }

    /// Starts what may run of a function's pending invocations.
    fn pump(self: &Arc<Self>, name: &Arc<str>) {
        let routes = self.registry().routes();
        let function = routes.function(name);
        // A function that is gone has its invocations given up, one after another.
        let (most, order) = function.map_or((1, QueueOrder::Fifo), |function| {
            (function.spec.limits.concurrency as usize, function.spec.limits.queue.order)
        });
        while !self.is_draining()
            && !self.journal().outbox.is_full(name)
            && let Some((sequence, memory)) = self.journal().start(name, most, order)
        {
            let (dispatcher, name) = (self.clone(), name.clone());
            self.journal().workers.spawn(async move {
                let answering = dispatcher.answering();
                dispatcher.run_pending(&name, sequence, memory).await;
                drop(answering);
                dispatcher.pump(&name);
            });
        }
    }

    /// Publishes what was left to be published at the last stop, then starts what is pending, and from then on what
    /// comes due. Runs until `cancel` fires; one for each node.
    pub async fn run_journal(self: Arc<Self>, cancel: CancellationToken) {
        let mut tidied = Instant::now();
        loop {
            self.publish_waiting();
            let names: Vec<_> = self.journal().lanes.lock().keys().cloned().collect();
            for name in &names {
                self.pump(name);
            }
            if tidied.elapsed() >= TIDY_INTERVAL || self.journal().is_over() {
                tidied = Instant::now();
                if let Err(error) = self.journal().tidy().await {
                    tracing::warn!(%error, "outcomes could not be forgotten");
                }
            }
            let due = self.journal().lanes.lock().values().filter_map(super::Lane::next_due).min();
            let wait = due.map_or(TIDY_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
            // Room in an invocation's queue is told; that on the disk and in a session's queue is not.
            let wait = if self.journal().outbox.is_empty() { wait } else { wait.min(NO_ROOM_WAIT) };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.journal().timer.notified() => {}
                () = tokio::time::sleep(wait.min(TIDY_INTERVAL)) => {}
            }
        }
    }

    async fn run_pending(self: &Arc<Self>, name: &Arc<str>, sequence: u64, memory: Option<Memory>) {
        let Some((pending, ticket, claim)) = self.recall(name, sequence, memory).await else { return };
        let routes = self.registry().routes();
        let Some(function) = routes.function(name).cloned() else {
            let near = routes.near_functions(name);
            let error = InvocationError::UnknownFunction { name: name.to_string(), near };
            return self.give_up(name, sequence, pending, error, Timing::default()).await;
        };
        drop(routes);
        let admitted = self.admit_durable(function.clone(), invocation(name, &pending));
        let (result, timing) = match admitted {
            Ok(admitted) => self.attempt(admitted).await,
            Err(error) => (Err(error), Timing::default()),
        };
        if let Some(ticket) = ticket
            && self.broker().durable(ticket).await.is_err()
        {
            // It was never accepted, and whoever asked has been told so.
            return self.journal().finish(name, sequence);
        }
        drop(claim);
        let result = match result {
            Ok((reply, effects)) => {
                self.complete(&function, sequence, &pending, reply, effects, timing).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = result else { return };
        let error = self.mask(&function, error);
        match fate(&error) {
            Fate::Wait(wait) => self.journal().retry_at(name, sequence, Instant::now() + wait),
            // On the disk it is pending still: it runs when the node has been started again.
            Fate::StoreFailed => self.journal().finish(name, sequence),
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
            && self.broker().durable(ticket).await.is_err()
        {
            self.journal().finish(name, sequence);
            return None;
        }
        let key = record::pending_key(name, sequence);
        match self.journal().get("a pending invocation", &key) {
            Ok(Some(pending)) => return Some((pending, None, None)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(function = name, sequence, %error, "a pending invocation is lost");
            }
        }
        self.journal().finish(name, sequence);
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
            match self.store().committer().commit(batch.clone(), Durability::Written).await {
                Ok(()) => break,
                // It has run, and what it did outside is done: only its result waits for room.
                Err(CommitError::DiskFull { .. }) if !self.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Err(error) => {
                    return Err(InvocationError::Commit { function: name.to_string(), error });
                }
            }
        }
        ending.follow(self, name, sequence, pending);
        self.ended(function, outcome);
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
        self.logs().add(&function.name, &id, LogLevel::Warn, format!("{detail}, the next one in {wait:?}"));
        self.ended(function, Outcome { id, result: Err(error), timing });
        pending.attempt += 1;
        pending.due_unix_ms = self.journal().clock.now_unix_ms() + wait.as_millis() as u64;
        loop {
            let mut batch = Batch::default();
            let key = record::pending_key(&function.name, sequence);
            self.journal().put(&mut batch, key, record::encode(&pending));
            match self.store().committer().commit(batch, Durability::Written).await {
                // The next run takes the count from the disk: it would be this one again, and again.
                Err(CommitError::DiskFull { .. }) if !self.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(function = &*function.name, %error, "a failed attempt could not be noted");
                    // On the disk it is pending still: it runs when the node has been started again.
                    return self.journal().finish(&function.name, sequence);
                }
            }
        }
        self.journal().retried.fetch_add(1, Ordering::Relaxed);
        self.journal().retry_at(&function.name, sequence, Instant::now() + wait);
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
        let mut outgoing = vec![dead_letter(name, &pending, &problem, self.max_message_bytes())];
        outgoing.extend(self.answer_of(name, &pending, Err(problem.clone())));
        let outcome = StoredOutcome::new(Err(problem), pending.attempt, timing);
        let committed = loop {
            let mut batch = Batch::default();
            let (outcome, outgoing) = (Some(outcome.clone()), outgoing.clone());
            let ending = self.end(&mut batch, name, sequence, &pending, outcome, outgoing);
            match ending.commit(self, batch).await {
                // It has had its last run; only the word about it waits for room.
                Err(CommitError::DiskFull { .. }) if !self.is_draining() => {
                    tokio::time::sleep(OVERLOADED_WAIT).await;
                }
                committed => break committed,
            }
        };
        match committed {
            Ok(committed) => {
                self.journal().dead_lettered.fetch_add(1, Ordering::Relaxed);
                committed.follow(self, name, sequence, &pending);
            }
            // On the disk it is pending still.
            Err(_) => self.journal().finish(name, sequence),
        }
        let id = id.to_string();
        self.logs().add(name, &id, LogLevel::Error, format!("given up after {} attempts", pending.attempt));
        if let Some(function) = self.registry().routes().function(name) {
            self.ended(function, Outcome { id, result: Err(error), timing });
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
            && self.broker().durable(ticket).await.is_err()
        {
            return self.journal().finish(name, sequence);
        }
        drop(claim);
        self.journal().dropped.fetch_add(1, Ordering::Relaxed);
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
        let journal = self.journal();
        journal.delete(batch, record::pending_key(name, sequence));
        let kept_bytes = kept.map(|outcome| journal.keep(batch, name, pending, outcome));
        let outgoing = outgoing.into_iter().map(|message| (journal.next_sequence(), message)).collect();
        for (number, message) in &outgoing as &Vec<(u64, Outgoing)> {
            journal.put(batch, record::outgoing_key(*number), record::encode(message));
        }
        Ending { kept_bytes, outgoing }
    }

    fn answer_of(&self, name: &str, pending: &Pending, result: Result<Reply, Problem>) -> Option<Outgoing> {
        let to = pending.answer.as_ref()?;
        let answer = Answer {
            topic: TopicName::new(to.topic.as_str()).ok()?,
            correlation_data: to.correlation_data.clone(),
            depth: pending.depth,
            requester: to.requester.as_ref().map(record::ClientRecord::client),
        };
        let message = answer.message(result, self.max_message_bytes())?;
        Some(Outgoing::new(name, pending.depth.saturating_add(1), to.requester.clone(), &message))
    }

    /// Adds messages to a batch that are published when it is committed.
    pub(crate) fn put_outgoing(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        messages: &[Message],
    ) -> Vec<(u64, Outgoing)> {
        let journal = self.journal();
        let number = |message| (journal.next_sequence(), Outgoing::new(source, depth, None, message));
        let outgoing: Vec<_> = messages.iter().map(number).collect();
        for (number, message) in &outgoing {
            journal.put(batch, record::outgoing_key(*number), record::encode(message));
        }
        outgoing
    }

    /// Adds one message to a batch that is published when it is committed; gives its number.
    pub(crate) fn put_outgoing_message(
        &self,
        batch: &mut Batch,
        source: &str,
        depth: u8,
        message: &Message,
    ) -> u64 {
        let journal = self.journal();
        let number = journal.next_sequence();
        let outgoing = Outgoing::new(source, depth, None, message);
        journal.put(batch, record::outgoing_key(number), record::encode(&outgoing));
        number
    }

    /// Publishes messages whose batch is committed.
    pub(crate) fn send_outgoing(&self, outgoing: Vec<(u64, Outgoing)>) {
        for (number, outgoing) in outgoing {
            self.publish_outgoing(number, outgoing);
        }
    }

    /// Lets a stored message wait if others of its source do; says whether it does.
    pub(crate) fn waits_behind_others(&self, source: &str, number: u64) -> bool {
        self.journal().outbox.waits_behind_others(source, number)
    }

    /// Lets a stored message wait until there is room for it.
    pub(crate) fn let_wait(&self, source: &str, number: u64) {
        self.journal().outbox.wait(source, number);
        self.journal().timer.notify_one();
    }

    /// Publishes a message, after those of the same source that wait; while there is no room for it, it waits itself.
    fn publish_outgoing(&self, number: u64, outgoing: Outgoing) {
        let outbox = &self.journal().outbox;
        if !outbox.waits_behind_others(&outgoing.source, number) && !self.try_publish(number, &outgoing) {
            self.let_wait(&outgoing.source, number);
        }
    }

    /// Publishes what waited, as far as there is room now.
    fn publish_waiting(&self) {
        for source in self.journal().outbox.sources() {
            while let Some(number) = self.journal().outbox.first(&source) {
                let key = record::outgoing_key(number);
                match self.journal().get::<Outgoing>("a message to be published", &key) {
                    Ok(Some(outgoing)) if !self.try_publish(number, &outgoing) => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(function = source, number, %error, "a message is lost");
                        self.broker().record(vec![Change { space: Space::Hook, key, value: None }]);
                    }
                }
                self.journal().outbox.published(&source);
            }
        }
    }

    /// Publishes a message and forgets it, both or neither; false if there is no room for it somewhere.
    fn try_publish(&self, number: u64, outgoing: &Outgoing) -> bool {
        let source: Arc<str> = outgoing.source.as_str().into();
        let requester = outgoing.requester.as_ref().map(record::ClientRecord::client);
        let origin = Origin::Node { source: source.clone(), depth: outgoing.depth, requester };
        let forget = || vec![forget_outgoing(number)];
        let message = match outgoing.message() {
            Ok(message) => message,
            Err(damage) => {
                tracing::warn!(function = &*source, number, %damage, "a message is lost");
                self.broker().record(forget());
                return true;
            }
        };
        let topic = message.topic().clone();
        let lost = match self.broker().publish_with(&origin, message, forget()).outcome {
            PublishOutcome::Rejected(RejectReason::QuotaExceeded) => return false,
            PublishOutcome::Rejected(reason) => {
                self.broker().record(forget());
                format!("the message on {} was refused: {reason:?}", topic.as_str())
            }
            PublishOutcome::Routed(routed) if routed.dropped > 0 => {
                let dropped = routed.dropped;
                format!("the message on {} is lost for {dropped} subscribers: queue full", topic.as_str())
            }
            _ => return true,
        };
        self.logs().add(&source, "", LogLevel::Warn, lost);
        true
    }
}

/// Deletes an outgoing message, which is published.
pub(crate) fn forget_outgoing(number: u64) -> Change {
    Change { space: Space::Hook, key: record::outgoing_key(number), value: None }
}

/// What is committed with the end of an invocation, and what follows.
struct Ending {
    kept_bytes: Option<u64>,
    outgoing: Vec<(u64, Outgoing)>,
}

impl Ending {
    async fn commit(self, dispatcher: &Dispatcher, batch: Batch) -> Result<Self, CommitError> {
        dispatcher.store().committer().commit(batch, Durability::Written).await?;
        Ok(self)
    }

    fn follow(self, dispatcher: &Dispatcher, name: &str, sequence: u64, pending: &Pending) {
        let journal: &InvocationJournal = dispatcher.journal();
        if let Some(bytes) = self.kept_bytes {
            journal.kept(bytes);
        }
        // Before the next one of its key may start.
        for (number, outgoing) in self.outgoing {
            dispatcher.publish_outgoing(number, outgoing);
        }
        journal.finish(name, sequence);
        journal.tell_ended(Ulid(pending.id));
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
        root: None,
        event: pending.event.clone(),
    }
}

/// The original payload, and why it is there; without the payload if that would make it larger than `most_bytes`.
fn dead_letter(function: &str, pending: &Pending, problem: &Problem, most_bytes: usize) -> Outgoing {
    let (origin, content_type) = match &pending.event.trigger {
        Trigger::Mqtt(message) => {
            (Some((DEAD_LETTER_TOPIC, message.topic.clone())), message.content_type.clone())
        }
        Trigger::Http(request) => {
            let content_type = request.headers.iter().find(|(name, _)| name == "content-type");
            let content_type = content_type.map(|(_, value)| value.clone());
            (Some(("request", format!("{} {}", request.method, request.path))), content_type)
        }
        _ => (None, None),
    };
    let reason: String = problem.detail.chars().take(REASON_CHARS).collect();
    let mut user = vec![
        ("reason", format!("{}: {}", problem.title, reason.replace('\0', " "))),
        ("status", problem.status.to_string()),
        ("invocation", Ulid(pending.id).to_string()),
        ("attempts", pending.attempt.to_string()),
    ];
    user.extend(origin);
    let mut properties = Properties {
        content_type: content_type.map(Into::into),
        user: user.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        ..Properties::default()
    };
    if properties.problem().is_some() {
        properties.content_type = None;
    }
    // A function's name is made of what a topic may have.
    let topic = TopicName::new(format!("$faas/dead/{function}"));
    let topic = topic.expect("names of functions are levels of topics");
    let letter = |payload: Bytes, properties: Properties| {
        let topic = topic.clone();
        Message::new(topic, payload).with_qos(QoS::AtLeastOnce).with_properties(properties)
    };
    let mut message = letter(pending.event.body.clone(), properties.clone());
    if message.weight() > most_bytes {
        let bytes = pending.event.body.len();
        properties.user.push(("left-out".into(), format!("the payload of {bytes} bytes").into()));
        message = letter(Bytes::new(), properties);
    }
    Outgoing::new(function, pending.depth.saturating_add(1), None, &message)
}
