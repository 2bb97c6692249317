//! The store's one writer: it writes groups of batches together with the broker's write-ahead log, and syncs.
//!
//! Its own thread waits for jobs and for the next sync; [`super::commit`] uses it for small batches as well.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_broker::{Change, Group as WalGroup, Space, Wal};
use fjall::{Database, Keyspace, PersistMode, UserValue};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Durability, ENTRY_BYTES, Write};
use super::disk_space::{DiskSpace, Purpose};
use super::rotate;
use super::unflushed::{self, Unflushed};
use super::upkeep_requests::UpkeepRequests;
use crate::error::{CommitError, MAX_KEY_BYTES, StoreFailure};
use crate::objects::{FieldWriter, Footprint};

/// Maximum number of batches in a group.
pub(super) const GROUP_BATCHES: usize = 512;
/// Maximum total size of waiting small batches; others go to the writer's thread.
const SMALL_BYTES: u64 = 1 << 20;
/// A batch releases space if it removes at least this many times the bytes that it adds.
const RELEASE_SHARE: u64 = 4;
/// Wait before fields that found no room on the disk are written again.
const POSTPONED: Duration = Duration::from_secs(1);
/// Key of the counter of upkeep rounds; a write to it makes a memtable non-empty.
const UPKEEP_KEY: &str = "upkeep";

pub(super) type Answer = Result<(), CommitError>;

pub(super) enum Job {
    Commit(Batch, Durability, oneshot::Sender<Answer>),
    Close,
}

/// The failure that ended all writing, once one has happened.
#[derive(Default)]
pub(super) struct Failure {
    pub(super) reason: Mutex<Option<StoreFailure>>,
    pub(super) happened: CancellationToken,
}

/// Small batches that wait for the next write.
#[derive(Default)]
pub(super) struct Small {
    /// The batches, and their total size in bytes.
    jobs: Mutex<(Vec<Job>, u64)>,
    /// The writer's thread is writing, which may take as long as the disk needs.
    pub(super) thread_writes: AtomicBool,
    /// Closed: the writer's thread takes the batches once more, and then ends.
    closed: AtomicBool,
}

impl Small {
    /// Returns the job if the list is full.
    pub(super) fn add(&self, job: Job, bytes: u64) -> Result<(), Job> {
        let mut waiting = self.jobs.lock();
        if waiting.0.len() >= GROUP_BATCHES || waiting.1 + bytes > SMALL_BYTES {
            return Err(job);
        }
        waiting.0.push(job);
        waiting.1 += bytes;
        Ok(())
    }

    pub(super) fn take(&self) -> Vec<Job> {
        std::mem::take(&mut *self.jobs.lock()).0
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// The broker's write-ahead log; the writer takes a group from it at each write.
#[derive(Default)]
pub(super) struct WalSlot {
    // The broker owns the log and the store: a strong reference here would make a cycle.
    pub(super) wal: OnceLock<Weak<Wal>>,
    pub(super) wake: Notify,
}

/// Key spaces of the broker's write-ahead log, and its sync mode.
#[derive(Clone)]
pub(super) struct WalSpaces {
    pub state: Keyspace,
    pub queue: Keyspace,
    pub hook: Keyspace,
    pub sync: WalSync,
}

/// Time at which a message that the broker acknowledges is written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WalSync {
    /// The message is written before the acknowledgement: it survives a power cut.
    #[default]
    Commit,
    /// Within the store's `sync_interval`: a power cut may lose messages acknowledged since the last sync, `kill -9`
    /// none.
    Interval,
    /// The operating system decides when the message is written, usually within 30 s.
    Never,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) syncs: AtomicU64,
}

pub(super) struct Writer {
    pub(super) fields: FieldWriter,
    pub(super) database: Database,
    pub(super) all: Vec<Keyspace>,
    pub(super) meta: Keyspace,
    pub(super) requests: Arc<UpkeepRequests>,
    /// Rounds of upkeep.
    pub(super) rounds: u64,
    pub(super) wal_slot: Arc<WalSlot>,
    pub(super) spaces: WalSpaces,
    pub(super) sync_interval: Duration,
    pub(super) disk: DiskSpace,
    pub(super) unflushed: Unflushed,
    /// Time of the oldest unsynced change.
    pub(super) unsynced_since: Option<Instant>,
    pub(super) failure: Arc<Failure>,
    pub(super) counters: Arc<Counters>,
    pub(super) small: Arc<Small>,
    pub(super) closed: bool,
}

impl Writer {
    pub(super) fn run(
        shared: &Mutex<Self>,
        runtime: &tokio::runtime::Runtime,
        mut inbox: mpsc::Receiver<Job>,
    ) {
        let mut group = Vec::with_capacity(GROUP_BATCHES);
        let mut open = true;
        while open {
            let (wait, wal_slot) = {
                let writer = shared.lock();
                let since = writer.unsynced_since;
                let wait = since.map(|since| writer.sync_interval.saturating_sub(since.elapsed()));
                let lazy = writer.fields.due().map(|due| due.saturating_duration_since(Instant::now()));
                ([wait, lazy].into_iter().flatten().min(), writer.wal_slot.clone())
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
                    () = wal_slot.wake.notified() => false,
                    () = due => false,
                }
            });
            // Batches that have arrived meanwhile join the group.
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
            // Small batches have waited longer than the new jobs.
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
            let requests = writer.requests.clone();
            let may_flush = writer.disk.can_flush_all(0);
            drop(writer);
            if open && may_flush {
                unflushed.settle(|| failure.happened.is_cancelled() || requests.is_stopped());
            }
        }
    }

    /// Does the same as [`write`](Self::write), but catches panics.
    pub(super) fn write_guarded(&mut self, jobs: Vec<Job>, with_wal: bool) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.write(jobs.into_iter(), with_wal))) {
            Ok(open) => open,
            // The callers learn of the panic from their dropped channels, the broker from a group that is never stored.
            Err(_) => {
                self.fail(StoreFailure::Panicked);
                if let Some(wal) = self.wal_slot.wal.get().and_then(Weak::upgrade) {
                    wal.fail();
                }
                true
            }
        }
    }

    /// Writes a group, together with the broker's write-ahead log if `with_wal`; false if the group contained the order
    /// to close.
    fn write(&mut self, group: impl Iterator<Item = Job>, with_wal: bool) -> bool {
        let (mut writes, mut fresh) = (Vec::new(), Vec::new());
        let mut answers = Vec::new();
        // Released once the bytes are written, before the callers learn of it.
        let mut charges = Vec::new();
        let mut durability = Durability::Written;
        let mut open = true;
        for job in group {
            let (mut batch, wanted, answer) = match job {
                Job::Close => {
                    open = false;
                    continue;
                }
                Job::Commit(batch, wanted, answer) => (batch, wanted, answer),
            };
            let failure = self.failure.reason.lock().clone();
            let mut charged = std::mem::take(&mut batch.charges);
            let room = match (failure, batch.longest_key_bytes()) {
                (Some(failure), _) => Err(failure.into()),
                (None, bytes @ MAX_KEY_BYTES..) => Err(CommitError::KeyTooLong { bytes }),
                (None, _) => self.admit(&batch),
            };
            // Fields of a batch with other writes cannot wait for a lazy flush.
            let lazy = wanted == Durability::Written && batch.writes.is_empty();
            match room.and_then(|()| self.fields.apply(batch.fields, batch.depth, lazy)) {
                Ok(needed) => {
                    let is_deletion = |write: &&Write| matches!(write, Write::Delete(..));
                    self.disk.deleted(batch.writes.iter().filter(is_deletion).count() as u64);
                    writes.extend(batch.writes);
                    durability = durability.max(wanted).max(needed);
                    charges.append(&mut charged);
                    answers.push(answer);
                }
                Err(error) => {
                    drop(charged);
                    let _ = answer.send(Err(error));
                }
            }
        }
        self.fields.record_share_requests();
        let taken = if with_wal { self.take_wal(&mut writes, &mut fresh, open) } else { None };
        if let Some(taken) = &taken
            && taken.awaited
            && self.spaces.sync == WalSync::Commit
        {
            durability = Durability::Synced;
        }
        // An earlier batch may have been rolled back by now, but a requested sync is done.
        let now = Instant::now();
        let all_fields = self.finds_room_for_fields(open, now) && !open;
        let has_writes = !writes.is_empty() || !fresh.is_empty() || !open || self.fields.has_writes(now);
        let outcome = match has_writes || durability == Durability::Synced {
            true => self.commit(fresh, writes, all_fields, now, durability),
            false => Ok(()),
        };
        match &outcome {
            Ok(()) => self.fields.committed(now),
            Err(_) => self.fields.abandon(),
        }
        self.disk.written();
        self.disk.owes(self.fields.unwritten_bytes());
        if let (Some(wal), Some(taken)) = (self.wal_slot.wal.get().and_then(Weak::upgrade), &taken) {
            wal.committed(taken, outcome.is_ok());
        }
        let never = answers.is_empty() && self.spaces.sync == WalSync::Never;
        match (&outcome, durability) {
            (Err(failure), _) => self.fail(failure.clone()),
            (Ok(()), Durability::Synced) => self.unsynced_since = None,
            (Ok(()), Durability::Written) if never || !has_writes => {}
            (Ok(()), Durability::Written) => {
                self.unsynced_since.get_or_insert_with(Instant::now);
            }
        }
        drop(charges);
        for answer in answers {
            let _ = answer.send(outcome.clone().map_err(CommitError::Failed));
        }
        open
    }

    /// True if the disk has room for unwritten fields. The room existed when the fields changed, but other programs use
    /// the disk as well. Due fields then stay in memory; they are lost if the node ends.
    fn finds_room_for_fields(&mut self, open: bool, now: Instant) -> bool {
        let wants = self.fields.is_due(now) || !open && self.fields.unwritten() > 0;
        if !wants || self.disk.room_after(0).is_some() {
            return true;
        }
        if open {
            self.fields.postpone(now + POSTPONED);
        } else {
            let fields = self.fields.unwritten();
            tracing::error!(fields, "the disk is full: changes of objects of durability `memory` are lost");
            self.fields.postpone(now + Duration::from_secs(3600));
        }
        false
    }

    /// Admits a batch if the disk has room for it, or if it releases space.
    fn admit(&mut self, batch: &Batch) -> Answer {
        let footprint = self.fields.footprint(&batch.fields);
        let bytes = batch.size_bytes() + footprint.rewritten_bytes;
        let Err(mut full) = self.disk.plan(bytes, Purpose::Grow) else { return Ok(()) };
        if let Some(purpose) = self.releases(batch, footprint) {
            match self.disk.plan(bytes, purpose) {
                Ok(()) => return Ok(()),
                Err(error) => full = error,
            }
        }
        self.disk.refused();
        Err(full)
    }

    /// Purpose of a batch that removes at least as many bytes as it adds. Reads the entries that the batch replaces, so
    /// it is called only on a full disk.
    fn releases(&self, batch: &Batch, fields: Footprint) -> Option<Purpose> {
        let stored_bytes = |space: &Keyspace, key: &[u8]| -> u64 {
            space.size_of(key).ok().flatten().map_or(0, |value| key.len() as u64 + u64::from(value))
        };
        let (mut added, mut removed) = (fields.rewritten_bytes, fields.replaced_bytes);
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

    /// Measures the free space, which other programs use as well, and checks the engine, whose own threads may have
    /// failed.
    pub(super) fn watch_disk(&mut self) {
        if let Err(error) = self.database.persist(PersistMode::Buffer)
            && !self.failure.happened.is_cancelled()
        {
            self.fail(StoreFailure::write(&error));
        }
        match self.wal_slot.wal.get().and_then(Weak::upgrade) {
            Some(wal) => drop(self.offer_room(&wal)),
            None => drop(self.disk.room_bytes()),
        }
    }

    /// Tells the broker how many more bytes it may store; `None` if the disk has no room for the waiting ones.
    fn offer_room(&mut self, wal: &Wal) -> Option<u64> {
        if wal.takes_refusal() {
            self.requests.reclaim();
        }
        let room = self.disk.room_after(wal.waiting_bytes() as u64);
        wal.set_stalled(room.is_none());
        wal.set_room(room.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)));
        room
    }

    /// Adds a group of the broker's write-ahead log to `writes`. The group is not refused for want of space, since the
    /// broker knows its remaining room; if the disk has no room even for the current group, the group waits. Entries
    /// under new keys go to `fresh`.
    fn take_wal(
        &mut self,
        writes: &mut Vec<Write>,
        fresh: &mut Vec<Write>,
        open: bool,
    ) -> Option<WalGroup> {
        let wal = self.wal_slot.wal.get()?.upgrade()?;
        let room = self.offer_room(&wal);
        if open && room.is_none() {
            return None;
        }
        let mut group = wal.take();
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

    /// Writes `writes`, and the due fields, or all changed fields. `fresh` contains the entries under new keys.
    fn commit(
        &mut self,
        mut fresh: Vec<Write>,
        writes: Vec<Write>,
        all_fields: bool,
        now: Instant,
        durability: Durability,
    ) -> Result<(), StoreFailure> {
        let mode = match durability {
            Durability::Written => PersistMode::Buffer,
            Durability::Synced => PersistMode::SyncData,
        };
        let failed = |error: fjall::Error| StoreFailure::write(&error);
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

    /// Writes all parts but the last of a group that is too large for one write; false if the group is small enough.
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

    /// Database and key spaces, for upkeep; `None` once the store has failed or is closed.
    pub(super) fn engine(&self) -> Option<(Database, Vec<Keyspace>)> {
        let works = !self.closed && !self.failure.happened.is_cancelled();
        works.then(|| (self.database.clone(), self.all.clone()))
    }

    pub(super) fn disk(&mut self) -> &mut DiskSpace {
        &mut self.disk
    }

    /// Number of groups written since the start.
    pub(super) fn commits(&self) -> u64 {
        self.counters.commits.load(Ordering::Relaxed)
    }

    /// Wakes the writer's thread to write the broker's write-ahead log.
    pub(super) fn wake_broker(&self) {
        self.wal_slot.wake.notify_one();
    }

    /// Writes a small entry, so that a memtable is not empty.
    pub(super) fn mark(&mut self) {
        self.rounds += 1;
        let mut batch = self.database.batch().durability(Some(PersistMode::Buffer));
        batch.insert(&self.meta, UPKEEP_KEY, self.rounds.to_le_bytes());
        if let Err(error) = batch.commit() {
            self.fail(StoreFailure::write(&error));
        }
    }

    /// Rotates the engine's journal; false if the engine did not.
    pub(super) fn rotate_journal(&mut self, folder: &Path) -> std::io::Result<bool> {
        self.mark();
        // A failed rotation is tried again after the same number of written bytes.
        self.disk.journal_rotated();
        rotate::rotate(folder, || self.meta.rotate_memtable().unwrap_or(false))
    }

    fn sync(&mut self) {
        self.requests.check_manifest();
        match self.database.persist(PersistMode::SyncData) {
            Ok(()) => drop(self.counters.syncs.fetch_add(1, Ordering::Relaxed)),
            Err(error) => self.fail(StoreFailure::Sync { cause: error.to_string().into() }),
        }
        self.unsynced_since = None;
    }

    /// Ends all writing after a failure, as the engine accepts no further writes: the node ends, and its supervisor
    /// restarts it.
    fn fail(&self, failure: StoreFailure) {
        {
            let mut known = self.failure.reason.lock();
            if known.is_none() {
                tracing::error!(reason = %failure, "the store failed");
                *known = Some(failure);
            }
        }
        self.failure.happened.cancel();
    }
}
