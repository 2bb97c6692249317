//! Functions that trigger one another in a loop, over objects that two nodes share: the limit of a chain ends the loop, as on
//! one node.

use edgefaas_api::control as proto;
use edgefaas_api::objects;
use edgefaas_api::objects::update_request::Operation;
use serde_json::json;

use crate::clusters::{cluster, member, until, update};
use crate::support::{TestNode, in_time};

const CHANGES_X: &str = "export default (_, context) => context.object('x').counter('n').add(1)";
const CHANGES_Y: &str = "export default (_, context) => context.object('y').counter('n').add(1)";
const PUBLISHES: &str = "export default (_, context) => context.publish('hop', 'x', { qos: 1 })";

/// `ping` changes `x` when `y` changes, and `pong` changes `y` when `x` changes.
const PING: &str = r#"
    [functions.ping]
    main = "ping.js"
    triggers = [{ object = "y" }]
    permissions = { objects = ["x", "y"] }
"#;
const PONG: &str = r#"
    [functions.pong]
    main = "pong.js"
    triggers = [{ object = "x" }]
    permissions = { objects = ["x", "y"] }
"#;
/// As `PING`, with a durable invocation between the change of `y` and that of `x`.
const DURABLE_PING: &str = r#"
    [functions.ping]
    main = "ping.js"
    triggers = [{ object = "y" }]
    permissions = { objects = ["y"], publish = ["hop"] }
    [functions.relay]
    main = "relay.js"
    triggers = [{ mqtt = "hop", qos = 1 }]
    permissions = { objects = ["x", "y"] }
"#;

/// Rounds of a loop without end that a test waits for.
const ENDLESS: i64 = 40;

fn app(functions: &[&str], copies: u8) -> String {
    let functions = functions.concat();
    format!("app = \"run\"\n{functions}\n[objects.\"*\"]\ninterval = \"0ms\"\ncopies = {copies}\n")
}

async fn count(node: &TestNode, object: &str) -> i64 {
    let request = objects::GetRequest {
        app: "run".into(),
        object: object.into(),
        field: "n".into(),
        path: Vec::new(),
    };
    let state = node.objects().await.get(request).await.unwrap().into_inner().fields.pop();
    state.map_or(0, |state| state.json.parse().unwrap())
}

/// Waits until a function on the node was refused as part of a loop; returns its log. Fails if the loop does not end.
async fn ended(node: &mut TestNode, function: &str) -> Vec<String> {
    in_time(async {
        loop {
            let log = node.logged(function).await;
            if log.iter().any(|line| line.contains("in a loop")) {
                return log;
            }
            assert!(count(node, "y").await < ENDLESS, "the loop does not end");
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// The last line of a chain of 16 at a function.
fn refused(function: &str) -> String {
    format!(
        "`{function}` is 17 calls deep, at most 16 are allowed: functions call or trigger one another in a loop"
    )
}

#[tokio::test]
async fn a_loop_over_two_nodes_ends_as_on_one_node() {
    let mut alone = TestNode::start().await;
    alone.deploy_here(&app(&[PING, PONG], 2), &[("ping", CHANGES_X), ("pong", CHANGES_Y)]).await;
    update(&alone, "y", "n", Operation::CounterAdd(1)).await.unwrap();
    let log = ended(&mut alone, "ping").await;
    assert!(log.last().unwrap().ends_with(&refused("ping")), "{log:?}");
    assert_eq!((count(&alone, "x").await, count(&alone, "y").await), (8, 9));

    let mut nodes = cluster(2).await;
    nodes[0].deploy_here(&app(&[PING], 2), &[("ping", CHANGES_X)]).await;
    nodes[1].deploy_here(&app(&[PONG], 2), &[("pong", CHANGES_Y)]).await;
    update(&nodes[0], "y", "n", Operation::CounterAdd(1)).await.unwrap();
    assert_eq!(ended(&mut nodes[0], "ping").await, log);
    for node in &nodes {
        until(node, "x", "n", &json!(8)).await;
        until(node, "y", "n", &json!(9)).await;
    }
    // The next change from outside begins a chain of its own.
    update(&nodes[1], "y", "n", Operation::CounterAdd(1)).await.unwrap();
    for node in &nodes {
        until(node, "x", "n", &json!(16)).await;
        until(node, "y", "n", &json!(18)).await;
    }
}

#[tokio::test]
async fn a_loop_ends_although_a_change_waits_for_a_start_and_comes_by_a_round() {
    let mut nodes = cluster(2).await;
    // The other node does not use the object yet, and keeps no copy.
    nodes[0].deploy_here(&app(&[PING], 1), &[("ping", CHANGES_X)]).await;
    update(&nodes[0], "y", "n", Operation::CounterAdd(1)).await.unwrap();
    until(&nodes[0], "x", "n", &json!(1)).await;
    let mut other = nodes.pop().unwrap();
    let folder = nodes.pop().unwrap().stop().await;
    let mut node = TestNode::start_in(folder, member).await.unwrap();
    other.deploy_here(&app(&[PONG], 1), &[("pong", CHANGES_Y)]).await;
    // The change of `x` is the first of 16 also after both.
    let log = ended(&mut node, "ping").await;
    assert!(log.last().unwrap().ends_with(&refused("ping")), "{log:?}");
    for node in [&node, &other] {
        until(node, "x", "n", &json!(8)).await;
        until(node, "y", "n", &json!(9)).await;
    }
}

#[tokio::test]
async fn a_loop_with_a_durable_invocation_ends_as_on_one_node() {
    let sources = [("ping", PUBLISHES), ("relay", CHANGES_X), ("pong", CHANGES_Y)];
    let mut alone = TestNode::start().await;
    alone.deploy_here(&app(&[DURABLE_PING, PONG], 2), &sources).await;
    update(&alone, "y", "n", Operation::CounterAdd(1)).await.unwrap();
    let log = ended(&mut alone, "relay").await;
    assert!(log.last().unwrap().ends_with(&refused("relay")), "{log:?}");
    assert_eq!((count(&alone, "x").await, count(&alone, "y").await), (5, 6));

    let mut nodes = cluster(2).await;
    nodes[0].deploy_here(&app(&[DURABLE_PING], 2), &sources[..2]).await;
    nodes[1].deploy_here(&app(&[PONG], 2), &sources[2..]).await;
    update(&nodes[0], "y", "n", Operation::CounterAdd(1)).await.unwrap();
    assert_eq!(ended(&mut nodes[0], "relay").await, log);
    for node in &nodes {
        until(node, "x", "n", &json!(5)).await;
        until(node, "y", "n", &json!(6)).await;
    }
}

/// Waits until a call of a function at this node would run on the other one.
async fn placed(node: &mut TestNode, function: &str, on: &str) {
    in_time(async {
        loop {
            let (function, entry) = (function.to_owned(), String::new());
            let request = proto::ExplainPlacementRequest { function, entry };
            let explained = node.control.explain_placement(request).await;
            if explained.is_ok_and(|explained| explained.into_inner().node == on) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_loop_of_invocations_on_other_nodes_ends_as_on_one_node() {
    let mut nodes = cluster(2).await;
    let manifest = r#"
        app = "run"
        [functions.ping]
        main = "ping.js"
        triggers = [{ object = "y", origin = "local" }]
        permissions = { objects = ["x", "y"] }
        placement = "second"
        [functions.pong]
        main = "pong.js"
        triggers = [{ object = "x", origin = "local" }]
        permissions = { objects = ["x", "y"] }
        placement = "first"
        [objects."*"]
        interval = "0ms"
    "#;
    let policy =
        "first:\n  - workers: [n0]\n  - followup: fail\nsecond:\n  - workers: [n1]\n  - followup: fail\n";
    nodes[0].deploy(manifest, &[("ping", CHANGES_X), ("pong", CHANGES_Y)]).await;
    let request = proto::SetPolicyRequest { text: policy.to_owned(), wait_ms: 30_000 };
    nodes[0].control.set_policy(request).await.unwrap();
    placed(&mut nodes[0], "ping", "n1").await;
    placed(&mut nodes[1], "pong", "n0").await;
    // Each change is made on the node where the other function is not.
    update(&nodes[0], "y", "n", Operation::CounterAdd(1)).await.unwrap();
    let log = ended(&mut nodes[0], "ping").await;
    assert!(log.last().unwrap().ends_with(&refused("ping")), "{log:?}");
    for node in &nodes {
        until(node, "x", "n", &json!(8)).await;
        until(node, "y", "n", &json!(9)).await;
    }
}
