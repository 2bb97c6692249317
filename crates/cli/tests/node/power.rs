//! Power cuts: `kill -9` keeps what the operating system has, so here a node starts from what a disk would have.
//!
//! A node runs under strace, which records what it does to its data directory and what it sends. Then the directory is
//! made again as of many points in time: mostly right after an acknowledgement began to leave, where the least is
//! synced, with nothing that was not synced, or with some of it, the last write torn. Each time a node starts from it, and
//! every message that was acknowledged by then has to come, in order, and once. `recording.rs` says what is assumed of
//! the disk; the claim is as wide as that model.
//!
//! `EDGEFAAS_POWER_CUTS` says how many points are tried, `EDGEFAAS_POWER_SEED` repeats a choice of them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::load::{Publisher, Random, Subscriber};
use crate::recording::{CALLS, Recording};
use crate::support::{PATIENCE, Running, has, look_again, skipped};

/// What a CI run has time for.
const CUTS: u64 = 16;
/// How long the load is recorded.
const LOAD: Duration = Duration::from_millis(700);

#[test]
fn acknowledged_messages_survive_a_power_cut() {
    if !has("strace", &["-V"]) {
        return skipped("strace");
    }
    let cuts = std::env::var("EDGEFAAS_POWER_CUTS").map_or(CUTS, |cuts| cuts.parse().expect("a number"));
    let mut random = Random::seeded("EDGEFAAS_POWER_SEED");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let trace = home.path().join("trace");
    let (publishers, recording) = record(&data, &trace, "", 11);
    let acks = recording.sent();
    assert!(recording.syncs() > 10 && acks.len() > 20, "there was a load, and it was synced");
    let mut acknowledged = 0;
    for number in 0..cuts {
        // Right after something was sent, or anywhere.
        let at = match number % 4 {
            3 => acks[0].0 + random.below((recording.len() - acks[0].0) as u64) as usize,
            _ => acks[random.below(acks.len() as u64) as usize].0,
        };
        let unsynced = number % 2 == 1;
        let copy = home.path().join(format!("cut-{number}"));
        recording.restore(at, &copy, &mut random, unsynced);
        let sent = acks.iter().filter(|(sent_at, _, _)| *sent_at <= at);
        let sent: Vec<(&str, &[u8])> = sent.map(|(_, socket, bytes)| (&socket[..], &bytes[..])).collect();
        println!("cut {number} at event {at} of {}, with unsynced writes: {unsynced}", recording.len());
        let (count, lost) = check_cut(&copy, &publishers, &sent);
        assert!(lost.is_empty(), "acknowledged and lost: {lost:#?}");
        acknowledged += count;
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(acknowledged > 0, "something was acknowledged before the cuts");
    println!("{acknowledged} acknowledged messages over {cuts} cuts, none was lost");
}

/// Without this the test above would show nothing: where acknowledgements don't wait for the disk, cuts are seen to cost
/// messages.
#[test]
fn a_power_cut_costs_messages_that_did_not_wait_for_the_disk() {
    if !has("strace", &["-V"]) {
        return skipped("strace");
    }
    let mut random = Random::seeded("EDGEFAAS_POWER_SEED");
    let home = tempfile::tempdir().unwrap();
    let config = "[broker]\nsync = \"never\"\n[store]\nsync_interval = \"1h\"\n";
    let (data, trace) = (home.path().join("data"), home.path().join("trace"));
    let (publishers, recording) = record(&data, &trace, config, 0);
    let acks = recording.sent();
    let (at, _, _) = acks.last().expect("there was a load");
    let sent: Vec<(&str, &[u8])> =
        acks.iter().map(|(_, socket, bytes)| (&socket[..], &bytes[..])).collect();
    let copy = home.path().join("cut");
    recording.restore(*at, &copy, &mut random, false);
    let (count, lost) = check_cut(&copy, &publishers, &sent);
    assert!(count > 0 && !lost.is_empty(), "{count} acknowledged, and nothing is lost");
}

/// A node with this configuration under strace, and what it said when it was ready.
pub fn start_traced(data: &Path, trace: &Path, config: &str) -> (Child, String) {
    let any = "127.0.0.1:0";
    let config_file = trace.with_extension("toml");
    std::fs::write(&config_file, config).unwrap();
    let mut child = Command::new("strace")
        .args(["-f", "-qq", "--seccomp-bpf", "-ttt", "-yy", "-xx", "-s", "4000000", "-e"])
        .arg(format!("trace={CALLS}"))
        .arg("-o")
        .arg(trace)
        .arg(env!("CARGO_BIN_EXE_edgefaas"))
        .args(["run", "--http", any, "--mqtt", any, "--control", any, "--data-dir"])
        .arg(data)
        .arg("--config")
        .arg(&config_file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("strace starts");
    let mut ready = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
    (child, ready)
}

/// Runs a node with this configuration under strace and a load on it, until it is killed: not before it has synced so often.
fn record(data: &Path, trace: &Path, config: &str, syncs: usize) -> (Vec<Publisher>, Recording) {
    let (mut child, ready) = start_traced(data, trace, config);
    let mqtt = ready.split_whitespace().find_map(|word| word.strip_prefix("mqtt=mqtt://"));
    let port = mqtt.and_then(|address| address.rsplit_once(':')).expect("a port").1.to_owned();
    Subscriber::default().run(&port, |_| true).expect("it subscribes");
    // Packet identifiers say whose message was acknowledged.
    let mut publishers = vec![
        Publisher::new("once", 2, false).with_ids(1, 20_000),
        Publisher::new("at-least", 1, true).with_ids(20_001, 20_000),
        Publisher::new("more", 1, false).with_ids(40_001, 20_000),
    ];
    let finish = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for publisher in &mut publishers {
            let (port, finish) = (&port, &finish);
            // It may be cut off by the kill, or be done before.
            scope.spawn(move || publisher.run(port, finish));
        }
        std::thread::sleep(LOAD);
        // A node that is traced takes its time on a busy machine. What it has not done in the end, the test says.
        let since = Instant::now();
        let has_load = |so_far: &Recording| so_far.syncs() >= syncs && so_far.sent().len() > 20;
        while !has_load(&Recording::read(&whole_lines(trace), data)) && since.elapsed() < PATIENCE {
            look_again();
        }
        kill_traced(&mut child, trace);
        finish.store(true, Relaxed);
    });
    let text = std::fs::read_to_string(trace).expect("the trace");
    (publishers, Recording::read(&text, data))
}

/// What strace has written, without a line that it is writing.
fn whole_lines(trace: &Path) -> String {
    let mut text = std::fs::read_to_string(trace).expect("the trace");
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    text
}

/// `kill -9` of the node itself; strace ends with it.
pub fn kill_traced(child: &mut Child, trace: &Path) {
    let text = std::fs::read_to_string(trace).expect("the trace");
    let node = text.split(' ').next().expect("the first thread");
    assert!(Command::new("kill").args(["-9", node]).status().expect("kill runs").success());
    child.wait().expect("it ends");
}

/// Starts a node from the copy and holds what it still delivers against what was acknowledged: how much that was, and
/// what of it did not come.
fn check_cut(copy: &Path, publishers: &[Publisher], sent: &[(&str, &[u8])]) -> (usize, Vec<String>) {
    let (subscribed, acknowledged) = acknowledgements(sent);
    let node = Running::start(copy, &[]);
    if !subscribed {
        return (0, Vec::new());
    }
    let missing = |publisher: &Publisher, got: &[u32]| -> Vec<u32> {
        let numbers = acknowledged.iter().filter(|id| publisher.sent(**id)).map(|id| publisher.number(*id));
        numbers.filter(|number| got.binary_search(number).is_err()).collect()
    };
    let all = |subscriber: &Subscriber| {
        let is_here = |of: &Publisher| missing(of, &subscriber.numbers(&of.topic())).is_empty();
        publishers.iter().all(is_here)
    };
    let mut subscriber = Subscriber::resumed();
    let mut lost = Vec::new();
    let quiet = Duration::from_millis(300);
    if !subscriber.run_until_quiet(&node.mqtt_port, quiet, all).expect("it stays connected") {
        lost.push("the subscriber's session".to_owned());
    }
    for publisher in publishers {
        let got = subscriber.numbers(&publisher.topic());
        assert!(got.is_sorted_by(|one, next| one < next), "{}: {got:?} in order, once", publisher.name);
        let missing = missing(publisher, &got).into_iter();
        lost.extend(missing.map(|number| format!("{} {number} of {}", publisher.name, got.len())));
    }
    (acknowledged.len(), lost)
}

/// Whether a SUBACK was sent, and the identifiers of all PUBACKs and PUBRECs.
fn acknowledgements(sent: &[(&str, &[u8])]) -> (bool, Vec<u16>) {
    let mut by_socket: Vec<(&str, Vec<u8>)> = Vec::new();
    for (socket, bytes) in sent {
        match by_socket.iter_mut().find(|(of, _)| of == socket) {
            Some((_, all)) => all.extend(*bytes),
            None => by_socket.push((socket, bytes.to_vec())),
        }
    }
    let (mut subscribed, mut ids) = (false, Vec::new());
    for (_, bytes) in by_socket {
        let mut rest = &bytes[..];
        // All that the node sends here is short. What is cut off at the end was not received either.
        while let [first_byte, length, after @ ..] = rest
            && let Some((body, after)) = after.split_at_checked(usize::from(*length))
        {
            match first_byte {
                0x90 => subscribed = true,
                0x40 | 0x50 => ids.push(u16::from_be_bytes([body[0], body[1]])),
                _ => {}
            }
            rest = after;
        }
    }
    (subscribed, ids)
}
