//! Connecting, idling, a deploy, a policy, and a zone that is cut off and comes back.

use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use edgefaas_benches::replica::Objects;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::median;
use edgefaas_cluster::replication::{Interest, NodeId, ObjectKey, Policy, Settings};
use edgefaas_cluster::simulation::{ClusterSimulation, Heartbeats, Random, Traffic, ZoneNetwork};
use edgefaas_cluster::status::{
    AppFact, Facts, LiveRevision, Load, NextRevision, NextState, Runs, Zone, ZoneSource,
};
use edgefaas_functions::registry::{ClusterApp, Deployment};
use edgefaas_rollout::shared_policy::{PolicyText, SharedPolicy};

use crate::Arguments;

/// Nodes are switched on within this time.
const START: Duration = Duration::from_secs(5);
/// The first comparisons are over after this time, and the facts are there.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(120);
/// Apps of each node, for the size of its facts.
const APPS: usize = 20;

/// A cluster that all nodes are connected in.
pub struct Formed {
    pub cluster: ClusterSimulation<Objects>,
    pub connected_after: Duration,
}

pub fn form(arguments: &Arguments, seed: u64, heartbeats: Heartbeats) -> anyhow::Result<Formed> {
    let nodes = arguments.nodes;
    let place = |number: usize| (Objects::new(number as u64 + 1), number * arguments.zones / nodes);
    let interests = [Interest { app: "$cluster".into(), pattern: "*".into() }];
    let network = ZoneNetwork::default();
    let nodes = (0..nodes).map(place).collect();
    let mut cluster =
        ClusterSimulation::new(seed, network, heartbeats, &Settings::default(), &interests, START, nodes);
    let is_whole = cluster.run_until_done(PATIENCE, 10 * STEP, all_connected);
    ensure!(is_whole, "not all nodes are connected after {PATIENCE:?}");
    Ok(Formed { connected_after: cluster.now(), cluster })
}

fn all_connected(cluster: &ClusterSimulation<Objects>) -> bool {
    let nodes = cluster.nodes();
    let others = nodes.size_hint().0 - 1;
    cluster.nodes().all(|node| cluster.channels(node) == others)
}

pub fn run(arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let (cut, minutes) = (format!("of each of {} nodes", arguments.nodes), arguments.cut);
    let mut connecting = Table::new(
        "All nodes are switched on within 5 s",
        &["until all are connected"],
        &[("time", "s"), ("sent by a node", "MB"), ("dials that led to a channel, by node", "")],
    );
    let idle_figures = [
        ("packets sent", "/s"),
        ("heartbeats", "kB/s"),
        ("loads", "kB/s"),
        ("comparisons", "kB/s"),
        ("wire", "kB/s"),
        ("wire, most of a node", "kB/s"),
        ("link of a zone, up", "MB/s"),
    ];
    let mut idle = Table::new(
        &format!("Idle: {cut}"),
        &["loads that stay the same", "loads that change each second"],
        &idle_figures,
    );
    let reach_figures = [
        ("50 % of the nodes", "ms"),
        ("99 %", "ms"),
        ("100 %", "ms"),
        ("replication, mean of a node", "B"),
        ("replication, most of a node", "kB"),
    ];
    let mut reach = Table::new(
        "From the command to the object on the nodes",
        &["deploy", "policy of 2 kB"],
        &reach_figures,
    );
    let mut facts = Table::new(
        &format!("Facts of a node with {APPS} apps, sent to all when an app changes"),
        &["each node fetches the app (one report) and has it live"],
        &[("sent by a node", "MB"), ("until the node of the command knows of all", "ms")],
    );
    let mut healing = Table::new(
        &format!("A zone is cut off for {minutes} min, with a deploy and a policy on both sides"),
        &["from the end of the cut"],
        &[
            ("50 % have all", "s"),
            ("99 %", "s"),
            ("100 %", "s"),
            ("all connected", "s"),
            ("wire, mean of a node in the zone", "kB"),
            ("wire, most of a node", "kB"),
            ("link of the zone, up", "MB"),
            ("different winners", ""),
        ],
    );
    for seed in 1..=arguments.seeds {
        let begun = Instant::now();
        let Formed { mut cluster, .. } = form(arguments, seed, Heartbeats::Simulated)?;
        set_loads(&mut cluster, 0);
        cluster.run_for(SETTLE);
        idle.add(0, &idle_for(&mut cluster, |_, _| ()));
        idle.add(1, &idle_for(&mut cluster, set_loads));
        drop(cluster);
        println!("seed {seed}: idle, real time {:?}", begun.elapsed());

        let Formed { mut cluster, connected_after } = form(arguments, seed, Heartbeats::Assumed)?;
        let (mean, _) = figures(&cluster, &[], |sent| sent.bytes);
        let (handshakes, _) = figures(&cluster, &[], |sent| sent.handshakes);
        connecting.add(0, &[connected_after.as_secs_f64(), mean / 1e6, handshakes]);
        println!("seed {seed}: connected after {connected_after:?}, real time {:?}", begun.elapsed());

        set_all_facts(&mut cluster, Shop::Missing);
        cluster.run_for(SETTLE);
        let node = 1 + Random::new(seed).below(arguments.nodes as u64);
        let (deployment, policy) = (deployment(&cluster, node, 'a'), policy(&cluster, node));
        reach.add(0, &spread(&mut cluster, node, &app_object(), deployment)?);
        reach.add(1, &spread(&mut cluster, node, &policy_object(), policy)?);
        facts.add(0, &report_facts(&mut cluster, node)?);
        println!("seed {seed}: deployed, real time {:?}", begun.elapsed());

        healing.add(0, &cut_and_heal(&mut cluster, minutes)?);
        println!("seed {seed}: cut and back, real time {:?}", begun.elapsed());
        ensure!(cluster.disconnects().is_empty(), "{:?}", cluster.disconnects());
    }
    let value = |table: &Table, row: usize, figure: usize| median(&table.rows[row].figures[figure].rounds);
    report.targets.extend([
        Target::at_most(
            "simulation-deploy",
            "a deploy is known to all nodes, ms: at most 1,000",
            value(&reach, 0, 2),
            1e3,
        ),
        Target::at_most(
            "simulation-policy",
            "a policy is known to all nodes, ms: at most 1,000",
            value(&reach, 1, 2),
            1e3,
        ),
        Target::at_most(
            "simulation-winner",
            "different winners after a cut: none",
            value(&healing, 0, 7),
            0.0,
        ),
        Target::at_most(
            "simulation-cut",
            "after a cut all have the same, s: at most 30",
            value(&healing, 0, 2),
            30.0,
        ),
    ]);
    report.tables.extend([connecting, idle, reach, facts, healing]);
    Ok(())
}

/// Mean and greatest of what the nodes have sent since `before`.
fn figures(
    cluster: &ClusterSimulation<Objects>,
    before: &[Traffic],
    figure: impl Fn(&Traffic) -> u64,
) -> (f64, f64) {
    let none = Traffic::default();
    let sent: Vec<f64> = cluster
        .nodes()
        .enumerate()
        .map(|(at, node)| figure(&cluster.traffic(node).since(before.get(at).unwrap_or(&none))) as f64)
        .collect();
    (sent.iter().sum::<f64>() / sent.len() as f64, sent.iter().copied().fold(0.0, f64::max))
}

fn traffic(cluster: &ClusterSimulation<Objects>) -> Vec<Traffic> {
    cluster.nodes().map(|node| cluster.traffic(node)).collect()
}

/// Loads as they are sent; `change` makes all of them different.
fn set_loads(cluster: &mut ClusterSimulation<Objects>, change: u64) {
    for node in cluster.nodes() {
        let load = Load {
            memory_free_bytes: 900_000_000 + (node.0 * 31 + change * 4096) % 100_000_000,
            memory_total_bytes: 1 << 30,
            permits_free: 12,
            permits_total: 16,
            running: 4,
            pressure_permille: ((node.0 + change) % 50) as u16,
            ..Load::default()
        };
        cluster.set_load(node, &load);
    }
}

fn idle_for(
    cluster: &mut ClusterSimulation<Objects>,
    change: impl Fn(&mut ClusterSimulation<Objects>, u64),
) -> [f64; 7] {
    let (before, zone_before) = (traffic(cluster), cluster.zone_bytes(0).0);
    let seconds = IDLE.as_secs();
    for second in 1..=seconds {
        change(cluster, second);
        cluster.run_for(Duration::from_secs(1));
    }
    let rate = |figure: fn(&Traffic) -> u64| figures(cluster, &before, figure).0 / seconds as f64;
    let most = figures(cluster, &before, |sent| sent.bytes).1 / seconds as f64;
    let zone = (cluster.zone_bytes(0).0 - zone_before) as f64 / seconds as f64;
    [
        rate(|sent| sent.packets),
        rate(|sent| sent.heartbeat_bytes) / 1e3,
        rate(|sent| sent.load_bytes) / 1e3,
        rate(|sent| sent.data_bytes) / 1e3,
        rate(|sent| sent.bytes) / 1e3,
        most / 1e3,
        zone / 1e6,
    ]
}

fn app_object() -> ObjectKey {
    ObjectKey::new("$cluster", "app/shop")
}

fn policy_object() -> ObjectKey {
    ObjectKey::new("$cluster", "policy")
}

fn name(node: u64) -> String {
    format!("node{node:04}")
}

/// A deploy by a node, which replaces what the node knows.
fn deployment(cluster: &ClusterSimulation<Objects>, node: u64, digit: char) -> Bytes {
    let known = ClusterApp::of(&cluster.replica(NodeId(node)).values(&app_object()));
    let deployment = Deployment {
        number: known.map_or(1, |known| known.winner.number + 1),
        revision: Some(digit.to_string().repeat(64)),
        node: name(node),
        deployed_unix_ms: 1_790_000_000_000,
        format: 1,
    };
    deployment.encode()
}

fn policy(cluster: &ClusterSimulation<Objects>, node: u64) -> Bytes {
    let known = SharedPolicy::of(&cluster.replica(NodeId(node)).values(&policy_object()));
    let text = PolicyText {
        number: known.map_or(1, |known| known.current.number + 1),
        text: format!("# {node}\n{}", "x".repeat(2_000)),
        node: name(node),
        set_unix_ms: 1_790_000_000_000,
        format: 1,
    };
    text.encode()
}

fn change(cluster: &mut ClusterSimulation<Objects>, node: u64, object: &ObjectKey, value: Bytes) {
    // The interval of the objects of the cluster.
    let policy = Policy { interval: Duration::from_millis(20), ..Policy::default() };
    cluster.change(NodeId(node), object, policy, |objects| objects.set(object, value));
}

/// Times until 50, 99 and 100 % of the nodes fulfil a condition.
fn times(
    cluster: &mut ClusterSimulation<Objects>,
    has: impl Fn(&ClusterSimulation<Objects>, NodeId) -> bool,
) -> anyhow::Result<[Duration; 3]> {
    let begun = cluster.now();
    let count = cluster.nodes().count();
    let mut found = [Duration::ZERO; 3];
    for (found, permille) in found.iter_mut().zip([500, 990, 1000]) {
        let needed = (count * permille).div_ceil(1000);
        let enough = |cluster: &ClusterSimulation<Objects>| {
            cluster.nodes().filter(|node| has(cluster, *node)).count() >= needed
        };
        ensure!(cluster.run_until_done(begun + PATIENCE, STEP, enough), "not reached after {PATIENCE:?}");
        *found = cluster.now() - begun;
    }
    Ok(found)
}

fn spread(
    cluster: &mut ClusterSimulation<Objects>,
    node: u64,
    object: &ObjectKey,
    value: Bytes,
) -> anyhow::Result<[f64; 5]> {
    let before = traffic(cluster);
    change(cluster, node, object, value.clone());
    let [half, most, all] =
        times(cluster, |cluster, node| cluster.replica(node).values(object).contains(&value))?;
    let (mean, largest) = figures(cluster, &before, |sent| sent.data_bytes);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok([ms(half), ms(most), ms(all), mean, largest / 1e3])
}

/// The state of the app `shop` on a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shop {
    Missing,
    Fetching,
    Live,
}

/// Facts of a node with some apps, `shop` in this state.
fn facts(cluster: &ClusterSimulation<Objects>, node: NodeId, shop: Shop) -> Facts {
    let live = |revision| LiveRevision { revision, runs: Runs::Here, number: 1 };
    let fact =
        |app: String, live, next| AppFact { app, live, next, lacks_objects: false, schedules: Vec::new() };
    let app = |number: usize| fact(format!("app-{number:02}"), Some(live([number as u8; 32])), None);
    let revision = [0xaa; 32];
    let fetching = NextRevision { revision: Some(revision), state: NextState::Fetching { permille: 0 } };
    let shop = match shop {
        Shop::Missing => None,
        Shop::Fetching => Some(fact("shop".into(), None, Some(fetching))),
        Shop::Live => Some(fact("shop".into(), Some(live(revision)), None)),
    };
    Facts {
        zone: Some(Zone { name: format!("zone{:02}", cluster.zone(node)), source: ZoneSource::Configured }),
        labels: vec!["camera".into()],
        software: "0.1.0".into(),
        apps: (1..APPS).map(app).chain(shop).collect(),
        apps_omitted: 0,
        policy: None,
    }
}

fn set_all_facts(cluster: &mut ClusterSimulation<Objects>, shop: Shop) {
    for node in cluster.nodes() {
        let facts = facts(cluster, node, shop);
        cluster.set_facts(node, &facts);
    }
}

fn report_facts(cluster: &mut ClusterSimulation<Objects>, node: u64) -> anyhow::Result<[f64; 2]> {
    let before = traffic(cluster);
    set_all_facts(cluster, Shop::Fetching);
    cluster.run_for(Duration::from_secs(1));
    let begun = cluster.now();
    set_all_facts(cluster, Shop::Live);
    let me = NodeId(node);
    let is_live = |facts: Facts| facts.apps.iter().any(|app| app.app == "shop" && app.live.is_some());
    let all = |cluster: &ClusterSimulation<Objects>| {
        cluster
            .nodes()
            .filter(|other| *other != me)
            .all(|other| cluster.facts_of(me, other).is_some_and(is_live))
    };
    ensure!(cluster.run_until_done(begun + PATIENCE, 10 * STEP, all), "not all facts have arrived");
    let took = cluster.now() - begun;
    cluster.run_for(Duration::from_secs(5));
    let (mean, _) = figures(cluster, &before, |sent| sent.facts_bytes);
    Ok([mean / 1e6, took.as_secs_f64() * 1e3])
}

fn cut_and_heal(cluster: &mut ClusterSimulation<Objects>, minutes: u64) -> anyhow::Result<[f64; 8]> {
    let in_zone = cluster.nodes().filter(|node| cluster.zone(*node) == 0).count() as u64;
    let (inside, outside) = (1, in_zone + 1);
    cluster.cut(0);
    cluster.run_for(Duration::from_secs(30));
    let values = [(inside, '1'), (outside, 'f')].map(|(node, digit)| {
        let (deployment, policy) = (deployment(cluster, node, digit), policy(cluster, node));
        change(cluster, node, &app_object(), deployment.clone());
        change(cluster, node, &policy_object(), policy.clone());
        (deployment, policy)
    });
    cluster.run_for(Duration::from_secs(60 * minutes).saturating_sub(Duration::from_secs(30)));
    let (before, zone_before) = (traffic(cluster), cluster.zone_bytes(0).0);
    cluster.heal();
    let healed = cluster.now();
    let [half, most, all] = times(cluster, |cluster, node| {
        let (apps, policies) =
            (cluster.replica(node).values(&app_object()), cluster.replica(node).values(&policy_object()));
        values.iter().all(|(deployment, policy)| apps.contains(deployment) && policies.contains(policy))
    })?;
    ensure!(cluster.run_until_done(healed + PATIENCE, 10 * STEP, all_connected), "not connected again");
    let connected = cluster.now() - healed;
    let zone = (cluster.zone_bytes(0).0 - zone_before) as f64;
    let in_zone: Vec<f64> = cluster
        .nodes()
        .zip(&before)
        .filter(|(node, _)| cluster.zone(*node) == 0)
        .map(|(node, before)| cluster.traffic(node).since(before).bytes as f64)
        .collect();
    let (_, largest) = figures(cluster, &before, |sent| sent.bytes);
    let mut winners: Vec<_> = cluster.nodes().map(|node| winners(cluster, node)).collect();
    winners.sort();
    winners.dedup();
    Ok([
        half.as_secs_f64(),
        most.as_secs_f64(),
        all.as_secs_f64(),
        connected.as_secs_f64(),
        in_zone.iter().sum::<f64>() / in_zone.len() as f64 / 1e3,
        largest / 1e3,
        zone / 1e6,
        winners.len() as f64 - 1.0,
    ])
}

/// The deployment and the policy that a node carries out.
fn winners(cluster: &ClusterSimulation<Objects>, node: NodeId) -> (Option<Deployment>, Option<PolicyText>) {
    let replica = cluster.replica(node);
    (
        ClusterApp::of(&replica.values(&app_object())).map(|app| app.winner),
        SharedPolicy::of(&replica.values(&policy_object())).map(|policy| policy.current),
    )
}
