//! Chains of functions, started at a steady rate.

use edgefaas_benches::peers::Redis;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::work;

use crate::Plan;
use crate::apps::{Chains, STEPS, Step, WORK_US};
use crate::load::{Mqtt, Pace, Way, load};
use crate::pipeline::Pipeline;

/// Entries that a step of the peer takes at a time, by contestant.
pub const COUNTS: [usize; 2] = [1, 64];
const PEERS: [&str; 2] = ["Redis Streams, one at a time", "Redis Streams, 64 at a time"];
const P50: usize = 0;
const PROCESSOR: usize = 4;
/// The same of what chains are made of.
const PART_PROCESSOR: usize = 2;

/// What takes part, in the order of tables.
pub fn contestants() -> Vec<&'static str> {
    Step::ALL.into_iter().map(Step::title).chain(PEERS).collect()
}

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
             time is from sending to the answer. Each step is a function in JavaScript or Rust that computes for {WORK_US} us (a loop whose \
             turns are counted beforehand). The peer: Redis {} without persistence, a process a step that reads a stream with \
             XREADGROUP (NOACK), computes for {WORK_US} us as native code, and adds to the next stream; the client reads the last \
             one. Overhead of a step: (p50 of N steps - N x own time) / N; the own time is p50 of one `$faas/fn` call less p50 of \
             an MQTT round trip without a function, and for Redis {WORK_US} us. Without the round trip: the same with p50 of the \
             round trip (an entry written and read, for Redis) taken off before the division. A call alone finds a processor that rested \
             and cold caches, later steps of a chain do not: so a step can cost less than the formula takes off, and a second table \
             has what one step more costs: over what it computes for, where the isolate is part of the step, and over the function called \
             alone (less the round trip), where it is not.",
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
    let mut parts = vec!["MQTT round trip".to_owned()];
    parts.extend(Step::ALL.map(|step| format!("function, {}", step.title())));
    parts.push("Redis stream, written and read".to_owned());
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let contestants = contestants();
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
    let title = |steps: &usize| Table::new(&format!("{steps} steps"), &contestants, &figures);
    let mut tables: Vec<Table> = STEPS.iter().map(title).collect();
    let trip = Pipeline::start(&redis, 0, 1, 0)?;
    for _ in 0..plan.rounds {
        let mqtt_trip = Mqtt::echoing(chains.node.mqtt, "bench/trip");
        let functions = Step::ALL.map(|step| chains.function(step));
        let mut ways: Vec<(&dyn Way, Cpu<'_>)> = vec![(&mqtt_trip, Box::new(node_cpu))];
        ways.extend(functions.iter().map(|way| (way as &dyn Way, Box::new(node_cpu) as Cpu<'_>)));
        ways.push((&trip, Box::new(|| trip.cpu_seconds())));
        let mut p50s = Vec::new();
        for (row, (way, cpu)) in ways.iter().enumerate() {
            let turn = take(plan, parts[row], *way, cpu)?;
            alone.add(row, &[turn.p50, turn.p99, turn.cpu, turn.answered]);
            p50s.push(turn.p50);
        }
        let (mqtt, redis_trip) = (p50s[0], p50s[p50s.len() - 1]);
        for (steps, table) in STEPS.iter().zip(&mut tables) {
            let mut add = |row: usize, turn: Turn, own: f64, trip: f64| {
                let steps = *steps as f64;
                let overhead = turn.p50 / steps - own;
                table.add(
                    row,
                    &[turn.p50, turn.p99, overhead, overhead - trip / steps, turn.cpu, turn.answered],
                );
            };
            for (row, step) in Step::ALL.into_iter().enumerate() {
                let way = chains.chain(step, *steps);
                let turn = take(plan, &step.chain(*steps), &way, &(Box::new(node_cpu) as Cpu<'_>))?;
                add(row, turn, p50s[1 + row] - mqtt, mqtt);
            }
            for (peer, count) in COUNTS.into_iter().enumerate() {
                let way = Pipeline::start(&redis, *steps, count, turns)?;
                let cpu: Cpu<'_> = Box::new(|| way.cpu_seconds());
                let turn = take(plan, PEERS[peer], &way, &cpu)?;
                add(Step::ALL.len() + peer, turn, WORK_US, redis_trip);
            }
        }
    }
    for (steps, table) in STEPS.iter().zip(&tables) {
        for (row, step) in Step::ALL.into_iter().enumerate() {
            report.targets.push(Target::at_most(
                "workflows-chains",
                &format!(
                    "chain of {steps}, {}: p50, times that of Redis Streams, one at a time",
                    step.title()
                ),
                table.ratio(row, Step::ALL.len(), P50),
                1.0,
            ));
        }
    }
    let more = one_more(&tables, &alone);
    for (row, step) in Step::ALL.into_iter().enumerate() {
        for (figure, of) in [(2, "p50"), (3, "processor time")] {
            report.targets.push(Target::at_most(
                "workflows-step",
                &format!("a step more, {}: {of} over its function's, us", step.title()),
                more.rows[row].figures[figure].median(),
                if step.is_rust() { 16.0 } else { 25.0 },
            ));
        }
    }
    report.tables.push(alone);
    report.tables.push(more);
    report.tables.append(&mut tables);
    Ok(report)
}

/// What a step costs beside its computing, by the longest and the shortest chain of a round: what all chains have in common
/// is not in it. And what it costs beside the function that is called alone.
fn one_more(tables: &[Table], alone: &Table) -> Table {
    let title = "A step more: (p50 of the longest - p50 of the shortest) / steps between them, less what it computes for or its function";
    let figures = [
        ("p50, over computing", "us"),
        ("processor time, over computing", "us"),
        ("p50, over the function", "us"),
        ("processor time, over the function", "us"),
    ];
    let mut table = Table::new(title, &contestants(), &figures);
    let steps = (STEPS[STEPS.len() - 1] - STEPS[0]) as f64;
    let (first, last) = (&tables[0], &tables[tables.len() - 1]);
    for row in 0..table.rows.len() {
        let rounds =
            |table: &Table, row: usize, figure: usize| table.rows[row].figures[figure].rounds.clone();
        for round in 0..rounds(first, row, P50).len() {
            let step = |figure: usize| {
                (rounds(last, row, figure)[round] - rounds(first, row, figure)[round]) / steps
            };
            // The peer's step is what it computes for.
            let function = |figure: usize| match row < Step::ALL.len() {
                true => rounds(alone, 1 + row, figure)[round] - rounds(alone, 0, figure)[round],
                false => WORK_US,
            };
            let (p50, cpu) = (step(P50), step(PROCESSOR));
            table.add(
                row,
                &[p50 - WORK_US, cpu - WORK_US, p50 - function(P50), cpu - function(PART_PROCESSOR)],
            );
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
