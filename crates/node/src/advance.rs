//! Advancing the time of a node of tests: what comes due happens in the order of its time, and all of it has been done when the
//! advance ends.
//!
//! ```text
//! hold the clock --> settle --> move to the next due time --> settle --> ... --> move to the end, wake all --> settle --> release
//! ```
//!
//! A node has settled when no function runs, no turn of an instance is computed or stored, and nothing is about to run: every
//! runtime is parked with an empty queue. Nothing is timed: a slow machine settles later.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_coordinator::Coordinator;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::Registry;
use edgefaas_functions::workers::Workers;
use edgefaas_platform::{ClockControl, Held};
use edgefaas_state::store::Store;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// Maximum of one advance: 10 years.
pub const MAX_ADVANCE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// Looks of a thread at the runtimes, before it gives way to tasks.
const LOOKS: u32 = 20;
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// Time between two rounds of looks.
const ROUND_INTERVAL: Duration = Duration::from_millis(1);
/// Rounds in a row that find a settled node before the clock moves for the first time. What was begun before may still be on its
/// way: bytes in a socket, and a thread that has been woken for them and waits for a processor, which counts as parked.
const FIRST_ROUNDS: u32 = 5;

/// Advances the time of one node.
pub struct Advance {
    /// Advances follow one another.
    control: Mutex<ClockControl>,
    watched: Arc<Watched>,
}

/// The parts of the node that work on what comes due.
pub(crate) struct Watched {
    pub registry: Arc<Registry>,
    pub invoker: Arc<Invoker>,
    pub durable: Arc<DurableQueue>,
    pub coordinator: Arc<Coordinator>,
    pub workers: Arc<Workers>,
    pub store: Arc<Store>,
    /// The runtime of the tasks beside the workers.
    pub runtime: Handle,
}

/// The time was not advanced, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum AdvanceError {
    /// The duration is over [`MAX_ADVANCE`].
    #[error("time can be advanced by at most {} days at once", MAX_ADVANCE.as_secs() / 86400)]
    TooLong,
    /// The node did not settle.
    #[error(
        "time stands {} after it began to be advanced: after {within:?} still at work: {}",
        humantime::format_duration(Duration::from_millis(advanced.as_millis() as u64)),
        at_work.join(", ")
    )]
    AtWork {
        /// The time by which the clock was advanced.
        advanced: Duration,
        /// The wait of real time.
        within: Duration,
        /// Functions and workflows that work.
        at_work: Vec<String>,
    },
}

impl Advance {
    pub(crate) fn new(control: ClockControl, watched: Watched) -> Self {
        Self { control: Mutex::new(control), watched: Arc::new(watched) }
    }

    /// Advances the time by `by`. Due times on the way happen in their order; the node settles after each, for at most `within` of
    /// real time. Returns when what came due has been done: functions have run, and workflows wait again or have ended. Does not wait
    /// for the function `besides`, which runs the test, nor for functions that wait for a workflow.
    ///
    /// If the future is dropped, time goes on from where it stands.
    ///
    /// # Errors
    /// `by` is too long, or the node does not settle.
    pub async fn advance(&self, by: Duration, within: Duration, besides: &str) -> Result<(), AdvanceError> {
        if by > MAX_ADVANCE {
            return Err(AdvanceError::TooLong);
        }
        let mut control = self.control.lock().await;
        let held = control.hold();
        let began = held.now();
        let end = began + by;
        let (mut has_looked, mut rounds) = (false, FIRST_ROUNDS);
        loop {
            let advanced = held.now() - began;
            let settled = self.settle(&held, rounds, within, besides).await;
            rounds = 1;
            settled.map_err(|at_work| AdvanceError::AtWork { advanced, within, at_work })?;
            match held.next_due().filter(|due| *due <= end) {
                Some(due) => held.move_to(due),
                None if has_looked => return Ok(()),
                None => {
                    held.move_to(end);
                    // Searches with a minimum interval find what is due since the last one.
                    held.wake_all();
                    has_looked = true;
                }
            }
        }
    }

    /// Waits until so many rounds in a row have found that the node has settled; returns what is at work if it has not within this
    /// time.
    async fn settle(
        &self,
        held: &Held<'_>,
        rounds: u32,
        within: Duration,
        besides: &str,
    ) -> Result<(), Vec<String>> {
        let settling = async {
            let mut settled = 0;
            loop {
                let is_settled = held.is_quiet() && self.is_settled(besides).await && held.is_quiet();
                settled = if is_settled { settled + 1 } else { 0 };
                if settled == rounds {
                    break;
                }
                tokio::time::sleep(ROUND_INTERVAL).await;
            }
        };
        tokio::time::timeout(within, settling).await.map_err(|_| {
            let at_work = self.watched.at_work(besides);
            if at_work.is_empty() { vec!["the node".to_owned()] } else { at_work }
        })
    }

    async fn is_settled(&self, besides: &str) -> bool {
        let (watched, besides) = (self.watched.clone(), besides.to_owned());
        // From outside of the runtimes: a look must not keep them busy.
        tokio::task::spawn_blocking(move || watched.is_settled(&besides)).await.unwrap_or(false)
    }
}

impl Watched {
    /// True if nothing is at work, and nothing has run while that was found out. Blocks.
    fn is_settled(&self, besides: &str) -> bool {
        let parked = (0..LOOKS).find_map(|look| {
            if look > 0 {
                std::thread::sleep(LOOK_INTERVAL);
            }
            self.parked()
        });
        let Some(parked) = parked else { return false };
        // Answers of the store's thread wake tasks.
        self.runtime.block_on(self.store.committer().caught_up());
        self.at_work(besides).is_empty() && self.parked() == Some(parked)
    }

    /// The number of times that each thread of the runtimes was parked or woken, if all are parked and no task waits to run.
    fn parked(&self) -> Option<Vec<u64>> {
        let mut counts = Vec::new();
        for runtime in self.workers.runtimes().chain([&self.runtime]) {
            let metrics = runtime.metrics();
            for thread in 0..metrics.num_workers() {
                let count = metrics.worker_park_unpark_count(thread);
                // An odd count is a parked thread.
                if count % 2 == 0 {
                    return None;
                }
                counts.push(count);
            }
            if metrics.global_queue_depth() > 0 {
                return None;
            }
        }
        Some(counts)
    }

    /// Functions and workflows that work or have work to do now, except those that wait for a time, a message or a workflow.
    fn at_work(&self, besides: &str) -> Vec<String> {
        let routes = self.registry.routes();
        let (mut invocations, mut functions) = (0, Vec::new());
        for function in routes.functions().filter(|function| &*function.name != besides) {
            let (running, waiting) = function.admission.load();
            let pending = u32::from(self.durable.is_at_work(&function.name));
            let at_work = (running + waiting).max(pending);
            if at_work > 0 {
                invocations += at_work as usize;
                functions.push(function.name.to_string());
            }
        }
        drop(routes);
        functions.sort();
        let mut at_work = self.coordinator.at_work();
        if invocations > self.invoker.in_workflows() {
            at_work.splice(0..0, functions);
        }
        at_work
    }
}
