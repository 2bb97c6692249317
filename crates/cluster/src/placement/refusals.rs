//! Workers that refuse calls of a function although their load says that they take them.
//!
//! A load is up to a second old, and a worker may report a wrong one for ever. A refusal says more: after
//! [`TOLERATED`] refusals in a row a worker counts as full for the function for 100 ms. Each further refusal doubles that, up
//! to 5 s; one accepted call ends it. So a worker that refuses everything gets at most one call of the function in 5 s.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::workers::{WorkerIndex, Workers};

/// Refusals in a row after which a worker is avoided: a queue may be full for a moment.
pub const TOLERATED: u32 = 3;
/// The first time of avoiding a worker, and the maximum.
const FIRST_MS: u64 = 100;
const MAX_MS: u64 = 5_000;

/// Refusals of one function, by worker. Read and written without a lock; two refusals at the same time may count as one.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The latest time until which a worker is avoided. 0: none was ever.
    latest_ms: AtomicU64,
    /// Made at the first refusal.
    workers: OnceLock<Box<[OfWorker]>>,
}

#[derive(Debug, Default)]
struct OfWorker {
    in_a_row: AtomicU32,
    until_ms: AtomicU64,
}

/// The refusals that count at a time.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    workers: &'a [OfWorker],
    now_ms: u64,
}

impl Refusals {
    /// A worker has refused a call.
    pub(crate) fn refused(&self, workers: &Workers, worker: WorkerIndex, now_ms: u64) {
        let all =
            self.workers.get_or_init(|| workers.as_slice().iter().map(|_| OfWorker::default()).collect());
        let Some(of) = all.get(usize::from(worker)) else { return };
        // Calls that were refused together count once.
        if of.until_ms.load(Relaxed) > now_ms {
            return;
        }
        let in_a_row = of.in_a_row.load(Relaxed).saturating_add(1);
        of.in_a_row.store(in_a_row, Relaxed);
        let Some(doublings) = in_a_row.checked_sub(TOLERATED) else { return };
        let until_ms = now_ms + (FIRST_MS << doublings.min(16)).min(MAX_MS);
        of.until_ms.store(until_ms, Relaxed);
        self.latest_ms.fetch_max(until_ms, Relaxed);
    }

    /// A worker has accepted a call.
    pub(crate) fn accepted(&self, worker: WorkerIndex) {
        let of = self.workers.get().and_then(|all| all.get(usize::from(worker)));
        let Some(of) = of.filter(|of| of.in_a_row.load(Relaxed) > 0) else { return };
        of.in_a_row.store(0, Relaxed);
        of.until_ms.store(0, Relaxed);
    }

    /// `None` if no worker is avoided.
    pub(crate) fn at(&self, now_ms: u64) -> Option<At<'_>> {
        let workers = self.workers.get().filter(|_| self.latest_ms.load(Relaxed) > now_ms)?;
        Some(At { workers, now_ms })
    }
}

impl At<'_> {
    /// The time until which a worker is avoided.
    pub(crate) fn until_ms(self, worker: WorkerIndex) -> Option<u64> {
        let until_ms = self.workers.get(usize::from(worker))?.until_ms.load(Relaxed);
        (until_ms > self.now_ms).then_some(until_ms)
    }
}
