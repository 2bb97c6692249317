//! Many nodes in zones, in virtual time: deploys and policies converge everywhere, also across a cut, at a bounded cost; and
//! calls are spread evenly from loads that are as old as heartbeats make them.

mod toy;

use std::collections::BTreeSet;
use std::time::Duration;

use edgefaas_cluster::placement::Policy as PlacementPolicy;
use edgefaas_cluster::replication::{Interest, NodeId, ObjectKey, Policy, Settings};
use edgefaas_cluster::simulation::{
    CallOutcome, CallPlan, CallSimulation, ClusterSimulation, Heartbeats, KnownShares, ZoneNetwork,
};
use edgefaas_cluster::status::Load;
use toy::{Toy, secs};

const NODES: usize = 60;
const ZONES: usize = 4;
const SEEDS: [u64; 3] = [1, 2, 3];
const STEP: Duration = Duration::from_millis(10);

fn cluster(seed: u64, network: ZoneNetwork, heartbeats: Heartbeats) -> ClusterSimulation<Toy> {
    let interests = [Interest { app: "$cluster".into(), pattern: "*".into() }];
    let nodes = (0..NODES).map(|node| (Toy::default(), node * ZONES / NODES)).collect();
    let mut cluster =
        ClusterSimulation::new(seed, network, heartbeats, &Settings::default(), &interests, secs(2), nodes);
    let is_whole =
        |cluster: &ClusterSimulation<Toy>| cluster.nodes().all(|node| cluster.channels(node) == NODES - 1);
    assert!(cluster.run_until_done(secs(60), STEP, is_whole), "seed {seed}: not all are connected");
    cluster.run_for(secs(5));
    cluster
}

/// Objects as a deploy and a policy use them: of the values that no other replaced, the greatest wins.
fn deploy() -> ObjectKey {
    ObjectKey::new("$cluster", "app/shop")
}

fn policies() -> ObjectKey {
    ObjectKey::new("$cluster", "policy")
}

fn put(cluster: &mut ClusterSimulation<Toy>, node: u64, object: &ObjectKey, value: &str) {
    cluster.change(NodeId(node), object, Policy::default(), |toy| toy.tag(object, "live", value));
}

fn values(cluster: &ClusterSimulation<Toy>, node: NodeId, object: &ObjectKey) -> BTreeSet<String> {
    let fields = cluster.replica(node).fields(object);
    fields.and_then(|fields| fields.0.get("live")).map(|field| field.tags.clone()).unwrap_or_default()
}

fn all_have(cluster: &ClusterSimulation<Toy>, object: &ObjectKey, expected: &[&str]) -> bool {
    let expected: BTreeSet<String> = expected.iter().map(|value| (*value).to_owned()).collect();
    cluster.nodes().all(|node| values(cluster, node, object) == expected)
}

#[test]
fn a_deploy_and_a_policy_reach_all_nodes_within_a_second_at_a_bounded_cost() {
    for seed in SEEDS {
        let network = ZoneNetwork { loss: 0.01, ..ZoneNetwork::default() };
        let mut cluster = cluster(seed, network, Heartbeats::Simulated);
        let before: Vec<_> = cluster.nodes().map(|node| cluster.traffic(node)).collect();
        let begun = cluster.now();
        put(&mut cluster, 7, &deploy(), "1-a");
        put(&mut cluster, 40, &policies(), "1-p");
        let done = cluster.run_until_done(begun + secs(5), STEP, |cluster| {
            all_have(cluster, &deploy(), &["1-a"]) && all_have(cluster, &policies(), &["1-p"])
        });
        let took = cluster.now() - begun;
        assert!(done && took < secs(2), "seed {seed}: {took:?}");
        cluster.run_until(begun + secs(30));
        for (node, before) in cluster.nodes().zip(before) {
            let sent = cluster.traffic(node).since(&before);
            // Heartbeats or their answers: one or two packets to each other node per second.
            let packets = sent.packets as f64 / 30.0 / (NODES - 1) as f64;
            assert!((0.9..2.2).contains(&packets), "seed {seed}: {packets} packets per second and node");
            // A change goes to each other node once; rounds of 10 to 30 s compare the rest.
            let data = sent.data_bytes as f64 / (NODES - 1) as f64;
            assert!(data < 400.0, "seed {seed}: {data} bytes of replication for each other node");
        }
        assert_eq!((cluster.losses(), cluster.disconnects()), (0, &[][..]), "seed {seed}");
    }
}

#[test]
fn both_sides_of_a_cut_go_on_and_have_the_same_winner_afterwards() {
    for seed in SEEDS {
        let mut cluster = cluster(seed, ZoneNetwork::default(), Heartbeats::Simulated);
        put(&mut cluster, 1, &deploy(), "1-old");
        cluster.run_for(secs(2));
        cluster.cut(0);
        cluster.run_for(secs(30));
        let inside = (NODES / ZONES) as u64;
        let reached = |cluster: &ClusterSimulation<Toy>, node| cluster.channels(NodeId(node));
        assert_eq!(reached(&cluster, 1), NODES / ZONES - 1);
        assert_eq!(reached(&cluster, inside + 1), NODES - NODES / ZONES - 1);
        put(&mut cluster, 2, &deploy(), "2-inside");
        put(&mut cluster, inside + 2, &deploy(), "2-outside");
        put(&mut cluster, 3, &policies(), "1-inside");
        put(&mut cluster, inside + 3, &policies(), "1-outside");
        cluster.run_for(secs(40));
        let seen = |cluster: &ClusterSimulation<Toy>, node| values(cluster, NodeId(node), &deploy());
        assert_eq!(seen(&cluster, 5).last().unwrap(), "2-inside", "the zone goes on alone");
        assert_eq!(seen(&cluster, NODES as u64).last().unwrap(), "2-outside");
        cluster.heal();
        let healed = cluster.now();
        let done = cluster.run_until_done(healed + secs(40), STEP, |cluster| {
            all_have(cluster, &deploy(), &["1-old", "2-inside", "2-outside"])
                && all_have(cluster, &policies(), &["1-inside", "1-outside"])
        });
        assert!(done, "seed {seed}: not equal {:?} after the cut", cluster.now() - healed);
        cluster.run_for(secs(30));
        assert!(cluster.nodes().all(|node| cluster.channels(node) == NODES - 1), "seed {seed}");
        assert_eq!(cluster.disconnects(), [], "seed {seed}");
    }
}

#[test]
fn loads_are_as_old_as_a_heartbeat_and_those_of_unreachable_nodes_are_gone() {
    let mut cluster = cluster(4, ZoneNetwork::default(), Heartbeats::Simulated);
    let load = |running| Load { running, ..Load::default() };
    cluster.set_load(NodeId(1), &load(9));
    cluster.run_for(Duration::from_millis(2_300));
    for other in cluster.nodes().skip(1) {
        assert_eq!(cluster.load_of(other, NodeId(1)), Some(load(9)), "{other}");
    }
    cluster.cut(0);
    cluster.run_for(secs(6));
    assert_eq!(cluster.load_of(NodeId(2), NodeId(1)), Some(load(9)));
    assert_eq!(cluster.load_of(NodeId(NODES as u64), NodeId(1)), None);
}

#[test]
fn runs_of_one_seed_are_the_same() {
    let run = || {
        let network = ZoneNetwork { loss: 0.02, ..ZoneNetwork::default() };
        let mut cluster = cluster(5, network, Heartbeats::Simulated);
        put(&mut cluster, 3, &deploy(), "1-a");
        cluster.run_for(secs(20));
        cluster.nodes().map(|node| cluster.traffic(node)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// Calls that use this share of all permits; all nodes get as many.
fn balance(
    seed: u64,
    strategy: &str,
    used: f64,
    service: Duration,
    change: impl FnOnce(&mut CallPlan),
) -> CallOutcome {
    let text = format!("spread: [{{workers: \"*\", strategy: {strategy}}}]");
    let policy =
        PlacementPolicy::parse(&text).unwrap_or_else(|error| panic!("{}", error.report("test", &text)));
    let permits = 8;
    let mut plan = CallPlan {
        policy,
        tag: "spread".into(),
        functions: 20,
        calls_per_second: NODES as f64 * f64::from(permits) * used / service.as_secs_f64(),
        skew: 0.0,
        service,
        permits,
        queue: 64,
        memory_bytes: 1 << 30,
        call_bytes: 4 << 20,
        liars: BTreeSet::new(),
        shares: KnownShares::ByRefusals,
    };
    change(&mut plan);
    let cluster = cluster(seed, ZoneNetwork::default(), Heartbeats::Assumed);
    CallSimulation::new(seed, cluster, plan).run(secs(20), secs(30))
}

#[test]
fn two_choices_by_old_loads_are_better_than_chance_for_calls_longer_than_a_heartbeat() {
    for seed in SEEDS {
        let [least_loaded, random] =
            ["least-loaded", "random"].map(|strategy| balance(seed, strategy, 0.7, secs(4), |_| ()));
        println!(
            "seed {seed}: max/mean {:.2} and {:.2}, waited {} and {} of {}",
            least_loaded.max_by_mean(),
            random.max_by_mean(),
            least_loaded.waited,
            random.waited,
            random.calls
        );
        assert!(least_loaded.max_by_mean() < 1.6, "seed {seed}: {}", least_loaded.max_by_mean());
        assert!(least_loaded.waited < random.waited, "seed {seed}");
        assert_eq!(least_loaded.refused, 0, "seed {seed}");
    }
}

#[test]
fn short_calls_are_not_refused_and_no_node_stays_overloaded() {
    for seed in SEEDS {
        let outcome = balance(seed, "least-loaded", 0.6, Duration::from_millis(400), |_| ());
        println!(
            "seed {seed}: max/mean {:.2}, peak {:.2}, waited {} of {}",
            outcome.max_by_mean(),
            outcome.peak(),
            outcome.waited,
            outcome.calls
        );
        assert!(outcome.max_by_mean() < 1.6, "seed {seed}: {}", outcome.max_by_mean());
        assert!(outcome.peak() < 4.0, "seed {seed}: {}", outcome.peak());
        assert_eq!(outcome.refused, 0, "seed {seed}");
    }
}

#[test]
fn a_node_that_reports_no_load_gets_less_than_three_times_its_part() {
    for seed in SEEDS {
        let liar = BTreeSet::from([NodeId(5)]);
        let outcome = balance(seed, "least-loaded", 0.4, secs(1), |plan| plan.liars = liar);
        let load = outcome.mean_loads[4];
        println!("seed {seed}: liar {load:.2}, mean {:.2}, refused {}", outcome.mean(), outcome.refused);
        assert_eq!(outcome.refused, 0, "seed {seed}");
        assert!(load < 3.0 * outcome.mean(), "seed {seed}: {load}");
    }
}
