//! What objects take in memory and on the disk, how long a new node needs to have all of them, and how long a node takes to start
//! again with them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_api::objects::update_request::Operation;
use edgefaas_benches::client::Client;
use edgefaas_benches::results::{Report, Table};
use serde_json::json;
use tempfile::TempDir;

use crate::Plan;
use crate::apps::{App, FIELD, JS};
use crate::calls::invoke;
use crate::client::{runtime, update, update_all};
use crate::cluster::Member;
use crate::writes;

/// What is in an object's register, with the quotes of JSON text.
const REGISTER_BYTES: usize = 34;
const PATIENCE: Duration = Duration::from_secs(120);
/// What a row of the first table says.
const TAKEN: [(&str, &str); 5] = [
    ("memory", "B"),
    ("of it in the cache", "B"),
    ("disk, freshly written", "B"),
    ("disk, after a restart", "B"),
    ("writing", "1/s"),
];
const JOINED: [(&str, &str); 5] = [
    ("joined after", "ms"),
    ("deployed after", "ms"),
    ("first answer after", "ms"),
    ("received for an object", "B"),
    ("most memory above before", "MB"),
];
const STARTED: [(&str, &str); 2] = [("ready after", "ms"), ("first answer after", "ms")];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "objects-recovery",
        "Many objects: their size, recovery and restart",
        &format!(
            "{} objects with a counter and a register of {REGISTER_BYTES} bytes each, written over gRPC on a node with default settings \
             (16 MiB of memory for fields). Memory is what the node's resident memory grew by, disk what its data directory grew by. \
             Then a second node joins and gets the function, with `recover = \"before\"`; its first invocation reads the last object. \
             Times are from the command to join; the command line's own time is part of them, the engine's compilation is not. At last the first node is started \
             again, after it was asked to end and after kill -9: without its peer, for which it waits 2 s before the first answer. The last table has what the node's process handed to the system \
             (`wchar` of /proc, answers over the network among it) and what was for the disk (`write_bytes`, in pages) for \
             each of {} updates, one after another over gRPC, until everything is on the disk.",
            plan.objects, plan.updates
        ),
        &crate::command("recovery"),
    );
    let row = format!("{} objects", plan.objects);
    let mut taken = Table::new("One object takes", &[&row], &TAKEN);
    let mut joined = Table::new("A node that joins", &["no objects", &row], &JOINED);
    let starts = ["no objects, ended", &format!("{row}, ended"), &format!("{row}, kill -9")];
    let mut started = Table::new("A node that starts again", &starts, &STARTED);
    let app = App::new(&[("*", "interval = \"200ms\"\ncopies = 2\nrecover = \"before\"")])?;
    for _ in 0..plan.rounds.min(2) {
        let member = first(plan, &app)?;
        joined.add(0, &join(plan, &app, &member, None)?);
        let member = again(plan, member, true, None, &mut started, 0)?;
        let mut figures = fill(plan, &member)?;
        joined.add(1, &join(plan, &app, &member, Some(plan.objects))?);
        let member = again(plan, member, true, Some(plan.objects), &mut started, 1)?;
        let member = again(plan, member, false, Some(plan.objects), &mut started, 2)?;
        member.node.process.wait_for_rest(PATIENCE)?;
        figures.after_restart = disk_bytes(member.data.path())? - figures.empty;
        let each = |bytes: f64| bytes / plan.objects as f64;
        taken.add(
            0,
            &[
                each(figures.memory),
                each(figures.cached),
                each(figures.fresh),
                each(figures.after_restart),
                plan.objects as f64 / figures.writing.as_secs_f64(),
            ],
        );
    }
    report.tables.extend([taken, joined, started, writes::table(plan)?]);
    Ok(report)
}

/// In bytes, for all objects.
struct Taken {
    memory: f64,
    cached: f64,
    /// The data directory before.
    empty: f64,
    fresh: f64,
    after_restart: f64,
    writing: Duration,
}

/// The first node of a cluster, with the app.
fn first(plan: &Plan, app: &App) -> anyhow::Result<Member> {
    let member = Member::start(&plan.binary)?;
    member.begin_cluster(&plan.binary)?;
    member.deploy(&plan.binary, app)?;
    Ok(member)
}

fn object(number: usize) -> String {
    format!("object-{number}")
}

/// The value of an object's counter.
fn count(number: usize) -> i64 {
    number as i64 + 1
}

fn fill(plan: &Plan, member: &Member) -> anyhow::Result<Taken> {
    // What a first answer takes is not the objects'.
    answer(member, None)?;
    member.node.process.wait_for_rest(PATIENCE)?;
    let resident_before = member.node.process.resident_mb()?.0;
    let empty = disk_bytes(member.data.path())?;
    let register = format!("\"{}\"", "r".repeat(REGISTER_BYTES - 2));
    let begun = Instant::now();
    runtime()?.block_on(async {
        let mut client = member.endpoint()?.connect().await?;
        let updates = (0..plan.objects).flat_map(|number| {
            let add = update(&object(number), FIELD, Operation::CounterAdd(count(number)));
            let set =
                update(&object(number), "name", Operation::RegisterSet(register.clone().into_bytes()));
            [add, set]
        });
        update_all(&mut client, updates).await
    })?;
    let writing = begun.elapsed();
    member.node.process.wait_for_rest(PATIENCE)?;
    Ok(Taken {
        memory: (member.node.process.resident_mb()?.0 - resident_before) * 1e6,
        cached: member.metric("edgefaas_object_cached_bytes")?,
        empty,
        fresh: disk_bytes(member.data.path())? - empty,
        after_restart: f64::NAN,
        writing,
    })
}

/// Has a new node join and take over the objects.
fn join(
    plan: &Plan,
    app: &App,
    first: &Member,
    objects: Option<usize>,
) -> anyhow::Result<[f64; JOINED.len()]> {
    let second = Member::start(&plan.binary)?;
    // Whoever deploys JavaScript for the first time waits for the engine to be compiled.
    second.deploy(&plan.binary, &App::other()?)?;
    second.node.process.wait_for_rest(PATIENCE)?;
    let resident_before = second.node.process.resident_mb()?.0;
    second.node.process.forget_peak()?;
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    second.join(&plan.binary, first, if objects.is_some() { "full" } else { "empty" })?;
    let joined = ms();
    second.deploy(&plan.binary, app)?;
    let deployed = ms();
    answer(&second, objects)?;
    let answered = ms();
    let most_memory = second.node.process.peak_mb()? - resident_before;
    // The figures are brought up to date when something happens, a quarter of a second after the last time.
    std::thread::sleep(Duration::from_millis(300));
    runtime()?.block_on(async {
        let mut client = second.endpoint()?.connect().await?;
        client.update(update("poked", FIELD, Operation::CounterAdd(1))).await?;
        Ok::<_, anyhow::Error>(())
    })?;
    std::thread::sleep(Duration::from_millis(50));
    let received = second.metric("edgefaas_cluster_bytes_received_total")?;
    let of_an_object = objects.map_or(0.0, |objects| received / objects as f64);
    Ok([joined, deployed, answered, of_an_object, most_memory])
}

/// Stops a node and starts it again.
fn again(
    plan: &Plan,
    member: Member,
    gently: bool,
    objects: Option<usize>,
    table: &mut Table,
    row: usize,
) -> anyhow::Result<Member> {
    let Member { node, data } = member;
    match gently {
        true => node.process.terminate()?,
        false => drop(node),
    }
    let begun = Instant::now();
    let member = start_again(plan, data)?;
    answer(&member, objects)?;
    let ready = member.node.process.ready_after.as_secs_f64() * 1e3;
    table.add(row, &[ready, begun.elapsed().as_secs_f64() * 1e3]);
    Ok(member)
}

fn start_again(plan: &Plan, data: TempDir) -> anyhow::Result<Member> {
    Member::start_again(&plan.binary, data)
}

/// Invokes the function, which reads the last object.
fn answer(member: &Member, objects: Option<usize>) -> anyhow::Result<()> {
    let (name, wanted) = match objects.and_then(|objects| objects.checked_sub(1)) {
        Some(last) => (object(last), count(last)),
        None => ("nothing".to_owned(), 0),
    };
    let mut client = Client::new(member.node.http);
    let value = invoke(&mut client, JS, &json!({ "do": "read", "object": name, "n": 1 }))?;
    ensure!(value == wanted, "`{name}` is {value} on a node that has been recovered, and not {wanted}");
    Ok(())
}

/// What a folder takes on the disk.
fn disk_bytes(folder: &Path) -> anyhow::Result<f64> {
    let mut bytes = 0.0;
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        // A file may have gone meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => (metadata.blocks() * 512) as f64,
        };
    }
    Ok(bytes)
}
