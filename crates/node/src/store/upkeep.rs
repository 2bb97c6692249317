//! Background work on the store: it keeps the journal short on small disks, reclaims the space of dead data when the disk
//! is full, and keeps the manifest up to date.
//!
//! Reclaiming goes in this order. Everything in memory is flushed, so that all journals but a new one are dead and the
//! engine removes them. Then key spaces with dead data are compacted, the smallest first, each if there is room for its
//! live data. Then old versions of the key spaces are released, and their tables with them. Every step looks at the free
//! space first: a flush that finds the disk full would stop the engine.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace};
use parking_lot::Mutex;

use super::chores::Chores;
use super::keeper::{Keeper, Moment};
use super::writer::Writer;

/// Between two looks at the free space, which other programs use as well.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Between two passes while the disk stays full.
const RETRY: Duration = Duration::from_secs(2);
/// After a pass that left something to do.
const SOON: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// The engine's own work takes less mostly.
const IDLE_PATIENCE: Duration = Duration::from_secs(3);
/// The key space that has no large values.
const META: &str = "meta";
/// A flush of everything takes less, or the disk is stuck.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// Less dead data is not worth a compaction, except where it is a quarter of the key space.
const WORTH_BYTES: u64 = 1 << 20;
const SMALL_BYTES: u64 = 64 << 10;
/// While there is little room, so many deleted entries are looked at again.
const MANY_DELETED: u64 = 100;
/// After so many passes in a row that could not do all, what they did counts as all.
const MANY_PARTIAL: u32 = 3;
/// Larger key spaces are not read to learn how much of them is live.
const MAX_MEASURED_BYTES: u64 = 256 << 20;

/// Does the chores until it is stopped.
fn run(
    writer: &Weak<Mutex<Writer>>,
    chores: &Chores,
    signalled: &Receiver<()>,
    (folder, keeper): (PathBuf, Arc<Keeper>),
) {
    let mut upkeep = Upkeep { folder, retry: RETRY, whole: None, partial: 0, compactions: 0 };
    let mut due: Option<Instant> = None;
    loop {
        let wait = due.map_or(WATCH_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
        let received = signalled.recv_timeout(wait.min(WATCH_INTERVAL));
        if received == Err(RecvTimeoutError::Disconnected) || chores.is_stopped() {
            return;
        }
        let Some(writer) = writer.upgrade() else { return };
        writer.lock().watch_disk();
        let rotates = chores.takes_rotate();
        let is_asked = chores.takes_reclaim();
        let reclaims = is_asked || due.is_some_and(|due| due <= Instant::now());
        // Each round looks at the manifest.
        let _ = chores.takes_survey();
        let Some(pass) = Pass::new(&writer, chores) else { continue };
        if reclaims {
            due = upkeep.reclaim(&pass, is_asked).map(|wait| Instant::now() + wait);
        } else if rotates {
            pass.empty_journals(&upkeep.folder, false);
        }
        upkeep.release_old_tables(&pass);
        if pass.is_idle() && keeper.is_stale() {
            keeper.write(&pass.spaces, Moment::Running);
        }
        if reclaims && due.is_some() {
            // Refusals keep asking; the passes keep their distance.
            pause(chores, RETRY / 4);
        }
    }
}

fn pause(chores: &Chores, duration: Duration) {
    let until = Instant::now() + duration;
    while Instant::now() < until && !chores.is_stopped() {
        std::thread::sleep(POLL);
    }
}

struct Upkeep {
    folder: PathBuf,
    retry: Duration,
    /// The last pass, if nothing was left for another.
    whole: Option<WholePass>,
    /// Passes since then that could not do all.
    partial: u32,
    /// The engine's own, when replaced tables were last removed.
    compactions: usize,
}

/// A pass that removed all that was dead when it began.
#[derive(Clone, Copy)]
struct WholePass {
    /// Groups that were written by then.
    commits: u64,
    /// Room that it left.
    room_bytes: u64,
}

impl Upkeep {
    /// Gives the time until the next pass, if there has to be one. `is_asked`: a write was refused.
    fn reclaim(&mut self, pass: &Pass<'_>, is_asked: bool) -> Option<Duration> {
        let is_full = pass.look_again();
        let before_bytes = pass.compaction_room_bytes();
        // Nothing can have died where nothing was written; but others may have made room on the disk.
        let is_same = |whole: WholePass| {
            whole.commits == pass.commits() && before_bytes < whole.room_bytes + WORTH_BYTES
        };
        let is_due = is_full || is_asked || self.whole.is_none() || pass.deleted() >= MANY_DELETED;
        if self.whole.is_some_and(is_same) || !is_due {
            if is_full && pass.is_idle() {
                pass.reclaimed_all();
            }
            return (is_full || pass.is_tight()).then(|| self.next_retry());
        }
        self.whole = None;
        if !pass.can_flush() {
            return is_full.then_some(RETRY);
        }
        // What is deleted while the pass goes on is for the next one.
        let commits = pass.commits();
        pass.forget_deleted();
        let mut is_whole = pass.empty_journals(&self.folder, true);
        let compacted = pass.compact();
        if compacted {
            // Tables are removed with the last version that has them, at the next flush.
            is_whole &= pass.empty_journals(&self.folder, false);
        }
        self.partial = if is_whole { 0 } else { self.partial + 1 };
        if is_whole {
            self.whole = Some(WholePass { commits, room_bytes: pass.compaction_room_bytes() });
        }
        if is_whole || self.partial >= MANY_PARTIAL {
            pass.reclaimed_all();
        }
        pass.reclaimed();
        let is_full = pass.look_again();
        let gained_bytes = pass.compaction_room_bytes().saturating_sub(before_bytes);
        tracing::debug!(is_full, is_whole, compacted, gained_bytes, "space was reclaimed");
        if gained_bytes >= WORTH_BYTES {
            self.retry = RETRY;
        }
        // What it could not do, or what was deleted meanwhile, is there to be done now.
        if !is_whole || pass.deleted() >= MANY_DELETED {
            self.retry = RETRY;
            return (is_full || pass.is_tight() || !is_whole).then_some(SOON);
        }
        // More may be deleted while there is little room.
        (is_full || pass.is_tight()).then(|| self.next_retry())
    }

    /// Has the engine remove the tables that its compactions have replaced, where their room is missed.
    fn release_old_tables(&mut self, pass: &Pass<'_>) {
        let compactions = pass.database.compactions_completed();
        if compactions != self.compactions && pass.is_idle() && pass.is_tight() && pass.can_flush() {
            pass.release_old_tables();
            // The flush is followed by a look for something to compact, which counts.
            self.compactions = compactions + 1;
        }
    }

    fn next_retry(&mut self) -> Duration {
        let retry = self.retry;
        self.retry = (retry * 2).min(MAX_RETRY);
        retry
    }
}

/// One look at the store.
struct Pass<'a> {
    writer: &'a Arc<Mutex<Writer>>,
    chores: &'a Chores,
    database: Database,
    spaces: Vec<Keyspace>,
}

impl<'a> Pass<'a> {
    /// `None` if the store has failed or is closed.
    fn new(writer: &'a Arc<Mutex<Writer>>, chores: &'a Chores) -> Option<Self> {
        let guard = writer.lock();
        let (database, spaces) = guard.engine()?;
        drop(guard);
        Some(Self { writer, chores, database, spaces })
    }

    fn commits(&self) -> u64 {
        self.writer.lock().commits()
    }

    fn can_flush(&self) -> bool {
        self.writer.lock().disk().can_flush()
    }

    fn compaction_room_bytes(&self) -> u64 {
        self.writer.lock().disk().compaction_room_bytes()
    }

    fn look_again(&self) -> bool {
        let mut writer = self.writer.lock();
        let is_full = writer.disk().look_again();
        // What the broker waits to store may fit now.
        writer.wake_broker();
        is_full
    }

    fn is_tight(&self) -> bool {
        self.writer.lock().disk().is_tight()
    }

    fn deleted(&self) -> u64 {
        self.writer.lock().disk().deleted_entries()
    }

    fn forget_deleted(&self) {
        self.writer.lock().disk().forget_deleted();
    }

    fn reclaimed_all(&self) {
        self.writer.lock().disk().reclaimed_all();
    }

    fn reclaimed(&self) {
        self.writer.lock().disk().state().reclaimed();
    }

    /// Begins a new journal and flushes all memtables, so that the engine removes the old journals. `always`: even if
    /// the journal is short. False if that could not be done now.
    fn empty_journals(&self, folder: &std::path::Path, always: bool) -> bool {
        if !self.can_flush() || !self.wait(|| self.is_idle(), IDLE_PATIENCE) {
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
                // It is not tried again at once: what is wrong with it stays so.
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

    /// The engine removes them for all key spaces when it seals a memtable of any.
    fn release_old_tables(&self) {
        let Some(meta) = self.spaces.iter().find(|space| **space.name() == *META) else { return };
        self.writer.lock().mark();
        if let Err(error) = meta.rotate_memtable() {
            tracing::warn!(%error, "a memtable could not be sealed");
        }
    }

    fn is_idle(&self) -> bool {
        self.database.active_compactions() == 0 && self.database.outstanding_flushes() == 0
    }

    /// False if it took too long, or the node stops, or the store failed.
    fn wait(&self, is_done: impl Fn() -> bool, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while !is_done() {
            let is_lost = self.writer.try_lock().is_some_and(|writer| writer.engine().is_none());
            if self.chores.is_stopped() || is_lost || Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// Compacts key spaces with dead data, as far as there is room; true if there was any.
    fn compact(&self) -> bool {
        let mut spaces: Vec<_> =
            self.spaces.iter().filter(|space| space.disk_space() > SMALL_BYTES).collect();
        spaces.sort_by_key(|space| space.disk_space());
        let mut compacted = false;
        for space in spaces {
            let size = Size::of(space);
            if !size.is_worth_it() {
                continue;
            }
            // Measuring takes long: meanwhile the engine may have begun one, whose room is not there for another.
            if self.chores.is_stopped() || !self.wait(|| self.is_idle(), IDLE_PATIENCE) {
                break;
            }
            let (needed, room) = (size.compaction_bytes(), self.compaction_room_bytes());
            if needed > room {
                tracing::debug!(space = &**space.name(), needed, room, "no room for a compaction");
                continue;
            }
            // It runs on this thread: an error is not the engine's.
            match space.major_compact() {
                Ok(()) => compacted = true,
                Err(error) => tracing::warn!(%error, space = &**space.name(), "a compaction failed"),
            }
        }
        compacted
    }
}

/// How much of a key space's tables is dead.
struct Size {
    disk_bytes: u64,
    /// If it was measured: uncompressed.
    live_bytes: Option<u64>,
    /// By the number of tombstones.
    deleted_bytes: u64,
}

impl Size {
    fn of(space: &Keyspace) -> Self {
        let disk_bytes = space.disk_space();
        let entries = (space.tree.approximate_len() as u64).max(1);
        let deleted_bytes = space.tree.tombstone_count().saturating_mul(disk_bytes / entries);
        let live = || -> fjall::Result<u64> {
            let mut bytes = 0;
            for entry in space.iter() {
                let (key, value) = entry.into_inner()?;
                bytes += (key.len() + value.len()) as u64;
            }
            Ok(bytes)
        };
        let live_bytes = if disk_bytes <= MAX_MEASURED_BYTES { live().ok() } else { None };
        Self { disk_bytes, live_bytes, deleted_bytes }
    }

    fn is_worth_it(&self) -> bool {
        let dead = self.live_bytes.map_or(0, |live| self.disk_bytes.saturating_sub(live + live / 8));
        let dead = dead.max(self.deleted_bytes);
        dead >= WORTH_BYTES || dead >= self.disk_bytes / 4
    }

    /// At most: tables have filters and indexes beside the entries.
    fn compaction_bytes(&self) -> u64 {
        self.live_bytes.map_or(self.disk_bytes, |live| (live + live / 8).min(self.disk_bytes)) + SMALL_BYTES
    }
}

/// Starts the thread.
pub(super) fn start(
    writer: &Arc<Mutex<Writer>>,
    chores: Arc<Chores>,
    signalled: Receiver<()>,
    store: (PathBuf, Arc<Keeper>),
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let writer = Arc::downgrade(writer);
    let work = move || run(&writer, &chores, &signalled, store);
    std::thread::Builder::new().name("store-upkeep".into()).spawn(work)
}
