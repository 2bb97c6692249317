//! What functions that misbehave do to the others, and whether a node stays the same under them for long.

mod many_functions;
mod neighbours;
mod soak;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use edgefaas_benches::node::build_binary;

#[derive(Debug, Parser)]
#[command(about = "Measures how far functions that misbehave harm the others")]
struct Arguments {
    /// How long the soak lasts, in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How long each misbehaviour is measured by itself, in milliseconds
    #[arg(long, default_value_t = 4000)]
    turn_ms: u64,
    /// Prints only and keeps no results
    #[arg(long)]
    quick: bool,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let binary = arguments.binary.map_or_else(build_binary, Ok)?;
    let (turn, length) = match arguments.quick {
        true => (Duration::from_millis(500), Duration::from_secs(15)),
        false => (Duration::from_millis(arguments.turn_ms), Duration::from_secs(arguments.seconds)),
    };
    for report in [neighbours::run(&binary, turn)?, soak::run(&binary, length)?] {
        report.print();
        if !arguments.quick {
            report.save()?;
        }
    }
    Ok(())
}
