//! Bounds of queues: of one subscriber, and of all subscribers together.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes that a subscriber may have in memory without a share of the common bound.
pub(super) const FREE_BYTES: usize = 8 * 1024;
/// Bytes that it takes of the common bound at a time.
pub(super) const CLAIM_BYTES: usize = 32 * 1024;

/// Bytes that wait for all subscribers together.
#[derive(Debug)]
pub(crate) struct Totals {
    stored_bytes: AtomicI64,
    max_stored_bytes: i64,
    /// Sessions that may have something in the store.
    sessions: AtomicU64,
    buffered_bytes: AtomicI64,
    max_buffered_bytes: i64,
    /// The origin of expiry times.
    started: Instant,
}

impl Totals {
    pub(crate) fn new(max_stored_bytes: i64, max_buffered_bytes: i64) -> Totals {
        Totals {
            stored_bytes: AtomicI64::new(0),
            sessions: AtomicU64::new(0),
            max_stored_bytes,
            buffered_bytes: AtomicI64::new(0),
            max_buffered_bytes,
            started: Instant::now(),
        }
    }

    /// The second by whose end a message has expired that came at `received`; never 0.
    pub(super) fn expiry_second(&self, received: Instant, expiry_seconds: u32) -> u32 {
        let expires = received + Duration::from_secs(expiry_seconds.into());
        self.second_of(expires).saturating_add(1)
    }

    /// Seconds since the start; 0 for earlier moments.
    pub(super) fn second_of(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        u64::try_from(self.stored_bytes.load(Relaxed)).unwrap_or(0)
    }

    pub(crate) fn buffered_bytes(&self) -> u64 {
        u64::try_from(self.buffered_bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Counts one more session, or one less.
    pub(super) fn count_session(&self, more: bool) {
        match more {
            true => self.sessions.fetch_add(1, Relaxed),
            false => self.sessions.fetch_sub(1, Relaxed),
        };
    }

    /// Sessions that may have something in the store.
    pub(crate) fn sessions(&self) -> usize {
        usize::try_from(self.sessions.load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// Counts bytes in the store; negative ones were deleted.
    pub(super) fn weigh(&self, bytes: i64) {
        self.stored_bytes.fetch_add(bytes, Relaxed);
    }

    /// True if the store has too much for all sessions together, from the view of one that has `own` bytes there. The
    /// last quarter is shared out evenly, so that sessions whose clients are away for long leave room for the others.
    pub(super) fn is_stored_full(&self, own: u64, more: usize) -> bool {
        let total = self.stored_bytes.load(Relaxed) + more as i64;
        let shared_out = self.max_stored_bytes / 4;
        let sessions = i64::try_from(self.sessions.load(Relaxed)).unwrap_or(i64::MAX).max(1);
        let share = u64::try_from(shared_out / sessions).unwrap_or(0);
        total > self.max_stored_bytes - shared_out && own + more as u64 > share
    }

    /// Takes bytes of the common bound on buffers; false if there are not enough left.
    pub(super) fn claim(&self, bytes: usize) -> bool {
        let before = self.buffered_bytes.fetch_add(bytes as i64, Relaxed);
        let claimed = before + bytes as i64 <= self.max_buffered_bytes;
        if !claimed {
            self.release(bytes);
        }
        claimed
    }

    pub(super) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.buffered_bytes.fetch_sub(bytes as i64, Relaxed);
        }
    }
}

/// Bounds of the queue of one subscriber.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub messages: usize,
    pub bytes: usize,
    /// Messages in the store, for a session that outlives its connections.
    pub stored_messages: usize,
    pub stored_bytes: u64,
}
