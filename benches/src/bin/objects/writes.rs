//! What an update costs the disk.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_benches::results::Table;
use edgefaas_benches::samples::quantile;

use crate::Plan;
use crate::apps::{App, FIELD};
use crate::client::{Client, runtime, update, update_all, value};
use crate::cluster::Member;

/// How large the set is that gets one more element.
const ELEMENTS: usize = 10_000;
const ROWS: [&str; 8] = [
    "a read, for comparison",
    "small counter, memory",
    "small counter, written",
    "small counter, synced",
    "one more in a set of 100 elements, written",
    "one more in a set of 10,000 elements, written",
    "one more in a set of 10,000 elements, synced",
    "one more in a set of 10,000 elements, written, 512 MiB for fields",
];
const FIGURES: [(&str, &str); 3] = [("handed to the system", "B"), ("for the disk", "B"), ("p50", "us")];
const CLASSES: [(&str, &str); 2] =
    [("memory*", "durability = \"memory\""), ("synced*", "durability = \"synced\"")];
/// Within it changes are written that need not be at once, and synced.
const SETTLE: Duration = Duration::from_millis(2500);

/// Bytes that a process has written so far.
struct Written {
    handed: f64,
    disk: f64,
}

pub fn table(plan: &Plan) -> anyhow::Result<Table> {
    let app = App::new(&CLASSES)?;
    // The second one has all fields in memory, however large they are.
    let nodes = ["", "[objects]\ncache = \"512MiB\"\n"]
        .map(|settings| Member::start_with(&plan.binary, settings))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    for node in &nodes {
        node.deploy(&plan.binary, &app)?;
    }
    let mut table = Table::new("One update writes", &ROWS, &FIGURES);
    let mut next_element = ELEMENTS;
    for round in 0..plan.rounds {
        for row in 0..ROWS.len() {
            let node = &nodes[usize::from(row == 7)];
            let (endpoint, process) = (node.endpoint()?, node.node.process.id());
            let object = match row {
                1 => "memory".to_owned(),
                3 => "synced".to_owned(),
                4 => format!("few-{round}"),
                5 | 7 => "many".to_owned(),
                6 => "synced-many".to_owned(),
                _ => "written".to_owned(),
            };
            let figures = runtime()?.block_on(async {
                let mut client = endpoint.connect().await?;
                // The sets are there before, and what they took is on the disk.
                let elements = match (row, round) {
                    (4, _) => 100,
                    (5..=7, 0) => ELEMENTS,
                    _ => 0,
                };
                update_all(&mut client, (0..elements).map(|number| insert(&object, number))).await?;
                sleep(SETTLE);
                let before = written(process)?;
                let mut times = Vec::new();
                for _ in 0..plan.updates {
                    next_element += 1;
                    let begun = Instant::now();
                    one(&mut client, row, &object, next_element).await?;
                    times.push(begun.elapsed().as_secs_f64() * 1e6);
                }
                sleep(SETTLE);
                let after = written(process)?;
                let each = |bytes: f64| bytes / plan.updates as f64;
                Ok::<_, anyhow::Error>([
                    each(after.handed - before.handed),
                    each(after.disk - before.disk),
                    quantile(&times, 0.5),
                ])
            })?;
            table.add(row, &figures);
        }
    }
    Ok(table)
}

async fn one(client: &mut Client, row: usize, object: &str, element: usize) -> anyhow::Result<()> {
    match row {
        0 => drop(value(client, object).await?),
        1..=3 => drop(client.update(update(object, FIELD, Operation::CounterAdd(1))).await?),
        _ => drop(client.update(insert(object, element)).await?),
    }
    Ok(())
}

fn insert(object: &str, number: usize) -> edgefaas_api::objects::UpdateRequest {
    update(object, "members", Operation::SetAdd(format!("\"member-{number:08}\"").into_bytes()))
}

fn written(process: u32) -> anyhow::Result<Written> {
    let text = std::fs::read_to_string(format!("/proc/{process}/io"))?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| format!("no {name} in /proc"))?.trim().parse()?)
    };
    Ok(Written { handed: field("wchar:")?, disk: field("write_bytes:")? })
}
