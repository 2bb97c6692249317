//! What a cluster does in particular cases, in virtual time.
//!
//! Every test prints its seed; `SIMULATION_SEED=SEED` repeats a run.

mod toy;

use std::time::Duration;

use edgefaas_cluster::replication::{Interest, NodeId, ObjectKey, Replica, Settings, View};
use edgefaas_cluster::simulation::{Network, Simulation};
use toy::{Toy, add, all_of, holders, policy, secs, seed};

fn cluster(interested: u64, others: u64) -> Simulation<Toy> {
    let mut simulation = Simulation::new(seed(), Network::default(), Settings::default());
    for node in 1..=interested + others {
        let interests = if node <= interested { all_of("app") } else { Vec::new() };
        simulation.start(NodeId(node), Toy::default(), interests);
    }
    simulation.run_for(secs(10));
    simulation
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("app", name)
}

fn count(simulation: &Simulation<Toy>, node: u64, key: &ObjectKey, writer: u64) -> u64 {
    let fields = simulation.replica(NodeId(node)).and_then(|toy| toy.fields(key));
    fields.and_then(|f| f.0.get("n")).and_then(|f| f.counts.get(&writer)).copied().unwrap_or_default()
}

/// Adds objects with these names, each with a counter that `node` has counted to one.
fn fill(toy: &mut Toy, names: impl IntoIterator<Item = String>, node: u64) {
    for name in names {
        toy.add(&key(&name), "n", node, 1);
    }
}

/// The names of so many objects.
fn names(prefix: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |i| format!("{prefix}{i}"))
}

/// True if nothing of the app's objects is missing on a node.
fn is_complete(simulation: &Simulation<Toy>, node: u64) -> bool {
    simulation.recovering(NodeId(node), "app", "*").is_some_and(|(_, lacks)| lacks.is_empty())
}

#[test]
fn a_change_reaches_the_interested_nodes_after_its_interval_and_nobody_else() {
    let mut simulation = cluster(3, 3);
    let object = key("counter");
    for _ in 0..100 {
        add(&mut simulation, 1, &object, 200);
        simulation.run_for(Duration::from_millis(1));
    }
    assert_eq!(holders(&simulation, &object), [1], "200 ms are not over");
    simulation.run_for(Duration::from_millis(110));
    assert_eq!(holders(&simulation, &object), [1, 2, 3]);
    assert_eq!(count(&simulation, 3, &object, 1), 100);
    let counters = simulation.counters(NodeId(1)).unwrap();
    assert_eq!((counters.changes, counters.flushes, counters.deltas_sent), (100, 1, 2));
    assert!((2..counters.bytes_sent).contains(&counters.delta_bytes_sent), "rounds are not among them");
    assert_eq!(counters.flush_delay, Duration::from_millis(200));

    add(&mut simulation, 2, &object, 0);
    simulation.run_for(Duration::from_millis(6));
    assert_eq!(count(&simulation, 1, &object, 2), 1);
    assert_eq!(simulation.counters(NodeId(1)).unwrap().deltas_sent, 2, "nothing is passed on");
}

#[test]
fn an_update_takes_few_bytes() {
    let mut simulation = cluster(2, 0);
    let object = key("counter");
    add(&mut simulation, 1, &object, 0);
    let before = simulation.counters(NodeId(1)).unwrap().bytes_sent;
    for _ in 0..100 {
        add(&mut simulation, 1, &object, 0);
    }
    let after = simulation.counters(NodeId(1)).unwrap().bytes_sent;
    // The toy's payload is 10 to 12 bytes.
    assert!((after - before) / 100 <= 20, "{}", after - before);
}

#[test]
fn copies_are_kept_where_nobody_is_interested_and_come_back_to_a_node_that_lost_its_disk() {
    let mut simulation = cluster(1, 4);
    let objects: Vec<ObjectKey> = (0..50).map(|i| key(&format!("o{i}"))).collect();
    for object in &objects {
        add(&mut simulation, 1, object, 0);
    }
    simulation.run_for(secs(1));
    for object in &objects {
        assert_eq!(holders(&simulation, object).len(), 2, "{object}");
    }
    // One that keeps some leaves for good: others take them over.
    simulation.stop(NodeId(3));
    simulation.run_for(secs(70));
    for object in &objects {
        assert_eq!(holders(&simulation, object).len(), 2, "{object}");
    }
    // The only interested node loses its disk and comes back.
    simulation.stop(NodeId(1));
    simulation.start(NodeId(1), Toy::default(), all_of("app"));
    simulation.run_for(secs(1));
    assert!(is_complete(&simulation, 1));
    for object in &objects {
        assert_eq!(count(&simulation, 1, object, 1), 1, "{object}");
    }
}

#[test]
fn a_node_that_has_just_joined_keeps_copies_as_soon_as_it_counts() {
    for writer in [1, 2] {
        let mut simulation: Simulation<Toy> =
            Simulation::new(seed(), Network::default(), Settings::default());
        for node in [1, 2] {
            simulation.start(NodeId(node), Toy::default(), Vec::new());
        }
        simulation.run_for(secs(1));
        let objects: Vec<ObjectKey> = (0..50).map(|i| key(&format!("o{i}"))).collect();
        for object in &objects {
            add(&mut simulation, writer, object, 0);
        }
        simulation.run_for(secs(1));
        assert!(objects.iter().all(|object| holders(&simulation, object) == [writer]), "it may go again");
        simulation.run_for(secs(5));
        for object in &objects {
            assert_eq!(holders(&simulation, object), [1, 2], "{object}");
        }
    }
}

#[test]
fn keepers_take_over_from_the_last_interested_node() {
    let mut simulation = cluster(1, 4);
    let object = key("o");
    add(&mut simulation, 1, &object, 0);
    simulation.run_for(secs(1));
    simulation.stop(NodeId(1));
    simulation.run_for(secs(70));
    assert_eq!(holders(&simulation, &object).len(), 2);
    simulation.stop(NodeId(holders(&simulation, &object)[0]));
    simulation.run_for(secs(70));
    assert_eq!(holders(&simulation, &object).len(), 2);
    // It still is there for a node that gets interested.
    let other = simulation.nodes().find(|node| !holders(&simulation, &object).contains(&node.0)).unwrap();
    simulation.set_interests(other, all_of("app"));
    simulation.run_for(secs(2));
    assert_eq!(count(&simulation, other.0, &object, 1), 1);
}

#[test]
fn a_short_absence_moves_no_copies() {
    let mut simulation = cluster(2, 3);
    let object = key("o");
    add(&mut simulation, 1, &object, 0);
    simulation.run_for(secs(1));
    for _ in 0..60 {
        simulation.cut(NodeId(1), NodeId(2));
        simulation.run_for(secs(2));
        add(&mut simulation, 1, &object, 0);
    }
    simulation.run_for(secs(40));
    assert_eq!(holders(&simulation, &object), [1, 2]);
    assert_eq!(count(&simulation, 2, &object, 1), 61);
}

#[test]
fn a_new_interest_is_synced_when_all_is_here() {
    let mut simulation = cluster(2, 1);
    for i in 0..2_000 {
        add(&mut simulation, 1, &key(&format!("o{i}")), 0);
    }
    simulation.run_for(secs(1));
    simulation.set_interests(NodeId(3), all_of("app"));
    let end = simulation.now() + secs(20);
    let step = Duration::from_micros(100);
    assert!(simulation.run_until_done(end, step, |s| is_complete(s, 3)));
    assert_eq!(simulation.replica(NodeId(3)).unwrap().objects.len(), 2_000);
    assert!(simulation.equal(|_, _| true));
}

#[test]
fn a_node_waits_two_seconds_for_members_that_do_not_come() {
    let mut simulation: Simulation<Toy> = Simulation::new(seed(), Network::default(), Settings::default());
    simulation.set_members(&[NodeId(1), NodeId(2)]);
    simulation.start(NodeId(1), Toy::default(), all_of("app"));
    simulation.run_for(secs(1));
    assert_eq!(simulation.recovering(NodeId(1), "app", "*"), Some((secs(0), &[NodeId(2)][..])));
    simulation.run_for(secs(2));
    assert_eq!(simulation.recovering(NodeId(1), "app", "*"), Some((secs(2), &[][..])));
    // It comes later, with objects: from then on they are missing.
    let mut late = Toy::default();
    fill(&mut late, names("o", 500), 2);
    simulation.start(NodeId(2), late, all_of("app"));
    let end = simulation.now() + secs(5);
    let step = Duration::from_micros(100);
    assert!(simulation.run_until_done(end, step, |s| !is_complete(s, 1)));
    assert!(simulation.run_until_done(end, step, |s| is_complete(s, 1)));
    assert_eq!(simulation.replica(NodeId(1)).unwrap().objects.len(), 500);
}

/// Node 1 with 5,000 objects, and node 2, to which rounds of 100 bring them.
fn half_recovered() -> Simulation<Toy> {
    let settings = Settings { round_objects: 100, ..Settings::default() };
    let mut simulation: Simulation<Toy> = Simulation::new(seed(), Network::default(), settings);
    let mut full = Toy::default();
    fill(&mut full, names("o", 5_000), 1);
    simulation.start(NodeId(1), full, all_of("app"));
    simulation.start(NodeId(2), Toy::default(), all_of("app"));
    let end = simulation.now() + secs(20);
    let half = |s: &Simulation<Toy>| s.replica(NodeId(2)).is_some_and(|toy| toy.objects.len() > 2_500);
    assert!(simulation.run_until_done(end, Duration::from_micros(100), half));
    simulation
}

#[test]
fn what_a_member_had_is_missing_while_it_is_away_and_until_its_round_is_over() {
    let mut simulation = half_recovered();
    simulation.start(NodeId(3), Toy::default(), all_of("app"));
    simulation.partition(|node| u32::from(node == NodeId(1)));
    // The third node has nothing to add, and says so.
    simulation.run_for(secs(600));
    assert_eq!(simulation.recovering(NodeId(2), "app", "*").unwrap().1, [NodeId(1)]);
    assert!(simulation.replica(NodeId(2)).unwrap().objects.len() < 5_000);
    simulation.heal();
    let end = simulation.now() + secs(60);
    assert!(simulation.run_until_done(end, Duration::from_micros(100), |s| is_complete(s, 2)));
    assert_eq!(simulation.replica(NodeId(2)).unwrap().objects.len(), 5_000);
    // A member that leaves the cluster is not waited for.
    let mut simulation = half_recovered();
    simulation.partition(|node| u32::from(node == NodeId(1)));
    simulation.run_for(secs(600));
    assert!(!is_complete(&simulation, 2));
    simulation.set_members(&[NodeId(2)]);
    assert!(is_complete(&simulation, 2));
}

#[test]
fn an_interest_that_comes_in_the_middle_of_rounds_waits_for_all_of_its_objects() {
    let of = |patterns: &[&str]| {
        let of = |pattern: &&str| Interest { app: "app".into(), pattern: (*pattern).into() };
        patterns.iter().map(of).collect::<Vec<_>>()
    };
    for (full, empty) in [(1, 2), (2, 1)] {
        let (full, empty) = (NodeId(full), NodeId(empty));
        let settings = Settings { round_objects: 100, ..Settings::default() };
        let mut simulation: Simulation<Toy> = Simulation::new(seed(), Network::default(), settings);
        let mut objects = Toy::default();
        fill(&mut objects, names("x", 3_000).chain(names("y", 3_000)), full.0);
        simulation.start(full, objects, of(&["x*", "y*"]));
        simulation.start(empty, Toy::default(), of(&["x*"]));
        let end = simulation.now() + secs(60);
        let step = Duration::from_micros(100);
        let has = |s: &Simulation<Toy>, name: &str| {
            let objects = &s.replica(empty).unwrap().objects;
            objects.keys().filter(|key| key.object.starts_with(name)).count()
        };
        assert!(simulation.run_until_done(end, step, |s| has(s, "x") > 1_500));
        simulation.set_interests(empty, of(&["x*", "y*"]));
        let complete =
            |s: &Simulation<Toy>, pattern: &str| s.recovering(empty, "app", pattern).unwrap().1.is_empty();
        assert!(simulation.run_until_done(end, step, |s| complete(s, "y*")));
        assert_eq!(has(&simulation, "y"), 3_000, "node {full} has them");
        assert!(simulation.run_until_done(end, step, |s| complete(s, "x*")));
        assert_eq!(has(&simulation, "x"), 3_000);
    }
}

#[test]
fn what_could_not_be_stored_is_missing_until_it_comes_again() {
    for full in [1, 2] {
        let (full, empty) = (NodeId(full), NodeId(3 - full));
        let settings = Settings { round_objects: 100, ..Settings::default() };
        let mut simulation: Simulation<Toy> = Simulation::new(seed(), Network::default(), settings);
        let mut objects = Toy::default();
        fill(&mut objects, names("o", 2_000), full.0);
        simulation.start(full, objects, all_of("app"));
        simulation.start(empty, Toy::default(), all_of("app"));
        let end = simulation.now() + secs(90);
        let step = Duration::from_micros(100);
        let lose = |simulation: &mut Simulation<Toy>| {
            simulation.replica_mut(empty).unwrap().objects.clear();
            simulation.not_stored(empty, full);
            assert_eq!(simulation.recovering(empty, "app", "*").unwrap().1, [full]);
        };
        let some = |s: &Simulation<Toy>| s.replica(empty).unwrap().objects.len() > 1_000;
        assert!(simulation.run_until_done(end, step, some));
        lose(&mut simulation);
        assert!(simulation.run_until_done(end, step, |s| is_complete(s, empty.0)));
        assert_eq!(simulation.replica(empty).unwrap().objects.len(), 2_000);
        // And the same when nothing is under way.
        simulation.run_for(secs(5));
        lose(&mut simulation);
        assert!(simulation.run_until_done(end, step, |s| is_complete(s, empty.0)));
        assert_eq!(simulation.replica(empty).unwrap().objects.len(), 2_000);
    }
}

#[test]
fn a_disk_that_stays_full_makes_no_rounds_follow_each_other() {
    for full in [1, 2] {
        let (full, empty) = (NodeId(full), NodeId(3 - full));
        let mut simulation: Simulation<Toy> =
            Simulation::new(seed(), Network::default(), Settings::default());
        let mut objects = Toy::default();
        fill(&mut objects, names("o", 500), full.0);
        simulation.start(full, objects, all_of("app"));
        simulation.start(empty, Toy::default(), all_of("app"));
        // Nothing that comes stays.
        for _ in 0..12_000 {
            simulation.run_for(Duration::from_millis(10));
            if !simulation.replica(empty).unwrap().objects.is_empty() {
                simulation.replica_mut(empty).unwrap().objects.clear();
                simulation.not_stored(empty, full);
            }
        }
        assert_eq!(simulation.recovering(empty, "app", "*").unwrap().1, [full]);
        let sent = simulation.counters(full).unwrap().states_sent;
        // In 120 s, with rounds every 10 to 30 s.
        assert!((3 * 500..=14 * 500).contains(&sent), "{sent} objects were sent");
        let end = simulation.now() + secs(60);
        assert!(simulation.run_until_done(end, Duration::from_millis(1), |s| is_complete(s, empty.0)));
        assert_eq!(simulation.replica(empty).unwrap().objects.len(), 500);
    }
}

#[test]
fn a_new_member_without_objects_keeps_no_interest_waiting() {
    for (full, new) in [(1, 2), (2, 1)] {
        let (full, new) = (NodeId(full), NodeId(new));
        let mut simulation: Simulation<Toy> = Simulation::new(
            seed(),
            Network::default(),
            Settings { round_objects: 100, ..Settings::default() },
        );
        let mut objects = Toy::default();
        fill(&mut objects, names("o", 5_000), full.0);
        simulation.start(full, objects, all_of("app"));
        simulation.start(new, Toy::default(), all_of("app"));
        let end = simulation.now() + secs(5);
        let step = Duration::from_micros(100);
        assert!(simulation.run_until_done(end, step, |s| is_complete(s, full.0)));
        assert!(simulation.replica(new).unwrap().objects.len() < 5_000);
        assert!(!is_complete(&simulation, new.0));
    }
}

#[test]
fn a_hundred_thousand_objects_are_recovered_and_cost_little_when_equal() {
    let mut simulation = cluster(1, 0);
    let interests = all_of("app");
    for i in 0..100_000 {
        simulation.replica_mut(NodeId(1)).unwrap().add(&key(&format!("object-{i}")), "n", 1, 1);
    }
    simulation.start(NodeId(2), Toy::default(), interests);
    let started = simulation.now();
    let end = simulation.now() + secs(60);
    let step = Duration::from_millis(10);
    assert!(simulation.run_until_done(end, step, |s| is_complete(s, 2)));
    assert_eq!(simulation.replica(NodeId(2)).unwrap().objects.len(), 100_000);
    let sent = simulation.counters(NodeId(1)).unwrap().bytes_sent;
    eprintln!("100,000 objects: {:?}, {sent} bytes", simulation.now() - started);
    assert!(sent < 100_000 * 60, "{sent}");

    simulation.run_for(secs(60));
    let look = |simulation: &Simulation<Toy>| {
        let of = |node: u64| {
            let counters = simulation.counters(NodeId(node)).unwrap().clone();
            (counters, simulation.replica(NodeId(node)).unwrap().digests.get())
        };
        (of(1), of(2))
    };
    let (before, _) = (look(&simulation), simulation.run_for(secs(600)));
    let after = look(&simulation);
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        let rounds = after.0.rounds - before.0.rounds;
        assert!((20..=60).contains(&rounds), "{rounds}");
        assert_eq!(after.0.rounds_equal - before.0.rounds_equal, rounds);
        assert_eq!(after.0.messages_sent - before.0.messages_sent, rounds);
        assert!((after.0.bytes_sent - before.0.bytes_sent) / rounds <= 24);
        assert_eq!(u64::from(after.1 - before.1), rounds);
    }
}

#[test]
fn only_fields_that_differ_are_exchanged() {
    let mut simulation = cluster(2, 0);
    let object = key("large");
    for i in 0..1_000 {
        for node in [1, 2] {
            simulation.replica_mut(NodeId(node)).unwrap().add(&object, &format!("field-{i}"), 7, 1);
        }
    }
    simulation.run_for(secs(40));
    simulation.replica_mut(NodeId(1)).unwrap().add(&object, "field-3", 7, 1);
    simulation.replica_mut(NodeId(2)).unwrap().add(&object, "field-4", 7, 1);
    simulation.replica_mut(NodeId(2)).unwrap().tag(&object, "only-here", "x");
    let before = simulation.counters(NodeId(1)).unwrap().bytes_received;
    simulation.run_for(secs(40));
    assert!(simulation.equal(|_, _| true));
    let received = simulation.counters(NodeId(1)).unwrap().bytes_received - before;
    // The digests of a thousand fields, not their contents.
    assert!(received < 30_000, "{received}");
    assert_eq!(simulation.counters(NodeId(1)).unwrap().states_sent, 1);
    assert_eq!(simulation.counters(NodeId(2)).unwrap().states_sent, 1);
}

#[test]
fn a_peer_without_room_costs_bounded_memory_and_loses_nothing() {
    let network = Network { outbox_bytes: 20_000, ..Network::default() };
    let settings = Settings { lag_bytes: 10_000, lag_objects: 50, ..Settings::default() };
    let mut simulation = Simulation::new(seed(), network, settings);
    for node in 1..=3 {
        simulation.start(NodeId(node), Toy::default(), all_of("app"));
    }
    simulation.run_for(secs(10));
    simulation.set_bandwidth(NodeId(2), 2_000);
    let mut most = 0;
    for i in 0..20_000_u64 {
        let object = key(&format!("object-{}", i % 200));
        let text = format!("tag-{i}");
        simulation.change(NodeId(1), &object, policy(5), |toy| toy.tag(&object, "tags", &text));
        simulation.run_for(Duration::from_millis(1));
        most = most.max(simulation.machine(NodeId(1)).unwrap().waiting_bytes());
    }
    let counters = simulation.counters(NodeId(1)).unwrap();
    assert!(counters.stale > 0 && counters.stale_all > 0 && counters.lagged > 0, "{counters:?}");
    assert!(most < 300_000, "{most}");
    simulation.run_for(Duration::from_millis(100));
    let fast = |node: NodeId, _: &ObjectKey| node != NodeId(2);
    assert!(simulation.equal(fast), "the others are not held up");
    simulation.set_bandwidth(NodeId(2), 10_000_000);
    simulation.run_for(secs(90));
    assert!(simulation.equal(|_, _| true));
}

#[test]
fn a_payload_longer_than_a_message_goes_in_pieces() {
    let mut simulation = cluster(2, 0);
    let object = key("long");
    for i in 0..60 {
        let tag = format!("{i}{}", "x".repeat(20_000));
        simulation.change(NodeId(1), &object, policy(100), |toy| toy.tag(&object, "tags", &tag));
    }
    simulation.run_for(secs(1));
    assert!(simulation.equal(|_, _| true));
    assert_eq!(simulation.counters(NodeId(1)).unwrap().rounds_exchanged, 0, "not by a round");
    let frames = simulation.counters(NodeId(1)).unwrap();
    assert!(frames.bytes_sent > 1_200_000);
}

#[test]
fn what_is_stable_is_known_to_be_everywhere() {
    let mut simulation = cluster(3, 0);
    let members = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
    let stable = |simulation: &Simulation<Toy>| simulation.machine(NodeId(1)).unwrap().stable_since();
    simulation.set_members(&members);
    simulation.run_for(secs(60));
    assert_eq!(stable(&simulation), None, "node 4 was never seen");
    simulation.start(NodeId(4), Toy::default(), all_of("app"));
    simulation.set_members(&members);
    simulation.run_for(secs(60));
    let before = stable(&simulation).unwrap();
    assert!(before >= secs(70) && before <= secs(130), "{before:?}");

    // A member that is cut off holds it back, at the time when it was equal.
    simulation.partition(|node| u32::from(node == NodeId(4)));
    add(&mut simulation, 1, &key("o"), 0);
    let changed = simulation.now();
    simulation.run_for(secs(60));
    let held_back = stable(&simulation).unwrap();
    assert!(held_back >= before && held_back <= changed);
    simulation.heal();
    simulation.run_for(secs(60));
    assert!(stable(&simulation).unwrap() > changed);
    assert!(simulation.equal(|_, _| true));
}

#[test]
fn a_hundred_nodes_become_equal_after_a_partition() {
    let mut simulation = Simulation::new(seed(), Network::default(), Settings::default());
    for node in 1..=100 {
        simulation.start(NodeId(node), Toy::default(), all_of("app"));
    }
    simulation.run_for(secs(2));
    let objects: Vec<ObjectKey> = (0..20).map(|i| key(&format!("o{i}"))).collect();
    simulation.partition(|node| (node.0 % 3) as u32);
    for i in 0..400 {
        add(&mut simulation, i % 100 + 1, &objects[(i % 20) as usize], 50);
        simulation.run_for(Duration::from_millis(20));
    }
    assert!(!simulation.equal(|_, _| true));
    simulation.heal();
    let healed = simulation.now();
    let end = healed + secs(60);
    assert!(simulation.run_until_done(end, Duration::from_millis(100), |s| s.equal(|_, _| true)));
    eprintln!("100 nodes: equal {:?} after healing", simulation.now() - healed);
    assert!(simulation.now() - healed < secs(40));
    let total: u64 =
        objects.iter().map(|o| (1..=100).map(|w| count(&simulation, 50, o, w)).sum::<u64>()).sum();
    assert_eq!(total, 400);
}

#[test]
fn a_seed_repeats_a_run() {
    let seed = seed();
    let run = || {
        let mut simulation = Simulation::new(seed, Network::default(), Settings::default());
        for node in 1..=5 {
            simulation.start(NodeId(node), Toy::default(), all_of("app"));
        }
        for i in 0..200 {
            add(&mut simulation, i % 5 + 1, &key(&format!("o{}", i % 7)), 20);
            simulation.run_for(Duration::from_millis(50));
        }
        simulation.run_for(secs(60));
        let counters: Vec<_> =
            simulation.nodes().filter_map(|node| simulation.counters(node).cloned()).collect();
        (counters, simulation.replica(NodeId(1)).unwrap().digest(&key("o1"), View::ALL))
    };
    assert_eq!(run(), run());
}

/// Takes minutes and 2 GB: `cargo test --release -- --ignored`.
#[test]
#[ignore = "large"]
fn a_thousand_nodes() {
    let mut simulation = Simulation::new(seed(), Network::default(), Settings::default());
    for node in 1..=1_000 {
        simulation.start(NodeId(node), Toy::default(), all_of("app"));
    }
    simulation.run_for(secs(5));
    for i in 0..2_000 {
        add(&mut simulation, i % 1_000 + 1, &key(&format!("o{}", i % 50)), 200);
        simulation.run_for(Duration::from_millis(5));
    }
    let quiet = simulation.now();
    let end = quiet + secs(60);
    assert!(simulation.run_until_done(end, Duration::from_millis(50), |s| s.equal(|_, _| true)));
    let sent: u64 = simulation.nodes().filter_map(|n| simulation.counters(n)).map(|c| c.bytes_sent).sum();
    eprintln!(
        "equal {:?} after the last change; {} bytes per node",
        simulation.now() - quiet,
        sent / 1_000
    );
}

#[test]
fn what_comes_first_comes_before_the_bulk_of_a_round() {
    // Either side of a round may be the one that has all.
    for (holder, joiner) in [(1, 2), (2, 1)] {
        let slow = Network { bytes_per_second: 200_000, outbox_bytes: 16_384, ..Network::default() };
        let mut simulation = Simulation::new(seed(), slow, Settings::default());
        let mut toy = Toy::default();
        for number in 0..2_000 {
            toy.add(&key(&format!("bulk-{number}")), "n", holder, 1);
            toy.tag(&key(&format!("bulk-{number}")), "n", &"x".repeat(1_000));
        }
        for number in 0..20 {
            toy.add(&key(&format!("first-{number}")), "n", holder, 1);
        }
        simulation.start(NodeId(holder), toy, all_of("app"));
        simulation.start(NodeId(joiner), Toy::default(), all_of("app"));
        let arrived = |simulation: &Simulation<Toy>, kind: &str, of: u64| {
            let is_there =
                |number: &u64| count(simulation, joiner, &key(&format!("{kind}-{number}")), holder) == 1;
            (0..of).filter(is_there).count()
        };
        for _ in 0..10_000 {
            if arrived(&simulation, "first", 20) == 20 {
                break;
            }
            simulation.run_for(Duration::from_millis(10));
        }
        let bulk = arrived(&simulation, "bulk", 2_000);
        assert_eq!(arrived(&simulation, "first", 20), 20);
        // One frame, of 256 kB at most, has them all.
        assert!(bulk < 300, "{bulk} others came before, from node {holder} to {joiner}");
        simulation.run_for(secs(60));
        assert_eq!(arrived(&simulation, "bulk", 2_000), 2_000, "and then all");
    }
}
