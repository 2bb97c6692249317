//! Size of a function's replies over HTTP, learned from the last ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Replies up to here are not counted: a connection costs more than they do.
pub const SMALL_REPLY_BYTES: usize = 16 << 10;

/// How large the replies of a function are: the largest of late. 0 is unknown.
#[derive(Debug, Default)]
pub struct ReplySize {
    known: AtomicUsize,
    /// A call runs whose reply tells the size first.
    probing: Arc<AtomicBool>,
}

/// The call whose reply tells the size of a function's replies. It reserves what the function may reply at most; the calls
/// beside it reserve nothing, so that a function whose first calls do not end takes no room from others.
#[derive(Debug)]
pub struct Probe(Arc<AtomicBool>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// What a reply of a function is likely to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// No more than [`SMALL_REPLY_BYTES`].
    Small,
    /// At most, most likely.
    Bytes(usize),
    /// At most; there was no reply yet.
    Unknown(usize),
}

impl ReplySize {
    /// A reply had so many bytes.
    pub fn learn(&self, bytes: usize) {
        let known = self.known.load(Relaxed);
        // A large one counts for some time: others like it may be in flight.
        let faded = known.saturating_sub(1) / 4 * 3;
        let learned = bytes.max(faded) + 1;
        if learned != known {
            self.known.store(learned, Relaxed);
        }
    }

    /// The first call whose reply tells the size; `None` while it runs.
    pub fn probe(&self) -> Option<Probe> {
        let is_first = !self.probing.swap(true, Relaxed);
        is_first.then(|| Probe(self.probing.clone()))
    }

    /// What the next reply is likely to have.
    pub fn expected(&self, limit_bytes: usize) -> Expected {
        match self.known.load(Relaxed) {
            0 => Expected::Unknown(limit_bytes),
            known if known - 1 <= SMALL_REPLY_BYTES => Expected::Small,
            known => Expected::Bytes((known - 1).min(limit_bytes)),
        }
    }
}
