//! The cases of the evaluation of topology-aware scheduling, on six nodes in two zones 82 ms apart: the data and a backend are in one
//! zone, and requests enter in the other. What the evaluation published stands beside it.
//!
//! Needs root, `/dev/net/tun`, and redis-server (Debian: `apt-get install redis-server`).

mod app;
mod cases;
mod idling;
mod policies;
mod servers;
mod users;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use edgefaas_benches::fleet::{DeployTo, Fleet, hosts};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::results::{Report, Row, Table, Target};
use edgefaas_benches::samples::{median, quantile};
use edgefaas_testnet::{Conditions, Network, Topology};

use crate::cases::Case;
use crate::policies::Policy;

/// Nodes where requests enter, and nodes beside the data.
const NORTH: [&str; 3] = ["n1", "n2", "n3"];
const SOUTH: [&str; 3] = ["s1", "s2", "s3"];
/// Each way between the zones, and between the switch of `south` and the data: 82 ms and 2 ms for a round trip.
const TRUNK_DELAY: Duration = Duration::from_millis(41);
const DATA_DELAY: Duration = Duration::from_millis(1);
/// Of the trunk, each way: 100 Mbit/s.
const TRUNK_BYTES_PER_SECOND: u64 = 12_500_000;
const FIGURES: [(&str, &str); 6] = [
    ("mean", "ms"),
    ("p50", "ms"),
    ("p99", "ms"),
    ("errors", "%"),
    ("ran in north", "%"),
    ("ran in south", "%"),
];
const MEAN: usize = 0;
const ERRORS: usize = 3;

#[derive(Debug, Parser)]
#[command(about = "Measures placement policies with the cases of their evaluation")]
struct Arguments {
    /// Fewer requests, shorter pauses, and a large document of a tenth of its size
    #[arg(long)]
    quick: bool,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
    /// Only these cases
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Case>,
    /// Only these policies
    #[arg(long, value_enum, value_delimiter = ',')]
    policies: Vec<Policy>,
    /// How often every policy has its turn
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// How the app comes to the nodes; `each-node` for versions without deploys to a cluster, which know no policy
    #[arg(long, value_enum, default_value = "cluster")]
    deploy_to: DeployTo,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let binary = match &arguments.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => build_binary()?,
    };
    let chosen = |all: &[Case]| match arguments.only.is_empty() {
        true => all.to_vec(),
        false => arguments.only.clone(),
    };
    let cases = chosen(&Case::ALL);
    let policies = match (arguments.deploy_to, arguments.policies.is_empty()) {
        (DeployTo::EachNode, _) => vec![Policy::None],
        (DeployTo::Cluster, true) => Policy::ALL.to_vec(),
        (DeployTo::Cluster, false) => arguments.policies.clone(),
    };
    let mut report = Report::new(
        "placement",
        "Placement policies: the cases of their evaluation",
        "Six nodes in two zones 82 ms apart (100 Mbit/s between them); Redis and an HTTP backend are in the one, 2 ms from its nodes, \
         and all requests enter in the other. The published figures are averages of six virtual machines in two regions: they were measured on \
         other machines and say only which ratios were reached there.",
        &command(),
    );
    let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
    report.tables = cases.iter().map(|case| Table::new(case.name(), &names, &FIGURES)).collect();
    for _ in 0..arguments.rounds {
        for (row, policy) in policies.iter().enumerate() {
            measure(&arguments, &binary, *policy, row, &cases, &mut report)?;
        }
    }
    report.targets = targets(&cases, &policies, &report.tables);
    for (case, table) in cases.iter().zip(&mut report.tables) {
        add_published(*case, table);
    }
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

/// One policy's turn: a new network, a new cluster, and all cases.
fn measure(
    arguments: &Arguments,
    binary: &std::path::Path,
    policy: Policy,
    row: usize,
    cases: &[Case],
    report: &mut Report,
) -> anyhow::Result<()> {
    let network = network()?;
    let folder = tempfile::tempdir()?;
    let _database = servers::Database::start(network.host("database"), folder.path(), arguments.quick)?;
    servers::start_backend(network.host("backend"))?;
    let zones = [("north", &NORTH.map(str::to_owned)[..]), ("south", &SOUTH.map(str::to_owned)[..])];
    let fleet = Fleet::start(binary, &hosts(&network, &zones), arguments.deploy_to, "")?;
    let app = app::make(policy)?;
    let took = fleet.deploy(app.path(), Case::Hellojs.path())?;
    println!("{}: the app was live on all nodes after {took:.1?}", policy.name());
    let entries = NORTH.map(|name| fleet.member(name));
    let entries = entries.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(file) = policy.file() {
        let file = file.to_string_lossy().into_owned();
        entries[0].ok(&["policy", "set", &file])?;
    }
    if let Some(away) = policy.away() {
        network.link(away).cut();
        fleet.wait_for_connections(&entries, fleet.members.len() - 2)?;
    }
    for (number, case) in cases.iter().enumerate() {
        let load = case.load(arguments.quick);
        let (mut outcome, samples) = idling::watch(&fleet.members, || users::run(*case, load, &entries));
        if let Some(error) = &outcome.error {
            println!("{}, {}: {} errors, the first: {error}", policy.name(), case.name(), outcome.errors);
        }
        outcome.times_ms.sort_by(f64::total_cmp);
        let times = &outcome.times_ms;
        report.tables[number].add(
            row,
            &[
                outcome.mean_ms(),
                median(times),
                quantile(times, 0.99),
                outcome.errors_percent(),
                outcome.ran_percent("n"),
                outcome.ran_percent("s"),
            ],
        );
        println!("{}, {}: {:.1} ms on average", policy.name(), case.name(), outcome.mean_ms());
        if *case == Case::Coldstart {
            report.tables.push(idling::table(&fleet.members, policy.name(), &samples));
        }
    }
    Ok(())
}

fn network() -> anyhow::Result<Network> {
    // In this order: functions know the addresses of the database and the backend, 10.77.1.1 and 10.77.1.2.
    let south: Vec<_> = ["database", "backend"].into_iter().chain(SOUTH).collect();
    let network = Topology::new().zone("north", &NORTH).zone("south", &south).build()?;
    let trunk = Conditions::delayed(TRUNK_DELAY).with_rate(TRUNK_BYTES_PER_SECOND);
    network.trunk("north", "south").set(trunk);
    for host in ["database", "backend"] {
        network.link(host).set(Conditions::delayed(DATA_DELAY));
    }
    Ok(network)
}

/// What the issue asks for; a target whose contestants were not measured is left out.
fn targets(cases: &[Case], policies: &[Policy], tables: &[Table]) -> Vec<Target> {
    let row = |wanted: Policy| policies.iter().position(|policy| *policy == wanted);
    let table = |wanted: Case| cases.iter().position(|case| *case == wanted).map(|at| &tables[at]);
    let mut targets = Vec::new();
    let none = row(Policy::None);
    for case in [Case::Mongodb, Case::Datalocality] {
        if let (Some(table), Some(none), Some(tag)) = (table(case), none, row(Policy::TagDefault)) {
            let text = format!("{}: no policy, in times of the tag", case.name());
            targets.push(Target::at_least("placement-tag", &text, table.ratio(none, tag, MEAN), 3.5));
        }
    }
    for case in [Case::Hellojs, Case::Matrixmult] {
        if let (Some(table), Some(none), Some(loaded)) = (table(case), none, row(Policy::Untagged)) {
            let text = format!("{}: policy without the tag, in times of no policy", case.name());
            targets.push(Target::at_most("placement-loaded", &text, table.ratio(loaded, none, MEAN), 1.02));
        }
    }
    let worst = |table: &Table, figure: usize| {
        table.rows.iter().map(|row| row.figures[figure].median()).fold(0.0, f64::max)
    };
    if let Some(table) = table(Case::Terrain) {
        let errors = worst(table, ERRORS);
        targets.push(Target::at_most("placement-terrain", "terrain: errors, %", errors, 0.0));
    }
    if let Some(table) = table(Case::Coldstart) {
        let text = "coldstart: mean, ms";
        targets.push(Target::at_most("placement-cold", text, worst(table, MEAN), 300.0));
    }
    targets
}

/// Rows of what the evaluation has published.
fn add_published(case: Case, table: &mut Table) {
    for (name, ms) in
        ["published: OpenWhisk", "published: tAPP, best policy"].into_iter().zip(case.published_ms())
    {
        let mut published = Table::new("", &[name], &FIGURES);
        published.rows[0].figures[MEAN].rounds.push(ms);
        table.rows.extend::<Vec<Row>>(published.rows);
    }
}

/// What was asked for. Which binary was measured is left out.
fn command() -> String {
    let mut command = "target/release/placement".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--binary" => drop(arguments.next()),
            other => command.extend([" ", other]),
        }
    }
    command
}
