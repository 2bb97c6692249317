//! One misbehaviour at a time: how long others wait for their answers meanwhile, and when it is ended.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_benches::client::Client;
use edgefaas_benches::misbehaviours::{DEADLINE_MS, Misbehaviour};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::quantile;

use crate::many_functions::ManyFunctions;

/// Callers of the function that misbehaves, each with its next call as soon as the last one has ended.
const CALLERS: usize = 8;
/// Between two calls of another function.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// Two ticks of the scheduler for each of the node's threads, and some room for a machine that others use.
const HARMLESS_MS: f64 = 25.0;

pub fn run(binary: &Path, turn: Duration) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "neighbours",
        "What functions that misbehave do to others",
        "Eight callers call a function that misbehaves, one call after another, while a function that counts itself in an \
         object is called every 5 ms. Each kind has a turn on the same node, which has two threads; the first row is the \
         node left alone. A function that misbehaves may run for 200 ms.",
        "target/release/soak",
    );
    let app = ManyFunctions::start(binary, 1, 0, 1)?;
    let kinds: Vec<Option<Misbehaviour>> =
        std::iter::once(None).chain(app.bad.iter().map(|(_, kind)| Some(*kind))).collect();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.map_or("nobody", |kind| kind.name)).collect();
    let figures = [
        ("others, p50", "ms"),
        ("others, p99", "ms"),
        ("others, longest", "ms"),
        ("calls that misbehaved", "calls/s"),
        ("ended after, p99", "ms"),
        ("longest", "ms"),
    ];
    let mut table = Table::new("One at a time", &names, &figures);
    let (mut worst_p99, mut worst_end) = (0.0f64, 0.0f64);
    for (row, kind) in kinds.iter().enumerate() {
        let (others, bad) = measure(&app, *kind, turn)?;
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|q| quantile(&others, q));
        let rate = bad.len() as f64 / turn.as_secs_f64();
        let [end, last] = [0.99, 1.0].map(|q| quantile(&bad, q));
        table.add(row, &[p50, p99, longest, rate, end, last]);
        if kind.is_some() {
            (worst_p99, worst_end) = (worst_p99.max(p99), worst_end.max(last));
        }
    }
    let limit = (DEADLINE_MS + 50) as f64;
    report.targets = vec![
        Target::at_most(
            "neighbours-latency",
            "others' p99 while one misbehaves: 25 ms",
            worst_p99,
            HARMLESS_MS,
        ),
        Target::at_most(
            "neighbours-deadline",
            "ended at the deadline + 50 ms, the longest of all",
            worst_end,
            limit,
        ),
    ];
    report.tables = vec![table];
    Ok(report)
}

/// Times in milliseconds: of the others' calls, and of those that misbehaved.
fn measure(
    app: &ManyFunctions,
    kind: Option<Misbehaviour>,
    turn: Duration,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bad = kind.map(|kind| {
            let stop = &stop;
            let path = format!("/fn/{}-0", kind.name);
            let call = move || -> anyhow::Result<Vec<f64>> {
                let (mut client, mut times) = (Client::new(app.node.http), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let (status, body) = client.post(&path, kind.payload.as_bytes())?;
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                    let text = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
                    ensure!(kind.fits(status, &body), "{}: {status} {text}", kind.name);
                }
                Ok(times)
            };
            (0..CALLERS).map(|_| scope.spawn(call.clone())).collect::<Vec<_>>()
        });
        let others = probe(app, turn);
        stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for caller in bad.unwrap_or_default() {
            times.extend(caller.join().ok().context("a caller panicked")??);
        }
        Ok((others?, times))
    })
}

fn probe(app: &ManyFunctions, turn: Duration) -> anyhow::Result<Vec<f64>> {
    let mut client = Client::new(app.node.http);
    let (mut times, began) = (Vec::new(), Instant::now());
    while began.elapsed() < turn {
        let call = Instant::now();
        let (status, body) = client.post("/fn/counting-0", b"1")?;
        ensure!((status, body.as_slice()) == (200, b"2"), "{status} {}", String::from_utf8_lossy(&body));
        times.push(call.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(PROBE_EVERY.saturating_sub(call.elapsed()));
    }
    Ok(times)
}
