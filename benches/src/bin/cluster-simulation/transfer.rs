//! All nodes fetch one artefact.

use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::median;
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::simulation::{Behaviour, Random, TransferNetwork, TransferSimulation};

use crate::Arguments;

const SIZE: usize = 20_000_000;
const PATIENCE: Duration = Duration::from_secs(1_800);

pub fn run(arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let mut table = Table::new(
        "An artefact of 20 MB, held by one node, over links of 1 MB/s",
        &["until all have it"],
        &[
            ("time", "s"),
            ("most of a node, up", "artefacts"),
            ("most of a node, down", "artefacts"),
            ("most of a pair of zones, one way", "artefacts"),
        ],
    );
    for seed in 1..=arguments.seeds {
        let begun = Instant::now();
        let network = TransferNetwork { far: Duration::from_millis(40), ..TransferNetwork::default() };
        let mut simulation = TransferSimulation::new(seed, network);
        let mut random = Random::new(seed);
        let content: Vec<u8> = (0..SIZE / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        let blob = simulation.add_blob(content.into());
        let nodes = arguments.nodes as u64;
        for node in 0..nodes {
            let zone = format!("zone{:02}", node as usize * arguments.zones / arguments.nodes);
            simulation.start(NodeId(node + 1), &zone, Behaviour::Honest);
        }
        simulation.hold(NodeId(1), blob);
        simulation.want_all((2..=nodes).map(NodeId), blob);
        ensure!(simulation.run_until_complete(PATIENCE), "not all nodes have the artefact");
        let (up, down) = simulation.max_link_bytes();
        let share = |bytes: u64| bytes as f64 / SIZE as f64;
        let time = simulation.finished_at().as_secs_f64();
        table.add(0, &[time, share(up), share(down), share(simulation.max_trunk_bytes())]);
        println!("seed {seed}: transfer, real time {:?}", begun.elapsed());
    }
    let value = |figure: usize| median(&table.rows[0].figures[figure].rounds);
    let most = value(1).max(value(2)).max(value(3));
    report.targets.push(Target::at_most(
        "simulation-transfer",
        "bytes over any one link, in artefacts: at most 1.5",
        most,
        1.5,
    ));
    report.tables.push(table);
    Ok(())
}
