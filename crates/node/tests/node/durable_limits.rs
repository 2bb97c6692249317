//! Durable invocations at limits: memory, disk, time, length of a queue.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_node::{Clock, Platform};
use http::{Request, Response};
use http_body_util::Full;
use parking_lot::{Condvar, Mutex};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::{Event, Incoming};

use crate::durable::{ASYNC, deploy_work, figure, post_with};
use crate::support::{HeldServer, Mqtt5, TestNode, in_time, json, text};

/// Blocks the writer thread of the store: it reads the clock when it changes a field of an object.
#[derive(Clone, Default)]
struct WriterGate(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Default)]
struct Gate {
    shut: bool,
    held: bool,
}

impl WriterGate {
    async fn node(&self) -> TestNode {
        let (gate, system) = (self.clone(), Platform::system());
        let clock = system.clock.clone();
        let clock = Clock::new(move || {
            if std::thread::current().name() == Some("commit") {
                gate.pass();
            }
            clock.now_unix_ms()
        });
        let platform = Platform { clock, ..system };
        TestNode::start_on(platform, tempfile::tempdir().unwrap(), |_| {}).await.unwrap()
    }

    fn pass(&self) {
        let (gate, opened) = &*self.0;
        let mut gate = gate.lock();
        while gate.shut {
            gate.held = true;
            opened.wait(&mut gate);
        }
    }

    /// Blocks all writes from now on. `write` is a request that changes a field of an object of durability `synced`, which is
    /// for the writer's thread to write.
    async fn shut(&self, write: impl Future<Output = Response<Bytes>> + Send + 'static) {
        self.0.0.lock().shut = true;
        tokio::spawn(write);
        in_time(async {
            while !self.0.0.lock().held {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    fn open(&self) {
        let (gate, opened) = &*self.0;
        gate.lock().shut = false;
        opened.notify_all();
    }
}

/// A failed test must not leave the writer blocked.
struct Opens(WriterGate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn post(node: &TestNode, path: &str) -> impl Future<Output = Response<Bytes>> + use<> {
    crate::support::send(node.addresses.http, Request::post(path).body(Full::default()).unwrap())
}

#[tokio::test]
async fn requests_that_wait_for_the_disk_are_bounded_in_sum() {
    let gate = WriterGate::default();
    let mut node = gate.node().await;
    let _opens = Opens(gate.clone());
    deploy_work(&mut node, r#"limits = { payload = "16MiB" }"#).await;
    gate.shut(post(&node, "/fn/gate")).await;
    let body = Bytes::from(vec![b'x'; 16 << 20]);
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..8 {
        let (address, body, answered) = (node.addresses.http, body.clone(), answered.clone());
        tokio::spawn(async move {
            loop {
                let request = Request::post("/fn/work").header(ASYNC.0, ASYNC.1);
                let request = request.body(Full::new(body.clone())).unwrap();
                // Bodies that are received have a limit of their own.
                match crate::support::try_send(address, request).await {
                    Ok(answer) if answer.status() != 503 => return answered.send(answer),
                    _ => {}
                }
            }
        });
    }
    for _ in 0..4 {
        let answer = in_time(answers.recv()).await.unwrap();
        assert_eq!(answer.status(), 429, "{answer:?}");
        assert_eq!(json(&answer)["title"], "No memory for events");
    }
    gate.open();
    for _ in 0..4 {
        assert_eq!(in_time(answers.recv()).await.unwrap().status(), 202);
    }
}

#[tokio::test]
async fn a_repeated_call_is_acknowledged_with_the_first() {
    let gate = WriterGate::default();
    let mut node = gate.node().await;
    let _opens = Opens(gate.clone());
    deploy_work(&mut node, "").await;
    let connect = async |id: &str| {
        Mqtt5::connect_with(&node, id, |options| {
            options.set_credentials("ada", "");
        })
        .await
    };
    let (first, mut second) = (connect("one").await, connect("two").await);
    second.subscribe("marker/+").await;
    gate.shut(post(&node, "/fn/gate")).await;
    let call = "$faas/fn/work/invoke/r-1";
    let mut first = first;
    first.publish(call, "x").await;
    // The message has been handled once the next one arrives.
    first.client.publish("marker/1", QoS::AtMostOnce, false, "").await.unwrap();
    let marker = async |second: &mut Mqtt5, first: &mut Mqtt5| {
        in_time(async {
            loop {
                tokio::select! {
                    event = second.events.poll() => match event.unwrap() {
                        Event::Incoming(Incoming::Publish(_)) => return,
                        Event::Incoming(Incoming::PubAck(ack)) => panic!("acknowledged: {ack:?}"),
                        _ => {}
                    },
                    _ = first.events.poll() => {}
                }
            }
        })
        .await;
    };
    marker(&mut second, &mut first).await;
    second.publish(call, "x").await;
    second.client.publish("marker/2", QoS::AtMostOnce, false, "").await.unwrap();
    marker(&mut second, &mut first).await;
    gate.open();
    second.puback().await;
    first.puback().await;
}

/// Restarts `node` with its data directory on a disk that counts as full.
async fn with_a_full_disk(node: TestNode) -> TestNode {
    let dir = node.stop().await;
    let full = |config: &mut edgefaas_node::config::NodeConfig| {
        config.store.reserve = Some("1PiB".parse().unwrap());
    };
    TestNode::start_in(dir, full).await.unwrap()
}

#[tokio::test]
async fn a_failed_write_is_not_acknowledged_as_accepted() {
    let mut node = TestNode::start().await;
    deploy_work(&mut node, "").await;
    let node = with_a_full_disk(node).await;
    for number in 0..200 {
        let key = format!("key-{number}");
        let headers = [ASYNC, ("idempotency-key", &key)];
        let (one, two) = tokio::join!(
            post_with(&node, "/fn/work", &headers, "x"),
            post_with(&node, "/fn/work", &headers, "x")
        );
        for answer in [one, two] {
            assert!([503, 507].contains(&answer.status().as_u16()), "pair {number}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_full_disk_accepts_no_new_invocations_and_records_outcomes() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async (event) => {
            console.log("run");
            await new Promise(done => setTimeout(done, 50));
            throw new Error("never");
        };"#;
    let extra = r#"retry = { attempts = 100, backoff = "10ms", max_backoff = "10ms" }
        limits = { concurrency = 1 }"#;
    let slow = "export default () => new Promise(done => setTimeout(() => done('slow'), 2000))";
    let manifest = format!(
        "app = \"a\"\n[functions.bad]\nmain = \"bad.js\"\n{extra}\n[functions.slow]\nmain = \"slow.js\"\n"
    );
    node.deploy(&manifest, &[("bad", source), ("slow", slow)]).await;
    // A node that stops starts no waiting invocation: they run after the next start.
    for _ in 0..5 {
        assert_eq!(post_with(&node, "/fn/bad", &[ASYNC], "").await.status(), 202);
    }
    let mut node = with_a_full_disk(node).await;
    assert!(figure(&node, "durable_pending").await > 0);
    in_time(async {
        while node.logged("bad").await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Longer than several attempts and the waits between them.
    assert_eq!(text(&node.get("/fn/slow").await), "slow");
    // The record of an end needs no more space than that of its acceptance: there are further attempts.
    in_time(async {
        while node.logged("bad").await.iter().filter(|line| *line == "run").count() <= 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_ne!(post_with(&node, "/fn/bad", &[ASYNC], "").await.status(), 202);
}

#[tokio::test]
async fn a_run_that_starts_late_has_its_full_time_limit() {
    let mut node = TestNode::start().await;
    // Two runs one after the other take longer than the time limit, and one of them much less.
    let source = "export default () => new Promise(done => setTimeout(done, 5000))";
    let extra = r#"triggers = [{ mqtt = "jobs/+", qos = 1 }]
        limits = { concurrency = 1, timeout = "9s" }"#;
    node.deploy_one("slow", extra, source).await;
    let other = tokio::spawn(post(&node, "/fn/slow"));
    let request = edgefaas_api::control::StatusRequest {};
    in_time(async {
        while node.control.status(request).await.unwrap().into_inner().isolates_running == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.publish("jobs/1", "x").await;
    client.puback().await;
    assert_eq!(in_time(other).await.unwrap().status(), 204);
    in_time(async {
        while figure(&node, "durable_pending").await > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(figure(&node, "durable_dead_lettered_total").await, 0, "{:?}", node.logged("slow").await);
}

#[tokio::test]
async fn a_message_that_is_offered_again_has_not_run_before() {
    let mut node = TestNode::start().await;
    let mut server = HeldServer::start().await;
    let address = server.address.to_string();
    let manifest = r#"
        app = "a"
        [functions.relay]
        main = "relay.js"
        permissions = { publish = ["slow/#"] }
        triggers = [{ mqtt = "in", qos = 1 }]
        [functions.count]
        main = "count.js"
        triggers = [{ mqtt = "slow/x" }]
        [functions.slow]
        main = "slow.js"
        limits = { concurrency = 1, queue = { capacity = 1 } }
        permissions = { http = ["SERVER"] }
        triggers = [{ mqtt = "slow/#", consume = true }]
    "#
    .replace("SERVER", &address);
    let relay = "export default (event, context) => context.publish('slow/x', 'x', { qos: 1 })";
    let count = "export default () => console.log('counted')";
    let slow = format!("export default async () => {{ await fetch('http://{address}/'); }}");
    node.deploy(&manifest, &[("relay", relay), ("count", count), ("slow", &*slow)]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    // One invocation runs and one waits.
    for _ in 0..2 {
        client.client.publish("slow/y", QoS::AtMostOnce, false, "").await.unwrap();
    }
    client.publish("in", "").await;
    client.puback().await;
    let refused = async |node: &TestNode| {
        let line = r#"invocations_total{function="slow",outcome="rejected"}"#;
        metric(node, line).await
    };
    in_time(async {
        while refused(&node).await < 5 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(node.logged("count").await, Vec::<String>::new());
    server.requested(1).await;
    server.open();
    in_time(async {
        while node.logged("count").await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(node.logged("count").await, ["counted"]);
    assert!(node.logged("slow").await.is_empty(), "nothing was lost");
}

/// The value of a metric with labels; 0 if it does not exist yet.
async fn metric(node: &TestNode, name: &str) -> u64 {
    let bearer = format!("Bearer {}", node.token);
    let request = Request::get("/metrics").header("authorization", bearer).body(Full::default()).unwrap();
    let response = in_time(crate::support::send(node.addresses.control, request)).await;
    let name = format!("edgefaas_{name} ");
    let line = text(&response).lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |figure| figure.parse().unwrap())
}
