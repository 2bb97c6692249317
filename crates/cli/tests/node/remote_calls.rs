//! What is promised of invocations on other nodes, with nodes that are killed, stopped, cut off and full.

use std::path::Path;
use std::time::Duration;

use edgefaas_testnet::{Network, Topology, isolated};
use serde_json::{Value, json};

use crate::hosted::{HostedNode, Sent, set_policy, unite, write_app};
use crate::support::look_again;

const MANIFEST: &str = r#"
    app = "work"
    [functions.work]
    main = "work.js"
    placement = "south"
    limits = { timeout = "15s", memory = "32MiB" }
    permissions = { objects = ["done"] }
    [functions.short]
    main = "work.js"
    placement = "south"
    limits = { timeout = "1s", memory = "32MiB" }
    permissions = { objects = ["done"] }
    [functions.one]
    main = "work.js"
    placement = "south"
    limits = { timeout = "15s", memory = "32MiB", concurrency = 1, queue = { capacity = 1 } }
    permissions = { objects = ["done"] }
    [objects."*"]
    interval = "5ms"
"#;

/// Says that it has begun, waits (on the node `hangs_on` without end), and counts. A call with a key that was counted before is
/// one that ran twice.
const WORK: &str = r#"
    export default async function handler(event, context) {
        const { key, ms, hangs_on } = event.json();
        console.log(`begun ${key}`);
        await new Promise((done) => setTimeout(done, hangs_on === context.node.name ? 3_600_000 : ms));
        await context.object("done").counter(key).add(1);
        return key;
    }"#;

/// Only in the south, in the order of the names.
const SOUTH: &str = "south:\n  - workers: [{ set: south }]\n    strategy: best-first\n  - followup: fail\n";

/// An hour, for a function: it ends only by its time limit or by a cancellation.
const LONG: u64 = 3_600_000;

/// A node in the north, and nodes in the south that run its calls.
fn cluster<'a>(network: &'a Network, home: &Path, south: &[&str]) -> Vec<HostedNode<'a>> {
    let zone = |name: &str| if name == "n" { "north" } else { "south" };
    let start = |name: &str| HostedNode::start(network.host(name), home, &["--zone", zone(name)]);
    let nodes: Vec<_> = std::iter::once(&"n").chain(south).map(|name| start(name)).collect();
    unite(&nodes);
    let app = write_app(home, "app", &[("edgefaas.toml", MANIFEST), ("work.js", WORK)]);
    let deployed = nodes[0].json(&["deploy", &app, "--wait", "60s"]);
    for node in deployed["nodes"].as_array().expect("nodes") {
        assert_eq!(node["state"], "live", "{deployed:#}");
    }
    set_policy(&nodes[0], home, SOUTH);
    for node in &nodes {
        nodes.iter().filter(|other| other.name() != node.name()).for_each(|other| {
            node.wait_for_member(other.name());
        });
    }
    nodes
}

fn network(south: &[&str]) -> Network {
    Topology::new().zone("north", &["n"]).zone("south", south).build().expect("a network")
}

fn call(node: &HostedNode<'_>, function: &str, key: &str, ms: u64) -> Sent {
    call_with(node, function, "", key, ms)
}

fn call_with(node: &HostedNode<'_>, function: &str, headers: &str, key: &str, ms: u64) -> Sent {
    let body = json!({ "key": key, "ms": ms }).to_string();
    node.send("POST", &format!("/fn/{function}"), headers, &body)
}

/// How often calls with this key have taken effect, as a node knows.
fn effects(node: &HostedNode<'_>, key: &str) -> u64 {
    let output = node.cli(&["objects", "get", "work", "done", key, "-o", "json"]);
    let value: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    value.and_then(|value| value["value"].as_u64()).unwrap_or(0)
}

/// The answer of a durable invocation, whose acceptance has named its place.
fn outcome(node: &HostedNode<'_>, location: &str) -> (u16, String) {
    loop {
        let answer = node.send("GET", location, "", "").answer().expect("an answer");
        if answer.status != 202 {
            return (answer.status, answer.body);
        }
        look_again();
    }
}

/// Begins a durable invocation; gives the place of its outcome.
fn begin_durable(node: &HostedNode<'_>, function: &str, key: &str, ms: u64) -> String {
    begin_durable_with(node, function, &json!({ "key": key, "ms": ms }))
}

fn begin_durable_with(node: &HostedNode<'_>, function: &str, input: &Value) -> String {
    let path = format!("/fn/{function}");
    let accepted = node.send("POST", &path, "prefer: respond-async\r\n", &input.to_string());
    let accepted = accepted.answer().unwrap();
    assert_eq!(accepted.status, 202, "{accepted:?}");
    accepted.header("location").expect("a location").to_owned()
}

#[test]
fn a_remote_call_ends_within_its_limits() {
    isolated(|| {
        let network = network(&["s1", "s2"]);
        let home = tempfile::tempdir().unwrap();
        let nodes = cluster(&network, home.path(), &["s1", "s2"]);
        let [n, s1, _] = nodes.as_slice() else { unreachable!() };

        let answer = call(n, "work", "plain", 0).answer().unwrap();
        assert_eq!(
            (answer.status, answer.node(), answer.body.as_str()),
            (200, Some("s1"), "plain"),
            "{answer:?}"
        );

        // Its time limit, whatever the executing node does.
        let late = call(n, "short", "late", LONG).answer().unwrap();
        assert_eq!(late.status, 504, "{late:?}");
        assert!(late.after < Duration::from_secs(12), "{late:?}");
        assert_eq!(effects(s1, "late"), 0);

        // A caller that stops waiting.
        let given_up = call(n, "work", "given-up", LONG);
        s1.wait(&["nodes"], |nodes| nodes["status"]["load"]["running"] == 1);
        given_up.reset();
        s1.wait(&["nodes"], |nodes| nodes["status"]["load"]["running"] == 0);
        assert_eq!(effects(s1, "given-up"), 0);

        // A call that runs, one that waits, and one more: it goes to the next node.
        let running = call(n, "one", "running", LONG);
        s1.wait_log("one", "begun running");
        let queued = call(n, "one", "queued", LONG);
        s1.wait(&["nodes"], |nodes| nodes["status"]["load"]["queued"] == 1);
        let third = call(n, "one", "third", 0).answer().unwrap();
        assert_eq!((third.status, third.node()), (200, Some("s2")), "{third:?}");
        // Also if the full node is the one that the call came to.
        let there = call(s1, "one", "there", 0).answer().unwrap();
        assert_eq!((there.status, there.node()), (200, Some("s2")), "{there:?}");
        running.reset();
        queued.reset();

        // The same idempotency key, while the first call runs and afterwards.
        let key = "idempotency-key: twice\r\n";
        let (first, second) =
            (call_with(n, "work", key, "twice", 300), call_with(n, "work", key, "twice", 300));
        for answer in [first.answer(), second.answer(), call_with(n, "work", key, "twice", 300).answer()] {
            let answer = answer.unwrap();
            assert_eq!((answer.status, answer.body.as_str()), (200, "twice"), "{answer:?}");
        }
        assert_eq!(effects(s1, "twice"), 1);
    });
}

#[test]
fn the_executing_node_is_killed_in_the_middle_of_a_call() {
    isolated(|| {
        let network = network(&["s1", "s2"]);
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &["s1", "s2"]);
        // A durable call that has run, and whose outcome its entry node has lost, is in the test of the entry node.
        let (plain, durable) = {
            let [n, s1, _] = nodes.as_slice() else { unreachable!() };
            // It cannot end there before the kill, however late that comes.
            let input = json!({ "key": "durable", "ms": 0, "hangs_on": "s1" });
            let durable = begin_durable_with(n, "work", &input);
            s1.wait_log("work", "begun durable");
            let plain = call(n, "work", "plain", LONG);
            s1.wait_log("work", "begun plain");
            (plain, durable)
        };
        nodes[1].kill();
        let plain = plain.answer().unwrap();
        assert_eq!(plain.status, 502, "{plain:?}");
        assert!(plain.body.contains("Node lost") && plain.body.contains("s1"), "{plain:?}");
        assert!(plain.after < Duration::from_secs(15), "{plain:?}");
        let [n, _, s2] = nodes.as_slice() else { unreachable!() };
        assert_eq!(outcome(n, &durable), (200, "durable".to_owned()));
        assert!(s2.ok(&["logs", "work"]).contains("begun durable"));
        assert_eq!((effects(s2, "durable"), effects(s2, "plain")), (1, 0));

        // Without another node it is repeated after the restart.
        nodes[2].kill();
        nodes[1].up();
        let [n, s1, _] = nodes.as_slice() else { unreachable!() };
        n.wait_for_member("s1");
        n.wait_for_loss("s2");
        let durable = begin_durable(n, "work", "alone", 1_000);
        s1.wait_log("work", "begun alone");
        nodes[1].kill();
        nodes[1].up();
        let [n, s1, _] = nodes.as_slice() else { unreachable!() };
        assert_eq!(outcome(n, &durable), (200, "alone".to_owned()));
        assert_eq!(effects(s1, "alone"), 1);
    });
}

#[test]
fn the_entry_node_is_killed_in_the_middle_of_a_call() {
    isolated(|| {
        let network = network(&["s1"]);
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &["s1"]);
        let [n, s1] = nodes.as_slice() else { unreachable!() };
        let plain = call(n, "work", "plain", LONG);
        let durable = begin_durable(n, "work", "durable", 1_000);
        s1.wait_log("work", "begun durable");
        s1.wait_log("work", "begun plain");
        nodes[0].kill();
        assert!(plain.answer().is_none());
        // The call of a caller that is gone is cancelled; the durable one goes on and takes effect.
        let [_, s1] = nodes.as_slice() else { unreachable!() };
        s1.wait(&["nodes"], |nodes| nodes["status"]["load"]["running"] == 0);
        s1.wait(&["objects", "get", "work", "done", "durable"], |value| value["value"] == 1);
        nodes[0].up();
        let [n, s1] = nodes.as_slice() else { unreachable!() };
        // It is repeated, and the node that has run it answers again, without a second effect.
        assert_eq!(outcome(n, &durable), (200, "durable".to_owned()));
        assert_eq!((effects(s1, "durable"), effects(s1, "plain")), (1, 0));
        assert_eq!(s1.ok(&["logs", "work"]).matches("begun durable").count(), 1);
    });
}

#[test]
fn a_node_that_hangs_or_is_cut_off_costs_no_more_than_the_calls_on_it() {
    isolated(|| {
        let network = network(&["s1"]);
        let home = tempfile::tempdir().unwrap();
        let nodes = cluster(&network, home.path(), &["s1"]);
        let [n, s1] = nodes.as_slice() else { unreachable!() };
        let hung = call(n, "work", "hung", LONG);
        let durable = begin_durable(n, "work", "hung-durable", 500);
        s1.wait_log("work", "begun hung-durable");
        s1.wait_log("work", "begun hung\n");
        s1.signal("-STOP");
        let hung = hung.answer().unwrap();
        assert_eq!(hung.status, 502, "{hung:?}");
        assert!(hung.after < Duration::from_secs(15), "{hung:?}");
        // Nothing else may run these calls.
        let refused = call(n, "work", "refused", 0).answer().unwrap();
        assert_eq!(refused.status, 503, "{refused:?}");
        // It is known as lost, so that it is known as returned after this.
        n.wait_for_loss("s1");
        s1.signal("-CONT");
        n.wait_for_member("s1");
        assert_eq!(outcome(n, &durable), (200, "hung-durable".to_owned()));
        assert_eq!((effects(s1, "hung-durable"), effects(s1, "hung")), (1, 0));

        let cut = call(n, "work", "cut", LONG);
        let durable = begin_durable(n, "work", "cut-durable", 500);
        s1.wait_log("work", "begun cut-durable");
        s1.wait_log("work", "begun cut\n");
        network.link("s1").cut();
        let cut = cut.answer().unwrap();
        assert_eq!(cut.status, 502, "{cut:?}");
        assert!(cut.after < Duration::from_secs(15), "{cut:?}");
        // The other side goes on: it has finished the durable call, and cancelled the other one.
        s1.wait(&["objects", "get", "work", "done", "cut-durable"], |value| value["value"] == 1);
        s1.wait(&["nodes"], |nodes| nodes["status"]["load"]["running"] == 0);
        network.link("s1").restore();
        assert_eq!(outcome(n, &durable), (200, "cut-durable".to_owned()));
        assert_eq!((effects(s1, "cut-durable"), effects(s1, "cut")), (1, 0));
        assert_eq!(s1.ok(&["logs", "work"]).matches("begun cut-durable").count(), 1);
    });
}

#[test]
fn a_node_that_drains_finishes_its_calls_and_gets_no_more() {
    isolated(|| {
        let network = network(&["s1", "s2"]);
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &["s1", "s2"]);
        let [n, s1, _] = nodes.as_slice() else { unreachable!() };
        let running = call(n, "work", "running", 2_000);
        s1.wait_log("work", "begun running");
        s1.signal("-TERM");
        // Whether the node says so first, or refuses the first of them.
        let mut placed = Vec::new();
        while placed.last() != Some(&Some("s2".to_owned())) {
            let answer = call(n, "work", "next", 0).answer().unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            placed.push(answer.node().map(str::to_owned));
        }
        let running = running.answer().unwrap();
        assert_eq!((running.status, running.node()), (200, Some("s1")), "{running:?}");
        assert_eq!(nodes[1].ended(), Some(0));
        // Its changes reach the other nodes within the interval, or when it is back.
        nodes[1].up();
        assert_eq!(effects(&nodes[1], "running"), 1);
    });
}

#[test]
fn what_is_pending_is_placed_by_the_policy_also_after_a_restart() {
    isolated(|| {
        let network = network(&["s1"]);
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &["s1"]);
        nodes[1].kill();
        nodes[0].wait_for_loss("s1");
        let keys: Vec<_> = (0..8).map(|number| format!("pending-{number}")).collect();
        let places: Vec<_> = keys.iter().map(|key| begin_durable(&nodes[0], "work", key, 0)).collect();
        for _ in 0..3 {
            nodes[0].kill();
            nodes[0].up();
            // Once it answers, what is pending may begin.
            let refused = call(&nodes[0], "work", "not-here", 0).answer().expect("an answer");
            assert_eq!(refused.status, 503, "{refused:?}");
        }
        nodes[1].up();
        for (key, place) in keys.iter().zip(&places) {
            assert_eq!(outcome(&nodes[0], place), (200, key.clone()));
            let answer = nodes[0].send("GET", place, "", "").answer().expect("an answer");
            assert_eq!(answer.node(), Some("s1"), "{answer:?}");
            assert_eq!(effects(&nodes[1], key), 1, "{key}");
        }
        assert_eq!(effects(&nodes[1], "not-here"), 0);
    });
}
