//! How evenly calls are spread, by strategy.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::median;
use edgefaas_cluster::placement::Policy;
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::simulation::{CallOutcome, CallPlan, CallSimulation, Heartbeats, KnownShares};

use crate::Arguments;
use crate::convergence::form;

/// Before the calls are counted, and while they are.
const BEFORE: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(10);
const PERMITS: u32 = 8;
const SERVICE: Duration = Duration::from_millis(400);

/// Names, strategies, the share of all permits that is used on average, and whether one node in 100 reports no load.
const CASES: [(&str, &str, f64, bool); 8] = [
    ("least-loaded", "least-loaded", 0.6, false),
    ("random", "random", 0.6, false),
    ("platform", "platform", 0.6, false),
    ("nearest", "nearest", 0.6, false),
    ("least-loaded, 90 %", "least-loaded", 0.9, false),
    ("random, 90 %", "random", 0.9, false),
    ("least-loaded, 1 % report no load", "least-loaded", 0.6, true),
    ("nearest, 1 % report no load", "nearest", 0.6, true),
];

const FIGURES: [(&str, &str); 8] = [
    ("max/mean over the time", ""),
    ("most of a node at a moment", "% of its permits"),
    ("calls that waited", "%"),
    ("refusals by nodes, per call", "%"),
    ("calls refused", "%"),
    ("begin p50", "ms"),
    ("begin p99", "ms"),
    ("most of a node that reports none", "% of its permits"),
];

pub fn run(arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let mut table = Table::new(
        "Calls at 60 % (or 90 %) of all permits, entry nodes by Zipf's law",
        &CASES.map(|(name, ..)| name),
        &FIGURES,
    );
    for seed in 1..=arguments.seeds {
        for (row, (name, strategy, used, has_liars)) in CASES.into_iter().enumerate() {
            let begun = Instant::now();
            let cluster = form(arguments, seed, Heartbeats::Assumed)?.cluster;
            let plan = plan(arguments, strategy, used, has_liars)?;
            let liars = plan.liars.clone();
            let outcome = CallSimulation::new(seed, cluster, plan).run(BEFORE, MEASURED);
            table.add(row, &figures(&outcome, &liars));
            println!("seed {seed}, {name}: real time {:?}", begun.elapsed());
        }
    }
    let value = |row: usize, figure: usize| median(&table.rows[row].figures[figure].rounds);
    report.targets.extend([
        Target::at_most(
            "simulation-balance",
            "max/mean of the load with least-loaded: at most 1.3",
            value(0, 0),
            1.3,
        ),
        Target::at_most("simulation-refused", "calls refused with least-loaded, %: none", value(0, 4), 0.0),
    ]);
    report.tables.push(table);
    Ok(())
}

fn plan(arguments: &Arguments, strategy: &str, used: f64, has_liars: bool) -> anyhow::Result<CallPlan> {
    let policy = Policy::parse(&format!("spread: [{{workers: \"*\", strategy: {strategy}}}]"))?;
    let nodes = arguments.nodes as f64;
    Ok(CallPlan {
        policy,
        tag: "spread".into(),
        functions: 100,
        calls_per_second: nodes * f64::from(PERMITS) * used / SERVICE.as_secs_f64(),
        skew: 1.0,
        service: SERVICE,
        permits: PERMITS,
        queue: 64,
        memory_bytes: 1 << 30,
        call_bytes: 4 << 20,
        liars: match has_liars {
            true => (1..=arguments.nodes as u64).step_by(100).map(NodeId).collect(),
            false => BTreeSet::new(),
        },
        shares: KnownShares::ByRefusals,
    })
}

fn figures(outcome: &CallOutcome, liars: &BTreeSet<NodeId>) -> [f64; 8] {
    let percent = |count: u64| 100.0 * count as f64 / outcome.calls.max(1) as f64;
    let ms = |share| outcome.delay(share).as_secs_f64() * 1e3;
    let of_liars = liars.iter().map(|node| outcome.mean_loads[node.0 as usize - 1]).fold(0.0, f64::max);
    [
        outcome.max_by_mean(),
        100.0 * outcome.peak(),
        percent(outcome.waited),
        percent(outcome.refusals),
        percent(outcome.refused),
        ms(0.5),
        ms(0.99),
        100.0 * of_liars,
    ]
}
