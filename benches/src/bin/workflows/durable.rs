//! Durable chains over HTTP, beside what the disk takes for a sync.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use edgefaas_benches::results::{Report, Table};
use edgefaas_benches::samples::{Load, Samples, Window};

use crate::Plan;
use crate::apps::{Chains, Step, WORK_US};
use crate::over_http::closed_loop;

const STEPS: usize = 3;
const CONTESTANTS: [&str; 3] = ["durable", "not durable", "the disk: 4 KiB appended and synced"];
/// What is appended.
const BLOCK: [u8; 4096] = [b'x'; 4096];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-durable",
        "Durable chains",
        &format!(
            "A chain of {STEPS} functions that compute for {WORK_US} us each, asked for over HTTP on connections that are kept, one \
             request at a time on each; a durable one has each step's outcome on the disk before the next begins. Beside it the disk \
             itself: one thread that appends 4 KiB to a file in the same file system and calls `fdatasync`."
        ),
        &crate::command("durable"),
    );
    let chains = Chains::start(&plan.binary)?;
    let paths =
        ["chain-durable".to_owned(), Step::Js.chain(STEPS)].map(|name| format!("/workflows/{name}"));
    for connections in [1, 32] {
        let title = format!("{connections} connection(s)");
        let figures = [("p50", "us"), ("p99", "us"), ("rate", "1/s")];
        let mut table = Table::new(&title, &CONTESTANTS, &figures);
        for _ in 0..plan.rounds {
            for row in 0..CONTESTANTS.len() {
                let mut load = match paths.get(row) {
                    Some(path) => closed_loop(chains.node.http, path, connections, plan.turn)?,
                    None => syncs(chains.data.path(), plan.turn / 4)?,
                };
                let (p50, p99) = (load.samples.quantile_us(0.5), load.samples.quantile_us(0.99));
                table.add(row, &[p50, p99, load.per_second]);
            }
        }
        report.tables.push(table);
    }
    Ok(report)
}

/// Appends and syncs.
fn syncs(folder: &Path, length: Duration) -> anyhow::Result<Load> {
    let path = folder.join("synced-by-the-benchmark");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let (window, mut samples) = (Window::after_warm_up(length), Samples::default());
    loop {
        let begun = Instant::now();
        if begun >= window.to {
            std::fs::remove_file(&path)?;
            return Ok(Load::new(samples, window));
        }
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        samples.add(begun, Instant::now(), window);
    }
}
