//! The threads that serve connections and run isolates: one single-threaded runtime a core.
//!
//! A connection stays on its worker, and so does what it sets off, so that a request is answered without
//! a hand-over between threads. Only when a worker has clearly more to do than another does new work go
//! there.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How many more tasks a worker may have than the least busy one before new work goes there.
const IMBALANCE: usize = 4;

/// The workers of a node.
pub struct Workers {
    workers: Vec<Worker>,
    turn: AtomicUsize,
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
    /// Starts `count` workers.
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
                // Whatever is still there has had its time to end.
                runtime.shutdown_background();
            })?;
            threads.push(thread);
        }
        let (turn, connections) = (AtomicUsize::new(0), TaskTracker::new());
        Ok(Self { workers, turn, connections, stop, threads: Mutex::new(threads) })
    }

    /// Runs a connection on the next worker in turn.
    pub fn spawn_connection(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let index = self.turn.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        self.workers[index].handle.spawn(self.connections.track_future(connection));
    }

    /// Waits until the last connection has ended.
    pub async fn connections_ended(&self) {
        self.connections.close();
        self.connections.wait().await;
    }

    /// Runs a piece of work here if this is a worker without much more to do than the others, else on the
    /// least busy one.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let worker = &self.workers[self.choose()];
        let tasks = worker.tasks.clone();
        tasks.fetch_add(1, Ordering::Relaxed);
        let guard = TaskGuard(tasks);
        worker.handle.spawn(async move {
            let _guard = guard;
            work.await;
        });
    }

    /// Runs a piece of work on a worker and gives its result; `None` if the workers stopped meanwhile.
    /// Dropping the future does not end the work.
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

    /// Ends the workers with all that they still do. Blocks until they have.
    pub fn stop(&self) {
        self.stop.cancel();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    fn choose(&self) -> usize {
        let load = |index: usize| self.workers[index].tasks.load(Ordering::Relaxed);
        let least = (0..self.workers.len()).min_by_key(|index| load(*index)).unwrap_or(0);
        match CURRENT.get() {
            Some(current) if current < self.workers.len() && load(current) <= load(least) + IMBALANCE => {
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
