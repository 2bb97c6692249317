//! How much of the store's tables is dead: deleted or overwritten entries, and tables that compactions have replaced.
//!
//! The engine keeps both for as long as somebody reads an older snapshot, so whether a compaction has removed what was dead is
//! only known by looking afterwards.

use std::path::Path;

use fjall::{AbstractTree, Keyspace};

/// Less dead data is not worth a compaction, except where it is a quarter of the key space.
pub const WORTH_BYTES: u64 = 1 << 20;
/// What is smaller is not looked at.
const SMALL_BYTES: u64 = 64 << 10;
/// Larger key spaces are not read to learn how much of them is live.
const MAX_MEASURED_BYTES: u64 = 256 << 20;
/// The engine's folder of a key space's tables.
const TABLES_FOLDER: &str = "tables";

/// The key spaces in which something may be dead, the smallest first.
pub fn candidates(spaces: &[Keyspace]) -> Vec<Keyspace> {
    let mut spaces: Vec<_> =
        spaces.iter().filter(|space| space.disk_space() > SMALL_BYTES).cloned().collect();
    spaces.sort_by_key(Keyspace::disk_space);
    spaces
}

/// Bytes of tables that are on the disk, and not in use by what is written or read from now on.
pub fn replaced_bytes(spaces: &[Keyspace]) -> u64 {
    let of = |space: &Keyspace| {
        // Before the files: a table that is added meanwhile counts as replaced for a moment, which only costs another look.
        let used_bytes = space.disk_space();
        file_bytes(&space.path().join(TABLES_FOLDER)).saturating_sub(used_bytes)
    };
    spaces.iter().map(of).sum()
}

fn file_bytes(folder: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    // A file that is gone by now takes nothing.
    files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len()).sum()
}

struct Live {
    entries: u64,
    /// Uncompressed.
    bytes: u64,
}

/// How much of a key space's tables is dead.
pub struct Size {
    disk_bytes: u64,
    /// Entries of all kinds, those that are dead included.
    entries: u64,
    tombstones: u64,
    /// If it was measured.
    live: Option<Live>,
}

impl Size {
    /// Reads the key space, if it is not large.
    pub fn of(space: &Keyspace) -> Self {
        let disk_bytes = space.disk_space();
        let live = || -> fjall::Result<Live> {
            let mut live = Live { entries: 0, bytes: 0 };
            for entry in space.iter() {
                let (key, value) = entry.into_inner()?;
                live.entries += 1;
                live.bytes += (key.len() + value.len()) as u64;
            }
            Ok(live)
        };
        Self {
            disk_bytes,
            entries: space.tree.approximate_len() as u64,
            tombstones: space.tree.tombstone_count(),
            live: if disk_bytes <= MAX_MEASURED_BYTES { live().ok() } else { None },
        }
    }

    /// By the number of entries: all are taken to be of one size.
    fn bytes_of(&self, entries: u64) -> u64 {
        entries.saturating_mul(self.disk_bytes / self.entries.max(1))
    }

    fn is_worth(&self, dead_bytes: u64) -> bool {
        dead_bytes >= WORTH_BYTES || dead_bytes >= self.disk_bytes / 4
    }

    /// Whether so much is dead that a compaction pays.
    pub fn is_worth_it(&self) -> bool {
        let by_size = self
            .live
            .as_ref()
            .map_or(0, |live| self.disk_bytes.saturating_sub(live.bytes + live.bytes / 8));
        self.is_worth(by_size.max(self.bytes_of(self.tombstones)))
    }

    /// The same after a compaction, which leaves neither deleted nor overwritten entries unless a snapshot has them. Sizes do not tell:
    /// small entries take more room in tables than by themselves.
    pub fn is_left(&self) -> bool {
        let by_count = self.live.as_ref().map_or(0, |live| self.entries.saturating_sub(live.entries));
        self.disk_bytes > SMALL_BYTES && self.is_worth(self.bytes_of(by_count.max(self.tombstones)))
    }

    /// At most: tables have filters and indexes beside the entries.
    pub fn compaction_bytes(&self) -> u64 {
        let live = self.live.as_ref();
        live.map_or(self.disk_bytes, |live| (live.bytes + live.bytes / 8).min(self.disk_bytes))
            + SMALL_BYTES
    }
}
