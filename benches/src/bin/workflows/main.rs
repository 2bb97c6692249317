//! Workflows beside what else strings functions together: chains against the same pipeline over Redis Streams, many starts at
//! once, events that are counted inside of a broker and beside one, instances that wait, and durable steps.

mod apps;
mod burst;
mod chains;
mod durable;
mod inside;
mod load;
mod pipeline;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::peers::{self, Peer};
use edgefaas_benches::results::Report;

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
    Inside,
    Waiting,
    Durable,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one of the peers; what this program starts as its children
    #[command(subcommand, hide = true)]
    Peer(Peer),
}

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
            Plan { binary, rounds: 2, turn, rate, burst, waiting: 10_000, settle }
        }
        false => {
            let (turn, settle) = (seconds(10), seconds(5));
            Plan { binary, rounds: 3, turn, rate, burst, waiting: 100_000, settle }
        }
    };
    let plan = Plan { rounds: arguments.rounds.unwrap_or(plan.rounds), ..plan };
    let parts: [(Part, Measure); 5] = [
        (Part::Chains, chains::run),
        (Part::Burst, burst::run),
        (Part::Inside, inside::run),
        (Part::Waiting, waiting::run),
        (Part::Durable, durable::run),
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

fn command(part: &str) -> String {
    format!("target/release/workflows --only {part}")
}
