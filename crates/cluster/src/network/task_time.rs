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
pub struct TaskTime {
    /// Processor time.
    pub processor: Duration,
    /// Time on the clock. Includes the time for which the system gave the core to another process, since other tasks of
    /// the thread had to wait.
    pub clock: Duration,
    /// Number of polls. The cost of waking a task (system calls, switching threads) is not part of the times.
    pub turns: u64,
}

impl Add for TaskTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            processor: self.processor + other.processor,
            clock: self.clock + other.clock,
            turns: self.turns + other.turns,
        }
    }
}

impl Sub for TaskTime {
    type Output = Self;

    /// The time since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            clock: self.clock.saturating_sub(before.clock),
            turns: self.turns.saturating_sub(before.turns),
        }
    }
}

/// Sums up the running time of tasks.
#[derive(Debug, Default)]
pub struct TaskTimer {
    processor_ns: AtomicU64,
    clock_ns: AtomicU64,
    turns: AtomicU64,
}

impl TaskTimer {
    /// The sum so far.
    pub fn read(&self) -> TaskTime {
        let read = |sum: &AtomicU64| Duration::from_nanos(sum.load(Relaxed));
        TaskTime {
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
        /// Uses a processor for `time`.
        fn spin(time: Duration) {
            let since = processor_time();
            while processor_time() - since < time {
                std::hint::spin_loop();
            }
        }
        const OWN: Duration = Duration::from_millis(5);
        const OTHERS: Duration = Duration::from_millis(100);
        let timer = Arc::new(TaskTimer::default());
        let work = async {
            spin(OWN);
            tokio::task::spawn_blocking(|| spin(OTHERS)).await.unwrap();
        };
        timer.clone().time(work).await;
        let work = timer.read();
        assert!(work.processor >= OWN && work.processor < OTHERS, "{work:?}");
        assert!(work.clock >= work.processor, "{work:?}");
        assert_eq!(work.turns, 2, "until it waits, and after that");
        assert_eq!(work - work, TaskTime::default());
    }
}
