//! A thousand nodes in virtual time: when deploys and policies are everywhere, what the nodes send, what a cut of a zone
//! costs, how evenly calls are spread, and what the links carry when all fetch one artefact.

mod balance;
mod convergence;
mod transfer;

use std::time::Instant;

use clap::{Parser, ValueEnum};
use edgefaas_benches::results::Report;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(about = "Simulates a cluster of a thousand nodes")]
pub struct Arguments {
    /// How many nodes
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// How many zones they are in
    #[arg(long, default_value_t = 20)]
    zones: usize,
    /// How many seeds, from 1 on; each is a round
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Minutes for which a zone is cut off
    #[arg(long, default_value_t = 10)]
    cut: u64,
    /// Only one part
    #[arg(long)]
    only: Option<Part>,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Convergence,
    Balance,
    Transfer,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let mut report = Report::new(
        "cluster-simulation",
        "A cluster in zones, simulated",
        &format!(
            "{} nodes in {} zones in virtual time, all connected with each other as real ones are. The code is the node's: replication, \
             dial book, liveness, queue of frames with loads and facts, transfers, and placement; deployments and policies are the \
             objects and the rules of the node. Round trips are 1 ms in a zone and 80 ms between zones, each way up to 10 % longer, one \
             packet of a thousand is lost and sent again, links of nodes carry 12.5 MB/s (artefacts: 1 MB/s), those of zones 125 MB/s. Not \
             simulated: processor time, and with it the cooldown of replication (250 ms at most). \"Wire\" counts 82 B of headers for \
             each packet. Each round has another seed.",
            arguments.nodes, arguments.zones
        ),
        "target/release/cluster-simulation --results",
    );
    let is_wanted = |part| arguments.only.is_none_or(|only| only == part);
    if is_wanted(Part::Convergence) {
        convergence::run(&arguments, &mut report)?;
    }
    if is_wanted(Part::Balance) {
        balance::run(&arguments, &mut report)?;
    }
    if is_wanted(Part::Transfer) {
        transfer::run(&arguments, &mut report)?;
    }
    report.print();
    println!("real time: {:?}", begun.elapsed());
    if arguments.results {
        report.save()?;
    }
    Ok(())
}
