//! Drain of a node that stops: new work is refused, and work in flight has time to finish.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Counts work in flight, and refuses new work once it has begun to drain.
#[derive(Debug, Default)]
pub struct Drain {
    draining: AtomicBool,
    in_flight: TaskTracker,
}

impl Drain {
    /// True once new work is refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Counts as work in flight until it is dropped: the drain waits for it.
    pub fn in_flight(&self) -> TaskTrackerToken {
        self.in_flight.token()
    }

    /// How much work is in flight.
    pub fn count(&self) -> usize {
        self.in_flight.len()
    }

    /// Refuses new work and waits for the work in flight; true if all of it ended within `grace`.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        self.in_flight.close();
        tokio::time::timeout(grace, self.in_flight.wait()).await.is_ok()
    }
}
