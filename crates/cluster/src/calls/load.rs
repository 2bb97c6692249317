//! Counts of the calls to one member, read without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The calls of this node to one member. Clones are the same one; the default is that of a member that was never called.
#[derive(Debug, Clone, Default)]
pub struct CallLoad(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    in_flight: AtomicUsize,
    back_off_until_ms: AtomicU64,
}

impl CallLoad {
    /// Number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Relaxed)
    }

    /// Until this time of [`Calls::now_ms`](super::Calls::now_ms) no call goes to the member, because it failed or refused one
    /// as a whole a short time ago. 0: none has.
    pub fn back_off_until_ms(&self) -> u64 {
        self.0.back_off_until_ms.load(Relaxed)
    }

    /// Counts a call; returns the number before it.
    pub(crate) fn begin(&self) -> usize {
        self.0.in_flight.fetch_add(1, Relaxed)
    }

    /// Ends a call that was counted.
    pub(crate) fn end(&self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }

    pub(crate) fn set_back_off_until_ms(&self, until_ms: u64) {
        self.0.back_off_until_ms.store(until_ms, Relaxed);
    }
}
