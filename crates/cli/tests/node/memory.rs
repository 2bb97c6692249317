//! A node in a control group with little memory: it refuses what does not fit, and is never killed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::durable::eventually;
use crate::load::Connection;
use crate::support::{Running, skipped};

/// A control group with a memory limit, removed when it is dropped.
pub struct Group {
    folder: PathBuf,
    is_v2: bool,
}

impl Group {
    /// Below the group of this process; none if the machine has no memory controller or the process not the right.
    pub fn make(name: &str, limit_bytes: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = |start: &str| {
            own.lines().find_map(|line| line.split_once(start).map(|(_, path)| path.to_owned()))
        };
        let (parent, is_v2) = match group(":memory:") {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), false),
            None => (format!("/sys/fs/cgroup{}", group("0::")?), true),
        };
        let folder = Path::new(&parent).join(format!("edgefaas-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let group = Self { folder, is_v2 };
        let limit = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        std::fs::write(group.folder.join(limit), limit_bytes.to_string()).ok()?;
        Some(group)
    }

    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Processes that the kernel killed because the limit was reached.
    pub fn killed(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(self.folder.join(file)).expect("the group exists");
        let killed =
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("the kernel counts");
        killed.parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        // The kernel lets go of the group of an ended process after a moment.
        while std::fs::remove_dir(&self.folder).is_err() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

/// Keeps so many MiB for a second.
const HUNGRY: &str = r#"
export default (event) => {
    const block = new Uint8Array(Number(event.text()) << 20);
    const end = Date.now() + 1000;
    let pages = 0;
    do {
        for (let at = 0; at < block.length; at += 4096) block[at] = pages++;
    } while (Date.now() < end);
    return "filled";
};
"#;

const MANIFEST: &str = r#"
app = "memory"
[functions.hungry]
main = "hungry.js"
limits = { timeout = "6s" }
[functions.small]
main = "small.js"
"#;

/// How the calls of hungry functions ended, and what else went on meanwhile.
#[derive(Default)]
struct Seen {
    filled: AtomicUsize,
    refused: AtomicUsize,
    round_trips: AtomicUsize,
    small: AtomicUsize,
}

/// Calls a function that fills `fill_mib` from 24 clients at the same time, beside `devices` connected MQTT clients.
fn holds_out(limit_mib: u64, fill_mib: u32, devices: usize) {
    let home = tempfile::tempdir().unwrap();
    let Some(group) = Group::make(&format!("{limit_mib}"), limit_mib << 20) else {
        return skipped("the right to make a control group with a memory limit (root)");
    };
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    for (name, text) in
        [("edgefaas.toml", MANIFEST), ("hungry.js", HUNGRY), ("small.js", "export default () => 'small';")]
    {
        std::fs::write(app.join(name), text).unwrap();
    }
    let any = ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--control", "127.0.0.1:0"];
    let mut node = Running::start_within(&group.procs(), &home.path().join("data"), &any);
    let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "-o", "json"])).unwrap();
    let memory = &status["memory"];
    assert_eq!(memory["limit_bytes"], limit_mib << 20, "{memory}");
    let source = memory["limit_source"].as_str().unwrap();
    assert!(source.starts_with(group.folder.to_str().unwrap()), "{memory}");
    let planned: u64 =
        memory["budgets_bytes"].as_object().unwrap().values().filter_map(|bytes| bytes.as_u64()).sum();
    assert!(planned <= limit_mib << 20, "{memory}");

    node.ok(&["deploy", app.to_str().unwrap()]);
    // Where little is left, the node may ask to try again until it has back what the deploy took.
    eventually("the function runs after its deploy", || {
        let answer = node.http("POST", "/fn/hungry", &fill_mib.to_string());
        assert!(matches!(answer.0, 200 | 503), "{answer:?}");
        answer == (200, "filled".into())
    });
    let idle: Vec<_> = (0..devices)
        .map(|number| Connection::open(&node.mqtt_port, &format!("device-{number}"), true).unwrap())
        .collect();
    let (seen, over) = (Seen::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let hungry: Vec<_> = (0..24).map(|_| scope.spawn(|| call_hungry(&node, fill_mib, &seen))).collect();
        scope.spawn(|| {
            while !over.load(Relaxed) {
                assert_eq!(node.http("POST", "/fn/small", ""), (200, "small".into()));
                seen.small.fetch_add(1, Relaxed);
            }
        });
        scope.spawn(|| {
            let mut device = Connection::open(&node.mqtt_port, "echo", true).unwrap();
            device.subscribe("echo", 0).unwrap();
            while !over.load(Relaxed) {
                device.publish(2, "echo", 1, b"ping").unwrap();
                // The acknowledgement and the message, in any order.
                for _ in 0..2 {
                    device.receive_within(Duration::from_secs(30)).unwrap().expect("the broker answers");
                }
                seen.round_trips.fetch_add(1, Relaxed);
            }
        });
        let ended: Vec<_> = hungry.into_iter().map(|client| client.join()).collect();
        over.store(true, Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("every call was answered as it should be"));
    });
    assert!(node.is_alive());
    assert_eq!(group.killed(), 0, "the kernel killed a process");
    let [filled, refused, round_trips, small] =
        [&seen.filled, &seen.refused, &seen.round_trips, &seen.small].map(|count| count.load(Relaxed));
    println!(
        "{limit_mib} MiB: {filled} filled, {refused} refused, {round_trips} round trips, {small} small calls"
    );
    assert!(filled > 0 && refused > 0, "{filled} filled, {refused} refused");
    assert!(round_trips > 10 && small > 10, "{round_trips} round trips, {small} small calls");
    drop(idle);
    assert_eq!(node.terminate(), Some(0));
}

fn call_hungry(node: &Running, fill_mib: u32, seen: &Seen) {
    for _ in 0..2 {
        let (head, body) = node.exchange("POST", "/fn/hungry", &fill_mib.to_string());
        match head.split(' ').nth(1) {
            Some("200") => seen.filled.fetch_add(1, Relaxed),
            Some("503") => {
                assert!(head.to_lowercase().contains("retry-after: "), "{head}");
                assert!(body.contains("No memory for functions"), "{body}");
                seen.refused.fetch_add(1, Relaxed)
            }
            _ => panic!("{head}\n{body}"),
        };
    }
}

#[test]
fn a_node_with_128_mib_is_not_killed_by_hungry_functions() {
    holds_out(128, 24, 100);
}

#[test]
fn a_node_with_256_mib_is_not_killed_by_hungry_functions() {
    holds_out(256, 40, 500);
}

#[test]
fn a_node_with_512_mib_is_not_killed_by_hungry_functions() {
    holds_out(512, 40, 500);
}
