//! Rules over several events that start durable workflows, over restarts.

use edgefaas_api::control as proto;
use serde_json::{Value, json};

use crate::support::{Mqtt5, TestNode};

/// A durable workflow that publishes what started it.
fn flow(metadata: &str, on: &str, payload: &str) -> String {
    format!(
        "document: {{ dsl: '1.0.3', namespace: test, name: w, version: '1.0.0', metadata: {{ durable: true{metadata} }} }}\n\
         schedule: {{ on: {on} }}\n\
         do:\n  - say: {{ call: asyncapi, with: {{ channel: fired, message: {{ payload: '${{ {payload} }}' }} }} }}\n"
    )
}

async fn deploy(node: &mut TestNode, text: &str) {
    let request = proto::DeployRequest {
        manifest: "app = \"t\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.w.permissions]\npublish = [\"fired\"]\n".into(),
        workflows: vec![proto::WorkflowFile { file: "w.yaml".into(), text: text.to_owned() }],
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds");
}

async fn again(node: TestNode) -> (TestNode, Mqtt5) {
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let client = watcher(&node).await;
    (node, client)
}

async fn watcher(node: &TestNode) -> Mqtt5 {
    let mut client = Mqtt5::connect(node, "client").await;
    client.subscribe("fired").await;
    client
}

async fn send(client: &mut Mqtt5, topic: &str, payload: &str) {
    client.publish(topic, payload).await;
    client.puback().await;
}

async fn fired(client: &mut Mqtt5) -> Value {
    serde_json::from_slice(&client.message().await.payload).unwrap()
}

#[tokio::test]
async fn an_event_of_each_filter_counts_over_a_restart() {
    let mut node = TestNode::start().await;
    let filter = |topic: &str| {
        format!(
            "{{ with: {{ type: mqtt.publish, subject: 'in/{topic}' }}, correlate: {{ key: {{ from: .data.key }} }} }}"
        )
    };
    let on = format!("{{ all: [{}, {}] }}", filter("a"), filter("b"));
    deploy(&mut node, &flow("", &on, "[.[].data.n]")).await;
    let mut client = watcher(&node).await;
    send(&mut client, "in/a", r#"{"key": 1, "n": 1}"#).await;
    send(&mut client, "in/a", r#"{"key": 2, "n": 2}"#).await;
    let (node, mut client) = again(node).await;
    send(&mut client, "in/b", r#"{"key": 2, "n": 3}"#).await;
    assert_eq!(fired(&mut client).await, json!([2, 3]));
    // What has fired does not fire again, and the other key still waits.
    let (_node, mut client) = again(node).await;
    send(&mut client, "in/b", r#"{"key": 2, "n": 4}"#).await;
    send(&mut client, "in/b", r#"{"key": 1, "n": 5}"#).await;
    assert_eq!(fired(&mut client).await, json!([1, 5]));
}

#[tokio::test]
async fn a_count_goes_on_after_restarts_and_after_its_state_was_written() {
    let mut node = TestNode::start().await;
    let on = "{ one: { with: { type: mqtt.publish, subject: in } } }";
    // More than the records after which the state is written.
    deploy(
        &mut node,
        &flow(", events: { count: 200 }", on, "[.[0].count, (.[0].events | map(.data) | add)]"),
    )
    .await;
    let mut client = watcher(&node).await;
    let mut sum = 0;
    for number in 0..150 {
        sum += number;
        send(&mut client, "in", &number.to_string()).await;
    }
    let (node, mut client) = again(node).await;
    for number in 150..199 {
        sum += number;
        send(&mut client, "in", &number.to_string()).await;
    }
    let (_node, mut client) = again(node).await;
    sum += 199;
    send(&mut client, "in", "199").await;
    assert_eq!(fired(&mut client).await, json!([200, sum]));
}
