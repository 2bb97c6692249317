//! Power cuts and stateful objects: what was acknowledged of objects that are synced is there after any of them. See
//! `power.rs` for how a cut is made.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::load::Random;
use crate::power::{kill_traced, start_traced};
use crate::recording::Recording;
use crate::support::{PATIENCE, Running, edgefaas, free_port, has, look_again, skipped};

/// What a CI run has time for.
const CUTS: u64 = 8;
const CLUSTER_CUTS: u64 = 3;
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

/// All nodes of a cluster lose their power at the same moment: no node has what another one did after its own end.
#[test]
fn a_cluster_survives_a_power_cut_of_all_its_nodes() {
    if !has("strace", &["-V"]) {
        return skipped("strace");
    }
    let cuts =
        std::env::var("EDGEFAAS_POWER_CUTS").map_or(CLUSTER_CUTS, |cuts| cuts.parse().expect("a number"));
    let mut random = Random::seeded("EDGEFAAS_POWER_SEED");
    let home = tempfile::tempdir().unwrap();
    let ports = [(); 3].map(|()| free_port());
    let traced: Vec<Traced> = (ports.iter().enumerate())
        .map(|(number, port)| {
            let config = format!(
                "[store]\nsync_interval = \"1h\"\n[cluster]\nlisten = \"127.0.0.1:{port}\"\nmdns = false\n"
            );
            Traced::start(&home.path().join(format!("n{number}")), &config)
        })
        .collect();
    traced[0].ok(&["cluster", "init", "--name", "n0"]);
    for (number, node) in traced.iter().enumerate().skip(1) {
        let token = traced[0].ok(&["cluster", "token"]);
        node.ok(&["cluster", "join", token.trim(), "--name", &format!("n{number}")]);
    }
    let app = app(home.path(), "synced");
    for node in &traced {
        node.ok(&["deploy", app.to_str().unwrap()]);
    }
    let recordings = load_and_kill(traced);
    let acks: Vec<_> = recordings.iter().map(acknowledgements).collect();
    assert!(acks.iter().all(|acks| acks.len() > 20), "there was a load on all of them");
    let ends_us = recordings.iter().map(|recording| recording.time_us(recording.len() - 1));
    let end_us = ends_us.min().expect("three nodes");
    let mut checked = 0;
    for number in 0..cuts {
        let unsynced = number % 2 == 1;
        // Right after an acknowledgement of one of the nodes.
        let chosen = (number % 3) as usize;
        let times_us = acks[chosen].iter().map(|(at, _)| recordings[chosen].time_us(at - 1));
        let times_us: Vec<u64> = times_us.filter(|time| *time <= end_us).collect();
        let cut_us = times_us[random.below(times_us.len() as u64) as usize];
        let mut expected = BTreeSet::new();
        let mut nodes = Vec::new();
        for (node, (recording, acks)) in recordings.iter().zip(&acks).enumerate() {
            let at = recording.after_us(cut_us);
            println!(
                "cut {number}: n{node} at event {at} of {}, with unsynced writes: {unsynced}",
                recording.len()
            );
            expected.extend(acks.iter().filter(|(sent, _)| *sent <= at).map(|(_, number)| *number));
            let copy = home.path().join(format!("cut-{number}-{node}"));
            recording.restore(at, &copy, &mut random, unsynced);
            let listen = format!("127.0.0.1:{}", ports[node]);
            nodes.push(Running::start(&copy, &["--p2p", &listen]));
        }
        let archives = equal_archives(&nodes);
        println!("cut {number}: all have the same {archives} bytes");
        for node in &nodes {
            let found = numbers_of(node);
            let lost: Vec<_> = expected.difference(&found).collect();
            assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
            // Both are changed as one, and a node sends what it has kept.
            assert_eq!(sum_of(node), found.len() as u64, "what is counted and what is there");
        }
        checked += expected.len();
    }
    println!("{checked} acknowledged numbers over {cuts} cuts of three nodes, none was lost");
}

/// A node under strace.
struct Traced {
    child: Child,
    data: PathBuf,
    trace: PathBuf,
    http: String,
    control: String,
}

impl Drop for Traced {
    /// A test that fails leaves no node behind.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            kill_traced(&mut self.child, &self.trace);
        }
    }
}

impl Traced {
    fn start(home: &Path, config: &str) -> Self {
        std::fs::create_dir_all(home).unwrap();
        let (data, trace) = (home.join("data"), home.join("trace"));
        let (child, ready) = start_traced(&data, &trace, config);
        let word = |name: &str| {
            let found = ready.split_whitespace().find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in {ready:?}")).to_owned()
        };
        let (http, control) = (word("http=http://"), word("control="));
        Self { child, data, trace, http, control }
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output =
            edgefaas(&self.data).args(["--node", &self.control]).args(arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "edgefaas {arguments:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }
}

fn app(home: &Path, durability: &str) -> PathBuf {
    let app = home.join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("edgefaas.toml"), manifest(durability)).unwrap();
    std::fs::write(app.join("add.js"), SOURCE).unwrap();
    app
}

/// Runs a node under strace, adds numbers to an object by three clients, and kills it.
fn record(home: &Path, durability: &str) -> Recording {
    let app = app(home, durability);
    let node = Traced::start(home, "[store]\nsync_interval = \"1h\"\n");
    node.ok(&["deploy", app.to_str().unwrap()]);
    load_and_kill(vec![node]).remove(0)
}

/// Adds numbers on all of the nodes, by three clients each, and kills them; gives what each of them did.
fn load_and_kill(mut nodes: Vec<Traced>) -> Vec<Recording> {
    let finish = AtomicBool::new(false);
    let answered: Vec<_> = nodes.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for (node, (traced, answered)) in (0_u64..).zip(nodes.iter().zip(&answered)) {
            for client in 0..3_u64 {
                let (finish, http) = (&finish, traced.http.clone());
                scope.spawn(move || {
                    for number in (node * 3 + client) * 1_000_000.. {
                        // Cut off by the kill, or done.
                        if finish.load(Relaxed) || post(&http, number).is_err() {
                            return;
                        }
                        answered.fetch_add(1, Relaxed);
                    }
                });
            }
        }
        // A node that is traced takes its time to begin.
        let since = Instant::now();
        while answered.iter().any(|answered| answered.load(Relaxed) < 60) {
            assert!(since.elapsed() < PATIENCE, "{answered:?} answers");
            std::thread::yield_now();
        }
        std::thread::sleep(LOAD);
        for node in &mut nodes {
            kill_traced(&mut node.child, &node.trace);
        }
        finish.store(true, Relaxed);
    });
    let read = |node: &Traced| {
        Recording::read(&std::fs::read_to_string(&node.trace).expect("the trace"), &node.data)
    };
    nodes.iter().map(read).collect()
}

/// Waits until all nodes have the same objects, and gives how many bytes that is.
fn equal_archives(nodes: &[Running]) -> usize {
    let since = Instant::now();
    loop {
        let archives: Vec<_> =
            nodes.iter().map(|node| node.cli(&["objects", "export", "-"]).stdout).collect();
        if !archives[0].is_empty() && archives.windows(2).all(|pair| pair[0] == pair[1]) {
            return archives[0].len();
        }
        let sizes: Vec<_> = archives.iter().map(Vec::len).collect();
        assert!(since.elapsed() < PATIENCE, "the nodes still differ: archives of {sizes:?} bytes");
        look_again();
    }
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
    numbers_of(&Running::start(copy, &[]))
}

fn numbers_of(node: &Running) -> BTreeSet<u64> {
    let numbers = value(node, "numbers");
    numbers.map_or(BTreeSet::new(), |numbers| serde_json::from_value(numbers).expect("numbers"))
}

fn sum_of(node: &Running) -> u64 {
    value(node, "sum").map_or(0, |sum| sum.as_u64().expect("a number"))
}

/// A field of the object; none if nobody has written to it.
fn value(node: &Running, field: &str) -> Option<Value> {
    let output = node.cli(&["objects", "get", "field", "o", field, "-o", "json"]);
    match output.status.code() {
        Some(0) => {
            let state: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            Some(state["value"].clone())
        }
        Some(6) => None,
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}
