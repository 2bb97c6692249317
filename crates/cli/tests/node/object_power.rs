//! Power cuts and stateful objects: what was acknowledged of objects that are synced is there after any of them. See
//! `power.rs` for how a cut is made.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::load::Random;
use crate::power::{kill_traced, start_traced};
use crate::recording::Recording;
use crate::support::{PATIENCE, Running, edgefaas, has, skipped};

/// What a CI run has time for.
const CUTS: u64 = 8;
/// How long the load is recorded.
const LOAD: Duration = Duration::from_millis(300);

const SOURCE: &str = r#"
    export default async function handler(event, context) {
        const number = event.json();
        await context.object("o").set("numbers").add(number);
        await context.object("o").counter("sum").add(1);
        return `added ${number}.`;
    }"#;

fn manifest(durability: &str) -> String {
    format!(
        r#"
        app = "field"
        [functions.add]
        main = "add.js"
        permissions = {{ objects = ["*"] }}
        [objects."*"]
        durability = "{durability}"
        "#
    )
}

#[test]
fn synced_objects_survive_a_power_cut() {
    if !has("strace", &["-V"]) {
        return skipped("strace");
    }
    let cuts = std::env::var("EDGEFAAS_POWER_CUTS").map_or(CUTS, |cuts| cuts.parse().expect("a number"));
    let mut random = Random::seeded("EDGEFAAS_POWER_SEED");
    let home = tempfile::tempdir().unwrap();
    let recording = record(home.path(), "synced");
    let acks = acknowledgements(&recording);
    assert!(acks.len() > 20, "there was a load: {}", acks.len());
    let mut checked = 0;
    for number in 0..cuts {
        let (at, _) = acks[random.below(acks.len() as u64) as usize];
        let unsynced = number % 2 == 1;
        let copy = home.path().join(format!("cut-{number}"));
        recording.restore(at, &copy, &mut random, unsynced);
        let expected: BTreeSet<u64> =
            acks.iter().filter(|(sent, _)| *sent <= at).map(|(_, n)| *n).collect();
        println!("cut {number} at event {at} of {}, with unsynced writes: {unsynced}", recording.len());
        let found = numbers(&copy);
        let lost: Vec<_> = expected.difference(&found).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        checked += expected.len();
        std::fs::remove_dir_all(&copy).unwrap();
    }
    println!("{checked} acknowledged numbers over {cuts} cuts, none was lost");
}

/// Without this the test above would show nothing.
#[test]
fn a_power_cut_costs_objects_that_are_only_written() {
    if !has("strace", &["-V"]) {
        return skipped("strace");
    }
    let mut random = Random::seeded("EDGEFAAS_POWER_SEED");
    let home = tempfile::tempdir().unwrap();
    let recording = record(home.path(), "written");
    let acks = acknowledgements(&recording);
    let (at, _) = *acks.last().expect("there was a load");
    let copy = home.path().join("cut");
    recording.restore(at, &copy, &mut random, false);
    let expected: BTreeSet<u64> = acks.iter().map(|(_, number)| *number).collect();
    let found = numbers(&copy);
    assert!(expected.difference(&found).next().is_some(), "nothing of {} is lost", expected.len());
}

/// Runs a node under strace, adds numbers to an object by three clients, and kills it.
fn record(home: &Path, durability: &str) -> Recording {
    let (data, trace, app) = (home.join("data"), home.join("trace"), home.join("app"));
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("edgefaas.toml"), manifest(durability)).unwrap();
    std::fs::write(app.join("add.js"), SOURCE).unwrap();
    let (mut child, ready) = start_traced(&data, &trace, "[store]\nsync_interval = \"1h\"\n");
    let word =
        |name: &str| ready.split_whitespace().find_map(|word| word.strip_prefix(name)).expect("an address");
    let (http, control) = (word("http=http://"), word("control="));
    let deployed = edgefaas(&data).args(["--node", control, "deploy"]).arg(&app).output().expect("it runs");
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let finish = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..3_u64 {
            let (finish, answered) = (&finish, &answered);
            scope.spawn(move || {
                for number in client * 1_000_000.. {
                    // Cut off by the kill, or done.
                    if finish.load(Relaxed) || post(http, number).is_err() {
                        return;
                    }
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        // A node that is traced takes its time to begin.
        let since = Instant::now();
        while answered.load(Relaxed) < 60 {
            assert!(since.elapsed() < PATIENCE, "{} answers", answered.load(Relaxed));
            std::thread::yield_now();
        }
        std::thread::sleep(LOAD);
        kill_traced(&mut child, &trace);
        finish.store(true, Relaxed);
    });
    let text = std::fs::read_to_string(&trace).expect("the trace");
    Recording::read(&text, &data)
}

fn post(http: &str, number: u64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(http)?;
    let body = number.to_string();
    let head = format!(
        "POST /fn/add HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes())?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Every number that was said to be added, and when that was sent.
fn acknowledgements(recording: &Recording) -> Vec<(usize, u64)> {
    let number = |bytes: &[u8]| -> Option<u64> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (_, rest) = text.rsplit_once("\r\nadded ").or_else(|| text.rsplit_once("added "))?;
        rest.split_once('.')?.0.parse().ok()
    };
    recording.sent().into_iter().filter_map(|(at, _, bytes)| Some((at, number(&bytes)?))).collect()
}

/// The numbers that a node has that starts from this copy.
fn numbers(copy: &Path) -> BTreeSet<u64> {
    let node = Running::start(copy, &[]);
    let output = node.cli(&["objects", "get", "field", "o", "numbers", "-o", "json"]);
    match output.status.code() {
        Some(0) => {
            let state: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            serde_json::from_value(state["value"].clone()).expect("numbers")
        }
        // Not one was there yet.
        Some(6) => BTreeSet::new(),
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}
