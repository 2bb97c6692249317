//! Fifty nodes on one machine: when a deploy and a policy are live on all of them, what each takes while it idles, and the bytes over
//! each link while a large artefact comes to all.

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
use edgefaas_testnet::{Conditions, Network, Topology};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const ZONES: usize = 5;
/// How long all nodes rest before they are measured, and how long they are.
const REST: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(30);
const PATH: &str = "/fn/where";
/// Of each link while a large artefact comes to all nodes.
const LINK_BYTES_PER_SECOND: u64 = 1_000_000;
const QUICK_NODES: usize = 10;
/// Each node compiles the engine: as many compilations as nodes, on the processors of one machine.
const FIRST: &str = "first deploy of new nodes: each compiles the JavaScript engine";

#[derive(Debug, Parser)]
#[command(about = "Measures a cluster of fifty nodes")]
struct Arguments {
    /// How many nodes; rounded up to a multiple of five, as there are five zones
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    /// How often an app and a policy are changed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Ten nodes, two changes, an artefact of a quarter
    #[arg(long)]
    quick: bool,
    /// Size of the artefact that comes to all nodes over slow links, in MB; 0 for none
    #[arg(long, default_value_t = 20)]
    artefact: u64,
    /// Only that artefact
    #[arg(long)]
    only_artefact: bool,
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
    let mut arguments = Arguments::parse();
    if arguments.quick {
        arguments.nodes = arguments.nodes.min(QUICK_NODES);
        arguments.rounds = arguments.rounds.min(2);
        arguments.artefact = arguments.artefact.div_ceil(4);
    }
    let binary = match &arguments.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => build_binary()?,
    };
    let mut report = Report::new(
        "fifty-nodes",
        "Fifty nodes on one machine",
        "Nodes in network namespaces, in five zones, all on the two processors of one machine; their data directories are in memory. Live: \
         from the start of the command until a request to each node is answered by the new revision, or by the node that the new policy names; the \
         nodes are asked in turns. Idle: the median over the nodes, of pages that are a node's own and of processor time. Large \
         artefact: each node is behind a link of 1 MB/s each way; bytes of IP packets over the busiest links, from the start of the \
         deploy until it is live on all nodes.",
        "target/release/fifty-nodes",
    );
    let times = ("time", "ms");
    let mut live = Table::new("Live on all nodes", &["deploy", "policy", FIRST], &[times]);
    let mut contestants = vec![("this version", binary.as_path(), arguments.deploy_to)];
    if let Some(base) = &arguments.base {
        contestants.push(("base", base, DeployTo::EachNode));
    }
    let names: Vec<_> = contestants.iter().map(|(name, ..)| *name).collect();
    let figures = [("memory", "MB"), ("processor time", "ms a second")];
    let mut idle = Table::new("Idle, per node", &names, &figures);
    let mut large = Table::new("Large artefact", &["busiest link"], &LARGE_FIGURES);
    for (row, (_, binary, deploy_to)) in contestants.iter().enumerate() {
        // The first contestant changes apps and policies.
        let changes = (row == 0).then_some((&mut live, &mut large));
        if let Some(figures) = measure(&arguments, binary, *deploy_to, changes)? {
            idle.add(row, &figures);
        }
    }
    let median_of = |row: usize| live.rows[row].figures[0].median();
    if arguments.deploy_to == DeployTo::Cluster && !arguments.only_artefact {
        report.targets = vec![
            Target::at_most("fifty-deploy", "A deploy is live on all nodes, ms", median_of(0), 3000.0),
            Target::at_most("fifty-policy", "A policy is live on all nodes, ms", median_of(1), 1000.0),
        ];
    }
    if let Some(times) = large.rows[0].figures[TIMES].rounds.first().copied() {
        let text = format!(
            "{} MB to {} nodes: bytes over any one link, in times of the artefact",
            arguments.artefact, arguments.nodes
        );
        report.targets.push(Target::at_most("fifty-artefact", &text, times, 1.5));
    }
    if arguments.base.is_some() && !arguments.only_artefact {
        for (figure, what) in ["memory", "processor time"].into_iter().enumerate() {
            let text = format!("Idle {what} of a node in times of the base");
            report.targets.push(Target::at_most("fifty-idle", &text, idle.ratio(0, 1, figure), 1.0));
        }
    }
    report.tables = match arguments.only_artefact {
        true => vec![large],
        false => vec![live, idle, large],
    };
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

const LARGE_FIGURES: [(&str, &str); 6] = [
    ("until it is live on all", "s"),
    ("most to a node", "MB"),
    ("most from a node", "MB"),
    ("most between two zones", "MB"),
    ("median to a node", "MB"),
    ("a node's link in times of the artefact", "x"),
];
const TIMES: usize = 5;

/// Memory and processor time of an idle node; before, how long deploys and policies take; after, the large artefact.
fn measure(
    arguments: &Arguments,
    binary: &Path,
    deploy_to: DeployTo,
    changes: Option<(&mut Table, &mut Table)>,
) -> anyhow::Result<Option<[f64; 2]>> {
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
    let took = fleet.deploy(app.path(), PATH)?;
    println!("the first deploy was live on all nodes after {took:.1?}");
    if arguments.only_artefact {
        if let Some((_, large)) = changes {
            large.add(0, &large_artefact(arguments, &network, &fleet, app.path(), &zones)?);
        }
        return Ok(None);
    }
    let (live, large) = changes.unzip();
    if let Some(live) = live {
        live.add(2, &[took.as_secs_f64() * 1e3]);
        for round in 1..=arguments.rounds {
            write_app(app.path(), round, deploy_to)?;
            let body = round.to_string();
            let took = fleet.deploy_until(app.path(), PATH, |answer| answer.body == body.as_bytes())?;
            println!("deploy {round}: {took:.1?}");
            live.add(0, &[took.as_secs_f64() * 1e3]);
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
            println!("policy {round}: {:.1?}", begun.elapsed());
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
    if let Some(large) = large
        && arguments.artefact > 0
    {
        large.add(0, &large_artefact(arguments, &network, &fleet, app.path(), &zones)?);
    }
    Ok(Some([median(&memory), median(&used)]))
}

/// Deploys an app with a large asset over slow links. Gives the figures of [`LARGE_FIGURES`].
fn large_artefact(
    arguments: &Arguments,
    network: &Network,
    fleet: &Fleet<'_>,
    app: &Path,
    zones: &[(String, Vec<String>)],
) -> anyhow::Result<[f64; 6]> {
    let names: Vec<&str> = zones.iter().flat_map(|(_, names)| names).map(String::as_str).collect();
    for name in &names {
        network.link(name).set(Conditions::default().with_rate(LINK_BYTES_PER_SECOND));
    }
    // A policy may have named another node for the calls.
    if let Some(first) = fleet.members.first()
        && !arguments.only_artefact
    {
        first.ok(&["policy", "rm"])?;
    }
    let body = "large";
    std::fs::write(app.join("where.js"), format!("export default () => \"{body}\";\n"))?;
    let manifest = std::fs::read_to_string(app.join("edgefaas.toml"))?;
    std::fs::write(app.join("edgefaas.toml"), format!("assets = [\"*.bin\"]\n{manifest}"))?;
    let artefact_bytes = arguments.artefact * 1_000_000;
    let mut bytes = vec![0; artefact_bytes as usize];
    StdRng::seed_from_u64(1).fill_bytes(&mut bytes);
    std::fs::write(app.join("large.bin"), bytes)?;
    let counts = || {
        let to: Vec<u64> = names.iter().map(|name| network.link(name).inbound().traffic().bytes).collect();
        let from: Vec<u64> =
            names.iter().map(|name| network.link(name).outbound().traffic().bytes).collect();
        let mut between = Vec::new();
        for (number, (zone, _)) in zones.iter().enumerate() {
            for (other, _) in &zones[number + 1..] {
                let trunk = network.trunk(zone, other);
                between.extend([trunk.inbound().traffic().bytes, trunk.outbound().traffic().bytes]);
            }
        }
        [to, from, between]
    };
    let before = counts();
    let took = fleet.deploy_until(app, PATH, |answer| answer.body == body.as_bytes())?;
    let mut after = counts();
    for (after, before) in after.iter_mut().flatten().zip(before.iter().flatten()) {
        *after -= before;
    }
    println!("{} MB were live on all nodes after {took:.1?}", arguments.artefact);
    let [to, from, between] =
        after.map(|counts| counts.iter().map(|bytes| *bytes as f64 / 1e6).collect::<Vec<_>>());
    let most = |counts: &[f64]| counts.iter().copied().fold(0.0, f64::max);
    let times = most(&to).max(most(&from)) * 1e6 / artefact_bytes as f64;
    Ok([took.as_secs_f64(), most(&to), most(&from), most(&between), median(&to), times])
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
