//! Durable invocations: the node stores them before it accepts them, and attempts them at least once.
//!
//! ```text
//! accepted --> pending --> running --> changes, outcome, outgoing messages; no longer pending (one batch)
//!  (on disk)     ^            |                                      |
//!                +-- retry ---+ failed --> dead letter, outcome      +--> each message is published and
//!                  (on disk)               (one batch)                    deleted (one batch)
//! ```
//!
//! [`invocation_records`] has the on-disk format, [`function_queue`] the order in which invocations run, [`runner`] the
//! attempts, [`claims`] the idempotency keys, [`kept`] the retention of outcomes, [`external`] invocations that run
//! elsewhere in the node, [`dead_letters`] those that failed for good, and [`inspect`] and [`manage`] what an operator sees and does. This module accepts invocations and keeps their outcomes. Memory holds a few
//! words for each pending invocation; its event is cached if it fits, and otherwise read from the disk when it runs. If a
//! crash interrupts an attempt, the invocation runs again after the next start. The interrupted attempt has committed
//! nothing, so its effects are applied once.

mod claims;
mod dead_letters;
mod external;
mod function_queue;
mod inspect;
mod invocation_records;
mod kept;
mod last_errors;
mod manage;
mod runner;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claims::{Claims, Progress, Settled};
use dead_letters::DeadLetters;
use edgefaas_broker::{Broker, Ticket};
use edgefaas_manifest::{QueueOrder, WhenFull};
use edgefaas_platform::Clock;
use edgefaas_state::store::{CommitError, Store, StoreError};
use function_queue::FunctionQueue;
use invocation_records::{Known, Pending, Reserved};
use kept::Kept;
use last_errors::LastErrors;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use crate::drain::Drain;
use crate::invoker::Invoker;
use crate::logs::Logs;
use crate::publisher::Publisher;
use crate::records::{self, Records};
use crate::registry::{LiveFunction, Registry};
use crate::workers::Workers;
pub use claims::KeyClaim;
pub use dead_letters::DeadKey;
pub use external::{EndedKey, ExternalCall, ExternalEnd, ExternalKept};
pub use inspect::{Inspected, InspectedState, Page, PendingPlace};
pub use invocation_records::{
    AnswerTo, Digest, Ended, External, ExternalState, Keep, KnownState, StoredOutcome, StoredProblem,
};
pub use kept::Retention;
pub use manage::ManageError;
pub use runner::{Accepted, Durable};

/// Limits of kept outcomes and cached invocations.
#[derive(Debug, Clone, Copy)]
pub struct KeepLimits {
    /// How long an outcome is kept.
    pub time: Duration,
    /// Maximum number of kept outcomes.
    pub count: u64,
    /// Maximum size of kept outcomes, in bytes.
    pub bytes: u64,
    /// Maximum size of cached pending invocations, in bytes. Others are read from the disk when they run.
    pub memory_bytes: usize,
    /// Records of ended invocations for lists only.
    pub listed: Retention,
    /// Dead letters.
    pub dead: Retention,
}

/// The figures of durable invocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurableReading {
    /// Accepted invocations that have not ended, and reserved slots.
    pub pending: u64,
    /// Number of kept outcomes.
    pub kept: u64,
    /// Size of kept outcomes, in bytes.
    pub kept_bytes: u64,
    /// Failed attempts that were followed by another one.
    pub retried: u64,
    /// Invocations that failed permanently.
    pub dead_lettered: u64,
    /// Part of `dead_lettered`: invocations that were dropped because the queue was full.
    pub dropped: u64,
    /// Dead letters that are kept, and those that made room for later ones since the start.
    pub dead: u64,
    /// See `dead`.
    pub dead_dropped: u64,
}

/// The result of a lookup of an invocation.
#[derive(Debug)]
pub enum Lookup {
    /// The invocation has not ended.
    Pending(OutcomeAccess),
    /// The invocation has ended.
    Done(OutcomeAccess, Box<Ended>),
    /// The outcome may have existed and has expired.
    Gone,
    /// No invocation with this id was accepted, or its outcome is not kept.
    Unknown,
}

/// The function of an invocation, and the authentication that a request for its outcome needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeAccess {
    /// The name of the function.
    pub function: String,
    /// See [`Keep::auth`].
    pub auth: Option<u8>,
}

/// The result of claiming an idempotency key.
#[derive(Debug)]
pub enum Claim {
    /// The key is new.
    New(KeyClaim),
    /// An earlier request with the same digest has used the key: the id of its invocation.
    Known(Ulid),
    /// A request with another digest has used the key.
    Conflict,
}

/// The queue of a function or the disk is full.
#[derive(Debug)]
pub struct NoRoom {
    /// The policy in the function's manifest.
    pub when_full: WhenFull,
    /// Notified when a slot becomes free.
    pub room: Arc<Notify>,
}

/// A reserved slot in the queue of a function. Dropping it releases the slot.
pub struct Slot {
    queue: Arc<DurableQueue>,
    function: Arc<str>,
    // True once an invocation was inserted into the slot.
    is_used: bool,
}

/// An invocation that is ready to be stored.
pub struct Acceptance {
    slot: Slot,
    sequence: u64,
    pending: Pending,
    claim: Option<KeyClaim>,
    /// Size of `entries`.
    bytes: usize,
    /// Keys and values to store in one batch.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The cached part of a pending invocation.
struct CachedPending {
    /// Until the ticket is durable, no effects may be committed: the store may still refuse the invocation.
    ticket: Option<Ticket>,
    pending: Option<Box<Pending>>,
    bytes: usize,
    /// Released once the record of the key is in the store.
    claim: Option<KeyClaim>,
}

/// All durable invocations of a node.
pub struct DurableQueue {
    invoker: Arc<Invoker>,
    publisher: Arc<Publisher>,
    registry: Arc<Registry>,
    broker: Broker,
    store: Arc<Store>,
    records: Records,
    logs: Arc<Logs>,
    workers: Arc<Workers>,
    drain: Arc<Drain>,
    clock: Clock,
    limits: KeepLimits,
    /// By function.
    queues: Mutex<HashMap<Arc<str>, FunctionQueue<CachedPending>>>,
    /// The next sequence number.
    sequence: AtomicU64,
    /// Invocations with lower sequence numbers were accepted by an earlier incarnation of the node.
    first_sequence: AtomicU64,
    memory_bytes: AtomicUsize,
    claims: Arc<Claims>,
    waiters: Mutex<HashMap<Ulid, Vec<oneshot::Sender<()>>>>,
    /// Wakes [`DurableQueue::run`] before its timer.
    wake: Notify,
    outcomes: Kept,
    /// Records of ended invocations for lists only.
    listed: Kept,
    dead: DeadLetters,
    last_errors: LastErrors,
    /// Outcomes of invocations with ids up to this time may have been removed because of [`KeepLimits`].
    removed_unix_ms: AtomicU64,
    retried: AtomicU64,
    dead_lettered: AtomicU64,
    dropped: AtomicU64,
}

/// Parts of the node that the durable queue uses.
pub struct DurableParts {
    /// Runs invocations.
    pub invoker: Arc<Invoker>,
    /// Publishes the messages of invocations.
    pub publisher: Arc<Publisher>,
    /// The deployed functions.
    pub registry: Arc<Registry>,
    /// Its write-ahead log stores invocations that MQTT messages trigger.
    pub broker: Broker,
    /// Stores invocations and outcomes.
    pub store: Arc<Store>,
    /// The logs of functions.
    pub logs: Arc<Logs>,
    /// The threads on which invocations run.
    pub workers: Arc<Workers>,
    /// No invocation starts while the node drains.
    pub drain: Arc<Drain>,
    /// The wall clock.
    pub clock: Clock,
}

impl DurableQueue {
    /// Reads the pending invocations. Blocks.
    ///
    /// # Errors
    /// The store cannot be read. A damaged record is skipped with a warning.
    pub fn open(parts: DurableParts, limits: KeepLimits) -> Result<Self, StoreError> {
        let DurableParts { invoker, publisher, registry, broker, store, logs, workers, drain, clock } =
            parts;
        let queue = Self {
            invoker,
            publisher,
            registry,
            broker,
            records: Records::new(store.clone()),
            store,
            logs,
            workers,
            drain,
            clock,
            limits,
            queues: Mutex::default(),
            sequence: AtomicU64::new(1),
            first_sequence: AtomicU64::new(1),
            memory_bytes: AtomicUsize::new(0),
            claims: Arc::default(),
            waiters: Mutex::default(),
            wake: Notify::new(),
            outcomes: Kept::new(invocation_records::EXPIRY, limits.outcomes()),
            listed: Kept::new(invocation_records::LISTED_EXPIRY, limits.listed),
            dead: DeadLetters::new(limits.dead),
            last_errors: LastErrors::default(),
            removed_unix_ms: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        queue.load()?;
        Ok(queue)
    }

    fn load(&self) -> Result<(), StoreError> {
        let (now, now_ms) = (self.clock.instant(), self.clock.now_unix_ms());
        let mut last = 0;
        let mut retried = HashSet::new();
        let mut queues: HashMap<Arc<str>, FunctionQueue<CachedPending>> = HashMap::new();
        self.records.for_each(invocation_records::PENDING, |key, value| {
            let Some((function, sequence)) = invocation_records::parse_pending_key(key) else {
                return records::warn_damaged("a pending invocation", key, records::Damage::Fields);
            };
            last = last.max(sequence);
            match records::decode::<Pending>(value) {
                Ok(pending) => {
                    if pending.attempt > 1 {
                        retried.insert(pending.id);
                    }
                    let wait = Duration::from_millis(pending.due_unix_ms.saturating_sub(now_ms));
                    // At most the maximum wait of a manifest, in case the clock was set back.
                    let wait = wait.min(Duration::from_secs(24 * 3600));
                    let due = (!wait.is_zero()).then(|| now + wait);
                    let queue = match queues.get_mut(function) {
                        Some(queue) => queue,
                        None => queues.entry(function.into()).or_default(),
                    };
                    queue.insert(sequence, pending.order_key, due, None);
                }
                Err(damage) => {
                    tracing::warn!(function, sequence, %damage, "a pending invocation is lost: its record is damaged");
                }
            }
        })?;
        *self.queues.lock() = queues;
        self.outcomes.load(&self.records)?;
        self.listed.load(&self.records)?;
        self.dead.load(&self.records)?;
        self.last_errors.load(&self.records, &retried)?;
        self.sequence.store(last + 1, Ordering::Relaxed);
        self.first_sequence.store(last + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Reserves a slot for an invocation. Does not wait.
    ///
    /// # Errors
    /// The queue is full: `queue.capacity + concurrency` invocations are pending. With `drop_oldest` a queue is never full.
    pub fn reserve(self: &Arc<Self>, function: &LiveFunction) -> Result<Slot, NoRoom> {
        let (max_pending, when_full) = (max_pending(function), function.spec.limits.queue.when_full);
        let mut queues = self.queues.lock();
        let queue = queues.entry(function.name.clone()).or_default();
        // With `DropOldest` the oldest invocation is evicted when the new one was accepted.
        if queue.len() >= max_pending && when_full != WhenFull::DropOldest {
            return Err(NoRoom { when_full, room: queue.room().clone() });
        }
        queue.reserve();
        Ok(Slot { queue: self.clone(), function: function.name.clone(), is_used: false })
    }

    /// Reserves a slot for an invocation that has `bytes` on the disk. Does not wait.
    ///
    /// # Errors
    /// The queue of the function or the disk is full.
    pub fn reserve_for(self: &Arc<Self>, function: &LiveFunction, bytes: usize) -> Result<Slot, NoRoom> {
        let slot = self.reserve(function)?;
        if self.disk_full(bytes).is_some() {
            let when_full = function.spec.limits.queue.when_full;
            return Err(NoRoom { when_full, room: Arc::default() });
        }
        Ok(slot)
    }

    /// The error if the disk has no room for `bytes` now.
    pub fn disk_full(&self, bytes: usize) -> Option<CommitError> {
        (!self.broker.wal().has_room(bytes)).then(|| self.store.committer().disk_full())
    }

    /// Claims an idempotency key for invocation `id`. `request` is the digest of everything that a repetition has to have in
    /// common.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn claim(self: &Arc<Self>, key: Digest, request: Digest, id: Ulid) -> Result<Claim, StoreError> {
        let used_by = |reserved: Reserved| match reserved.request == request {
            true => Claim::Known(Ulid(reserved.id)),
            false => Claim::Conflict,
        };
        let mut lookup = match self.claims.begin(key) {
            Ok(lookup) => lookup,
            Err(claimed) => return Ok(used_by(claimed)),
        };
        loop {
            match lookup.settle(self.stored_claim(key), Reserved { id: id.0, request }) {
                Settled::Claimed(claim) => return Ok(Claim::New(claim)),
                Settled::Known(known) => return Ok(used_by(known)),
                Settled::Again(again) => lookup = again,
            }
        }
    }

    /// The stored use of an idempotency key.
    fn stored_claim(&self, key: Digest) -> Option<Reserved> {
        let stored: Option<Reserved> = self
            .records
            .get("an idempotency key", &invocation_records::reserved_key(&key))
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "ignored a damaged idempotency key");
                None
            });
        // If the invocation does not exist or its outcome has expired, the key is free again.
        stored.filter(|stored| {
            matches!(self.lookup(Ulid(stored.id)), Ok(Lookup::Pending(_) | Lookup::Done(..)))
        })
    }

    /// True while an invocation with an idempotency key is being stored.
    pub fn is_claimed(&self, id: Ulid) -> bool {
        self.claims.has_invocation(id.0)
    }

    /// Completes when an invocation with an idempotency key was stored, or when storing it failed.
    /// [`lookup`](Self::lookup) gives the result.
    pub async fn settled(&self, id: Ulid) {
        while let Some(progress) = self.claims.progress(id.0) {
            match progress {
                Progress::At(ticket) if self.broker.durable(ticket).await.is_ok() => return,
                Progress::At(_) => return self.claims.released(id.0).await,
                // The sender is dropped, not used.
                Progress::Before(wait) => drop(wait.await),
            }
        }
    }

    /// Looks up an invocation whose outcome is kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lookup(&self, id: Ulid) -> Result<Lookup, StoreError> {
        match self.lookup_once(id)? {
            // An invocation may have ended between the read of the store and the check of the queue.
            Lookup::Gone => self.lookup_once(id),
            found => Ok(found),
        }
    }

    fn lookup_once(&self, id: Ulid) -> Result<Lookup, StoreError> {
        let known: Option<Known> = match self.records.get("an outcome", &invocation_records::known_key(id))
        {
            Err(StoreError::Damaged { what, reason }) => {
                tracing::warn!(%id, what, reason, "an outcome is lost: its record is damaged");
                return Ok(Lookup::Gone);
            }
            other => other?,
        };
        let Some(Known { function, auth, state }) = known else {
            let (made, now) = (id.timestamp_ms(), self.clock.now_unix_ms());
            let kept_since = now.saturating_sub(self.limits.time.as_millis() as u64);
            let gone = made <= kept_since || made <= self.removed_unix_ms.load(Ordering::Relaxed);
            return Ok(if gone { Lookup::Gone } else { Lookup::Unknown });
        };
        Ok(match state {
            KnownState::Done(outcome) => {
                let ended = Ended { outcome, node: None };
                Lookup::Done(OutcomeAccess { function, auth }, Box::new(ended))
            }
            KnownState::DoneOn(outcome, node) => {
                let ended = Ended { outcome, node: Some(node) };
                Lookup::Done(OutcomeAccess { function, auth }, Box::new(ended))
            }
            KnownState::External(external) => match external.state {
                ExternalState::Open => Lookup::Pending(OutcomeAccess { function, auth }),
                ExternalState::Ended { outcome: Some(outcome), .. } => {
                    let ended = Ended { outcome: outcome.restored(), node: None };
                    Lookup::Done(OutcomeAccess { function, auth }, Box::new(ended))
                }
                // It is kept for lists.
                ExternalState::Ended { outcome: None, .. } => Lookup::Unknown,
            },
            KnownState::Pending(sequence) => {
                // An invocation of this incarnation may not be in its queue yet, or a failed store kept it from ending.
                let pending = sequence >= self.first_sequence.load(Ordering::Relaxed)
                    || self.queues.lock().get(&*function).is_some_and(|queue| queue.contains(sequence));
                if pending { Lookup::Pending(OutcomeAccess { function, auth }) } else { Lookup::Gone }
            }
        })
    }

    /// The destination of the answer of a pending invocation; `None` if it is not on the disk or has no answer.
    pub fn answer_to(&self, id: Ulid) -> Option<AnswerTo> {
        let known: Known = self.records.get("an outcome", &invocation_records::known_key(id)).ok()??;
        let sequence = match known.state {
            KnownState::Pending(sequence) => sequence,
            KnownState::External(external) => return external.answer,
            KnownState::Done(_) | KnownState::DoneOn(..) => return None,
        };
        let key = invocation_records::pending_key(&known.function, sequence);
        let pending: Pending = self.records.get("a pending invocation", &key).ok()??;
        pending.answer
    }

    /// A receiver that completes when an invocation ends. Call it before [`lookup`](Self::lookup), so that an end between the
    /// two calls is not missed.
    pub fn ended(&self, id: Ulid) -> oneshot::Receiver<()> {
        let (waiter, ended) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        let waiting = waiters.entry(id).or_default();
        waiting.retain(|waiter| !waiter.is_closed());
        waiting.push(waiter);
        ended
    }

    fn notify_ended(&self, id: Ulid) {
        for waiter in self.waiters.lock().remove(&id).unwrap_or_default() {
            let _ = waiter.send(());
        }
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Encodes the records of an invocation.
    fn prepare_pending(&self, slot: Slot, pending: Pending, claim: Option<KeyClaim>) -> Acceptance {
        let sequence = self.next_sequence();
        let mut entries =
            vec![(invocation_records::pending_key(&slot.function, sequence), records::encode(&pending))];
        if let Some(keep) = &pending.keep {
            let state = KnownState::Pending(sequence);
            let known = Known { function: slot.function.to_string(), auth: keep.auth, state };
            entries.push((invocation_records::known_key(Ulid(pending.id)), records::encode(&known)));
        }
        if let Some(claim) = &claim {
            entries.push((invocation_records::reserved_key(&claim.key), records::encode(&claim.reserved)));
        }
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        Acceptance { slot, sequence, pending, claim, bytes, entries }
    }

    /// Starts the next pending invocation of a function, if one is ready and fewer than `max_running` run.
    fn start_next(
        &self,
        function: &str,
        max_running: usize,
        order: QueueOrder,
    ) -> Option<(u64, Option<CachedPending>)> {
        let now = self.clock.instant();
        let started = self.queues.lock().get_mut(function)?.start(now, max_running, order)?;
        self.release_memory(started.1.as_ref());
        Some(started)
    }

    /// What was cached of an invocation is no longer in its queue.
    fn release_memory(&self, cached: Option<&CachedPending>) {
        if let Some(cached) = cached {
            self.memory_bytes.fetch_sub(cached.bytes, Ordering::Relaxed);
        }
    }

    /// True if an invocation of the function runs or may run now: it does not only wait for the time of its next attempt.
    pub fn is_at_work(&self, function: &str) -> bool {
        self.queues.lock().get(function).is_some_and(FunctionQueue::is_at_work)
    }

    fn retry_at(&self, function: &str, sequence: u64, due: Instant) {
        if let Some(queue) = self.queues.lock().get_mut(function) {
            queue.retry(sequence, due);
        }
        self.wake.notify_one();
    }

    fn finish(&self, function: &str, sequence: u64) {
        let cached = self.queues.lock().get_mut(function).and_then(|queue| queue.finish(sequence));
        if !self.publisher.is_idle() {
            // The free slot may be room for a waiting message.
            self.wake.notify_one();
        }
        self.release_memory(cached.as_ref());
    }

    /// Number of pending invocations of a function.
    pub fn pending(&self, function: &str) -> u64 {
        self.queues.lock().get(function).map_or(0, |queue| queue.len() as u64)
    }

    /// The current figures.
    pub fn reading(&self) -> DurableReading {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        DurableReading {
            pending: self.queues.lock().values().map(|queue| queue.len() as u64).sum(),
            kept: self.outcomes.count(),
            kept_bytes: self.outcomes.bytes(),
            retried: get(&self.retried),
            dead_lettered: get(&self.dead_lettered),
            dropped: get(&self.dropped),
            dead: self.dead.count(),
            dead_dropped: self.dead.dropped(),
        }
    }
}

impl Acceptance {
    /// The function's name.
    pub fn function(&self) -> &Arc<str> {
        &self.slot.function
    }

    /// Adds the invocation to its queue. It is on the disk, or will be when `ticket` is durable. If the queue then has more
    /// than `max_pending` invocations, it returns the oldest one, which is evicted.
    fn accepted(self, ticket: Option<Ticket>, max_pending: usize) -> Option<(u64, Option<CachedPending>)> {
        let Self { mut slot, sequence, pending, claim, bytes, .. } = self;
        slot.is_used = true;
        // Without a ticket the invocation and its key are on the disk already, so the claim is released here.
        let claim = claim.zip(ticket).map(|(claim, ticket)| {
            claim.recorded(ticket);
            claim
        });
        let queue = &slot.queue;
        let order_key = pending.order_key;
        let fits =
            queue.memory_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= queue.limits.memory_bytes;
        let (pending, bytes) = if fits {
            (Some(Box::new(pending)), bytes)
        } else {
            queue.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
            (None, 0)
        };
        let mut queues = queue.queues.lock();
        let of_function = queues.entry(slot.function.clone()).or_default();
        of_function.insert_reserved(sequence, order_key, CachedPending { ticket, pending, bytes, claim });
        let is_over = of_function.len() - of_function.evicted() > max_pending;
        let evicted = is_over.then(|| of_function.evict_oldest()).flatten();
        drop(queues);
        if let Some((_, Some(cached))) = &evicted {
            queue.memory_bytes.fetch_sub(cached.bytes, Ordering::Relaxed);
        }
        evicted
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_used
            && let Some(queue) = self.queue.queues.lock().get_mut(&self.function)
        {
            queue.release_reserved();
        }
    }
}

/// The number of invocations of a function that may be pending: those in its queue and those that run.
fn max_pending(function: &LiveFunction) -> usize {
    let limits = &function.spec.limits;
    limits.queue.capacity as usize + limits.concurrency as usize
}

/// A digest over several parts. Each part is hashed with its length, so that bytes cannot move from one part to another.
pub fn digest(parts: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

#[cfg(test)]
mod tests;
