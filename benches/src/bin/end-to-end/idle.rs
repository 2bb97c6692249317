//! A node that does nothing: memory, start, size.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use edgefaas_benches::http::get;
use edgefaas_benches::node::Node;
use edgefaas_benches::results::{Report, Table, Target};

use crate::Plan;

const FRESH: usize = 0;
const DEPLOYED: usize = 1;
const WITHOUT_DISK: usize = 2;
const READY_LINE: usize = 0;
const RESIDENT: usize = 2;
/// A node at rest has given back pages of its program by then.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(7);
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "idle",
        "An idle node",
        "The release binary started on a fresh data directory, and on one with a JavaScript and a Rust function, each \
         invoked once after the restart; for comparison on a fresh data directory in memory, which shows what the disk \
         costs. Times are from exec; memory is looked at after the node was left alone for ten seconds; by then it has given the pages of its \
         program that only the start needed back to the page cache (ADR 39).",
        &crate::command("idle"),
    );
    let mut table = Table::new(
        "Start and memory",
        &["fresh data directory", "two functions, after a restart", "fresh data directory in memory"],
        &[
            ("ready line", "ms"),
            ("first /readyz", "ms"),
            ("resident", "MB"),
            ("of it not file-backed", "MB"),
        ],
    );
    let deployed = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, deployed.path())?;
    node.deploy(&plan.binary, deployed.path())?;
    node.process.terminate()?;
    for _ in 0..plan.starts {
        let fresh = tempfile::tempdir()?;
        table.add(FRESH, &start(plan, fresh.path(), &[])?);
        if Path::new(MEMORY).is_dir() {
            let fresh = tempfile::tempdir_in(MEMORY)?;
            table.add(WITHOUT_DISK, &start(plan, fresh.path(), &[])?);
        }
        table.add(DEPLOYED, &start(plan, deployed.path(), &["/fn/echo-js", "/fn/echo-rust"])?);
    }

    let mut size = Table::new("Binary", &["target/release/edgefaas"], &[("size", "MB")]);
    let megabytes = std::fs::metadata(&plan.binary)?.len() as f64 / 1e6;
    size.add(0, &[megabytes]);

    let median = |row: usize, figure: usize| table.rows[row].figures[figure].median();
    report.targets = vec![
        Target::at_most("idle-memory-fresh", "35 MB resident, fresh", median(FRESH, RESIDENT), 35.0),
        Target::at_most(
            "idle-memory-functions",
            "35 MB resident, with two functions",
            median(DEPLOYED, RESIDENT),
            35.0,
        ),
        Target::at_most("idle-start", "ready 100 ms after exec, fresh", median(FRESH, READY_LINE), 100.0),
        Target::at_most(
            "idle-start-functions",
            "ready 100 ms after exec, with two functions",
            median(DEPLOYED, READY_LINE),
            100.0,
        ),
        Target::at_most("binary-size", "a binary of 40 MB", megabytes, 40.0),
    ];
    report.tables = vec![table, size];
    Ok(report)
}

/// One start: ready line, first `/readyz`, memory.
fn start(plan: &Plan, data_dir: &Path, invoke: &[&str]) -> anyhow::Result<[f64; 4]> {
    let node = Node::start(&plan.binary, data_dir)?;
    while !matches!(get(node.control, "/readyz"), Ok((200, _))) {}
    let ready = node.process.started.elapsed();
    for path in invoke {
        let (status, body) = get(node.http, path)?;
        ensure!(
            (status, &body[..]) == (200, b"hello"),
            "{path}: {status} {}",
            String::from_utf8_lossy(&body)
        );
    }
    sleep(plan.settle + GIVES_BACK_WITHIN);
    let (resident_mb, anonymous_mb) = node.process.resident_mb()?;
    let ready_line = node.process.ready_after;
    node.process.terminate()?;
    Ok([ready_line.as_secs_f64() * 1e3, ready.as_secs_f64() * 1e3, resident_mb, anonymous_mb])
}
