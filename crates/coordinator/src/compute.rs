//! Threads for workflows that compute: an instance whose turn takes longer than a moment goes on here, so that the workers
//! answer everybody else meanwhile. The threads have a lower priority than the workers and start with the first such turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::root::NodeBudget;

/// How long one instance computes until it is the next one's turn.
pub(super) const SLICE: Duration = Duration::from_millis(5);
/// An instance that holds so much ends before others grow, where memory is short.
const LARGE_BYTES: usize = 256 << 10;
/// Before another instance computes when all memory of instances is taken.
const PAUSE: Duration = Duration::from_millis(10);
/// Where memory is short, one in so many jobs is that which has waited longest, whatever it holds: the largest may never end.
const OLDEST_SHARE: u64 = 4;
/// Of the threads, on top of the node's own.
const NICE: i32 = 10;
const MAX_THREADS: usize = 4;

/// A piece of work that is done in slices. Whoever has its result gets the place as well.
type Job = Box<dyn FnMut(&mut Option<Computed>) + Send>;

/// The threads and what they have to do. At most one job waits for each instance that runs.
pub(super) struct Compute {
    queue: Arc<Queue>,
}

struct Queue {
    /// Of the instances that compute.
    memory: NodeBudget,
    state: Mutex<QueueState>,
    ready: Condvar,
}

/// A job of an instance.
struct Work {
    job: Job,
    /// What the instance held before.
    bytes: usize,
    /// A slice of it was done.
    place: Option<Computed>,
}

/// The place of an instance that has begun to compute. Where memory is short no other begins before this is dropped, which is when
/// what the instance made is charged for and has its place, or is gone.
pub(super) struct Computed(Arc<Queue>);

impl Drop for Computed {
    fn drop(&mut self) {
        self.0.state.lock().begun -= 1;
        self.0.ready.notify_one();
    }
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Work>,
    threads: usize,
    /// Jobs that have begun: those on the threads, those of them in `jobs`, and those whose instance still has its place.
    begun: usize,
    idle: usize,
    /// Jobs that have begun while memory was short.
    short_turns: u64,
    stopped: bool,
}

impl Compute {
    /// For instances within a budget: when nothing is left of it, they end one after another.
    pub(super) fn new(memory: NodeBudget) -> Self {
        let state = Mutex::new(QueueState::default());
        Self { queue: Arc::new(Queue { memory, state, ready: Condvar::new() }) }
    }

    /// Runs `slice` of an instance that holds so many bytes until it gives a result; between two slices others have their
    /// turn. None: the node stops, or there is no thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        mut slice: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Option<(T, Computed)> {
        let (sender, result) = oneshot::channel();
        let mut sender = Some(sender);
        let job = Box::new(move |place: &mut Option<Computed>| {
            if let Some(value) = slice()
                && let Some(place) = place.take()
                && let Some(sender) = sender.take()
            {
                let _ = sender.send((value, place));
            }
        });
        self.push(Work { job, bytes, place: None });
        result.await.ok()
    }

    fn push(&self, work: Work) {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let mut state = self.queue.state.lock();
        if state.stopped {
            return;
        }
        state.jobs.push_back(work);
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

impl QueueState {
    /// The job whose turn it is. Where memory `is_short`, one that has begun; if there is none that of the instance that holds most: it may
    /// be about to give it back. One that holds little begins after a pause. One in [`OLDEST_SHARE`] of them is the one that waits longest.
    fn next(&mut self, is_short: bool, has_paused: bool) -> Option<Work> {
        let begun = || self.jobs.iter().position(|work| work.place.is_some());
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
        // Of this thread alone, as Linux has it.
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "workflows compute with the priority of the workers");
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
                        if work.place.is_none() {
                            state.begun += 1;
                            work.place = Some(Computed(self.clone()));
                        }
                        break (work, is_short);
                    }
                    if !state.jobs.is_empty() && state.begun == 0 {
                        // Those that have ended are being stored, and give their memory back.
                        let ends = *pause_ends.get_or_insert_with(|| Instant::now() + PAUSE);
                        self.ready.wait_until(&mut state, ends);
                        continue;
                    }
                    state.idle += 1;
                    self.ready.wait(&mut state);
                    state.idle -= 1;
                }
            };
            let Work { job, place, .. } = &mut work;
            // What panics is gone, with the instance; the thread is not.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(place)));
            let is_done = outcome.is_err() || place.is_none();
            if is_done {
                drop(work);
                continue;
            }
            let mut state = self.state.lock();
            if state.stopped {
                return;
            }
            match was_short {
                // The others are to end before it is their turn.
                true => state.jobs.push_front(work),
                false => state.jobs.push_back(work),
            }
            // Those that were held back wait without a thread of theirs.
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
    async fn what_is_done_in_slices_lets_others_in_between() {
        let compute = Arc::new(Compute::new(NodeBudget::new(1 << 20)));
        let others = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        // Goes on until all the others have ended, however many threads there are.
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
    fn where_memory_is_short_the_largest_does_not_keep_others_from_computing() {
        let work = |bytes| Work { job: Box::new(|_| {}), bytes, place: None };
        let mut state = QueueState::default();
        state.jobs.extend([work(1 << 10), work(2 << 10)]);
        let mut begun = Vec::new();
        for _ in 0..2 * OLDEST_SHARE {
            // It loops: after each of its turns it is there again.
            state.jobs.push_back(work(1 << 20));
            begun.extend(state.next(true, true).map(|work| work.bytes));
            state.jobs.retain(|work| work.bytes < 1 << 20);
        }
        assert_eq!(begun.iter().filter(|bytes| **bytes < 1 << 20).count(), 2, "{begun:?}");
    }

    #[tokio::test]
    async fn where_memory_is_short_none_begins_before_the_one_before_has_its_place() {
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
            let place = all.next().await.unwrap().unwrap();
            tokio::task::yield_now().await;
            assert_eq!(count(), begun, "the place of the last one is taken");
            drop(place);
        }
    }
}
