//! Free space on the store's disk, and which writes it allows.
//!
//! The engine stops permanently when a write, a flush or a compaction finds the disk full. So free space is measured
//! before each write. A write that grows the store must leave room for all pending work of the engine: its journal, the
//! flush of its memory, and possible compactions, which need as much space as they read. A write that releases space
//! needs some space too, and may use the reserve. When the first growing write is refused, [`super::upkeep`] reclaims
//! the space of dead data.
//!
//! Each write measures the free space: other programs may fill the disk between two writes, and a measurement takes a
//! microsecond.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace};

use super::CommitError;
use super::upkeep_requests::UpkeepRequests;

/// The smallest reserve that is accepted.
pub const MIN_RESERVE_BYTES: u64 = 2 << 20;
/// Bounds of the default reserve.
const DEFAULT_RESERVE_BYTES: std::ops::RangeInclusive<u64> = (4 << 20)..=(64 << 20);
/// Fraction of the disk (one in 16) that is the default reserve.
const DEFAULT_RESERVE_SHARE: u64 = 16;
/// Maximum part of the reserve that releasing writes may not use.
const MAX_FLOOR_BYTES: u64 = 16 << 20;
/// Size at which the engine rotates its journal. On a small disk or with little memory the store rotates it earlier.
const ENGINE_JOURNAL_BYTES: u64 = 64_000_000;
const MIN_JOURNAL_BYTES: u64 = 4 << 20;
const JOURNAL_SHARE: u64 = 16;
/// Maximum space that growing writes leave free for compactions, also if all key spaces together are larger.
const MAX_COMPACTION_BYTES: u64 = 1 << 30;
/// Key spaces are measured again after this many written bytes.
const MEASURE_EVERY_BYTES: u64 = 1 << 20;
/// Fraction of the disk (one in 8) that is significant: with less room for growth, deleted data is reclaimed before the
/// disk is full.
const TIGHT_SHARE: u64 = 8;
/// Maximum of that significant size.
const MAX_TIGHT_BYTES: u64 = 64 << 20;
/// Minimum number of free files: a flush and a compaction create several each.
const MIN_FILES: u64 = 64;
/// The disk counts as full once it has no room for a write of this size.
const SMALL_WRITE_BYTES: u64 = 64 << 10;
/// The disk counts as full for this time after it last was: while clients write, each reclaimed byte is taken at once.
const FULL_FOR: Duration = Duration::from_secs(5);
/// Copies of a change for which a growing write needs room: engine's journal, table, and table during a compaction.
const GROWTH_COPIES: u64 = 3;
/// Copies for a releasing write: engine's journal and table.
const RELEASE_COPIES: u64 = 2;

/// Effect of a write on the size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The write may make the store larger.
    Grow,
    /// The write removes at least as many bytes as it adds.
    Replace,
    /// The write removes several times the bytes that it adds.
    Release,
}

/// Free space of the store's disk at the last measurement for growing writes: at a write, or once per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceReading {
    /// True if growing writes are refused, or were a few seconds ago.
    pub is_full: bool,
    /// Free bytes on the file system.
    pub free_bytes: u64,
    /// Free bytes below which growing writes are refused.
    pub needed_bytes: u64,
    /// Writes refused since the start, except the broker's.
    pub refused: u64,
    /// Number of passes that reclaimed space since the start.
    pub reclaims: u64,
}

/// Space figures shared with other threads.
#[derive(Debug, Default)]
pub struct SpaceState {
    full: AtomicBool,
    free_bytes: AtomicU64,
    needed_bytes: AtomicU64,
    refused: AtomicU64,
    reclaims: AtomicU64,
}

impl SpaceState {
    /// Current figures.
    pub fn reading(&self) -> SpaceReading {
        let figure = |value: &AtomicU64| value.load(Ordering::Relaxed);
        SpaceReading {
            is_full: self.full.load(Ordering::Relaxed),
            free_bytes: figure(&self.free_bytes),
            needed_bytes: figure(&self.needed_bytes),
            refused: figure(&self.refused),
            reclaims: figure(&self.reclaims),
        }
    }

    /// Counts a pass that reclaimed space.
    pub fn reclaimed(&self) {
        self.reclaims.fetch_add(1, Ordering::Relaxed);
    }
}

/// Free space at one moment, to learn what other programs take after it.
#[derive(Debug, Clone, Copy)]
pub struct SpaceSample {
    free_bytes: u64,
    /// Bytes that the store had written.
    written_bytes: u64,
}

/// Free space of the file system.
struct Free {
    bytes: u64,
    /// Number of files that can be created.
    files: u64,
}

/// Admission of writes by the free space of one file system. Owned by the writer.
pub struct DiskSpace {
    path: PathBuf,
    total_bytes: u64,
    reserve_bytes: u64,
    journal_budget_bytes: Option<u64>,
    database: Database,
    spaces: Vec<Keyspace>,
    requests: Arc<UpkeepRequests>,
    state: Arc<SpaceState>,
    /// Bytes of accepted writes that are not written yet.
    planned_bytes: u64,
    /// Bytes written since the start.
    written_bytes: u64,
    /// Bytes changed in memory, to be written later.
    owed_bytes: u64,
    /// Bytes written since the last rotation of the engine's journal.
    journal_bytes: u64,
    /// Space for compactions of all key spaces, at most [`MAX_COMPACTION_BYTES`].
    compaction_bytes: u64,
    /// Size of the largest key space, at most [`MAX_COMPACTION_BYTES`].
    largest_bytes: u64,
    /// Bytes that may be written until the key spaces are measured again.
    measure_in_bytes: u64,
    /// Size of the memtables at the last call of [`follow_flushes`](Self::follow_flushes).
    unflushed_bytes: u64,
    /// Entries deleted since the last reset.
    deleted: u64,
    /// The last measurement that found the disk full.
    full_at: Option<Instant>,
}

impl DiskSpace {
    /// Makes the admission for the file system of `path`. `reserve_bytes` stay free; by default a share of its size.
    pub fn new(
        path: &Path,
        reserve_bytes: Option<u64>,
        journal_bytes: u64,
        database: Database,
        spaces: Vec<Keyspace>,
        requests: Arc<UpkeepRequests>,
    ) -> Self {
        let total_bytes = rustix::fs::statvfs(path).map_or(u64::MAX, |stat| stat.f_blocks * stat.f_frsize);
        let mut space = Self {
            path: path.to_owned(),
            total_bytes,
            reserve_bytes: reserve_bytes.unwrap_or(default_reserve_bytes(total_bytes)),
            journal_budget_bytes: journal_budget_bytes(total_bytes, journal_bytes),
            database,
            spaces,
            requests,
            state: Arc::default(),
            planned_bytes: 0,
            written_bytes: 0,
            owed_bytes: 0,
            journal_bytes: 0,
            compaction_bytes: 0,
            largest_bytes: 0,
            measure_in_bytes: 0,
            unflushed_bytes: 0,
            deleted: 0,
            full_at: None,
        };
        space.measure();
        // Sets the figures of the start.
        space.room_bytes();
        space
    }

    /// The size of the file system.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Figures shared with other threads.
    pub fn state(&self) -> &Arc<SpaceState> {
        &self.state
    }

    /// Plans a write of `bytes`.
    ///
    /// # Errors
    /// The disk has no room for the write, the planned writes and the changes in memory. This starts a pass that reclaims
    /// space.
    pub fn plan(&mut self, bytes: u64, purpose: Purpose) -> Result<(), CommitError> {
        self.follow_flushes();
        // If the system does not report the free space, the write is accepted; it fails if the disk is full.
        let Some(Free { bytes: free_bytes, files }) = self.free() else {
            self.accept(bytes);
            return Ok(());
        };
        let needed_bytes = self.needed_bytes(purpose);
        let copies = if purpose == Purpose::Grow { GROWTH_COPIES } else { RELEASE_COPIES };
        let more_bytes = copies.saturating_mul(self.due_bytes().saturating_add(bytes));
        let mut fits = free_bytes >= needed_bytes.saturating_add(more_bytes);
        if purpose == Purpose::Grow {
            // The engine's journal already has its file, so releasing writes continue.
            fits &= files >= MIN_FILES;
            // A refused large write does not stop small ones.
            let has_room = free_bytes >= needed_bytes.saturating_add(GROWTH_COPIES * SMALL_WRITE_BYTES);
            let is_full = !has_room || files < MIN_FILES;
            self.report(is_full, free_bytes, needed_bytes);
        }
        if !fits {
            self.requests.reclaim();
            let needed_bytes = needed_bytes.saturating_add(more_bytes);
            return Err(CommitError::DiskFull { free_bytes, needed_bytes });
        }
        self.accept(bytes);
        Ok(())
    }

    /// Plans a write unconditionally.
    pub fn accept(&mut self, bytes: u64) {
        self.planned_bytes = self.planned_bytes.saturating_add(bytes);
    }

    /// Sets the number of bytes that are changed in memory. They are written later, and every admission counts them.
    pub fn owes(&mut self, bytes: u64) {
        self.owed_bytes = bytes;
    }

    /// Bytes that accepted writes and changes in memory will write.
    fn due_bytes(&self) -> u64 {
        self.planned_bytes.saturating_add(self.owed_bytes)
    }

    /// Counts a refused write.
    pub fn refused(&self) {
        self.state.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes by which the store may grow after a releasing write of `bytes`; 0 if the disk is full. `None` if the disk has
    /// no room even for that write, which then waits.
    pub fn room_after(&mut self, bytes: u64) -> Option<u64> {
        self.follow_flushes();
        let Some(Free { bytes: free_bytes, files }) = self.free() else { return Some(u64::MAX) };
        let bytes = self.due_bytes().saturating_add(bytes);
        let min_bytes = self.needed_bytes(Purpose::Release).saturating_add(RELEASE_COPIES * bytes);
        let needed_bytes = self.needed_bytes(Purpose::Grow);
        let after_bytes = needed_bytes.saturating_add(GROWTH_COPIES * bytes);
        let room_bytes = free_bytes.saturating_sub(after_bytes) / GROWTH_COPIES;
        let is_full = room_bytes < SMALL_WRITE_BYTES || files < MIN_FILES;
        self.report(is_full, free_bytes, needed_bytes);
        (free_bytes >= min_bytes).then_some(if is_full { 0 } else { room_bytes })
    }

    /// Bytes by which the store may grow now.
    pub fn room_bytes(&mut self) -> u64 {
        self.room_after(0).unwrap_or(0)
    }

    /// True if the disk has room to flush all memtables and to compact the new tables, which the engine does by itself
    /// after a flush, beside what other programs take meanwhile. If they have filled the disk, the data stays in memory.
    pub fn can_flush_all(&self, taken_bytes: u64) -> bool {
        let needed_bytes = self.database.write_buffer_size().saturating_add(self.largest_bytes);
        let needed_bytes = needed_bytes.saturating_add(taken_bytes);
        self.can_flush(taken_bytes) && self.free().is_none_or(|free| free.bytes >= needed_bytes)
    }

    /// True if the disk has room to flush the memtables beside what other programs take meanwhile.
    pub fn can_flush(&self, taken_bytes: u64) -> bool {
        let needed_bytes = self.database.write_buffer_size() + self.floor_bytes() / 2;
        let needed_bytes = needed_bytes.saturating_add(taken_bytes);
        self.free().is_none_or(|free| free.bytes >= needed_bytes && free.files >= MIN_FILES / 2)
    }

    /// The free space now; `None` if the system does not report it.
    pub fn sample(&self) -> Option<SpaceSample> {
        Some(SpaceSample { free_bytes: self.free_bytes()?, written_bytes: self.written_bytes })
    }

    /// Bytes that other programs have taken since `before`.
    pub fn taken_since(&self, before: SpaceSample) -> u64 {
        let Some(now) = self.sample() else { return 0 };
        let own_bytes = RELEASE_COPIES * (now.written_bytes - before.written_bytes);
        before.free_bytes.saturating_sub(now.free_bytes).saturating_sub(own_bytes)
    }

    /// Bytes that a compaction may use now.
    pub fn compaction_room_bytes(&self) -> u64 {
        let kept = self.database.write_buffer_size() + self.floor_bytes();
        self.free_bytes().map_or(u64::MAX, |free_bytes| free_bytes.saturating_sub(kept))
    }

    /// Counts the planned bytes as written, also after a failed write. Requests a rotation of the engine's journal if it is
    /// too long.
    pub fn written(&mut self) {
        let bytes = std::mem::take(&mut self.planned_bytes);
        self.journal_bytes += bytes;
        self.written_bytes += bytes;
        self.measure_in_bytes = self.measure_in_bytes.saturating_sub(bytes);
        if self.measure_in_bytes == 0 {
            self.measure();
        }
        if self.is_journal_long() {
            self.requests.rotate();
        }
    }

    /// True if the engine's journal is too long for a disk of this size.
    pub fn is_journal_long(&self) -> bool {
        self.journal_budget_bytes.is_some_and(|budget| self.journal_bytes > budget)
    }

    /// Resets the length of the engine's journal after a rotation.
    pub fn journal_rotated(&mut self) {
        self.journal_bytes = 0;
    }

    /// Counts deleted entries.
    pub fn deleted(&mut self, entries: u64) {
        self.deleted += entries;
    }

    /// Entries deleted since the last reset.
    pub fn deleted_entries(&self) -> u64 {
        self.deleted
    }

    /// Resets the count: the next pass covers all entries deleted so far.
    pub fn forget_deleted(&mut self) {
        self.deleted = 0;
    }

    /// True if the disk has little room for growth.
    pub fn is_tight(&mut self) -> bool {
        self.room_bytes() < self.significant_bytes()
    }

    /// Amount of space that is significant on a disk of this size: an eighth of it, at most 64 MiB.
    pub fn significant_bytes(&self) -> u64 {
        (self.total_bytes / TIGHT_SHARE).min(MAX_TIGHT_BYTES)
    }

    /// Measures key spaces and free space again; true if growing writes are refused.
    pub fn remeasure(&mut self) -> bool {
        self.measure();
        self.room_bytes() == 0
    }

    /// Measures the key spaces again if memtables were flushed since the last call: their bytes are in tables now, which
    /// compactions read.
    fn follow_flushes(&mut self) {
        let unflushed_bytes = self.database.write_buffer_size();
        if unflushed_bytes < self.unflushed_bytes {
            self.measure();
        }
        self.unflushed_bytes = unflushed_bytes;
    }

    fn measure(&mut self) {
        // A sum, since all key spaces may be compacted before the engine removes the tables that the first compaction
        // replaced.
        let sizes: Vec<u64> = self.spaces.iter().map(Keyspace::disk_space).collect();
        self.compaction_bytes = sizes.iter().sum::<u64>().min(MAX_COMPACTION_BYTES);
        self.largest_bytes = sizes.into_iter().max().unwrap_or(0).min(MAX_COMPACTION_BYTES);
        self.measure_in_bytes = MEASURE_EVERY_BYTES;
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.free()?.bytes)
    }

    fn free(&self) -> Option<Free> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some(Free {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            // File systems without a fixed number of files report 0 of 0.
            files: if stat.f_files == 0 { u64::MAX } else { stat.f_favail },
        })
    }

    fn floor_bytes(&self) -> u64 {
        (self.reserve_bytes / 4).min(MAX_FLOOR_BYTES)
    }

    fn needed_bytes(&self, purpose: Purpose) -> u64 {
        let unflushed_bytes = self.database.write_buffer_size();
        // Data that is flushed is compacted later, which needs the same space again.
        let engine_bytes = (2 * unflushed_bytes).saturating_add(self.compaction_bytes);
        match purpose {
            // The write needs as much space now as it releases later.
            Purpose::Replace => self.floor_bytes().saturating_add(engine_bytes),
            // The write needs little space, and without it a compaction has nothing to release.
            Purpose::Release => self.floor_bytes().saturating_add(unflushed_bytes),
            Purpose::Grow => {
                // Growing writes resume only with a margin.
                let again = if self.state.full.load(Ordering::Relaxed) { self.floor_bytes() } else { 0 };
                self.reserve_bytes.saturating_add(engine_bytes).saturating_add(again)
            }
        }
    }

    fn report(&mut self, is_full: bool, free_bytes: u64, needed_bytes: u64) {
        self.state.free_bytes.store(free_bytes, Ordering::Relaxed);
        self.state.needed_bytes.store(needed_bytes, Ordering::Relaxed);
        if is_full {
            self.full_at = Some(Instant::now());
        }
        let counts_as_full = self.full_at.is_some_and(|at| at.elapsed() < FULL_FOR);
        if self.state.full.swap(counts_as_full, Ordering::Relaxed) != counts_as_full {
            match counts_as_full {
                true => tracing::warn!(
                    free_bytes,
                    needed_bytes,
                    "the disk is full: writes that need more space are refused, deletions and deliveries continue, and \
                     the space of deleted data is reclaimed"
                ),
                false => tracing::info!(free_bytes, "the disk has room again: writes are accepted"),
            }
        }
        if is_full {
            self.requests.reclaim();
        }
    }
}

fn default_reserve_bytes(total_bytes: u64) -> u64 {
    let (min, max) = DEFAULT_RESERVE_BYTES.into_inner();
    (total_bytes / DEFAULT_RESERVE_SHARE).clamp(min, max)
}

/// Maximum length of the engine's journal; `None` if the engine's own limit is small enough.
fn journal_budget_bytes(total_bytes: u64, journal_bytes: u64) -> Option<u64> {
    let budget = (total_bytes / JOURNAL_SHARE).min(journal_bytes).max(MIN_JOURNAL_BYTES);
    (budget < ENGINE_JOURNAL_BYTES).then_some(budget)
}

#[cfg(test)]
mod tests {
    use fjall::AbstractTree;

    use super::*;
    use crate::store::{Store, StoreOptions};
    use edgefaas_platform::Clock;

    #[test]
    fn a_compaction_does_not_make_more_than_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::small(dir.path()), Clock::new(|| 1)).unwrap();
        let space = &store.spaces().invocations;
        let flush = || space.rotate_memtable_and_wait().unwrap();
        let until = |is_done: &dyn Fn() -> bool| {
            while !is_done() {
                std::thread::yield_now()
            }
        };
        for number in 0..1000u32 {
            space.insert(number.to_be_bytes(), [b'p'; 10_000]).unwrap();
        }
        flush();
        space.major_compact().unwrap();
        let before_bytes = space.disk_space();
        assert!(before_bytes < 1 << 20, "10 MB of the same take {before_bytes} bytes");
        // Enough tables in the first level for the engine to compact them by itself.
        for number in [0, 999, 1, 998, 2, 997u32] {
            space.insert(number.to_be_bytes(), b"changed").unwrap();
            space.insert((1000 - number).to_be_bytes(), b"changed").unwrap();
            flush();
        }
        until(&|| space.tree.l0_run_count() < 4 && store.database.active_compactions() == 0);
        let after_bytes = space.disk_space();
        assert!(after_bytes < 2 * before_bytes, "{before_bytes} bytes became {after_bytes}");
    }

    #[test]
    fn a_small_disk_has_a_small_reserve_and_a_short_journal() {
        let mib = |count: u64| count << 20;
        assert_eq!(default_reserve_bytes(mib(64)), mib(4));
        assert_eq!(default_reserve_bytes(mib(256)), mib(16));
        assert_eq!(default_reserve_bytes(mib(32 * 1024)), mib(64));
        assert_eq!(journal_budget_bytes(mib(32), u64::MAX), Some(mib(4)));
        assert_eq!(journal_budget_bytes(mib(256), u64::MAX), Some(mib(16)));
        assert_eq!(journal_budget_bytes(mib(1024), u64::MAX), None, "the engine's own 64 MB");
        assert_eq!(journal_budget_bytes(mib(1024), mib(16)), Some(mib(16)), "on a machine with 128 MB");
    }
}
