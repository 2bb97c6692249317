//! Whose turn it is to compute, where many invocations want to at once.
//!
//! An invocation that has computed for a tick goes on when it is its function's turn on this thread, which one invocation of
//! a function has at a time. So a thread has as many that compute as there are functions that want to, and not as many as
//! there are invocations: a function with a thousand of them gets no more of it than one with two, and what ends within a
//! tick waits for a tick of each of the others at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of one function on each thread.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<ThreadId, Arc<Semaphore>>>);

impl Turns {
    /// Waits for the turn on this thread; those who wait have it in the order in which they came.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let here = self
            .0
            .lock()
            .entry(thread::current().id())
            .or_insert_with(|| Arc::new(Semaphore::new(1)))
            .clone();
        here.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;
    use crate::busy::{Busy, Counted};

    /// Many invocations that compute for ever; each adds to `slices` what it had of the thread.
    fn compute(invocations: usize, slices: &Arc<AtomicU32>) -> Vec<tokio::task::JoinHandle<()>> {
        let turns = Arc::<Turns>::default();
        let compute = (0..invocations).map(|_| {
            let (busy, slices) = (Busy::new(Duration::MAX, turns.clone()), slices.clone());
            let ticks = busy.clone();
            let run = Box::pin(async move {
                loop {
                    slices.fetch_add(1, Relaxed);
                    ticks.take_turn().await;
                }
            });
            tokio::spawn(Counted { busy, run })
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
        let busy = Busy::new(Duration::MAX, turns.clone());
        let (ticks, counted) = (busy.clone(), slices.clone());
        let waits = tokio::spawn(Counted {
            busy,
            run: Box::pin(async move {
                ticks.take_turn().await;
                counted.fetch_add(1, Relaxed);
                std::future::pending::<()>().await;
            }),
        });
        while slices.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(turns.take().await.is_some());
        waits.abort();
    }
}
