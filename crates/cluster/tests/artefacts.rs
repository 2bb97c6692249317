//! Transfers of artefacts in virtual time: how long they take, and how many bytes each link carries.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, CHUNK_BYTES, Candidate, MAX_FETCHES, Role};
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::simulation::{Behaviour, Random, TransferNetwork, TransferSimulation};

const MB: usize = 1_000_000;

fn blob(size: usize, seed: u64) -> Bytes {
    let mut random = Random::new(seed);
    (0..size.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(size).collect::<Vec<u8>>().into()
}

fn node(id: u64) -> NodeId {
    NodeId(id)
}

/// Nodes 1 to `nodes`; node 1 holds a blob of `size`.
fn cluster(
    seed: u64,
    nodes: u64,
    size: usize,
    zone: impl Fn(u64) -> &'static str,
) -> (TransferSimulation, BlobDigest) {
    let mut simulation = TransferSimulation::new(seed, TransferNetwork::default());
    let blob = simulation.add_blob(blob(size, seed));
    (1..=nodes).for_each(|id| simulation.start(node(id), zone(id), Behaviour::Honest));
    simulation.hold(node(1), blob);
    (simulation, blob)
}

fn share(bytes: u64, size: usize) -> f64 {
    bytes as f64 / size as f64
}

#[test]
fn fifty_nodes_fetch_one_artefact_of_20_mb_in_little_more_than_the_time_of_one_link() {
    for seed in [1, 2] {
        let size = 20 * MB;
        let (mut simulation, blob) = cluster(seed, 50, size, |_| "");
        simulation.want_all((2..=50).map(node), blob);
        assert!(simulation.run_until_complete(Duration::from_secs(120)), "all have it");
        let (up, down) = simulation.max_link_bytes();
        let time = simulation.finished_at();
        println!("seed {seed}: {time:?}, up {:.2}, down {:.2}", share(up, size), share(down, size));
        assert!(share(up, size) <= 1.5, "up {:.3}", share(up, size));
        assert!(share(down, size) <= 1.5, "down {:.3}", share(down, size));
        assert!(time <= Duration::from_secs(40), "twice the 20 s of the bytes alone: {time:?}");
    }
}

#[test]
fn deltas_pass_while_fifty_nodes_fetch() {
    let size = 20 * MB;
    let (mut simulation, blob) = cluster(3, 50, size, |_| "");
    simulation.want_all((2..=50).map(node), blob);
    let mut random = Random::new(3);
    for _ in 0..1000 {
        // 1 kB every 20 ms between any two nodes, and from the holder.
        let (from, to) = (1 + random.below(50), 1 + random.below(50));
        simulation.send_delta(node(from), node(to), 1000);
        simulation.send_delta(node(1), node(to), 1000);
        simulation.run_for(Duration::from_millis(20));
    }
    let mut times = simulation.delta_times().to_vec();
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000];
    println!("{} deltas: median {:?}, 99 % {:?}, max {:?}", times.len(), at(500), at(990), at(1000));
    assert!(times.len() > 1900, "{}", times.len());
    assert!(at(500) <= Duration::from_millis(500) && at(1000) <= Duration::from_secs(1), "{:?}", at(1000));
}

#[test]
fn nodes_that_learn_of_each_other_late_keep_to_the_same_bounds() {
    let size = 20 * MB;
    let (mut simulation, blob) = cluster(4, 50, size, |_| "");
    let holder = Candidate { node: node(1), zone: "".into(), role: Role::Holds };
    // All begin with the holder alone, one every 20 ms, and learn of the others after a second.
    for id in 2..=50 {
        simulation.want_from(node(id), blob, vec![holder.clone()]);
        simulation.run_for(Duration::from_millis(20));
    }
    assert!(simulation.run_until_complete(Duration::from_secs(120)));
    let (up, down) = simulation.max_link_bytes();
    println!("{:?}, up {:.2}, down {:.2}", simulation.finished_at(), share(up, size), share(down, size));
    assert!(share(up, size) <= 1.5 && share(down, size) <= 1.5, "{up} {down}");
    assert!(simulation.finished_at() <= Duration::from_secs(40), "{:?}", simulation.finished_at());
}

#[test]
fn the_trunk_between_two_zones_carries_the_artefact_about_once() {
    let size = 20 * MB;
    let (mut simulation, blob) = cluster(5, 50, size, |id| if id <= 25 { "north" } else { "south" });
    simulation.want_all((2..=50).map(node), blob);
    assert!(simulation.run_until_complete(Duration::from_secs(180)));
    let (up, down) = simulation.max_link_bytes();
    let trunk = simulation.max_trunk_bytes();
    let time = simulation.finished_at();
    println!(
        "{time:?}, up {:.2}, down {:.2}, trunk {:.2}",
        share(up, size),
        share(down, size),
        share(trunk, size)
    );
    assert!(share(up, size) <= 1.5 && share(down, size) <= 1.5, "{up} {down}");
    assert!(share(trunk, size) <= 1.5, "{trunk}");
    assert!(time <= Duration::from_secs(60), "{time:?}");
}

/// Node 1 of north holds `parts` of `size`; the others begin one every `apart` and are expected before by those of their zone.
/// Gives the time until all have all of them, and the largest shares of a link and of the trunk.
fn parts_across_zones(nodes: u64, parts: u64, size: usize, apart: Duration) -> (Duration, f64, f64) {
    let zone = |id: u64| if id <= nodes / 2 { "north" } else { "south" };
    let mut simulation = TransferSimulation::new(31, TransferNetwork::default());
    let blobs: Vec<BlobDigest> =
        (0..parts).map(|part| simulation.add_blob(blob(size, 100 + part))).collect();
    (1..=nodes).for_each(|id| simulation.start(node(id), zone(id), Behaviour::Honest));
    blobs.iter().for_each(|blob| simulation.hold(node(1), *blob));
    for id in 2..=nodes {
        for blob in &blobs {
            let mut candidates = simulation.candidates(node(id), *blob);
            candidates.extend((id + 1..=nodes).filter(|other| zone(*other) == zone(id)).map(|other| {
                Candidate { node: node(other), zone: zone(other).into(), role: Role::Expected }
            }));
            simulation.want_from(node(id), *blob, candidates);
        }
        simulation.run_for(apart);
    }
    // All have reported that they fetch.
    simulation.tell_candidates();
    assert!(simulation.run_until_complete(Duration::from_secs(120)), "all have all");
    let total = size * parts as usize;
    let (up, down) = simulation.max_link_bytes();
    let (link, trunk) = (share(up.max(down), total), share(simulation.max_trunk_bytes(), total));
    let time = simulation.finished_at();
    println!("{nodes} nodes, {parts} parts of {size}: {time:?}, link {link:.2}, trunk {trunk:.2}");
    (time, link, trunk)
}

#[test]
fn many_small_parts_are_in_the_other_zone_within_a_few_round_trips() {
    // The delay between the zones is 82 ms there and back.
    for (nodes, parts, size) in [(5, 1, 300), (5, 16, 300), (5, 16, 4000), (5, 64, 300), (20, 16, 300)] {
        let (time, ..) = parts_across_zones(nodes, parts, size, Duration::from_millis(5));
        assert!(time <= Duration::from_millis(900), "{nodes} nodes, {parts} parts of {size}: {time:?}");
    }
}

#[test]
fn several_large_parts_at_once_cost_little_more_than_one() {
    let (time, link, trunk) = parts_across_zones(20, 8, MB, Duration::from_millis(4));
    assert!(link <= 1.8 && trunk <= 1.5, "{link} {trunk}");
    assert!(time <= Duration::from_secs(60), "{time:?}");
    // One chunk each.
    let (time, link, trunk) = parts_across_zones(20, 16, 60_000, Duration::from_millis(4));
    assert!(link <= 2.6 && trunk <= 1.5, "{link} {trunk}");
    assert!(time <= Duration::from_secs(6), "{time:?}");
}

#[test]
fn a_holder_that_dies_after_each_chunk_has_left_it_is_not_missed() {
    let (mut simulation, blob) = cluster(6, 20, 8 * MB, |_| "");
    simulation.hold(node(2), blob);
    simulation.want_all((3..=20).map(node), blob);
    simulation.run_for(Duration::from_secs(4));
    assert!(!simulation.is_complete());
    simulation.stop(node(1));
    assert!(simulation.run_until_complete(Duration::from_secs(90)), "the second holder serves");
    println!("{:?}", simulation.finished_at());
    assert!(simulation.finished_at() <= Duration::from_secs(40), "{:?}", simulation.finished_at());
}

#[test]
fn without_the_only_holder_the_others_wait_and_go_on_when_it_returns() {
    let (mut simulation, blob) = cluster(7, 5, 8 * MB, |_| "");
    simulation.want_all((2..=5).map(node), blob);
    simulation.run_for(Duration::from_secs(3));
    simulation.stop(node(1));
    assert!(!simulation.run_until_complete(Duration::from_secs(60)), "no node has the rest");
    simulation.start(node(1), "", Behaviour::Honest);
    simulation.hold(node(1), blob);
    assert!(simulation.run_until_complete(Duration::from_secs(120)));
    println!("{:?}", simulation.finished_at());
}

#[test]
fn members_that_lie_or_are_silent_delay_nobody_for_long() {
    let size = 4 * MB;
    let (mut simulation, blob) = cluster(8, 20, size, |_| "");
    for (id, behaviour) in [(21, Behaviour::Lies), (22, Behaviour::Silent)] {
        simulation.start(node(id), "", behaviour);
        simulation.hold(node(id), blob);
    }
    simulation.want_all((2..=20).map(node), blob);
    assert!(simulation.run_until_complete(Duration::from_secs(120)), "all have the right bytes");
    assert!(!simulation.blames().is_empty());
    assert!(simulation.blames().iter().all(|(_, blamed)| *blamed == node(21)), "{:?}", simulation.blames());
    println!("{:?}, {} blames", simulation.finished_at(), simulation.blames().len());
    assert!(simulation.finished_at() <= Duration::from_secs(40), "{:?}", simulation.finished_at());
}

#[test]
fn a_zone_that_is_cut_off_goes_on_when_the_cut_ends() {
    let size = 8 * MB;
    let (mut simulation, blob) = cluster(9, 20, size, |id| if id <= 10 { "north" } else { "south" });
    simulation.want_all((2..=20).map(node), blob);
    simulation.run_for(Duration::from_secs(3));
    simulation.cut("south");
    simulation.run_for(Duration::from_secs(60));
    let stored: usize = (11..=20).map(|id| simulation.stored(node(id), blob)).max().unwrap_or_default();
    assert!(stored > 0 && stored < size.div_ceil(CHUNK_BYTES), "{stored}");
    simulation.heal("south");
    let healed_at = simulation.now();
    assert!(simulation.run_until_complete(healed_at + Duration::from_secs(90)));
    println!("{:?} after the cut", simulation.finished_at() - healed_at);
    assert!(share(simulation.max_trunk_bytes(), size) <= 1.5, "{}", simulation.max_trunk_bytes());
}

#[test]
fn more_fetches_than_run_at_once_wait_for_their_turn() {
    for seed in [31, 32] {
        let (mut simulation, first) =
            cluster(seed, 2, 100_000, |id| if id == 1 { "north" } else { "south" });
        let mut blobs = vec![first];
        for number in 1..3 * MAX_FETCHES as u64 {
            let blob = simulation.add_blob(blob(1000, seed * 1000 + number));
            simulation.hold(node(1), blob);
            blobs.push(blob);
        }
        // Asked for once; nobody repeats it.
        blobs.iter().for_each(|blob| simulation.want(node(2), *blob));
        simulation.run_for(Duration::from_secs(60));
        assert!(simulation.is_complete(), "all have come");
    }
}

#[test]
fn a_restarted_node_fetches_only_the_rest() {
    let size = 8 * MB;
    let (mut simulation, blob) = cluster(10, 3, size, |_| "");
    simulation.want_all((2..=3).map(node), blob);
    simulation.run_for(Duration::from_secs(5));
    let before = simulation.stored(node(2), blob);
    assert!(before > 10, "{before}");
    simulation.restart(node(2));
    assert!(simulation.stored(node(2), blob) >= before);
    assert!(simulation.run_until_complete(Duration::from_secs(60)));
    let (_, down) = simulation.max_link_bytes();
    assert!(share(down, size) <= 1.1, "no chunk came twice: {:.2}", share(down, size));
}

/// Fetches 1 MB, 16 chunks, on many nodes at once. Gives the largest shares of it over a link up and down, and the time.
fn small_artefact_on(nodes: u64, seed: u64) -> (f64, f64, Duration) {
    let size = MB;
    let (mut simulation, blob) = cluster(seed, nodes, size, |_| "");
    simulation.want_all((2..=nodes).map(node), blob);
    assert!(simulation.run_until_complete(Duration::from_secs(60)), "all have it");
    let (up, down) = simulation.max_link_bytes();
    let found = (share(up, size), share(down, size), simulation.finished_at());
    println!("{nodes} nodes, seed {seed}: {:?}, up {:.2}, down {:.2}", found.2, found.0, found.1);
    found
}

#[test]
fn two_hundred_nodes_fetch_an_artefact_of_1_mb() {
    for seed in [11, 12] {
        let (up, down, time) = small_artefact_on(200, seed);
        assert!(up <= 1.8 && down <= 1.5, "{up} {down}");
        assert!(time <= Duration::from_secs(8), "{time:?}");
    }
}

#[test]
#[ignore = "half a minute of processor time"]
fn a_thousand_nodes_fetch_an_artefact_of_1_mb() {
    let (up, down, time) = small_artefact_on(1000, 11);
    assert!(up <= 1.8 && down <= 1.5, "{up} {down}");
    assert!(time <= Duration::from_secs(20), "{time:?}");
}

mod any_schedule {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Run(u64),
        Stop(u64),
        Restart(u64),
        Cut,
        Heal,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (10..2000_u64).prop_map(Step::Run),
            1 => (3..8_u64).prop_map(Step::Stop),
            1 => (3..8_u64).prop_map(Step::Restart),
            1 => Just(Step::Cut),
            1 => Just(Step::Heal),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn of_cuts_and_deaths_ends_with_the_blob_on_every_node_that_is_left(
            seed: u64, steps in prop::collection::vec(step(), 0..20), size in 1..1_500_000_usize, liar: bool,
        ) {
            let (mut simulation, blob) = cluster(seed, 8, size, |id| if id % 3 == 0 { "a" } else { "b" });
            if liar {
                simulation.start(node(9), "a", Behaviour::Lies);
                simulation.hold(node(9), blob);
            }
            simulation.want_all((2..=8).map(node), blob);
            for step in steps {
                match step {
                    Step::Run(ms) => simulation.run_for(Duration::from_millis(ms)),
                    Step::Stop(id) => simulation.stop(node(id)),
                    Step::Restart(id) => simulation.restart(node(id)),
                    Step::Cut => simulation.cut("a"),
                    Step::Heal => simulation.heal("a"),
                }
            }
            simulation.heal("a");
            let end = simulation.now() + Duration::from_secs(120);
            prop_assert!(simulation.run_until_complete(end), "the holder is still there");
            prop_assert!(simulation.blames().iter().all(|(_, blamed)| *blamed == node(9)));
        }
    }
}
