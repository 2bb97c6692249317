//! Background work on the store: it rotates the engine's journal on small disks, reclaims the space of dead data on a
//! full disk, and updates the manifest.
//!
//! A pass first flushes all memtables, so the engine can remove all files of its journal but a new one. Then it
//! compacts key spaces with dead data, the smallest first, each if the disk has room for its live data. Then it
//! releases old versions of the key spaces with their tables. Each step measures the free space first: a flush that
//! finds the disk full would stop the engine. While another program fills the disk, what is free now is gone in the next
//! moment: on a tight disk each step leaves room for what others would take until it ends, at the rate of the moment before.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace};
use parking_lot::Mutex;

use super::dead_data::{self, Size, WORTH_BYTES};
use super::manifest_writer::{ManifestWriter, Moment};
use super::upkeep_requests::UpkeepRequests;
use super::writer::Writer;

/// Interval of measuring the free space, which other programs use as well.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two passes for a refused write if few entries were deleted, and the first wait for the next
/// pass on a disk with little room. The wait doubles up to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// Wait after a pass that left dead data. It doubles after each such pass, until a pass gains space or leaves none.
const SOON: Duration = Duration::from_millis(500);
/// Maximum of that wait: a compaction rewrites all live data, so useless ones must be rare.
const MAX_SOON: Duration = Duration::from_secs(600);
/// Maximum wait for the engine's own work, which usually takes less.
const IDLE_PATIENCE: Duration = Duration::from_secs(3);
/// The key space whose memtable is sealed to make the engine remove replaced tables. It has no large values.
const META: &str = "meta";
/// Maximum wait for a flush of all memtables; a longer one means that the disk hangs.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);
/// Time in which the rate of other programs is measured before a step on a tight disk.
const MEASURED: Duration = Duration::from_millis(100);
/// A step takes at most 20 times as long, 2 s.
const STEP_SHARE: u64 = 20;
const POLL: Duration = Duration::from_millis(5);
/// Number of deleted entries that justifies a pass, immediately if the disk is full.
const MANY_DELETED: u64 = 100;
/// Minimum interval between two passes for deleted entries while the disk has little room. It doubles after each pass
/// that gained no space, since a pass reads live data.
const CALM: Duration = Duration::from_secs(5);
const MAX_CALM: Duration = FEW_DELETED_INTERVAL;
/// Interval after which fewer deleted entries justify a pass.
const FEW_DELETED_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the requested work until the store closes.
fn run(
    writer: &Weak<Mutex<Writer>>,
    requests: &UpkeepRequests,
    signalled: &Receiver<()>,
    (folder, manifest_writer): (PathBuf, Arc<ManifestWriter>),
) {
    let mut upkeep = Upkeep::new(folder);
    let mut due: Option<Instant> = None;
    loop {
        let wait = due.map_or(WATCH_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
        let received = signalled.recv_timeout(wait.min(WATCH_INTERVAL));
        if received == Err(RecvTimeoutError::Disconnected) || requests.is_stopped() {
            return;
        }
        let Some(writer) = writer.upgrade() else { return };
        writer.lock().watch_disk();
        let rotates = requests.take_rotate();
        let is_requested = requests.take_reclaim();
        // Each round checks the manifest anyway.
        let _ = requests.take_manifest_check();
        let Some(pass) = Pass::new(&writer, requests) else { continue };
        let reclaims = is_requested || due.map_or(pass.needs_early_reclaim(), |due| due <= Instant::now());
        if reclaims {
            due = upkeep.reclaim(&pass, is_requested).map(|wait| Instant::now() + wait);
        } else if rotates {
            pass.rotate_and_flush(&upkeep.folder, false);
        }
        upkeep.release_old_tables(&pass);
        if pass.is_idle() && manifest_writer.is_stale() {
            manifest_writer.write(&pass.spaces, Moment::Running);
        }
        if is_requested || (reclaims && due.is_some()) {
            // Every refused write requests a pass; the pause bounds their rate.
            pause(requests, RETRY / 4);
        }
    }
}

fn pause(requests: &UpkeepRequests, duration: Duration) {
    let until = Instant::now() + duration;
    while Instant::now() < until && !requests.is_stopped() {
        std::thread::sleep(POLL);
    }
}

struct Upkeep {
    folder: PathBuf,
    retry: Duration,
    soon: Duration,
    calm: Duration,
    last: Option<LastPass>,
    /// Compactions of the engine at the last removal of replaced tables.
    compactions: usize,
    /// Compactions of the engine at the last count of replaced tables.
    counted: usize,
}

#[derive(Clone, Copy)]
struct LastPass {
    ended: Instant,
    /// Number of committed groups at its beginning.
    commits: u64,
    /// Bytes that a compaction may use at its end.
    room_bytes: u64,
    left: Left,
}

/// Dead data that a pass left.
#[derive(Clone, Copy)]
enum Left {
    Nothing,
    Something { again_at: Instant },
}

impl Upkeep {
    fn new(folder: PathBuf) -> Self {
        Self { folder, retry: RETRY, soon: SOON, calm: CALM, last: None, compactions: 0, counted: 0 }
    }

    /// Runs a pass if one is due; returns the time until the next one. `is_requested`: a write was refused.
    fn reclaim(&mut self, pass: &Pass<'_>, is_requested: bool) -> Option<Duration> {
        let is_full = pass.remeasure();
        let before_bytes = pass.compaction_room_bytes();
        if !self.is_due(pass, is_full || is_requested, before_bytes) {
            return self.wait(pass, is_full);
        }
        if !pass.can_flush_all_beside_others() {
            self.last = None;
            return Some(RETRY);
        }
        // Entries deleted during the pass are left to the next one.
        let commits = pass.commits();
        pass.forget_deleted();
        let mut is_whole = pass.rotate_and_flush(&self.folder, true);
        let compacted = pass.compact();
        is_whole &= compacted.is_whole;
        if !compacted.spaces.is_empty() {
            // The engine removes tables with the last version that lists them, at the next flush.
            is_whole &= pass.rotate_and_flush(&self.folder, false);
        }
        is_whole = is_whole && !pass.is_kept(&compacted.spaces);
        pass.reclaimed();
        let is_full = pass.remeasure();
        let room_bytes = pass.compaction_room_bytes();
        let gained_bytes = room_bytes.saturating_sub(before_bytes);
        let compacted = compacted.spaces.len();
        tracing::debug!(is_full, is_whole, compacted, gained_bytes, "space was reclaimed");
        if is_whole || gained_bytes >= WORTH_BYTES {
            (self.retry, self.soon) = (RETRY, SOON);
        }
        self.calm = if gained_bytes >= WORTH_BYTES { CALM } else { (self.calm * 2).min(MAX_CALM) };
        let ended = Instant::now();
        let left = if is_whole {
            Left::Nothing
        } else {
            // A refused write is not blocked for ten minutes.
            let again_at = ended + if is_full { self.soon.min(MAX_RETRY) } else { self.soon };
            self.soon = (self.soon * 2).min(MAX_SOON);
            Left::Something { again_at }
        };
        self.last = Some(LastPass { ended, commits, room_bytes, left });
        self.wait(pass, is_full)
    }

    /// `is_wanted`: the disk is full, or a write was refused.
    fn is_due(&self, pass: &Pass<'_>, is_wanted: bool, room_bytes: u64) -> bool {
        let Some(last) = self.last else { return true };
        // Without new writes no new dead data exists, but other programs may have released space.
        let is_other = last.commits != pass.commits() || room_bytes >= last.room_bytes + WORTH_BYTES;
        let since = last.ended.elapsed();
        let is_again = match last.left {
            Left::Nothing => false,
            // The wait may have become long while the disk had room. A refused write shortens it.
            Left::Something { again_at } => again_at <= Instant::now() || (is_wanted && since >= MAX_RETRY),
        };
        let is_time = match pass.deleted() {
            MANY_DELETED.. => is_wanted || since >= self.calm,
            few => (is_wanted && since >= RETRY) || (few > 0 && since >= FEW_DELETED_INTERVAL),
        };
        is_again || (is_other && is_time)
    }

    /// Time until the next possible work.
    fn wait(&mut self, pass: &Pass<'_>, is_full: bool) -> Option<Duration> {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let again = self.last.and_then(|last| match last.left {
            Left::Something { again_at } => Some(until(again_at)),
            Left::Nothing => None,
        });
        if !is_full && !pass.is_tight() {
            return again;
        }
        // Entries deleted during the pass are worth another one now.
        let deleted = if is_full && pass.deleted() >= MANY_DELETED { SOON } else { self.next_retry() };
        Some(again.map_or(deleted, |again| again.min(deleted)))
    }

    /// Makes the engine remove replaced tables if the disk has little room, or if they take a significant part of it: a
    /// fast writer could fill the disk before the next measurement, a second later.
    fn release_old_tables(&mut self, pass: &Pass<'_>) {
        let compactions = pass.database.compactions_completed();
        if compactions == self.compactions || !pass.is_idle() || !pass.can_flush(0) {
            return;
        }
        // The space of replaced tables is counted once per compaction.
        let is_new = std::mem::replace(&mut self.counted, compactions) != compactions;
        let is_significant =
            || is_new && dead_data::replaced_bytes(&pass.spaces) >= pass.significant_bytes();
        if (pass.is_tight() || is_significant()) && pass.can_flush_beside_others() {
            pass.release_old_tables();
            // The next compaction, which this flush may start, causes no removal of its own.
            self.compactions = compactions + 1;
        }
    }

    fn next_retry(&mut self) -> Duration {
        let retry = self.retry;
        self.retry = (retry * 2).min(MAX_RETRY);
        retry
    }
}

/// One round of upkeep.
struct Pass<'a> {
    writer: &'a Arc<Mutex<Writer>>,
    requests: &'a UpkeepRequests,
    database: Database,
    spaces: Vec<Keyspace>,
}

impl<'a> Pass<'a> {
    /// `None` if the store has failed or is closed.
    fn new(writer: &'a Arc<Mutex<Writer>>, requests: &'a UpkeepRequests) -> Option<Self> {
        let guard = writer.lock();
        let (database, spaces) = guard.engine()?;
        drop(guard);
        Some(Self { writer, requests, database, spaces })
    }

    fn commits(&self) -> u64 {
        self.writer.lock().commits()
    }

    fn can_flush(&self, taken_bytes: u64) -> bool {
        self.writer.lock().disk().can_flush(taken_bytes)
    }

    fn can_flush_all(&self, taken_bytes: u64) -> bool {
        self.writer.lock().disk().can_flush_all(taken_bytes)
    }

    fn can_flush_beside_others(&self) -> bool {
        self.can_flush(0) && self.can_flush(self.soon_taken_bytes())
    }

    fn can_flush_all_beside_others(&self) -> bool {
        self.can_flush_all(0) && self.can_flush_all(self.soon_taken_bytes())
    }

    fn compaction_room_bytes(&self) -> u64 {
        self.writer.lock().disk().compaction_room_bytes()
    }

    fn remeasure(&self) -> bool {
        let mut writer = self.writer.lock();
        let is_full = writer.disk().remeasure();
        // Waiting changes of the broker may fit now.
        writer.wake_broker();
        is_full
    }

    fn is_tight(&self) -> bool {
        self.writer.lock().disk().is_tight()
    }

    fn significant_bytes(&self) -> u64 {
        self.writer.lock().disk().significant_bytes()
    }

    /// True if space has to be reclaimed before the disk is full.
    fn needs_early_reclaim(&self) -> bool {
        self.deleted() > 0 && self.is_tight()
    }

    fn deleted(&self) -> u64 {
        self.writer.lock().disk().deleted_entries()
    }

    fn forget_deleted(&self) {
        self.writer.lock().disk().forget_deleted();
    }

    fn reclaimed(&self) {
        self.writer.lock().disk().state().reclaimed();
    }

    /// Rotates the engine's journal and flushes all memtables, so that the engine removes the old files of its journal.
    /// With `always` it rotates also a short journal. False if there was no room for the flush, or the engine did not finish
    /// in time.
    fn rotate_and_flush(&self, folder: &std::path::Path, always: bool) -> bool {
        if !self.can_flush_all(0)
            || !self.wait(|| self.is_idle(), IDLE_PATIENCE)
            || !self.can_flush_all_beside_others()
        {
            return false;
        }
        let mut is_done = true;
        let mut writer = self.writer.lock();
        if always || writer.disk().is_journal_long() {
            match writer.rotate_journal(folder) {
                Ok(true) => {}
                Ok(false) => {
                    is_done = false;
                    tracing::debug!("the journal could not be rotated now");
                }
                // A failure is not a reason for another pass: the cause remains.
                Err(error) => tracing::warn!(%error, "the store's journal cannot be shortened"),
            }
        } else {
            writer.mark();
        }
        drop(writer);
        for space in &self.spaces {
            if let Err(error) = space.rotate_memtable() {
                tracing::warn!(%error, space = &**space.name(), "a memtable could not be sealed");
            }
        }
        let flushed = || self.spaces.iter().all(|space| space.sealed_memtable_count() == 0);
        self.wait(flushed, FLUSH_PATIENCE) && is_done
    }

    /// Seals a memtable: then the engine removes the replaced tables of all key spaces.
    fn release_old_tables(&self) {
        let Some(meta) = self.spaces.iter().find(|space| **space.name() == *META) else { return };
        self.writer.lock().mark();
        if let Err(error) = meta.rotate_memtable() {
            tracing::warn!(%error, "a memtable could not be sealed");
        }
    }

    /// Bytes that other programs take until a step ends, as they did before it. 0 while the disk has much room.
    fn soon_taken_bytes(&self) -> u64 {
        if !self.is_tight() {
            return 0;
        }
        let Some(before) = self.writer.lock().disk().sample() else { return 0 };
        pause(self.requests, MEASURED);
        let taken_bytes = self.writer.lock().disk().taken_since(before);
        if taken_bytes > 0 {
            tracing::debug!(taken_bytes, "other programs take space beside the store's upkeep");
        }
        taken_bytes.saturating_mul(STEP_SHARE)
    }

    fn is_idle(&self) -> bool {
        self.database.active_compactions() == 0 && self.database.outstanding_flushes() == 0
    }

    /// False after a timeout, or once the node stops or the store fails.
    fn wait(&self, is_done: impl Fn() -> bool, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while !is_done() {
            let is_lost = self.writer.try_lock().is_some_and(|writer| writer.engine().is_none());
            if self.requests.is_stopped() || is_lost || Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// Compacts key spaces with dead data, if the disk has room.
    fn compact(&self) -> Compacted {
        let mut compacted = Compacted { spaces: Vec::new(), is_whole: true };
        for space in dead_data::candidates(&self.spaces) {
            let size = Size::of(&space);
            if !size.is_worth_it() {
                continue;
            }
            // Measuring takes time: the engine may have started a compaction that uses the same room.
            if self.requests.is_stopped() || !self.wait(|| self.is_idle(), IDLE_PATIENCE) {
                compacted.is_whole = false;
                break;
            }
            let taken = self.soon_taken_bytes();
            let (needed, room) =
                (size.compaction_bytes().saturating_add(taken), self.compaction_room_bytes());
            if needed > room {
                tracing::debug!(space = &**space.name(), needed, room, "no room for a compaction");
                compacted.is_whole = false;
                continue;
            }
            // The compaction runs on this thread, so its error does not stop the engine.
            match space.major_compact() {
                Ok(()) => compacted.spaces.push(space),
                Err(error) => {
                    tracing::warn!(%error, space = &**space.name(), "a compaction failed");
                    compacted.is_whole = false;
                }
            }
        }
        compacted
    }

    /// True if much replaced or dead data is still on the disk, since a snapshot that was open during the compactions needs
    /// it.
    fn is_kept(&self, compacted: &[Keyspace]) -> bool {
        dead_data::replaced_bytes(&self.spaces) >= WORTH_BYTES
            || compacted.iter().any(|space| Size::of(space).is_left())
    }
}

/// Result of the compactions.
struct Compacted {
    spaces: Vec<Keyspace>,
    /// True if no key space with dead data was skipped.
    is_whole: bool,
}

/// Starts the upkeep thread.
pub(super) fn start(
    writer: &Arc<Mutex<Writer>>,
    requests: Arc<UpkeepRequests>,
    signalled: Receiver<()>,
    store: (PathBuf, Arc<ManifestWriter>),
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let writer = Arc::downgrade(writer);
    let work = move || run(&writer, &requests, &signalled, store);
    std::thread::Builder::new().name("store-upkeep".into()).spawn(work)
}
