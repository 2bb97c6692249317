//! What one host call costs a function.

use std::time::Instant;

use anyhow::ensure;
use edgefaas_benches::client::Client;
use edgefaas_benches::results::{Report, Table, Target};
use serde_json::json;

use crate::Plan;
use crate::apps::{App, JS, RUST};
use crate::calls::invoke;
use crate::cluster::Cluster;

const ROWS: [(&str, &str, &str); 5] = [
    ("Rust, add", RUST, "add"),
    ("Rust, read", RUST, "read"),
    ("JavaScript, add", JS, "add"),
    ("JavaScript, add without await", JS, "add-unawaited"),
    ("JavaScript, read", JS, "read"),
];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-guest",
        "Host calls of a function",
        &format!(
            "One invocation that adds 1 to a counter of an object {0} times, or reads it {0} times, one host call each; less what the \
             same invocation takes that does so not once, divided by {0}. The shortest of five. The change of all additions \
             becomes one when the invocation ends.",
            plan.calls
        ),
        &crate::command("guest"),
    );
    let app = App::new(&[])?.with_rust(None)?;
    let cluster = Cluster::start(&plan.binary, 1, &app)?;
    let mut client = Client::new(cluster.members[0].node.http);
    let names = ROWS.map(|(name, _, _)| name);
    let mut table = Table::new("One host call", &names, &[("time", "us"), ("calls", "1/s")]);
    // What is read is there, and is 1.
    for function in [RUST, JS] {
        invoke(
            &mut client,
            function,
            &json!({ "do": "add", "object": format!("read-{function}"), "n": 1 }),
        )?;
    }
    for _ in 0..plan.rounds {
        for (row, (_, function, what)) in ROWS.into_iter().enumerate() {
            let mut time = |n: u32| -> anyhow::Result<f64> {
                let mut least = f64::INFINITY;
                for _ in 0..5 {
                    let begun = Instant::now();
                    let object = format!("{what}-{function}");
                    let sum =
                        invoke(&mut client, function, &json!({ "do": what, "object": object, "n": n }))?;
                    least = least.min(begun.elapsed().as_secs_f64());
                    ensure!(what != "read" || sum == i64::from(n), "{n} readings of 1 make {sum}");
                }
                Ok(least)
            };
            let us = (time(plan.calls)? - time(0)?) * 1e6 / f64::from(plan.calls);
            table.add(row, &[us, 1e6 / us]);
        }
    }
    for (row, (name, _, what)) in ROWS.into_iter().enumerate() {
        let [time, calls] = [0, 1].map(|figure| table.rows[row].figures[figure].median());
        report.targets.push(match what {
            "read" => Target::at_most(
                "objects-guest",
                &format!("{name}: a host call takes at most 1 us"),
                time,
                1.0,
            ),
            _ => {
                let text = format!("{name}: at least 500,000 host calls a second on a core");
                Target::at_least("objects-guest", &text, calls, 500_000.0)
            }
        });
    }
    report.tables.push(table);
    Ok(report)
}
