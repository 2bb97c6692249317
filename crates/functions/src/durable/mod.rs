//! Durable invocations: those that are on the disk from before somebody is told so until they have ended.
//!
//! ```text
//! accepted --> pending --> running --> state, outcome, outgoing messages; pending no more   (one batch)
//!  (on disk)     ^            |                                      |
//!                +-- retry ---+ failed --> dead letter, outcome      +--> each message is published and
//!                  (on disk)               (one batch)                    deleted (one batch)
//! ```
//!
//! [`record`] says what is on the disk, [`lane`] what runs next, [`runner`] runs it, [`claims`] has idempotency keys, and here
//! is what is accepted and what is remembered of it. Memory holds a few words about each pending invocation; what it is to do is read when it has
//! its turn. A pending invocation that was cut off, by `kill -9` or a power cut, runs again at the next start. Since
//! nothing of it was committed, its effects are there once.

mod claims;
mod lane;
mod record;
mod runner;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claims::{Claims, Progress, Settled};
use edgefaas_broker::{Broker, Ticket};
use edgefaas_manifest::{QueueOrder, WhenFull};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Batch, CommitError, Store, StoreError};
use lane::Lane;
use parking_lot::Mutex;
use record::{Expiry, Known, Pending, Reserved};
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use crate::drain::Drain;
use crate::invoker::Invoker;
use crate::logs::Logs;
use crate::publisher::Publisher;
use crate::records::{self, PAGE_ENTRIES, Records};
use crate::registry::{LiveFunction, Registry};
use crate::workers::Workers;
pub use claims::KeyClaim;
pub use record::{AnswerTo, Digest, Keep, KnownState, StoredOutcome};
pub use runner::{Accepted, Durable};

/// How long outcomes are kept, and how many.
#[derive(Debug, Clone, Copy)]
pub struct KeepLimits {
    /// The longest time.
    pub time: Duration,
    /// Outcomes.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of pending invocations that are remembered from their acceptance, and not read again from the disk.
    pub memory_bytes: usize,
}

/// The figures of durable invocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurableReading {
    /// Accepted and not ended.
    pub pending: u64,
    /// Outcomes that may be asked for.
    pub kept: u64,
    /// Bytes of them.
    pub kept_bytes: u64,
    /// Failed runs that were followed by another one.
    pub retried: u64,
    /// Given up.
    pub dead_lettered: u64,
    /// Given up because newer ones needed their place; part of those given up.
    pub dropped: u64,
}

/// What is known about an invocation that somebody asks for.
#[derive(Debug)]
pub enum Lookup {
    /// It has not ended.
    Pending(Asked),
    /// It has.
    Done(Asked, Box<StoredOutcome>),
    /// It was here, or may have been, and is forgotten.
    Gone,
    /// It was never here.
    Unknown,
}

/// Whose invocation it is, and who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The function.
    pub function: String,
    /// See [`Keep::auth`].
    pub auth: Option<u8>,
}

/// What becomes of a request with an idempotency key.
#[derive(Debug)]
pub enum Claim {
    /// It is the first one.
    New(KeyClaim),
    /// It was there before: this is its invocation.
    Known(Ulid),
    /// The key was used for something else.
    Conflict,
}

/// There is no room for one more, and what the function's manifest says about that.
#[derive(Debug)]
pub struct NoRoom {
    /// What to do.
    pub when_full: WhenFull,
    /// Notified when there is room.
    pub room: Arc<Notify>,
}

/// A place in a function's queue that is promised; given back when it is dropped.
pub struct Slot {
    queue: Arc<DurableQueue>,
    function: Arc<str>,
    // It has become the place of an invocation.
    taken: bool,
}

/// An invocation that is to be stored: what to store, and what follows.
pub struct Acceptance {
    slot: Slot,
    sequence: u64,
    pending: Pending,
    claim: Option<KeyClaim>,
    /// Of the entries.
    bytes: usize,
    /// Keys and values to store in one batch.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What is remembered of a pending invocation.
struct Memory {
    /// Until then nothing of it may be committed: it might turn out never to have been accepted.
    ticket: Option<Ticket>,
    pending: Option<Box<Pending>>,
    bytes: usize,
    /// Given up only once it can be read back.
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
    lanes: Mutex<HashMap<Arc<str>, Lane<Memory>>>,
    sequence: AtomicU64,
    /// What has a lower number was left by an earlier run of the node.
    first_sequence: AtomicU64,
    memory_bytes: AtomicUsize,
    claims: Arc<Claims>,
    waiters: Mutex<HashMap<Ulid, Vec<oneshot::Sender<()>>>>,
    /// Something is due earlier than the timer knows.
    timer: Notify,
    kept: AtomicU64,
    kept_bytes: AtomicU64,
    /// Outcomes of invocations up to this time were forgotten before theirs.
    forgotten_unix_ms: AtomicU64,
    retried: AtomicU64,
    dead_lettered: AtomicU64,
    dropped: AtomicU64,
}

/// The parts that the durable queue works with.
pub struct DurableParts {
    /// Runs invocations.
    pub invoker: Arc<Invoker>,
    /// Publishes their messages.
    pub publisher: Arc<Publisher>,
    /// Functions that are deployed.
    pub registry: Arc<Registry>,
    /// Says when a message is stored that carries an invocation.
    pub broker: Broker,
    /// Where invocations are kept.
    pub store: Arc<Store>,
    /// Where attempts are logged.
    pub logs: Arc<Logs>,
    /// Where invocations run.
    pub workers: Arc<Workers>,
    /// Starts nothing while the node stops.
    pub drain: Arc<Drain>,
    /// The wall clock.
    pub clock: Clock,
}

impl DurableQueue {
    /// Reads what is pending. Blocks.
    ///
    /// # Errors
    /// The store can't be read. What is damaged is left out with a warning.
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
            lanes: Mutex::default(),
            sequence: AtomicU64::new(1),
            first_sequence: AtomicU64::new(1),
            memory_bytes: AtomicUsize::new(0),
            claims: Arc::default(),
            waiters: Mutex::default(),
            timer: Notify::new(),
            kept: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            forgotten_unix_ms: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        queue.load()?;
        Ok(queue)
    }

    fn load(&self) -> Result<(), StoreError> {
        let (now, now_ms) = (Instant::now(), self.clock.now_unix_ms());
        let mut last = 0;
        let mut lanes: HashMap<Arc<str>, Lane<Memory>> = HashMap::new();
        self.records.for_each(record::PENDING, |key, value| {
            let Some((function, sequence)) = record::parse_pending_key(key) else {
                return records::warn_damaged("a pending invocation", key, records::Damage::Fields);
            };
            last = last.max(sequence);
            match records::decode::<Pending>(value) {
                Ok(pending) => {
                    let wait = Duration::from_millis(pending.due_unix_ms.saturating_sub(now_ms));
                    // No wait is longer than the longest that a manifest may ask for, whatever the clock did.
                    let wait = wait.min(Duration::from_secs(24 * 3600));
                    let due = (!wait.is_zero()).then(|| now + wait);
                    let lane = match lanes.get_mut(function) {
                        Some(lane) => lane,
                        None => lanes.entry(function.into()).or_default(),
                    };
                    lane.insert(sequence, pending.order_key, due, None);
                }
                Err(damage) => {
                    tracing::warn!(function, sequence, %damage, "a pending invocation is lost: its record is damaged");
                }
            }
        })?;
        *self.lanes.lock() = lanes;
        self.records.for_each(record::EXPIRY, |key, value| match records::decode::<Expiry>(value) {
            Ok(expiry) => {
                self.kept.fetch_add(1, Ordering::Relaxed);
                self.kept_bytes.fetch_add(expiry.bytes.into(), Ordering::Relaxed);
            }
            Err(damage) => records::warn_damaged("the expiry of an outcome", key, damage),
        })?;
        self.sequence.store(last + 1, Ordering::Relaxed);
        self.first_sequence.store(last + 1, Ordering::Relaxed);
        Ok(())
    }

    /// A place for one more invocation, at once.
    ///
    /// # Errors
    /// There is none: as many are pending as may run and wait.
    pub fn reserve(self: &Arc<Self>, function: &LiveFunction) -> Result<Slot, NoRoom> {
        let queue = function.spec.limits.queue;
        let most = queue.capacity as usize + function.spec.limits.concurrency as usize;
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(function.name.clone()).or_default();
        // The oldest goes when the new one has come.
        if lane.len() >= most && queue.when_full != WhenFull::DropOldest {
            return Err(NoRoom { when_full: queue.when_full, room: lane.room().clone() });
        }
        lane.promise();
        Ok(Slot { queue: self.clone(), function: function.name.clone(), taken: false })
    }

    /// The same for an invocation that takes so many bytes on the disk: there is no place either while that is full.
    ///
    /// # Errors
    /// There is none.
    pub fn reserve_for(self: &Arc<Self>, function: &LiveFunction, bytes: usize) -> Result<Slot, NoRoom> {
        let slot = self.reserve(function)?;
        if self.disk_full(bytes).is_some() {
            let when_full = function.spec.limits.queue.when_full;
            return Err(NoRoom { when_full, room: Arc::default() });
        }
        Ok(slot)
    }

    /// Why so many bytes cannot be kept on the disk now, if so.
    pub fn disk_full(&self, bytes: usize) -> Option<CommitError> {
        (!self.broker.wal().has_room(bytes)).then(|| self.store.committer().disk_full())
    }

    /// What a request with an idempotency key comes to. `request` stands for all that has to be the same.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn claim(self: &Arc<Self>, key: Digest, request: Digest, id: Ulid) -> Result<Claim, StoreError> {
        let of = |reserved: Reserved| match reserved.request == request {
            true => Claim::Known(Ulid(reserved.id)),
            false => Claim::Conflict,
        };
        let mut look = match self.claims.begin(key) {
            Ok(look) => look,
            Err(claimed) => return Ok(of(claimed)),
        };
        loop {
            match look.settle(self.stored_claim(key), Reserved { id: id.0, request }) {
                Settled::Claimed(claim) => return Ok(Claim::New(claim)),
                Settled::Known(known) => return Ok(of(known)),
                Settled::Again(again) => look = again,
            }
        }
    }

    /// What the store has for an idempotency key.
    fn stored_claim(&self, key: Digest) -> Option<Reserved> {
        let stored: Option<Reserved> =
            self.records.get("an idempotency key", &record::reserved_key(&key)).unwrap_or_else(|error| {
                tracing::warn!(%error, "an idempotency key is forgotten");
                None
            });
        // Without its invocation it stands for nothing any more.
        stored.filter(|stored| {
            matches!(self.lookup(Ulid(stored.id)), Ok(Lookup::Pending(_) | Lookup::Done(..)))
        })
    }

    /// True while an invocation with an idempotency key is in flight to the disk.
    pub fn is_claimed(&self, id: Ulid) -> bool {
        self.claims.has_invocation(id.0)
    }

    /// Completes when the first invocation with an idempotency key is on the disk, and when it could not be stored.
    /// [`lookup`](Self::lookup) tells the two apart.
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

    /// What is known about an invocation.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn lookup(&self, id: Ulid) -> Result<Lookup, StoreError> {
        match self.lookup_once(id)? {
            // One of an earlier run may have ended between the look at the store and the look at what is pending.
            Lookup::Gone => self.lookup_once(id),
            found => Ok(found),
        }
    }

    fn lookup_once(&self, id: Ulid) -> Result<Lookup, StoreError> {
        let known: Option<Known> = match self.records.get("an outcome", &record::known_key(id)) {
            Err(StoreError::Damaged { what, reason }) => {
                tracing::warn!(%id, what, reason, "an outcome is lost");
                return Ok(Lookup::Gone);
            }
            other => other?,
        };
        let Some(Known { function, auth, state }) = known else {
            let (made, now) = (id.timestamp_ms(), self.clock.now_unix_ms());
            let kept_since = now.saturating_sub(self.limits.time.as_millis() as u64);
            let gone = made <= kept_since || made <= self.forgotten_unix_ms.load(Ordering::Relaxed);
            return Ok(if gone { Lookup::Gone } else { Lookup::Unknown });
        };
        Ok(match state {
            KnownState::Done(outcome) => Lookup::Done(Asked { function, auth }, Box::new(outcome)),
            KnownState::Pending(sequence) => {
                // One of this run that has no place is about to get it, or could not be ended on a failed store.
                let pending = sequence >= self.first_sequence.load(Ordering::Relaxed)
                    || self.lanes.lock().get(&*function).is_some_and(|lane| lane.contains(sequence));
                if pending { Lookup::Pending(Asked { function, auth }) } else { Lookup::Gone }
            }
        })
    }

    /// Where the answer of a pending invocation goes, if it is on the disk already and has one.
    pub fn answer_to(&self, id: Ulid) -> Option<AnswerTo> {
        let known: Known = self.records.get("an outcome", &record::known_key(id)).ok()??;
        let KnownState::Pending(sequence) = known.state else { return None };
        let key = record::pending_key(&known.function, sequence);
        let pending: Pending = self.records.get("a pending invocation", &key).ok()??;
        pending.answer
    }

    /// Completes when an invocation has ended. To be called before it is looked up whether it has.
    pub fn ended(&self, id: Ulid) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        let waiting = waiters.entry(id).or_default();
        waiting.retain(|tell| !tell.is_closed());
        waiting.push(tell);
        told
    }

    fn tell_ended(&self, id: Ulid) {
        for tell in self.waiters.lock().remove(&id).unwrap_or_default() {
            let _ = tell.send(());
        }
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes an invocation ready to be stored.
    fn prepare_pending(&self, slot: Slot, pending: Pending, claim: Option<KeyClaim>) -> Acceptance {
        let sequence = self.next_sequence();
        let mut entries = vec![(record::pending_key(&slot.function, sequence), records::encode(&pending))];
        if let Some(keep) = &pending.keep {
            let state = KnownState::Pending(sequence);
            let known = Known { function: slot.function.to_string(), auth: keep.auth, state };
            entries.push((record::known_key(Ulid(pending.id)), records::encode(&known)));
        }
        if let Some(claim) = &claim {
            entries.push((record::reserved_key(&claim.key), records::encode(&claim.reserved)));
        }
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        Acceptance { slot, sequence, pending, claim, bytes, entries }
    }

    /// The next pending invocation of a function that may run.
    fn next(&self, function: &str, most: usize, order: QueueOrder) -> Option<(u64, Option<Memory>)> {
        let started = self.lanes.lock().get_mut(function)?.start(Instant::now(), most, order)?;
        if let Some(memory) = &started.1 {
            self.memory_bytes.fetch_sub(memory.bytes, Ordering::Relaxed);
        }
        Some(started)
    }

    fn retry_at(&self, function: &str, sequence: u64, due: Instant) {
        if let Some(lane) = self.lanes.lock().get_mut(function) {
            lane.retry(sequence, due);
        }
        self.timer.notify_one();
    }

    fn finish(&self, function: &str, sequence: u64) {
        let memory = self.lanes.lock().get_mut(function).and_then(|lane| lane.finish(sequence));
        if !self.publisher.is_idle() {
            // There may be room for what waits to be published.
            self.timer.notify_one();
        }
        if let Some(memory) = memory {
            self.memory_bytes.fetch_sub(memory.bytes, Ordering::Relaxed);
        }
    }

    /// Adds to `batch` that an invocation has ended with an outcome that is kept; gives its size.
    fn keep(&self, batch: &mut Batch, function: &str, pending: &Pending, outcome: StoredOutcome) -> u64 {
        let id = Ulid(pending.id);
        let keep = pending.keep.unwrap_or_default();
        let known =
            Known { function: function.to_owned(), auth: keep.auth, state: KnownState::Done(outcome) };
        let known = records::encode(&known);
        let bytes = known.len() as u64;
        let expiry = Expiry { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), key: keep.key };
        self.records.put(batch, record::known_key(id), known);
        self.records.put(batch, record::expiry_key(self.clock.now_unix_ms(), id), records::encode(&expiry));
        bytes
    }

    fn kept(&self, bytes: u64) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_over() {
            self.timer.notify_one();
        }
    }

    fn is_over(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > self.limits.count
            || self.kept_bytes.load(Ordering::Relaxed) > self.limits.bytes
    }

    /// Forgets outcomes whose time is over, and the oldest of too many; and who waited and has gone away.
    async fn tidy(&self) -> Result<(), CommitError> {
        self.waiters.lock().retain(|_, waiting| {
            waiting.retain(|tell| !tell.is_closed());
            !waiting.is_empty()
        });
        loop {
            let page = self.records.page(&[record::EXPIRY], record::EXPIRY);
            let page = page.map_err(|error| CommitError::Failed((&error).into()))?;
            let kept_since = self.clock.now_unix_ms().saturating_sub(self.limits.time.as_millis() as u64);
            let mut batch = Batch::default();
            let (mut count, mut bytes, mut until) = (0, 0, 0);
            let (all, all_bytes) =
                (self.kept.load(Ordering::Relaxed), self.kept_bytes.load(Ordering::Relaxed));
            let full_page = page.len() == PAGE_ENTRIES;
            let mut more = full_page;
            for (key, value) in page {
                let Some((finished, id)) = record::parse_expiry_key(&key) else { continue };
                let over = all - count.min(all) > self.limits.count
                    || all_bytes.saturating_sub(bytes) > self.limits.bytes;
                if finished > kept_since && !over {
                    more = false;
                    break;
                }
                if let Ok(expiry) = records::decode::<Expiry>(&value) {
                    count += 1;
                    bytes += u64::from(expiry.bytes);
                    if let Some(reserved) = expiry.key {
                        self.records.delete(&mut batch, record::reserved_key(&reserved));
                    }
                }
                until = until.max(id.timestamp_ms());
                self.records.delete(&mut batch, record::known_key(id));
                self.records.delete(&mut batch, key);
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.store.committer().commit(batch, edgefaas_state::store::Durability::Written).await?;
            self.kept.fetch_sub(count, Ordering::Relaxed);
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.forgotten_unix_ms.fetch_max(until, Ordering::Relaxed);
            if !more {
                return Ok(());
            }
        }
    }

    /// How many invocations of a function are pending.
    pub fn pending(&self, function: &str) -> u64 {
        self.lanes.lock().get(function).map_or(0, |lane| lane.len() as u64)
    }

    /// The figures of now.
    pub fn reading(&self) -> DurableReading {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        DurableReading {
            pending: self.lanes.lock().values().map(|lane| lane.len() as u64).sum(),
            kept: get(&self.kept),
            kept_bytes: get(&self.kept_bytes),
            retried: get(&self.retried),
            dead_lettered: get(&self.dead_lettered),
            dropped: get(&self.dropped),
        }
    }
}

impl Acceptance {
    /// The function's name.
    pub fn function(&self) -> &Arc<str> {
        &self.slot.function
    }

    /// The invocation is stored, or will be at `ticket`: it has its place in the lane from now on. Gives the oldest one
    /// if it has to make room.
    fn accepted(self, ticket: Option<Ticket>, most: usize) -> Option<(u64, Option<Memory>)> {
        let Self { mut slot, sequence, pending, claim, bytes, .. } = self;
        slot.taken = true;
        // Without a ticket it is on the disk already, and its key with it: the claim ends here.
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
        let mut lanes = queue.lanes.lock();
        let lane = lanes.entry(slot.function.clone()).or_default();
        lane.keep_promise(sequence, order_key, Memory { ticket, pending, bytes, claim });
        let over = lane.len() - lane.leaving() > most;
        let expelled = over.then(|| lane.expel_oldest()).flatten();
        drop(lanes);
        if let Some((_, Some(memory))) = &expelled {
            queue.memory_bytes.fetch_sub(memory.bytes, Ordering::Relaxed);
        }
        expelled
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.taken
            && let Some(lane) = self.queue.lanes.lock().get_mut(&self.function)
        {
            lane.give_up();
        }
    }
}

/// A digest over parts, of which none can pass for a piece of another.
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
