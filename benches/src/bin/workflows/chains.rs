//! Chains of functions, started at a steady rate.

use edgefaas_benches::peers::Redis;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::work;

use crate::Plan;
use crate::apps::{Chains, Isolation, STEPS, WORK_US};
use crate::load::{Mqtt, Pace, Way, load};
use crate::pipeline::Pipeline;

const CONTESTANTS: [&str; 4] =
    ["node, fresh", "node, reuse", "Redis Streams, one at a time", "Redis Streams, 64 at a time"];
/// Entries that a step of the peer takes at a time, by contestant.
const COUNTS: [usize; 2] = [1, 64];
const P50: usize = 0;
const PROCESSOR: usize = 4;

/// What takes part, with the processor time it has used.
type Cpu<'a> = Box<dyn Fn() -> anyhow::Result<f64> + 'a>;

/// Quantiles in us, processor time of a request in us, and the share of answers in percent.
struct Turn {
    p50: f64,
    p99: f64,
    cpu: f64,
    answered: f64,
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-chains",
        "Chains of functions",
        &format!(
            "{} chains a second are started over MQTT (QoS 0, `$faas/wf/NAME/invoke/ID`), one open loop on one connection; the \
             time is from sending to the answer. Each step is a JavaScript function that computes for {WORK_US} us (a loop whose \
             turns are counted beforehand). The peer: Redis {} without persistence, a process a step that reads a stream with \
             XREADGROUP (NOACK), computes for {WORK_US} us as native code, and adds to the next stream; the client reads the last \
             one. Overhead of a step: (p50 of N steps - N x own time) / N; the own time is p50 of one `$faas/fn` call less p50 of \
             an MQTT round trip without a function, and for Redis {WORK_US} us. Without the round trip: the same with p50 of the \
             round trip (an entry written and read, for Redis) taken off before the division. A call alone finds a processor that rested \
             and cold caches, later steps of a chain do not: so a step can cost less than the formula takes off, and a second table \
             has what one step more costs. There the isolate is part of the step.",
            plan.rate,
            Redis::version().unwrap_or_default(),
        ),
        &crate::command("chains"),
    );
    let chains = Chains::start(&plan.binary)?;
    let redis = Redis::start()?;
    let turns = work::turns_in(WORK_US);
    println!("{WORK_US} us are {turns} turns of the loop as native code");
    let node_cpu = || chains.node.process.cpu_seconds();
    let parts = ["MQTT round trip", "function, fresh", "function, reuse", "Redis stream, written and read"];
    let figures = [("p50", "us"), ("p99", "us"), ("processor", "us"), ("answered", "%")];
    let mut alone = Table::new("What chains are made of", &parts, &figures);
    let figures = [
        ("p50", "us"),
        ("p99", "us"),
        ("overhead of a step", "us"),
        ("without the round trip", "us"),
        ("processor", "us"),
        ("answered", "%"),
    ];
    let title = |steps: &usize| Table::new(&format!("{steps} steps"), &CONTESTANTS, &figures);
    let mut tables: Vec<Table> = STEPS.iter().map(title).collect();
    let trip = Pipeline::start(&redis, 0, 1, 0)?;
    for _ in 0..plan.rounds {
        let ways: [(&dyn Way, Cpu<'_>); 4] = [
            (&Mqtt::echoing(chains.node.mqtt, "bench/trip"), Box::new(node_cpu)),
            (&chains.function(Isolation::Fresh), Box::new(node_cpu)),
            (&chains.function(Isolation::Reuse), Box::new(node_cpu)),
            (&trip, Box::new(|| trip.cpu_seconds())),
        ];
        let mut p50s = Vec::new();
        for (row, (way, cpu)) in ways.iter().enumerate() {
            let turn = take(plan, parts[row], *way, cpu)?;
            alone.add(row, &[turn.p50, turn.p99, turn.cpu, turn.answered]);
            p50s.push(turn.p50);
        }
        let (mqtt, redis_trip) = (p50s[0], p50s[3]);
        for (steps, table) in STEPS.iter().zip(&mut tables) {
            let mut add = |row: usize, turn: Turn, own: f64, trip: f64| {
                let steps = *steps as f64;
                let overhead = turn.p50 / steps - own;
                table.add(
                    row,
                    &[turn.p50, turn.p99, overhead, overhead - trip / steps, turn.cpu, turn.answered],
                );
            };
            for (row, isolation) in [Isolation::Fresh, Isolation::Reuse].into_iter().enumerate() {
                let way = chains.chain(isolation, *steps);
                let turn = take(plan, &isolation.chain(*steps), &way, &(Box::new(node_cpu) as Cpu<'_>))?;
                add(row, turn, p50s[1 + row] - mqtt, mqtt);
            }
            for (row, count) in COUNTS.into_iter().enumerate() {
                let way = Pipeline::start(&redis, *steps, count, turns)?;
                let cpu: Cpu<'_> = Box::new(|| way.cpu_seconds());
                let turn = take(plan, CONTESTANTS[2 + row], &way, &cpu)?;
                add(2 + row, turn, WORK_US, redis_trip);
            }
        }
    }
    for (steps, table) in STEPS.iter().zip(&tables) {
        report.targets.push(Target::at_most(
            "workflows-chains",
            &format!("chain of {steps}: p50 at most that of Redis Streams, one at a time"),
            table.ratio(0, 2, P50),
            1.0,
        ));
    }
    report.tables.push(alone);
    report.tables.push(one_more(&tables));
    report.tables.append(&mut tables);
    Ok(report)
}

/// What a step costs beside its computing, by the longest and the shortest chain of a round: what all chains have in common
/// is not in it.
fn one_more(tables: &[Table]) -> Table {
    let title = "A step more: (p50 of the longest - p50 of the shortest) / steps between them, less what it computes for";
    let mut table = Table::new(title, &CONTESTANTS, &[("of p50", "us"), ("of processor time", "us")]);
    let steps = (STEPS[STEPS.len() - 1] - STEPS[0]) as f64;
    for row in 0..CONTESTANTS.len() {
        let rounds = |table: usize, figure: usize| &tables[table].rows[row].figures[figure].rounds;
        let last = tables.len() - 1;
        for round in 0..rounds(0, P50).len() {
            let more =
                |figure: usize| (rounds(last, figure)[round] - rounds(0, figure)[round]) / steps - WORK_US;
            table.add(row, &[more(P50), more(PROCESSOR)]);
        }
    }
    table
}

fn take(plan: &Plan, who: &str, way: &dyn Way, cpu: &Cpu<'_>) -> anyhow::Result<Turn> {
    let before = cpu()?;
    let mut answers = load(way, Pace::Rate(plan.rate, plan.turn))?;
    let used = cpu()? - before;
    answers.warn(who);
    Ok(Turn {
        p50: answers.latency.quantile_us(0.5),
        p99: answers.latency.quantile_us(0.99),
        cpu: used * 1e6 / answers.answered.max(1) as f64,
        answered: answers.share() * 100.0,
    })
}
