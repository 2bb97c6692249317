//! Processor time: what an invocation computes, and not what it waits for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::OwnedSemaphorePermit;

use crate::turns::Turns;

/// How much processor time an isolate used so far: what the system gave to other processes and threads meanwhile is not in
/// it.
#[derive(Debug)]
pub(crate) struct Busy {
    limit: Duration,
    spent_ns: AtomicU64,
    /// What its thread had used when the isolate got it.
    entered_ns: AtomicU64,
    turns: Arc<Turns>,
    /// Its function's turn, while it has it.
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

/// It computed for longer than it may: the root cause of the error that ends the isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has used its time")]
pub(crate) struct TimeUsed;

impl Busy {
    /// None so far, and no more than `limit` in all; `turns` are those of its function.
    pub fn new(limit: Duration, turns: Arc<Turns>) -> Arc<Self> {
        let none = || AtomicU64::new(0);
        let (spent_ns, entered_ns) = (none(), none());
        Arc::new(Self { limit, spent_ns, entered_ns, turns, turn: Mutex::default() })
    }

    /// Lets others compute, and waits until it is its function's turn. It has the turn until it waits for something.
    pub async fn take_turn(&self) {
        drop(self.turn.lock().take());
        let turn = self.turns.take().await;
        // The runtime's own yield lets its sockets and timers have their turn; a bare wake-up would only
        // let the tasks that are ready already. After the wait: what ends a wait is such a wake-up.
        tokio::task::yield_now().await;
        *self.turn.lock() = turn;
    }

    /// All of it, up to the last time it gave the thread back.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Relaxed))
    }

    /// To be called within its [`Counted`] run.
    ///
    /// # Errors
    /// It used more than it may.
    pub fn check(&self) -> Result<(), TimeUsed> {
        let running = thread_ns().saturating_sub(self.entered_ns.load(Relaxed));
        let spent = self.spent() + Duration::from_nanos(running);
        if spent > self.limit { Err(TimeUsed) } else { Ok(()) }
    }
}

/// The processor time of this thread.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A run whose processor time is counted.
pub(crate) struct Counted<F> {
    pub busy: Arc<Busy>,
    pub run: F,
}

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let entered_ns = thread_ns();
        self.busy.entered_ns.store(entered_ns, Relaxed);
        let polled = Pin::new(&mut self.run).poll(context);
        let ran_ns = thread_ns().saturating_sub(entered_ns);
        self.busy.spent_ns.fetch_add(ran_ns, Relaxed);
        drop(self.busy.turn.lock().take());
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(ms: u64) {
        let until = thread_ns() + ms * 1_000_000;
        while thread_ns() < until {}
    }

    #[test]
    fn only_what_it_computes_is_counted() {
        let busy = Busy::new(Duration::from_millis(200), Arc::default());
        let run = async {
            busy.check().unwrap();
            tokio::task::yield_now().await;
            busy.check().unwrap();
            spin(250);
            busy.check()
        };
        let mut run = Counted { busy: busy.clone(), run: Box::pin(run) };
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut run).poll(&mut context).is_pending());
        // It waits, while somebody else computes.
        spin(1000);
        assert_eq!(Pin::new(&mut run).poll(&mut context), Poll::Ready(Err(TimeUsed)));
        assert!((250..1000).contains(&busy.spent().as_millis()), "{:?}", busy.spent());
    }

    #[test]
    fn a_thread_that_sleeps_uses_nothing() {
        let busy = Busy::new(Duration::from_millis(100), Arc::default());
        let run = async {
            // As where the system gives the processor to somebody else.
            std::thread::sleep(Duration::from_millis(300));
            busy.check()
        };
        let mut run = Counted { busy: busy.clone(), run: Box::pin(run) };
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut run).poll(&mut context), Poll::Ready(Ok(())));
    }
}
