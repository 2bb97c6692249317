//! Fifty nodes on one machine: when a deploy and a policy are live on all of them, and what each takes while it idles.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use edgefaas_benches::fleet::{Answer, DeployTo, Fleet, hosts};
use edgefaas_benches::node::build_binary;
use edgefaas_benches::process::{cpu_seconds_of, private_mb_of};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::median;
use edgefaas_testnet::Topology;

const ZONES: usize = 5;
/// How long all nodes rest before they are measured, and how long they are.
const REST: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(30);
const PATH: &str = "/fn/where";

#[derive(Debug, Parser)]
#[command(about = "Measures a cluster of fifty nodes")]
struct Arguments {
    /// How many nodes; rounded up to a multiple of five, as there are five zones
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    /// How often an app and a policy are changed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
    /// Compare the idle cost with that of this binary, of a version without deploys to a cluster
    #[arg(long)]
    base: Option<PathBuf>,
    /// `each-node` for versions without deploys to a cluster: without policies
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
    let mut report = Report::new(
        "fifty-nodes",
        "Fifty nodes on one machine",
        "Nodes in network namespaces, in five zones. Live: from the start of the command until a request to each node is answered by the new \
         revision, or by the node that the new policy names; the nodes are asked in turns. Idle: the median over the nodes, of pages that \
         are a node's own and of processor time.",
        "target/release/fifty-nodes",
    );
    let times = ("time", "ms");
    let mut live = Table::new("Live on all nodes", &["deploy", "policy"], &[times]);
    let mut contestants = vec![("this version", binary.as_path(), arguments.deploy_to)];
    if let Some(base) = &arguments.base {
        contestants.push(("base", base, DeployTo::EachNode));
    }
    let names: Vec<_> = contestants.iter().map(|(name, ..)| *name).collect();
    let figures = [("memory", "MB"), ("processor time", "ms a second")];
    let mut idle = Table::new("Idle, per node", &names, &figures);
    for (row, (_, binary, deploy_to)) in contestants.iter().enumerate() {
        // The first contestant changes apps and policies.
        let live = (row == 0).then_some(&mut live);
        idle.add(row, &measure(&arguments, binary, *deploy_to, live)?);
    }
    let median_of = |row: usize| live.rows[row].figures[0].median();
    if arguments.deploy_to == DeployTo::Cluster {
        report.targets = vec![
            Target::at_most("fifty-deploy", "A deploy is live on all nodes, ms", median_of(0), 3000.0),
            Target::at_most("fifty-policy", "A policy is live on all nodes, ms", median_of(1), 1000.0),
        ];
    }
    if arguments.base.is_some() {
        for (figure, what) in ["memory", "processor time"].into_iter().enumerate() {
            let text = format!("Idle {what} of a node in times of the base");
            report.targets.push(Target::at_most("fifty-idle", &text, idle.ratio(0, 1, figure), 1.0));
        }
    }
    report.tables = vec![live, idle];
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

/// Memory and processor time of an idle node; before, how long deploys and policies take.
fn measure(
    arguments: &Arguments,
    binary: &Path,
    deploy_to: DeployTo,
    live: Option<&mut Table>,
) -> anyhow::Result<[f64; 2]> {
    let of_zone = arguments.nodes.div_ceil(ZONES);
    let zones: Vec<(String, Vec<String>)> = (0..ZONES)
        .map(|zone| (format!("z{zone}"), (0..of_zone).map(|node| format!("z{zone}n{node}")).collect()))
        .collect();
    let mut topology = Topology::new();
    for (zone, names) in &zones {
        topology = topology.zone(zone, &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let network = topology.build()?;
    let named: Vec<_> = zones.iter().map(|(zone, names)| (zone.as_str(), names.as_slice())).collect();
    let begun = Instant::now();
    let fleet = Fleet::start(binary, &hosts(&network, &named), deploy_to, "")?;
    println!("{} nodes are connected after {:.1?}", fleet.members.len(), begun.elapsed());
    let app = tempfile::tempdir()?;
    write_app(app.path(), 0, deploy_to)?;
    fleet.deploy(app.path(), PATH)?;
    if let Some(live) = live {
        for round in 1..=arguments.rounds {
            write_app(app.path(), round, deploy_to)?;
            let body = round.to_string();
            let begun = Instant::now();
            fleet.deploy(app.path(), PATH)?;
            wait_for_all(&fleet, |answer| answer.body == body.as_bytes())?;
            live.add(0, &[begun.elapsed().as_secs_f64() * 1e3]);
            if deploy_to == DeployTo::EachNode {
                continue;
            }
            let wanted = fleet.members.get(round % fleet.members.len()).context("a node")?.host.name();
            let policy = app.path().join("policy.yaml");
            let text = format!("where:\n  - workers:\n      - wrk: {wanted}\n  - followup: fail\n");
            std::fs::write(&policy, text)?;
            let begun = Instant::now();
            fleet.members[0].ok(&["policy", "set", &policy.to_string_lossy()])?;
            let is_wanted = |answer: &Answer| answer.node.as_deref() == Some(wanted);
            // The node itself answers without naming another.
            let mut others = fleet.members.iter().filter(|member| member.host.name() != wanted);
            others.try_for_each(|member| member.wait_for(PATH, is_wanted))?;
            live.add(1, &[begun.elapsed().as_secs_f64() * 1e3]);
        }
    }
    sleep(REST);
    let ids: Vec<_> = fleet.members.iter().map(|member| member.process.id()).collect();
    let cpu = |ids: &[u32]| ids.iter().map(|id| cpu_seconds_of(*id)).collect::<anyhow::Result<Vec<_>>>();
    let before = cpu(&ids)?;
    sleep(IDLE);
    let used: Vec<f64> = cpu(&ids)?
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) * 1e3 / IDLE.as_secs_f64())
        .collect();
    let memory = ids.iter().map(|id| private_mb_of(*id)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok([median(&memory), median(&used)])
}

fn wait_for_all(fleet: &Fleet<'_>, expected: impl Fn(&Answer) -> bool + Sync) -> anyhow::Result<()> {
    fleet.members.iter().try_for_each(|member| member.wait_for(PATH, &expected))
}

/// A function that answers with the number of its revision.
fn write_app(folder: &Path, revision: usize, deploy_to: DeployTo) -> anyhow::Result<()> {
    let placement = match deploy_to {
        DeployTo::Cluster => "placement = \"where\"\n",
        DeployTo::EachNode => "",
    };
    let manifest = format!("app = \"fifty\"\n[functions.where]\nmain = \"where.js\"\n{placement}");
    std::fs::write(folder.join("edgefaas.toml"), manifest)?;
    Ok(std::fs::write(folder.join("where.js"), format!("export default () => \"{revision}\";\n"))?)
}
