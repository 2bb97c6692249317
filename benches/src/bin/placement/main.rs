//! The cases of the evaluation of topology-aware scheduling, on six nodes in two zones 82 ms apart, with the data 2 ms from one zone and
//! 81 ms from the other, where all requests enter. What the evaluation published stands beside it.
//!
//! Needs root, `/dev/net/tun`, and redis-server, webdis, PostgreSQL and Node.js (Debian: `apt-get install redis-server webdis postgresql
//! nodejs`).

mod app;
mod cases;
mod cold;
mod idling;
mod loaded;
mod policies;
mod servers;
mod users;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use edgefaas_benches::fleet::{DeployTo, Fleet, Member, hosts};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::results::{Report, Row, Table, Target};
use edgefaas_benches::samples::{median, quantile};
use edgefaas_testnet::{Conditions, Network, Topology};

use crate::cases::Case;
use crate::policies::Policy;

/// Nodes where requests enter, and nodes near the data.
const NORTH: [&str; 3] = ["n1", "n2", "n3"];
const SOUTH: [&str; 3] = ["s1", "s2", "s3"];
/// Each way: between the zones, and from each to the data. Round trips are 82, 81 and 2 ms.
const ZONES_DELAY: Duration = Duration::from_millis(41);
const FAR_DELAY: Duration = Duration::from_micros(40_500);
const NEAR_DELAY: Duration = Duration::from_millis(1);
/// Each way, bytes a second: what the evaluation's averages with the large document come to (4 users, 124 MB, 10 s and 4 s).
const FAR_RATE: u64 = 50_000_000;
const NEAR_RATE: u64 = 125_000_000;
const PATIENCE: Duration = Duration::from_secs(30);
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
/// The row of the functions in Node.js; those of the policies follow.
const PEER: usize = 0;

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
    /// Without the cost of policies that are loaded
    #[arg(long)]
    skip_loaded: bool,
    /// Without cold starts and scale to zero
    #[arg(long)]
    skip_cold: bool,
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
    let or_all = |chosen: &[Case]| if chosen.is_empty() { Case::ALL.to_vec() } else { chosen.to_vec() };
    let cases = or_all(&arguments.only);
    let policies =
        if arguments.policies.is_empty() { Policy::ALL.to_vec() } else { arguments.policies.clone() };
    let mut report = Report::new(
        "placement",
        "Placement policies: the cases of their evaluation",
        "Six nodes in network namespaces, in two zones 82 ms apart; the databases and an HTTP backend are 2 ms from `south` (1 Gbit/s) and \
         81 ms from `north` (400 Mbit/s; both rates follow from the published averages), and all requests enter in `north`. Users and \
         requests are those of the evaluation (hellojs, matrixMult, pycatj and mongoDB: 4 users, 200 requests each; sleep 4 x 25; slackpost \
         1 x 100; terrain 1 x 5; datalocality 4 x 50 of 124 MB); pauses are shorter (slackpost 0.1 s for 1 s, terrain 2 s for 20 s). mongoDB \
         is PostgreSQL by its own protocol, a connection and a login with a password for each call, five round trips; mongoDB by HTTP has the \
         document of Redis by webdis, over connections that the node keeps. Functions of the last five cases with data have the tag. The published \
         figures are averages on virtual machines in two regions: another run on other machines. Node.js runs the same sources without edgefaas \
         beside the user, as a lower bound.",
        &command(),
    );
    let names: Vec<_> = ["Node.js beside the user, no edgefaas"]
        .into_iter()
        .chain(policies.iter().map(|policy| policy.name()))
        .collect();
    let mut tables: Vec<_> = cases.iter().map(|case| Table::new(case.name(), &names, &FIGURES)).collect();

    let network = network()?;
    let folder = tempfile::tempdir()?;
    let _databases = servers::Databases::start(network.host("database"), folder.path(), arguments.quick)?;
    servers::start_backend(network.host("backend"))?;
    let zones = [("north", &NORTH.map(str::to_owned)[..]), ("south", &SOUTH.map(str::to_owned)[..])];
    let fleet = Fleet::start(&binary, &hosts(&network, &zones), DeployTo::Cluster, "")?;
    let app = app::make()?;
    let took = fleet.deploy(app.path(), Case::Hellojs.path())?;
    println!("the app was live on all nodes after {took:.1?}");
    let entries = NORTH.map(|name| fleet.member(name));
    let entries = entries.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let gateways: Vec<_> = entries.iter().map(|entry| (entry.host, entry.http)).collect();
    let peers = NORTH.map(|name| servers::start_peer(network.host(name), app.path()));
    let peers = peers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let peer_address = SocketAddr::from(([127, 0, 0, 1], servers::PEER_PORT));
    let peer_servers: Vec<_> = entries.iter().map(|entry| (entry.host, peer_address)).collect();

    for _ in 0..arguments.rounds {
        for (case, table) in cases.iter().zip(&mut tables).filter(|(case, _)| case.has_peer()) {
            run_case(*case, &arguments, "Node.js", &peer_servers, PEER, table);
        }
        for (row, policy) in policies.iter().enumerate() {
            policy.set_on(&entries)?;
            if let Some(away) = policy.away() {
                network.link(away).cut();
                fleet.wait_for_connections(&entries, fleet.members.len() - 2)?;
            }
            // A tolerance concerns functions with the tag alone.
            for (case, table) in cases.iter().zip(&mut tables) {
                if case.is_tagged() || !policy.is_tolerance() {
                    run_case(*case, &arguments, policy.name(), &gateways, row + 1, table);
                }
            }
            if let Some(away) = policy.away() {
                network.link(away).restore();
                fleet.wait_for_connections(&entries, fleet.members.len() - 1)?;
            }
        }
    }
    drop(peers);
    report.targets = targets(&cases, &policies, &tables);
    for (case, table) in cases.iter().zip(&mut tables) {
        add_published(*case, table);
        table.rows.retain(|row| row.figures.iter().any(|figure| !figure.rounds.is_empty()));
    }
    report.tables = tables;
    if !arguments.skip_loaded {
        loaded::measure(&entries, arguments.quick, &mut report)?;
    }
    if !arguments.skip_cold {
        Policy::None.set_on(&entries)?;
        cold::measure(&fleet, app.path(), arguments.quick, &mut report)?;
    }
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

/// Runs a case against gateways on their hosts.
fn run_case(
    case: Case,
    arguments: &Arguments,
    contestant: &str,
    gateways: &[users::Gateway<'_>],
    row: usize,
    table: &mut Table,
) {
    let begun = Instant::now();
    let mut outcome = users::run(case.path(), case.load(arguments.quick), gateways);
    if let Some(error) = &outcome.error {
        println!("{contestant}, {}: {} errors, the first: {error}", case.name(), outcome.errors);
    }
    outcome.times_ms.sort_by(f64::total_cmp);
    let times = &outcome.times_ms;
    let (north, south) = (outcome.ran_percent("n"), outcome.ran_percent("s"));
    let figures =
        [outcome.mean_ms(), median(times), quantile(times, 0.99), outcome.errors_percent(), north, south];
    println!(
        "{contestant}, {}: {:.1} ms on average, in {:.1?}",
        case.name(),
        outcome.mean_ms(),
        begun.elapsed()
    );
    // What had no answer has no figures.
    table.rows[row]
        .figures
        .iter_mut()
        .zip(figures)
        .filter(|(_, value)| value.is_finite())
        .for_each(|(figure, value)| figure.rounds.push(value));
}

impl Policy {
    /// Puts it into force, and waits until each of these nodes has it.
    pub fn set_on(self, entries: &[&Member<'_>]) -> anyhow::Result<()> {
        let text = self.file().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
        set_policy(&text, entries)
    }
}

/// Puts a policy into force, and waits until each of these nodes has it.
fn set_policy(text: &str, entries: &[&Member<'_>]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file: &Path = &folder.path().join("policy.yaml");
    std::fs::write(file, text)?;
    let file = file.to_string_lossy().into_owned();
    let has_it = |entry: &Member<'_>| -> anyhow::Result<bool> {
        Ok(entry.said(&["policy", "show"])?["text"].as_str().unwrap_or_default() == text)
    };
    if let Some(first) = entries.first()
        && !has_it(first)?
    {
        match text {
            "" => first.ok(&["policy", "rm"])?,
            _ => first.ok(&["policy", "set", &file])?,
        };
    }
    for entry in entries {
        let begun = Instant::now();
        while !has_it(entry)? {
            ensure!(begun.elapsed() < PATIENCE, "{} does not get the policy", entry.host.name());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn network() -> anyhow::Result<Network> {
    // In this order: functions know the addresses of the databases and the backend, 10.77.2.1 and 10.77.2.2.
    let topology = Topology::new().zone("north", &NORTH).zone("south", &SOUTH);
    let network = topology.zone("data", &["database", "backend"]).build()?;
    for (from, to, delay, rate) in [
        ("north", "south", ZONES_DELAY, FAR_RATE),
        ("north", "data", FAR_DELAY, FAR_RATE),
        ("south", "data", NEAR_DELAY, NEAR_RATE),
    ] {
        network.trunk(from, to).set(Conditions::delayed(delay).with_rate(rate));
    }
    Ok(network)
}

/// What the issue asks for; a target whose contestants were not measured is left out.
fn targets(cases: &[Case], policies: &[Policy], tables: &[Table]) -> Vec<Target> {
    let row = |wanted: Policy| policies.iter().position(|policy| *policy == wanted).map(|row| row + 1);
    let table = |wanted: Case| cases.iter().position(|case| *case == wanted).map(|at| &tables[at]);
    let mut targets = Vec::new();
    for case in [Case::Mongodb, Case::Datalocality] {
        if let (Some(table), Some(none), Some(tag)) =
            (table(case), row(Policy::None), row(Policy::TagDefault))
        {
            let text = format!("{}: no policy takes at least 3.5 times as long as the tag", case.name());
            targets.push(Target::at_least("placement-tag", &text, table.ratio(none, tag, MEAN), 3.5));
        }
    }
    if let Some(table) = table(Case::Terrain) {
        // A tolerance may refuse calls by its meaning.
        let rows =
            policies.iter().filter(|policy| !policy.is_tolerance()).filter_map(|policy| row(*policy));
        let errors = rows.map(|row| table.rows[row].figures[ERRORS].median()).fold(0.0, f64::max);
        targets.push(Target::at_most("placement-terrain", "terrain: errors, %", errors, 0.0));
    }
    targets
}

/// Rows of what the evaluation has published.
fn add_published(case: Case, table: &mut Table) {
    let Some(published) = case.published_ms() else { return };
    let names = ["published, another run: OpenWhisk", "published, another run: tAPP, best policy"];
    for (name, ms) in names.into_iter().zip(published) {
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
