//! Expected size of a function's replies over HTTP, learned from its last ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Replies up to this size reserve no memory: a connection takes more than they do.
pub const SMALL_REPLY_BYTES: usize = 16 << 10;

/// The largest of the last replies of a function.
#[derive(Debug, Default)]
pub struct ReplySize {
    /// Size in bytes plus 1; 0 before the first reply.
    known: AtomicUsize,
    /// True while a [`Probe`] exists.
    probing: Arc<AtomicBool>,
}

/// Marks the first call of a function, whose reply gives the size. This call reserves the maximum size of a reply. Concurrent
/// calls reserve nothing, so that a function whose first calls do not end takes no memory from other functions.
#[derive(Debug)]
pub struct Probe(Arc<AtomicBool>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// The expected size of the next reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// At most [`SMALL_REPLY_BYTES`].
    Small,
    /// Probably at most this number of bytes.
    Bytes(usize),
    /// There was no reply yet: the limit in bytes.
    Unknown(usize),
}

impl ReplySize {
    /// Records the size of a reply.
    pub fn learn(&self, bytes: usize) {
        let known = self.known.load(Relaxed);
        // A large size decays slowly, because replies of the same size may be in flight.
        let faded = known.saturating_sub(1) / 4 * 3;
        let learned = bytes.max(faded) + 1;
        if learned != known {
            self.known.store(learned, Relaxed);
        }
    }

    /// A probe for the first call; `None` while another probe exists.
    pub fn probe(&self) -> Option<Probe> {
        let is_first = !self.probing.swap(true, Relaxed);
        is_first.then(|| Probe(self.probing.clone()))
    }

    /// The expected size of the next reply. `limit_bytes` is the maximum size of a reply.
    pub fn expected(&self, limit_bytes: usize) -> Expected {
        match self.known.load(Relaxed) {
            0 => Expected::Unknown(limit_bytes),
            known if known - 1 <= SMALL_REPLY_BYTES => Expected::Small,
            known => Expected::Bytes((known - 1).min(limit_bytes)),
        }
    }
}
