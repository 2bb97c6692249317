//! What a contestant takes while the trace is played.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use edgefaas_benches::process::{proportional_mb_of, tree_of};

/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(500);
/// The sampler rests so many times as long as it has worked: looking at many processes takes time, on the same cores.
const REST: u32 = 10;

/// One look.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Since the beginning.
    pub at: Duration,
    /// Memory of all processes in MB; what they share counts once (PSS).
    pub mb: f64,
    /// How many processes.
    pub processes: usize,
    /// Instances that were started so far.
    pub starts: f64,
}

/// Looks from time to time.
pub struct Sampler {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Begins to look at `root` and what descends from it. `starts` tells how many instances were started so far.
    pub fn start(root: u32, starts: impl Fn() -> f64 + Send + 'static) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut samples = Vec::new();
            while !flag.load(Relaxed) {
                let at = begun.elapsed();
                let tree = tree_of(root);
                let mb = tree.iter().map(|process| proportional_mb_of(*process)).sum();
                samples.push(Sample { at, mb, processes: tree.len(), starts: starts() });
                let worked = begun.elapsed() - at;
                std::thread::sleep(INTERVAL.max(worked * REST) - worked);
            }
            samples
        });
        Self { done, thread }
    }

    /// Ends; gives what was seen.
    pub fn stop(self) -> Vec<Sample> {
        self.done.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
