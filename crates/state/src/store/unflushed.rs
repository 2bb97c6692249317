//! Bounds what is in the engine's memory and not in its tables yet.
//!
//! After a kill the engine reads all of it back at the next start, entry by entry: values that many entries shared in memory are
//! there once for each, and what the journal compressed is expanded. So it is bounded as if nothing were shared, by what a start
//! can take. The writer waits for the engine's flushes where it is ahead of them, and a group of changes that is larger by itself,
//! such as a large message for hundreds of sessions, is written in parts:
//!
//! ```text
//! meta: "unfinished" = keys of all parts   \
//! the first part                            | each by itself, with a wait for the flush before the next
//! the second part ...                      /
//! the last part, all other changes, and "unfinished" is deleted
//! ```
//!
//! Only entries under keys that were never used before are written ahead. A start that finds "unfinished" deletes them: the group
//! is there as a whole or not at all.

use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace, PersistMode};

/// The bounds of what may be unflushed, in bytes: a share of the memory within these.
const BUDGET_BYTES: std::ops::RangeInclusive<u64> = (8 << 20)..=(128 << 20);
/// It is no more than this share of a small disk.
const DISK_SHARE: u64 = 32;
const MIN_OF_DISK_BYTES: u64 = 2 << 20;
/// A memtable of less than this share of the budget is not worth a table of its own.
const WORTH_SHARE: u64 = 16;
/// A flush that takes longer has failed, or the disk is stuck: the writer goes on, and sees the engine's error.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);
/// The keys of a group that is written in parts.
const UNFINISHED_KEY: &str = "unfinished";

/// What is not in tables yet, and how much it may be.
#[derive(Clone)]
pub(super) struct Unflushed {
    database: Database,
    spaces: Vec<Keyspace>,
    budget_bytes: u64,
}

impl Unflushed {
    /// For all key spaces of a database. `share_bytes`: the store's share of the memory; `disk_bytes`: the size of its disk, on which it is
    /// to be written twice.
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

    /// The most that one part of a group may have, in bytes.
    pub(super) fn part_bytes(&self) -> u64 {
        self.budget_bytes / 2
    }

    /// Whether more is not to be written before some of it is flushed.
    pub(super) fn is_over(&self) -> bool {
        self.database.write_buffer_size() > self.budget_bytes
    }

    /// Waits until it is within its bound, but not for ever, nor if `is_stopped`. Blocks.
    pub(super) fn settle(&self, is_stopped: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while self.is_over() && !is_stopped() && Instant::now() < until {
            self.seal();
            std::thread::sleep(POLL);
        }
    }

    /// Has the engine flush memtables that it would keep until they are full, if nothing is being flushed.
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

/// Says in the store that the entries under these keys are not valid before [`finish`] is committed.
pub(super) fn announce(database: &Database, meta: &Keyspace, keys: &[&[u8]]) -> fjall::Result<()> {
    // Serializing byte strings into memory does not fail.
    let keys = postcard::to_allocvec(keys).unwrap_or_default();
    let mut batch = database.batch().durability(Some(PersistMode::Buffer));
    batch.insert(meta, UNFINISHED_KEY, keys);
    batch.commit()
}

/// Makes the entries that were announced valid, with the rest of their group.
pub(super) fn finish(batch: &mut fjall::OwnedWriteBatch, meta: &Keyspace) {
    batch.remove(meta, UNFINISHED_KEY);
}

/// Deletes what was written of a group whose end is missing; says how many entries there were.
pub(super) fn undo(database: &Database, meta: &Keyspace, space: &Keyspace) -> fjall::Result<usize> {
    let Some(value) = meta.get(UNFINISHED_KEY)? else { return Ok(0) };
    // The store has a checksum of it.
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
