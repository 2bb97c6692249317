//! Clusters in virtual time: whatever happens, replicas of live nodes become equal and nothing is lost.
//!
//! Every test prints its seed; `SIMULATION_SEED=SEED` repeats a run.

mod toy;

use std::time::Duration;

use edgefaas_cluster::replication::{Delta, Interest, NodeId, ObjectKey, Settings};
use edgefaas_cluster::simulation::{Network, Random, Simulation};
use toy::{Fields, Toy, all_of, policy, secs, seed};

/// What the writers' counts of a field make together.
fn sum(fields: &Fields) -> u64 {
    fields.0.values().flat_map(|field| field.counts.values()).sum()
}

#[test]
fn random_life() {
    let seed = seed();
    for run in 0..12 {
        random_run(seed.wrapping_add(run), Network::default());
    }
}

/// The transport promises order and no loss; the machine repairs it all the same.
#[test]
fn random_life_on_a_transport_that_breaks_its_promises() {
    let seed = seed();
    for run in 0..8 {
        let network = Network { lose: 0.02, duplicate: 0.05, reorder: 0.05, ..Network::default() };
        random_run(seed.wrapping_add(run), network);
    }
}

/// Nodes that change, stop, start, are cut off and slow, for two minutes; then quiet.
fn random_run(seed: u64, network: Network) {
    eprintln!("run SIMULATION_SEED={seed}");
    let mut random = Random::new(seed);
    let nodes = 2 + random.below(7);
    let network = Network { outbox_bytes: 2_000 + random.below(200_000) as usize, ..network };
    let sane = network.lose == 0.0;
    let settings = Settings {
        lag_bytes: 500 + random.below(5_000) as usize,
        lag_objects: 1 + random.below(8) as usize,
        message_bytes: 200 + random.below(3_000) as usize,
        round_objects: 1 + random.below(10) as usize,
        stall: secs(20),
        ..Settings::default()
    };
    let mut simulation = Simulation::new(seed, network, settings);
    let keys: Vec<ObjectKey> = (0..12).map(|i| ObjectKey::new("app", format!("object-{i}"))).collect();
    let interests = |node: u64| match node % 4 {
        0 => all_of("app"),
        1 => all_of("app"),
        2 => vec![Interest { app: "app".into(), pattern: "object-1*".into() }],
        _ => Vec::new(),
    };
    // Where each node's disk is while it is down.
    let mut down: Vec<(u64, Toy)> = Vec::new();
    for node in 0..nodes {
        simulation.start(NodeId(node), Toy::default(), interests(node));
    }
    let mut fresh = 1_000;
    for _ in 0..600 {
        simulation.run_for(Duration::from_millis(random.below(400)));
        let running: Vec<u64> = simulation.nodes().map(|node| node.0).collect();
        let pick = |random: &mut Random| running[random.below(running.len() as u64) as usize];
        let node = pick(&mut random);
        match random.below(100) {
            0..=69 => {
                let key = &keys[random.below(12) as usize];
                let interval = [0, 5, 200, 1_000][random.below(4) as usize];
                let text = format!("t{}", random.below(1_000_000));
                simulation.change(NodeId(node), key, policy(interval), |toy| match text.len() % 2 {
                    0 => toy.tag(key, "tags", &text),
                    _ => toy.add(key, "n", node, 1),
                });
                // What is acknowledged is on disk.
                simulation.replica_mut(NodeId(node)).unwrap().sync();
            }
            70..=79 => simulation.cut(NodeId(node), NodeId(pick(&mut random))),
            80..=83 => simulation.partition(|node| (node.0 % 2) as u32),
            84..=89 => simulation.heal(),
            90..=92 if running.len() > 2 => {
                let toy = simulation.stop(NodeId(node)).unwrap();
                down.push((node, toy.restarted()));
            }
            93..=96 => {
                if let Some((node, toy)) = down.pop() {
                    simulation.start(NodeId(node), toy, interests(node));
                }
            }
            97 => {
                let slow = 1_000 + random.below(50_000);
                simulation.set_bandwidth(NodeId(node), slow);
            }
            98 => {
                fresh += 1;
                simulation.start(NodeId(fresh), Toy::default(), interests(fresh));
            }
            _ => simulation.set_interests(NodeId(node), interests(random.below(4))),
        }
    }
    for (node, toy) in down {
        simulation.start(NodeId(node), toy, interests(node));
    }
    let running: Vec<NodeId> = simulation.nodes().collect();
    for node in &running {
        simulation.set_bandwidth(*node, 1_000_000);
        simulation.set_interests(*node, interests(node.0));
    }
    simulation.heal();
    // What any disk has must be at all that are interested.
    let mut expected = Toy::default();
    for node in &running {
        for (key, (fields, _)) in &simulation.replica(*node).unwrap().objects {
            expected.objects.entry(key.clone()).or_default().0.merge(fields.clone());
        }
    }
    let limit = Settings::default().pending_bytes + running.len() * 3 * 1024 * 1024;
    let end = simulation.now() + secs(300);
    simulation.run_until_done(end, secs(30), |simulation| sane && simulation.now() + secs(180) >= end);
    for node in &running {
        assert!(simulation.machine(*node).unwrap().waiting_bytes() < limit);
    }
    let is_interested = |node: NodeId, key: &ObjectKey| match node.0 % 4 {
        0 | 1 => true,
        2 => key.object.starts_with("object-1"),
        _ => false,
    };
    for node in &running {
        for (key, (fields, _)) in &expected.objects {
            if is_interested(*node, key) {
                let here = simulation.replica(*node).unwrap().fields(key);
                assert_eq!(here, Some(fields), "{key} at {node}");
            }
        }
    }
    assert!(simulation.equal(is_interested));
    if sane {
        assert_eq!(simulation.disconnects(), []);
    }
    let total: u64 = expected.objects.values().map(|(fields, _)| sum(fields)).sum();
    assert!(total > 0);
}
