//! Clock of deletions, shared by the writer and the replication.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum lead of the clock of another member that this node follows, in milliseconds: one day.
pub const MAX_LEAD_MS: u64 = 86_400_000;

/// The hybrid clock that deletions are stamped with, and the deletions that all members know. Times are in milliseconds since
/// the Unix epoch.
#[derive(Debug, Default)]
pub struct Deletions {
    clock_ms: AtomicU64,
    observed_ms: AtomicU64,
    agreed_ms: AtomicU64,
    tombstones: AtomicU64,
}

impl Deletions {
    /// Every later deletion of this node has this time or a later one, once writes in flight are committed.
    pub fn clock_ms(&self, now_unix_ms: u64) -> u64 {
        self.clock_ms.load(Relaxed).max(self.observed_ms.load(Relaxed)).max(now_unix_ms)
    }

    /// Follows the clock of another member; false if it is more than [`MAX_LEAD_MS`] ahead.
    pub fn observe(&self, clock_ms: u64, now_unix_ms: u64) -> bool {
        let is_sane = clock_ms <= self.clock_ms(now_unix_ms).saturating_add(MAX_LEAD_MS);
        if is_sane {
            self.observed_ms.fetch_max(clock_ms, Relaxed);
        }
        is_sane
    }

    /// All members are believed to have the deletions up to this time. A member that lacks one all the same gets it again
    /// when it sends what was deleted.
    pub fn set_agreed(&self, up_to_ms: u64) {
        self.agreed_ms.fetch_max(up_to_ms, Relaxed);
    }

    /// The number of objects with tombstones, for the figures.
    pub fn set_tombstones(&self, objects: u64) {
        self.tombstones.store(objects, Relaxed);
    }

    pub(super) fn tombstones(&self) -> u64 {
        self.tombstones.load(Relaxed)
    }

    pub(super) fn agreed_ms(&self) -> u64 {
        self.agreed_ms.load(Relaxed)
    }

    pub(super) fn observed_ms(&self) -> u64 {
        self.observed_ms.load(Relaxed)
    }

    pub(super) fn note_clock(&self, clock_ms: u64) {
        self.clock_ms.fetch_max(clock_ms, Relaxed);
    }
}
