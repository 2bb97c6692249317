//! What invocations that wait cost, how long a deploy takes, and what a node with many functions needs.

use std::fs::write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::functions::{Guest, WAIT_JS};
use edgefaas_benches::http::{Connections, get};
use edgefaas_benches::node::Node;
use edgefaas_benches::process::private_mb_of;
use edgefaas_benches::results::{Report, Table, Target};

use crate::{Plan, deploying};

/// As many as a node runs at once by default.
const INVOCATIONS: usize = 1000;

/// The same function in both languages. Durations are longer than any machine takes.
const MANIFEST: &str = r#"app = "waiting"

[functions.wait-rust]
main = "wait.wasm"
limits = { concurrency = 1000, timeout = "10m" }

[functions.wait-js]
main = "wait.js"
limits = { concurrency = 1000, timeout = "10m" }
"#;
const LANGUAGES: [(&str, &str, f64); 2] = [("Rust", "wait-rust", 30.0), ("JavaScript", "wait-js", 90.0)];
const OF_AN_INVOCATION: usize = 0;

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "density",
        "Many functions on one node",
        "The release binary with its default settings. Private memory is that of pages which no other process has \
         (`smaps_rollup`); it is looked at when nothing changes. Deploys are those of the command line, whose first answer is \
         awaited over HTTP.",
        &crate::command("density"),
    );
    suspended(plan, &mut report)?;
    deploying::run(plan, &mut report)?;
    Ok(report)
}

/// Invocations that wait for a timer, all at the same time.
fn suspended(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let title = format!(
        "{INVOCATIONS} invocations that wait for a timer at the same time, each on a connection of its own; private memory \
         above that of the idle node, divided by their number"
    );
    let figures = [
        ("an invocation with its connection", "kB"),
        ("a connection that has had an answer", "kB"),
        ("an invocation alone", "kB"),
        ("left when they have ended", "kB"),
    ];
    let mut table = Table::new(&title, &LANGUAGES.map(|(language, ..)| language), &figures);
    let app = tempfile::tempdir()?;
    write(app.path().join("edgefaas.toml"), MANIFEST)?;
    write(app.path().join("wait.js"), WAIT_JS)?;
    std::fs::copy(Guest::Wait.build()?, app.path().join("wait.wasm"))?;
    let data = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    node.deploy_app(&plan.binary, data.path(), app.path())?;
    node.process.terminate()?;
    for _ in 0..plan.rounds.min(3) {
        for (row, (_, function, _)) in LANGUAGES.iter().enumerate() {
            let node = Node::start(&plan.binary, data.path())?;
            table.add(row, &suspend(plan, &node, data.path(), function)?);
            node.process.terminate()?;
        }
    }
    for (row, (language, _, limit)) in LANGUAGES.iter().enumerate() {
        report.targets.push(Target::at_most(
            "density-suspended",
            &format!("{language}: {limit} kB of private memory for an invocation that waits"),
            table.rows[row].figures[OF_AN_INVOCATION].median(),
            *limit,
        ));
    }
    report.tables.push(table);
    Ok(())
}

/// Kilobytes for each invocation, in the order of the figures.
fn suspend(plan: &Plan, node: &Node, data_dir: &Path, function: &str) -> anyhow::Result<[f64; 4]> {
    let each_kb = |mb: f64| mb * 1e3 / INVOCATIONS as f64;
    let private_mb = || {
        sleep(plan.settle);
        private_mb_of(node.process.id())
    };
    // What the first invocation brings along for all is not that of each.
    let at_once = format!("/fn/{function}?ms=0");
    let (status, _) = get(node.http, &at_once)?;
    ensure!(status == 200, "{at_once}: {status}");
    node.process.wait_for_rest(Duration::from_secs(60))?;
    let idle_mb = private_mb()?;

    let mut connections = Connections::open(node.http, INVOCATIONS, Duration::from_secs(120))?;
    connections.ask_in_turn(&at_once)?;
    let connected_mb = private_mb()?;

    let running = || node.metric(data_dir, "edgefaas_isolates_running");
    let wait = plan.settle * 2 + Duration::from_secs(5);
    connections.ask(&format!("/fn/{function}?ms={}", wait.as_millis()))?;
    let asked = Instant::now();
    while running()? < INVOCATIONS as f64 {
        ensure!(asked.elapsed() < wait, "{} of {INVOCATIONS} invocations are running", running()?);
        sleep(Duration::from_millis(50));
    }
    let waiting_mb = private_mb()?;
    ensure!(running()? == INVOCATIONS as f64, "some had ended before all were looked at");
    connections.answers()?;
    let ended_mb = private_mb()?;
    Ok([
        each_kb(waiting_mb - idle_mb),
        each_kb(connected_mb - idle_mb),
        each_kb(waiting_mb - connected_mb),
        each_kb(ended_mb - idle_mb),
    ])
}
