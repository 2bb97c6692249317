//! The worker threads, which serve connections and run isolates. Each has a single-threaded runtime.
//!
//! A connection stays on its worker. The work that it starts runs on the same worker, so that a request needs no hand-over
//! between threads. Work goes to the least busy worker only if the current one has [`IMBALANCE`] more tasks than that, and a
//! quarter more: of many tasks, differences in number say little about the time that they take.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Number of tasks that the current worker may have more than the least busy one before new work goes to the latter.
const IMBALANCE: usize = 4;

/// The workers of a node.
pub struct Workers {
    workers: Vec<Worker>,
    next_worker: AtomicUsize,
    connections: TaskTracker,
    stop: CancellationToken,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Worker {
    handle: Handle,
    tasks: Arc<AtomicUsize>,
}

thread_local! {
    static CURRENT: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

impl Workers {
    /// Starts `count` workers, at least one.
    pub fn start(count: usize) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let mut workers = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(4)
                .build()?;
            workers.push(Worker { handle: runtime.handle().clone(), tasks: Arc::default() });
            let stopped = stop.clone().cancelled_owned();
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                CURRENT.set(Some(index));
                runtime.block_on(stopped);
                // Drops the remaining tasks: the drain of the node has already waited for them.
                runtime.shutdown_background();
            })?;
            threads.push(thread);
        }
        let (next_worker, connections) = (AtomicUsize::new(0), TaskTracker::new());
        Ok(Self { workers, next_worker, connections, stop, threads: Mutex::new(threads) })
    }

    /// Runs a connection on the next worker (round robin).
    pub fn spawn_connection(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let index = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        self.workers[index].handle.spawn(self.connections.track_future(connection));
    }

    /// Waits until the last connection has ended.
    pub async fn connections_ended(&self) {
        self.connections.close();
        self.connections.wait().await;
    }

    /// Spawns a task on the current worker, or on the least busy one if the current thread is not a worker or has too many
    /// tasks.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let worker = &self.workers[self.choose_worker()];
        let tasks = worker.tasks.clone();
        tasks.fetch_add(1, Ordering::Relaxed);
        let guard = TaskGuard(tasks);
        worker.handle.spawn(async move {
            let _guard = guard;
            work.await;
        });
    }

    /// Runs a future on a worker and returns its result; `None` if the workers stopped before it had ended. Dropping the
    /// returned future does not cancel the work.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (result, done) = tokio::sync::oneshot::channel();
        self.spawn(async move {
            let _ = result.send(work.await);
        });
        done.await.ok()
    }

    /// Does the same as [`run`](Self::run), but dropping the returned future drops the work too.
    pub async fn run_attached<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (mut result, done) = tokio::sync::oneshot::channel();
        self.spawn(async move {
            tokio::select! {
                biased;
                output = work => drop(result.send(output)),
                () = result.closed() => {}
            }
        });
        done.await.ok()
    }

    /// Waits until every worker has run a task, or has stopped.
    pub async fn answer(&self) {
        let answers: Vec<_> = self.workers.iter().map(|worker| worker.handle.spawn(async {})).collect();
        for answer in answers {
            // An error is a stopped worker.
            let _ = answer.await;
        }
    }

    /// Stops the workers and drops their tasks. Blocks until the threads have ended.
    pub fn stop(&self) {
        self.stop.cancel();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// The runtimes of the workers.
    pub fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.workers.iter().map(|worker| &worker.handle)
    }

    fn choose_worker(&self) -> usize {
        let load = |index: usize| self.workers[index].tasks.load(Ordering::Relaxed);
        let least = (0..self.workers.len()).min_by_key(|index| load(*index)).unwrap_or(0);
        match CURRENT.get() {
            Some(current)
                if current < self.workers.len()
                    && load(current) <= load(least) + load(least) / 4 + IMBALANCE =>
            {
                current
            }
            _ => least,
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct TaskGuard(Arc<AtomicUsize>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_worker_that_hangs_does_not_answer() {
        let workers = Workers::start(2).unwrap();
        workers.answer().await;
        let (running, hangs) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        workers.spawn_connection(async move {
            running.send(()).unwrap();
            let _ = released.recv();
        });
        hangs.await.unwrap();
        let mut answer = pin!(workers.answer());
        assert!(answer.as_mut().now_or_never().is_none());
        // The other worker runs this after the task of the answer.
        let (done, ran) = tokio::sync::oneshot::channel();
        workers.spawn_connection(async move { done.send(()).unwrap() });
        ran.await.unwrap();
        assert!(answer.as_mut().now_or_never().is_none());
        drop(release);
        answer.await;
        workers.stop();
        workers.answer().await;
    }
}
