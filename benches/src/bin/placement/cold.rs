//! coldstart and scale-to-zero: a function with 42.8 MB of dependencies is called for the first time after a deploy, and then no more.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use edgefaas_benches::fleet::{Fleet, ask};
use edgefaas_benches::plots::{Axis, draw};
use edgefaas_benches::results::{Report, Table, Target};

use crate::{app, idling};

const ROWS: [&str; 2] = ["first call after a deploy", "second call"];
/// Deploys of new dependencies; there: 3 calls with 11 minutes between them.
const DEPLOYS: u64 = 3;
/// Before the deploy, and after the last call.
const BEFORE: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(120);
const QUICK_AFTER: Duration = Duration::from_secs(15);
const PATH: &str = "/fn/cold";

/// Adds tables, plots and a target.
pub fn measure(fleet: &Fleet<'_>, app: &Path, quick: bool, report: &mut Report) -> anyhow::Result<()> {
    let mut starts = Table::new("coldstart: 42.8 MB of dependencies", &ROWS, &[("time", "ms")]);
    let mut marks = Vec::new();
    let (outcome, samples) = idling::watch(&fleet.members, || -> anyhow::Result<()> {
        let begun = Instant::now();
        sleep(BEFORE);
        for revision in 1..=DEPLOYS {
            app::revise(app, revision)?;
            marks.push((format!("deploy {revision}"), begun.elapsed()));
            let body = revision.to_string();
            let took = fleet.deploy_until(app, "/fn/revision", |answer| answer.body == body.as_bytes())?;
            println!("deploy {revision} was live on all nodes after {took:.1?}");
            marks.push((format!("calls {revision}"), begun.elapsed()));
            for member in &fleet.members {
                let mut connection = None;
                for row in 0..ROWS.len() {
                    let time = member.host.enter(|| -> anyhow::Result<f64> {
                        let begun = Instant::now();
                        let answer = ask(&mut connection, member.http, PATH)?;
                        anyhow::ensure!(answer.status == 200, "{PATH}: {answer:?}");
                        Ok(begun.elapsed().as_secs_f64() * 1e3)
                    })?;
                    starts.add(row, &[time]);
                }
            }
        }
        sleep(if quick { QUICK_AFTER } else { AFTER });
        Ok(())
    });
    outcome?;
    for (what, at) in &marks {
        println!("{what} after {at:.1?}");
    }
    let text = "coldstart: first call after a deploy, ms";
    report.targets.push(Target::at_most("placement-cold", text, starts.rows[0].figures[0].median(), 300.0));
    report.tables.push(starts);
    report.tables.push(idling::table(&fleet.members, &samples));
    let title = "Time, s (10 s idle, three deploys each with two calls on each node, then idle)";
    let x = Axis { title, logarithmic: false };
    let [memory, processor] = idling::lines(&fleet.members, &samples);
    let plots: [(&str, &str, &str, Vec<edgefaas_benches::plots::Line>); 2] = [
        ("placement-memory.svg", "Scale to zero: memory of each node", "Resident memory, MB", memory),
        (
            "placement-processor.svg",
            "Scale to zero: processor of each node",
            "Of one processor, %",
            processor,
        ),
    ];
    for (file, title, y, lines) in plots {
        report.plots.push(draw(file, title, x, Axis { title: y, logarithmic: false }, &lines)?);
    }
    Ok(())
}
