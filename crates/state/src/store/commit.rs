//! Group commit: one writer at a time writes for everybody.
//!
//! Batches that arrive while one is being written are written together with the next, so that the cost
//! of reaching the operating system, or the disk, is shared by all who wait for it. Field operations are
//! applied here, by the only writer, so that no two invocations lose each other's changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use edgefaas_broker::Wal;
use edgefaas_crdt::ApplyError;
use fjall::{Database, Keyspace};
use parking_lot::Mutex;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::batch::{Batch, Durability};
use super::chores::Chores;
use super::keeper::Keeper;
use super::space::{DiskSpace, SpaceReading, SpaceState};
use super::unflushed::Unflushed;
use super::upkeep;
use super::writer::{Answer, Counters, Failure, Job, JournalSlot, JournalSpaces, Small, Writer};
use crate::error::{CommitError, StoreFailure};
use crate::objects::{FieldKey, FieldWriter, Objects};

/// Batches that wait for the writer; more of them wait at the sender.
const QUEUE_BATCHES: usize = 1024;
/// How long somebody else's small batches take, mostly: sooner than a change of thread.
const OTHER_WRITES: Duration = Duration::from_micros(50);
/// Larger batches are for the writer's thread.
const WRITTEN_HERE_BYTES: u64 = 64 << 10;

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

/// A small batch that waits while its task does not run. If that never runs again, the writer's thread sees to it.
struct Unwritten<'a>(Option<&'a Committer>);

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if let Some(committer) = self.0 {
            committer.journal.wake.notify_one();
        }
    }
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
    pub(super) fn wake_for(&self, wal: &Arc<Wal>) {
        self.journal.journal.get_or_init(|| Arc::downgrade(wal));
        self.journal.wake.notify_one();
    }

    /// Why the store takes no writes any more, if it does not.
    pub fn failure(&self) -> Option<StoreFailure> {
        self.failure.reason.lock().clone()
    }

    /// Waits until the store takes no writes any more, and says why. Cancel safe.
    pub async fn failed(&self) -> StoreFailure {
        self.failure.happened.cancelled().await;
        // It is set before the token fires.
        self.failure().unwrap_or(StoreFailure::Panicked)
    }

    /// Has the writer request the share of a bounded counter that a refused operation lacks. Returns immediately; a request may be
    /// lost, and the next refused operation makes it again.
    pub fn request_share(&self, key: &FieldKey, refused: &ApplyError) {
        if self.objects.request_share(key, refused) {
            self.journal.wake.notify_one();
        }
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

    /// The error of what finds no room on the disk.
    pub fn disk_full(&self) -> CommitError {
        let SpaceReading { free_bytes, needed_bytes, .. } = self.space();
        CommitError::DiskFull { free_bytes, needed_bytes }
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

#[cfg(test)]
mod tests;
