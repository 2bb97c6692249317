//! What nodes sent one another while a load ran, and what that comes to beside what MISO sent.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use edgefaas_api::objects::update_request::Operation;
use edgefaas_benches::results::Table;

use crate::apps::{APP, FIELD};
use crate::client::{Adds, add, runtime, update, wait_until_equal};
use crate::cluster::Cluster;

/// Additions that are under way.
pub const CONCURRENCY: usize = 10;
/// How many additions MISO's bytes are for.
const MISO_ADDS: f64 = 5e6;
/// MB that all of its nodes sent for those, by the number of nodes, as published.
const MISO_MB: [(usize, f64); 4] = [(5, 211.0), (10, 641.0), (20, 1860.0), (30, 3020.0)];
/// MB of memory that its nodes took, the least and the most, as published.
const MISO_RESIDENT_MB: [f64; 2] = [216.0, 251.0];
/// Figures of replication are brought up to date when something happens, a quarter of a second after the last time at the
/// earliest: so something is made to happen then.
const SETTLE: Duration = Duration::from_millis(300);
const READ: Duration = Duration::from_millis(50);
/// The object that is changed for it.
const POKED: &str = "poked";

/// What the rows of [`table`] say.
pub const FIGURES: [(&str, &str); 9] = [
    ("additions", "1/s"),
    ("p50", "us"),
    ("effective interval", "ms"),
    ("sent for an addition", "B"),
    ("sent for 5 M", "MB"),
    ("of a delta", "B"),
    ("memory of a node", "MB"),
    ("the largest", "MB"),
    ("equal after", "ms"),
];
pub const SENT_MB: usize = 4;
pub const DELTA_BYTES: usize = 5;
pub const LARGEST_MB: usize = 7;
const MEMORY_MB: usize = 6;

/// Sums over all nodes.
struct Sums(HashMap<String, f64>);

impl Sums {
    fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        sleep(SETTLE);
        runtime()?.block_on(async {
            for endpoint in cluster.endpoints()? {
                endpoint.connect().await?.update(update(POKED, FIELD, Operation::CounterAdd(1))).await?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        sleep(READ);
        let mut sums = HashMap::new();
        for member in &cluster.members {
            for (name, value) in member.node.metrics(member.data.path())? {
                *sums.entry(name).or_default() += value;
            }
        }
        Ok(Self(sums))
    }

    fn since(&self, before: &Self, name: &str) -> f64 {
        let name = format!("edgefaas_cluster_{name}_total");
        let value = |sums: &Self| sums.0.get(&name).copied().unwrap_or(f64::NAN);
        value(self) - value(before)
    }
}

/// Has the first `writers` nodes take additions to an object's counter, checks that all nodes agree on them in the end, and
/// adds the round to a row of [`table`]. `before`: what was added to this counter in earlier rounds.
pub fn measure(
    cluster: &Cluster,
    object: &str,
    writers: usize,
    length: Duration,
    before: &mut u64,
) -> anyhow::Result<[f64; FIGURES.len()]> {
    let endpoints = cluster.endpoints()?;
    let sums = Sums::of(cluster)?;
    let Adds { mut load, acknowledged } = add(&endpoints[..writers], object, CONCURRENCY, 1, length)?;
    *before += acknowledged;
    let equal = wait_until_equal(&endpoints, object, *before)?;
    let after = Sums::of(cluster)?;
    let sent = after.since(&sums, "bytes_sent");
    let of_an_addition = sent / acknowledged as f64;
    // The load runs for a warm-up too.
    let seconds = length.as_secs_f64() * 1.25;
    // That of the poked object is not the load's; it comes after the figures were read.
    let flushes = after.since(&sums, "flushes") - cluster.members.len() as f64;
    let mut resident = Vec::new();
    for member in &cluster.members {
        resident.push(member.node.process.resident_mb()?.0);
    }
    Ok([
        load.per_second,
        load.samples.quantile_us(0.5),
        seconds * 1e3 * writers as f64 / flushes,
        of_an_addition,
        of_an_addition * MISO_ADDS / 1e6,
        after.since(&sums, "delta_bytes_sent") / after.since(&sums, "deltas_sent"),
        resident.iter().sum::<f64>() / resident.len() as f64,
        resident.iter().copied().fold(0.0, f64::max),
        equal.as_secs_f64() * 1e3,
    ])
}

/// A table with clusters of these sizes and, where it was published, what MISO sent.
pub fn table(title: &str, sizes: &[usize]) -> Table {
    let names: Vec<String> = sizes.iter().map(|size| format!("{size} nodes")).collect();
    let published: Vec<(String, f64)> = MISO_MB
        .iter()
        .filter(|(size, _)| sizes.contains(size))
        .map(|(size, mb)| (format!("MISO, {size} nodes, as published"), *mb))
        .collect();
    let rows: Vec<&str> =
        names.iter().chain(published.iter().map(|(name, _)| name)).map(String::as_str).collect();
    let mut table = Table::new(title, &rows, &FIGURES);
    for (row, (_, mb)) in table.rows[sizes.len()..].iter_mut().zip(&published) {
        row.figures[SENT_MB].rounds.push(*mb);
        row.figures[MEMORY_MB].rounds.extend(MISO_RESIDENT_MB);
    }
    table
}

/// MB that MISO sent for 5 M additions, if that was published for so many nodes.
pub fn miso_mb(size: usize) -> Option<f64> {
    MISO_MB.iter().find(|(nodes, _)| *nodes == size).map(|(_, mb)| *mb)
}

/// What is said of every table of this kind.
pub fn explained() -> String {
    format!(
        "{CONCURRENCY} additions of 1 are under way (one for each node where there are more nodes), sent by one tonic client on one \
         thread over one connection to each node that takes them, to one counter of an object of the app `{APP}`. Bytes are those of \
         messages about objects that all nodes have sent, before encryption and framing; \"of a delta\" has those with changes only, \
         \"5 M\" is what 5 million additions would take at this rate. The effective interval is the time between two sendings of a node that writes. After every round all \
         nodes have to have as many as were acknowledged: \"equal after\" is how long that took."
    )
}
