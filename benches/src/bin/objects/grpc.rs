//! MISO's load: additions to a counter over gRPC, beside a gRPC server that does nothing, and in clusters.

use edgefaas_benches::process::{Process, cpu_seconds_of};
use edgefaas_benches::results::{Report, Table, Target};

use crate::Plan;
use crate::apps::App;
use crate::bare;
use crate::client::{Endpoint, add};
use crate::cluster::Cluster;
use crate::traffic::{self, CONCURRENCY, DELTA_BYTES, LARGEST_MB, SENT_MB};

/// What a row of the first tables is, and the object it writes to.
const CONTESTANTS: [(&str, &str); 4] = [
    ("bare tonic server", "nothing"),
    ("node, written", "written"),
    ("node, memory", "memory"),
    ("node, written, 64 under way", "written"),
];
const WIDE: usize = 64;
const FIGURES: [(&str, &str); 6] = [
    ("requests", "1/s"),
    ("p50", "us"),
    ("p99", "us"),
    ("processor of the server", "us"),
    ("processor of the client", "us"),
    ("memory", "MB"),
];
/// What MISO did on one node.
const MISO_RATE: f64 = 7400.0;
const CLASSES: [(&str, &str); 2] = [
    ("*", "interval = \"5ms\"\ncopies = 1"),
    ("memory*", "interval = \"5ms\"\ncopies = 1\ndurability = \"memory\""),
];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-grpc",
        "Additions to a counter over gRPC",
        &format!(
            "`edgefaas.objects.v1.Objects/Update` with `counter_add: 1`, {CONCURRENCY} under way: the load of MISO's evaluation. On one \
             node the peer is a tonic server with the same service whose update does nothing, neither looks at the token nor keeps \
             anything. `written`: an addition has reached the operating system when it is answered; `memory`: it has not, as in MISO. \
             Processor time is that of a request. {}",
            traffic::explained()
        ),
        &crate::command("grpc"),
    );
    let app = App::new(&CLASSES)?;
    for connections in [1, CONCURRENCY] {
        let table = alone(plan, &app, connections)?;
        let mut target = |row: usize, what: &str| {
            report.targets.push(Target::at_least(
                "objects-grpc",
                &format!("{what}, {connections} connection(s): additions at least 0.8 of a bare tonic server's answers"),
                table.ratio(row, 0, 0),
                0.8,
            ));
        };
        target(1, "written");
        target(2, "memory");
        if connections == 1 {
            let reached = table.rows[1].figures[0].median();
            let text = format!("additions on one node at least 3 times MISO's {MISO_RATE}/s");
            report.targets.push(Target::at_least("objects-grpc-miso", &text, reached, 3.0 * MISO_RATE));
        }
        report.tables.push(table);
    }
    let mut tables =
        [false, true].map(|all| traffic::table(&format!("{}, interval 5 ms", whom(all)), &plan.nodes));
    for (row, size) in plan.nodes.iter().enumerate() {
        let cluster = Cluster::start(&plan.binary, *size, &app)?;
        // Each place of the load has a counter of its own.
        let mut added = [0; 2];
        for _ in 0..plan.rounds {
            for (at, all) in [false, true].into_iter().enumerate() {
                let writers = if all { *size } else { 1 };
                let object = format!("written-{at}");
                let figures = traffic::measure(&cluster, &object, writers, plan.turn, &mut added[at])?;
                tables[at].add(row, &figures);
            }
        }
    }
    for (all, table) in [false, true].into_iter().zip(tables) {
        targets(&mut report, &table, &plan.nodes, whom(all));
        report.tables.push(table);
    }
    Ok(report)
}

fn whom(all: bool) -> &'static str {
    if all { "Load on all nodes" } else { "Load on one node" }
}

fn targets(report: &mut Report, table: &Table, sizes: &[usize], whom: &str) {
    let median = |row: usize, figure: usize| table.rows[row].figures[figure].median();
    for (row, size) in sizes.iter().enumerate() {
        let part = match size {
            5 => 4.0,
            30 => 10.0,
            _ => continue,
        };
        if let Some(mb) = traffic::miso_mb(*size) {
            let text = format!("{whom}: {size} nodes send at most 1/{part} of MISO's bytes");
            let (reached, limit) = (median(row, SENT_MB), mb / part);
            report.targets.push(Target::at_most("objects-grpc-bytes", &text, reached, limit));
        }
    }
    let most = |figure: usize| (0..sizes.len()).map(|row| median(row, figure)).fold(0.0, f64::max);
    let text = format!("{whom}: at most 60 bytes for an update that is exchanged");
    report.targets.push(Target::at_most("objects-grpc-delta", &text, most(DELTA_BYTES), 60.0));
    let text = format!("{whom}: at most 60 MB of memory for a node");
    report.targets.push(Target::at_most("objects-grpc-memory", &text, most(LARGEST_MB), 60.0));
}

/// One node beside the bare server.
fn alone(plan: &Plan, app: &App, connections: usize) -> anyhow::Result<Table> {
    let names = CONTESTANTS.map(|(name, _)| name);
    let title = format!("One node, {CONCURRENCY} under way, {connections} connection(s)");
    let mut table = Table::new(&title, &names, &FIGURES);
    let cluster = Cluster::start(&plan.binary, 1, app)?;
    let node = &cluster.members[0];
    let node_endpoint = node.endpoint()?;
    let (bare, bare_endpoint) = bare::start()?;
    for _ in 0..plan.rounds {
        for (row, (_, object)) in CONTESTANTS.iter().enumerate() {
            let (server, endpoint) = match row {
                0 => (&bare, &bare_endpoint),
                _ => (&node.node.process, &node_endpoint),
            };
            let workers = if row == 3 { WIDE } else { CONCURRENCY };
            table.add(row, &turn(plan, server, endpoint, object, workers, connections)?);
        }
    }
    Ok(table)
}

fn turn(
    plan: &Plan,
    server: &Process,
    endpoint: &Endpoint,
    object: &str,
    workers: usize,
    connections: usize,
) -> anyhow::Result<[f64; FIGURES.len()]> {
    let own = std::process::id();
    let before = (server.cpu_seconds()?, cpu_seconds_of(own)?);
    let mut adds = add(std::slice::from_ref(endpoint), object, workers, connections, plan.turn)?;
    let after = (server.cpu_seconds()?, cpu_seconds_of(own)?);
    let done = adds.acknowledged as f64;
    Ok([
        adds.load.per_second,
        adds.load.samples.quantile_us(0.5),
        adds.load.samples.quantile_us(0.99),
        (after.0 - before.0) * 1e6 / done,
        (after.1 - before.1) * 1e6 / done,
        server.resident_mb()?.0,
    ])
}
