//! An hour of many functions, made by chance in the shape of the Azure Functions trace of 2019.
//!
//! The shape is that of Shahrad et al., "Serverless in the Wild" (USENIX ATC 2020):
//!
//! - rates: 45 % are called once an hour or less, 81 % once a minute or less, so that few make nearly all calls. Between
//!   these points, and down to once a day, rates are spread evenly on a logarithmic scale; the busiest are cut off at one
//!   call a second, where the dataset goes on for orders of magnitude;
//! - arrivals: timers (every so many whole minutes, on the minute, so that they coincide), calls that know nothing of each
//!   other (Poisson), and bursts (more variable than Poisson, as for two of five applications);
//! - durations: log-normal with parameters -0.38 and 2.36 (of seconds), for functions that sleep. What the others take is
//!   their own affair.
//!
//! Speeding a trace up divides times between calls, and what is slept, by the same number.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Waits (JavaScript).
    Sleep,
    /// Asks another server (JavaScript).
    Rest,
    /// Hashes a file of 1 MiB (Rust).
    Hash,
    /// Scales an image (Rust).
    Scale,
}

/// When a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Every so many minutes.
    Timer,
    /// By chance, one call independent of the other.
    Poisson,
    /// By chance, many at once.
    Bursts,
}

/// What a trace is made from.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// How many there are.
    pub functions: usize,
    /// Of the trace's own time.
    pub minutes: u32,
    /// How much faster than in the trace's own time it is played.
    pub speed: f64,
    /// Chance: the same gives the same trace.
    pub seed: u64,
}

/// Functions, and calls in the order of their time.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// From the one called most to the one called least.
    pub functions: Vec<Function>,
    /// All calls.
    pub calls: Vec<Call>,
}

/// A function of the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its name, for a manifest.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// When it is called.
    pub arrivals: Arrivals,
    /// How long it sleeps, if that is what it does; sped up.
    pub sleep_ms: u64,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// Since the beginning; sped up.
    pub at: Duration,
    /// Which function.
    pub function: usize,
}

impl Kind {
    /// All, in the order in which functions get them.
    pub const ALL: [Self; 4] = [Self::Sleep, Self::Rest, Self::Hash, Self::Scale];

    /// In tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Rest => "rest",
            Self::Hash => "hash",
            Self::Scale => "scale",
        }
    }

    /// Whether it is JavaScript; else it is Rust.
    pub fn is_js(self) -> bool {
        matches!(self, Self::Sleep | Self::Rest)
    }
}

/// Calls an hour at quantiles of the functions; in between by logarithms.
const RATES: [(f64, f64); 4] = [(0.0, 1.0 / 24.0), (0.45, 1.0), (0.81, 60.0), (1.0, 3600.0)];
/// Shares of the functions that are called by a timer, if they may be, and by chance; the others have bursts.
const TIMERS: f64 = 0.2;
const POISSON: f64 = 0.4;
/// Calls in a burst, on average.
const BURST: f64 = 8.0;
/// How much denser calls are in a burst than on average, and the longest that they are apart there, in seconds.
const BURST_DENSITY: f64 = 10.0;
const BURST_GAP: f64 = 10.0;
/// Of the log-normal distribution of durations in seconds.
const DURATION: (f64, f64) = (-0.38, 2.36);
/// The shortest and the longest sleep after the speed-up, in milliseconds.
const SLEEP_MS: (f64, f64) = (1.0, 1000.0);

impl Trace {
    /// The trace of this shape.
    pub fn new(shape: Shape) -> Self {
        let mut random = StdRng::seed_from_u64(shape.seed);
        let hours = f64::from(shape.minutes) / 60.0;
        let (mut functions, mut calls) = (Vec::new(), Vec::new());
        for rank in 0..shape.functions {
            // One function in each of as many equal parts of the distribution: its shape does not hang on chance.
            let quantile = 1.0 - (rank as f64 + random.random::<f64>()) / shape.functions as f64;
            let rate = rate(quantile);
            // A timer has no seconds.
            let arrivals = match random.random::<f64>() {
                share if share < TIMERS && rate <= 60.0 => Arrivals::Timer,
                share if share < TIMERS + POISSON => Arrivals::Poisson,
                _ => Arrivals::Bursts,
            };
            let times = match arrivals {
                Arrivals::Timer => timer(&mut random, rate, hours),
                Arrivals::Poisson => poisson(&mut random, rate, hours),
                Arrivals::Bursts => bursts(&mut random, rate, hours),
            };
            let at = |seconds: f64| Duration::from_secs_f64(seconds / shape.speed);
            calls.extend(times.into_iter().map(|seconds| Call { at: at(seconds), function: rank }));
            let seconds = (DURATION.0 + DURATION.1 * normal(&mut random)).exp() / shape.speed;
            functions.push(Function {
                name: format!("fn-{rank:02}"),
                kind: Kind::ALL[rank % Kind::ALL.len()],
                arrivals,
                sleep_ms: (seconds * 1e3).clamp(SLEEP_MS.0, SLEEP_MS.1).round() as u64,
            });
        }
        calls.sort_by_key(|call| call.at);
        Self { functions, calls }
    }

    /// The number of functions that are called at all.
    pub fn called(&self) -> usize {
        let mut functions: Vec<usize> = self.calls.iter().map(|call| call.function).collect();
        functions.sort_unstable();
        functions.dedup();
        functions.len()
    }
}

/// Calls an hour at a quantile.
fn rate(quantile: f64) -> f64 {
    let part = RATES.windows(2).find(|part| quantile <= part[1].0);
    let [(from, low), (to, high)] = part.map_or([RATES[2], RATES[3]], |part| [part[0], part[1]]);
    low * (high / low).powf((quantile - from) / (to - from))
}

/// Seconds at which something happens every so many whole minutes, on the minute.
fn timer(random: &mut StdRng, rate: f64, hours: f64) -> Vec<f64> {
    let period = (60.0 / rate).round().max(1.0) as u32;
    let first = random.random_range(0..period);
    (first..)
        .step_by(period as usize)
        .map(|minute| f64::from(minute) * 60.0)
        .take_while(within(hours))
        .collect()
}

/// Seconds at which something happens independently.
fn poisson(random: &mut StdRng, rate: f64, hours: f64) -> Vec<f64> {
    let mut at = 0.0;
    let next = || {
        at += exponential(random, 3600.0 / rate);
        at
    };
    std::iter::repeat_with(next).take_while(within(hours)).collect()
}

/// Seconds at which something happens in bursts that are independent.
fn bursts(random: &mut StdRng, rate: f64, hours: f64) -> Vec<f64> {
    let gap = (3600.0 / rate / BURST_DENSITY).min(BURST_GAP);
    let mut times = Vec::new();
    for mut at in poisson(random, rate / BURST, hours) {
        times.push(at);
        // So that sizes are geometric.
        while random.random::<f64>() > 1.0 / BURST {
            at += exponential(random, gap);
            times.push(at);
        }
    }
    times.retain(within(hours));
    times
}

fn within(hours: f64) -> impl Fn(&f64) -> bool {
    move |seconds| *seconds < hours * 3600.0
}

fn exponential(random: &mut StdRng, mean: f64) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

/// By Box and Muller.
fn normal(random: &mut StdRng) -> f64 {
    let radius = exponential(random, 2.0).sqrt();
    radius * (random.random::<f64>() * std::f64::consts::TAU).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Shape = Shape { functions: 40, minutes: 60, speed: 60.0, seed: 1 };

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        assert_eq!(Trace::new(HOUR), Trace::new(HOUR));
        assert_ne!(Trace::new(HOUR).calls, Trace::new(Shape { seed: 2, ..HOUR }).calls);
    }

    #[test]
    fn few_functions_make_most_calls() {
        for seed in 0..20 {
            let trace = Trace::new(Shape { seed, ..HOUR });
            let of_the_busiest = trace.calls.iter().filter(|call| call.function < 8).count();
            let share = of_the_busiest as f64 / trace.calls.len() as f64;
            assert!(share > 0.9, "{share} with seed {seed}");
            assert!((1000..20_000).contains(&trace.calls.len()), "{} with seed {seed}", trace.calls.len());
            assert!(trace.called() < 40);
            assert!(trace.calls.is_sorted_by_key(|call| call.at));
            assert!(trace.calls.iter().all(|call| call.at < Duration::from_secs(60)));
        }
    }

    #[test]
    fn rates_are_those_of_the_paper() {
        assert_eq!([0.45, 0.81, 1.0].map(|quantile| rate(quantile).round()), [1.0, 60.0, 3600.0]);
        assert!(rate(0.6) > 1.0 && rate(0.6) < 60.0);
    }

    #[test]
    fn arrivals_have_their_patterns() {
        let mut random = StdRng::seed_from_u64(3);
        let timer = timer(&mut random, 12.0, 24.0);
        assert!(timer.windows(2).all(|two| two[1] - two[0] == 300.0) && timer.len() == 288);
        // The coefficient of variation of the times between calls is 1 for Poisson and more for bursts.
        let variation = |times: &[f64]| {
            let mut times = times.to_vec();
            times.sort_by(f64::total_cmp);
            let gaps: Vec<f64> = times.windows(2).map(|two| two[1] - two[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            variance.sqrt() / mean
        };
        let poisson = variation(&poisson(&mut random, 100.0, 100.0));
        let bursts = variation(&bursts(&mut random, 100.0, 100.0));
        assert!((poisson - 1.0).abs() < 0.1, "{poisson}");
        assert!(bursts > 1.5, "{bursts}");
    }
}
