//! Instances that wait: their memory, and the start of a node that has them on its disk.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_benches::broker_load::{connect, packet, text};
use edgefaas_benches::http::get;
use edgefaas_benches::node::Node;
use edgefaas_benches::results::{Report, Table};
use serde_json::Value;

use crate::Plan;
use crate::apps::App;
use crate::load::payload;

/// What they wait for, and whether that is on the disk.
const KINDS: [(&str, &str, bool); 4] = [
    ("an event", "listen: { to: { one: { with: { type: mqtt.publish, subject: never/comes } } } }", false),
    ("a day", "wait: { days: 1 }", false),
    (
        "an event, durable",
        "listen: { to: { one: { with: { type: mqtt.publish, subject: never/comes } } } }",
        true,
    ),
    ("a day, durable", "wait: { days: 1 }", true),
];
/// The first row of them that is.
const FIRST_DURABLE: usize = 2;
/// Starts that are not acknowledged yet, at most.
const UNDER_WAY: u64 = 500;
/// How long it may take until all wait.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-waiting",
        "Workflows that wait",
        &format!(
            "{} instances, each started by a message of QoS 1 with a small object as input, wait in their first task. Memory is \
             resident (RSS), above that of the node before the first start, looked at when nothing changes. A restart is from exec; \
             it is complete when `/readyz` says so and all instances are there.",
            plan.waiting
        ),
        &crate::command("waiting"),
    );
    let names = KINDS.map(|(name, ..)| name);
    let figures = [("memory of an instance", "B"), ("starts", "1/s")];
    let mut all = Table::new(&format!("{} instances that wait for", plan.waiting), &names, &figures);
    let figures =
        [("disk of an instance", "B"), ("ready line", "ms"), ("/readyz", "ms"), ("instances then", "%")];
    let mut kept = Table::new("The durable ones after a restart", &names[FIRST_DURABLE..], &figures);
    for _ in 0..plan.rounds.min(2) {
        for (row, (_, task, durable)) in KINDS.iter().enumerate() {
            let (bytes, starts, restart) = wait(plan, task, *durable)?;
            all.add(row, &[bytes, starts]);
            if let Some(restart) = restart {
                kept.add(row - FIRST_DURABLE, &restart);
            }
        }
    }
    report.tables = vec![all, kept];
    Ok(report)
}

/// Bytes of memory of an instance, starts a second, and for durable ones: bytes on the disk of each, milliseconds until
/// the ready line and until `/readyz`, and the share of instances that are there then in percent.
fn wait(plan: &Plan, task: &str, durable: bool) -> anyhow::Result<(f64, f64, Option<[f64; 4]>)> {
    let text = format!(
        "document: {{ dsl: '1.0.3', namespace: bench, name: idle, version: '1.0.0', metadata: {{ durable: {durable} }} }}\ndo:\n  - \
         rest: {{ {task} }}\n"
    );
    let manifest = "app = \"idle\"\nworkflows = [\"workflows/*.yaml\"]\n";
    let app = App::new(&[("edgefaas.toml", manifest), ("workflows/idle.yaml", &text)])?;
    let data = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    node.deploy_app(&plan.binary, data.path(), app.path())?;
    sleep(plan.settle);
    let before = (node.process.resident_mb()?.0, disk_bytes(data.path()));
    let begun = Instant::now();
    start(node.mqtt, plan.waiting)?;
    let starts = plan.waiting as f64 / begun.elapsed().as_secs_f64();
    while live(plan, &node, data.path())? < plan.waiting {
        ensure!(
            begun.elapsed() < PATIENCE,
            "not all of {} instances wait after {PATIENCE:?}",
            plan.waiting
        );
        sleep(Duration::from_millis(100));
    }
    sleep(plan.settle);
    let bytes = (node.process.resident_mb()?.0 - before.0) * 1e6 / plan.waiting as f64;
    let on_disk = (disk_bytes(data.path()) - before.1) / plan.waiting as f64;
    node.process.terminate()?;
    if !durable {
        return Ok((bytes, starts, None));
    }
    let node = Node::start(&plan.binary, data.path())?;
    while !matches!(get(node.control, "/readyz"), Ok((200, _))) {}
    let ready = node.process.started.elapsed();
    let there = live(plan, &node, data.path())? as f64 / plan.waiting as f64;
    let line = node.process.ready_after;
    node.process.terminate()?;
    let restart = [on_disk, line.as_secs_f64() * 1e3, ready.as_secs_f64() * 1e3, there * 100.0];
    Ok((bytes, starts, Some(restart)))
}

/// Starts so many instances, each of which is acknowledged.
fn start(address: SocketAddr, count: u64) -> anyhow::Result<()> {
    let mut stream = connect(address, "starter", true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let topic = text("$faas/wf/idle/invoke");
    let (mut sent, mut acknowledged, mut acks, mut part) = (0, 0, vec![0; 1 << 14], 0);
    while acknowledged < count {
        let mut out = Vec::new();
        while sent < count && sent - acknowledged < UNDER_WAY {
            let id = (sent % 60_000) as u16 + 1;
            out.extend(packet(0x32, &[&topic[..], &id.to_be_bytes(), payload(sent).as_bytes()].concat()));
            sent += 1;
        }
        stream.write_all(&out)?;
        let read = stream.read(&mut acks).context("a start is not acknowledged")?;
        ensure!(read > 0, "the broker closed the connection");
        // A PUBACK has four bytes.
        acknowledged += ((read + part) / 4) as u64;
        part = (read + part) % 4;
    }
    Ok(())
}

/// Instances that have not ended.
fn live(plan: &Plan, node: &Node, data_dir: &Path) -> anyhow::Result<u64> {
    let list = node.said(&plan.binary, data_dir, &["list"])?;
    let apps = list["apps"].as_array().into_iter().flatten();
    let mut workflows = apps.filter_map(|app| app["workflows"].as_array()).flatten();
    let idle = workflows.find(|workflow| workflow["name"] == "idle");
    idle.map(|workflow| &workflow["live"])
        .and_then(Value::as_u64)
        .with_context(|| format!("{list} does not say how many instances there are"))
}

/// What a folder takes, without the compiled code in it.
fn disk_bytes(folder: &Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.len() as f64,
        // A file of the database may go at any time.
        Err(_) => 0.0,
    };
    entries.map(size).sum()
}
