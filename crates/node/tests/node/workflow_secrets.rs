//! Secrets of workflows: what leaves by errors, traces, lifecycle events and logs has none.

use edgefaas_api::control as proto;
use http::Request;
use http_body_util::Full;
use rumqttc::v5::mqttbytes::v5::PublishProperties;
use serde_json::json;

use crate::support::{Mqtt5, PATIENCE, TestNode, json as body_of, script, text};

const KEY: &str = "sk-live/4711 \"quoted\"";
/// Longer than the data that an error message shows.
const LONG: &str = "a-token-that-has-no-end.0123456789abcdefghijklmnopqrstuvwxyz.0123456789abcdefghijklmnopqrstuvwxyz.0123456789";
const NUMBER: &str = "471147114711";

/// Parts of the secrets. The last two are of the base64 of the key alone, and behind `user:`.
const PARTS: [&str; 6] = ["4711", "a-token", "no-end", "quoted", "c2stbGl2", "zay1saXZl"];

const FAILS: &str = r#"
do:
  - number: { if: '${ .how == "number" }', set: { x: '${ $secrets.key | tonumber }' } }
  - long: { if: '${ .how == "long" }', set: { x: '${ $secrets.long | tonumber }' } }
  - base64: { if: '${ .how == "base64" }', set: { x: '${ "user:" + $secrets.key | @base64 | error }' } }
  - url: { if: '${ .how == "url" }', set: { x: '${ $secrets.key | @uri | error }' } }
  - object: { if: '${ .how == "object" }', set: { x: '${ {key: $secrets.key} | tojson | error }' } }
  - topic: { if: '${ .how == "topic" }', call: asyncapi, with: { channel: '${ "alarms/" + $secrets.key }', message: { payload: 1 } } }
  - raised: { if: '${ .how == "raised" }', raise: { error: { type: '${ "urn:" + $secrets.long }', status: 400, title: '${ $secrets.key }' } } }
"#;
const HOWS: [&str; 7] = ["number", "long", "base64", "url", "object", "topic", "raised"];

async fn node_with(flows: &[(&str, &str, &str)]) -> TestNode {
    let mut node = TestNode::start().await;
    let workflows = flows.iter().map(|(name, metadata, rest)| proto::WorkflowFile {
        file: format!("{name}.yaml"),
        text: format!(
            "document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0'{metadata} }}\nuse: {{ secrets: [key, long, number] }}\n{rest}"
        ),
    });
    let request = proto::DeployRequest {
        manifest: "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.f]\nmain = \"f.js\"\n".to_owned(),
        artifacts: vec![script("f", "export default (e) => { throw new Error(e.text()); }")],
        workflows: workflows.collect(),
        ..Default::default()
    };
    for (name, value) in [("key", KEY), ("long", LONG), ("number", NUMBER)] {
        node.set_secret("t", name, value).await;
    }
    node.control.deploy(request).await.expect("the deploy succeeds");
    node
}

/// Fails if a text has a secret in any form of this test, or no masked one.
fn assert_masked(shown: &str, about: &str) {
    assert!(shown.contains("***"), "{about}: {shown}");
    for part in PARTS {
        assert!(!shown.contains(part), "{about} has `{part}`: {shown}");
    }
}

#[tokio::test]
async fn the_answer_of_an_error_has_no_secret() {
    let mut node = node_with(&[("flow", "", FAILS)]).await;
    let mut client = Mqtt5::connect(&node, "caller").await;
    client.subscribe("answers").await;
    for how in HOWS {
        let input = json!({"how": how}).to_string();
        let reply = node.post("/workflows/flow", input.clone()).await;
        assert!(reply.status().as_u16() >= 400, "{how}: {:?}", text(&reply));
        assert_masked(text(&reply), how);

        let properties = PublishProperties { response_topic: Some("answers".into()), ..Default::default() };
        client.publish_with("$faas/wf/flow/invoke", &input, properties).await;
        let answer = client.message().await;
        assert_masked(std::str::from_utf8(&answer.payload).unwrap(), how);
    }
    for line in node.logged("flow").await {
        assert_masked(&line, "the log");
    }
}

#[tokio::test]
async fn a_kept_error_has_no_secret() {
    let mut node = node_with(&[("flow", "", FAILS)]).await;
    for how in HOWS {
        let call = |header: (&'static str, &str)| {
            let request = Request::post("/workflows/flow").header(header.0, header.1);
            node.send(request.body(Full::new(json!({"how": how}).to_string().into())).unwrap())
        };
        // The second call gets the answer from the disk.
        let key = format!("key-{how}");
        for about in ["the first call", "the second call"] {
            let reply = call(("idempotency-key", &key)).await;
            assert!(reply.status().as_u16() >= 400, "{how}, {about}: {:?}", text(&reply));
            assert_masked(text(&reply), &format!("{how}, {about}"));
        }
        let accepted = call(("prefer", "respond-async")).await;
        assert_eq!(accepted.status().as_u16(), 202);
        let location = accepted.headers()["location"].to_str().unwrap().to_owned();
        let until = std::time::Instant::now() + PATIENCE;
        let reply = loop {
            let reply = node.get(&location).await;
            if reply.status().as_u16() != 202 {
                break reply;
            }
            assert!(std::time::Instant::now() < until, "it ends");
        };
        assert!(reply.status().as_u16() >= 400, "{how}: {:?}", text(&reply));
        assert_masked(text(&reply), &format!("{how}, without waiting"));
    }
    let list = proto::ListInstancesRequest { workflow: "flow".into(), limit: 100, key: String::new() };
    let listed = node.control.list_instances(list).await.unwrap().into_inner().instances;
    assert_eq!(listed.len(), 2 * HOWS.len());
    for instance in listed {
        assert_masked(&instance.error, "the list");
        let get = proto::GetInstanceRequest { id: instance.id };
        let shown = node.control.get_instance(get).await.unwrap().into_inner();
        assert_masked(&shown.error, "the instance");
    }
}

#[tokio::test]
async fn traces_and_lifecycle_events_have_no_secret() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let rest = r#"do:
  - encode: { set: { header: '${ "Basic " + ("user:" + $secrets.key | @base64) }', json: '${ {k: $secrets.key} | tojson }' } }
  - number: { set: { n: '${ $secrets.number | tonumber }', long: '${ $secrets.long * 4 }' } }
  - give: { try: [ { function: { call: f, with: { key: '${ $secrets.long }' } } } ], catch: { as: e, do: [ { seen: { set: { e: '${ $e.detail }' } } } ] } }
  - attempt:
      try: [ { bad: { set: { x: '${ $secrets.key | tonumber }' } } } ]
      catch: { as: e, do: [ { seen: { set: { e: '${ $e.detail }', is_real: '${ $e.detail | contains("4711") }' } } } ] }
  - end: { set: { is_real: '${ .is_real }' } }
"#;
    let mut node = node_with(&[("flow", "", rest)]).await;
    let mut client = Mqtt5::connect(&node, "reader").await;
    client.subscribe("$faas/events/workflow/flow/#").await;
    let request =
        Request::post("/workflows/flow").header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
    let reply = node.send(request.body(Full::new("{}".into())).unwrap()).await;
    // The workflow itself sees its error as it is.
    assert_eq!(body_of(&reply), json!({"is_real": true}));
    let (mut events, mut masked) = (0, 0);
    loop {
        let message = client.message().await;
        let payload = String::from_utf8(message.payload.to_vec()).unwrap();
        let event: serde_json::Value = serde_json::from_str(&payload).unwrap();
        assert!(event["data"]["instance"].is_string(), "{payload}");
        events += 1;
        if payload.contains("***") {
            masked += 1;
            assert_masked(&payload, "an event");
        }
        for part in PARTS {
            assert!(!payload.contains(part), "{part}: {payload}");
        }
        if message.topic == "$faas/events/workflow/flow/workflow/completed" {
            break;
        }
    }
    assert!(masked >= 8, "{masked} of {events}");
    let found = node.control.trace(proto::TraceRequest { id: TRACE.to_owned() }).await.unwrap();
    let spans = found.into_inner().spans;
    assert_eq!(spans.iter().filter(|span| span.name == "f").count(), 1, "{spans:?}");
    let texts = spans.iter().flat_map(|span| [&span.input, &span.output, &span.error]);
    let mut masked = 0;
    for shown in texts.filter(|shown| !shown.is_empty()) {
        if shown.contains("***") {
            masked += 1;
            assert_masked(shown, "a span");
        }
        for part in PARTS {
            assert!(!shown.contains(part), "{part}: {shown}");
        }
    }
    assert!(masked >= 6, "{masked} of {spans:?}");
    for line in node.logged("f").await {
        assert_masked(&line, "the function's log");
    }
}
