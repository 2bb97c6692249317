//! Estimates of dead data in the store's tables: deleted or overwritten entries, and tables that compactions have
//! replaced.
//!
//! The engine keeps both while an older snapshot is open, so only a later measurement shows whether a compaction has
//! removed dead data.

use std::path::Path;

use fjall::{AbstractTree, Keyspace};

/// Less dead data does not justify a compaction, unless it is a quarter of the key space.
pub const WORTH_BYTES: u64 = 1 << 20;
/// Smaller key spaces are skipped.
const SMALL_BYTES: u64 = 64 << 10;
/// Larger key spaces are not read to measure their live data.
const MAX_MEASURED_BYTES: u64 = 256 << 20;
/// The engine's folder of a key space's tables.
const TABLES_FOLDER: &str = "tables";

/// Key spaces that may contain dead data, the smallest first.
pub fn candidates(spaces: &[Keyspace]) -> Vec<Keyspace> {
    let mut spaces: Vec<_> =
        spaces.iter().filter(|space| space.disk_space() > SMALL_BYTES).cloned().collect();
    spaces.sort_by_key(Keyspace::disk_space);
    spaces
}

/// Bytes of table files that current writes and reads do not use.
pub fn replaced_bytes(spaces: &[Keyspace]) -> u64 {
    let of = |space: &Keyspace| {
        // Measured before the files: a table added in between counts as replaced, which only costs another measurement.
        let used_bytes = space.disk_space();
        file_bytes(&space.path().join(TABLES_FOLDER)).saturating_sub(used_bytes)
    };
    spaces.iter().map(of).sum()
}

fn file_bytes(folder: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    // A file that no longer exists takes no space.
    files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len()).sum()
}

struct Live {
    entries: u64,
    /// Uncompressed.
    bytes: u64,
}

/// Measured size of a key space's tables.
pub struct Size {
    disk_bytes: u64,
    /// Entries of all kinds, including dead ones.
    entries: u64,
    tombstones: u64,
    /// Live data, if it was measured.
    live: Option<Live>,
}

impl Size {
    /// Measures the key space; reads its entries unless it is too large.
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

    /// Estimated bytes of this number of entries, all of average size.
    fn bytes_of(&self, entries: u64) -> u64 {
        entries.saturating_mul(self.disk_bytes / self.entries.max(1))
    }

    fn is_worth(&self, dead_bytes: u64) -> bool {
        dead_bytes >= WORTH_BYTES || dead_bytes >= self.disk_bytes / 4
    }

    /// True if the dead data justifies a compaction.
    pub fn is_worth_it(&self) -> bool {
        let by_size = self
            .live
            .as_ref()
            .map_or(0, |live| self.disk_bytes.saturating_sub(live.bytes + live.bytes / 8));
        self.is_worth(by_size.max(self.bytes_of(self.tombstones)))
    }

    /// True if a compaction left dead data: deleted or overwritten entries stay only if a snapshot needs them. Sizes do
    /// not show it, since small entries take more room in tables than by themselves.
    pub fn is_left(&self) -> bool {
        let by_count = self.live.as_ref().map_or(0, |live| self.entries.saturating_sub(live.entries));
        self.disk_bytes > SMALL_BYTES && self.is_worth(self.bytes_of(by_count.max(self.tombstones)))
    }

    /// Upper bound of the size after a compaction: tables have filters and indexes beside the entries.
    pub fn compaction_bytes(&self) -> u64 {
        let live = self.live.as_ref();
        live.map_or(self.disk_bytes, |live| (live.bytes + live.bytes / 8).min(self.disk_bytes))
            + SMALL_BYTES
    }
}
