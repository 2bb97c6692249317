//! Transfers of artefacts in virtual time: how long they take, and how many bytes each link carries.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, CHUNK_BYTES, Candidate, Role};
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
fn cluster(seed: u64, nodes: u64, size: usize, zone: impl Fn(u64) -> &'static str) -> (TransferSimulation, BlobDigest) {
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
    for seed in [1, 2, 3] {
        let size = 20 * MB;
        let (mut simulation, blob) = cluster(seed, 50, size, |_| "");
        simulation.want_all((2..=50).map(node), blob);
        assert!(simulation.run_until_complete(Duration::from_secs(120)), "all have it");
        let (up, down) = simulation.max_link_bytes();
        let time = simulation.finished_at();
        println!("seed {seed}: {time:?}, up {:.2}, down {:.2}", share(up, size), share(down, size));
        assert!(share(up, size) <= 1.5, "up {:.3}", share(up, size));
        assert!(share(down, size) <= 1.5, "down {:.3}", share(down, size));
        assert!(time <= Duration::from_secs(32), "20 s is the time of the bytes alone: {time:?}");
    }
}
