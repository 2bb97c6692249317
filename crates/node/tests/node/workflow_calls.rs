//! Calls of workflows with a key, and calls that do not wait: what holds for functions holds for workflows.

use edgefaas_api::control as proto;
use rumqttc::v5::mqttbytes::v5::PubAckReason;
use serde_json::{Value, json};

use crate::durable::{ASYNC, GATE, post_with};
use crate::support::{Mqtt5, TestNode, in_time, json, script, text};

/// Counts its runs, and fails until function `gate` has been opened.
const COUNT: &str = r#"
    export default async (event, context) => {
        const object = context.object("o");
        if (!await object.register("open").get()) throw new Error("the gate is shut");
        await object.counter("n").add(1);
        return { got: event.json(), n: await object.counter("n").value() };
    };"#;

fn flow(name: &str, metadata: &str, tasks: &str) -> proto::WorkflowFile {
    let head = format!("dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0'{metadata}");
    proto::WorkflowFile {
        file: format!("{name}.yaml"),
        text: format!("document: {{ {head} }}\ndo:\n{tasks}"),
    }
}

const DURABLE: &str = ", metadata: { durable: true }";
const COUNTS: &str = "  - count: { call: count }\n";
const HOLDS: &str = "  - hold: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n  - \
                     count: { call: count, with: { a: 1 } }\n";

/// Workflows `durable` and `plain`, which count; `hold`, which waits for a message first; `narrow`, which has room for one.
async fn deploy(node: &mut TestNode) {
    let function = |name: &str| {
        format!("[functions.{name}]\nmain = \"{name}.js\"\npermissions = {{ objects = [\"o\"] }}\n")
    };
    let request = proto::DeployRequest {
        manifest: format!(
            "app = \"t\"\nworkflows = [\"*.yaml\"]\n{}{}",
            function("count"),
            function("gate")
        ),
        artifacts: vec![script("count", COUNT), script("gate", GATE)],
        workflows: vec![
            flow("durable", DURABLE, COUNTS),
            flow("plain", "", COUNTS),
            flow("hold", DURABLE, HOLDS),
            flow("narrow", ", metadata: { instances: 1 }", HOLDS),
        ],
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds");
}

async fn opened() -> TestNode {
    let mut node = TestNode::start().await;
    deploy(&mut node).await;
    node.post("/fn/gate", "").await;
    node
}

async fn listed(node: &mut TestNode, key: &str) -> Vec<proto::Instance> {
    let request = proto::ListInstancesRequest { workflow: String::new(), limit: 100, key: key.to_owned() };
    node.control.list_instances(request).await.expect("a list").into_inner().instances
}

fn statuses(instances: &[proto::Instance]) -> Vec<&str> {
    instances.iter().map(|instance| instance.status.as_str()).collect()
}

/// Waits until an instance has a status.
async fn until_status(node: &mut TestNode, id: &str, status: &str) -> proto::Instance {
    in_time(async {
        loop {
            let request = proto::GetInstanceRequest { id: id.to_owned() };
            match node.control.get_instance(request).await {
                Ok(found) if found.get_ref().status == status => return found.into_inner(),
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

async fn outcome(node: &TestNode, location: &str) -> http::Response<bytes::Bytes> {
    in_time(async {
        loop {
            let response = node.get(location).await;
            if response.status() != 202 {
                return response;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// The outcome of an instance of `hold`. An instance may wait before its `listen` hears, so `go` is sent again.
async fn released(node: &TestNode, location: &str) -> http::Response<bytes::Bytes> {
    let mut client = Mqtt5::connect(node, "releases").await;
    in_time(async {
        loop {
            client.publish("go", "1").await;
            client.puback().await;
            let response = node.get(location).await;
            if response.status() != 202 {
                return response;
            }
        }
    })
    .await
}

async fn change(node: &mut TestNode, id: &str, change: proto::change_instance_request::Change) {
    let request = proto::ChangeInstanceRequest { id: id.to_owned(), change: change.into() };
    node.control.change_instance(request).await.expect("the change is made");
}

fn header<'a>(response: &'a http::Response<bytes::Bytes>, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

#[tokio::test]
async fn one_idempotency_key_is_one_instance() {
    let node = opened().await;
    for (number, name) in ["durable", "plain"].into_iter().enumerate() {
        let (path, key) = (format!("/workflows/{name}"), [("idempotency-key", "order-1")]);
        // At the same time, and again later, by the other path too.
        let same = (0..10).map(|_| post_with(&node, &path, &key, "1"));
        let mut replies = futures_util::future::join_all(same).await;
        replies.push(post_with(&node, &path, &key, "1").await);
        replies.push(post_with(&node, &format!("/fn/{name}"), &key, "1").await);
        for reply in &replies {
            assert_eq!(reply.status(), 200, "{name}: {reply:?}");
            assert_eq!(header(reply, "invocation-id"), header(&replies[0], "invocation-id"));
            assert_eq!(json(reply), json!({ "got": 1, "n": number + 1 }), "{name}");
        }
        let accepted = post_with(&node, &path, &[key[0], ASYNC], "1").await;
        assert_eq!(accepted.status(), 202);
        assert_eq!(header(&accepted, "invocation-id"), header(&replies[0], "invocation-id"));
        let conflict = post_with(&node, &path, &key, "2").await;
        assert_eq!(
            (conflict.status().as_u16(), &json(&conflict)["title"]),
            (422, &"Idempotency key used before".into())
        );
        assert_eq!(post_with(&node, &path, &[("idempotency-key", "")], "1").await.status(), 400);
    }
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    for (number, name) in ["durable", "plain"].into_iter().enumerate() {
        let again =
            post_with(&node, &format!("/workflows/{name}"), &[("idempotency-key", "order-1")], "1").await;
        assert_eq!(json(&again), json!({ "got": 1, "n": number + 1 }), "{name}");
    }
    assert_eq!(text(&node.get("/fn/gate").await), "2");
}

#[tokio::test]
async fn a_key_belongs_to_its_caller_and_its_workflow() {
    let node = opened().await;
    let key = ("idempotency-key", "1");
    let mut counts = Vec::new();
    for (path, cookie) in [
        ("/workflows/durable", "user=ada"),
        ("/workflows/durable", "user=eve"),
        ("/workflows/plain", "user=ada"),
        ("/fn/count", "user=ada"),
        ("/workflows/durable", "user=ada"),
    ] {
        let reply = post_with(&node, path, &[key, ("cookie", cookie)], "7").await;
        counts.push(json(&reply)["n"].as_u64().unwrap());
    }
    assert_eq!(counts, [1, 2, 3, 4, 1]);
}

#[tokio::test]
async fn a_call_that_does_not_wait_is_polled_and_goes_on_after_a_restart() {
    let mut node = opened().await;
    let (hold, key) = ("/workflows/hold", ("idempotency-key", "order-7"));
    let accepted = post_with(&node, hold, &[ASYNC, key], "{}").await;
    assert_eq!(
        (accepted.status().as_u16(), header(&accepted, "preference-applied")),
        (202, "respond-async")
    );
    let (location, id) =
        (header(&accepted, "location").to_owned(), header(&accepted, "invocation-id").to_owned());
    assert_eq!(location, format!("/invocations/{id}"));
    until_status(&mut node, &id, "waiting").await;
    assert_eq!(node.get(&location).await.status(), 202);
    let found = listed(&mut node, "order-7").await;
    assert_eq!((&*found[0].id, &*found[0].key, found[0].ended_unix_ms), (&*id, "order-7", 0));
    assert!(listed(&mut node, "order-8").await.is_empty());

    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let again = post_with(&node, hold, &[ASYNC, key], "{}").await;
    assert_eq!((again.status().as_u16(), header(&again, "location")), (202, &*location));
    assert_eq!(post_with(&node, hold, &[key], "[]").await.status(), 422);
    assert_eq!(json(&released(&node, &location).await)["n"], 1);
    assert_eq!(json(&post_with(&node, hold, &[key], "{}").await)["n"], 1);

    // It is listed after its end, and after another restart.
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let found = listed(&mut node, "order-7").await;
    assert_eq!((found.len(), &*found[0].id, &*found[0].status), (1, &*id, "completed"));
    assert!(found[0].started_unix_ms > 0 && found[0].ended_unix_ms >= found[0].started_unix_ms);
    assert_eq!((&*found[0].key, &*found[0].workflow, &*found[0].version), ("order-7", "hold", "1.0.0"));
    let shown = until_status(&mut node, &id, "completed").await;
    assert_eq!(serde_json::from_str::<Value>(&shown.output).unwrap()["n"], 1);
    assert_eq!(json(&node.get(&location).await)["n"], 1);
    assert_eq!(text(&node.get("/fn/gate").await), "1");
}

#[tokio::test]
async fn a_failure_is_repeated_until_the_instance_is_retried() {
    let mut node = TestNode::start().await;
    deploy(&mut node).await;
    let (path, key) = ("/workflows/plain", [("idempotency-key", "k")]);
    let first = post_with(&node, path, &key, "1").await;
    assert!(first.status().is_server_error() && json(&first)["type"].is_string(), "{first:?}");
    let id = header(&first, "invocation-id").to_owned();
    let again = post_with(&node, path, &key, "1").await;
    assert_eq!((again.status(), json(&again)), (first.status(), json(&first)));
    node.post("/fn/gate", "").await;
    assert_eq!(
        json(&post_with(&node, path, &key, "1").await),
        json(&first),
        "it does not run again by itself"
    );

    // The retry is of the same instance, also after a restart, and its outcome is that of the key.
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let found = listed(&mut node, "k").await;
    assert_eq!((statuses(&found), found[0].ended_unix_ms > 0), (vec!["faulted"], true));
    change(&mut node, &id, proto::change_instance_request::Change::Retry).await;
    let retried = outcome(&node, &format!("/invocations/{id}")).await;
    let retried = match retried.status().as_u16() {
        200 => retried,
        // The retry had not begun yet.
        _ => {
            until_status(&mut node, &id, "completed").await;
            outcome(&node, &format!("/invocations/{id}")).await
        }
    };
    assert_eq!(json(&retried)["n"], 1);
    assert_eq!(json(&post_with(&node, path, &key, "1").await)["n"], 1);
    let found = listed(&mut node, "k").await;
    assert_eq!((statuses(&found), &*found[0].id), (vec!["completed"], &*id), "once, with its last end");
}

#[tokio::test]
async fn a_cancelled_instance_answers_its_key_with_the_cancellation() {
    use proto::change_instance_request::Change;
    let mut node = opened().await;
    let (path, key) = ("/workflows/hold", ("idempotency-key", "k"));
    let accepted = post_with(&node, path, &[ASYNC, key], "{}").await;
    let id = header(&accepted, "invocation-id").to_owned();
    until_status(&mut node, &id, "waiting").await;
    // A request that waits is answered as well.
    let with_key = [key];
    let waits = post_with(&node, path, &with_key, "{}");
    let mut control = node.control.clone();
    let cancels = async {
        let request = proto::ChangeInstanceRequest { id: id.clone(), change: Change::Cancel.into() };
        control.change_instance(request).await.expect("it is cancelled");
    };
    let (reply, ()) = tokio::join!(waits, cancels);
    assert_eq!(reply.status(), 499, "{reply:?}");
    assert_eq!(post_with(&node, path, &[key], "{}").await.status(), 499);
    assert_eq!(statuses(&listed(&mut node, "k").await), ["cancelled"]);
}

#[tokio::test]
async fn a_failed_instance_that_is_cancelled_is_listed_so_and_keeps_its_answer() {
    let mut node = TestNode::start().await;
    deploy(&mut node).await;
    let (path, key) = ("/workflows/durable", [("idempotency-key", "k")]);
    let first = post_with(&node, path, &key, "1").await;
    let id = header(&first, "invocation-id").to_owned();
    change(&mut node, &id, proto::change_instance_request::Change::Cancel).await;
    assert_eq!(statuses(&listed(&mut node, "k").await), ["cancelled"]);
    assert_eq!(json(&post_with(&node, path, &key, "1").await), json(&first));
}

#[tokio::test]
async fn a_key_is_free_again_when_its_outcome_is_not_kept_any_more() {
    let mut node = TestNode::start_with(|config| config.invocations.max_kept = 1).await;
    deploy(&mut node).await;
    node.post("/fn/gate", "").await;
    let (path, key) = ("/workflows/durable", ("idempotency-key", "k"));
    let first = post_with(&node, path, &[key], "1").await;
    assert_eq!(json(&first)["n"], 1);
    assert_eq!(json(&post_with(&node, path, &[("idempotency-key", "l")], "1").await)["n"], 2);
    let location = format!("/invocations/{}", header(&first, "invocation-id"));
    in_time(async {
        while node.get(&location).await.status() != 410 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(listed(&mut node, "k").await.is_empty());
    assert_eq!(json(&post_with(&node, path, &[key], "another").await)["n"], 3);
}

#[tokio::test]
async fn a_key_is_free_again_if_its_instance_is_refused() {
    let mut node = opened().await;
    let (path, key) = ("/workflows/narrow", ("idempotency-key", "second"));
    let first = post_with(&node, path, &[ASYNC], "{}").await;
    assert_eq!(first.status(), 202);
    let id = header(&first, "invocation-id").to_owned();
    until_status(&mut node, &id, "waiting").await;
    let refused = post_with(&node, path, &[ASYNC, key], "{}").await;
    assert_eq!(refused.status(), 429, "{refused:?}");
    assert_eq!(
        node.get(&format!("/invocations/{}", json(&refused)["invocation"].as_str().unwrap()))
            .await
            .status(),
        404
    );
    released(&node, &format!("/invocations/{id}")).await;
    // The instance that has ended may still be counted.
    in_time(async {
        while post_with(&node, path, &[ASYNC, key], "{}").await.status() != 202 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_repeated_request_id_starts_no_new_instance() {
    let node = opened().await;
    for (number, name) in ["durable", "plain"].into_iter().enumerate() {
        let mut client = Mqtt5::connect(&node, "c").await;
        client.subscribe(&format!("$faas/wf/{name}/result/+")).await;
        for round in 0..3 {
            client.publish(&format!("$faas/wf/{name}/invoke/r-1"), "1").await;
            let answer = client.message().await;
            assert_eq!(answer.topic, format!("$faas/wf/{name}/result/r-1"));
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            assert_eq!(answer, json!({ "got": 1, "n": number * 2 + 1 }), "{name} {round}");
        }
        client.publish(&format!("$faas/wf/{name}/invoke/r-1"), "2").await;
        let refused = client.message().await;
        let properties = &refused.properties.as_ref().unwrap().user_properties;
        assert!(properties.contains(&("faas-status".into(), "422".into())), "{refused:?}");
        client.publish(&format!("$faas/wf/{name}/invoke/r-2"), "1").await;
        let answer: Value = serde_json::from_slice(&client.message().await.payload).unwrap();
        assert_eq!(answer["n"], number * 2 + 2);
    }
}

#[tokio::test]
async fn a_request_id_belongs_to_its_requester_and_outlives_a_restart() {
    let mut node = opened().await;
    let ask = async |node: &TestNode, client_id: &str| {
        let mut client = Mqtt5::connect(node, client_id).await;
        client.subscribe("$faas/wf/durable/result/+").await;
        client.publish("$faas/wf/durable/invoke/1", "1").await;
        let answer: Value = serde_json::from_slice(&client.message().await.payload).unwrap();
        answer["n"].as_u64().unwrap()
    };
    assert_eq!([ask(&node, "a").await, ask(&node, "b").await, ask(&node, "a").await], [1, 2, 1]);
    let found = listed(&mut node, "1").await;
    assert_eq!(statuses(&found), ["completed", "completed"]);
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!([ask(&node, "b").await, ask(&node, "c").await], [2, 3]);
}

#[tokio::test]
async fn a_call_repeated_before_its_answer_gets_it_on_its_own_response_topic() {
    use rumqttc::v5::mqttbytes::v5::PublishProperties;
    let mut node = opened().await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("reply/#").await;
    for topic in ["reply/one", "reply/two", "reply/one"] {
        let to =
            PublishProperties { response_topic: Some(topic.to_owned()), ..PublishProperties::default() };
        client.publish_with("$faas/wf/hold/invoke/r", "{}", to).await;
        assert_eq!(client.puback().await, PubAckReason::Success);
    }
    let found = listed(&mut node, "r").await;
    assert_eq!(found.len(), 1, "{found:?}");
    until_status(&mut node, &found[0].id, "waiting").await;
    released(&node, &format!("/invocations/{}", found[0].id)).await;
    let mut topics = Vec::new();
    for _ in 0..2 {
        let answer = client.message().await;
        assert_eq!(serde_json::from_slice::<Value>(&answer.payload).unwrap()["n"], 1);
        topics.push(String::from_utf8(answer.topic.to_vec()).unwrap());
    }
    topics.sort();
    assert_eq!(topics, ["reply/one", "reply/two"]);
    client.publish("reply/end", "").await;
    assert_eq!(client.message().await.topic, "reply/end");
}

#[tokio::test]
async fn ended_instances_without_a_key_are_listed_within_their_own_limits() {
    let mut node = TestNode::start_with(|config| {
        config.workflows.max_kept = 3;
        config.invocations.max_kept = 1;
    })
    .await;
    deploy(&mut node).await;
    node.post("/fn/gate", "").await;
    let keyed = post_with(&node, "/workflows/durable", &[("idempotency-key", "k")], "0").await;
    let mut ids = Vec::new();
    for number in 1..=6 {
        let reply = node.post("/workflows/durable", number.to_string()).await;
        ids.push(header(&reply, "invocation-id").to_owned());
    }
    // It is not durable and has no key: it leaves nothing.
    assert_eq!(node.post("/workflows/plain", "7").await.status(), 200);
    let newest: Vec<_> =
        ids.iter().rev().take(3).cloned().chain([header(&keyed, "invocation-id").to_owned()]).collect();
    let listed_ids = async |node: &mut TestNode| -> Vec<String> {
        listed(node, "").await.into_iter().map(|instance| instance.id).collect()
    };
    in_time(async {
        while listed_ids(&mut node).await != newest {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Its outcome is not for callers.
    assert_eq!(node.get(&format!("/invocations/{}", ids[5])).await.status(), 404);
    let request = proto::ListInstancesRequest { workflow: "durable".into(), limit: 2, key: String::new() };
    let answer = node.control.list_instances(request).await.unwrap().into_inner();
    assert_eq!((answer.instances.len(), answer.more), (2, 2));
    let request = proto::ListInstancesRequest { workflow: "plain".into(), limit: 2, key: String::new() };
    assert!(node.control.list_instances(request).await.unwrap().into_inner().instances.is_empty());
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |config| {
        config.workflows.max_kept = 3;
        config.invocations.max_kept = 1;
    })
    .await
    .unwrap();
    assert_eq!(listed_ids(&mut node).await, newest);
}
