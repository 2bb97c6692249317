//! Figures of functions, for the node's metrics and its lists.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edgefaas_isolates::{Completion, Usage};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::invocation::{Outcome, Timing};

/// Seconds: from a warm start to the default time limit.
const DURATION_BUCKETS: [f64; 18] = [
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0, 30.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabel {
    function: String,
}

/// Seconds that may be added to from any thread.
type CpuSeconds = Counter<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabels {
    function: String,
    start: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    function: String,
    outcome: &'static str,
}

/// The figures of all functions.
pub struct FunctionFamilies {
    outcomes: Family<OutcomeLabels, Counter>,
    durations: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    queue_durations: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    cpu: Family<FunctionLabel, CpuSeconds>,
    memory_peaks: Family<FunctionLabel, Gauge>,
    starts: Family<StartLabels, Counter>,
    counted: Mutex<HashMap<String, Arc<Counted>>>,
}

/// The figures of one function; kept when a new revision goes live.
#[derive(Clone)]
pub struct FunctionMetrics {
    function: String,
    outcomes: Family<OutcomeLabels, Counter>,
    succeeded: Counter<u64, AtomicU64>,
    duration: Histogram,
    queue_duration: Histogram,
    cpu: CpuSeconds,
    memory_peak: Gauge,
    cold: Counter<u64, AtomicU64>,
    warm: Counter<u64, AtomicU64>,
    /// What `duration` has counted: that one can only be written.
    counted: Arc<Counted>,
}

/// How many took up to each of [`DURATION_BUCKETS`], and longer than all of them.
#[derive(Default)]
struct Counted {
    buckets: [AtomicU64; DURATION_BUCKETS.len() + 1],
    longest_ns: AtomicU64,
}

/// What a function has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct FunctionReading {
    /// Invocations that ran in a new instance.
    pub cold_starts: u64,
    /// Those that ran in one that waited.
    pub warm_starts: u64,
    /// Time on a thread.
    pub cpu: Duration,
    /// The most linear memory that one invocation had.
    pub memory_peak_bytes: u64,
    /// The median, the 90th and the 99th percentile of the durations, as far as buckets tell.
    pub quantiles: [Duration; 3],
}

impl Default for FunctionFamilies {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS);
        Self {
            outcomes: Family::default(),
            durations: Family::new_with_constructor(histogram),
            queue_durations: Family::new_with_constructor(histogram),
            cpu: Family::default(),
            memory_peaks: Family::default(),
            starts: Family::default(),
            counted: Mutex::default(),
        }
    }
}

impl FunctionFamilies {
    /// Adds the figures to what a registry encodes.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("invocations", "Invocations by outcome", self.outcomes.clone());
        registry.register_with_unit(
            "invocation_duration",
            "Time to start the isolate and to run the function, in seconds",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register_with_unit(
            "queue_duration",
            "Time in the queue of the function, in seconds",
            Unit::Seconds,
            self.queue_durations.clone(),
        );
        registry.register_with_unit(
            "invocation_cpu",
            "Processor time of invocations, without waits, in seconds",
            Unit::Seconds,
            self.cpu.clone(),
        );
        registry.register(
            "invocation_starts",
            "Starts in a new isolate (cold) or in a reused one (warm)",
            self.starts.clone(),
        );
        registry.register_with_unit(
            "function_memory_peak",
            "Largest linear memory of one invocation, in bytes",
            Unit::Bytes,
            self.memory_peaks.clone(),
        );
    }

    /// The figures of a function, made or found again.
    pub fn function(&self, function: &str) -> FunctionMetrics {
        let label = FunctionLabel { function: function.to_owned() };
        let ok = OutcomeLabels { function: function.to_owned(), outcome: "ok" };
        // Each gives its lock back before the next one takes it.
        let start = |start| {
            let labels = StartLabels { function: function.to_owned(), start };
            self.starts.get_or_create(&labels).clone()
        };
        let (cold, warm) = (start("cold"), start("warm"));
        FunctionMetrics {
            function: function.to_owned(),
            outcomes: self.outcomes.clone(),
            succeeded: self.outcomes.get_or_create(&ok).clone(),
            duration: self.durations.get_or_create(&label).clone(),
            queue_duration: self.queue_durations.get_or_create(&label).clone(),
            cpu: self.cpu.get_or_create(&label).clone(),
            memory_peak: self.memory_peaks.get_or_create(&label).clone(),
            cold,
            warm,
            counted: self.counted.lock().entry(function.to_owned()).or_default().clone(),
        }
    }

    /// Forgets a function that is gone.
    pub fn forget(&self, function: &str) {
        let label = FunctionLabel { function: function.to_owned() };
        self.durations.remove(&label);
        self.queue_durations.remove(&label);
        self.cpu.remove(&label);
        self.memory_peaks.remove(&label);
        self.counted.lock().remove(function);
        for start in ["cold", "warm"] {
            self.starts.remove(&StartLabels { function: function.to_owned(), start });
        }
        for outcome in OUTCOMES {
            self.outcomes.remove(&OutcomeLabels { function: function.to_owned(), outcome });
        }
    }
}

/// Every label that [`InvocationError::label`](crate::invocation::InvocationError::label) gives, and `ok`.
const OUTCOMES: [&str; 10] = [
    "ok",
    "error",
    "timeout",
    "cpu_time",
    "out_of_memory",
    "stack_overflow",
    "trap",
    "commit",
    "rejected",
    "cancelled",
];

impl FunctionMetrics {
    /// Counts an invocation that ran.
    pub fn record(&self, outcome: &Outcome) {
        match &outcome.result {
            Ok(_) => drop(self.succeeded.inc()),
            Err(error) => drop(self.counter(error.label()).inc()),
        }
        let Timing { queue, start, execution } = outcome.timing;
        self.queue_duration.observe(queue.as_secs_f64());
        self.duration.observe((start + execution).as_secs_f64());
        self.counted.add((start + execution).as_secs_f64());
    }

    /// Counts what an invocation used, however it ended.
    pub fn record_use(&self, completion: &Completion) {
        if completion.warm { &self.warm } else { &self.cold }.inc();
        self.cpu.inc_by(completion.cpu.as_secs_f64());
        let bytes = i64::try_from(completion.memory_bytes).unwrap_or(i64::MAX);
        self.memory_peak.inner().fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts what an invocation used whose run was dropped.
    pub fn record_cancelled_use(&self, usage: &Usage) {
        if usage.warm() { &self.warm } else { &self.cold }.inc();
        self.cpu.inc_by(usage.cpu().as_secs_f64());
    }

    /// Counts an invocation that was turned away.
    pub fn record_rejected(&self) {
        self.counter("rejected").inc();
    }

    /// Invocations that ran, those of them that failed, and those that were turned away.
    pub fn totals(&self) -> (u64, u64, u64) {
        let count = |outcome: &'static str| self.counter(outcome).get();
        let rejected = count("rejected");
        let failures: u64 = OUTCOMES[1..8].iter().map(|outcome| count(outcome)).sum();
        (self.succeeded.get() + failures + count("cancelled"), failures, rejected)
    }

    /// What it has used.
    pub fn reading(&self) -> FunctionReading {
        FunctionReading {
            cold_starts: self.cold.get(),
            warm_starts: self.warm.get(),
            cpu: Duration::from_secs_f64(self.cpu.get().max(0.0)),
            memory_peak_bytes: u64::try_from(self.memory_peak.get()).unwrap_or(0),
            quantiles: [0.5, 0.9, 0.99].map(|part| self.counted.quantile(part)),
        }
    }

    fn counter(&self, outcome: &'static str) -> Counter {
        self.outcomes.get_or_create(&OutcomeLabels { function: self.function.clone(), outcome }).clone()
    }
}

impl Counted {
    fn add(&self, seconds: f64) {
        let bucket = DURATION_BUCKETS.partition_point(|most| *most < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.longest_ns.fetch_max((seconds * 1e9) as u64, Ordering::Relaxed);
    }

    /// The duration that a part of all does not exceed; between the bounds of a bucket as if all of them were spread
    /// evenly there, as Prometheus' `histogram_quantile` does it, and never above the longest. Zero if there were none.
    fn quantile(&self, part: f64) -> Duration {
        let longest = Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed));
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let wanted = counts.iter().sum::<u64>() as f64 * part;
        let mut below = 0.0;
        for (bucket, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let count = count as f64;
            if below + count >= wanted {
                let least = bucket.checked_sub(1).map_or(0.0, |before| DURATION_BUCKETS[before]);
                let most = DURATION_BUCKETS.get(bucket).copied().unwrap_or(least);
                let estimate = least + (most - least) * (wanted - below) / count;
                return Duration::from_secs_f64(estimate).min(longest);
            }
            below += count;
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let counted = Counted::default();
        assert_eq!(counted.quantile(0.5), Duration::ZERO);
        // 90 up to 1 ms, 10 up to 25 ms, and one that took longer than is told apart.
        (0..90).for_each(|_| counted.add(0.000_9));
        (0..9).for_each(|_| counted.add(0.02));
        counted.add(100.0);
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| counted.quantile(part).as_secs_f64());
        assert!((0.000_5..0.001).contains(&p50), "{p50}");
        assert_eq!(p90, 0.001);
        assert_eq!(p99, 0.025);
        assert_eq!(counted.quantile(1.0), Duration::from_secs(30));
        // Nothing took longer than the longest.
        let counted = Counted::default();
        counted.add(0.26);
        assert_eq!(counted.quantile(0.99), Duration::from_millis(260));
    }
}
