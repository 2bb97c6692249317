//! Durable invocations: those that are on the disk from before somebody is told so until they have ended.
//!
//! ```text
//! accepted --> pending --> running --> state, outcome, outgoing messages; pending no more   (one batch)
//!  (on disk)     ^            |                                      |
//!                +-- retry ---+ failed --> dead letter, outcome      +--> each message is published and
//!                  (on disk)               (one batch)                    deleted (one batch)
//! ```
//!
//! [`record`] says what is on the disk, [`lane`] what runs next, [`run`] runs it, [`outbox`] has messages that find no room,
//! and here is what is accepted and what
//! is remembered of it. Memory holds a few words about each pending invocation; what it is to do is read when it has
//! its turn. A pending invocation that was cut off, by `kill -9` or a power cut, runs again at the next start. Since
//! nothing of it was committed, its effects are there once.

mod claims;
mod lane;
mod outbox;
mod record;
mod run;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claims::{Claims, Settled};
use edgefaas_broker::Ticket;
use edgefaas_manifest::{QueueOrder, WhenFull};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Batch, CommitError, Store, StoreError};
use lane::Lane;
use outbox::Outbox;
use parking_lot::Mutex;
use record::{Expiry, Known, Pending, Reserved};
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use crate::dispatch::Workers;
use crate::registry::LiveFunction;
pub use claims::KeyClaim;
pub use record::{AnswerTo, ClientRecord, Digest, Keep, KnownState, StoredOutcome};
pub(crate) use run::forget_outgoing;
pub use run::{Accepted, DEAD_LETTER_TOPIC, Durable};

/// Entries that are read from the disk at a time.
const PAGE: usize = 256;
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
pub struct JournalReading {
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
    journal: Arc<InvocationJournal>,
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
pub struct InvocationJournal {
    store: Arc<Store>,
    workers: Arc<Workers>,
    clock: Clock,
    limits: KeepLimits,
    lanes: Mutex<HashMap<Arc<str>, Lane<Memory>>>,
    sequence: AtomicU64,
    /// What has a lower number was left by an earlier run of the node.
    first_sequence: AtomicU64,
    memory_bytes: AtomicUsize,
    claims: Arc<Claims>,
    waiters: Mutex<HashMap<Ulid, Vec<oneshot::Sender<()>>>>,
    /// What invocations published and found no room so far, or were stopped before.
    outbox: Outbox,
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

impl InvocationJournal {
    /// Reads what is pending. Blocks.
    ///
    /// # Errors
    /// The store can't be read. What is damaged is left out with a warning.
    pub fn open(
        store: Arc<Store>,
        workers: Arc<Workers>,
        clock: Clock,
        limits: KeepLimits,
    ) -> Result<Self, StoreError> {
        let journal = Self {
            store,
            workers,
            clock,
            limits,
            lanes: Mutex::default(),
            sequence: AtomicU64::new(1),
            first_sequence: AtomicU64::new(1),
            memory_bytes: AtomicUsize::new(0),
            claims: Arc::default(),
            waiters: Mutex::default(),
            outbox: Outbox::default(),
            timer: Notify::new(),
            kept: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            forgotten_unix_ms: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        journal.load()?;
        Ok(journal)
    }

    fn load(&self) -> Result<(), StoreError> {
        let (now, now_ms) = (Instant::now(), self.clock.now_unix_ms());
        let mut last = 0;
        let mut lanes: HashMap<Arc<str>, Lane<Memory>> = HashMap::new();
        self.for_each(record::PENDING, |key, value| {
            let Some((function, sequence)) = record::parse_pending_key(key) else {
                return warn_damaged("a pending invocation", key, record::Damage::Fields);
            };
            last = last.max(sequence);
            match record::decode::<Pending>(value) {
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
        // What is published from now on does not overtake what an earlier run of the node has left.
        self.for_each(record::OUTGOING, |key, value| {
            let number = record::parse_outgoing_key(key);
            last = last.max(number.unwrap_or(0));
            match (number, record::decode::<record::Outgoing>(value)) {
                (Some(number), Ok(outgoing)) => self.outbox.wait(&outgoing.source, number),
                (_, Err(damage)) => warn_damaged("a message to be published", key, damage),
                (None, _) => warn_damaged("a message to be published", key, record::Damage::Fields),
            }
        })?;
        self.for_each(record::EXPIRY, |key, value| match record::decode::<Expiry>(value) {
            Ok(expiry) => {
                self.kept.fetch_add(1, Ordering::Relaxed);
                self.kept_bytes.fetch_add(expiry.bytes.into(), Ordering::Relaxed);
            }
            Err(damage) => warn_damaged("the expiry of an outcome", key, damage),
        })?;
        self.sequence.store(last + 1, Ordering::Relaxed);
        self.first_sequence.store(last + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Walks over the entries of a kind a page at a time.
    fn for_each(&self, kind: u8, mut found: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let mut from = vec![kind];
        loop {
            let page = self.page(&from, kind)?;
            for (key, value) in &page {
                found(key, value);
            }
            match page.into_iter().next_back() {
                Some((mut key, _)) => {
                    key.push(0);
                    from = key;
                }
                None => return Ok(()),
            }
        }
    }

    /// The next entries of a kind from a key on.
    fn page(&self, from: &[u8], kind: u8) -> Result<Vec<edgefaas_broker::Entry>, StoreError> {
        let entries = self.store.spaces().invocations.range(from.to_vec()..vec![kind + 1]).take(PAGE);
        let entries = entries.map(|entry| {
            let (key, value) = entry.into_inner()?;
            Ok((key.to_vec(), value.to_vec()))
        });
        Ok(entries.collect::<fjall::Result<_>>()?)
    }

    fn get<T: serde::de::DeserializeOwned>(&self, what: &str, key: &[u8]) -> Result<Option<T>, StoreError> {
        let Some(value) = self.store.spaces().invocations.get(key)? else { return Ok(None) };
        record::decode(&value)
            .map(Some)
            .map_err(|damage| StoreError::Damaged { what: what.to_owned(), reason: damage.to_string() })
    }

    fn put(&self, batch: &mut Batch, key: Vec<u8>, value: Vec<u8>) {
        batch.put(&self.store.spaces().invocations, key, value);
    }

    fn delete(&self, batch: &mut Batch, key: Vec<u8>) {
        batch.delete(&self.store.spaces().invocations, key);
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
        Ok(Slot { journal: self.clone(), function: function.name.clone(), taken: false })
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
            self.get("an idempotency key", &record::reserved_key(&key)).unwrap_or_else(|error| {
                tracing::warn!(%error, "an idempotency key is forgotten");
                None
            });
        // Without its invocation it stands for nothing any more.
        stored.filter(|stored| {
            matches!(self.lookup(Ulid(stored.id)), Ok(Lookup::Pending(_) | Lookup::Done(..)))
        })
    }

    /// Whether an invocation with an idempotency key is on its way to the disk.
    pub fn is_claimed(&self, id: Ulid) -> bool {
        self.claims.has_invocation(id.0)
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
        let known: Option<Known> = match self.get("an outcome", &record::known_key(id)) {
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
        let known: Known = self.get("an outcome", &record::known_key(id)).ok()??;
        let KnownState::Pending(sequence) = known.state else { return None };
        let key = record::pending_key(&known.function, sequence);
        let pending: Pending = self.get("a pending invocation", &key).ok()??;
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
    fn prepare(&self, slot: Slot, pending: Pending, claim: Option<KeyClaim>) -> Acceptance {
        let sequence = self.next_sequence();
        let mut entries = vec![(record::pending_key(&slot.function, sequence), record::encode(&pending))];
        if let Some(keep) = &pending.keep {
            let state = KnownState::Pending(sequence);
            let known = Known { function: slot.function.to_string(), auth: keep.auth, state };
            entries.push((record::known_key(Ulid(pending.id)), record::encode(&known)));
        }
        if let Some(claim) = &claim {
            entries.push((record::reserved_key(&claim.key), record::encode(&claim.reserved)));
        }
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        Acceptance { slot, sequence, pending, claim, bytes, entries }
    }

    /// The next pending invocation of a function that may run.
    fn start(&self, function: &str, most: usize, order: QueueOrder) -> Option<(u64, Option<Memory>)> {
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
        if !self.outbox.is_empty() {
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
        let known = record::encode(&known);
        let bytes = known.len() as u64;
        let expiry = Expiry { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), key: keep.key };
        self.put(batch, record::known_key(id), known);
        self.put(batch, record::expiry_key(self.clock.now_unix_ms(), id), record::encode(&expiry));
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
            let page = self.page(&[record::EXPIRY], record::EXPIRY);
            let page = page.map_err(|error| CommitError::Failed(error.to_string()))?;
            let kept_since = self.clock.now_unix_ms().saturating_sub(self.limits.time.as_millis() as u64);
            let mut batch = Batch::default();
            let (mut count, mut bytes, mut until) = (0, 0, 0);
            let (all, all_bytes) =
                (self.kept.load(Ordering::Relaxed), self.kept_bytes.load(Ordering::Relaxed));
            let full_page = page.len() == PAGE;
            let mut more = full_page;
            for (key, value) in page {
                let Some((finished, id)) = record::parse_expiry_key(&key) else { continue };
                let over = all - count.min(all) > self.limits.count
                    || all_bytes.saturating_sub(bytes) > self.limits.bytes;
                if finished > kept_since && !over {
                    more = false;
                    break;
                }
                if let Ok(expiry) = record::decode::<Expiry>(&value) {
                    count += 1;
                    bytes += u64::from(expiry.bytes);
                    if let Some(reserved) = expiry.key {
                        self.delete(&mut batch, record::reserved_key(&reserved));
                    }
                }
                until = until.max(id.timestamp_ms());
                self.delete(&mut batch, record::known_key(id));
                self.delete(&mut batch, key);
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
    pub fn reading(&self) -> JournalReading {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        JournalReading {
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
        let journal = &slot.journal;
        let order_key = pending.order_key;
        let fits =
            journal.memory_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= journal.limits.memory_bytes;
        let (pending, bytes) = if fits {
            (Some(Box::new(pending)), bytes)
        } else {
            journal.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
            (None, 0)
        };
        let mut lanes = journal.lanes.lock();
        let lane = lanes.entry(slot.function.clone()).or_default();
        lane.keep_promise(sequence, order_key, Memory { ticket, pending, bytes, claim });
        let over = lane.len() - lane.leaving() > most;
        let expelled = over.then(|| lane.expel_oldest()).flatten();
        drop(lanes);
        if let Some((_, Some(memory))) = &expelled {
            journal.memory_bytes.fetch_sub(memory.bytes, Ordering::Relaxed);
        }
        expelled
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.taken
            && let Some(lane) = self.journal.lanes.lock().get_mut(&self.function)
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

fn warn_damaged(what: &str, key: &[u8], damage: record::Damage) {
    tracing::warn!(what, key = %key.escape_ascii(), %damage, "a record is damaged and left out");
}

#[cfg(test)]
mod tests;
