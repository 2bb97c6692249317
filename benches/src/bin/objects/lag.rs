//! How long a change takes to the other node.

use std::time::{Duration, Instant};

use anyhow::Context;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_api::objects::{Change, WatchRequest};
use edgefaas_benches::results::{Report, Table};
use edgefaas_benches::samples::quantile;
use tokio::time::timeout;
use tonic::Streaming;

use crate::Plan;
use crate::apps::{APP, App, FIELD};
use crate::client::{Client, runtime, update};
use crate::cluster::Cluster;

/// What a row is: an object, at which node it is watched, which of the plan's numbers of changes it takes, and for how many
/// milliseconds nothing happens after a change: not at the interval's beat.
const ROWS: [(&str, &str, usize, usize, [u64; 3]); 3] = [
    ("interval 0, watched on the same node", "at-once", 0, 0, [1, 2, 4]),
    ("interval 0, watched on the other node", "at-once", 1, 0, [1, 2, 4]),
    ("interval 200 ms, watched on the other node", "slowly", 1, 1, [3, 71, 149]),
];
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-lag",
        "Replication lag",
        "Two nodes: 1 is added to a counter on the first over gRPC, and a `Watch` stream shows the change; the next addition \
         comes some milliseconds after that. Time is from sending the addition to seeing the change, request and answer included: \
         what the first row has is not replication.",
        &crate::command("lag"),
    );
    let app = App::new(&[
        ("at-once", "interval = \"0ms\"\ncopies = 1"),
        ("slowly", "interval = \"200ms\"\ncopies = 1"),
    ])?;
    let cluster = Cluster::start(&plan.binary, 2, &app)?;
    let endpoints = cluster.endpoints()?;
    let names = ROWS.map(|(name, ..)| name);
    let figures = [("p50", "ms"), ("p99", "ms"), ("most", "ms")];
    let mut table = Table::new("From an addition to the change", &names, &figures);
    for _ in 0..plan.rounds {
        for (row, (_, object, at, which, pauses)) in ROWS.into_iter().enumerate() {
            let times = runtime()?.block_on(async {
                let mut writer = endpoints[0].connect().await?;
                let mut changes = watch(&mut endpoints[at].connect().await?, object).await?;
                times(&mut writer, &mut changes, object, plan.lags[which], pauses).await
            })?;
            table.add(row, &[0.5, 0.99, 1.0].map(|q| quantile(&times, q)));
        }
    }
    report.tables.push(table);
    Ok(report)
}

async fn watch(client: &mut Client, object: &str) -> anyhow::Result<Streaming<Change>> {
    let request = WatchRequest { app: APP.into(), object: object.into(), field: FIELD.into() };
    Ok(client.watch(request).await?.into_inner())
}

/// Milliseconds from an addition to its change, so often.
async fn times(
    writer: &mut Client,
    changes: &mut Streaming<Change>,
    object: &str,
    count: usize,
    pauses_ms: [u64; 3],
) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    let pauses = pauses_ms.map(Duration::from_millis);
    // The first one shows which value the counter has had.
    let mut value = None;
    for number in 0..=count {
        let begun = Instant::now();
        let adding = writer.update(update(object, FIELD, Operation::CounterAdd(1)));
        let seeing = async {
            loop {
                let change = timeout(PATIENCE, changes.message()).await;
                let change =
                    change.context("a change was not seen in time")??.context("the stream has ended")?;
                let now: i64 = change.json.parse()?;
                if value.is_none_or(|value| now > value) {
                    return Ok::<_, anyhow::Error>((now, Instant::now()));
                }
            }
        };
        let (added, seen) = tokio::join!(adding, seeing);
        added?;
        let (now, at) = seen?;
        if value.replace(now).is_some() {
            times.push((at - begun).as_secs_f64() * 1e3);
        }
        tokio::time::sleep(pauses[number % pauses.len()]).await;
    }
    Ok(times)
}
