//! A cluster in two zones 82 ms apart, with a trunk that is cut.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edgefaas_testnet::{Conditions, Topology, isolated};
use serde_json::Value;

use crate::hosted::{HostedNode, unite};
use crate::support::{PATIENCE, look_again};

const SOURCE: &str = r#"
    export default async function handler(event, context) {
        const { number } = event.json();
        const o = context.object("o");
        await o.set("numbers").add(number);
        await o.counter("count").add(1);
        return { number };
    }"#;
const MANIFEST: &str = r#"
    app = "field"
    [functions.add]
    main = "add.js"
    permissions = { objects = ["*"] }
    [objects."*"]
    interval = "5ms"
"#;
/// Round trip between the zones.
const ROUND_TRIP: Duration = Duration::from_millis(82);

fn add(node: &HostedNode<'_>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (head, body) = node.exchange("POST", "/fn/add", &format!("{{\"number\": {number}}}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{}: {head} {body}", node.name());
    }
}

fn value(node: &HostedNode<'_>, field: &str) -> Option<Value> {
    let output = node.cli(&["objects", "get", "field", "o", field, "-o", "json"]);
    let state: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(state["value"].clone())
}

fn numbers(node: &HostedNode<'_>) -> BTreeSet<u64> {
    let found = value(node, "numbers").and_then(|found| serde_json::from_value(found).ok());
    found.unwrap_or_default()
}

/// Waits until each of the nodes has all of these numbers, and no others.
fn wait_for(nodes: &[&HostedNode<'_>], expected: &BTreeSet<u64>) -> Duration {
    let since = Instant::now();
    for node in nodes {
        while numbers(node) != *expected {
            assert!(since.elapsed() < PATIENCE, "{}: {:?}", node.name(), numbers(node));
            look_again();
        }
    }
    since.elapsed()
}

/// Waits until a node is connected with another, and gives the round trip that it has measured.
fn measured_round_trip(node: &HostedNode<'_>, other: &HostedNode<'_>) -> Duration {
    let since = Instant::now();
    loop {
        let nodes: Value = serde_json::from_str(&node.ok(&["nodes", "-o", "json"])).expect("JSON");
        let members = nodes["members"].as_array().expect("members");
        let found = members.iter().find(|member| member["name"] == other.name());
        if let Some(us) = found.and_then(|member| member["peer"]["rtt_us"].as_u64()) {
            return Duration::from_micros(us);
        }
        assert!(since.elapsed() < PATIENCE, "{} is not connected with {}", node.name(), other.name());
        look_again();
    }
}

#[test]
fn zones_that_are_cut_off_from_each_other_go_on_and_agree_when_the_trunk_heals() {
    isolated(|| {
        let topology = Topology::new().zone("north", &["n1", "n2"]).zone("south", &["s1"]);
        let network = topology.build().unwrap();
        let trunk = network.trunk("north", "south");
        trunk.set(Conditions::delayed(ROUND_TRIP / 2));
        let home = tempfile::tempdir().unwrap();
        let nodes = ["n1", "n2", "s1"].map(|name| HostedNode::start(network.host(name), home.path(), &[]));
        unite(&nodes);
        let app = home.path().join("app");
        std::fs::create_dir(&app).unwrap();
        std::fs::write(app.join("edgefaas.toml"), MANIFEST).unwrap();
        std::fs::write(app.join("add.js"), SOURCE).unwrap();
        for node in &nodes {
            node.ok(&["deploy", app.to_str().unwrap()]);
        }
        let [n1, n2, s1] = &nodes;
        // What a node measures, of the zone that it is in and of the other.
        let far = measured_round_trip(n1, s1);
        println!("n1 has measured {far:?} to s1, and {:?} to n2", measured_round_trip(n1, n2));
        assert!(far >= ROUND_TRIP, "{far:?}");

        add(n1, 0..10);
        add(s1, 10..20);
        wait_for(&[n1, n2, s1], &(0..20).collect());

        trunk.cut();
        add(n1, 20..30);
        add(s1, 30..40);
        add(n2, 40..50);
        let north: BTreeSet<u64> = (0..30).chain(40..50).collect();
        let south: BTreeSet<u64> = (0..20).chain(30..40).collect();
        println!("north agrees {:?} after its last change", wait_for(&[n1, n2], &north));
        wait_for(&[s1], &south);
        let since = Instant::now();
        while trunk.outbound().traffic().cut == 0 || trunk.inbound().traffic().cut == 0 {
            assert!(since.elapsed() < PATIENCE, "nothing was sent to the other zone");
            look_again();
        }

        trunk.restore();
        println!("all agree {:?} after the trunk healed", wait_for(&[n1, n2, s1], &(0..50).collect()));
        for node in &nodes {
            // The fields of an object come one by one if a round has found that they are missing.
            let since = Instant::now();
            while value(node, "count").and_then(|count| count.as_u64()) < Some(50) {
                assert!(since.elapsed() < PATIENCE, "{}: {:?}", node.name(), value(node, "count"));
                look_again();
            }
            assert_eq!(value(node, "count"), Some(50.into()), "{}", node.name());
        }
        println!("north to south: {:?}", trunk.outbound().traffic());
    });
}
