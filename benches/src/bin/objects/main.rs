//! Stateful objects: what a change costs over gRPC and in a function, beside a bare gRPC server and Redis; what replication
//! costs and how long it takes; how much objects take in memory and on the disk; a simulation of many replicas; and queues and
//! documents that change a million times.
//!
//! The loads are those of MISO's evaluation, whose published figures stand beside them.

mod allreduce;
mod apps;
mod bare;
mod calls;
mod client;
mod cluster;
mod documents;
mod grpc;
mod guest;
mod intervals;
mod lag;
mod recovery;
mod simulation;
mod traffic;
mod writes;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::results::Report;

// The node's allocator, for the peers too.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "Measures stateful objects beside their peers", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Fewer and shorter rounds, and smaller sizes
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Clusters of 20 and 30 nodes too
    #[arg(long)]
    full: bool,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
    /// How many nodes the clusters of the load over gRPC have
    #[arg(long, value_delimiter = ',')]
    nodes: Option<Vec<usize>>,
    /// How many objects a new node takes over
    #[arg(long)]
    objects: Option<usize>,
    /// How often every contestant has its turn
    #[arg(long)]
    rounds: Option<usize>,
    /// How many seconds a turn lasts
    #[arg(long)]
    turn: Option<u64>,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Of what is left to chance in the simulation; drawn if it is not given
    #[arg(long)]
    seed: Option<u64>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Grpc,
    Intervals,
    Guest,
    Allreduce,
    Lag,
    Recovery,
    Simulation,
    Documents,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers every update with nothing; what this program starts as its child
    #[command(hide = true)]
    Bare,
    /// Runs one simulation and prints what came of it
    #[command(hide = true)]
    Simulate(simulation::Scenario),
}

/// How long, how often and how much to measure.
struct Plan {
    quick: bool,
    binary: PathBuf,
    rounds: usize,
    /// Of one contestant's turn.
    turn: Duration,
    /// How many nodes the clusters have.
    nodes: Vec<usize>,
    /// Calls in one invocation.
    calls: u32,
    /// Numbers that are added up.
    numbers: usize,
    /// Changes whose way is timed, at interval 0 and at 200 ms.
    lags: [usize; 2],
    /// Objects that a new node takes over.
    objects: usize,
    /// Updates whose writes are counted.
    updates: usize,
    /// How many replicas are simulated.
    replicas: Vec<usize>,
    /// Virtual time in which they change.
    simulated: Duration,
    seed: u64,
}

/// One part of the measurements.
type Measure = fn(&Plan) -> anyhow::Result<Report>;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Bare) => return bare::run(),
        Some(Command::Simulate(scenario)) => return simulation::run_one(scenario),
        None => {}
    }
    let plan = plan(&arguments)?;
    let parts: [(Part, Measure); 8] = [
        (Part::Grpc, grpc::run),
        (Part::Intervals, intervals::run),
        (Part::Guest, guest::run),
        (Part::Allreduce, allreduce::run),
        (Part::Lag, lag::run),
        (Part::Recovery, recovery::run),
        (Part::Simulation, simulation::run),
        (Part::Documents, documents::run),
    ];
    let mut failed = Vec::new();
    for (part, run) in parts {
        if !arguments.only.is_empty() && !arguments.only.contains(&part) {
            continue;
        }
        match run(&plan) {
            Ok(report) => {
                report.print();
                if arguments.results {
                    report.save()?;
                }
            }
            // The other parts can be measured all the same.
            Err(error) => {
                eprintln!("{part:?}: {error:#}");
                failed.push(part);
            }
        }
    }
    anyhow::ensure!(failed.is_empty(), "these parts could not be measured: {failed:?}");
    Ok(())
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let seconds = Duration::from_secs;
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let simulates = arguments.only.is_empty() || arguments.only.contains(&Part::Simulation);
    let without_node = |part: &Part| matches!(part, Part::Simulation | Part::Documents);
    let alone = !arguments.only.is_empty() && arguments.only.iter().all(without_node);
    if simulates {
        println!("seed {seed}");
    }
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None if alone => PathBuf::new(),
        None => build_binary()?,
    };
    let plan = match arguments.quick {
        true => Plan {
            quick: true,
            binary,
            rounds: 2,
            turn: seconds(2),
            nodes: vec![2, 5, 10],
            calls: 100_000,
            numbers: 1_000_000,
            lags: [500, 20],
            objects: 10_000,
            updates: 500,
            replicas: vec![10, 100, 1000],
            simulated: seconds(5),
            seed,
        },
        false => Plan {
            quick: false,
            binary,
            rounds: 3,
            turn: seconds(10),
            nodes: if arguments.full { vec![2, 5, 10, 20, 30] } else { vec![2, 5, 10] },
            calls: 100_000,
            numbers: 1_000_000,
            lags: [5000, 100],
            objects: 100_000,
            updates: 2000,
            replicas: vec![10, 100, 1000],
            simulated: seconds(30),
            seed,
        },
    };
    let rounds = arguments.rounds.unwrap_or(plan.rounds).max(1);
    let nodes = arguments.nodes.clone().unwrap_or(plan.nodes);
    let turn = arguments.turn.map_or(plan.turn, Duration::from_secs);
    let objects = arguments.objects.unwrap_or(plan.objects).max(1);
    Ok(Plan { rounds, turn, nodes, objects, ..plan })
}

/// What was asked for, and the part that it is about. Which binary was measured is left out.
fn command(part: &str) -> String {
    let mut command = format!("target/release/objects --only {part}");
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" | "--binary" | "--seed" => drop(arguments.next()),
            other => command.extend([" ", other]),
        }
    }
    command
}
