//! The door of a test: an HTTP server on loopback that carries out its operations on the node.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use edgefaas_api::control::invoke_request::Event;
use edgefaas_api::control::invoke_response::Outcome;
use edgefaas_api::{control as proto, objects};
use edgefaas_broker::{
    Broker, Client as MqttClient, Message, Origin, PublishOutcome, QoS, TopicFilter, TopicName, Transport,
    Version,
};
use edgefaas_client::connection::{Client, MESSAGE_BYTES, ObjectsClient, failure};
use edgefaas_node::Advance;
use edgefaas_platform::Clock;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::messages::{BEGIN_TOPIC, Messages, OWN_TOPICS, is_seen};

/// Maximum wait of an operation.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// Time between two looks at what runs; functions start one another in between.
const IDLE_INTERVAL: Duration = Duration::from_millis(5);
/// Looks in a row that see nothing before the node counts as idle.
const IDLE_LOOKS: u32 = 3;

/// An open door.
pub struct Door {
    /// Its address.
    pub address: std::net::SocketAddr,
    node: Arc<Behind>,
    _task: AbortOnDropHandle<()>,
}

/// The node behind a door.
pub struct Behind {
    /// Proves that a request comes from a test.
    pub key: String,
    pub broker: Broker,
    pub control: Client,
    pub objects: ObjectsClient,
    pub messages: Messages,
    pub clock: Clock,
    pub time: Arc<Advance>,
    /// The function with the tests, which always runs during one.
    pub runner: String,
    /// Operations of the current test that have begun.
    pub begun: watch::Sender<u64>,
}

/// The number of an operation in its test, from 1 in the order in which the test began them. They come over several connections, and may
/// overtake one another.
const NUMBER: HeaderName = HeaderName::from_static("x-operation");

#[derive(Deserialize)]
struct Publish {
    topic: String,
    payload: String,
    qos: u8,
    retain: bool,
}

#[derive(Deserialize)]
struct Expect {
    filter: String,
    skip: Vec<u64>,
    within_ms: u64,
}

#[derive(Deserialize)]
struct Call {
    name: String,
    data: String,
}

#[derive(Deserialize)]
struct Fire {
    name: String,
    schedule: String,
    at_unix_ms: f64,
}

#[derive(Deserialize)]
struct Object {
    app: String,
    object: String,
    field: String,
}

#[derive(Deserialize)]
struct Idle {
    within_ms: u64,
}

#[derive(Deserialize)]
struct Forward {
    by: By,
    within_ms: u64,
}

/// A duration, as tests write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum By {
    Milliseconds(f64),
    Text(String),
}

impl By {
    fn duration(&self) -> anyhow::Result<Duration> {
        match self {
            Self::Milliseconds(ms) if *ms < 0.0 => anyhow::bail!("time does not go back, by {ms} ms"),
            Self::Milliseconds(ms) => Duration::try_from_secs_f64(ms / 1000.0)
                .with_context(|| format!("{ms} milliseconds are no duration")),
            Self::Text(text) => humantime::parse_duration(text).map_err(|_| {
                anyhow::anyhow!(
                    "{text:?} is not a duration: write a number and a unit, \"200ms\", \"10m\" or \"1h 30m\", or milliseconds as a number"
                )
            }),
        }
    }
}

impl Door {
    /// Opens a door on a free port of loopback.
    pub async fn open(node: Behind) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for the tests")?;
        let address = listener.local_addr()?;
        let node = Arc::new(node);
        let task = tokio::spawn(accept(listener, node.clone()));
        Ok(Self { address, node, _task: AbortOnDropHandle::new(task) })
    }

    /// Begins a test: what is under way ends, and earlier messages do not count.
    pub async fn begin(&self) -> anyhow::Result<()> {
        // What does not end belongs to the test before, which has its result.
        let _ = self.node.idle(Duration::from_secs(1)).await;
        self.node.begun.send_replace(0);
        let before = self.node.messages.count();
        self.node.publish(BEGIN_TOPIC, Vec::new(), 1, false)?;
        let begun = tokio::time::timeout(Duration::from_secs(10), self.node.messages.begun(before)).await;
        begun.context("the node of the tests does not deliver messages")
    }
}

/// Serves connections, until it is dropped.
async fn accept(listener: TcpListener, node: Arc<Behind>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let node = node.clone();
        let service = service_fn(move |request| answer(node.clone(), request));
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    node: Arc<Behind>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (status, text) = if given.and_then(|given| given.strip_prefix("Bearer ")) != Some(&*node.key) {
        (StatusCode::UNAUTHORIZED, "only for tests".to_owned())
    } else {
        match carry_out(&node, request).await {
            Ok(Value::Null) => (StatusCode::OK, String::new()),
            Ok(value) => (StatusCode::OK, value.to_string()),
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")),
        }
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    Ok(response)
}

async fn carry_out(node: &Behind, request: Request<Incoming>) -> anyhow::Result<Value> {
    let operation = request.uri().path().trim_start_matches('/').to_owned();
    let number = request.headers().get(NUMBER).and_then(|number| number.to_str().ok()?.parse().ok());
    let body = Limited::new(request.into_body(), MESSAGE_BYTES).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the request cannot be read: {error}"))?.to_bytes();
    let mut carrying_out = pin!(node.carry_out(&operation, number.unwrap_or(1), &body));
    // Its first part gives a call to the node.
    let first = poll_fn(|context| Poll::Ready(carrying_out.as_mut().poll(context))).await;
    node.begun.send_modify(|begun| *begun += 1);
    match first {
        Poll::Ready(result) => result,
        Poll::Pending => carrying_out.await,
    }
}

impl Behind {
    async fn carry_out(&self, operation: &str, number: u64, body: &[u8]) -> anyhow::Result<Value> {
        match operation {
            "publish" => {
                let Publish { topic, payload, qos, retain } = serde_json::from_slice(body)?;
                self.publish(&topic, STANDARD.decode(payload)?, qos, retain)?;
                Ok(Value::Null)
            }
            "message" => self.message(serde_json::from_slice(body)?).await,
            "call" => {
                let Call { name, data } = serde_json::from_slice(body)?;
                self.invoke(name, STANDARD.decode(data)?, None).await
            }
            "fire" => {
                let Fire { name, schedule, at_unix_ms } = serde_json::from_slice(body)?;
                let tick = proto::CronEvent { schedule, scheduled_unix_ms: at_unix_ms as u64 };
                self.invoke(name, Vec::new(), Some(Event::Cron(tick))).await
            }
            "object" => self.object(serde_json::from_slice(body)?).await,
            "idle" => {
                let Idle { within_ms } = serde_json::from_slice(body)?;
                let within = Duration::from_millis(within_ms).min(MAX_WAIT);
                self.earlier_ones(number, within).await;
                self.idle(within).await?;
                Ok(Value::Null)
            }
            "advance" => {
                let Forward { by, within_ms } = serde_json::from_slice(body)?;
                let within = Duration::from_millis(within_ms).min(MAX_WAIT);
                self.earlier_ones(number, within).await;
                self.time.advance(by.duration()?, within, &self.runner).await?;
                Ok(json!({ "now_unix_ms": self.clock.now_unix_ms() }))
            }
            other => anyhow::bail!("tests have no operation `{other}`"),
        }
    }

    /// Waits until the operations before this one have begun: a call that the test does not await is at work when time is advanced. One
    /// that does not arrive was given up by the test.
    async fn earlier_ones(&self, number: u64, within: Duration) {
        let mut begun = self.begun.subscribe();
        let _ = tokio::time::timeout(within, begun.wait_for(|begun| begun + 1 >= number)).await;
    }

    fn publish(&self, topic: &str, payload: Vec<u8>, qos: u8, retain: bool) -> anyhow::Result<()> {
        let qos = match qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => anyhow::bail!("{qos} is not a quality of service; it is 0, 1 or 2"),
        };
        let name = TopicName::new(topic.to_owned()).with_context(|| format!("{topic:?} is not a topic"))?;
        let client = MqttClient {
            client_id: "edgefaas-test-publisher".into(),
            username: None,
            peer: ([127, 0, 0, 1], 0).into(),
            version: Version::V5,
            transport: Transport::Internal,
        };
        let message = Message::new(name, payload).with_qos(qos).with_retain(retain);
        match self.broker.publish(&Origin::Client(client.into()), message) {
            PublishOutcome::Rejected(reason) => {
                anyhow::bail!("the broker refused the message of {topic}: {reason:?}")
            }
            _ => Ok(()),
        }
    }

    async fn message(&self, expect: Expect) -> anyhow::Result<Value> {
        let Expect { filter, skip, within_ms } = expect;
        let parsed = TopicFilter::new(filter.clone())
            .with_context(|| format!("{filter:?} is not a topic filter"))?;
        if !is_seen(&filter) {
            let own = OWN_TOPICS.join(", ");
            anyhow::bail!("tests see messages of the node itself on {own} only, and not all of {filter}");
        }
        let within = Duration::from_millis(within_ms).min(MAX_WAIT);
        Ok(match self.messages.find(&parsed, &skip, within).await {
            Some(seen) => json!({ "message": {
                "number": seen.number,
                "topic": seen.topic,
                "qos": seen.qos,
                "retain": seen.retain,
                "payload": STANDARD.encode(&seen.payload),
            }}),
            None => json!({ "topics": self.messages.topics() }),
        })
    }

    async fn invoke(&self, function: String, data: Vec<u8>, event: Option<Event>) -> anyhow::Result<Value> {
        let request = proto::InvokeRequest { function, data, event };
        let response = self.control.clone().invoke(request).await.map_err(|status| failure(&status))?;
        Ok(match response.into_inner().outcome {
            Some(Outcome::Failure(failure)) => json!({ "failure": {
                "status": failure.status, "title": failure.title, "detail": failure.detail,
            }}),
            Some(Outcome::Reply(reply)) => {
                let headers = reply.headers.iter().map(|header| [&header.name, &header.value]);
                json!({ "reply": {
                    "kind": reply.kind,
                    "body": STANDARD.encode(&reply.body),
                    "status": reply.status,
                    "headers": headers.collect::<Vec<_>>(),
                }})
            }
            None => anyhow::bail!("the node gave no outcome"),
        })
    }

    async fn object(&self, wanted: Object) -> anyhow::Result<Value> {
        let Object { app, object, field } = wanted;
        let request = objects::GetRequest { app, object, field, path: Vec::new() };
        let fields = self.objects.clone().get(request).await.map_err(|status| failure(&status))?;
        let fields = fields.into_inner().fields.into_iter();
        let values = fields.map(|field| anyhow::Ok((field.name, serde_json::from_str(&field.json)?)));
        Ok(Value::Object(values.collect::<anyhow::Result<Map<_, _>>>()?))
    }

    async fn idle(&self, within: Duration) -> anyhow::Result<()> {
        let mut busy = Vec::new();
        let waiting = async {
            let mut looks = 0;
            loop {
                busy = self.busy().await?;
                looks = if busy.is_empty() { looks + 1 } else { 0 };
                if looks == IDLE_LOOKS {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(IDLE_INTERVAL).await;
            }
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(idle) => idle,
            Err(_) => anyhow::bail!("after {within:?} still at work: {}", busy.join(", ")),
        }
    }

    /// The functions that run or wait to run.
    async fn busy(&self) -> anyhow::Result<Vec<String>> {
        let request = proto::ListRequest { nodes: false };
        let apps = self.control.clone().list(request).await.map_err(|status| failure(&status))?;
        let functions = apps.into_inner().apps.into_iter().flat_map(|app| app.functions);
        let at_work = |function: &proto::Function| {
            let stats = function.stats.unwrap_or_default();
            function.name != self.runner && (stats.running > 0 || stats.queued > 0 || stats.pending > 0)
        };
        Ok(functions.filter(at_work).map(|function| function.name).collect())
    }
}
