//! Running time of tasks: the cost of replication.

use std::future::poll_fn;
use std::ops::{Add, Sub};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Running time of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// On the processor.
    pub processor: Duration,
    /// On the clock. Includes the time that the system gave the core to another process: other tasks had to wait as long.
    pub clock: Duration,
    /// The number of polls. The cost of waking a task (the system's part of a message, switching threads) is in no time.
    pub turns: u64,
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            processor: self.processor + other.processor,
            clock: self.clock + other.clock,
            turns: self.turns + other.turns,
        }
    }
}

impl Sub for Work {
    type Output = Self;

    /// The difference since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            clock: self.clock.saturating_sub(before.clock),
            turns: self.turns.saturating_sub(before.turns),
        }
    }
}

/// Adds up the running time of tasks.
#[derive(Debug, Default)]
pub struct Busy {
    processor_ns: AtomicU64,
    clock_ns: AtomicU64,
    turns: AtomicU64,
}

impl Busy {
    /// The sum so far.
    pub fn read(&self) -> Work {
        let read = |sum: &AtomicU64| Duration::from_nanos(sum.load(Relaxed));
        Work {
            processor: read(&self.processor_ns),
            clock: read(&self.clock_ns),
            turns: self.turns.load(Relaxed),
        }
    }

    /// Measures a future.
    pub async fn time<F: Future>(self: Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let (since, processor) = (Instant::now(), processor_time());
            let polled = future.as_mut().poll(context);
            // A poll stays on its thread.
            add(&self.processor_ns, processor_time().saturating_sub(processor));
            add(&self.clock_ns, since.elapsed());
            self.turns.fetch_add(1, Relaxed);
            polled
        })
        .await
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_counted_and_waiting_is_not() {
        /// Uses a processor for so long.
        fn spin(time: Duration) {
            let since = processor_time();
            while processor_time() - since < time {
                std::hint::spin_loop();
            }
        }
        const OWN: Duration = Duration::from_millis(5);
        const OTHERS: Duration = Duration::from_millis(100);
        let busy = Arc::new(Busy::default());
        let work = async {
            spin(OWN);
            tokio::task::spawn_blocking(|| spin(OTHERS)).await.unwrap();
        };
        busy.clone().time(work).await;
        let work = busy.read();
        assert!(work.processor >= OWN && work.processor < OTHERS, "{work:?}");
        assert!(work.clock >= work.processor, "{work:?}");
        assert_eq!(work.turns, 2, "until it waits, and after that");
        assert_eq!(work - work, Work::default());
    }
}
