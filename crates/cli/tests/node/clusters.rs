//! Clusters of nodes in processes of their own: killed all at once, cut off from one another, on a slow and lossy network.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engine_code;
use crate::network::{Conditions, Network};
use crate::support::{PATIENCE, edgefaas, free_port, look_again};

/// What a function adds, and that it says so only once it is committed.
const SOURCE: &str = r#"
    export default async function handler(event, context) {
        const { set, elements } = event.json();
        const o = context.object("o");
        for (const element of elements) {
            await o.set(set).add(element);
            await o.counter("all").add(1);
        }
        return { elements };
    }"#;
const MANIFEST: &str = r#"
    app = "field"
    [functions.add]
    main = "add.js"
    permissions = { objects = ["*"] }
    [objects."*"]
    interval = "5ms"
"#;

/// A node of a cluster, perhaps in a network of its own.
struct Member {
    child: Option<Child>,
    dir: PathBuf,
    network: Option<String>,
    p2p: String,
    control: String,
    name: String,
    /// Further options of `run`.
    options: Vec<&'static str>,
}

impl Member {
    fn start(dir: PathBuf, network: Option<String>, p2p: String, name: &str) -> Self {
        Self::start_with(Vec::new(), dir, network, p2p, name)
    }

    fn start_with(
        options: Vec<&'static str>,
        dir: PathBuf,
        network: Option<String>,
        p2p: String,
        name: &str,
    ) -> Self {
        let (control, name) = (String::new(), name.to_owned());
        let mut member = Self { child: None, dir, network, p2p, control, name, options };
        member.up();
        member
    }

    /// The binary with these arguments, where the node is.
    fn command(&self) -> Command {
        let plain = edgefaas(&self.dir);
        let Some(network) = &self.network else { return plain };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", network]).arg(plain.get_program()).stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn up(&mut self) {
        engine_code::give(&self.dir);
        let any = "127.0.0.1:0";
        let mut child = self
            .command()
            .args(["run", "--http", any, "--mqtt", any, "--control", any, "--p2p", &self.p2p])
            .args(&self.options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
        let control = ready.split_whitespace().find_map(|word| word.strip_prefix("control="));
        self.control = control.unwrap_or_else(|| panic!("no control in {ready:?}")).to_owned();
        self.child = Some(child);
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it was alive");
            child.wait().expect("it ends");
        }
    }

    fn cli(&self, args: &[&str]) -> Output {
        self.command().args(["--node", &self.control]).args(args).output().expect("it runs")
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: edgefaas {args:?}: {stderr}", self.name);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Adds elements to a set; false if the node did not say that it has.
    fn add(&self, set: &str, elements: &[u64]) -> bool {
        let data = json!({ "set": set, "elements": elements }).to_string();
        self.cli(&["invoke", "add", "-d", &data]).status.success()
    }

    /// All objects, as they are written into an archive: equal bytes for equal states.
    fn archive(&self) -> Vec<u8> {
        let output = self.cli(&["objects", "export", "-"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// The answer of `edgefaas nodes` that `wanted` accepts.
    fn nodes(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let nodes: Value = serde_json::from_str(&self.ok(&["nodes", "-o", "json"])).expect("JSON");
            if wanted(&nodes) {
                return nodes;
            }
            assert!(since.elapsed() < PATIENCE, "{}: {nodes:#}", self.name);
            look_again();
        }
    }

    fn elements(&self, set: &str) -> BTreeSet<u64> {
        let text = self.ok(&["objects", "get", "field", "o", set, "-o", "json"]);
        let state: Value = serde_json::from_str(&text).expect("JSON");
        serde_json::from_value(state["value"].clone()).expect("a set of numbers")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes a cluster of these nodes, with the app on each.
fn unite(members: &[Member], home: &Path) {
    let app = home.join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("edgefaas.toml"), MANIFEST).unwrap();
    std::fs::write(app.join("add.js"), SOURCE).unwrap();
    members[0].ok(&["cluster", "init", "--name", &members[0].name]);
    for member in &members[1..] {
        let token = members[0].ok(&["cluster", "token"]);
        member.ok(&["cluster", "join", token.trim(), "--name", &member.name]);
    }
    for member in members {
        member.ok(&["deploy", app.to_str().unwrap()]);
    }
}

/// Adds to every node in turns until `stop`; says when something is acknowledged, and gives what was, by node.
fn load(members: &[Member], round: u64, begun: &AtomicBool, stop: &AtomicBool) -> Vec<BTreeSet<u64>> {
    let one = |(number, member): (usize, &Member)| {
        let mut acknowledged = BTreeSet::new();
        let mut next = round * 1_000_000;
        while !stop.load(Relaxed) {
            let elements: Vec<u64> = (next..next + 20).collect();
            next += 20;
            if member.add(&format!("s{number}"), &elements) {
                acknowledged.extend(elements);
                begun.store(true, Relaxed);
            }
        }
        acknowledged
    };
    std::thread::scope(|scope| {
        let running: Vec<_> =
            members.iter().enumerate().map(|each| scope.spawn(move || one(each))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits until all nodes have the same, byte for byte, and gives how long that took.
fn settle(members: &[Member]) -> Duration {
    let since = Instant::now();
    loop {
        let archives: Vec<_> = members.iter().map(Member::archive).collect();
        if archives.windows(2).all(|pair| pair[0] == pair[1]) {
            return since.elapsed();
        }
        let sizes: Vec<_> = archives.iter().map(Vec::len).collect();
        assert!(since.elapsed() < PATIENCE, "the nodes still differ: archives of {sizes:?} bytes");
        look_again();
    }
}

fn check(members: &[Member], acknowledged: &[BTreeSet<u64>]) {
    for (number, expected) in acknowledged.iter().enumerate() {
        for member in members {
            let found = member.elements(&format!("s{number}"));
            let lost: Vec<_> = expected.difference(&found).collect();
            assert!(lost.is_empty(), "{}: acknowledged by n{number} and lost: {lost:?}", member.name);
        }
    }
    let count: usize = acknowledged.iter().map(BTreeSet::len).sum();
    println!("{count} acknowledged elements, none was lost");
    assert!(count > 0);
}

#[test]
fn members_know_zone_labels_and_load_of_each_other() {
    let home = tempfile::tempdir().unwrap();
    let options = ["--zone", "east", "--label", "floor=2", "--label", "camera"];
    let at = |number: u32| (home.path().join(format!("n{number}")), format!("127.0.0.1:{}", free_port()));
    let ((first, first_p2p), (second, second_p2p)) = (at(0), at(1));
    let mut members = vec![
        Member::start_with(options.to_vec(), first, None, first_p2p, "n0"),
        Member::start(second, None, second_p2p, "n1"),
    ];
    unite(&members, home.path());
    let known = members[1].nodes(|nodes| {
        let status = &nodes["members"][0]["status"];
        status["zone"] == "east" && !status["load"].is_null() && status["apps"][0]["state"] == "live"
    });
    let status = &known["members"][0]["status"];
    assert_eq!(status["labels"], json!(["camera", "floor=2"]));
    assert_eq!(status["zone_is_measured"], false);
    assert_eq!(status["apps"][0]["name"], "field");
    assert_eq!(status["load"]["readiness"], "ready");
    assert!(status["load"]["memory_total_bytes"].as_u64().unwrap() > 0);
    assert!(status["load"]["isolates_total"].as_u64().unwrap() > 0);
    // Both are on one machine, so the other joins the configured zone.
    let measured = |status: &Value| status["zone"] == "east" && status["zone_is_measured"] == true;
    members[1].nodes(|nodes| measured(&nodes["status"]));
    members[0].nodes(|nodes| measured(&nodes["members"][0]["status"]));
    assert!(members[1].ok(&["nodes"]).contains("~east"));
    assert!(members[1].ok(&["nodes", "n0"]).contains("camera floor=2"));

    members[0].kill();
    let away = members[1].nodes(|nodes| nodes["members"][0]["peer"].is_null());
    let status = members[1].nodes(|nodes| nodes["members"][0]["status"]["load"].is_null());
    assert_eq!(status["members"][0]["status"]["zone"], "east", "{away}");
    assert!(status["members"][0]["away_ms"].is_u64(), "{status}");
}

#[test]
fn nothing_acknowledged_is_lost_when_all_nodes_are_killed_at_once() {
    let home = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = (0..3)
        .map(|number| {
            let name = format!("n{number}");
            Member::start(home.path().join(&name), None, format!("127.0.0.1:{}", free_port()), &name)
        })
        .collect();
    unite(&members, home.path());
    let mut acknowledged = vec![BTreeSet::new(); 3];
    for round in 0..3 {
        let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let ids: Vec<_> =
            members.iter().map(|member| member.child.as_ref().unwrap().id().to_string()).collect();
        let added = std::thread::scope(|scope| {
            let killing = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(700));
                // On a busy machine nothing may be acknowledged by then.
                let until = Instant::now() + PATIENCE;
                while !begun.load(Relaxed) && Instant::now() < until {
                    look_again();
                }
                Command::new("kill").arg("-KILL").args(&ids).status().expect("kill runs");
                stop.store(true, Relaxed);
            });
            let added = load(&members, round, &begun, &stop);
            killing.join().unwrap();
            added
        });
        for (all, more) in acknowledged.iter_mut().zip(added) {
            all.extend(more);
        }
        for member in &mut members {
            member.child.take().unwrap().wait().unwrap();
            member.up();
        }
        println!("round {round}: equal {:?} after the start", settle(&members));
        check(&members, &acknowledged);
    }
}

/// `EDGEFAAS_CUT_SECONDS` says for how long, and `EDGEFAAS_CLUSTER_NODES` of how many nodes one is cut off.
#[test]
fn nodes_on_a_bad_network_agree_after_one_was_cut_off() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let (cut_s, count) = (number("EDGEFAAS_CUT_SECONDS", 7), number("EDGEFAAS_CLUSTER_NODES", 3) as usize);
    let conditions = Conditions {
        delay: Duration::from_millis(75),
        jitter: Duration::from_millis(10),
        lost_per_mille: 20,
    };
    let Some(network) = Network::make(count, conditions) else {
        eprintln!("skipped: this system does not let us make networks (`ip netns add`, /dev/net/tun)");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let members: Vec<_> = (0..count)
        .map(|number| {
            let name = format!("n{number}");
            let namespace = Some(network.namespace(number).to_owned());
            let p2p = format!("{}:7071", Network::ip_of(number));
            Member::start(home.path().join(&name), namespace, p2p, &name)
        })
        .collect();
    unite(&members, home.path());
    let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let acknowledged = std::thread::scope(|scope| {
        let cutting = scope.spawn(|| {
            network.cut(1, true);
            std::thread::sleep(Duration::from_secs(cut_s));
            network.cut(1, false);
            stop.store(true, Relaxed);
        });
        let acknowledged = load(&members, 0, &begun, &stop);
        cutting.join().unwrap();
        acknowledged
    });
    let took = settle(&members);
    let (passed, lost) = network.frames();
    println!("{count} nodes, {conditions:?}: {passed} frames arrived, {lost} got lost");
    println!("cut off for {cut_s} s; equal {took:?} after");
    check(&members, &acknowledged);
    assert!(lost > 0 && passed > 1000, "the network was bad: {lost} frames of {passed} got lost");
}
