//! Durable invocations as an operator sees them: pending and dead ones, retry and discard.

use edgefaas_api::invocations::{self as proto, State};
use edgefaas_platform::Clock;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::durable::{ASYNC, post_with};
use crate::support::{Bearer, Mqtt5, PATIENCE, TestNode, channel, in_time, json, text};

type Client = proto::invocations_client::InvocationsClient<InterceptedService<Channel, Bearer>>;

async fn client(node: &TestNode) -> Client {
    let channel = channel(node.addresses.control).await;
    Client::new(InterceptedService::new(channel, node.bearer()))
}

async fn list(client: &mut Client, dead: bool) -> proto::ListResponse {
    let request = proto::ListRequest { dead, ..Default::default() };
    client.list(request).await.unwrap().into_inner()
}

/// The dead invocations, as soon as there are so many.
async fn dead(client: &mut Client, count: usize) -> Vec<proto::Invocation> {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let found = list(client, true).await.invocations;
        if found.len() == count {
            return found;
        }
        assert!(std::time::Instant::now() < until, "{} instead of {count}", found.len());
    }
}

/// The pending invocation, as soon as there is one in this state.
async fn pending(client: &mut Client, state: State) -> proto::Invocation {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let mut found = list(client, false).await.invocations;
        found.retain(|invocation| invocation.state() == state);
        if let Some(invocation) = found.pop() {
            return invocation;
        }
        assert!(std::time::Instant::now() < until, "none is {state:?}");
    }
}

async fn retry(client: &mut Client, id: &str) -> Result<String, tonic::Status> {
    client.retry(proto::RetryRequest { id: id.to_owned() }).await.map(|retried| retried.into_inner().id)
}

async fn discard(client: &mut Client, id: &str) -> Result<(), tonic::Status> {
    client.discard(proto::DiscardRequest { id: id.to_owned() }).await.map(|_| ())
}

/// Fails while the secret `key` is not `right`; otherwise publishes its payload.
async fn deploy_gate(node: &mut TestNode, extra: &str) {
    let extra = format!(
        "triggers = [{{ mqtt = \"in/+\", qos = 1 }}]\nsecrets = [\"key\"]\npermissions = {{ publish = [\"out\"] }}\n{extra}"
    );
    let source = r#"export default async (event, context) => {
        if (context.secrets.key !== "right") throw new Error("the key " + context.secrets.key + " is wrong");
        await context.publish("out", event.text(), { qos: 1 });
    };"#;
    node.deploy_one("gate", &extra, source).await;
}

#[tokio::test]
async fn a_dead_letter_is_kept_over_a_restart_and_retried_once_the_cause_is_mended() {
    let mut node = TestNode::start().await;
    node.set_secret("gate", "key", "a-wrong-one").await;
    deploy_gate(&mut node, r#"retry = { attempts = 2, backoff = "1ms" }"#).await;
    let mut mqtt = Mqtt5::connect(&node, "sensor").await;
    mqtt.publish("in/a", r#"{"t": 21}"#).await;
    mqtt.puback().await;
    let mut operator = client(&node).await;
    let found = dead(&mut operator, 1).await.remove(0);
    assert_eq!((&*found.function, found.attempt, found.status), ("gate", 2, 500));
    assert_eq!((&*found.trigger, &*found.source, found.payload_bytes), ("mqtt", "in/a", 9));
    assert!(found.payload.is_empty(), "lists have no payloads");
    assert!(found.detail.contains("the key") && !found.detail.contains("a-wrong-one"), "{}", found.detail);
    assert!(found.ended_unix_ms >= found.accepted_unix_ms && found.accepted_unix_ms > 0);
    let dir = node.stop().await;

    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    let mut operator = client(&node).await;
    let request = proto::GetRequest { id: found.id.clone() };
    let whole = operator.get(request).await.unwrap().into_inner();
    assert_eq!((&whole.payload[..], whole.state()), (&br#"{"t": 21}"#[..], State::Dead));
    let mut mqtt = Mqtt5::connect(&node, "screen").await;
    mqtt.subscribe("out").await;
    node.set_secret("gate", "key", "right").await;
    // Of two at the same time one retries it.
    let (mut first, mut second) = (operator.clone(), operator.clone());
    let both = tokio::join!(retry(&mut first, &found.id), retry(&mut second, &found.id));
    let (retried, refused) = match both {
        (Ok(id), Err(status)) | (Err(status), Ok(id)) => (id, status),
        both => panic!("{both:?}"),
    };
    assert_eq!(refused.code(), Code::NotFound);
    assert_ne!(retried, found.id);
    assert_eq!(mqtt.message().await.payload, r#"{"t": 21}"#);
    assert!(dead(&mut operator, 0).await.is_empty());
    let gone = retry(&mut operator, &found.id).await.unwrap_err();
    assert!(gone.message().contains("edgefaas dead"), "{gone}");
}

#[tokio::test]
async fn dead_letters_are_paged_by_function_and_discarded() {
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "a"
        [functions.one]
        main = "one.js"
        triggers = [{ mqtt = "in/#", qos = 1 }]
        retry = { attempts = 1 }
        [functions.two]
        main = "two.js"
        triggers = [{ mqtt = "in/#", qos = 1 }]
        retry = { attempts = 1 }"#;
    let fails = "export default () => { throw new Error('no'); }";
    node.deploy(manifest, &[("one", fails), ("two", fails)]).await;
    let mut mqtt = Mqtt5::connect(&node, "sensor").await;
    for number in 0..5 {
        mqtt.publish("in/a", &number.to_string()).await;
        mqtt.puback().await;
    }
    let mut operator = client(&node).await;
    dead(&mut operator, 10).await;
    // A dead letter can be read shortly before its invocation leaves the queue.
    in_time(async { while list(&mut operator, true).await.pending > 0 {} }).await;
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let request = proto::ListRequest { function: "two".into(), dead: true, after, limit: 2 };
        let page = operator.list(request).await.unwrap().into_inner();
        assert_eq!((page.dead, page.pending), (10, 0));
        assert!(page.invocations.iter().all(|found| found.function == "two"));
        pages.push(page.invocations.len());
        if page.next.is_empty() {
            break;
        }
        after = page.next;
    }
    assert_eq!(pages, [2, 2, 1]);
    for found in dead(&mut operator, 10).await {
        discard(&mut operator, &found.id).await.unwrap();
        assert_eq!(discard(&mut operator, &found.id).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(list(&mut operator, true).await.dead, 0);
    let wrong = proto::ListRequest { dead: true, after: "x".into(), ..Default::default() };
    assert_eq!(operator.list(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(list(&mut client(&node).await, true).await.dead, 0);
}

#[tokio::test]
async fn an_invocation_that_waits_for_its_next_attempt_is_hastened_or_ended() {
    let mut node = TestNode::start().await;
    node.set_secret("gate", "key", "wrong").await;
    deploy_gate(&mut node, "retry = { attempts = 3, backoff = \"10h\" }").await;
    let mut mqtt = Mqtt5::connect(&node, "sensor").await;
    mqtt.subscribe("out").await;
    mqtt.publish("in/a", "first").await;
    mqtt.puback().await;
    let mut operator = client(&node).await;
    let waiting = pending(&mut operator, State::Retrying).await;
    assert_eq!((waiting.attempt, waiting.attempts, waiting.status), (2, 3, 500));
    assert!(waiting.next_unix_ms > Clock::system().now_unix_ms() + 3_600_000, "{waiting:?}");
    node.set_secret("gate", "key", "right").await;
    assert_eq!(retry(&mut operator, &waiting.id).await.unwrap(), waiting.id);
    assert_eq!(mqtt.message().await.payload, "first");

    node.set_secret("gate", "key", "wrong").await;
    let accepted = post_with(&node, "/fn/gate", &[ASYNC], "second").await;
    assert_eq!(accepted.status(), 202);
    let location = accepted.headers()["location"].to_str().unwrap();
    let waiting = pending(&mut operator, State::Retrying).await;
    discard(&mut operator, &waiting.id).await.unwrap();
    let outcome = node.get(location).await;
    assert_eq!(
        (outcome.status().as_u16(), &json(&outcome)["title"]),
        (410, &"Discarded".into()),
        "{}",
        text(&outcome)
    );
    assert_eq!(list(&mut operator, false).await.pending, 0);
    assert!(list(&mut operator, true).await.invocations.is_empty(), "it is no dead letter");
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(list(&mut client(&node).await, false).await.pending, 0);
}
