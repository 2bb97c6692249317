//! Group commit: one writer at a time writes for everybody.
//!
//! Batches that arrive while one is being written are written together with the next, so that the cost
//! of reaching the operating system, or the disk, is shared by all who wait for it. Field operations are
//! applied here, by the only writer, so that no two invocations lose each other's changes.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_broker::{Change, Group as JournalGroup, Journal, Space};
use edgefaas_crdt::{FieldDelta, Operation};
use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, UserValue};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::space::{DiskSpace, Purpose, SpaceReading, SpaceState};
use super::unflushed::{self, Unflushed};
use super::upkeep::{self, Chores};
use crate::objects::{FieldChange, FieldKey, FieldRefused, FieldWriter, Objects};

/// Batches that wait for the writer; more of them wait at the sender.
const QUEUE_BATCHES: usize = 1024;
/// Batches that are written as one.
const GROUP_BATCHES: usize = 512;
/// How long somebody else's small batches take, mostly: sooner than a change of thread.
const OTHER_WRITES: Duration = Duration::from_micros(50);
/// Larger batches are for the writer's thread.
const WRITTEN_HERE_BYTES: u64 = 64 << 10;
/// A batch releases space that adds no more than one in so many bytes that it removes.
const RELEASE_SHARE: u64 = 4;
/// What small batches that wait may take in all; others are for the writer's thread.
const SMALL_BYTES: u64 = 1 << 20;
/// Longer keys the store can't have.
const MAX_KEY_BYTES: usize = 65_536;
/// What an entry costs beside its key and value: in the journal, in memory and in a table.
const ENTRY_BYTES: u64 = 40;
/// Counts the rounds of upkeep; written so that there is something to flush.
const UPKEEP_KEY: &str = "upkeep";

/// How far a batch has got when its commit is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the operating system: survives `kill -9`, and a power cut after the next sync.
    Written,
    /// On the disk: survives a power cut.
    Synced,
}

/// Changes that happen together or not at all.
#[derive(Clone, Default)]
pub struct Batch {
    writes: Vec<Write>,
    fields: Vec<(FieldKey, FieldChange)>,
    depth: u8,
}

#[derive(Clone)]
enum Write {
    /// A value that many entries share is in memory once, in the engine too.
    Put(Keyspace, Vec<u8>, UserValue),
    Delete(Keyspace, Vec<u8>),
}

impl Write {
    fn key(&self) -> &[u8] {
        let (Self::Put(_, key, _) | Self::Delete(_, key)) = self;
        key
    }

    /// What it takes, with what the engine adds to it.
    fn size_bytes(&self) -> u64 {
        let value_bytes = match self {
            Self::Put(_, _, value) => value.len(),
            Self::Delete(..) => 0,
        };
        ENTRY_BYTES + (self.key().len() + value_bytes) as u64
    }

    fn add_to(self, batch: &mut OwnedWriteBatch) {
        match self {
            Self::Put(space, key, value) => batch.insert(&space, key, value),
            Self::Delete(space, key) => batch.remove(&space, key),
        }
    }
}

impl Batch {
    /// Puts a value.
    pub fn put(&mut self, space: &Keyspace, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.writes.push(Write::Put(space.clone(), key.into(), UserValue::from(value.into())));
    }

    /// Deletes a value.
    pub fn delete(&mut self, space: &Keyspace, key: impl Into<Vec<u8>>) {
        self.writes.push(Write::Delete(space.clone(), key.into()));
    }

    /// Changes a field of an object.
    pub fn operate(&mut self, key: FieldKey, operation: Operation) {
        self.fields.push((key, FieldChange::Operate(operation)));
    }

    /// Takes in what a peer has of a field.
    pub fn merge(&mut self, key: FieldKey, delta: FieldDelta) {
        self.fields.push((key, FieldChange::Merge(delta)));
    }

    /// Takes in what an archive has of a field; peers are told of it.
    pub fn import(&mut self, key: FieldKey, delta: FieldDelta) {
        self.fields.push((key, FieldChange::Import(delta)));
    }

    /// How many functions have called or triggered one another before the one that changes objects.
    pub fn caused_at(&mut self, depth: u8) {
        self.depth = depth;
    }

    /// Adds all of another one.
    pub fn append(&mut self, mut other: Self) {
        self.writes.append(&mut other.writes);
        self.fields.append(&mut other.fields);
        self.depth = self.depth.max(other.depth);
    }

    /// Nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.fields.is_empty()
    }

    fn longest_key_bytes(&self) -> usize {
        let keys = self.writes.iter().map(|write| write.key().len());
        let fields = self.fields.iter().map(|(key, _)| key.as_bytes().len());
        keys.chain(fields).max().unwrap_or(0)
    }

    fn size_bytes(&self) -> u64 {
        let writes = self.writes.iter().map(Write::size_bytes);
        let fields =
            self.fields.iter().map(|(key, change)| key.as_bytes().len() as u64 + change.size_bytes());
        writes.sum::<u64>() + fields.sum::<u64>()
    }
}

/// A batch was not committed; nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The disk is full but for the reserve and what the engine needs to work.
    #[error(
        "the disk is full ({free_bytes} bytes are free, {needed_bytes} are kept for the store's own work and deletions); make room: \
         delete data, or files on the same disk"
    )]
    DiskFull {
        /// Free bytes of the file system.
        free_bytes: u64,
        /// Bytes that have to stay free.
        needed_bytes: u64,
    },
    /// A change does not fit its field.
    #[error(transparent)]
    Field(#[from] FieldRefused),
    /// A key is longer than the store can have.
    #[error("a key has {bytes} bytes, and the store takes at most {MAX_KEY_BYTES}; choose a shorter name")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The store failed.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The node is going down.
    #[error("the store is closed")]
    Closed,
}

type Answer = Result<(), CommitError>;

enum Job {
    Commit(Batch, Durability, oneshot::Sender<Answer>),
    Close,
}

/// The way to the writer.
///
/// Small batches that need not reach the disk are written by whoever brings them, if nobody else writes for long: that saves
/// two changes of thread. Whoever brings one lets the other tasks of its thread go on first, and then writes theirs too.
/// Everything else is for the writer's thread.
pub struct Committer {
    writer: Arc<Mutex<Writer>>,
    objects: Arc<Objects>,
    jobs: mpsc::Sender<Job>,
    small: Arc<Small>,
    journal: Arc<JournalSlot>,
    thread: Mutex<Option<JoinHandle<()>>>,
    upkeep: Mutex<Option<JoinHandle<()>>>,
    chores: Arc<Chores>,
    space: Arc<SpaceState>,
    unflushed: Unflushed,
    failure: Arc<Failure>,
    counters: Arc<Counters>,
}

/// Why the store takes no writes any more, once that is so.
#[derive(Default)]
struct Failure {
    reason: Mutex<Option<String>>,
    happened: CancellationToken,
}

/// Small batches that wait for whoever writes next.
#[derive(Default)]
struct Small {
    /// With what they take in all, in bytes.
    jobs: Mutex<(Vec<Job>, u64)>,
    /// The writer's thread writes, which may take as long as the disk does.
    thread_writes: AtomicBool,
    /// The writer's thread takes them once more after this, and then ends.
    closed: AtomicBool,
}

impl Small {
    /// Gives the job back if as much as may be waits already.
    fn add(&self, job: Job, bytes: u64) -> Result<(), Job> {
        let mut waiting = self.jobs.lock();
        if waiting.0.len() >= GROUP_BATCHES || waiting.1 + bytes > SMALL_BYTES {
            return Err(job);
        }
        waiting.0.push(job);
        waiting.1 += bytes;
        Ok(())
    }

    fn take(&self) -> Vec<Job> {
        std::mem::take(&mut *self.jobs.lock()).0
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// A small batch that waits while its task does not run. If that never runs again, the writer's thread sees to it.
struct Unwritten<'a>(Option<&'a Committer>);

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if let Some(committer) = self.0 {
            committer.journal.wake.notify_one();
        }
    }
}

/// The broker's journal, from which the writer takes a group whenever it writes.
#[derive(Default)]
struct JournalSlot {
    // The broker has it, and it has the store: a strong one here would keep all of them for ever.
    journal: OnceLock<Weak<Journal>>,
    wake: Notify,
}

/// Where what the broker hands over is kept, and how soon it is on the disk.
#[derive(Clone)]
pub(super) struct JournalSpaces {
    pub state: Keyspace,
    pub queue: Keyspace,
    pub hook: Keyspace,
    pub sync: JournalSync,
}

/// When a message is on the disk that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalSync {
    /// Before it is acknowledged: survives a power cut.
    #[default]
    Commit,
    /// Within the store's `sync_interval`: a power cut may cost what was acknowledged since, `kill -9` nothing.
    Interval,
    /// When the operating system likes, commonly within 30 s.
    Never,
}

/// What the writer has done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitReading {
    /// Groups written.
    pub commits: u64,
    /// Times the disk was made to have all of them.
    pub syncs: u64,
}

/// What the writer needs.
pub(super) struct CommitterOptions {
    pub database: Database,
    pub fields: FieldWriter,
    pub journal: JournalSpaces,
    /// All key spaces, and the one for the node's own facts.
    pub all: Vec<Keyspace>,
    pub meta: Keyspace,
    /// The database's folder.
    pub folder: PathBuf,
    pub keeper: Arc<Keeper>,
    pub sync_interval: Duration,
    /// Free space that is kept; `None` for a share of the disk.
    pub reserve_bytes: Option<u64>,
    /// How long the engine's journal may be, in bytes.
    pub journal_bytes: u64,
}

impl Committer {
    pub(super) fn start(options: CommitterOptions) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel(QUEUE_BATCHES);
        let failure = Arc::<Failure>::default();
        let journal = Arc::<JournalSlot>::default();
        let small = Arc::<Small>::default();
        let objects = options.fields.objects().clone();
        let counters = Arc::<Counters>::default();
        let (chores, signalled) = Chores::new();
        let disk = DiskSpace::new(
            &options.folder,
            options.reserve_bytes,
            options.journal_bytes,
            options.database.clone(),
            options.all.clone(),
            chores.clone(),
        );
        let space = disk.state().clone();
        let unflushed = Unflushed::new(
            options.database.clone(),
            options.all.clone(),
            options.journal_bytes,
            disk.total_bytes(),
        );
        let writer = Writer {
            fields: options.fields,
            database: options.database,
            all: options.all,
            meta: options.meta,
            chores: chores.clone(),
            rounds: 0,
            journal: journal.clone(),
            spaces: options.journal,
            sync_interval: options.sync_interval,
            disk,
            unflushed: unflushed.clone(),
            unsynced_since: None,
            failure: failure.clone(),
            counters: counters.clone(),
            small: small.clone(),
            closed: false,
        };
        // Waiting with a time limit needs a timer; this runtime has nothing else to do.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let writer = Arc::new(Mutex::new(writer));
        let shared = writer.clone();
        let thread = std::thread::Builder::new()
            .name("commit".into())
            .spawn(move || Writer::run(&shared, &runtime, inbox))?;
        let upkeep = upkeep::start(&writer, chores.clone(), signalled, (options.folder, options.keeper))?;
        let (thread, upkeep) = (Mutex::new(Some(thread)), Mutex::new(Some(upkeep)));
        Ok(Self {
            writer,
            objects,
            jobs,
            small,
            journal,
            thread,
            upkeep,
            chores,
            space,
            unflushed,
            failure,
            counters,
        })
    }

    /// Commits `batch` and answers when it is as durable as asked. If the future is dropped the batch is
    /// committed all the same.
    pub async fn commit(&self, batch: Batch, durability: Durability) -> Answer {
        if batch.is_empty() && durability == Durability::Written {
            return Ok(());
        }
        let (answer, mut answered) = oneshot::channel();
        let bytes = batch.size_bytes();
        let is_small = durability == Durability::Written
            && bytes <= WRITTEN_HERE_BYTES
            && !self.unflushed.is_over()
            && !FieldWriter::takes_long(&self.objects, &batch.fields);
        let job = Job::Commit(batch, durability, answer);
        match if is_small { self.small.add(job, bytes) } else { Err(job) } {
            Ok(()) => {
                let mut unwritten = Unwritten(Some(self));
                tokio::task::yield_now().await;
                unwritten.0 = None;
                match answered.try_recv() {
                    // Somebody else has written it.
                    Ok(answer) => return answer,
                    Err(TryRecvError::Closed) => return Err(CommitError::Closed),
                    Err(TryRecvError::Empty) => self.write_small(),
                }
            }
            Err(job) => self.jobs.send(job).await.map_err(|_| CommitError::Closed)?,
        }
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Writes the small batches that wait, or has the writer's thread do so.
    fn write_small(&self) {
        let lock = match self.small.thread_writes.load(Ordering::Relaxed) {
            true => self.writer.try_lock(),
            false => self.writer.try_lock_for(OTHER_WRITES),
        };
        let mut writer = match lock {
            Some(writer) => writer,
            // The thread looks at them once more after it has said that it ends.
            None if !self.small.is_closed() => return self.journal.wake.notify_one(),
            None => self.writer.lock(),
        };
        let jobs = self.small.take();
        if jobs.is_empty() || writer.closed {
            return;
        }
        let before = (writer.unsynced_since, writer.fields.due());
        writer.write_guarded(jobs, false);
        if before != (writer.unsynced_since, writer.fields.due()) {
            // It has to sync, or to write what may wait, sooner than it knew.
            self.journal.wake.notify_one();
        }
    }

    /// Writes what is in the broker's journal, soon. Never waits.
    pub(super) fn wake_for(&self, journal: &Arc<Journal>) {
        self.journal.journal.get_or_init(|| Arc::downgrade(journal));
        self.journal.wake.notify_one();
    }

    /// Why the store takes no writes any more, if it does not.
    pub fn failure(&self) -> Option<String> {
        self.failure.reason.lock().clone()
    }

    /// Waits until the store takes no writes any more, and says why. Cancel safe.
    pub async fn failed(&self) -> String {
        self.failure.happened.cancelled().await;
        self.failure().unwrap_or_default()
    }

    /// What it has written so far.
    pub fn reading(&self) -> CommitReading {
        CommitReading {
            commits: self.counters.commits.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
        }
    }

    /// Free space on the disk, and whether growing writes are refused.
    pub fn space(&self) -> SpaceReading {
        self.space.reading()
    }

    /// Ends the writer after all that it was given. Blocks.
    pub(super) fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.chores.stop();
        let upkeep = self.upkeep.lock().take();
        if let Some(upkeep) = upkeep {
            let _ = upkeep.join();
        }
        let mut job = Job::Close;
        // The writer empties its queue without waiting for anyone, so this ends.
        while let Err(mpsc::error::TrySendError::Full(back)) = self.jobs.try_send(job) {
            job = back;
            std::thread::yield_now();
        }
        let _ = thread.join();
    }
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    syncs: AtomicU64,
}

pub(super) struct Writer {
    fields: FieldWriter,
    database: Database,
    all: Vec<Keyspace>,
    meta: Keyspace,
    chores: Arc<Chores>,
    /// Of upkeep.
    rounds: u64,
    journal: Arc<JournalSlot>,
    spaces: JournalSpaces,
    sync_interval: Duration,
    disk: DiskSpace,
    unflushed: Unflushed,
    /// When the oldest change was written that is not on the disk yet.
    unsynced_since: Option<Instant>,
    failure: Arc<Failure>,
    counters: Arc<Counters>,
    small: Arc<Small>,
    closed: bool,
}

impl Writer {
    fn run(shared: &Mutex<Self>, runtime: &tokio::runtime::Runtime, mut inbox: mpsc::Receiver<Job>) {
        let mut group = Vec::with_capacity(GROUP_BATCHES);
        let mut open = true;
        while open {
            let (wait, journal) = {
                let writer = shared.lock();
                let since = writer.unsynced_since;
                let wait = since.map(|since| writer.sync_interval.saturating_sub(since.elapsed()));
                let lazy = writer.fields.due().map(|due| due.saturating_duration_since(Instant::now()));
                ([wait, lazy].into_iter().flatten().min(), writer.journal.clone())
            };
            let closed = runtime.block_on(async {
                let due = async {
                    match wait {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    received = inbox.recv_many(&mut group, GROUP_BATCHES) => received == 0,
                    () = journal.wake.notified() => false,
                    () = due => false,
                }
            });
            // What came in meanwhile goes with it.
            while group.len() < GROUP_BATCHES
                && let Ok(job) = inbox.try_recv()
            {
                group.push(job);
            }
            let closes = closed || group.iter().any(|job| matches!(job, Job::Close));
            let mut writer = shared.lock();
            let small = writer.small.clone();
            small.thread_writes.store(true, Ordering::Relaxed);
            if closes {
                small.closed.store(true, Ordering::SeqCst);
            }
            // They have waited for longer than what has just come in.
            let mut jobs = small.take();
            jobs.append(&mut group);
            open = writer.write_guarded(jobs, true) && !closes;
            writer.closed = !open;
            let due = writer.unsynced_since.is_some_and(|since| since.elapsed() >= writer.sync_interval);
            if due || !open {
                writer.sync();
            }
            small.thread_writes.store(false, Ordering::Relaxed);
            let (unflushed, failure) = (writer.unflushed.clone(), writer.failure.clone());
            let chores = writer.chores.clone();
            drop(writer);
            if open {
                unflushed.settle(|| failure.happened.is_cancelled() || chores.is_stopped());
            }
        }
    }

    /// As [`write`](Self::write), whatever happens in it.
    fn write_guarded(&mut self, jobs: Vec<Job>, with_journal: bool) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.write(jobs.into_iter(), with_journal))) {
            Ok(open) => open,
            // Whoever waited learns it by its answer being dropped, the broker by the group that is never stored.
            Err(_) => {
                self.fail("the writer panicked".into());
                if let Some(journal) = self.journal.journal.get().and_then(Weak::upgrade) {
                    journal.fail();
                }
                true
            }
        }
    }

    /// Writes a group, with what the broker has to store if `with_journal`; false if it held the order to close.
    fn write(&mut self, group: impl Iterator<Item = Job>, with_journal: bool) -> bool {
        let (mut writes, mut fresh) = (Vec::new(), Vec::new());
        let mut answers = Vec::new();
        let mut durability = Durability::Written;
        let mut open = true;
        for job in group {
            let (batch, wanted, answer) = match job {
                Job::Close => {
                    open = false;
                    continue;
                }
                Job::Commit(batch, wanted, answer) => (batch, wanted, answer),
            };
            let failure = self.failure.reason.lock().clone();
            let room = match (failure, batch.longest_key_bytes()) {
                (Some(reason), _) => Err(CommitError::Failed(reason)),
                (None, bytes @ MAX_KEY_BYTES..) => Err(CommitError::KeyTooLong { bytes }),
                (None, _) => self.admit(&batch),
            };
            // What belongs to something that is written cannot wait for its turn.
            let lazy = wanted == Durability::Written && batch.writes.is_empty();
            match room.and_then(|()| self.fields.apply(batch.fields, batch.depth, lazy)) {
                Ok(needed) => {
                    writes.extend(batch.writes);
                    durability = durability.max(wanted).max(needed);
                    answers.push(answer);
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        }
        self.fields.ask_for_shares();
        let taken = if with_journal { self.take_journal(&mut writes, &mut fresh, open) } else { None };
        if let Some(taken) = &taken
            && taken.awaited
            && self.spaces.sync == JournalSync::Commit
        {
            durability = Durability::Synced;
        }
        // A group may have been taken back by the time it is its turn; whoever asked for a sync gets one.
        let now = Instant::now();
        let has_writes = !writes.is_empty() || !fresh.is_empty() || !open || self.fields.has_writes(now);
        let outcome = match has_writes || durability == Durability::Synced {
            true => self.commit(fresh, writes, !open, now, durability),
            false => Ok(()),
        };
        match &outcome {
            Ok(()) => self.fields.committed(now),
            Err(_) => self.fields.abandon(),
        }
        self.disk.written();
        if let (Some(journal), Some(taken)) = (self.journal.journal.get().and_then(Weak::upgrade), &taken) {
            journal.committed(taken, outcome.is_ok());
        }
        let never = answers.is_empty() && self.spaces.sync == JournalSync::Never;
        match (&outcome, durability) {
            (Err(error), _) => self.fail(error.to_string()),
            (Ok(()), Durability::Synced) => self.unsynced_since = None,
            (Ok(()), Durability::Written) if never || !has_writes => {}
            (Ok(()), Durability::Written) => {
                self.unsynced_since.get_or_insert_with(Instant::now);
            }
        }
        for answer in answers {
            let _ = answer.send(outcome.clone());
        }
        open
    }

    /// Admits a batch if there is room for it, or if it makes room.
    fn admit(&mut self, batch: &Batch) -> Answer {
        let bytes = batch.size_bytes();
        let Err(mut full) = self.disk.plan(bytes, Purpose::Grow) else { return Ok(()) };
        if let Some(purpose) = self.releases(batch) {
            match self.disk.plan(bytes, purpose) {
                Ok(()) => return Ok(()),
                Err(error) => full = error,
            }
        }
        self.disk.refused();
        Err(full)
    }

    /// What a batch is that removes at least as much as it adds. Reads the entries that it replaces: only where the disk is
    /// full.
    fn releases(&self, batch: &Batch) -> Option<Purpose> {
        let stored_bytes = |space: &Keyspace, key: &[u8]| -> u64 {
            space.size_of(key).ok().flatten().map_or(0, |value| key.len() as u64 + u64::from(value))
        };
        let (mut added, mut removed) = (0, 0);
        for write in &batch.writes {
            match write {
                Write::Put(space, key, value) => {
                    added += (key.len() + value.len()) as u64;
                    removed += stored_bytes(space, key);
                }
                Write::Delete(space, key) => removed += stored_bytes(space, key),
            }
        }
        if added > removed || self.fields.grow(&batch.fields) {
            return None;
        }
        Some(if added <= removed / RELEASE_SHARE { Purpose::Release } else { Purpose::Replace })
    }

    /// Measures the free space, for other programs use the disk as well, and looks whether the engine still works: its own threads
    /// may have met an error.
    pub(super) fn watch_disk(&mut self) {
        if let Err(error) = self.database.persist(PersistMode::Buffer)
            && !self.failure.happened.is_cancelled()
        {
            self.fail(error.to_string());
        }
        match self.journal.journal.get().and_then(Weak::upgrade) {
            Some(journal) => drop(self.offer_room(&journal)),
            None => drop(self.disk.room_bytes()),
        }
    }

    /// Tells the broker how many bytes more it may store; `None` if there is no room for what waits already.
    fn offer_room(&mut self, journal: &Journal) -> Option<u64> {
        let room = self.disk.room_after(journal.waiting_bytes() as u64);
        journal.set_stalled(room.is_none());
        journal.set_room(room.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)));
        room
    }

    /// Adds what the broker has to store to `writes`. It is not refused for want of space: the broker knows how much more
    /// it may take. If the disk has not even room for it as it is, it waits. Entries under new keys are added to `fresh`.
    fn take_journal(
        &mut self,
        writes: &mut Vec<Write>,
        fresh: &mut Vec<Write>,
        open: bool,
    ) -> Option<JournalGroup> {
        let journal = self.journal.journal.get()?.upgrade()?;
        let room = self.offer_room(&journal);
        if open && room.is_none() {
            return None;
        }
        let mut group = journal.take();
        let (new, changes) = group
            .as_mut()
            .map(|group| (std::mem::take(&mut group.fresh), std::mem::take(&mut group.changes)))
            .unwrap_or_default();
        let sizes = new.iter().chain(&changes);
        let sizes = sizes.map(|change| change.key.len() + change.value.as_ref().map_or(0, Bytes::len));
        let bytes = sizes.sum::<usize>() as u64 + ENTRY_BYTES * (new.len() + changes.len()) as u64;
        self.disk.accept(bytes);
        let deleted = changes.iter().filter(|change| change.value.is_none()).count();
        self.disk.deleted(deleted as u64);
        let mut last: Option<(Bytes, UserValue)> = None;
        let mut shared = |value: Bytes| match &last {
            Some((same, shared)) if same.as_ptr() == value.as_ptr() && same.len() == value.len() => {
                shared.clone()
            }
            _ => {
                let shared = UserValue::from(&value[..]);
                last = Some((value, shared.clone()));
                shared
            }
        };
        let mut write = |change: Change| {
            let space = match change.space {
                Space::State => &self.spaces.state,
                Space::Queue => &self.spaces.queue,
                Space::Hook => &self.spaces.hook,
            };
            match change.value {
                Some(value) => Write::Put(space.clone(), change.key, shared(value)),
                None => Write::Delete(space.clone(), change.key),
            }
        };
        fresh.extend(new.into_iter().map(&mut write));
        writes.extend(changes.into_iter().map(&mut write));
        group
    }

    /// Writes all of it, and of the fields what cannot wait, or all that has changed. `fresh`: under keys that were never used.
    fn commit(
        &mut self,
        mut fresh: Vec<Write>,
        writes: Vec<Write>,
        all_fields: bool,
        now: Instant,
        durability: Durability,
    ) -> Answer {
        let mode = match durability {
            Durability::Written => PersistMode::Buffer,
            Durability::Synced => PersistMode::SyncData,
        };
        let failed = |error: fjall::Error| CommitError::Failed(error.to_string());
        let is_ahead = self.write_ahead(&mut fresh).map_err(failed)?;
        let mut batch = self.database.batch().durability(Some(mode));
        for write in fresh.into_iter().chain(writes) {
            write.add_to(&mut batch);
        }
        if is_ahead {
            unflushed::finish(&mut batch, &self.meta);
        }
        self.fields.write(&mut batch, all_fields, now);
        batch.commit().map_err(failed)?;
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        if durability == Durability::Synced {
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes all parts but the last of what is too large for one; false if it is not.
    fn write_ahead(&self, fresh: &mut Vec<Write>) -> fjall::Result<bool> {
        let part_bytes = self.unflushed.part_bytes();
        if fresh.iter().map(Write::size_bytes).sum::<u64>() <= part_bytes {
            return Ok(false);
        }
        let keys: Vec<_> = fresh.iter().map(Write::key).collect();
        unflushed::announce(&self.database, &self.meta, &keys)?;
        let mut writes = std::mem::take(fresh).into_iter().peekable();
        while writes.peek().is_some() {
            let mut bytes = 0;
            fresh.extend(std::iter::from_fn(|| {
                writes.next_if(|write| {
                    bytes += write.size_bytes();
                    bytes <= part_bytes || bytes == write.size_bytes()
                })
            }));
            if writes.peek().is_none() {
                break;
            }
            let mut batch = self.database.batch().durability(Some(PersistMode::Buffer));
            fresh.drain(..).for_each(|write| write.add_to(&mut batch));
            batch.commit()?;
            self.unflushed.settle(|| false);
        }
        Ok(true)
    }

    /// The database and its key spaces, for upkeep; `None` when there is nothing more to do for them.
    pub(super) fn engine(&self) -> Option<(Database, Vec<Keyspace>)> {
        let works = !self.closed && !self.failure.happened.is_cancelled();
        works.then(|| (self.database.clone(), self.all.clone()))
    }

    pub(super) fn disk(&mut self) -> &mut DiskSpace {
        &mut self.disk
    }

    /// Groups written since the start.
    pub(super) fn commits(&self) -> u64 {
        self.counters.commits.load(Ordering::Relaxed)
    }

    /// Has the writer's thread look at what the broker has to store.
    pub(super) fn wake_broker(&self) {
        self.journal.wake.notify_one();
    }

    /// Writes a small entry, so that there is something to flush.
    pub(super) fn mark(&mut self) {
        self.rounds += 1;
        let mut batch = self.database.batch().durability(Some(PersistMode::Buffer));
        batch.insert(&self.meta, UPKEEP_KEY, self.rounds.to_le_bytes());
        if let Err(error) = batch.commit() {
            self.fail(error.to_string());
        }
    }

    /// Begins a new journal; false if the engine did not.
    pub(super) fn rotate_journal(&mut self, folder: &Path) -> std::io::Result<bool> {
        self.mark();
        // If it did not work it is tried again when as much has been written.
        self.disk.journal_rotated();
        upkeep::rotate_journal(folder, &self.meta)
    }

    fn sync(&mut self) {
        self.chores.survey();
        match self.database.persist(PersistMode::SyncData) {
            Ok(()) => drop(self.counters.syncs.fetch_add(1, Ordering::Relaxed)),
            Err(error) => self.fail(format!("it could not be synced: {error}")),
        }
        self.unsynced_since = None;
    }

    /// The engine takes no writes any more after one has failed: the node ends, for whoever runs it to start it again.
    fn fail(&self, reason: String) {
        tracing::error!(reason, "the store failed");
        self.failure.reason.lock().get_or_insert(reason);
        self.failure.happened.cancel();
    }
}

#[cfg(test)]
mod tests;
