//! Client identifiers for clients that have none.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Assigns client identifiers.
pub(super) struct ClientIds {
    /// Makes the identifiers differ from those of an earlier run.
    boot: u64,
    next: AtomicU64,
}

impl ClientIds {
    pub(super) fn new() -> ClientIds {
        ClientIds { boot: RandomState::new().build_hasher().finish(), next: AtomicU64::new(1) }
    }

    /// A client identifier that no client has.
    pub(super) fn assign(&self) -> String {
        format!("edgefaas-{:016x}-{}", self.boot, self.next.fetch_add(1, Relaxed))
    }
}
