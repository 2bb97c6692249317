//! Limit of unflushed data: entries in the engine's memtables that are not in tables yet.
//!
//! After a kill the next start reads all unflushed data from the engine's journal, entry by entry. Values that entries
//! shared in memory are then copied for each entry, and compressed data is expanded. So the limit counts each entry in
//! full, and fits the memory of a start. The writer waits for the engine's flushes once the limit is exceeded. It
//! writes a group that exceeds the limit by itself, such as a large message for hundreds of sessions, in parts:
//!
//! ```text
//! meta: "unfinished" = keys of all parts   \
//! the first part                            | each by itself, with a wait for the flush before the next
//! the second part ...                      /
//! the last part, all other changes, and "unfinished" is deleted
//! ```
//!
//! Only entries under new keys are written ahead. A start that finds "unfinished" deletes them, so a group is stored
//! completely or not at all.

use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace, PersistMode};

/// Bounds of the limit, in bytes; between them it is a share of the memory.
const BUDGET_BYTES: std::ops::RangeInclusive<u64> = (8 << 20)..=(128 << 20);
/// Maximum share of a small disk.
const DISK_SHARE: u64 = 32;
const MIN_OF_DISK_BYTES: u64 = 2 << 20;
/// A memtable below this share of the budget is not flushed early.
const WORTH_SHARE: u64 = 16;
/// Maximum wait for a flush. After that the flush has failed or the disk hangs: the writer continues, and gets the
/// engine's error.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);
/// Keys of a group that is written in parts.
const UNFINISHED_KEY: &str = "unfinished";

/// Measures and limits the unflushed data.
#[derive(Clone)]
pub(super) struct Unflushed {
    database: Database,
    spaces: Vec<Keyspace>,
    budget_bytes: u64,
}

impl Unflushed {
    /// Covers all key spaces of a database. `share_bytes` is the store's share of the memory; `disk_bytes` the size of
    /// its disk, which must have room for the unflushed data twice.
    pub(super) fn new(
        database: Database,
        spaces: Vec<Keyspace>,
        share_bytes: u64,
        disk_bytes: u64,
    ) -> Self {
        let (least, most) = BUDGET_BYTES.into_inner();
        let of_disk = (disk_bytes / DISK_SHARE).max(MIN_OF_DISK_BYTES);
        Self { database, spaces, budget_bytes: share_bytes.clamp(least, most).min(of_disk) }
    }

    /// Maximum size of one part of a group, in bytes.
    pub(super) fn part_bytes(&self) -> u64 {
        self.budget_bytes / 2
    }

    /// True if the limit is exceeded, so the writer has to wait.
    pub(super) fn is_over(&self) -> bool {
        self.database.write_buffer_size() > self.budget_bytes
    }

    /// Waits until unflushed data is within its limit; ends after a timeout or once `is_stopped` is true. Blocks.
    pub(super) fn settle(&self, is_stopped: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while self.is_over() && !is_stopped() && Instant::now() < until {
            self.seal();
            std::thread::sleep(POLL);
        }
    }

    /// Makes the engine flush memtables that are not full, if no flush runs.
    fn seal(&self) {
        if self.spaces.iter().any(|space| space.sealed_memtable_count() > 0) {
            return;
        }
        let size_bytes = |space: &Keyspace| space.tree.active_memtable().size();
        for space in &self.spaces {
            if size_bytes(space) >= self.budget_bytes / WORTH_SHARE
                && let Err(error) = space.rotate_memtable()
            {
                tracing::warn!(%error, space = &**space.name(), "a memtable could not be sealed");
            }
        }
    }
}

/// Records that the entries under these keys are invalid until [`finish`] is committed.
pub(super) fn announce(database: &Database, meta: &Keyspace, keys: &[&[u8]]) -> fjall::Result<()> {
    // Serializing byte strings into memory does not fail.
    let keys = postcard::to_allocvec(keys).unwrap_or_default();
    let mut batch = database.batch().durability(Some(PersistMode::Buffer));
    batch.insert(meta, UNFINISHED_KEY, keys);
    batch.commit()
}

/// Makes the announced entries valid, in the same commit as the rest of their group.
pub(super) fn finish(batch: &mut fjall::OwnedWriteBatch, meta: &Keyspace) {
    batch.remove(meta, UNFINISHED_KEY);
}

/// Deletes the entries of an incomplete group; returns their number.
pub(super) fn undo(database: &Database, meta: &Keyspace, space: &Keyspace) -> fjall::Result<usize> {
    let Some(value) = meta.get(UNFINISHED_KEY)? else { return Ok(0) };
    // The store verifies the value's checksum.
    let keys: Vec<&[u8]> = postcard::from_bytes(&value).unwrap_or_default();
    let mut batch = database.batch().durability(Some(PersistMode::SyncData));
    for key in &keys {
        batch.remove(space, *key);
    }
    finish(&mut batch, meta);
    batch.commit()?;
    Ok(keys.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, StoreOptions};
    use edgefaas_platform::Clock;

    #[test]
    fn a_start_takes_back_what_was_written_of_an_unfinished_group() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(&StoreOptions::small(dir.path()), Clock::new(|| 1)).unwrap();
        let store = open();
        let (meta, queue) = (store.spaces().meta.clone(), store.spaces().mqtt_queue.clone());
        queue.insert("before", "stays").unwrap();
        announce(&store.database, &meta, &[b"first", b"second"]).unwrap();
        queue.insert("first", "part").unwrap();
        drop((queue, meta));
        drop(store);
        for _ in 0..2 {
            let store = open();
            let has = |key: &str| store.spaces().mqtt_queue.contains_key(key).unwrap();
            assert_eq!(
                (has("before"), has("first"), store.spaces().meta.contains_key(UNFINISHED_KEY).unwrap()),
                (true, false, false)
            );
        }
    }
}
