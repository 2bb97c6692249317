//! The lane of a thread: isolates compute in it one at a time, in slices, between rounds of the thread's event loop.
//!
//! A worker thread serves connections and runs isolates on one single-threaded runtime. A *round* of that runtime polls the
//! sockets and timers once and then runs every task that is ready. Without the lane a round lasts for one slice of each
//! isolate that computes, so that a packet waits longer the more isolates compute. With it a round holds at most
//!
//! - one slice of an isolate that has computed for a tick (the lane's permit, in the order of arrival), and
//! - isolates that start, or go on after a wait, until they have used [`ROUND`] together; the others follow in the next
//!   round, one of each function after the other.
//!
//! An invocation that ends within its first slice therefore passes those that compute for long, as in a multilevel feedback
//! queue (Corbató et al., "An Experimental Time-Sharing System", 1962). The two shares are counted apart, so that neither
//! starves the other. Where nothing computes, an invocation pays one read of a thread-local variable.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Processor time of isolates outside of the lane, in one round of a thread.
const ROUND: Duration = Duration::from_millis(1);
/// A run of at least this length counts as computing: it asks for the [fine](crate::engine::FINE_TICK) epoch tick, and is
/// interrupted by one.
const LONG_RUN: Duration = Duration::from_micros(500);

thread_local! {
    static HERE: Lane = Lane::default();
}

/// Isolates of this process that wait for a lane or compute in one.
static COMPUTING: AtomicU32 = AtomicU32::new(0);
/// An isolate has held its thread for [`LONG_RUN`] since the last look.
static LONG_RUN_SEEN: AtomicBool = AtomicBool::new(false);

struct Lane {
    turn: Arc<Semaphore>,
    /// Rounds that an invocation has seen begin.
    round: Cell<u64>,
    /// Processor time of isolates outside of the lane, in this round.
    spent_ns: Cell<u64>,
    waiting: Arc<Waiting>,
}

/// Invocations that wait for a round with time left. Functions have their turns one after another, and the invocations of each in
/// the order of arrival: a function that is called without end delays the others by one of its invocations only. The runtime alone
/// would run tasks that a socket woke before those that have yielded, so that later invocations would be first.
#[derive(Default)]
struct Waiting {
    count: AtomicUsize,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    last_number: u64,
    /// The waiting invocations of each function, by number. The function at the front is the next.
    functions: VecDeque<(FunctionId, VecDeque<u64>)>,
}

/// Tells functions apart while they run.
pub(crate) type FunctionId = usize;

/// A waiting invocation, which stops waiting on drop. It belongs to the lane of the thread that it was made on.
struct Ticket {
    waiting: Arc<Waiting>,
    function: FunctionId,
    number: u64,
}

impl Ticket {
    fn take(waiting: Arc<Waiting>, function: FunctionId) -> Self {
        let mut queues = waiting.queues.lock();
        queues.last_number += 1;
        let number = queues.last_number;
        match queues.functions.iter_mut().find(|(other, _)| *other == function) {
            Some((_, numbers)) => numbers.push_back(number),
            None => queues.functions.push_back((function, VecDeque::from([number]))),
        }
        waiting.count.fetch_add(1, Relaxed);
        drop(queues);
        Self { waiting, function, number }
    }

    fn is_first(&self) -> bool {
        let queues = self.waiting.queues.lock();
        queues.functions.front().is_some_and(|(_, numbers)| numbers.front() == Some(&self.number))
    }

    /// Ends this turn: the next turn is another function's.
    fn pass_on(self) {
        let mut queues = self.waiting.queues.lock();
        queues.functions.rotate_left(1);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = self.waiting.queues.lock();
        let functions = &mut queues.functions;
        let Some(at) = functions.iter().position(|(function, _)| *function == self.function) else {
            return;
        };
        functions[at].1.retain(|number| *number != self.number);
        if functions[at].1.is_empty() {
            functions.remove(at);
        }
        self.waiting.count.fetch_sub(1, Relaxed);
    }
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            round: Cell::new(0),
            spent_ns: Cell::new(0),
            waiting: Arc::default(),
        }
    }
}

/// An isolate that computes for long, or waits to.
#[derive(Debug)]
pub(crate) struct Computing(());

impl Computing {
    pub fn begin() -> Self {
        COMPUTING.fetch_add(1, Relaxed);
        Self(())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        COMPUTING.fetch_sub(1, Relaxed);
    }
}

/// True if an invocation has to wait: this thread's round has no time left outside of the lane, or others wait already.
pub(crate) fn must_wait() -> bool {
    HERE.with(|lane| lane.is_full() || lane.waiting.count.load(Relaxed) > 0)
}

/// Waits for a round that has time left outside of the lane, and for the turn of its function among those that wait. Dropping the
/// future stops waiting.
pub(crate) async fn admit(function: FunctionId) {
    if !must_wait() {
        return;
    }
    let ticket = Ticket::take(HERE.with(|lane| lane.waiting.clone()), function);
    while HERE.with(Lane::is_full) || !ticket.is_first() {
        next_round().await;
    }
    ticket.pass_on();
}

impl Lane {
    fn is_full(&self) -> bool {
        self.spent_ns.get() >= ROUND.as_nanos() as u64
    }
}

/// Waits for the permit of this thread's lane and for the next round. Dropping the future stops waiting.
pub(crate) async fn turn() -> Option<OwnedSemaphorePermit> {
    let turn = HERE.with(|lane| lane.turn.clone()).acquire_owned().await.ok();
    next_round().await;
    turn
}

/// Counts processor time that an isolate has used on this thread outside of the lane.
pub(crate) fn charge(ran_ns: u64) {
    HERE.with(|lane| lane.spent_ns.set(lane.spent_ns.get().saturating_add(ran_ns)));
}

/// True if an isolate that held its thread for `ran_ns` counts as a long run.
pub(crate) fn is_long(ran_ns: u64) -> bool {
    ran_ns >= LONG_RUN.as_nanos() as u64
}

/// Takes note of how long an isolate has held its thread.
pub(crate) fn note_run(ran_ns: u64) {
    if is_long(ran_ns) {
        LONG_RUN_SEEN.store(true, Relaxed);
    }
}

/// True if isolates compute for long; forgets runs that have ended.
pub(crate) fn has_long_runs() -> bool {
    LONG_RUN_SEEN.swap(false, Relaxed) | (COMPUTING.load(Relaxed) > 0)
}

/// Lets the runtime poll its sockets and run what is ready. The runtime's own yield does so; a task that wakes itself
/// would run again before the sockets are polled.
async fn next_round() {
    let round = HERE.with(|lane| lane.round.get());
    tokio::task::yield_now().await;
    HERE.with(|lane| {
        // The first of those that waited for this round begins it.
        if lane.round.get() == round {
            lane.round.set(round + 1);
            lane.spent_ns.set(0);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use futures_util::FutureExt;

    use super::*;

    /// Long enough to fill a round.
    const SLICE_NS: u64 = 2_000_000;

    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        tokio::spawn(work)
    }

    #[tokio::test]
    async fn a_round_has_one_slice_of_those_that_compute_however_many_they_are() {
        let slices = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let slices = slices.clone();
                spawn(async move {
                    loop {
                        let turn = turn().await;
                        slices.fetch_add(1, Relaxed);
                        drop(turn);
                    }
                })
            })
            .collect();
        // A connection: woken by the event loop once a round.
        let mut max = 0;
        for _ in 0..1000 {
            let before = slices.load(Relaxed);
            tokio::task::yield_now().await;
            max = max.max(slices.load(Relaxed) - before);
        }
        assert!(slices.load(Relaxed) > 100, "they do compute");
        assert!(max <= 1, "{max} slices in one round");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn new_invocations_share_a_round_and_all_start() {
        let (started, connection) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        for _ in 0..50 {
            let started = started.clone();
            spawn(async move {
                admit(1).await;
                started.fetch_add(1, Relaxed);
                charge(SLICE_NS);
            });
        }
        let mut max = 0;
        while started.load(Relaxed) < 50 {
            let before = started.load(Relaxed);
            tokio::task::yield_now().await;
            connection.fetch_add(1, Relaxed);
            max = max.max(started.load(Relaxed) - before);
        }
        assert!(max <= 1, "{max} starts in one round");
    }

    #[tokio::test]
    async fn a_new_invocation_passes_those_that_compute() {
        for _ in 0..100 {
            spawn(async {
                loop {
                    drop(turn().await);
                }
            });
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        charge(SLICE_NS);
        let fresh = spawn(admit(1));
        let mut rounds = 0;
        while !fresh.is_finished() {
            tokio::task::yield_now().await;
            rounds += 1;
        }
        assert!(rounds <= 5, "{rounds} rounds until it started");
    }

    #[tokio::test]
    async fn one_that_waits_is_not_overtaken_by_those_that_come_later() {
        let start = || {
            spawn(async {
                admit(1).await;
                charge(SLICE_NS);
            })
        };
        charge(SLICE_NS);
        let (_first, second) = (start(), start());
        let mut rounds = 0;
        while !second.is_finished() && rounds < 100 {
            // As many as a round has time for.
            start();
            tokio::task::yield_now().await;
            rounds += 1;
        }
        assert!(rounds <= 5, "{rounds} rounds until it started");
    }

    #[tokio::test]
    async fn a_function_that_is_called_without_end_holds_up_no_other() {
        charge(SLICE_NS);
        // Fewer than the runtime polls between two looks at its sockets.
        let flood: Vec<_> = (0..50)
            .map(|_| {
                spawn(async {
                    admit(1).await;
                    charge(SLICE_NS);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let other = spawn(admit(2));
        let mut rounds = 0;
        while !other.is_finished() && rounds < 100 {
            tokio::task::yield_now().await;
            rounds += 1;
        }
        assert!(rounds <= 10, "{rounds} rounds until it started, beside 50 others");
        flood.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn a_waiting_isolate_that_is_dropped_delays_no_other() {
        let first = turn().await;
        let mut quitter = Box::pin(turn());
        assert!((&mut quitter).now_or_never().is_none());
        drop(quitter);
        let waits = spawn(async { drop(turn().await) });
        drop(first);
        waits.await.unwrap();
    }
}
