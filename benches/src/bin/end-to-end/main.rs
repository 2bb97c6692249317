//! The whole beside its peers: the real binary under load, with other brokers and servers, a bare hyper server and a TCP
//! echo in the same run. Contestants take turns round by round; tables go to stdout and `benches/results/*.json`.

mod broker;
mod density;
mod deploying;
mod http;
mod idle;
mod many;
mod mqtt;
mod serve;

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
#[command(about = "Measures a node beside its peers", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Fewer and shorter rounds; prints only and keeps no results
    #[arg(long)]
    quick: bool,
    /// How often every contestant has its turn
    #[arg(long)]
    rounds: Option<usize>,
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
    Broker,
    Mqtt,
    Http,
    Serve,
    Idle,
    Density,
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
    /// Starts of an idle node.
    starts: usize,
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
    let ms = Duration::from_millis;
    let binary = arguments.binary.map_or_else(build_binary, Ok)?;
    let plan = match arguments.quick {
        true => Plan { binary, rounds: 2, turn: ms(300), starts: 3, settle: ms(500) },
        false => Plan { binary, rounds: 5, turn: ms(1500), starts: 10, settle: ms(3000) },
    };
    let plan = Plan { rounds: arguments.rounds.unwrap_or(plan.rounds), ..plan };
    let parts: [(Part, Measure); 6] = [
        (Part::Idle, idle::run),
        (Part::Density, density::run),
        (Part::Broker, broker::run),
        (Part::Mqtt, mqtt::run),
        (Part::Http, http::run),
        (Part::Serve, serve::run),
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
    format!("target/release/end-to-end --only {part}")
}
