//! Processor time of invocations, without waiting time.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::lane;
use crate::turns::{Turn, Turns};
use crate::warm::thread_id;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// The processor time of an isolate so far, without the time of other threads and processes.
#[derive(Debug)]
pub(crate) struct CpuTime {
    limit: Duration,
    spent_ns: AtomicU64,
    /// The processor time of its thread when the isolate got it.
    entered_ns: AtomicU64,
    turns: Arc<Turns>,
    /// The turn of the isolate's function, while the isolate has it.
    turn: Mutex<Option<Turn>>,
    phase: AtomicU8,
    /// The isolate has run on more than one thread.
    moved: AtomicBool,
}

/// The isolate runs in the time that a round reserves for isolates that have not computed for long.
const PASSING: u8 = 0;
/// The isolate waits for its turn in the thread's lane.
const WAITS_FOR_LANE: u8 = 1;
/// The isolate has computed in the lane since it was polled.
const IN_LANE: u8 = 2;
/// The isolate has waited for its round before it started, see [`CpuTime::admitted`]: its first poll does not wait again.
const ADMITTED: u8 = 3;

/// The time for which the processor time of a thread is reckoned from the last reading and the monotonic clock. The kernel's
/// clock of a thread costs a system call, half a microsecond; the monotonic clock a twentieth of that. The system takes a
/// processor away for milliseconds: then more than this has passed, and the thread's clock is read. So a reckoned time is at
/// most this much too high.
const RECKONED: Duration = Duration::from_micros(100);

/// The effect of a tick on an isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtTick {
    /// The isolate keeps the thread until the next tick.
    GoesOn,
    /// The isolate waits for its [turn](CpuTime::take_turn).
    TakesTurn,
}

/// The isolate has used up its processor time: the root cause of the error that ends the isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has used its time")]
pub(crate) struct TimeUsed;

impl CpuTime {
    /// Processor time of a new isolate: nothing is spent, and at most `limit` is allowed. `turns` are those of its
    /// function.
    pub fn new(limit: Duration, turns: Arc<Turns>) -> Arc<Self> {
        let none = || AtomicU64::new(0);
        let (spent_ns, entered_ns) = (none(), none());
        Arc::new(Self {
            limit,
            spent_ns,
            entered_ns,
            turns,
            turn: Mutex::default(),
            phase: AtomicU8::new(PASSING),
            moved: AtomicBool::new(false),
        })
    }

    /// The isolate has waited for a round with time left before it got memory or an instance.
    pub fn admitted(&self) {
        self.phase.store(ADMITTED, Relaxed);
    }

    /// Lets others compute, and waits until it is its function's turn. It has the turn until it waits for something.
    pub async fn take_turn(&self) {
        drop(self.turn.lock().take());
        self.phase.store(WAITS_FOR_LANE, Relaxed);
        let turn = self.turns.take().await;
        self.phase.store(IN_LANE, Relaxed);
        *self.turn.lock() = Some(turn);
    }

    /// True if the isolate has run on more than one thread.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Relaxed)
    }

    /// The processor time up to the last time that it returned the thread.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Relaxed))
    }

    /// The effect of an epoch tick now. Called within its [`Counted`] run.
    ///
    /// # Errors
    /// `TimeUsed` if it is over its limit.
    pub fn at_tick(&self) -> Result<AtTick, TimeUsed> {
        let running_ns = thread_ns().saturating_sub(self.entered_ns.load(Relaxed));
        let spent = self.spent() + Duration::from_nanos(running_ns);
        if spent > self.limit {
            return Err(TimeUsed);
        }
        // Ticks come at any time. One that interrupted a short invocation would make it wait for those that compute, and keep the
        // fine tick going, which interrupts more of them.
        let is_passing = matches!(self.phase.load(Relaxed), PASSING | ADMITTED);
        let is_short = is_passing && !lane::is_long(running_ns);
        Ok(if is_short { AtTick::GoesOn } else { AtTick::TakesTurn })
    }
}

thread_local! {
    /// The last reading of this thread's processor time, and its moment.
    static LAST_READING: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
}

/// The processor time of this thread.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The processor time of this thread, at most [`RECKONED`] too high.
fn reckoned_thread_ns() -> u64 {
    let now = Instant::now();
    if let Some((at, read_ns)) = LAST_READING.get() {
        let passed = now.saturating_duration_since(at);
        if passed < RECKONED {
            return read_ns + passed.as_nanos() as u64;
        }
    }
    let read_ns = thread_ns();
    LAST_READING.set(Some((now, read_ns)));
    read_ns
}

/// A run whose processor time is counted, and which waits where its thread's [round](crate::lane) has no time left for it.
pub(crate) struct Counted<F> {
    cpu_time: Arc<CpuTime>,
    run: F,
    /// The thread of the first poll.
    thread: Option<ThreadId>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<F: Future + Unpin> Counted<F> {
    /// Counts the time of `run` for `cpu_time`.
    pub fn new(cpu_time: Arc<CpuTime>, run: F) -> Self {
        Self { cpu_time, run, thread: None, waiting: None }
    }
}

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let here = thread_id();
        if *this.thread.get_or_insert(here) != here {
            this.cpu_time.moved.store(true, Relaxed);
        }
        if this.waiting.is_none() && lane::must_wait() && this.cpu_time.phase.load(Relaxed) == PASSING {
            this.waiting =
                Some(Box::pin(lane::admit(Arc::as_ptr(&this.cpu_time.turns) as lane::FunctionId)));
        }
        if let Some(waiting) = &mut this.waiting {
            ready!(waiting.as_mut().poll(context));
            this.waiting = None;
        }
        let entered_ns = reckoned_thread_ns();
        this.cpu_time.entered_ns.store(entered_ns, Relaxed);
        let polled = Pin::new(&mut this.run).poll(context);
        let ran_ns = reckoned_thread_ns().saturating_sub(entered_ns);
        this.cpu_time.spent_ns.fetch_add(ran_ns, Relaxed);
        lane::note_run(ran_ns);
        match this.cpu_time.phase.load(Relaxed) {
            PASSING => lane::charge(ran_ns),
            ADMITTED => {
                lane::charge(ran_ns);
                this.cpu_time.phase.store(PASSING, Relaxed);
            }
            IN_LANE => this.cpu_time.phase.store(PASSING, Relaxed),
            _ => {}
        }
        drop(this.cpu_time.turn.lock().take());
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
        let cpu_time = CpuTime::new(Duration::from_millis(200), Arc::default());
        let run = async {
            cpu_time.at_tick().map(drop).unwrap();
            tokio::task::yield_now().await;
            cpu_time.at_tick().map(drop).unwrap();
            spin(250);
            cpu_time.at_tick().map(drop)
        };
        let mut run = Counted::new(cpu_time.clone(), Box::pin(run));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut run).poll(&mut context).is_pending());
        // It waits, while another isolate computes.
        spin(1000);
        assert_eq!(Pin::new(&mut run).poll(&mut context), Poll::Ready(Err(TimeUsed)));
        assert!((250..1000).contains(&cpu_time.spent().as_millis()), "{:?}", cpu_time.spent());
    }

    #[tokio::test]
    async fn a_tick_interrupts_what_has_computed_for_a_while_and_nothing_else() {
        let cpu_time = CpuTime::new(Duration::MAX, Arc::default());
        let ticks = cpu_time.clone();
        let run = Box::pin(async move {
            assert_eq!(ticks.at_tick(), Ok(AtTick::GoesOn), "it has just begun");
            spin(1);
            assert_eq!(ticks.at_tick(), Ok(AtTick::TakesTurn));
            ticks.take_turn().await;
            assert_eq!(ticks.at_tick(), Ok(AtTick::TakesTurn), "a slice of the lane ends with each tick");
            tokio::task::yield_now().await;
            assert_eq!(ticks.at_tick(), Ok(AtTick::GoesOn), "it has waited for something");
        });
        Counted::new(cpu_time, run).await;
    }

    #[test]
    fn the_reckoned_time_follows_the_threads_own_clock() {
        for _ in 0..10_000 {
            let (before_ns, reckoned_ns, after_ns) = (thread_ns(), reckoned_thread_ns(), thread_ns());
            let max_ns = after_ns + RECKONED.as_nanos() as u64;
            assert!((before_ns..=max_ns).contains(&reckoned_ns), "{reckoned_ns}: {before_ns} to {max_ns}");
        }
    }

    #[tokio::test]
    async fn one_that_was_admitted_does_not_wait_again_in_its_first_poll() {
        let run = |cpu_time: &Arc<CpuTime>| {
            let run = Box::pin(async {
                tokio::task::yield_now().await;
            });
            Counted::new(cpu_time.clone(), run)
        };
        let mut context = Context::from_waker(std::task::Waker::noop());
        lane::charge(u64::MAX);
        let waits = CpuTime::new(Duration::MAX, Arc::default());
        let mut waiting = run(&waits);
        assert!(Pin::new(&mut waiting).poll(&mut context).is_pending());
        assert!(waiting.waiting.is_some(), "the round is full");
        let passes = CpuTime::new(Duration::MAX, Arc::default());
        passes.admitted();
        let mut passing = run(&passes);
        assert!(Pin::new(&mut passing).poll(&mut context).is_pending());
        assert!(passing.waiting.is_none());
        assert_eq!(passes.phase.load(Relaxed), PASSING, "later polls wait as all others do");
    }

    #[test]
    fn a_run_on_two_threads_is_noticed() {
        let cpu_time = CpuTime::new(Duration::MAX, Arc::default());
        let mut run = Counted::new(cpu_time.clone(), Box::pin(std::future::pending::<()>()));
        let mut poll = move || {
            let mut context = Context::from_waker(std::task::Waker::noop());
            assert!(Pin::new(&mut run).poll(&mut context).is_pending());
        };
        poll();
        poll();
        assert!(!cpu_time.has_moved());
        std::thread::scope(|scope| scope.spawn(poll).join()).unwrap();
        assert!(cpu_time.has_moved());
    }

    #[test]
    fn a_thread_that_sleeps_uses_nothing() {
        let cpu_time = CpuTime::new(Duration::from_millis(100), Arc::default());
        let run = async {
            // As if the system gave the processor to another thread.
            std::thread::sleep(Duration::from_millis(300));
            cpu_time.at_tick().map(drop)
        };
        let mut run = Counted::new(cpu_time.clone(), Box::pin(run));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut run).poll(&mut context), Poll::Ready(Ok(())));
    }
}
