//! Two hundred functions, all misbehaviours among them, for as long as one cares to wait.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use edgefaas_benches::client::Client;
use edgefaas_benches::misbehaviours::{DEADLINE_MS, Misbehaviour};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::{median, quantile};

use crate::many_functions::ManyFunctions;

const COUNTING: usize = 100;
const ECHOING: usize = 32;
/// Of each misbehaviour: with the good ones and the one that reads the counts there are 201 functions.
const EACH: usize = 4;
const GOOD_CALLERS: usize = 4;
const BAD_CALLERS: usize = 4;
/// Between two calls of a good caller.
const GOOD_EVERY: Duration = Duration::from_millis(10);
/// How much memory may grow from the second to the last quarter of the time.
const FLAT: f64 = 1.05;

/// What a caller has seen of a function.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    calls: u64,
    failures: u64,
    /// Turned away.
    rejected: u64,
}

#[derive(Debug, Default)]
struct Calls {
    seen: BTreeMap<String, Seen>,
    times_ms: Vec<f64>,
    /// Answers that were not what they should have been.
    wrong: Vec<String>,
}

pub fn run(binary: &Path, length: Duration) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "soak",
        "Two hundred functions, misbehaving ones among them",
        "100 functions that count themselves in an object, 32 echoes in Rust and four of each misbehaviour on one node. Four \
         callers call good functions by chance, every 10 ms each; four others call bad ones as fast as these end. In the end \
         the node's figures are compared with what the callers saw, function by function, and the counters of the object with \
         both.",
        "target/release/soak",
    );
    let app = ManyFunctions::start(binary, COUNTING, ECHOING, EACH)?;
    let stop = AtomicBool::new(false);
    let (good, bad, resident) = std::thread::scope(|scope| {
        let (app, stop) = (&app, &stop);
        let good: Vec<_> = (0..GOOD_CALLERS).map(|_| scope.spawn(|| call_good(app, stop))).collect();
        let bad: Vec<_> = (0..BAD_CALLERS).map(|_| scope.spawn(|| call_bad(app, stop))).collect();
        let mut resident = Vec::new();
        let began = Instant::now();
        while began.elapsed() < length {
            std::thread::sleep(length / 600);
            resident.push(app.node.process.resident_mb()?.0);
        }
        stop.store(true, Ordering::Relaxed);
        let join = |callers: Vec<std::thread::ScopedJoinHandle<'_, anyhow::Result<Calls>>>| {
            let mut all = Calls::default();
            for caller in callers {
                all.add(caller.join().ok().context("a caller panicked")??);
            }
            anyhow::Ok(all)
        };
        anyhow::Ok((join(good)?, join(bad)?, resident))
    })?;
    let wrong = wrong_counts(binary, &app, &good, &bad)?;
    for line in good.wrong.iter().chain(&bad.wrong).chain(&wrong).take(20) {
        eprintln!("{line}");
    }

    let quarter = resident.len() / 4;
    let (before, after) = (median(&resident[quarter..2 * quarter]), median(&resident[3 * quarter..]));
    let figures = [("calls", ""), ("wrong answers", ""), ("p50", "ms"), ("p99", "ms"), ("longest", "ms")];
    let mut calls = Table::new("Calls", &["good functions", "functions that misbehave"], &figures);
    for (row, calls_of) in [&good, &bad].into_iter().enumerate() {
        let count = calls_of.times_ms.len() as f64;
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|q| quantile(&calls_of.times_ms, q));
        calls.add(row, &[count, calls_of.wrong.len() as f64, p50, p99, longest]);
    }
    let mut memory = Table::new(
        "Resident memory",
        &["node"],
        &[("second quarter", "MB"), ("last quarter", "MB"), ("most", "MB"), ("time", "s")],
    );
    memory.add(0, &[before, after, quantile(&resident, 1.0), length.as_secs_f64()]);
    let late = quantile(&bad.times_ms, 1.0);
    report.targets = vec![
        Target::at_most(
            "soak-missed",
            "no missed deadline and no wrong answer of good functions",
            good.wrong.len() as f64,
            0.0,
        ),
        Target::at_most("soak-bad", "every misbehaviour told as what it is", bad.wrong.len() as f64, 0.0),
        Target::at_most(
            "soak-counts",
            "functions whose counts differ from what callers saw",
            wrong.len() as f64,
            0.0,
        ),
        Target::at_most("soak-memory", "memory in the last quarter over the second", after / before, FLAT),
        Target::at_most(
            "soak-deadline",
            "ended at the deadline + 50 ms, the longest of all",
            late,
            (DEADLINE_MS + 50) as f64,
        ),
    ];
    report.tables = vec![calls, memory];
    Ok(report)
}

impl Calls {
    fn add(&mut self, other: Self) {
        for (name, seen) in other.seen {
            let own = self.seen.entry(name).or_default();
            own.calls += seen.calls;
            own.failures += seen.failures;
            own.rejected += seen.rejected;
        }
        self.times_ms.extend(other.times_ms);
        self.wrong.extend(other.wrong);
    }

    fn note(&mut self, name: &str, status: u16, began: Instant) {
        self.times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        let seen = self.seen.entry(name.to_owned()).or_default();
        match status {
            429 => seen.rejected += 1,
            _ => seen.calls += 1,
        }
        seen.failures += u64::from(status >= 400 && status != 429);
    }
}

fn call_good(app: &ManyFunctions, stop: &AtomicBool) -> anyhow::Result<Calls> {
    let (mut client, mut calls) = (Client::new(app.node.http), Calls::default());
    while !stop.load(Ordering::Relaxed) {
        let number: u32 = rand::random_range(0..1_000_000);
        let at = rand::random_range(0..app.counting.len() + app.echoing.len());
        let (name, expected) = match app.counting.get(at) {
            Some(name) => (name, (number + 1).to_string()),
            None => (&app.echoing[at - app.counting.len()], "hello".to_owned()),
        };
        let began = Instant::now();
        let (status, body) = client.post(&format!("/fn/{name}"), number.to_string().as_bytes())?;
        calls.note(name, status, began);
        if (status, body.as_slice()) != (200, expected.as_bytes()) {
            calls.wrong.push(format!("{name}: {status} {}", String::from_utf8_lossy(&body)));
        }
        std::thread::sleep(GOOD_EVERY.saturating_sub(began.elapsed()));
    }
    Ok(calls)
}

fn call_bad(app: &ManyFunctions, stop: &AtomicBool) -> anyhow::Result<Calls> {
    let (mut client, mut calls) = (Client::new(app.node.http), Calls::default());
    while !stop.load(Ordering::Relaxed) {
        let (name, kind): &(String, Misbehaviour) = &app.bad[rand::random_range(0..app.bad.len())];
        let began = Instant::now();
        let (status, body) = client.post(&format!("/fn/{name}"), kind.payload.as_bytes())?;
        calls.note(name, status, began);
        if !kind.fits(status, &body) {
            let text = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            calls.wrong.push(format!("{name}: {status} {text}"));
        }
    }
    Ok(calls)
}

/// Functions of which the node, its object or the callers say different things.
fn wrong_counts(
    binary: &Path,
    app: &ManyFunctions,
    good: &Calls,
    bad: &Calls,
) -> anyhow::Result<Vec<String>> {
    let told = app.told(binary)?;
    let body = serde_json::to_vec(&app.counting)?;
    let (status, counted) = Client::new(app.node.http).post("/fn/read", &body)?;
    anyhow::ensure!(status == 200, "the counts cannot be read: {}", String::from_utf8_lossy(&counted));
    let counted: Vec<u64> = serde_json::from_slice(&counted)?;
    let counted: BTreeMap<&String, u64> = app.counting.iter().zip(counted).collect();
    let mut wrong = Vec::new();
    for function in told.iter().filter(|function| function.name != "read") {
        let seen = good.seen.get(&function.name).or_else(|| bad.seen.get(&function.name));
        let seen = seen.copied().unwrap_or_default();
        let counts = (function.invocations, function.failures, function.rejected);
        if counts != (seen.calls, seen.failures, seen.rejected) {
            wrong.push(format!("the node says {function:?}, its callers {seen:?}"));
        }
        let own = counted.get(&function.name);
        if own.is_some_and(|own| *own != seen.calls - seen.failures) {
            wrong.push(format!("{} counted itself {own:?} times, its callers saw {seen:?}", function.name));
        }
    }
    Ok(wrong)
}
