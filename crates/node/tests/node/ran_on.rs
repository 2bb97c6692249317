//! The node that ran an invocation, and trees of workflow instances over several nodes.

use std::time::Instant;

use edgefaas_api::control as proto;
use edgefaas_node::config::{NodeConfig, OtlpProtocol};
use http::Request;
use http_body_util::Full;
use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};
use serde_json::json;

use crate::clusters::{join, member, token};
use crate::support::{Mqtt5, PATIENCE, TestNode, in_time, json, reply_text, script};
use crate::trace_export::GrpcCollector;
use crate::traces::{CALLER, post};

/// A function that answers with its node, or fails.
const WHERE: &str = "export default (event, { node }) => {
    if (event.text() === 'fail') throw new Error('no');
    return node;
};";

fn node_property(message: &Publish) -> Option<&str> {
    let properties = message.properties.as_ref()?;
    let found = properties.user_properties.iter().find(|(key, _)| key == "invocation-node");
    found.map(|(_, value)| value.as_str())
}

/// A cluster of two nodes, `n0` in the zone `west` and `n1` in the zone `east`; functions with the tag `there` run on `n1`.
async fn west_and_east() -> [TestNode; 2] {
    west_and_east_with(|_| {}).await
}

async fn west_and_east_with(configure: impl Fn(&mut NodeConfig) + Copy) -> [TestNode; 2] {
    let placed = |zone: &'static str| {
        move |config: &mut NodeConfig| {
            member(config);
            configure(config);
            config.cluster.zone = Some(zone.to_owned());
            config.cluster.labels = vec![format!("in-{zone}")];
            config.workflows.descendants = 2;
        }
    };
    let mut west = TestNode::start_with(placed("west")).await;
    let name = "n0".to_owned();
    west.control.init_cluster(proto::InitClusterRequest { name }).await.unwrap();
    let mut east = TestNode::start_with(placed("east")).await;
    let token = token(&mut west).await;
    join(&mut east, &token, "n1").await.unwrap();
    let text = "there:\n  - workers: [{ wrk: n1 }]\n  - followup: fail\n".to_owned();
    west.control.set_policy(proto::SetPolicyRequest { text, wait_ms: 30_000 }).await.unwrap();
    [west, east]
}

#[tokio::test]
async fn another_node_says_who_has_the_outcome_of_a_request() {
    let [mut west, east] = west_and_east().await;
    west.deploy_one("here", "", WHERE).await;
    let request = Request::post("/fn/here").header("prefer", "respond-async");
    let accepted = west.send(request.body(Full::default()).unwrap()).await;
    let location = accepted.headers()["location"].to_str().unwrap();
    let elsewhere = east.get(location).await;
    assert!([404, 410].contains(&elsewhere.status().as_u16()), "{elsewhere:?}");
    assert!(crate::support::text(&elsewhere).contains("ask the node that accepted"), "{elsewhere:?}");
    let alone = TestNode::start().await.get(location).await;
    assert!(!crate::support::text(&alone).contains("the node that accepted"), "{alone:?}");
}

#[tokio::test]
async fn a_function_on_another_node_sees_no_token_of_either_node() {
    let [mut west, east] = west_and_east().await;
    let source = "export default (event) => event.headers?.get('authorization') ?? 'none'";
    west.deploy_one("there", "placement = \"there\"", source).await;
    until_placed(&mut west, "there").await;
    let http_token = |node: &TestNode| {
        std::fs::read_to_string(node.dir.path().join("http-token")).unwrap().trim().to_owned()
    };
    let tokens = [west.token.clone(), east.token.clone(), http_token(&west), http_token(&east)];
    let basic = |token: &str| {
        format!("Basic {}", data_encoding::BASE64.encode(format!("operator:{token}").as_bytes()))
    };
    let mut values: Vec<(String, bool)> = Vec::new();
    for token in &tokens {
        values.extend([(format!("Bearer {token}"), false), (format!("bearer  {token}"), false)]);
        values.extend([(basic(token), false), (token.clone(), false)]);
    }
    // Credentials that are the function's own.
    values.extend([("Bearer of-the-function".to_owned(), true), (basic("of the function"), true)]);
    for (value, is_seen) in values {
        let request = Request::get("/fn/there").header("authorization", &value);
        let response = west.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.headers()["invocation-node"], "n1");
        let expected = if is_seen { value.as_str() } else { "none" };
        assert_eq!(crate::support::text(&response), expected, "{value}");
    }
}

/// Waits until calls of `function` at `node` run on another node.
async fn until_placed(node: &mut TestNode, function: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let request = proto::InvokeRequest { function: function.to_owned(), ..Default::default() };
        let response = node.control.invoke(request).await;
        if response.as_ref().is_ok_and(|response| response.get_ref().node == "n1") {
            return;
        }
        assert!(Instant::now() < until, "{response:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_answer_names_the_node_that_ran_the_function() {
    let [mut west, _east] = west_and_east().await;
    west.deploy_one("here", "triggers = [{ mqtt = \"in/here\" }]", WHERE).await;
    let extra = "triggers = [{ mqtt = \"in/there\" }]\nplacement = \"there\"";
    west.deploy_one("there", extra, WHERE).await;
    until_placed(&mut west, "there").await;
    let mut client = Mqtt5::connect(&west, "c").await;
    client.subscribe("answers").await;
    client.subscribe("$faas/dead/#").await;
    for (function, node, zone) in [("here", "n0", "west"), ("there", "n1", "east")] {
        let expected = json!({ "name": node, "zone": zone, "labels": [format!("in-{zone}")] });
        let response = west.post(&format!("/fn/{function}"), "").await;
        assert_eq!(response.headers()["invocation-node"], node);
        assert_eq!(json(&response), expected);

        let invoked = west.invoke(function, "").await;
        let reply: serde_json::Value = serde_json::from_str(&reply_text(&invoked)).unwrap();
        assert_eq!((&*invoked.node, &reply), (node, &expected));

        let properties =
            || PublishProperties { response_topic: Some("answers".into()), ..Default::default() };
        client.publish_with(&format!("$faas/fn/{function}/invoke"), "", properties()).await;
        assert_eq!(node_property(&client.message().await), Some(node), "a durable call");
        client.publish_with(&format!("in/{function}"), "", properties()).await;
        assert_eq!(node_property(&client.message().await), Some(node), "a trigger of QoS 0");
        client.publish_with(&format!("$faas/fn/{function}/invoke"), "fail", properties()).await;
        // The answer and the dead letter.
        for _ in 0..2 {
            let message = client.message().await;
            assert_eq!(node_property(&message), Some(node), "{message:?}");
        }

        let request = Request::post(format!("/fn/{function}")).header("prefer", "respond-async");
        let accepted = west.send(request.body(Full::from("x")).unwrap()).await;
        let location = accepted.headers()["location"].to_str().unwrap().to_owned();
        let outcome = in_time(async {
            loop {
                let response = west.get(&location).await;
                if response.status() != 202 {
                    return response;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!((outcome.status().as_u16(), json(&outcome)), (200, expected));
        assert_eq!(outcome.headers()["invocation-node"], node, "durable");
        let id = accepted.headers()["invocation-id"].to_str().unwrap().to_owned();
        let trace = west.control.trace(proto::TraceRequest { id }).await.unwrap().into_inner();
        let names: Vec<_> = trace.spans.iter().map(|span| (&*span.name, &*span.node)).collect();
        assert_eq!(names, [(function, if node == "n0" { "" } else { node })], "durable");
    }
}

#[tokio::test]
async fn in_no_cluster_nothing_names_the_node() {
    let mut node = TestNode::start().await;
    node.deploy_one("f", "", "export default (event, { node }) => ({ node: node ?? null })").await;
    let response = node.post("/fn/f", "").await;
    assert!(!response.headers().contains_key("invocation-node"));
    assert_eq!(json(&response), json!({ "node": null }));
    assert_eq!(node.invoke("f", "").await.node, "");
}

#[tokio::test]
async fn a_tree_of_instances_keeps_its_budget_on_another_node() {
    let [mut west, mut east] = west_and_east().await;
    let flow = |name: &str, rest: &str| {
        format!("document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0' }}\n{rest}")
    };
    let texts = [
        // Two calls that go to the other node, where each starts two instances that wait.
        flow(
            "top",
            "do:\n  - all: { fork: { branches: [ { a: { call: pair } }, { b: { call: pair } } ] } }\n",
        ),
        flow(
            "leaf",
            "do:\n  - a: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n",
        ),
    ];
    let files = texts.iter().enumerate();
    let request = proto::DeployRequest {
        manifest: "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.pair]\nmain = \"pair.js\"\n\
                   placement = \"there\"\npermissions = { call = [\"leaf\"] }\n"
            .to_owned(),
        artifacts: vec![script(
            "pair",
            "export default async (event, context) => {
                if (event.kind !== 'workflow') return;
                await Promise.all([1, 2].map(() => context.call('leaf', {})));
            }",
        )],
        workflows: files
            .map(|(number, text)| proto::WorkflowFile {
                file: format!("{number}.yaml"),
                text: text.clone(),
            })
            .collect(),
        ..Default::default()
    };
    west.control.deploy(request).await.unwrap();
    until_placed(&mut west, "pair").await;
    // Four instances of one tree: two more than it may have on a node.
    let reply = in_time(west.post("/workflows/top", "{}")).await;
    let detail = json(&reply)["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("2 live sub-workflows"), "{:?}", reply.body());
    let request = proto::ListInstancesRequest { workflow: "leaf".into(), limit: 10, key: String::new() };
    let leaves = east.control.list_instances(request).await.unwrap().into_inner().instances;
    assert!(leaves.len() <= 2, "{leaves:?}");
}

/// Both nodes export to the same collector: the entry node the call of the other node, that one the function, and neither the
/// spans of the other.
#[tokio::test]
async fn a_call_of_another_node_is_exported_once_by_each_side() {
    let mut collector = GrpcCollector::start(Vec::new()).await;
    let url = &*format!("http://{}", collector.address).leak();
    let [mut west, _east] = west_and_east_with(move |config| {
        config.traces.otlp = Some(url.to_owned());
        config.traces.otlp_protocol = OtlpProtocol::Grpc;
        // Only traces of callers: deploys and checks of the test begin none.
        config.traces.per_second = 0;
    })
    .await;
    let manifest = "placement = \"there\"\npermissions = { publish = [\"sent\"] }";
    let source = "export default (e, c) => { c.publish('sent', 'x'); return 'x'; }";
    west.deploy_one("there", manifest, source).await;
    until_placed(&mut west, "there").await;
    post(&west, "/fn/there").await;
    let spans = collector.spans(&["there on n1", "there", "sent"]).await;
    let found = |name: &str| spans.values().find(|span| span.name == name).unwrap();
    let parent = |name: &str| spans.get(&found(name).parent).map(|parent| &*parent.name);
    let (server, client, producer) = (2, 3, 4);
    assert_eq!((found("there on n1").kind, &*found("there on n1").parent), (client, CALLER));
    assert_eq!((found("there").kind, parent("there")), (server, Some("there on n1")));
    assert_eq!((found("sent").kind, parent("sent")), (producer, Some("there")));
    assert_eq!(found("there on n1").attributes["faas.invoked_name"], "there");
    assert_eq!(found("there").attributes["http.request.method"], "POST");
    // The next spans are those of the next call: none of the first is sent a second time.
    post(&west, "/fn/there").await;
    let again = collector.spans(&["there on n1", "there", "sent"]).await;
    assert!(again.keys().all(|id| !spans.contains_key(id)), "{again:?}");
    assert_eq!((spans.len(), again.len()), (3, 3));
}
