//! Durations of many operations, and what to say about them.

use std::time::{Duration, Instant};

/// Durations of operations.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    ns: Vec<u64>,
    /// Operations that ended outside of the window.
    outside: usize,
}

impl Samples {
    /// Adds one that began at `from` and ended at `to`, if it ended in `window`.
    pub fn add(&mut self, from: Instant, to: Instant, window: Window) {
        if to >= window.from && to < window.to {
            self.ns.push((to - from).as_nanos() as u64);
        } else {
            self.outside += 1;
        }
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: Samples) {
        self.ns.extend(other.ns);
        self.outside += other.outside;
    }

    /// How many there are in the window.
    pub fn count(&self) -> usize {
        self.ns.len()
    }

    /// How many operations there were, in the window and outside.
    pub fn completed(&self) -> usize {
        self.ns.len() + self.outside
    }

    /// The quantile `q` (0 to 1) in microseconds; sorts. `NaN` without samples.
    pub fn quantile_us(&mut self, q: f64) -> f64 {
        self.ns.sort_unstable();
        let at = (q * self.ns.len().saturating_sub(1) as f64).round() as usize;
        self.ns.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    }
}

/// When to start to measure and when to stop.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// What ends before is not counted.
    pub from: Instant,
    /// What ends after is not counted.
    pub to: Instant,
}

impl Window {
    /// Measures for `length` after a warm-up of a quarter of it.
    pub fn after_warm_up(length: Duration) -> Self {
        let from = Instant::now() + length / 4;
        Self { from, to: from + length }
    }

    /// How long it measures.
    pub fn length(&self) -> Duration {
        self.to - self.from
    }
}

/// What a load got done.
#[derive(Debug)]
pub struct Load {
    /// Round trips a second.
    pub per_second: f64,
    /// Their durations.
    pub samples: Samples,
}

impl Load {
    /// The load that took `samples` in `window`.
    pub fn new(samples: Samples, window: Window) -> Self {
        Self { per_second: samples.count() as f64 / window.length().as_secs_f64(), samples }
    }
}

/// The middle of `values`; the mean of the two in the middle if their number is even. `NaN` without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (count, middle) if count % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        (_, middle) => sorted[middle],
    }
}

/// The quantile `q` (0 to 1) of `values`, one of them. `NaN` without values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (q * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The geometric mean of `values`, which are positive. `NaN` without values.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_medians_are_those_of_the_sorted_values() {
        let mut samples = Samples::default();
        let from = Instant::now();
        let window = Window { from, to: from + Duration::from_micros(6) };
        for us in [5, 1, 4, 2, 3, 6] {
            samples.add(from, from + Duration::from_micros(us), window);
        }
        assert_eq!((samples.count(), samples.completed()), (5, 6));
        assert_eq!([0.0, 0.5, 1.0].map(|q| samples.quantile_us(q)), [1.0, 3.0, 5.0]);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!([0.0, 0.5, 1.0].map(|q| quantile(&[5.0, 1.0, 3.0], q)), [1.0, 3.0, 5.0]);
        assert!(quantile(&[], 0.5).is_nan());
        assert!((geometric_mean(&[1.0, 10.0, 100.0]) - 10.0).abs() < 1e-9);
        assert!(geometric_mean(&[]).is_nan());
    }
}
