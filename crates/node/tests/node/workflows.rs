//! Workflows in a node: the serverless trilemma, overload, events, lifecycle.

use std::time::Instant;

use edgefaas_api::control as proto;
use serde_json::{Value, json};

use crate::support::{PATIENCE, TestNode, json, script};

/// A manifest with functions and one workflow file, its text and the sources.
async fn deploy(
    node: &mut TestNode,
    manifest: &str,
    sources: &[(&str, &str)],
    flows: &[&str],
) -> proto::DeployResponse {
    let workflows = flows.iter().enumerate().map(|(number, text)| proto::WorkflowFile {
        file: format!("{number}.yaml"),
        text: (*text).to_owned(),
    });
    let request = proto::DeployRequest {
        manifest: manifest.to_owned(),
        artifacts: sources.iter().map(|(name, source)| script(name, source)).collect(),
        workflows: workflows.collect(),
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds").into_inner()
}

fn flow(name: &str, rest: &str) -> String {
    format!("document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0' }}\n{rest}")
}

async fn waiting(node: &mut TestNode, count: usize) -> Vec<proto::Instance> {
    let until = Instant::now() + PATIENCE;
    loop {
        let request =
            proto::ListInstancesRequest { workflow: String::new(), limit: 1000, key: String::new() };
        let found = node.control.list_instances(request).await.expect("a list").into_inner().instances;
        if found.iter().filter(|instance| instance.status == "waiting").count() == count {
            return found;
        }
        assert!(Instant::now() < until, "{count} instances wait: {found:?}");
    }
}

#[tokio::test]
async fn a_composition_is_a_function_and_functions_are_black_boxes() {
    let mut node = TestNode::start().await;
    // The same function works for every caller, also from a workflow.
    let add = "export default (event) => ({ n: event.json().n + 1 })";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.add]\nmain = \"add.js\"\n",
        &[("add", add)],
        &[
            &flow("twice", "do:\n  - a: { call: add }\n  - b: { call: add }\n"),
            &flow("four", "do:\n  - a: { call: twice }\n  - b: { call: twice }\n"),
        ],
    )
    .await;
    for (name, expected) in [("add", 1), ("twice", 2), ("four", 4)] {
        let reply = node.post(&format!("/fn/{name}"), r#"{"n":0}"#).await;
        assert_eq!((reply.status().as_u16(), json(&reply)), (200, json!({"n": expected})), "{name}");
    }
}

#[tokio::test]
async fn nothing_is_billed_twice() {
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.done]\nmain = \"done.js\"\nlimits = { concurrency = 1 }\n",
        &[("done", "export default () => 'done'")],
        &[&flow(
            "patient",
            "do:\n  - first: { call: done }\n  - pause: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n  - \
             last: { call: done }\n",
        )],
    )
    .await;
    // A hundred instances wait in the middle: the only slot of the function is free, and no isolate runs.
    let requests: Vec<_> = (0..100).map(|_| node.post("/workflows/patient", "{}")).collect();
    let all = futures_util::future::join_all(requests);
    tokio::pin!(all);
    let until = Instant::now() + PATIENCE;
    let mut control = node.control.clone();
    loop {
        let _ = tokio::time::timeout(std::time::Duration::from_millis(5), &mut all).await;
        let request =
            proto::ListInstancesRequest { workflow: "patient".into(), limit: 1000, key: String::new() };
        let found = control.list_instances(request).await.unwrap().into_inner().instances;
        if found.iter().filter(|instance| instance.status == "waiting").count() == 100 {
            break;
        }
        assert!(Instant::now() < until, "all instances wait");
    }
    let status = control.status(proto::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.isolates_running, 0);
    let reply = node.post("/fn/done", "").await;
    assert_eq!(reply.body().as_ref(), b"done");
    // An instance may wait before its `listen` hears, so `go` is sent again.
    let replies = loop {
        publish(&node, "go", b"1").await;
        if let Ok(replies) = tokio::time::timeout(std::time::Duration::from_millis(100), &mut all).await {
            break replies;
        }
        assert!(Instant::now() < until, "all instances end");
    };
    for reply in replies {
        assert_eq!(json(&reply), json!("done"));
    }
    // Only runs are billed: two for each instance, and the separate one.
    let apps = control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
    assert_eq!(apps[0].functions[0].stats.as_ref().unwrap().invocations, 201);
    let status = control.status(proto::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.isolates_running, 0);
}

/// Publishes with QoS 1 and waits for the acknowledgement.
async fn publish(node: &TestNode, topic: &str, payload: &[u8]) {
    let mut options =
        rumqttc::v5::MqttOptions::new(format!("p-{topic}"), "127.0.0.1", node.addresses.mqtt.port());
    options.set_keep_alive(std::time::Duration::from_secs(30));
    let (client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
    client.publish(topic, rumqttc::v5::mqttbytes::QoS::AtLeastOnce, false, payload.to_vec()).await.unwrap();
    loop {
        let event =
            tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time").expect("a connection");
        if matches!(event, rumqttc::v5::Event::Incoming(rumqttc::v5::mqttbytes::v5::Packet::PubAck(_))) {
            return;
        }
    }
}

#[tokio::test]
async fn too_many_instances_push_back() {
    let mut node = TestNode::start_with(|config| config.workflows.instances = 3).await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[&flow("wait", "do:\n  - pause: { wait: { hours: 1 } }\n")],
    )
    .await;
    for _ in 0..3 {
        publish(&node, "$faas/wf/wait/invoke", b"{}").await;
    }
    waiting(&mut node, 3).await;
    let reply = node.post("/workflows/wait", "{}").await;
    assert_eq!(reply.status().as_u16(), 429, "{:?}", reply.body());
    let id = waiting(&mut node, 3).await[0].id.clone();
    let cancel = proto::change_instance_request::Change::Cancel.into();
    node.control.change_instance(proto::ChangeInstanceRequest { id, change: cancel }).await.unwrap();
    publish(&node, "$faas/wf/wait/invoke", b"{}").await;
    waiting(&mut node, 3).await;
}

/// The value of a metric without labels.
async fn metric(node: &TestNode, name: &str) -> u64 {
    let metrics = node.metrics().await;
    let text = String::from_utf8_lossy(metrics.body());
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

#[tokio::test]
async fn instances_that_fill_the_node_leave_room_to_other_workflows() {
    let mut node = TestNode::start_with(|config| config.workflows.running = 16).await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.slow]\nmain = \"slow.js\"\nlimits = { timeout = \"60s\", \
         concurrency = 32 }\n",
        &[("slow", "export default () => new Promise(done => setTimeout(done, 55000))")],
        &[
            &flow("busy", "do:\n  - a: { call: slow }\n"),
            &flow("fine", "do:\n  - a: { set: { x: 1 } }\n"),
        ],
    )
    .await;
    for _ in 0..16 {
        publish(&node, "$faas/wf/busy/invoke", b"{}").await;
    }
    let until = tokio::time::Instant::now() + PATIENCE;
    while metric(&node, "edgefaas_workflow_instances_running").await < 16 {
        assert!(tokio::time::Instant::now() < until, "16 instances run");
        tokio::task::yield_now().await;
    }
    let refused = node.post("/workflows/busy", "{}").await;
    assert_eq!(refused.status().as_u16(), 429);
    let detail = json(&refused)["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("runs 16 workflow instances, the maximum (workflows.running), 16 of them"),
        "{detail}"
    );
    let before = metric(&node, "edgefaas_workflow_rejected_total").await;
    publish(&node, "$faas/wf/busy/invoke", b"{}").await;
    assert_eq!(metric(&node, "edgefaas_workflow_rejected_total").await, before + 1, "one over MQTT");
    for _ in 0..5 {
        assert_eq!(json(&node.post("/workflows/fine", "{}").await), json!({"x": 1}));
    }
}

#[tokio::test]
async fn an_endless_loop_ends_and_does_not_block_others() {
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[
            &flow("endless", "do:\n  - a: { set: { x: 1 } }\n  - b: { set: { x: 2 }, then: a }\n"),
            &flow("fine", "do:\n  - a: { set: { x: 1 } }\n"),
            &flow("greedy", "do:\n  - a: { set: { x: '${ [range(1e9)] | length }' } }\n"),
        ],
    )
    .await;
    let (endless, fine) =
        tokio::join!(node.post("/workflows/endless", "{}"), node.post("/workflows/fine", "{}"));
    assert_eq!(endless.status().as_u16(), 500);
    assert!(json(&endless)["detail"].as_str().unwrap().contains("steps"), "{:?}", endless.body());
    assert_eq!(json(&fine), json!({"x": 1}));
    let greedy = node.post("/workflows/greedy", "{}").await;
    let problem = json(&greedy);
    assert!(problem["type"].as_str().unwrap().ends_with("/expression"), "{problem}");
    assert_eq!(problem["instance"], "/do/0/a", "{problem}");
}

#[tokio::test]
async fn errors_keep_their_type_and_position() {
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.bad]\nmain = \"bad.js\"\n[functions.slow]\nmain = \
         \"slow.js\"\nlimits = { timeout = \"50ms\" }\n",
        &[("bad", "export default () => { throw new Error('no luck') }"), ("slow", "export default () => { for (;;); }")],
        &[
            &flow("fails", "do:\n  - a: { call: bad }\n"),
            &flow("late", "do:\n  - a: { call: slow }\n"),
            &flow("catches", "do:\n  - a:\n      try: [ { b: { call: bad } } ]\n      catch: { errors: { with: { type: runtime } }, as: e, do: [ { c: { set: { why: '${ $e.detail }' } } } ] }\n"),
        ],
    )
    .await;
    let reply = node.post("/workflows/fails", "{}").await;
    let problem = json(&reply);
    assert_eq!((reply.status().as_u16(), &problem["instance"]), (500, &json!("/do/0/a")), "{problem}");
    assert!(
        problem["type"].as_str().unwrap().ends_with("/runtime")
            && problem["detail"].as_str().unwrap().contains("no luck")
    );
    let reply = node.post("/workflows/late", "{}").await;
    assert_eq!(reply.status().as_u16(), 408, "{:?}", reply.body());
    let caught = json(&node.post("/workflows/catches", "{}").await);
    assert!(caught["why"].as_str().unwrap().contains("no luck"), "{caught}");
}

#[tokio::test]
async fn lifecycle_events_are_cloud_events() {
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[&flow("short", "do:\n  - a: { set: { x: 1 } }\n")],
    )
    .await;
    let options = rumqttc::v5::MqttOptions::new("watcher", "127.0.0.1", node.addresses.mqtt.port());
    let (client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
    client.subscribe("$faas/events/workflow/#", rumqttc::v5::mqttbytes::QoS::AtLeastOnce).await.unwrap();
    let mut seen: Vec<Value> = Vec::new();
    let mut started = false;
    while seen.len() < 9 {
        use rumqttc::v5::{Event, mqttbytes::v5::Packet};
        match tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time").expect("a connection") {
            Event::Incoming(Packet::SubAck(_)) if !started => {
                started = true;
                assert_eq!(node.post("/workflows/short", "{}").await.status().as_u16(), 200);
            }
            Event::Incoming(Packet::Publish(message)) => {
                seen.push(serde_json::from_slice(&message.payload).unwrap())
            }
            _ => {}
        }
    }
    let types: Vec<&str> = seen.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        types,
        [
            "io.serverlessworkflow.workflow.started.v1",
            "io.serverlessworkflow.workflow.status-changed.v1",
            "io.serverlessworkflow.task.created.v1",
            "io.serverlessworkflow.task.started.v1",
            "io.serverlessworkflow.task.status-changed.v1",
            "io.serverlessworkflow.task.completed.v1",
            "io.serverlessworkflow.task.status-changed.v1",
            "io.serverlessworkflow.workflow.completed.v1",
            "io.serverlessworkflow.workflow.status-changed.v1",
        ]
    );
    assert_eq!(seen[5]["data"]["output"], json!({"x": 1}));
}

#[tokio::test]
async fn schedules_start_by_themselves() {
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[
            &flow("often", "schedule: { every: 20ms }\ndo:\n  - a: { set: { x: 1 } }\n"),
            &flow("after", "schedule: { after: 10ms }\ndo:\n  - a: { wait: 5ms }\n"),
            &flow("tick", "schedule: { cron: '* * * * * *' }\ndo:\n  - a: { set: { x: 1 } }\n"),
        ],
    )
    .await;
    let until = Instant::now() + PATIENCE;
    loop {
        let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
        let completed = |name: &str| {
            apps[0]
                .workflows
                .iter()
                .find(|workflow| workflow.name == name)
                .map_or(0, |workflow| workflow.completed)
        };
        if completed("often") >= 3 && completed("after") >= 3 && completed("tick") >= 1 {
            break;
        }
        assert!(Instant::now() < until, "{apps:?}");
    }
}

#[tokio::test]
async fn a_poisoned_event_becomes_a_dead_letter() {
    let mut node = TestNode::start().await;
    let on = "schedule: { on: { one: { with: { type: mqtt.publish, subject: orders/+ } } } }\ninput: { from: '.[0].data' }\n";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[&flow("picky", &format!("{on}do:\n  - a: {{ set: {{ next: '${{ .number + 1 }}' }} }}\n"))],
    )
    .await;
    let options = rumqttc::v5::MqttOptions::new("undertaker", "127.0.0.1", node.addresses.mqtt.port());
    let (client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
    client.subscribe("$faas/dead/picky", rumqttc::v5::mqttbytes::QoS::AtLeastOnce).await.unwrap();
    use rumqttc::v5::{Event, mqttbytes::v5::Packet};
    let letter = loop {
        match tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time").expect("a connection") {
            Event::Incoming(Packet::SubAck(_)) => {
                publish(&node, "orders/1", br#"{"number": 1}"#).await;
                publish(&node, "orders/2", br#"{"number": ["poison"]}"#).await;
                publish(&node, "orders/3", br#"{"number": 3}"#).await;
            }
            Event::Incoming(Packet::Publish(message)) => break message,
            _ => {}
        }
    };
    let event: Value = serde_json::from_slice(&letter.payload).unwrap();
    assert_eq!(event[0]["subject"], "orders/2", "{event}");
    let user = letter.properties.unwrap().user_properties;
    assert!(
        user.iter().any(|(name, reason)| name == "reason" && reason.contains("Expression")),
        "{user:?}"
    );
    // The other events were handled.
    let until = Instant::now() + PATIENCE;
    loop {
        let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
        if (apps[0].workflows[0].completed, apps[0].workflows[0].faulted) == (2, 1) {
            break;
        }
        assert!(Instant::now() < until, "{apps:?}");
    }
}

#[tokio::test]
async fn workflows_that_start_each_other_by_events_are_stopped() {
    let mut node = TestNode::start().await;
    let on = "schedule: { on: { one: { with: { type: t.ping } } } }\n";
    let emit = "emit: { event: { with: { type: t.ping, source: 'http://x' } } }";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[&flow("circle", &format!("{on}do:\n  - again: {{ {emit} }}\n"))],
    )
    .await;
    assert_eq!(node.post("/workflows/circle", "{}").await.status().as_u16(), 200);
    let until = Instant::now() + PATIENCE;
    loop {
        let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
        let circle = &apps[0].workflows[0];
        if circle.rejected == 1 && circle.live == 0 {
            assert!(circle.completed <= 20, "{circle:?}");
            break;
        }
        assert!(Instant::now() < until && circle.completed <= 20, "{circle:?}");
    }
    let logged = node.logged("circle").await;
    assert!(logged.iter().any(|line| line.contains("deep")), "{logged:?}");
}

#[tokio::test]
async fn a_start_without_room_is_not_acknowledged() {
    use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason};
    let mut node = TestNode::start().await;
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &["document: { dsl: '1.0.3', namespace: t, name: one, version: '1.0.0', metadata: { durable: true, instances: 1 } }\n\
           schedule: { on: { one: { with: { type: mqtt.publish, subject: lim } } } }\ndo: [ { w: { wait: PT1H } } ]\n"],
    )
    .await;
    let options = rumqttc::v5::MqttOptions::new("starter", "127.0.0.1", node.addresses.mqtt.port());
    let (client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
    let mut reasons = Vec::new();
    for _ in 0..2 {
        client.publish("lim", rumqttc::v5::mqttbytes::QoS::AtLeastOnce, false, "{}").await.unwrap();
        let reason = loop {
            match tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time") {
                Ok(rumqttc::v5::Event::Incoming(Packet::PubAck(ack))) => break ack.reason,
                Ok(_) => {}
                // This client treats a refusal as an error of the connection.
                Err(_) => break PubAckReason::QuotaExceeded,
            }
        };
        reasons.push(reason);
    }
    assert_eq!(reasons[1], PubAckReason::QuotaExceeded, "{reasons:?}");
    assert_ne!(reasons[0], PubAckReason::QuotaExceeded, "{reasons:?}");
    waiting(&mut node, 1).await;
}

/// A workflow of which every instance starts two more instances.
const FORK: &str =
    "do:\n  - both: { fork: { branches: [ { a: { call: bomb } }, { b: { call: bomb } } ] } }\n";

#[tokio::test]
async fn a_root_has_a_budget_of_descendants() {
    // Fewer than the maximum depth of calls, so that this limit is reached first in any order of the branches.
    let mut node = TestNode::start_with(|config| config.workflows.descendants = 6).await;
    let caught = "do:\n  - a:\n      try: [ { b: { call: bomb } } ]\n      catch: { errors: { with: { status: 503 } }, as: e, do: [ { c: \
                  { set: { why: '${ $e.detail }' } } } ] }\n";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.again]\nmain = \"again.js\"\npermissions = { call = [\"through\"] }\n",
        &[("again", "export default async (event, context) => await context.call('through', {})")],
        &[
            &flow("bomb", FORK),
            &flow("careful", caught),
            // The same with calls through a function.
            &flow("through", "do:\n  - both: { fork: { branches: [ { a: { call: again } }, { b: { call: again } } ] } }\n"),
        ],
    )
    .await;
    let reply = node.post("/workflows/bomb", "{}").await;
    let problem = json(&reply);
    assert_eq!(reply.status().as_u16(), 503, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("6 live sub-workflows") && detail.contains("workflows.descendants"),
        "{problem}"
    );
    let caught = json(&node.post("/workflows/careful", "{}").await);
    assert!(caught["why"].as_str().unwrap().contains("workflows.descendants"), "{caught}");
    let reply = node.post("/workflows/through", "{}").await;
    assert!(
        json(&reply)["detail"].as_str().unwrap().contains("workflows.descendants"),
        "{:?}",
        reply.body()
    );
    // The budget is released completely, and the next root has its own budget.
    let until = Instant::now() + PATIENCE;
    loop {
        let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
        if apps[0].workflows.iter().all(|workflow| workflow.live == 0) {
            break;
        }
        assert!(Instant::now() < until, "{apps:?}");
    }
}

#[tokio::test]
async fn a_root_has_a_budget_of_bytes() {
    let mut node = TestNode::start_with(|config| {
        config.workflows.root_memory = Some(bytesize::ByteSize::kib(256));
    })
    .await;
    // Each child gets a text of 64 KiB.
    let child = "{ run: { workflow: { namespace: test, name: holds, version: '1.0.0', input: { text: '${ \"0123456789abcdef\" * 4096 }' } } } }";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[
            &flow("holds", "do:\n  - wait: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n"),
            &flow("greedy", &format!("do:\n  - a: {{ fork: {{ branches: [ {} ] }} }}\n",
                (0..8).map(|n| format!("{{ b{n}: {child} }}")).collect::<Vec<_>>().join(", "))),
        ],
    )
    .await;
    let reply = node.post("/workflows/greedy", "{}").await;
    let problem = json(&reply);
    assert_eq!(reply.status().as_u16(), 503, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("workflows.root_memory"), "{problem}");
}

/// Instances wait until there is no room for another one: the message that all of them wait for, many times as large as what is left
/// when it counts for each, still reaches them, and those of another message with one of them.
#[tokio::test]
async fn instances_that_fill_the_memory_still_receive_their_events() {
    use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason};
    use rumqttc::v5::{AsyncClient, Event, MqttOptions, mqttbytes::QoS};
    for durable in [false, true] {
        let mut node = TestNode::start_with(|config| {
            config.workflows.memory = Some(bytesize::ByteSize::mib(2));
        })
        .await;
        let waits = "schedule: { on: { one: { with: { type: mqtt.publish, subject: begin } } } }\ndo:\n  - wait: { listen: { to: { one: { \
                     with: { type: mqtt.publish, subject: go } } } } }\n";
        let text = format!(
            "document: {{ dsl: '1.0.3', namespace: test, name: waits, version: '1.0.0', metadata: {{ durable: {durable} }} }}\n{waits}"
        );
        deploy(&mut node, "app = \"t\"\nworkflows = [\"*.yaml\"]\n", &[], &[&text]).await;
        let options = MqttOptions::new("starts", "127.0.0.1", node.addresses.mqtt.port());
        let (client, mut events) = AsyncClient::new(options, 10);
        let mut publish = async |topic: &str, payload: String| {
            client.publish(topic, QoS::AtLeastOnce, false, payload).await.unwrap();
            loop {
                let event = tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time");
                if let Event::Incoming(Packet::PubAck(ack)) = event.expect("a connection") {
                    return ack.reason;
                }
            }
        };
        let mut started = 0;
        while publish("begin", "1".into()).await != PubAckReason::QuotaExceeded {
            started += 1;
        }
        assert!(started > 100, "{started} instances of a few kilobytes");
        let until = Instant::now() + PATIENCE;
        // Each has come to its `listen` by now, or will be there when the message is sent again. It is refused while earlier
        // ones are in flight.
        while counts(&mut node, "waits").await != (started, started, 0) {
            let reason = publish("go", "x".repeat(20_000)).await;
            assert!(
                Instant::now() < until,
                "{reason:?}, {:?} of {started}",
                counts(&mut node, "waits").await
            );
        }
        // The memory of the last ones is given back shortly after their end.
        while publish("begin", "1".into()).await == PubAckReason::QuotaExceeded {
            assert!(Instant::now() < until, "there is room again");
        }
    }
}

/// Started, completed and live instances of the workflows.
async fn counts(node: &mut TestNode, name: &str) -> (u64, u64, u64) {
    let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
    let found = apps[0].workflows.iter().find(|workflow| workflow.name == name).expect("it is deployed");
    (found.started, found.completed, found.live)
}

/// A loop does not displace the traces of others, and its own trace has its first tasks and its end.
#[tokio::test]
async fn a_loop_has_a_share_of_the_traces() {
    const TASKS: usize = 6_000;
    let mut node = TestNode::start().await;
    let of_many = format!(
        "do:\n  - all: {{ for: {{ in: '${{ [range({TASKS})] }}' }}, do: [ {{ one: {{ set: {{ x: 1 }} }} }} ] }}\n"
    );
    let flows = [&flow("one", "do:\n  - a: { set: { x: 1 } }\n"), &flow("many", &of_many)];
    deploy(&mut node, "app = \"t\"\nworkflows = [\"*.yaml\"]\n", &[], &flows.map(String::as_str)).await;
    let mut spans_of = Vec::new();
    for (number, name) in [(1, "one"), (2, "many")] {
        let request = http::Request::post(format!("/workflows/{name}"))
            .header("traceparent", format!("00-{number:032}-0000000000000001-01"));
        let reply = node.send(request.body(http_body_util::Full::new("{}".into())).unwrap()).await;
        assert_eq!(reply.status().as_u16(), 200, "{:?}", reply.body());
    }
    for number in 1..=2 {
        let request = proto::TraceRequest { id: format!("{number:032}") };
        spans_of.push(node.control.trace(request).await.unwrap().into_inner().spans);
    }
    assert_eq!(spans_of[0].iter().filter(|span| span.kind == "task").count(), 1, "{:?}", spans_of[0]);
    let (tasks, others): (Vec<_>, Vec<_>) = spans_of[1].iter().partition(|span| span.kind == "task");
    assert_eq!(tasks.len(), 512);
    let [workflow] = &others[..] else { panic!("{others:?}") };
    assert!(workflow.kind == "workflow" && workflow.error.is_empty(), "{workflow:?}");
    assert!(tasks.iter().all(|task| task.duration_us <= workflow.duration_us), "the workflow ended last");
}

/// A condition that takes long and is true.
const LONG: &str = "[range(20000) | tostring | length] | length > 0";

#[tokio::test]
async fn a_slow_filter_does_not_delay_others() {
    use rumqttc::v5::mqttbytes::v5::Packet;
    use rumqttc::v5::{AsyncClient, Event, MqttOptions, mqttbytes::QoS};
    // So many that the filters compute for longer than this test may have to wait for a processor.
    const EVENTS: usize = 200;
    let mut node = TestNode::start().await;
    let on = |subject: &str, data: &str| {
        format!(
            "schedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: {subject}, data: '${{ {data} }}' }} }} }} }}\ndo:\n  - a: \
             {{ set: {{ x: 1 }} }}\n"
        )
    };
    let rule = |subject: &str, key: &str| {
        format!(
            "document: {{ dsl: '1.0.3', namespace: test, name: {subject}, version: '1.0.0', metadata: {{ events: {{ count: 1, key: \
             '${{ {key} }}' }} }} }}\nschedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: {subject} }} }} }} }}\ndo:\n  - \
             a: {{ set: {{ x: 1 }} }}\n"
        )
    };
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n",
        &[],
        &[
            &flow("slow", &on("slow", LONG)),
            &rule("keyed", &format!("{LONG} | tostring")),
            &flow("quick", &on("quick", "[.] | any")),
            &rule("ruled", ".data | tostring"),
        ],
    )
    .await;
    let options = MqttOptions::new("plain", "127.0.0.1", node.addresses.mqtt.port());
    let (client, mut events) = AsyncClient::new(options, 2 * EVENTS + 10);
    client.subscribe("plain", QoS::AtLeastOnce).await.unwrap();
    for _ in 0..EVENTS {
        client.publish("slow", QoS::AtLeastOnce, false, "1").await.unwrap();
        client.publish("keyed", QoS::AtMostOnce, false, "1").await.unwrap();
    }
    for topic in ["quick", "ruled", "plain"] {
        client.publish(topic, QoS::AtLeastOnce, false, "1").await.unwrap();
    }
    // The message after all these arrives, and the other workflows have started, while the filters still compute.
    loop {
        if let Event::Incoming(Packet::Publish(_)) =
            tokio::time::timeout(PATIENCE, events.poll()).await.expect("in time").expect("a connection")
        {
            break;
        }
    }
    for name in ["slow", "keyed"] {
        let begun = counts(&mut node, name).await.0;
        assert!(begun < EVENTS as u64, "a message waited for {begun} filters of `{name}`");
    }
    let until = Instant::now() + PATIENCE;
    for name in ["quick", "ruled"] {
        while counts(&mut node, name).await.1 == 0 {
            assert!(Instant::now() < until, "{name} has started");
        }
    }
    let begun = counts(&mut node, "slow").await.0 + counts(&mut node, "keyed").await.0;
    assert!(begun < 2 * EVENTS as u64, "the other workflows waited for all filters");
    // No event is lost.
    for name in ["slow", "keyed"] {
        while counts(&mut node, name).await.1 < EVENTS as u64 {
            assert!(Instant::now() < until, "{:?}", counts(&mut node, name).await);
        }
    }
}

/// Each task of a workflow computes for the maximum time of an expression, or its data grows: neither blocks a thread that
/// others need, nor a cancellation.
#[tokio::test]
async fn workflows_that_compute_do_not_block_others() {
    const EACH: usize = 4;
    let mut node = TestNode::start().await;
    let heavy = "do:\n  - a: { set: { n: '${ [range(50000)] | map(. + 1) | length }' } }\n  - b: { set: '${ . }', then: a }\n";
    let grows = "do:\n  - a: { set: { n: '${ (.n // 0) + 1 }' }, export: { as: '{ l: (($context.l // []) + [\"0123456789\" * 100]) \
                 }' }, then: b }\n  - b: { set: '${ . }', then: a }\n";
    deploy(
        &mut node,
        "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.quick]\nmain = \"quick.js\"\n",
        &[("quick", "export default () => 'here'")],
        &[&flow("heavy", heavy), &flow("grows", grows), &flow("small", "do:\n  - a: { set: { x: 1 } }\n")],
    )
    .await;
    let computing =
        (0..EACH).flat_map(|_| [node.post("/workflows/heavy", "{}"), node.post("/workflows/grows", "{}")]);
    let computing = futures_util::future::join_all(computing);
    let mut control = node.control.clone();
    let others = async {
        loop {
            let apps = control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
            if apps[0]
                .workflows
                .iter()
                .find(|flow| flow.name == "heavy")
                .is_some_and(|flow| flow.live == EACH as u64)
            {
                break;
            }
        }
        for _ in 0..50 {
            assert_eq!(node.post("/fn/quick", "").await.body().as_ref(), b"here");
            assert_eq!(json(&node.post("/workflows/small", "{}").await), json!({"x": 1}));
        }
        let request =
            proto::ListInstancesRequest { workflow: "heavy".into(), limit: 1000, key: String::new() };
        let instances = control.list_instances(request).await.unwrap().into_inner().instances;
        assert_eq!(instances.len(), EACH, "the instances compute all the time");
        for instance in instances {
            let request = proto::ChangeInstanceRequest {
                id: instance.id,
                change: proto::change_instance_request::Change::Cancel.into(),
            };
            control.change_instance(request).await.expect("it is cancelled");
        }
    };
    let (replies, ()) = tokio::join!(computing, others);
    for (number, reply) in replies.iter().enumerate() {
        match number % 2 {
            0 => assert_eq!(reply.status().as_u16(), 499, "{:?}", reply.body()),
            // The limit of steps or of memory was reached.
            _ => assert!(matches!(reply.status().as_u16(), 500 | 503), "{:?}", reply.body()),
        }
    }
}
