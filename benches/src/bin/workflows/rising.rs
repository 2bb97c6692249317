//! Chains under a load that rises beyond what the machine can carry, and on a machine whose processor others use.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgefaas_benches::peers::Redis;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::work::{self, work};

use crate::Plan;
use crate::apps::{Chains, Step, WORK_US};
use crate::burst::STEPS;
use crate::chains::{COUNTS, contestants};
use crate::load::{Answers, Pace, Way, load};
use crate::pipeline::Pipeline;

/// Chains that are started in a second.
const RATES: [f64; 7] = [1.0, 16.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0];
/// With other work on the machine.
const SATURATED_RATE: f64 = 256.0;
/// A load is at least so long, and at most: in between it has a hundred requests.
const SHORTEST: Duration = Duration::from_secs(1);
const REQUESTS: f64 = 100.0;
/// How long what is left of a load may take, and what a chain takes that has nothing before it.
const DRAINED: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);
/// What the others compute between two looks whether they should stop.
const TURNS: u64 = 100_000;

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-rising",
        "Chains under a load that rises",
        &format!(
            "Chains of {STEPS} (see chains of functions) at rates that rise from {} to {} a second, in open loops of {} s and more, with the \
             settings of the chains that are started all at once. What is refused, or comes later than a second, is not in time. The last table has \
             {SATURATED_RATE} chains a second while a thread for each core of the machine computes, with the same priority.",
            RATES[0],
            RATES[RATES.len() - 1],
            SHORTEST.as_secs(),
        ),
        &crate::command("rising"),
    );
    let chains = Chains::start(&plan.binary)?;
    let redis = Redis::start()?;
    let turns = work::turns_in(WORK_US);
    let contestants = contestants();
    let names = RATES.map(|rate| format!("{rate} a second"));
    let figures = |unit: &'static str| names.iter().map(|name| (name.as_str(), unit)).collect::<Vec<_>>();
    let table = |title: &str, unit: &'static str| Table::new(title, &contestants, &figures(unit));
    let mut tables = [
        table("p50", "us"),
        table("p99", "us"),
        table("Answered within a second", "%"),
        table("Sent, of what was due", "%"),
    ];
    let figures = [("p50", "us"), ("p99", "us"), ("answered within a second", "%")];
    let mut saturated = Table::new("A machine that others use", &contestants, &figures);
    for _ in 0..plan.rounds {
        for (row, who) in contestants.iter().enumerate() {
            let way: Box<dyn Way> = match row.checked_sub(Step::ALL.len()) {
                None => Box::new(chains.chain(Step::ALL[row], STEPS)),
                Some(peer) => Box::new(Pipeline::start(&redis, STEPS, COUNTS[peer], turns)?),
            };
            let mut answers = beside_others(|| load(&*way, Pace::Rate(SATURATED_RATE, plan.turn / 2)))?;
            answers.warn(who);
            let latency = &mut answers.latency;
            let (p50, p99) = (latency.quantile_us(0.5), latency.quantile_us(0.99));
            saturated.add(row, &[p50, p99, in_time(&answers)]);
            for (figure, rate) in RATES.into_iter().enumerate() {
                let length =
                    Duration::from_secs_f64(REQUESTS / rate).clamp(SHORTEST, plan.turn.max(SHORTEST));
                let mut answers = load(&*way, Pace::Rate(rate, length))?;
                let sent = length.as_secs_f64() * 125.0 / answers.sending.as_secs_f64();
                let values = [
                    answers.latency.quantile_us(0.5),
                    answers.latency.quantile_us(0.99),
                    in_time(&answers),
                    sent.min(100.0),
                ];
                for (table, value) in tables.iter_mut().zip(values) {
                    table.rows[row].figures[figure].rounds.push(value);
                }
                rest(&*way).with_context(|| format!("{who}, after {rate} a second"))?;
            }
        }
    }
    let batched = contestants.len() - 1;
    for (row, step) in Step::ALL.into_iter().enumerate().filter(|(_, step)| step.is_rust()) {
        report.targets.push(Target::at_most(
            "workflows-saturated",
            &format!(
                "{}: p99 on a machine that others use, times that of Redis Streams, 64 at a time",
                step.title()
            ),
            saturated.ratio(row, batched, 1),
            1.0,
        ));
    }
    report.tables.extend(tables);
    report.tables.push(saturated);
    Ok(report)
}

/// Waits until nothing of an earlier load is before a chain.
fn rest(way: &dyn Way) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < DRAINED {
        let answers = load(way, Pace::AtOnce(1))?;
        if answers.answered == 1 && answers.elapsed < LOOK {
            return Ok(());
        }
        sleep(LOOK);
    }
    bail!("a chain is not answered within {LOOK:?}, {DRAINED:?} after the load")
}

fn in_time(answers: &Answers) -> f64 {
    answers.in_time as f64 / answers.expected as f64 * 100.0
}

/// Does something while a thread for each core computes.
fn beside_others<T>(run: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            threads.spawn(|| {
                while !stop.load(Relaxed) {
                    black_box(work(black_box(TURNS)));
                }
            });
        }
        let came = run();
        stop.store(true, Relaxed);
        came
    })
}
