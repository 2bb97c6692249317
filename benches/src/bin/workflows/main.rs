//! Workflows beside what else strings functions together: chains against the same pipeline over Redis Streams, many starts at
//! once, a load that rises, a flow beside Node-RED, events that are counted inside of a broker and beside one, instances that wait, and
//! durable steps, also beside Restate.

mod apart;
mod apps;
mod burst;
mod chains;
mod durable;
mod inside;
mod load;
mod node_red;
mod over_http;
mod pipeline;
mod restate;
mod rising;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::peers::{self, Peer};
use edgefaas_benches::results::{Regression, Report, Target};
use edgefaas_benches::results_folder;

// The node's allocator, for the peers too.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "Measures workflows beside their peers", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Fewer and shorter rounds; prints only and keeps no results
    #[arg(long)]
    quick: bool,
    /// How often every contestant has its turn
    #[arg(long)]
    rounds: Option<usize>,
    /// Chains that are started in a second
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// A short form of what is held against Node-RED: fails if a ratio is worse than the kept one by more than a factor of two
    #[arg(long, conflicts_with = "only")]
    gate: bool,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Chains,
    Burst,
    Rising,
    NodeRed,
    Inside,
    Apart,
    Waiting,
    Durable,
    Restate,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one of the peers; what this program starts as its children
    #[command(subcommand, hide = true)]
    Peer(Peer),
}

/// Of the short form for the gate.
const GATE_ROUNDS: usize = 5;
const GATE_TURN: Duration = Duration::from_millis(700);
/// By how much a ratio may be worse than the kept one, there.
const GATE_FACTOR: f64 = 2.0;

/// How long and how often to measure.
struct Plan {
    binary: PathBuf,
    rounds: usize,
    /// Of one contestant's turn.
    turn: Duration,
    /// Chains that are started in a second.
    rate: f64,
    /// Chains that are started at once.
    burst: u64,
    /// Instances that wait.
    waiting: u64,
    /// How long a node is left alone before its memory is looked at.
    settle: Duration,
}

/// One part of the measurements.
type Measure = fn(&Plan) -> anyhow::Result<Report>;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Peer(peer)) = &arguments.command {
        return peers::run(peer);
    }
    let seconds = Duration::from_secs;
    let binary = arguments.binary.map_or_else(build_binary, Ok)?;
    let (rate, burst) = (arguments.rate, 10_000);
    let plan = match arguments.quick {
        true => {
            let (turn, settle) = (seconds(2), seconds(1));
            Plan { binary, rounds: 1, turn, rate, burst, waiting: 10_000, settle }
        }
        false => {
            let (turn, settle) = (seconds(4), seconds(5));
            Plan { binary, rounds: 5, turn, rate, burst, waiting: 100_000, settle }
        }
    };
    if arguments.gate {
        return gate(&Plan { rounds: GATE_ROUNDS, turn: GATE_TURN, ..plan });
    }
    let plan = Plan { rounds: arguments.rounds.unwrap_or(plan.rounds), ..plan };
    let parts: [(Part, Measure); 9] = [
        (Part::Chains, chains::run),
        (Part::Burst, burst::run),
        (Part::Rising, rising::run),
        (Part::NodeRed, node_red::run),
        (Part::Inside, inside::run),
        (Part::Apart, apart::run),
        (Part::Waiting, waiting::run),
        (Part::Durable, durable::run),
        (Part::Restate, restate::run),
    ];
    for (part, run) in parts {
        if arguments.only.is_empty() || arguments.only.contains(&part) {
            let report = run(&plan)?;
            report.print();
            if !arguments.quick {
                report.save()?;
            }
        }
    }
    Ok(())
}

/// Holds the ratios of a short run against the kept ones.
fn gate(plan: &Plan) -> anyhow::Result<()> {
    let report = node_red::short(plan)?;
    report.print();
    let kept = Report::load(&results_folder().join("workflows-node-red.json"))?;
    let known = |target: &&Target| kept.targets.iter().any(|before| before.text == target.text);
    anyhow::ensure!(
        report.targets.iter().any(|target| known(&target)),
        "the kept results have none of these"
    );
    for target in report.targets.iter().filter(|target| !known(target)) {
        println!("not in the kept results: {}", target.text);
    }
    let worse = report.regressions(&kept, GATE_FACTOR);
    for Regression { text, kept, now } in &worse {
        println!("much worse than before: {text}: {now:.2}, and {kept:.2} before");
    }
    anyhow::ensure!(worse.is_empty(), "{} ratios are worse by more than {GATE_FACTOR}", worse.len());
    Ok(())
}

fn command(part: &str) -> String {
    format!("target/release/workflows --only {part}")
}
