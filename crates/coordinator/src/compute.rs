//! Compute threads for long turns: an instance whose turn exceeds a worker's slice continues here, so that the workers
//! stay responsive. The threads have a lower priority than the workers. The first long turn starts them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::root_budget::NodeBudget;

/// The time slice of an instance. Then the next instance computes.
pub(super) const SLICE: Duration = Duration::from_millis(5);
/// If memory is short, an instance of this size in bytes or more computes without a pause before it.
const LARGE_BYTES: usize = 256 << 10;
/// The pause before another instance computes while the whole memory budget of instances is in use.
const PAUSE: Duration = Duration::from_millis(10);
/// If memory is short, one job in this many is the job that has waited longest, whatever its size: the largest job may
/// never end.
const OLDEST_SHARE: u64 = 4;
/// Nice value of the threads, added to that of the node.
const NICE: i32 = 10;
const MAX_THREADS: usize = 4;

/// A job that runs in slices. The receiver of its result also receives its slot.
type Job = Box<dyn FnMut(&mut Option<ComputeSlot>) + Send>;

/// The compute threads and their job queue. At most one job waits for each running instance.
pub(super) struct Compute {
    queue: Arc<Queue>,
}

struct Queue {
    /// The memory budget of instances.
    memory: NodeBudget,
    state: Mutex<QueueState>,
    ready: Condvar,
}

/// A job of an instance.
struct Work {
    job: Job,
    /// Size of the instance before the turn, in bytes.
    bytes: usize,
    /// `Some` once the job has started.
    slot: Option<ComputeSlot>,
}

/// The slot of an instance that computes. Where memory is short, no other instance starts to compute until the slot is
/// dropped: then the result of the turn is charged and stored, or discarded.
pub(super) struct ComputeSlot(Arc<Queue>);

impl Drop for ComputeSlot {
    fn drop(&mut self) {
        self.0.state.lock().begun -= 1;
        self.0.ready.notify_one();
    }
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Work>,
    threads: usize,
    /// Started jobs: those on the threads, those between two slices in `jobs`, and those whose instance still holds its
    /// slot.
    begun: usize,
    idle: usize,
    /// Jobs that started while memory was short.
    short_turns: u64,
    stopped: bool,
}

impl Compute {
    /// Compute threads for instances within `memory`. While the budget is used up, instances finish one after another.
    pub(super) fn new(memory: NodeBudget) -> Self {
        let state = Mutex::new(QueueState::default());
        Self { queue: Arc::new(Queue { memory, state, ready: Condvar::new() }) }
    }

    /// Runs `slice` for an instance of `bytes` bytes until it returns a result. Other jobs run between two slices.
    /// `None` if the node stops or no thread can be started.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        mut slice: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Option<(T, ComputeSlot)> {
        let (sender, result) = oneshot::channel();
        let mut sender = Some(sender);
        let job = Box::new(move |slot: &mut Option<ComputeSlot>| {
            if let Some(value) = slice()
                && let Some(slot) = slot.take()
                && let Some(sender) = sender.take()
            {
                let _ = sender.send((value, slot));
            }
        });
        self.push(Work { job, bytes, slot: None });
        result.await.ok()
    }

    fn push(&self, work: Work) {
        let max_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let mut state = self.queue.state.lock();
        if state.stopped {
            return;
        }
        state.jobs.push_back(work);
        if state.idle < state.jobs.len() && state.threads < max_threads {
            let queue = self.queue.clone();
            let name = format!("compute-{}", state.threads);
            let thread = std::thread::Builder::new().name(name).spawn(move || queue.work());
            match thread {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "cannot start a compute thread for workflows");
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

impl QueueState {
    /// The next job. Where memory `is_short`, this is a job that has started; if none has, the job of the largest
    /// instance, which may be about to free its memory. A small instance starts after a pause. One job in
    /// [`OLDEST_SHARE`] is the job that has waited longest.
    fn next(&mut self, is_short: bool, has_paused: bool) -> Option<Work> {
        let begun = || self.jobs.iter().position(|work| work.slot.is_some());
        let largest = || (0..self.jobs.len()).max_by_key(|at| self.jobs[*at].bytes);
        let at = match is_short {
            false => (!self.jobs.is_empty()).then_some(0),
            true if self.begun > 0 => begun(),
            true => {
                let is_oldest = self.short_turns % OLDEST_SHARE == OLDEST_SHARE - 1;
                let next = if is_oldest { (!self.jobs.is_empty()).then_some(0) } else { largest() };
                let next = next.filter(|at| has_paused || self.jobs[*at].bytes >= LARGE_BYTES)?;
                self.short_turns += 1;
                Some(next)
            }
        }?;
        self.jobs.remove(at)
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
    fn work(self: &Arc<Self>) {
        // On Linux the nice value belongs to the thread.
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "compute threads of workflows keep the priority of the workers");
        }
        loop {
            let mut pause_ends = None;
            let (mut work, was_short) = {
                let mut state = self.state.lock();
                loop {
                    if state.stopped {
                        return;
                    }
                    let is_short = self.memory.is_spent();
                    let has_paused = pause_ends.is_some_and(|ends| Instant::now() >= ends);
                    if let Some(mut work) = state.next(is_short, has_paused) {
                        if work.slot.is_none() {
                            state.begun += 1;
                            work.slot = Some(ComputeSlot(self.clone()));
                        }
                        break (work, is_short);
                    }
                    if !state.jobs.is_empty() && state.begun == 0 {
                        // Instances whose turn has ended are being stored, and then free memory.
                        let ends = *pause_ends.get_or_insert_with(|| Instant::now() + PAUSE);
                        self.ready.wait_until(&mut state, ends);
                        continue;
                    }
                    state.idle += 1;
                    self.ready.wait(&mut state);
                    state.idle -= 1;
                }
            };
            let Work { job, slot, .. } = &mut work;
            // A panic ends the job and the instance, but not the thread.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(slot)));
            let is_done = outcome.is_err() || slot.is_none();
            if is_done {
                drop(work);
                continue;
            }
            let mut state = self.state.lock();
            if state.stopped {
                return;
            }
            match was_short {
                // The started job finishes before the others start.
                true => state.jobs.push_front(work),
                false => state.jobs.push_back(work),
            }
            // Jobs that were held back wait without a thread.
            drop(state);
            self.ready.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use futures_util::stream::FuturesUnordered;

    use super::*;

    #[tokio::test]
    async fn other_jobs_run_between_two_slices_of_a_job() {
        let compute = Arc::new(Compute::new(NodeBudget::new(1 << 20)));
        let others = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        // Runs until all the others have ended, whatever the number of threads.
        let seen = others.clone();
        let long = compute.run(0, move || {
            std::thread::yield_now();
            (seen.load(std::sync::atomic::Ordering::Relaxed) == 20).then_some("long")
        });
        let short = async {
            for number in 0..20 {
                let others = others.clone();
                let done = compute.run(0, move || {
                    others.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    Some(number)
                });
                assert_eq!(done.await.map(|(number, _)| number), Some(number));
            }
        };
        assert_eq!(tokio::join!(long, short).0.map(|(name, _)| name), Some("long"));
    }

    #[test]
    fn while_memory_is_short_the_largest_job_does_not_starve_others() {
        let work = |bytes| Work { job: Box::new(|_| {}), bytes, slot: None };
        let mut state = QueueState::default();
        state.jobs.extend([work(1 << 10), work(2 << 10)]);
        let mut begun = Vec::new();
        for _ in 0..2 * OLDEST_SHARE {
            // An endless loop: it is queued again after each of its turns.
            state.jobs.push_back(work(1 << 20));
            begun.extend(state.next(true, true).map(|work| work.bytes));
            state.jobs.retain(|work| work.bytes < 1 << 20);
        }
        assert_eq!(begun.iter().filter(|bytes| **bytes < 1 << 20).count(), 2, "{begun:?}");
    }

    #[tokio::test]
    async fn while_memory_is_short_no_job_starts_before_the_slot_is_dropped() {
        let budget = NodeBudget::new(1 << 20);
        let _held = budget.bytes().take(1 << 20).unwrap();
        let compute = Arc::new(Compute::new(budget));
        let began = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let start = || {
            let (compute, began) = (compute.clone(), began.clone());
            tokio::spawn(async move {
                let one = compute.run(LARGE_BYTES, move || {
                    began.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    Some(())
                });
                one.await.unwrap().1
            })
        };
        let count = || began.load(std::sync::atomic::Ordering::SeqCst);
        let mut all: FuturesUnordered<_> = (0..3).map(|_| start()).collect();
        for begun in 1..=3 {
            let slot = all.next().await.unwrap().unwrap();
            tokio::task::yield_now().await;
            assert_eq!(count(), begun, "the last job still holds its slot");
            drop(slot);
        }
    }
}
