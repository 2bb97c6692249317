//! Many chains started at once.

use edgefaas_benches::peers::Redis;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::work;

use crate::Plan;
use crate::apps::{Chains, Step, WORK_US};
use crate::chains::COUNTS;
use crate::load::{Answers, Pace, load};
use crate::pipeline::Pipeline;

/// How long the chains are.
pub const STEPS: usize = 3;
/// Contestants: chains, functions alone, and the peers.
const ALONE: usize = Step::ALL.len();
const PEERS: usize = 2 * Step::ALL.len();
const BATCHED: usize = PEERS + 1;
const TIME: usize = 0;

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-burst",
        "Chains started all at once",
        &format!(
            "{} starts of a chain of {STEPS} (see chains of functions) as fast as they can be written, until all are answered; \
             beside it as many calls of the function as the chains have steps, without a workflow, and the same pipeline over Redis \
             Streams. `[workflows] running` is 20,000 and the function's queue has room for all.",
            plan.burst
        ),
        &crate::command("burst"),
    );
    let chains = Chains::start(&plan.binary)?;
    let redis = Redis::start()?;
    let turns = work::turns_in(WORK_US);
    let figures = [
        ("until all are answered", "s"),
        ("chains", "1/s"),
        ("processor for a chain", "us"),
        ("answered", "%"),
    ];
    let mut names = Vec::new();
    for kind in ["chain", "functions alone"] {
        names.extend(Step::ALL.map(|step| format!("{kind}, {}", step.title())));
    }
    names.extend(["one at a time", "64 at a time"].map(|count| format!("Redis Streams, {count}")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let title = format!("{} chains of {STEPS}, or {} calls", plan.burst, plan.burst * STEPS as u64);
    let mut table = Table::new(&title, &names, &figures);
    let mut add = |row: usize, answers: Answers, cpu: f64| {
        answers.warn(names[row]);
        let seconds = answers.elapsed.as_secs_f64();
        let of_a_chain = if (ALONE..PEERS).contains(&row) { STEPS as f64 } else { 1.0 };
        let done = answers.answered as f64 / of_a_chain;
        table.add(row, &[seconds, done / seconds, cpu * 1e6 / done, answers.share() * 100.0]);
    };
    for _ in 0..plan.rounds {
        for (row, step) in Step::ALL.into_iter().enumerate() {
            let before = chains.node.process.cpu_seconds()?;
            let answers = load(&chains.chain(step, STEPS), Pace::AtOnce(plan.burst))?;
            add(row, answers, chains.node.process.cpu_seconds()? - before);
            let before = chains.node.process.cpu_seconds()?;
            let calls = plan.burst * STEPS as u64;
            let answers = load(&chains.function(step), Pace::AtOnce(calls))?;
            add(ALONE + row, answers, chains.node.process.cpu_seconds()? - before);
        }
        for (row, count) in COUNTS.into_iter().enumerate() {
            let pipeline = Pipeline::start(&redis, STEPS, count, turns)?;
            let before = pipeline.cpu_seconds()?;
            let answers = load(&pipeline, Pace::AtOnce(plan.burst))?;
            add(PEERS + row, answers, pipeline.cpu_seconds()? - before);
        }
    }
    for (row, step) in Step::ALL.into_iter().enumerate() {
        report.targets.push(Target::at_most(
            "workflows-burst",
            &format!(
                "burst, {}: chains take at most 1.35 times as long as their functions alone",
                step.title()
            ),
            table.ratio(row, ALONE + row, TIME),
            1.35,
        ));
        if step.is_rust() {
            report.targets.push(Target::at_most(
                "workflows-burst-redis",
                &format!("burst, {}: at most the time of Redis Streams, 64 at a time", step.title()),
                table.ratio(row, BATCHED, TIME),
                1.0,
            ));
        }
    }
    report.tables.push(table);
    Ok(report)
}
