//! Placement of real nodes by the data that they hold, and by the key of a call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use edgefaas_testnet::{Conditions, Topology, isolated};
use serde_json::Value;

use crate::hosted::{HostedNode, set_policy, write_app};
use crate::load::{Connection, id_of};
use crate::support::{PATIENCE, Running, free_port, look_again};

fn start(home: &Path, name: &str) -> Running {
    let p2p = format!("127.0.0.1:{}", free_port());
    Running::start(&home.join(name), &["--p2p", &p2p])
}

fn join(first: &Running, node: &Running, name: &str) {
    let token = first.ok(&["cluster", "token"]);
    node.ok(&["cluster", "join", token.trim(), "--name", name]);
}

fn write(folder: &Path, files: &[(&str, &str)]) -> String {
    std::fs::create_dir_all(folder).unwrap();
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
    }
    folder.to_str().unwrap().to_owned()
}

/// Calls `look` until it has found something.
fn poll<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "{what}");
        // Between two looks at another process.
        look_again();
    }
}

fn has_members(node: &Running, connected: usize) -> bool {
    let nodes: Value = serde_json::from_str(&node.ok(&["nodes", "-o", "json"])).expect("JSON");
    let members = nodes["members"].as_array().expect("members");
    members.iter().filter(|member| member["peer"].is_object()).count() == connected
        && nodes["recovering"] == 0
}

const KEYED: &str = r#"
    app = "lines"
    [functions.line]
    main = "line.js"
    placement = "line"
    triggers = [{ mqtt = "line/+", qos = 1, order_by = "topic" }]
    limits = { concurrency = 4 }
"#;
const LINE: &str = "export default (event) => { console.log(`<${event.topic} ${event.text()}>`); }";

/// The numbers of the messages by topic, as a node has handled them.
fn handled(node: &Running) -> BTreeMap<String, Vec<u32>> {
    let log = node.ok(&["logs", "line"]);
    let mut handled = BTreeMap::<String, Vec<u32>>::new();
    for line in log.lines() {
        let Some((topic, number)) = line
            .split_once('<')
            .and_then(|(_, rest)| rest.split_once('>'))
            .and_then(|(message, _)| message.split_once(' '))
        else {
            continue;
        };
        handled.entry(topic.to_owned()).or_default().push(number.parse().unwrap());
    }
    handled
}

#[test]
fn messages_of_a_topic_go_to_one_node_in_order_and_topics_to_all() {
    const TOPICS: u16 = 24;
    const MESSAGES: u32 = 4;
    let home = tempfile::tempdir().unwrap();
    let nodes = ["a", "b", "c"].map(|name| start(home.path(), name));
    nodes[0].ok(&["cluster", "init", "--name", "a"]);
    join(&nodes[0], &nodes[1], "b");
    join(&nodes[0], &nodes[2], "c");
    for node in &nodes {
        poll("the nodes are connected", || has_members(node, 2).then_some(()));
    }
    let policy =
        write(home.path(), &[("policy.yaml", "line: [{workers: \"*\", sticky: true}, followup: fail]\n")]);
    nodes[0].ok(&["policy", "set", &format!("{policy}/policy.yaml")]);
    let app = write(&home.path().join("app"), &[("edgefaas.toml", KEYED), ("line.js", LINE)]);
    nodes[0].ok(&["deploy", &app, "--wait", "60s"]);
    poll("all have the code", || {
        let explained = nodes[0].ok(&["policy", "explain", "line"]);
        explained.contains("usable: a, b, c").then_some(())
    });

    let mut publisher = Connection::open(&nodes[0].mqtt_port, "publisher", true).unwrap();
    for number in 1..=MESSAGES {
        for topic in 0..TOPICS {
            let id = number as u16 * 100 + topic;
            let (topic, payload) = (format!("line/{topic}"), number.to_string());
            publisher.publish(2, &topic, id, payload.as_bytes()).unwrap();
            let (kind, body) = publisher.receive_within(PATIENCE).unwrap().expect("an acknowledgement");
            assert_eq!((kind, id_of(&body)), (0x40, id));
        }
    }
    let all = poll("all messages are handled", || {
        let all: Vec<_> = nodes.iter().map(handled).collect();
        let count: usize = all.iter().flat_map(BTreeMap::values).map(Vec::len).sum();
        (count >= usize::from(TOPICS) * MESSAGES as usize).then_some(all)
    });
    let mut seen = BTreeSet::new();
    for of_node in &all {
        assert!(!of_node.is_empty(), "each node has topics: {all:?}");
        for (topic, numbers) in of_node {
            assert!(seen.insert(topic), "{topic} was handled on two nodes: {all:?}");
            assert_eq!(*numbers, (1..=MESSAGES).collect::<Vec<_>>(), "{topic}");
        }
    }
}

const DATA: &str = r#"
    app = "data"
    [functions.fill]
    main = "fill.js"
    permissions = { objects = ["o-*"] }
    [functions.count]
    main = "count.js"
    placement = "data"
    permissions = { objects = ["o-*"] }
    [objects."*"]
    recover = "while"
"#;
/// Fills ten of the 200 objects `o-N` with 50 kB each.
pub const FILL: &str = r#"
    export default async function fill(event, context) {
        const from = event.json();
        for (let at = from; at < from + 10; at++) {
            await context.object(`o-${at}`).register("text").set("x".repeat(50000));
        }
        return "filled";
    }"#;
/// Counts those that are filled.
pub const COUNT: &str = r#"
    export default async function count(event, context) {
        let count = 0;
        for (let at = 0; at < 200; at++) {
            if (await context.object(`o-${at}`).register("text").get()) count++;
        }
        return { count };
    }"#;

#[test]
fn a_function_runs_where_its_objects_are_until_they_have_arrived_here() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["a", "b"]).build().unwrap();
        // The objects are 10 MB: they take longer than the app and its compilation on a busy machine.
        network.link("b").set(Conditions::default().with_rate(150_000));
        let home = tempfile::tempdir().unwrap();
        let a = HostedNode::start(network.host("a"), home.path(), &[]);
        a.ok(&["cluster", "init", "--name", "a"]);
        set_policy(&a, home.path(), "data: [{workers: \"*\", strategy: data}, followup: fail]\n");
        let files = [("edgefaas.toml", DATA), ("fill.js", FILL), ("count.js", COUNT)];
        a.ok(&["deploy", &write_app(home.path(), "app", &files)]);
        for at in (0..200).step_by(10) {
            assert!(a.exchange("POST", "/fn/fill", &at.to_string()).0.starts_with("HTTP/1.1 200"));
        }
        poll("the first node lacks nothing", || (a.json(&["nodes"])["recovering"] == 0).then_some(()));

        let b = HostedNode::start(network.host("b"), home.path(), &[]);
        let token = a.ok(&["cluster", "token"]);
        b.ok(&["cluster", "join", token.trim(), "--name", "b"]);
        let (mut there, mut answers) = (0, 0);
        poll("the node runs it itself", || {
            let (head, body) = b.exchange("POST", "/fn/count", "");
            if !head.starts_with("HTTP/1.1 200") {
                // The app has not arrived yet.
                assert!(answers == 0 && head.starts_with("HTTP/1.1 404"), "{answers} {head} {body}");
                return None;
            }
            answers += 1;
            assert_eq!(body, r#"{"count":200}"#, "answer {answers}, {there} of them by the first node");
            let is_there = head.to_ascii_lowercase().contains("invocation-node: a");
            if is_there && there == 0 {
                network.link("b").set(Conditions::default().with_rate(2_000_000));
            }
            there += i32::from(is_there);
            (!is_there).then_some(())
        });
        println!("{there} of {answers} answers came from the node that had the objects");
        assert!(there > 0, "the link is slower than the deploy");
    });
}
