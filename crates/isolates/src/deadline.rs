//! How a run is kept to its time: by the engine's epoch while it computes, by a timer while it waits.

use std::future::Future;
use std::time::{Duration, Instant};

use wasmtime::{Store, UpdateDeadline};

/// When a run ends at the latest.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// A deadline `limit` after `started`.
    pub fn new(started: Instant, limit: Duration) -> Self {
        Self { at: started + limit }
    }

    /// Lets the guest's code give way to others at every tick of the epoch and ends it when the deadline
    /// has passed.
    pub fn arm<T>(self, store: &mut Store<T>) {
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            if Instant::now() >= self.at {
                return Err(DeadlinePassed.into());
            }
            // The runtime's own yield lets its I/O in as well, a bare wake-up may not.
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
    }

    /// Waits for `run`; `None` if the deadline came first, whichever way it was noticed.
    pub async fn wait<T>(
        self,
        run: impl Future<Output = wasmtime::Result<T>>,
    ) -> Option<wasmtime::Result<T>> {
        match tokio::time::timeout_at(self.at.into(), run).await {
            Err(_) => None,
            Ok(Err(error)) if error.is::<DeadlinePassed>() => None,
            Ok(result) => Some(result),
        }
    }
}

/// The guest was computing when its deadline passed.
#[derive(Debug, thiserror::Error)]
#[error("the deadline has passed")]
struct DeadlinePassed;
