//! Many chains started at once.

use edgefaas_benches::peers::Redis;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::work;

use crate::Plan;
use crate::apps::{Chains, Isolation, WORK_US};
use crate::load::{Answers, Pace, load};
use crate::pipeline::Pipeline;

const STEPS: usize = 3;
const CONTESTANTS: [&str; 6] = [
    "chain, fresh",
    "chain, reuse",
    "functions alone, fresh",
    "functions alone, reuse",
    "Redis Streams, one at a time",
    "Redis Streams, 64 at a time",
];
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
    let title = format!("{} chains of {STEPS}, or {} calls", plan.burst, plan.burst * STEPS as u64);
    let mut table = Table::new(&title, &CONTESTANTS, &figures);
    let mut add = |row: usize, answers: Answers, cpu: f64| {
        answers.warn(CONTESTANTS[row]);
        let seconds = answers.elapsed.as_secs_f64();
        let of_a_chain = if matches!(row, 2 | 3) { STEPS as f64 } else { 1.0 };
        let done = answers.answered as f64 / of_a_chain;
        table.add(row, &[seconds, done / seconds, cpu * 1e6 / done, answers.share() * 100.0]);
    };
    for _ in 0..plan.rounds {
        for (row, isolation) in [Isolation::Fresh, Isolation::Reuse].into_iter().enumerate() {
            let before = chains.node.process.cpu_seconds()?;
            let answers = load(&chains.chain(isolation, STEPS), Pace::AtOnce(plan.burst))?;
            add(row, answers, chains.node.process.cpu_seconds()? - before);
            let before = chains.node.process.cpu_seconds()?;
            let calls = plan.burst * STEPS as u64;
            let answers = load(&chains.function(isolation), Pace::AtOnce(calls))?;
            add(2 + row, answers, chains.node.process.cpu_seconds()? - before);
        }
        for (row, count) in [(4, 1), (5, 64)] {
            let pipeline = Pipeline::start(&redis, STEPS, count, turns)?;
            let before = pipeline.cpu_seconds()?;
            let answers = load(&pipeline, Pace::AtOnce(plan.burst))?;
            add(row, answers, pipeline.cpu_seconds()? - before);
        }
    }
    for (row, isolation) in ["fresh", "reuse"].into_iter().enumerate() {
        report.targets.push(Target::at_most(
            "workflows-burst",
            &format!("{isolation}: chains take at most 1.2 times as long as their functions alone"),
            table.ratio(row, 2 + row, TIME),
            1.2,
        ));
    }
    report.tables.push(table);
    Ok(report)
}
