//! How long the tasks of a transport were at work: what replication costs beside its own computing.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time that tasks had a thread. Measured on the clock: where the system gave the core to another process in between, that
/// counts as well, since it is how long others had to wait.
#[derive(Debug, Default)]
pub(crate) struct Busy(AtomicU64);

impl Busy {
    /// All of it so far.
    pub(crate) fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }

    /// Counts what a future needs.
    pub(crate) async fn time<F: Future>(self: Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let since = Instant::now();
            let polled = future.as_mut().poll(context);
            self.0.fetch_add(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX), Relaxed);
            polled
        })
        .await
    }
}
