//! Turns of functions to compute, where many invocations do at once.
//!
//! An invocation that has computed for a tick goes on when it is its function's turn on this thread, which one invocation of
//! a function has at a time, and then waits for the thread's [lane](crate::lane). A function with a thousand invocations
//! gets no more of a thread than a function with two.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lane;

/// The turns of one function on each thread.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<ThreadId, Arc<Semaphore>>>);

/// The right to compute for one slice.
#[derive(Debug)]
pub(crate) struct Turn {
    _function: Option<OwnedSemaphorePermit>,
    _lane: Option<OwnedSemaphorePermit>,
    _computing: lane::Computing,
}

impl Turns {
    /// Waits for the turn on this thread, in the order of arrival, and for the next round of its event loop.
    pub async fn take(&self) -> Turn {
        let computing = lane::Computing::begin();
        let here = self
            .0
            .lock()
            .entry(thread::current().id())
            .or_insert_with(|| Arc::new(Semaphore::new(1)))
            .clone();
        let function = here.acquire_owned().await.ok();
        Turn { _function: function, _lane: lane::turn().await, _computing: computing }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;
    use crate::cpu_time::{Counted, CpuTime};

    /// Many invocations that compute without end; each adds its slices of the thread to `slices`.
    fn compute(invocations: usize, slices: &Arc<AtomicU32>) -> Vec<tokio::task::JoinHandle<()>> {
        let turns = Arc::<Turns>::default();
        let compute = (0..invocations).map(|_| {
            let (cpu_time, slices) = (CpuTime::new(Duration::MAX, turns.clone()), slices.clone());
            let ticks = cpu_time.clone();
            let run = Box::pin(async move {
                loop {
                    slices.fetch_add(1, Relaxed);
                    ticks.take_turn().await;
                }
            });
            tokio::spawn(Counted::new(cpu_time, run))
        });
        compute.collect()
    }

    #[tokio::test]
    async fn a_function_with_many_invocations_gets_no_more_than_one_with_few() {
        let (many, few) = (Arc::default(), Arc::default());
        let tasks = compute(64, &many).into_iter().chain(compute(2, &few)).collect::<Vec<_>>();
        // Everybody computes for a tick before it is asked to wait.
        tokio::task::yield_now().await;
        let before = (many.load(Relaxed), few.load(Relaxed));
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let (many, few) = (many.load(Relaxed) - before.0, few.load(Relaxed) - before.1);
        assert!(few > 100, "{few} slices in 1,000 rounds");
        assert!(many.abs_diff(few) < few / 2, "{many} slices of 64 invocations, {few} of two");
        tasks.iter().for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn who_waits_for_something_else_leaves_the_turn_to_others() {
        let (turns, slices) = (Arc::<Turns>::default(), Arc::<AtomicU32>::default());
        let cpu_time = CpuTime::new(Duration::MAX, turns.clone());
        let (ticks, counted) = (cpu_time.clone(), slices.clone());
        let run = Box::pin(async move {
            ticks.take_turn().await;
            counted.fetch_add(1, Relaxed);
            std::future::pending::<()>().await;
        });
        let waits = tokio::spawn(Counted::new(cpu_time, run));
        while slices.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(turns.take().await._function.is_some());
        waits.abort();
    }
}
