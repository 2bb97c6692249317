//! MISO's table of intervals: how often nodes tell one another of their additions.

use std::time::Duration;

use edgefaas_benches::results::{Report, Table};

use crate::Plan;
use crate::apps::App;
use crate::cluster::Cluster;
use crate::traffic;

const INTERVALS_MS: [u64; 7] = [0, 5, 10, 50, 200, 1000, 5000];
const SIZES: [usize; 2] = [2, 5];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-intervals",
        "Replication intervals",
        &format!(
            "The same counter at different replication intervals; all nodes take additions. A node collects changes for at least 1 ms, \
             and longer when it has more to do than it can. {}",
            traffic::explained()
        ),
        &crate::command("intervals"),
    );
    let classes =
        INTERVALS_MS.map(|ms| (format!("every-{ms}"), format!("interval = \"{ms}ms\"\ncopies = 1")));
    let classes: Vec<_> =
        classes.iter().map(|(pattern, settings)| (pattern.as_str(), settings.as_str())).collect();
    let app = App::new(&classes)?;
    let names = INTERVALS_MS.map(|ms| format!("{ms} ms"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for size in SIZES {
        let cluster = Cluster::start(&plan.binary, size, &app)?;
        let mut table = Table::new(&format!("{size} nodes"), &names, &traffic::FIGURES);
        let mut added = [0; INTERVALS_MS.len()];
        for _ in 0..plan.rounds {
            for (row, (object, _)) in classes.iter().enumerate() {
                // Long enough for some of them.
                let length = plan.turn.max(Duration::from_millis(2 * INTERVALS_MS[row]));
                let figures = traffic::measure(&cluster, object, size, length, &mut added[row])?;
                table.add(row, &figures);
            }
        }
        report.tables.push(table);
    }
    Ok(report)
}
