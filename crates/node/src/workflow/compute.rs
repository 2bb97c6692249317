//! Threads for workflows that compute: an instance whose turn takes longer than a moment goes on here, so that the workers
//! answer everybody else meanwhile. The threads have a lower priority than the workers and start with the first such turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// How long one instance computes until it is the next one's turn.
pub(super) const SLICE: Duration = Duration::from_millis(5);
/// Of the threads, on top of the node's own.
const NICE: i32 = 10;
const MAX_THREADS: usize = 4;

/// A piece of work that is done in slices: gives true when nothing is left of it.
type Job = Box<dyn FnMut() -> bool + Send>;

/// The threads and what they have to do. At most one job waits for each instance that runs.
#[derive(Default)]
pub(super) struct Compute {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    ready: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

impl Compute {
    /// Runs `slice` until it gives a result; between two slices others have their turn. None: the node stops, or there is
    /// no thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        mut slice: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = oneshot::channel();
        let mut sender = Some(sender);
        self.push(Box::new(move || match slice() {
            Some(value) => {
                if let Some(sender) = sender.take() {
                    let _ = sender.send(value);
                }
                true
            }
            None => false,
        }));
        result.await.ok()
    }

    fn push(&self, job: Job) {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let mut state = self.queue.state.lock();
        if state.stopped {
            return;
        }
        state.jobs.push_back(job);
        if state.idle < state.jobs.len() && state.threads < most {
            let queue = self.queue.clone();
            let name = format!("compute-{}", state.threads);
            let thread = std::thread::Builder::new().name(name).spawn(move || queue.work());
            match thread {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "no thread for workflows that compute");
                    if state.threads == 0 {
                        state.jobs.clear();
                    }
                }
            }
        }
        drop(state);
        self.queue.ready.notify_one();
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.queue.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.jobs)
        };
        self.queue.ready.notify_all();
        drop(jobs);
    }
}

impl Queue {
    fn work(&self) {
        // Of this thread alone, as Linux has it.
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "workflows compute with the priority of the workers");
        }
        loop {
            let mut job = {
                let mut state = self.state.lock();
                loop {
                    if state.stopped {
                        return;
                    }
                    if let Some(job) = state.jobs.pop_front() {
                        break job;
                    }
                    state.idle += 1;
                    self.ready.wait(&mut state);
                    state.idle -= 1;
                }
            };
            // What panics is gone, with the instance; the thread is not.
            let job_done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut job)).unwrap_or(true);
            if !job_done {
                let mut state = self.state.lock();
                if state.stopped {
                    return;
                }
                state.jobs.push_back(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_in_slices_lets_others_in_between() {
        let compute = Arc::new(Compute::default());
        let others = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        // Goes on until all the others have ended, however many threads there are.
        let seen = others.clone();
        let long = compute.run(move || {
            std::thread::yield_now();
            (seen.load(std::sync::atomic::Ordering::Relaxed) == 20).then_some("long")
        });
        let short = async {
            for number in 0..20 {
                let others = others.clone();
                let done = compute.run(move || {
                    others.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    Some(number)
                });
                assert_eq!(done.await, Some(number));
            }
        };
        assert_eq!(tokio::join!(long, short).0, Some("long"));
    }
}
