//! Durable invocations: accepted once, attempted until they end, with their effects committed once.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use rumqttc::v5::mqttbytes::v5::{PubAckReason, Publish};

use crate::support::{HeldServer, Mqtt5, TestNode, in_time, json, text};

/// Function `work` fails until function `gate` has been opened, and counts its successful runs.
const WORK: &str = r#"
    export default async (event, context) => {
        const object = context.object("o");
        if (!await object.register("open").get()) throw new Error("the gate is shut");
        await object.counter("n").add(1);
        return { got: event.text(), n: await object.counter("n").value() };
    };"#;
/// Opens the gate with POST, and says how often the other function has run.
pub const GATE: &str = r#"
    export default async (event, context) => {
        const object = context.object("o");
        if (event.method === "POST") await object.register("open").set(true);
        return String(await object.counter("n").value());
    };"#;

pub async fn deploy_work(node: &mut TestNode, extra: &str) {
    let manifest = format!(
        "app = \"a\"\n[functions.work]\nmain = \"work.js\"\npermissions = {{ objects = [\"o\"] }}\n{extra}\n\
         [functions.gate]\nmain = \"gate.js\"\npermissions = {{ objects = [\"o\"] }}\n\
         # By the writer's thread, which tests can hold.\n[objects.o]\ndurability = \"synced\"\n"
    );
    node.deploy(&manifest, &[("work", WORK), ("gate", GATE)]).await;
}

const PATIENT: &str = r#"retry = { attempts = 1000, backoff = "20ms", max_backoff = "20ms" }"#;

pub async fn post_with(
    node: &TestNode,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response<Bytes> {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    node.send(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await
}

pub const ASYNC: (&str, &str) = ("prefer", "respond-async");

/// Polls until the invocation has ended.
async fn outcome(node: &TestNode, location: &str) -> Response<Bytes> {
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

fn location(response: &Response<Bytes>) -> String {
    response.headers()["location"].to_str().unwrap().to_owned()
}

fn user_property<'a>(message: &'a Publish, name: &str) -> Option<&'a str> {
    let properties = message.properties.as_ref()?;
    properties.user_properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// The value of a metric.
pub async fn figure(node: &TestNode, name: &str) -> u64 {
    let bearer = format!("Bearer {}", node.token);
    let request = Request::get("/metrics").header("authorization", bearer).body(Full::default()).unwrap();
    let response = in_time(crate::support::send(node.addresses.control, request)).await;
    let line = text(&response).lines().find_map(|line| line.strip_prefix(&format!("edgefaas_{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

#[tokio::test]
async fn respond_async_is_accepted_and_its_reply_is_available_later() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, PATIENT).await;
    let accepted = post_with(&node, "/fn/work", &[ASYNC], "hello").await;
    assert_eq!(accepted.status(), 202);
    assert_eq!(accepted.headers()["preference-applied"], "respond-async");
    let (at, id) = (location(&accepted), accepted.headers()["invocation-id"].to_str().unwrap());
    assert_eq!(at, format!("/invocations/{id}"));
    let pending = node.get(&at).await;
    assert_eq!((pending.status().as_u16(), &json(&pending)["status"]), (202, &"pending".into()));
    assert_eq!(figure(&node, "durable_pending").await, 1);
    // The first attempt meets the shut gate.
    in_time(async {
        while figure(&node, "durable_retried_total").await == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    node.post("/fn/gate", "").await;
    let done = outcome(&node, &at).await;
    assert_eq!(done.status(), 200, "{done:?}");
    assert_eq!(done.headers()["content-type"], "application/json");
    assert_eq!(done.headers()["invocation-id"], id);
    assert!(done.headers().contains_key("server-timing"));
    assert_eq!(json(&done), serde_json::json!({ "got": "hello", "n": 1 }));
    // The outcome is visible shortly before the invocation leaves the queue.
    in_time(async {
        while figure(&node, "durable_pending").await > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The outcome can be read any number of times, but only with GET.
    assert_eq!(json(&node.get(&at).await)["n"], 1);
    let request = Request::builder().method(Method::DELETE).uri(&at).body(Full::default()).unwrap();
    assert_eq!(node.send(request).await.status(), 405);
}

#[tokio::test]
async fn unknown_and_forgotten_invocations_have_different_answers() {
    let mut node = TestNode::start_with(|config| config.invocations.max_kept = 1).await;
    node.deploy_one("f", "", "export default () => 'x'").await;
    let first = location(&post_with(&node, "/fn/f", &[ASYNC], "").await);
    outcome(&node, &first).await;
    let second = location(&post_with(&node, "/fn/f", &[ASYNC], "").await);
    outcome(&node, &second).await;
    in_time(async {
        while node.get(&first).await.status() != 410 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(text(&node.get(&second).await), "x");
    let future = "/invocations/7ZZZZZZZZZZZZZZZZZZZZZZZZZ";
    let long_ago = "/invocations/00000000000000000000000001";
    for (path, status) in [(future, 404), (long_ago, 410), ("/invocations/nonsense", 404)] {
        assert_eq!(node.get(path).await.status(), status, "{path}");
    }
    // The first is gone shortly before it is no longer counted.
    in_time(async {
        while figure(&node, "durable_outcomes_kept").await != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn pending_invocations_continue_after_a_restart() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, PATIENT).await;
    let mut places = Vec::new();
    for number in 0..20 {
        let body = number.to_string();
        places.push(location(&post_with(&node, "/fn/work", &[ASYNC], &body).await));
    }
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(node.get(&places[3]).await.status(), 202);
    assert_eq!(figure(&node, "durable_pending").await, 20);
    node.post("/fn/gate", "").await;
    for (number, at) in places.iter().enumerate() {
        assert_eq!(json(&outcome(&node, at).await)["got"], number.to_string());
    }
    assert_eq!(text(&node.get("/fn/gate").await), "20");
    // The outcomes survive another restart.
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(json(&node.get(&places[7]).await)["got"], "7");
    assert_eq!(figure(&node, "durable_outcomes_kept").await, 20);
}

#[tokio::test]
async fn one_idempotency_key_is_one_invocation() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, "").await;
    node.post("/fn/gate", "").await;
    let key = ("idempotency-key", "order-1");
    let with_key = [key];
    // At the same time, and again later.
    let same = (0..10).map(|_| post_with(&node, "/fn/work", &with_key, "a"));
    let mut replies = futures_util::future::join_all(same).await;
    replies.push(post_with(&node, "/fn/work", &[key], "a").await);
    for reply in &replies {
        assert_eq!(reply.status(), 200, "{reply:?}");
        assert_eq!(reply.headers()["invocation-id"], replies[0].headers()["invocation-id"]);
        assert_eq!(json(reply), serde_json::json!({ "got": "a", "n": 1 }));
    }
    let accepted = post_with(&node, "/fn/work", &[key, ASYNC], "a").await;
    assert_eq!(accepted.headers()["invocation-id"], replies[0].headers()["invocation-id"]);
    let conflict = post_with(&node, "/fn/work", &[key], "another").await;
    assert_eq!(
        (conflict.status().as_u16(), &json(&conflict)["title"]),
        (422, &"Idempotency key used before".into())
    );
    assert_eq!(post_with(&node, "/fn/work", &[("idempotency-key", "")], "a").await.status(), 400);
    assert_eq!(json(&post_with(&node, "/fn/work", &[("idempotency-key", "order-2")], "a").await)["n"], 2);
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(json(&post_with(&node, "/fn/work", &[key], "a").await)["n"], 1);
    assert_eq!(text(&node.get("/fn/gate").await), "2");
}

#[tokio::test]
async fn a_repeated_request_id_starts_no_new_run() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, "").await;
    node.post("/fn/gate", "").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/fn/work/result/+").await;
    for round in 0..3 {
        client.publish("$faas/fn/work/invoke/r-1", "a").await;
        let answer = client.message().await;
        assert_eq!(answer.topic, "$faas/fn/work/result/r-1");
        assert_eq!(answer.payload, r#"{"got":"a","n":1}"#, "round {round}");
    }
    client.publish("$faas/fn/work/invoke/r-1", "another").await;
    assert_eq!(user_property(&client.message().await, "faas-status"), Some("422"));
    client.publish("$faas/fn/work/invoke/r-2", "b").await;
    assert_eq!(client.message().await.payload, r#"{"got":"b","n":2}"#);
}

#[tokio::test]
async fn a_request_repeated_before_its_answer_gets_it_on_its_own_response_topic() {
    use rumqttc::v5::mqttbytes::v5::PublishProperties;
    let mut node = TestNode::start().await;
    deploy_work(&mut node, PATIENT).await;
    let mut client = Mqtt5::connect_with(&node, "c", |options| {
        options.set_credentials("ada", "");
    })
    .await;
    client.subscribe("reply/#").await;
    let to = |topic: &str, correlation: &'static str| PublishProperties {
        response_topic: Some(topic.to_owned()),
        correlation_data: Some(correlation.into()),
        ..PublishProperties::default()
    };
    // The first again, two others, and one of these again: each response topic gets one answer.
    for (topic, correlation) in
        [("reply/one", "1"), ("reply/two", "1"), ("reply/one", "1"), ("reply/two", "2"), ("reply/two", "1")]
    {
        client.publish_with("$faas/fn/work/invoke/r", "x", to(topic, correlation)).await;
        assert_eq!(client.puback().await, PubAckReason::Success);
    }
    node.post("/fn/gate", "").await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = client.message().await;
        assert_eq!(answer.payload, r#"{"got":"x","n":1}"#);
        let correlation = answer.properties.unwrap().correlation_data.unwrap();
        answers.push((answer.topic.to_vec(), correlation.to_vec()));
    }
    answers.sort();
    let expected = [("reply/one", "1"), ("reply/two", "1"), ("reply/two", "2")];
    assert_eq!(answers, expected.map(|(topic, correlation)| (topic.into(), correlation.into())));
    client.publish("reply/end", "").await;
    assert_eq!(client.message().await.topic, "reply/end");
}

#[tokio::test]
async fn a_request_id_belongs_to_its_requester() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, "").await;
    node.post("/fn/gate", "").await;
    let mut watcher = Mqtt5::connect(&node, "watcher").await;
    watcher.subscribe("$faas/fn/work/result/+").await;
    let mut ask = async |client_id: &str, payload: &str| {
        let mut client = Mqtt5::connect(&node, client_id).await;
        client.publish("$faas/fn/work/invoke/1", payload).await;
        assert_eq!(client.puback().await, PubAckReason::Success);
        String::from_utf8(watcher.message().await.payload.to_vec()).unwrap()
    };
    assert_eq!(ask("a", "x").await, r#"{"got":"x","n":1}"#);
    assert_eq!(ask("b", "x").await, r#"{"got":"x","n":2}"#);
    assert_eq!(ask("c", "y").await, r#"{"got":"y","n":3}"#);
    assert_eq!(ask("a", "x").await, r#"{"got":"x","n":1}"#);
}

#[tokio::test]
async fn dead_letters_trigger_functions_except_their_own() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "a"
        [functions.bad]
        main = "bad.js"
        triggers = [{ mqtt = "jobs/#", qos = 1 }]
        [functions.undertaker]
        main = "undertaker.js"
        permissions = { publish = ["seen"] }
        triggers = [{ mqtt = "$faas/dead/#", qos = 1 }]
    "#;
    let bad = "export default () => { throw new Error('never') }";
    let undertaker = r#"
        export default async (event, context) => {
            await context.publish("seen", event.topic + " " + event.text(), { qos: 1 });
            if (event.text() === "both") throw new Error("overworked");
        };"#;
    node.deploy(manifest, &[("bad", bad), ("undertaker", undertaker)]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("seen").await;
    client.subscribe("$faas/dead/+").await;
    let next = async |client: &mut Mqtt5| {
        let message = client.message().await;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&message.topic), text(&message.payload))
    };
    let pair = |topic: &str, payload: &str| (topic.to_owned(), payload.to_owned());
    client.publish("jobs/1", "one").await;
    assert_eq!(next(&mut client).await, pair("$faas/dead/bad", "one"));
    assert_eq!(next(&mut client).await, pair("seen", "$faas/dead/bad one"));
    // The function that handles dead letters fails too: only subscribers get its own dead letter.
    client.publish("jobs/2", "both").await;
    assert_eq!(next(&mut client).await, pair("$faas/dead/bad", "both"));
    assert_eq!(next(&mut client).await, pair("$faas/dead/undertaker", "both"));
    client.publish("jobs/3", "three").await;
    assert_eq!(next(&mut client).await, pair("$faas/dead/bad", "three"));
    assert_eq!(next(&mut client).await, pair("seen", "$faas/dead/bad three"));
    assert_eq!(figure(&node, "durable_dead_lettered_total").await, 4);
    // Neither functions nor clients can publish dead letters.
    let forge = r#"
        export default async (event, context) => {
            for (const topic of ["$faas/dead/bad", "$faas/events/x", "$faas/fn/bad/result/1"]) {
                try { await context.publish(topic, "forged"); return topic; } catch (error) {
                    if (!error.message.includes("may publish calls only")) return error.message;
                }
            }
            await context.publish("$faas/fn/undertaker/invoke", "called");
            return "refused";
        };"#;
    node.deploy_one("forge", r##"permissions = { publish = ["$faas/#"] }"##, forge).await;
    assert_eq!(text(&node.get("/fn/forge").await), "refused");
    client.publish("$faas/dead/bad", "forged").await;
    assert_eq!(client.puback().await, PubAckReason::NotAuthorized);
}

#[tokio::test]
async fn functions_that_fail_on_each_others_dead_letters_do_not_loop() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "a"
        [functions.one]
        main = "one.js"
        triggers = [{ mqtt = "jobs/#", qos = 1 }, { mqtt = "$faas/dead/#", qos = 1 }]
        [functions.two]
        main = "two.js"
        triggers = [{ mqtt = "$faas/dead/#", qos = 1 }]
        [functions.three]
        main = "three.js"
        triggers = [{ mqtt = "$faas/dead/#", qos = 1 }]
    "#;
    let bad = "export default () => { throw new Error('never') }";
    node.deploy(manifest, &[("one", bad), ("two", bad), ("three", bad)]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/dead/+").await;
    for round in 1..=2 {
        client.publish("jobs/1", "x").await;
        // Its own dead letter, and those of the two functions that could not handle it: only subscribers get these.
        let mut of = Vec::new();
        for _ in 0..3 {
            of.push(String::from_utf8(client.message().await.topic.to_vec()).unwrap());
        }
        assert_eq!(of[0], "$faas/dead/one");
        of.sort();
        assert_eq!(of, ["$faas/dead/one", "$faas/dead/three", "$faas/dead/two"]);
        in_time(async {
            while figure(&node, "durable_pending").await > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(figure(&node, "durable_dead_lettered_total").await, 3 * round);
    }
}

#[tokio::test]
async fn the_last_failure_leaves_a_dead_letter_and_an_outcome() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ mqtt = "jobs/+", qos = 1 }]
        retry = { attempts = 3, backoff = "10ms" }"#;
    deploy_work(&mut node, extra).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/dead/work").await;
    client.publish("jobs/7", "payload").await;
    let dead = client.message().await;
    assert_eq!((&dead.topic[..], &dead.payload[..]), (&b"$faas/dead/work"[..], &b"payload"[..]));
    assert_eq!(dead.qos, rumqttc::v5::mqttbytes::QoS::AtLeastOnce);
    let reason = user_property(&dead, "reason").unwrap();
    assert!(reason.contains("Function failed: Error: the gate is shut at work.js:4:"), "{reason}");
    assert_eq!(user_property(&dead, "status"), Some("500"));
    assert_eq!(user_property(&dead, "attempts"), Some("3"));
    assert_eq!(user_property(&dead, "topic"), Some("jobs/7"));
    let id = user_property(&dead, "invocation").unwrap();
    let stored = node.get(&format!("/invocations/{id}")).await;
    assert_eq!((stored.status().as_u16(), &json(&stored)["invocation"]), (500, &id.into()));
    assert_eq!(figure(&node, "durable_retried_total").await, 2);
    assert_eq!(figure(&node, "durable_dead_lettered_total").await, 1);
    let log = node.logged("work").await;
    // The lines of the node come after the failure that they are about.
    let beginnings: Vec<_> = log.iter().map(|line| line.split([':', ',']).next().unwrap()).collect();
    assert_eq!(
        beginnings,
        [
            "Function failed",
            "attempt 1 of 3 failed",
            "Function failed",
            "attempt 2 of 3 failed",
            "Function failed",
            "failed permanently after 3 attempts",
        ],
        "{log:?}"
    );
    // QoS 0 is not durable: one attempt and no dead letter.
    let qos = rumqttc::v5::mqttbytes::QoS::AtMostOnce;
    client.client.publish("jobs/8", qos, false, "zero").await.unwrap();
    client.publish("jobs/9", "one").await;
    assert_eq!(client.message().await.payload, "one");
}

#[tokio::test]
async fn messages_of_a_durable_invocation_are_published_at_its_end() {
    let mut node = TestNode::start().await;
    // The first two attempts publish too and then fail: their messages must not be delivered.
    let source = r#"
        export default async (event, context) => {
            await context.publish("out", event.text(), { qos: 1 });
            if (Math.random() < 0.7) throw new Error("bad luck");
        };"#;
    let extra = r#"
        triggers = [{ mqtt = "in", qos = 2, consume = true }]
        permissions = { publish = ["out"] }
        retry = { attempts = 1000, backoff = "1ms", max_backoff = "1ms" }"#;
    node.deploy_one("relay", extra, source).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("#").await;
    let mut expected: Vec<_> = (0..20).map(|number| format!("m{number}")).collect();
    for payload in &expected {
        client.publish("in", payload).await;
    }
    let mut seen = Vec::new();
    for _ in &expected {
        let message = client.message().await;
        assert_eq!(message.topic, "out");
        seen.push(String::from_utf8(message.payload.to_vec()).unwrap());
    }
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn messages_of_a_topic_run_in_order_despite_failures() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async (event, context) => {
            const seen = context.object("o").register(event.topic ?? event.text());
            const before = await seen.get() ?? "";
            if (event.kind !== "mqtt") return before;
            await seen.set(before + event.text() + " ");
            if (Math.random() < 0.4) throw new Error("bad luck");
        };"#;
    let extra = r#"
        triggers = [{ mqtt = "in/+", qos = 1, order_by = "topic" }]
        permissions = { objects = ["o"] }
        retry = { attempts = 1000, backoff = "1ms", max_backoff = "5ms" }"#;
    node.deploy_one("log", extra, source).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    let mut expected = String::new();
    for number in 0..30 {
        expected.push_str(&format!("{number} "));
        for topic in ["in/a", "in/b", "in/c"] {
            client.publish(topic, &number.to_string()).await;
            assert_eq!(client.puback().await, PubAckReason::NoMatchingSubscribers);
        }
        if number == 15 {
            // Also across a restart.
            drop(client);
            let dir = node.stop().await;
            node = TestNode::start_in(dir, |_| {}).await.unwrap();
            client = Mqtt5::connect(&node, "c").await;
        }
    }
    in_time(async {
        while figure(&node, "durable_pending").await > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for topic in ["in/a", "in/b", "in/c"] {
        assert_eq!(text(&node.post("/fn/log", topic).await), expected, "{topic}");
    }
}

/// Limits for one running and one waiting invocation.
fn narrow(when_full: &str) -> String {
    format!(
        "triggers = [{{ mqtt = \"jobs/+\", qos = 1 }}]\n{PATIENT}\n\
         limits = {{ concurrency = 1, queue = {{ capacity = 1, when_full = \"{when_full}\" }} }}"
    )
}

#[tokio::test]
async fn a_full_queue_rejects_with_a_reason_code() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, &narrow("reject")).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    for (number, expected) in [
        PubAckReason::NoMatchingSubscribers,
        PubAckReason::NoMatchingSubscribers,
        PubAckReason::QuotaExceeded,
    ]
    .into_iter()
    .enumerate()
    {
        client.publish(&format!("jobs/{number}"), "x").await;
        assert_eq!(client.puback().await, expected, "message {number}");
    }
    let full = post_with(&node, "/fn/work", &[ASYNC], "").await;
    assert_eq!(full.status(), 429);
    assert!(full.headers().contains_key("retry-after"));
    node.post("/fn/gate", "").await;
    in_time(async {
        while text(&node.get("/fn/gate").await) != "2" {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_blocks_its_publishers_and_loses_no_message() {
    // MQTT 3.1.1 has no reason code for a refusal, so such a client is blocked in any case.
    for (version, when_full) in [(5, "block"), (3, "block"), (3, "reject")] {
        let mut node = TestNode::start().await;
        deploy_work(&mut node, &narrow(when_full)).await;
        let (port, count) = (node.addresses.mqtt.port(), 6);
        let (acked, mut acks) = tokio::sync::mpsc::unbounded_channel();
        let publisher = tokio::spawn(async move {
            if version == 5 {
                use rumqttc::v5::{AsyncClient, Event, Incoming, MqttOptions, mqttbytes::QoS};
                let (client, mut events) = AsyncClient::new(MqttOptions::new("c", "127.0.0.1", port), 10);
                for number in 0..count {
                    let topic = format!("jobs/{number}");
                    client.publish(topic, QoS::AtLeastOnce, false, "x").await.unwrap();
                }
                loop {
                    if let Event::Incoming(Incoming::PubAck(_)) = events.poll().await.unwrap() {
                        let _ = acked.send(());
                    }
                }
            }
            use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, QoS};
            let (client, mut events) = AsyncClient::new(MqttOptions::new("c", "127.0.0.1", port), 10);
            for number in 0..count {
                client.publish(format!("jobs/{number}"), QoS::AtLeastOnce, false, "x").await.unwrap();
            }
            loop {
                if let Event::Incoming(Incoming::PubAck(_)) = events.poll().await.unwrap() {
                    let _ = acked.send(());
                }
            }
        });
        for _ in 0..2 {
            in_time(acks.recv()).await.unwrap();
        }
        // Meanwhile the broker offers the third again and again, without effect.
        let more = tokio::time::timeout(std::time::Duration::from_millis(300), acks.recv()).await;
        assert!(more.is_err(), "{version} {when_full}: a third one was acknowledged");
        assert_eq!(figure(&node, "durable_pending").await, 2);
        node.post("/fn/gate", "").await;
        for _ in 2..count {
            in_time(acks.recv()).await.unwrap();
        }
        in_time(async {
            while text(&node.get("/fn/gate").await) != count.to_string() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        publisher.abort();
    }
}

#[tokio::test]
async fn the_oldest_waiting_invocation_makes_room_and_becomes_a_dead_letter() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, &narrow("drop-oldest")).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("$faas/dead/work").await;
    for number in 0..4 {
        client.publish(&format!("jobs/{number}"), &number.to_string()).await;
    }
    for _ in 0..2 {
        let dead = client.message().await;
        assert_eq!(user_property(&dead, "status"), Some("429"));
        assert!(user_property(&dead, "reason").unwrap().contains("the oldest in it"));
    }
    assert_eq!(figure(&node, "durable_dropped_total").await, 2);
    node.post("/fn/gate", "").await;
    in_time(async {
        while text(&node.get("/fn/gate").await) != "2" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    in_time(async { while figure(&node, "durable_pending").await > 0 {} }).await;
}

#[tokio::test]
async fn pending_invocations_of_a_removed_function_become_dead_letters() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, PATIENT).await;
    let at = location(&post_with(&node, "/fn/work", &[ASYNC], "").await);
    let request = edgefaas_api::control::RemoveRequest { app: "a".into(), ..Default::default() };
    in_time(node.control.remove(request)).await.unwrap();
    let gone = outcome(&node, &at).await;
    assert_eq!((gone.status().as_u16(), &json(&gone)["title"]), (404, &"Unknown function".into()));
}

#[tokio::test]
async fn messages_published_during_the_drain_run_after_the_next_start() {
    let mut node = TestNode::start().await;
    let mut server = HeldServer::start().await;
    let address = server.address.to_string();
    let manifest = r#"
        app = "a"
        [functions.slow]
        main = "slow.js"
        permissions = { http = ["SERVER"] }
        [functions.late]
        main = "late.js"
        permissions = { objects = ["o"] }
        triggers = [{ mqtt = "jobs/#", qos = 1 }]
    "#
    .replace("SERVER", &address);
    let slow = format!("export default async () => (await fetch('http://{address}/')).text()");
    let late = r#"
        export default async (event, context) => {
            const n = context.object("o").counter("n");
            if (event.kind !== "http") await n.add(1);
            return String(await n.value());
        };"#;
    node.deploy(&manifest, &[("slow", &*slow), ("late", late)]).await;
    let mut mqtt = Mqtt5::connect(&node, "publisher").await;
    // The drain waits for this invocation, up to 10 s.
    let qos = rumqttc::v5::mqttbytes::QoS::AtMostOnce;
    mqtt.client.publish("$faas/fn/slow/invoke", qos, false, "").await.unwrap();
    mqtt.publish("elsewhere", "").await;
    mqtt.puback().await;
    server.requested(1).await;
    node.begin_stop();
    in_time(async {
        let ready = || Request::get("/readyz").body(Full::default()).unwrap();
        while crate::support::send(node.addresses.control, ready()).await.status() != 503 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    mqtt.publish("jobs/1", "").await;
    assert!(matches!(mqtt.puback().await, PubAckReason::Success | PubAckReason::NoMatchingSubscribers));
    mqtt.publish("$faas/fn/late/invoke", "").await;
    assert!(matches!(mqtt.puback().await, PubAckReason::Success | PubAckReason::NoMatchingSubscribers));
    server.open();
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    in_time(async {
        while text(&node.post("/fn/late", "").await) != "2" {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_further_down_causes_backpressure_and_loses_no_message() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "a"
        [functions.first]
        main = "first.js"
        permissions = { publish = ["mid/#"] }
        triggers = [{ mqtt = "in/#", qos = 1 }]
        [functions.second]
        main = "second.js"
        permissions = { objects = ["o"] }
        limits = { concurrency = 1, queue = { capacity = 1, when_full = "block" } }
        triggers = [{ mqtt = "mid/#", qos = 1 }]
    "#;
    let first = "export default (event, context) => context.publish('mid/' + event.text(), event.text(), { qos: 1 })";
    let second = r#"
        export default async (event, context) => {
            const seen = context.object("o").register("seen");
            if (event.kind !== "mqtt") return await seen.get() ?? "";
            await seen.set((await seen.get() ?? "") + event.text() + " ");
        };"#;
    node.deploy(manifest, &[("first", first), ("second", second)]).await;
    let mut mqtt = Mqtt5::connect(&node, "publisher").await;
    for number in 0..50 {
        mqtt.publish("in/x", &number.to_string()).await;
        mqtt.puback().await;
    }
    let seen = in_time(async {
        loop {
            let reply = node.post("/fn/second", "").await;
            if reply.status() == 200 && text(&reply).split_whitespace().count() >= 50 {
                return text(&reply).to_owned();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut seen: Vec<u32> = seen.split_whitespace().map(|number| number.parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}
