//! Metrics of functions.

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

/// Upper bounds in seconds: from a warm start to the default time limit.
const DURATION_BUCKETS: [f64; 18] = [
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0, 30.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabel {
    function: String,
}

/// Counter of seconds.
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

/// The metrics of all functions.
pub struct FunctionFamilies {
    outcomes: Family<OutcomeLabels, Counter>,
    durations: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    queue_durations: Family<FunctionLabel, Histogram, fn() -> Histogram>,
    cpu: Family<FunctionLabel, CpuSeconds>,
    memory_peaks: Family<FunctionLabel, Gauge>,
    starts: Family<StartLabels, Counter>,
    histogram_copies: Mutex<HashMap<String, Arc<HistogramCopy>>>,
}

/// The metrics of one function. A new revision continues them.
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
    /// A readable copy of `duration`.
    duration_copy: Arc<HistogramCopy>,
}

/// Readable copy of a histogram: the library's type can only be written. The buckets are those of [`DURATION_BUCKETS`], and
/// one more for longer durations.
#[derive(Default)]
struct HistogramCopy {
    buckets: [AtomicU64; DURATION_BUCKETS.len() + 1],
    longest_ns: AtomicU64,
}

/// Usage of a function since the start of the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct FunctionReading {
    /// Number of invocations that ran in a new instance.
    pub cold_starts: u64,
    /// Number of invocations that ran in a warm instance.
    pub warm_starts: u64,
    /// CPU time.
    pub cpu: Duration,
    /// Maximum linear memory of one invocation, in bytes.
    pub memory_peak_bytes: u64,
    /// The 50th, 90th and 99th percentile of the durations, estimated from the buckets.
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
            histogram_copies: Mutex::default(),
        }
    }
}

impl FunctionFamilies {
    /// Registers the metrics.
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
            "Time that invocations waited before they started, in seconds",
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

    /// The metrics of a function. Creates them if they do not exist.
    pub fn function(&self, function: &str) -> FunctionMetrics {
        let label = FunctionLabel { function: function.to_owned() };
        let ok = OutcomeLabels { function: function.to_owned(), outcome: "ok" };
        // A function, so that the lock of the family is released before the next use.
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
            duration_copy: self.histogram_copies.lock().entry(function.to_owned()).or_default().clone(),
        }
    }

    /// Removes the metrics of a function that is no longer deployed.
    pub fn forget(&self, function: &str) {
        let label = FunctionLabel { function: function.to_owned() };
        self.durations.remove(&label);
        self.queue_durations.remove(&label);
        self.cpu.remove(&label);
        self.memory_peaks.remove(&label);
        self.histogram_copies.lock().remove(function);
        for start in ["cold", "warm"] {
            self.starts.remove(&StartLabels { function: function.to_owned(), start });
        }
        for outcome in OUTCOMES {
            self.outcomes.remove(&OutcomeLabels { function: function.to_owned(), outcome });
        }
    }
}

/// All labels that [`InvocationError::label`](crate::invocation::InvocationError::label) gives, and `ok`.
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
        self.duration_copy.add((start + execution).as_secs_f64());
    }

    /// Counts the usage of an invocation.
    pub fn record_use(&self, completion: &Completion) {
        if completion.warm { &self.warm } else { &self.cold }.inc();
        self.cpu.inc_by(completion.cpu.as_secs_f64());
        let bytes = i64::try_from(completion.memory_bytes).unwrap_or(i64::MAX);
        self.memory_peak.inner().fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts the usage of an invocation that was cancelled.
    pub fn record_cancelled_use(&self, usage: &Usage) {
        if usage.warm() { &self.warm } else { &self.cold }.inc();
        self.cpu.inc_by(usage.cpu().as_secs_f64());
    }

    /// Counts a rejected invocation.
    pub fn record_rejected(&self) {
        self.counter("rejected").inc();
    }

    /// Number of invocations, of those that failed, and of those that were rejected.
    pub fn totals(&self) -> (u64, u64, u64) {
        let count = |outcome: &'static str| self.counter(outcome).get();
        let rejected = count("rejected");
        let failures: u64 = OUTCOMES[1..8].iter().map(|outcome| count(outcome)).sum();
        (self.succeeded.get() + failures + count("cancelled"), failures, rejected)
    }

    /// The usage since the start of the node.
    pub fn reading(&self) -> FunctionReading {
        FunctionReading {
            cold_starts: self.cold.get(),
            warm_starts: self.warm.get(),
            cpu: Duration::from_secs_f64(self.cpu.get().max(0.0)),
            memory_peak_bytes: u64::try_from(self.memory_peak.get()).unwrap_or(0),
            quantiles: [0.5, 0.9, 0.99].map(|fraction| self.duration_copy.quantile(fraction)),
        }
    }

    fn counter(&self, outcome: &'static str) -> Counter {
        self.outcomes.get_or_create(&OutcomeLabels { function: self.function.clone(), outcome }).clone()
    }
}

impl HistogramCopy {
    fn add(&self, seconds: f64) {
        let bucket = DURATION_BUCKETS.partition_point(|upper| *upper < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.longest_ns.fetch_max((seconds * 1e9) as u64, Ordering::Relaxed);
    }

    /// The duration that a fraction of all durations does not exceed. Interpolates linearly in a bucket, as
    /// `histogram_quantile` of Prometheus does, and is at most the longest duration. Zero without durations.
    fn quantile(&self, fraction: f64) -> Duration {
        let longest = Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed));
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let rank = counts.iter().sum::<u64>() as f64 * fraction;
        let mut below = 0.0;
        for (bucket, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let count = count as f64;
            if below + count >= rank {
                let lower = bucket.checked_sub(1).map_or(0.0, |before| DURATION_BUCKETS[before]);
                let upper = DURATION_BUCKETS.get(bucket).copied().unwrap_or(lower);
                let estimate = lower + (upper - lower) * (rank - below) / count;
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
        let copy = HistogramCopy::default();
        assert_eq!(copy.quantile(0.5), Duration::ZERO);
        // 90 in the bucket up to 1 ms, 9 in that up to 25 ms, and one over all buckets.
        (0..90).for_each(|_| copy.add(0.000_9));
        (0..9).for_each(|_| copy.add(0.02));
        copy.add(100.0);
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|fraction| copy.quantile(fraction).as_secs_f64());
        assert!((0.000_5..0.001).contains(&p50), "{p50}");
        assert_eq!(p90, 0.001);
        assert_eq!(p99, 0.025);
        assert_eq!(copy.quantile(1.0), Duration::from_secs(30));
        // A quantile is at most the longest duration.
        let copy = HistogramCopy::default();
        copy.add(0.26);
        assert_eq!(copy.quantile(0.99), Duration::from_millis(260));
    }
}
