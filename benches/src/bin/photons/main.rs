//! An evaluation in the manner of Photons ("Photons: Lambdas on a Diet", SoCC 2020): an hour of many functions, played at
//! many times its speed, on a node and on a process for each instance. Contestants take turns round by round; tables go to
//! stdout and `benches/results/photons.json`, plots to `docs/plots`.

mod backend;
mod contestants;
mod figures;
mod front;
mod functions;
mod load;
mod memory;
mod own_time;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::results::Report;

use crate::contestants::{Contestant, NAMES, Setting};
use crate::functions::Guests;
use crate::trace::{Shape, Trace};

// The node's allocator, for the peer's front too.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Ten minutes, as platforms have it: how long an instance is kept for its next invocation, in the trace's own time.
const KEEP_ALIVE: Duration = Duration::from_secs(600);

#[derive(Debug, Parser)]
#[command(
    about = "Plays a trace of many functions on a node and on its peer",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    /// Five minutes of the trace, once; prints only and keeps no results
    #[arg(long)]
    quick: bool,
    /// How often every contestant has its turn
    #[arg(long)]
    rounds: Option<usize>,
    /// How many functions there are
    #[arg(long, default_value_t = 40)]
    functions: usize,
    /// How long the trace is, in its own time
    #[arg(long)]
    minutes: Option<u32>,
    /// How much faster it is played
    #[arg(long, default_value_t = 60.0)]
    speed: f64,
    /// Chance: another number gives another trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What this program starts as its children.
#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server that functions ask
    #[command(hide = true)]
    Backend,
    /// Runs functions in a process for each instance
    #[command(hide = true)]
    Front {
        /// JSON: the commands that start an instance, by the function's name
        catalogue: PathBuf,
        /// How long an instance waits for its next invocation
        keep_alive_ms: u64,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match &arguments.command {
        Some(Command::Backend) => runtime()?.block_on(backend::run()),
        Some(Command::Front { catalogue, keep_alive_ms }) => {
            runtime()?.block_on(front::run(catalogue, Duration::from_millis(*keep_alive_ms)))
        }
        None => measure(arguments),
    }
}

fn measure(arguments: Arguments) -> anyhow::Result<()> {
    let minutes = arguments.minutes.unwrap_or(if arguments.quick { 5 } else { 60 });
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let shape =
        Shape { functions: arguments.functions, minutes, speed: arguments.speed, seed: arguments.seed };
    let trace = Trace::new(shape);
    let mut report = Report::new(
        "photons",
        "Many functions: Photons' evaluation redone",
        &what(shape, &trace),
        &command(shape),
    );

    let binary = arguments.binary.map_or_else(build_binary, Ok)?;
    let guests = Guests::build()?;
    let (_backend, url) = backend::start()?;
    let setting = Setting { binary, trace, url, keep_alive: KEEP_ALIVE.div_f64(shape.speed) };
    let contestants = [
        Contestant::node(&setting, &guests, "fresh")?,
        Contestant::node(&setting, &guests, "reuse")?,
        Contestant::processes(&setting, &guests)?,
    ];
    let scripts = tempfile::tempdir()?;
    let catalogue = guests.catalogue(&setting.trace.functions, scripts.path())?;
    let own_ms = own_time::measure(&setting.trace, &catalogue, &setting.url)?;

    let mut tables = figures::Tables::new();
    let mut turns = Vec::new();
    for _ in 0..rounds {
        turns.clear();
        for (number, contestant) in contestants.iter().enumerate() {
            let turn = contestant.play(&setting).with_context(|| NAMES[number])?;
            tables.add(number, &setting.trace, &own_ms, &turn);
            if let Some(failure) = turn.answers.iter().find_map(|answer| answer.failure.as_ref()) {
                eprintln!("{}: a call failed: {failure}", NAMES[number]);
            }
            turns.push(turn);
        }
    }
    report.tables = tables.into_tables();
    if !arguments.quick {
        report.plots = figures::plots(&turns)?;
        report.save()?;
    }
    report.print();
    Ok(())
}

fn what(shape: Shape, trace: &Trace) -> String {
    let Shape { functions, minutes, speed, .. } = shape;
    format!(
        "{minutes} minutes of {functions} functions at {speed} times their speed: {} calls of {} functions, made by chance \
         with the rates, arrivals and durations of the Azure Functions trace (Shahrad et al., USENIX ATC 2020). In turn \
         functions sleep (JavaScript), ask a server that takes 5 ms (JavaScript), hash 1 MiB (Rust) and scale an image \
         of 1280 by 720 pixels (Rust; in place of Photons' video). The node was restarted before each turn. The peer is a \
         server that starts a process for each instance, Node.js or the same Rust as native code, which has one invocation \
         at a time and is kept for 10 minutes of the trace; there are no containers around them. Slowdown is the latency over \
         what the function takes in a warm process by itself. *Instances started*: fresh ones are as many as calls; \
         *calls that loaded code, at most*: for processes their starts, which load runtime and code, for a node the calls \
         that waited for more than 5 ms, for code or for their turn. Memory is that of all processes, what they share \
         counted once (PSS). The load is a program on the same cores.",
        trace.calls.len(),
        trace.called(),
    )
}

fn command(shape: Shape) -> String {
    let Shape { functions, minutes, speed, seed } = shape;
    format!(
        "target/release/photons --functions {functions} --minutes {minutes} --speed {speed} --seed {seed}"
    )
}

/// This program, to be started as a child.
fn own_binary() -> anyhow::Result<std::process::Command> {
    Ok(std::process::Command::new(std::env::current_exe().context("this program's own file is unknown")?))
}
