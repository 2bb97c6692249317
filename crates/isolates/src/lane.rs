//! The lane of a thread: isolates compute in it one at a time, in slices, between rounds of the thread's event loop.
//!
//! A worker thread serves connections and runs isolates on one single-threaded runtime. A *round* of that runtime polls the
//! sockets and timers once and then runs every task that is ready. Without the lane a round lasts for one slice of each
//! isolate that computes, so that a packet waits longer the more isolates compute. With it a round holds at most
//!
//! - one slice of an isolate that has computed for a tick (the lane's permit, in the order of arrival), and
//! - isolates that start, or go on after a wait, until they have used [`ROUND`] together; the others follow in the next
//!   round.
//!
//! An invocation that ends within its first slice therefore passes those that compute for long, as in a multilevel feedback
//! queue (Corbató et al., "An Experimental Time-Sharing System", 1962). The two shares are counted apart, so that neither
//! starves the other. Where nothing computes, an invocation pays one read of a thread-local variable.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

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
}

impl Default for Lane {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), round: Cell::new(0), spent_ns: Cell::new(0) }
    }
}

/// An isolate that wants to compute on, or does.
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

/// Whether this thread's round has no time left outside of the lane.
pub(crate) fn is_full() -> bool {
    HERE.with(|lane| lane.spent_ns.get() >= ROUND.as_nanos() as u64)
}

/// Waits for a round that has time left outside of the lane. Dropping the future gives up the wait.
pub(crate) async fn admit() {
    while is_full() {
        next_round().await;
    }
}

/// Waits for the permit of this thread's lane and for the next round. Dropping the future gives up the place.
pub(crate) async fn turn() -> Option<OwnedSemaphorePermit> {
    let turn = HERE.with(|lane| lane.turn.clone()).acquire_owned().await.ok();
    next_round().await;
    turn
}

/// Counts processor time that an isolate has used on this thread outside of the lane.
pub(crate) fn charge(ran_ns: u64) {
    HERE.with(|lane| lane.spent_ns.set(lane.spent_ns.get().saturating_add(ran_ns)));
}

/// Whether an isolate has held its thread for so long that it computes.
pub(crate) fn is_long(ran_ns: u64) -> bool {
    ran_ns >= LONG_RUN.as_nanos() as u64
}

/// Takes note of how long an isolate has held its thread.
pub(crate) fn note_run(ran_ns: u64) {
    if is_long(ran_ns) {
        LONG_RUN_SEEN.store(true, Relaxed);
    }
}

/// Whether isolates compute for long; forgets runs that have ended.
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
        let mut most = 0;
        for _ in 0..1000 {
            let before = slices.load(Relaxed);
            tokio::task::yield_now().await;
            most = most.max(slices.load(Relaxed) - before);
        }
        assert!(slices.load(Relaxed) > 100, "they do compute");
        assert!(most <= 1, "{most} slices in one round");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn new_invocations_share_a_round_and_all_start() {
        let (started, connection) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        for _ in 0..50 {
            let started = started.clone();
            spawn(async move {
                admit().await;
                started.fetch_add(1, Relaxed);
                charge(SLICE_NS);
            });
        }
        let mut most = 0;
        while started.load(Relaxed) < 50 {
            let before = started.load(Relaxed);
            tokio::task::yield_now().await;
            connection.fetch_add(1, Relaxed);
            most = most.max(started.load(Relaxed) - before);
        }
        assert!(most <= 1, "{most} starts in one round");
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
        let fresh = spawn(admit());
        let mut rounds = 0;
        while !fresh.is_finished() {
            tokio::task::yield_now().await;
            rounds += 1;
        }
        assert!(rounds <= 5, "{rounds} rounds until it started");
    }

    #[tokio::test]
    async fn a_place_that_is_given_up_stops_nobody() {
        let first = turn().await;
        let mut quitter = Box::pin(turn());
        assert!(futures_util::poll!(&mut quitter).is_pending());
        drop(quitter);
        let waits = spawn(async { drop(turn().await) });
        drop(first);
        waits.await.unwrap();
    }
}
