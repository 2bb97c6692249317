//! Group commit: one writer at a time writes the batches of all callers.
//!
//! Batches that arrive during a write are written together by the next one, so all of them share the cost of one system
//! call or one sync. The writer also applies field operations: as the only writer, it loses no change of two concurrent
//! invocations.

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
use super::disk_space::{DiskSpace, SpaceReading, SpaceState};
use super::manifest_writer::ManifestWriter;
use super::unflushed::Unflushed;
use super::upkeep;
use super::upkeep_requests::UpkeepRequests;
use super::writer::{Answer, Counters, Failure, Job, Small, WalSlot, WalSpaces, Writer};
use crate::error::{CommitError, StoreFailure};
use crate::objects::{FieldKey, FieldWriter, Objects};

/// Capacity of the writer's queue; further batches wait at the sender.
const QUEUE_BATCHES: usize = 1024;
/// Usual time of another caller's write of small batches: shorter than a change of thread.
const OTHER_WRITES: Duration = Duration::from_micros(50);
/// Larger batches go to the writer's thread.
const WRITTEN_HERE_BYTES: u64 = 64 << 10;

/// Handle to the writer.
///
/// A small batch that needs no sync is written by its caller, if no other write takes long: that saves two changes of
/// thread. The caller first yields to the other tasks of its thread, and then writes their batches too. All other
/// batches go to the writer's thread.
pub struct Committer {
    writer: Arc<Mutex<Writer>>,
    objects: Arc<Objects>,
    jobs: mpsc::Sender<Job>,
    small: Arc<Small>,
    wal_slot: Arc<WalSlot>,
    thread: Mutex<Option<JoinHandle<()>>>,
    upkeep: Mutex<Option<JoinHandle<()>>>,
    requests: Arc<UpkeepRequests>,
    space: Arc<SpaceState>,
    unflushed: Unflushed,
    failure: Arc<Failure>,
    counters: Arc<Counters>,
}

/// A small batch whose task yields. If the task never runs again, the writer's thread writes the batch.
struct Unwritten<'a>(Option<&'a Committer>);

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if let Some(committer) = self.0 {
            committer.wal_slot.wake.notify_one();
        }
    }
}

/// Counts of the writer since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitReading {
    /// Groups written.
    pub commits: u64,
    /// Syncs to the disk.
    pub syncs: u64,
}

/// Options of the writer.
pub(super) struct CommitterOptions {
    pub database: Database,
    pub fields: FieldWriter,
    pub wal_spaces: WalSpaces,
    /// All key spaces; `meta` has the node's own records.
    pub all: Vec<Keyspace>,
    pub meta: Keyspace,
    /// The database's folder.
    pub folder: PathBuf,
    pub manifest_writer: Arc<ManifestWriter>,
    pub sync_interval: Duration,
    /// Free space kept in reserve; `None` for a share of the disk.
    pub reserve_bytes: Option<u64>,
    /// Maximum length of the engine's journal, in bytes.
    pub journal_bytes: u64,
}

impl Committer {
    pub(super) fn start(options: CommitterOptions) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel(QUEUE_BATCHES);
        let failure = Arc::<Failure>::default();
        let wal_slot = Arc::<WalSlot>::default();
        let small = Arc::<Small>::default();
        let objects = options.fields.objects().clone();
        let counters = Arc::<Counters>::default();
        let (requests, signalled) = UpkeepRequests::new();
        let disk = DiskSpace::new(
            &options.folder,
            options.reserve_bytes,
            options.journal_bytes,
            options.database.clone(),
            options.all.clone(),
            requests.clone(),
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
            requests: requests.clone(),
            rounds: 0,
            wal_slot: wal_slot.clone(),
            spaces: options.wal_spaces,
            sync_interval: options.sync_interval,
            disk,
            unflushed: unflushed.clone(),
            unsynced_since: None,
            failure: failure.clone(),
            counters: counters.clone(),
            small: small.clone(),
            closed: false,
        };
        // A wait with a time limit needs a timer; the runtime has no other use.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let writer = Arc::new(Mutex::new(writer));
        let shared = writer.clone();
        let thread = std::thread::Builder::new()
            .name("commit".into())
            .spawn(move || Writer::run(&shared, &runtime, inbox))?;
        let upkeep =
            upkeep::start(&writer, requests.clone(), signalled, (options.folder, options.manifest_writer))?;
        let (thread, upkeep) = (Mutex::new(Some(thread)), Mutex::new(Some(upkeep)));
        Ok(Self {
            writer,
            objects,
            jobs,
            small,
            wal_slot,
            thread,
            upkeep,
            requests,
            space,
            unflushed,
            failure,
            counters,
        })
    }

    /// Commits `batch`; returns once it is as durable as requested. A dropped future does not cancel the commit.
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
                    // Another caller has written it.
                    Ok(answer) => return answer,
                    Err(TryRecvError::Closed) => return Err(CommitError::Closed),
                    Err(TryRecvError::Empty) => self.write_small(),
                }
            }
            Err(job) => self.jobs.send(job).await.map_err(|_| CommitError::Closed)?,
        }
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Waits until the batches that were handed to the writer before are written and answered.
    pub async fn caught_up(&self) {
        let (answer, answered) = oneshot::channel();
        // Without a writer nothing is left to write.
        if self.jobs.send(Job::Commit(Batch::default(), Durability::Written, answer)).await.is_ok() {
            let _ = answered.await;
        }
    }

    /// Writes the small batches that wait, or wakes the writer's thread for them.
    fn write_small(&self) {
        let lock = match self.small.thread_writes.load(Ordering::Relaxed) {
            true => self.writer.try_lock(),
            false => self.writer.try_lock_for(OTHER_WRITES),
        };
        let mut writer = match lock {
            Some(writer) => writer,
            // The thread takes the small batches once more after it has closed the list.
            None if !self.small.is_closed() => return self.wal_slot.wake.notify_one(),
            None => self.writer.lock(),
        };
        let jobs = self.small.take();
        if jobs.is_empty() || writer.closed {
            return;
        }
        let before = (writer.unsynced_since, writer.fields.due());
        writer.write_guarded(jobs, false);
        if before != (writer.unsynced_since, writer.fields.due()) {
            // A sync or a lazy flush is due earlier than the thread knew.
            self.wal_slot.wake.notify_one();
        }
    }

    /// Wakes the writer to write the broker's write-ahead log. Does not block.
    pub(super) fn wake_for(&self, wal: &Arc<Wal>) {
        self.wal_slot.wal.get_or_init(|| Arc::downgrade(wal));
        self.wal_slot.wake.notify_one();
    }

    /// The failure that ended all writing; `None` while the store accepts writes.
    pub fn failure(&self) -> Option<StoreFailure> {
        self.failure.reason.lock().clone()
    }

    /// Waits until the store accepts no writes any more, and returns the failure. Cancel safe.
    pub async fn failed(&self) -> StoreFailure {
        self.failure.happened.cancelled().await;
        // The failure is set before the token fires.
        self.failure().unwrap_or(StoreFailure::Panicked)
    }

    /// Makes the writer request the share of a bounded counter that a refused operation lacks. Returns immediately. A
    /// request may be lost; the next refused operation makes it again.
    pub fn request_share(&self, key: &FieldKey, refused: &ApplyError) {
        if self.objects.request_share(key, refused) {
            self.wal_slot.wake.notify_one();
        }
    }

    /// Counts of the writer.
    pub fn reading(&self) -> CommitReading {
        CommitReading {
            commits: self.counters.commits.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
        }
    }

    /// Free space on the disk, and whether writes that grow the store are refused.
    pub fn space(&self) -> SpaceReading {
        self.space.reading()
    }

    /// The error of a write for which the disk has no room.
    pub fn disk_full(&self) -> CommitError {
        let SpaceReading { free_bytes, needed_bytes, .. } = self.space();
        CommitError::DiskFull { free_bytes, needed_bytes }
    }

    /// Closes the writer after it has written all queued batches. Blocks.
    pub(super) fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.requests.stop();
        let upkeep = self.upkeep.lock().take();
        if let Some(upkeep) = upkeep {
            let _ = upkeep.join();
        }
        let mut job = Job::Close;
        // The writer empties its queue without waiting for callers, so this loop ends.
        while let Err(mpsc::error::TrySendError::Full(back)) = self.jobs.try_send(job) {
            job = back;
            std::thread::yield_now();
        }
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
