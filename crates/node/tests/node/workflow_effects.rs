//! Effects of workflows that are forbidden or impossible: errors of their task, and what a deploy finds.

use edgefaas_api::control as proto;
use serde_json::json;

use crate::support::{Mqtt5, TestNode, json, manifest_of, script};

fn request(manifest: &str, flow: &str) -> proto::DeployRequest {
    proto::DeployRequest {
        manifest: manifest.to_owned(),
        workflows: vec![proto::WorkflowFile { file: "flow.yaml".into(), text: flow.to_owned() }],
        ..Default::default()
    }
}

fn manifest(publish: &str) -> String {
    format!(
        "app = \"t\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.flow.permissions]\npublish = [{publish}]\n"
    )
}

fn flow(metadata: &str, rest: &str) -> String {
    format!("document: {{ dsl: '1.0.3', namespace: test, name: flow, version: '1.0.0'{metadata} }}\n{rest}")
}

const SENDS: &str = "do:
  - send: { if: '${ .how == \"publish\" }', call: asyncapi, with: { channel: '${ .topic }', message: { payload: 1, headers: '${ .headers }' } } }
  - emit: { if: '${ .how == \"emit\" }', emit: { event: { with: { type: told, data: '${ .data }' } } }, metadata: { topic: '${ .topic }' } }
";

#[tokio::test]
async fn a_forbidden_or_impossible_message_is_an_error_of_its_task() {
    let mut node =
        TestNode::start_with(|config| config.broker.max_packet = bytesize::ByteSize::kib(64)).await;
    // `#` does not match topics that start with `$`; the third filter names one.
    let request = request(&manifest(r##""out/#", "$SYS/#", "$faas/#""##), &flow("", SENDS));
    node.control.deploy(request).await.expect("the deploy succeeds");
    let mut client = Mqtt5::connect(&node, "reader").await;
    client.subscribe("out/#").await;
    let long = "x".repeat(70_000);
    for how in ["publish", "emit"] {
        for (topic, status, kind) in [
            ("secret/x", 403, "authorization"),
            ("$SYS/x", 403, "authorization"),
            ("$faas/dead/flow", 403, "authorization"),
            ("out/+", 400, "validation"),
            ("out/#", 400, "validation"),
            ("", 400, "validation"),
        ] {
            let input = json!({"how": how, "topic": topic, "headers": {}, "data": 1});
            let reply = node.post("/workflows/flow", input.to_string()).await;
            let problem = json(&reply);
            assert_eq!(reply.status().as_u16(), status, "{how} {topic}: {problem}");
            assert!(problem["type"].as_str().unwrap().ends_with(kind), "{how} {topic}: {problem}");
            let place = if how == "publish" { "/do/0/send" } else { "/do/1/emit" };
            assert_eq!(problem["instance"], place, "{how} {topic}: {problem}");
        }
    }
    for how in ["publish", "emit"] {
        for (topic, kind) in [(json!(null), "null"), (json!({"a": 1}), "an object"), (json!(7), "a number")]
        {
            let input = json!({"how": how, "topic": topic, "headers": {}, "data": 1});
            let reply = node.post("/workflows/flow", input.to_string()).await;
            let detail = json(&reply)["detail"].clone();
            assert_eq!(reply.status().as_u16(), 400, "{how} {topic}: {detail}");
            let told = format!("the topic is text, not {kind}");
            assert!(detail.as_str().unwrap().contains(&told), "{how} {topic}: {detail}");
        }
    }
    for input in [
        json!({"how": "publish", "topic": "out/a", "headers": {"nul": "a\0b"}, "data": 1}),
        json!({"how": "emit", "topic": "out/a", "headers": {}, "data": long}),
    ] {
        let reply = node.post("/workflows/flow", input.to_string()).await;
        assert_eq!(reply.status().as_u16(), 400, "{:?}", json(&reply)["detail"]);
    }
    // Only what is permitted went out, and a small message beside a long input is fine.
    let input = json!({"how": "publish", "topic": "out/fine", "headers": {"long": "y"}, "data": 1});
    assert_eq!(node.post("/workflows/flow", input.to_string()).await.status().as_u16(), 200);
    assert_eq!(client.message().await.topic, "out/fine");
}

#[tokio::test]
async fn the_type_of_an_event_must_be_a_level_of_its_topic() {
    let mut node = TestNode::start().await;
    let emit = |kind: &str, metadata: &str| {
        flow(
            "",
            &format!("do:\n  - tell: {{ emit: {{ event: {{ with: {{ type: {kind} }} }} }}{metadata} }}\n"),
        )
    };
    let dynamic = request(&manifest(r#""out/#""#), &emit("'${ .type }'", ""));
    node.control.deploy(dynamic).await.expect("the deploy succeeds");
    let mut client = Mqtt5::connect(&node, "reader").await;
    client.subscribe("$faas/events/emitted/#").await;
    for kind in ["a#", "#", "a.+", "", "a\0b", "a\nb"] {
        let reply = node.post("/workflows/flow", json!({"type": kind}).to_string()).await;
        let problem = json(&reply);
        assert_eq!(
            (reply.status().as_u16(), &problem["instance"]),
            (400, &json!("/do/0/tell")),
            "{kind:?}: {problem}"
        );
        assert!(problem["type"].as_str().unwrap().ends_with("/validation"), "{kind:?}: {problem}");
    }
    assert_eq!(node.post("/workflows/flow", r#"{"type": "a/b.c"}"#).await.status().as_u16(), 200);
    assert_eq!(client.message().await.topic, "$faas/events/emitted/a_b.c");
    for (kind, metadata, told) in [
        ("'a#'", "", "type `a#` in /do/0/tell, which cannot be the last level of its topic"),
        ("'a+'", "", "type `a+` in /do/0/tell"),
        ("''", "", "the event's `type` is empty"),
        ("''", ", metadata: { topic: out/x }", "the event's `type` is empty"),
        ("5", "", "the event's `type` is text, not a number"),
        ("\"a\\nb\"", ", metadata: { topic: out/x }", "the event's `type` has a control character: a\\nb"),
        ("t, source: ''", "", "the event's `source` is empty"),
        ("t, source: 5", "", "the event's `source` is text, not a number"),
        ("t, id: [1]", "", "the event's `id` is text, not a list"),
        (
            "t",
            ", metadata: { topic: [out/x] }",
            "`metadata.topic` is text, or an expression that gives text, not a list",
        ),
    ] {
        let constant = request(&manifest(r#""out/#""#), &emit(kind, metadata));
        let error = node.control.deploy(constant).await.expect_err("it is refused");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().contains(told), "{kind}: {}", error.message());
    }
    // The other attributes of CloudEvents have rules as well.
    let sources = request(&manifest(""), &emit("t, source: '${ .source }'", ""));
    node.control.deploy(sources).await.expect("the deploy succeeds");
    for (source, told) in [(json!(5), "not a number"), (json!([]), "not a list"), (json!(""), "is empty")] {
        let reply = node.post("/workflows/flow", json!({"source": source}).to_string()).await;
        let problem = json(&reply);
        assert_eq!(reply.status().as_u16(), 400, "{source}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(told), "{source}: {problem}");
    }
    // With a topic of its own the type is not a level of it.
    let own = request(&manifest(r#""out/#""#), &emit("'a#'", ", metadata: { topic: out/x }"));
    node.control.deploy(own).await.expect("the deploy succeeds");
    assert_eq!(node.post("/workflows/flow", "{}").await.status().as_u16(), 200);
}

#[tokio::test]
async fn a_run_of_a_version_that_the_app_lacks_is_told_at_the_deploy() {
    let mut node = TestNode::start().await;
    let sub = |version: &str| proto::WorkflowFile {
        file: format!("sub{version}.yaml"),
        text: format!(
            "document: {{ dsl: '1.0.3', namespace: test, name: sub, version: '{version}' }}\ndo: [ {{ a: {{ set: {{}} }} }} ]\n"
        ),
    };
    let deploy = |run: &str, versions: &[&str], strict: bool| {
        let mut request = request(
            &manifest(""),
            &flow("", &format!("do:\n  - go: {{ run: {{ workflow: {{ name: sub, {run} }} }} }}\n")),
        );
        request.workflows.extend(versions.iter().map(|version| sub(version)));
        request.strict = strict;
        request
    };
    let old = "namespace: test, version: '1.0.0'";
    for (run, versions, told) in [
        (old, &["1.0.0", "2.0.0"][..], None),
        // The version before this deploy does not count.
        (
            old,
            &["2.0.0"],
            Some("runs `sub`: workflow `sub` is not deployed in version 1.0.0; the latest is 2.0.0"),
        ),
        (
            "namespace: other, version: '2.0.0'",
            &["2.0.0"],
            Some("is in the namespace `test`, not in `other`"),
        ),
        (old, &[], Some("calls `sub`, which is not deployed")),
    ] {
        let strict = node.control.deploy(deploy(run, versions, true)).await;
        match (&strict, told) {
            (Ok(_), None) => {}
            (Err(error), Some(told)) => {
                assert!(error.message().contains(told), "{run}: {}", error.message())
            }
            _ => panic!("{run}, {versions:?}: {strict:?}"),
        }
        let warnings = node
            .control
            .deploy(deploy(run, versions, false))
            .await
            .expect("a deploy")
            .into_inner()
            .warnings;
        assert_eq!(
            warnings.iter().filter(|warning| told.is_some_and(|told| warning.contains(told))).count(),
            warnings.len()
        );
        assert_eq!(warnings.len(), usize::from(told.is_some()), "{run}: {warnings:?}");
    }
}

#[tokio::test]
async fn a_durable_instance_remembers_what_was_refused() {
    let mut node = TestNode::start().await;
    let text = flow(
        ", metadata: { durable: true }",
        "do:
  - attempt:
      try: [ { hide: { call: asyncapi, with: { channel: '${ .topic }', message: { payload: 1 } } } }, { sent: { set: { status: 200 } } } ]
      catch: { as: e, do: [ { seen: { set: { status: '${ $e.status }' } } } ] }
      export: { as: '${ . }' }
  - pause: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }
  - tell: { call: asyncapi, with: { channel: out/result, message: { payload: '${ $context }' } } }
",
    );
    node.control.deploy(request(&manifest(r#""out/#""#), &text)).await.expect("the deploy succeeds");
    let mut client = Mqtt5::connect(&node, "caller").await;
    client.publish("$faas/wf/flow/invoke", r#"{"topic":"late/x"}"#).await;
    client.puback().await;
    wait_until_it_waits(&mut node).await;
    // From now on the topic is permitted. What has happened stays as it was.
    node.control.deploy(request(&manifest(r#""out/#", "late/#""#), &text)).await.expect("a deploy");
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    wait_until_it_waits(&mut node).await;
    let mut client = Mqtt5::connect(&node, "reader").await;
    client.subscribe("out/#").await;
    client.publish("go", "1").await;
    assert_eq!(client.message().await.payload, r#"{"status":403}"#);
}

async fn wait_until_it_waits(node: &mut TestNode) {
    let until = std::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let list = proto::ListInstancesRequest { workflow: String::new(), limit: 10, key: String::new() };
        let found = node.control.list_instances(list).await.unwrap().into_inner().instances;
        if found.iter().any(|instance| instance.status == "waiting") {
            return;
        }
        assert!(std::time::Instant::now() < until, "it waits: {found:?}");
    }
}

#[tokio::test]
async fn constant_topics_are_checked_at_the_deploy() {
    let mut node = TestNode::start().await;
    let send = |topic: &str| {
        flow(
            "",
            &format!(
                "do:\n  - say: {{ call: asyncapi, with: {{ channel: '{topic}', message: {{ payload: 1 }} }} }}\n"
            ),
        )
    };
    for (topic, told) in [
        ("alarms/x", "[workflows.flow.permissions] publish = [\"alarms/x\"]"),
        ("$SYS/x", "only the node publishes there"),
        ("out/+", "not a topic name"),
        ("", "not a topic name"),
    ] {
        let request = request(&manifest(r##""out/#", "$SYS/#""##), &send(topic));
        let error = node.control.deploy(request).await.expect_err("it is refused");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().contains(told), "{topic}: {}", error.message());
    }
    let number =
        flow("", "do:\n  - say: { call: asyncapi, with: { channel: 7, message: { payload: 1 } } }\n");
    let error = node.control.deploy(request(&manifest(r##""#""##), &number)).await.expect_err("refused");
    let told = "flow.yaml:3:45: `channel` is text, or an expression that gives text, not a number";
    assert!(error.message().contains(told), "{}", error.message());
    let fine = request(&manifest(r#""out/#""#), &send("out/x"));
    node.control.deploy(fine).await.expect("the deploy succeeds");
}

#[tokio::test]
async fn a_secret_that_is_not_set_is_told_at_the_deploy_and_is_an_error_where_it_is_read() {
    let mut node = TestNode::start().await;
    let text = "document: { dsl: '1.0.3', namespace: test, name: flow, version: '1.0.0' }
use: { secrets: [key] }
do:
  - read: { set: { length: '${ $secrets.key | length }' } }
";
    let manifest = "app = \"t\"\nworkflows = [\"*.yaml\"]\n[functions.reads]\nmain = \"reads.js\"\nsecrets = [\"other\"]\n";
    let mut deploy = request(manifest, text);
    deploy.artifacts = vec![script("reads", "export default () => 1")];
    let warnings = node.control.deploy(deploy.clone()).await.expect("a deploy").into_inner().warnings;
    for told in
        ["`flow` reads secret `key`, which is not set", "`reads` reads secret `other`, which is not set"]
    {
        assert!(warnings.iter().any(|warning| warning.contains(told)), "{warnings:?}");
    }
    let reply = node.post("/workflows/flow", "{}").await;
    let problem = json(&reply);
    assert_eq!((reply.status().as_u16(), &problem["instance"]), (403, &json!("/do/0/read")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("secrets set"), "{problem}");
    node.set_secret("t", "key", "four").await;
    node.set_secret("t", "other", "x").await;
    assert_eq!(json(&node.post("/workflows/flow", "{}").await), json!({"length": 4}));
    let warnings = node.control.deploy(deploy).await.expect("a deploy").into_inner().warnings;
    assert!(warnings.is_empty(), "{warnings:?}");
    // An app without workflows is no exception.
    let manifest = manifest_of("f", "secrets = [\"s\"]");
    let told = node.deploy(&manifest, &[("f", "export default () => 1")]).await.warnings;
    assert!(told.iter().any(|warning| warning.contains("--app f s")), "{told:?}");
}

#[tokio::test]
async fn an_input_that_is_declared_as_json_and_is_not_json_is_refused() {
    let mut node = TestNode::start().await;
    let text = flow("", "do:\n  - same: { set: '${ . }' }\n");
    node.control.deploy(request(&manifest(""), &text)).await.expect("the deploy succeeds");
    for (content_type, body, status) in [
        (Some("application/json"), "{\"a\":", 400),
        (Some("Application/JSON; charset=utf-8"), "{a: 1}", 400),
        (Some("application/cloudevents+json"), "[1,]", 400),
        (Some("application/json"), "{\"a\": 1}", 200),
        (Some("application/json"), "", 200),
        (Some("text/plain"), "{\"a\":", 200),
        (None, "{\"a\":", 200),
    ] {
        let mut request = http::Request::post("/workflows/flow");
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let reply = node.send(request.body(http_body_util::Full::new(body.into())).unwrap()).await;
        assert_eq!(reply.status().as_u16(), status, "{content_type:?} {body}: {:?}", json(&reply));
        if status == 400 {
            let problem = json(&reply);
            assert!(problem["type"].as_str().unwrap().ends_with("/validation"), "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("line 1 column"), "{problem}");
        }
    }
    // The same by MQTT.
    let mut client = Mqtt5::connect(&node, "caller").await;
    client.subscribe("answers").await;
    let properties = rumqttc::v5::mqttbytes::v5::PublishProperties {
        content_type: Some("application/json".into()),
        response_topic: Some("answers".into()),
        ..Default::default()
    };
    client.publish_with("$faas/wf/flow/invoke", "{broken", properties).await;
    let answer = client.message().await;
    let problem: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(problem["status"], 400, "{problem}");
}

const TANK: &str = r#"
app = "t"
[functions.fill]
main = "fill.js"
permissions = { objects = ["tank"] }
[objects.tank]
quota = "2KiB"
[workflows]
files = ["*.yaml"]
"#;
const FILL: &str = r#"
export default async (event, context) => {
    const { field, bytes } = event.json();
    const tank = context.object("tank");
    const filled = await tank.counter("filled").value();
    if (bytes !== undefined) {
        await tank.register(field).set("x".repeat(bytes));
        await tank.counter("filled").add(1);
    }
    return filled;
};
"#;

/// An object refuses the changes of a step: with a `try` the workflow goes on, without one the instance fails and can be
/// retried. Nothing of the refused step is stored.
#[tokio::test]
async fn a_change_that_an_object_refuses_is_an_error_of_its_task() {
    for durable in [false, true] {
        let mut node = TestNode::start().await;
        let metadata = format!(", metadata: {{ durable: {durable} }}");
        let call = "{ call: fill, with: { field: '${ .field }', bytes: '${ .bytes }' } }";
        let catches = flow(
            &metadata,
            &format!(
                "do:\n  - guarded: {{ try: [ {{ write: {call} }} ], catch: {{ as: error, do: [ {{ told: {{ set: {{ caught: '${{ $error }}' }} }} }} ] }} }}\n"
            ),
        );
        let fails =
            flow(&metadata, &format!("do:\n  - write: {call}\n")).replace("name: flow", "name: fails");
        let files = [("flow.yaml", catches), ("fails.yaml", fails)];
        let workflows = files.map(|(file, text)| proto::WorkflowFile { file: file.into(), text }).to_vec();
        let artifacts = vec![script("fill", FILL)];
        let deploy =
            proto::DeployRequest { manifest: TANK.to_owned(), artifacts, workflows, ..Default::default() };
        node.control.deploy(deploy).await.expect("the deploy succeeds");
        let filled = async |node: &TestNode| json(&node.post("/fn/fill", "{}").await);

        let first = json!({"field": "a", "bytes": 1500});
        assert_eq!(json(&node.post("/workflows/flow", first.to_string()).await), 0);
        let second = json!({"field": "b", "bytes": 1500}).to_string();
        let reply = node.post("/workflows/flow", second.clone()).await;
        let caught = &json(&reply)["caught"];
        assert!(caught["detail"].as_str().is_some_and(|text| text.contains("quota")), "{caught}");
        assert!(caught["instance"].as_str().is_some_and(|task| task.ends_with("/write")), "{caught}");
        assert_eq!(filled(&node).await, 1, "durable: {durable}");

        let reply = node.post("/workflows/fails", second).await;
        let problem = json(&reply);
        assert_eq!(problem["instance"], "/do/0/write", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("quota"), "{problem}");
        assert_eq!(filled(&node).await, 1, "durable: {durable}");
        if !durable {
            continue;
        }
        let id = reply.headers()["invocation-id"].to_str().unwrap().to_owned();
        // The failure is on the disk, and the object has room when the instance is retried.
        let dir = node.stop().await;
        let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
        let room = json!({"field": "a", "bytes": 10});
        assert_eq!(node.post("/fn/fill", room.to_string()).await.status().as_u16(), 200);
        let request = proto::ChangeInstanceRequest {
            id: id.clone(),
            change: proto::change_instance_request::Change::Retry.into(),
        };
        node.control.change_instance(request).await.expect("the instance is retried");
        crate::support::in_time(async {
            while filled(&node).await != 3 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// A step ends at about the time at which its task times out: what the workflow sees is what has happened.
#[tokio::test]
async fn a_task_that_has_timed_out_changes_nothing() {
    const CALLS: usize = 60;
    let mut node = TestNode::start().await;
    let manifest = r#"
app = "t"
[functions.late]
main = "late.js"
permissions = { objects = ["late"] }
[functions.runs]
main = "runs.js"
permissions = { objects = ["late"] }
[workflows]
files = ["*.yaml"]
"#;
    let late = "export default async (event, context) => {
        const { field, ms } = event.json();
        await context.object('late').counter(field).add(1);
        await new Promise((resolve) => setTimeout(resolve, ms));
        return 'in time';
    };";
    let runs = "export default (event, context) => context.object('late').counter(event.text()).value();";
    let text = flow(
        ", metadata: { durable: true }",
        "do:
  - guarded:
      try: [ { write: { call: late, with: { field: '${ .field }', ms: '${ .ms }' }, timeout: { after: { milliseconds: 100 } } } } ]
      catch: { do: [ { told: { set: '${ \"late\" }' } } ] }
",
    );
    let deploy = proto::DeployRequest {
        manifest: manifest.to_owned(),
        artifacts: vec![script("late", late), script("runs", runs)],
        workflows: vec![proto::WorkflowFile { file: "flow.yaml".into(), text }],
        ..Default::default()
    };
    node.control.deploy(deploy).await.expect("the deploy succeeds");
    let node = &node;
    let calls = (0..CALLS).map(|number| async move {
        let input = json!({"field": format!("f{number}"), "ms": 90 + number % 15});
        json(&node.post("/workflows/flow", input.to_string()).await)
    });
    let answers = futures_util::future::join_all(calls).await;
    for (number, answer) in answers.into_iter().enumerate() {
        let runs = json(&node.post("/fn/runs", format!("f{number}")).await);
        let expected = if answer == "in time" { 1 } else { 0 };
        assert!(answer == "in time" || answer == "late", "{answer}");
        assert_eq!(runs, expected, "{number}: {answer}");
    }
}
