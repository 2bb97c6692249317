//! Drain: a node that stops refuses new work and waits until the work in flight has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Counter of the work in flight, and the flag that the node is draining.
#[derive(Debug, Default)]
pub struct Drain {
    draining: AtomicBool,
    in_flight: TaskTracker,
}

impl Drain {
    /// True once [`drain`](Self::drain) was called: callers must refuse new work.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// A token for one piece of work: it is in flight until the token is dropped.
    pub fn in_flight(&self) -> TaskTrackerToken {
        self.in_flight.token()
    }

    /// The number of tokens in flight.
    pub fn count(&self) -> usize {
        self.in_flight.len()
    }

    /// Sets the flag and waits until the work in flight has ended, for at most `grace`. True if all of it has ended.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        self.in_flight.close();
        tokio::time::timeout(grace, self.in_flight.wait()).await.is_ok()
    }
}
