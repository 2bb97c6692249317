//! The healthy clients: MQTT, HTTP and gRPC, each with one request at a time, and what they were promised.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use edgefaas_api::objects::objects_client::ObjectsClient;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_api::objects::{GetRequest, UpdateRequest};
use edgefaas_benches::client::{Client as HttpClient, connect as connect_from};
use edgefaas_benches::mqtt::{self, Client as MqttClient};
use rumqttc::{Event, Incoming, MqttOptions, Outgoing, QoS};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

/// Between two requests of a client.
const EVERY: Duration = Duration::from_millis(5);
/// Their address is another one than the attackers': what the node shares out, it shares out by address.
const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// After this nothing more is expected.
const SILENCE: Duration = Duration::from_secs(5);
const APP: &str = "hostile";
const LEDGER: &str = "healthy/ledger";

/// Where the node is.
#[derive(Debug, Clone)]
pub struct Target {
    pub http: SocketAddr,
    pub mqtt: SocketAddr,
    pub control: SocketAddr,
    pub token: String,
}

/// Times in milliseconds of each kind of client, and requests that were refused or failed.
#[derive(Debug, Default)]
pub struct Times {
    pub mqtt: Vec<f64>,
    pub http: Vec<f64>,
    pub grpc: Vec<f64>,
    pub failed: u64,
}

/// What was acknowledged, to be held against what the node has.
#[derive(Debug, Default)]
pub struct Ledger {
    additions: u64,
    acknowledged: u64,
    /// Messages that the session has not received.
    missing: BTreeSet<u64>,
}

/// Runs the clients for `length`.
pub fn run(target: &Target, length: Duration, ledger: &mut Ledger) -> anyhow::Result<Times> {
    let until = Instant::now() + length;
    std::thread::scope(|threads| {
        let mqtt = threads.spawn(|| mqtt_round_trips(target, until));
        let http = threads.spawn(|| http_calls(target, until));
        let acknowledged = threads.spawn(|| messages(target, until));
        let (grpc, additions, mut failed) = additions(target, until)?;
        let (http, http_failed) = http.join().ok().context("a client panicked")?;
        let (mqtt, mqtt_failed) = mqtt.join().ok().context("a client panicked")??;
        ledger.additions += additions;
        let acknowledged = acknowledged.join().ok().context("a client panicked")??;
        ledger.acknowledged += acknowledged.len() as u64;
        ledger.missing.extend(acknowledged);
        failed += http_failed + mqtt_failed;
        Ok(Times { mqtt, http, grpc, failed })
    })
}

fn timed(times: &mut Vec<f64>, request: impl FnOnce() -> bool) -> u64 {
    let began = Instant::now();
    let ok = request();
    if ok {
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    std::thread::sleep(EVERY.saturating_sub(began.elapsed()));
    u64::from(!ok)
}

fn mqtt_round_trips(target: &Target, until: Instant) -> anyhow::Result<(Vec<f64>, u64)> {
    let (mut times, mut failed) = (Vec::new(), 0);
    let mut client = MqttClient::over(connect_from(Some(SOURCE), target.mqtt)?, "healthy")?;
    client.subscribe("healthy/echo")?;
    let packet = mqtt::publish("healthy/echo", &[b'x'; mqtt::PAYLOAD_BYTES]);
    while Instant::now() < until {
        failed += timed(&mut times, || client.send(&packet).is_ok() && client.publishes(|_, _| {}).is_ok());
    }
    Ok((times, failed))
}

fn http_calls(target: &Target, until: Instant) -> (Vec<f64>, u64) {
    let (mut times, mut failed) = (Vec::new(), 0);
    let mut failed_first = None;
    let mut client = HttpClient::from(SOURCE, target.http);
    while Instant::now() < until {
        failed += timed(&mut times, || match client.post("/fn/small", b"hello") {
            Ok((200, body)) if body == b"hello" => true,
            failure => {
                // The first one tells what the others are.
                failed_first.get_or_insert(failure);
                false
            }
        });
    }
    if let Some(failure) = failed_first {
        let failure = failure.map(|(status, body)| (status, String::from_utf8_lossy(&body).into_owned()));
        eprintln!("the first HTTP failure of {failed}: {failure:?}");
    }
    (times, failed)
}

fn additions(target: &Target, until: Instant) -> anyhow::Result<(Vec<f64>, u64, u64)> {
    let (mut times, mut added, mut failed) = (Vec::new(), 0, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut client = runtime.block_on(connect(target))?;
    while Instant::now() < until {
        let request = UpdateRequest {
            app: APP.into(),
            object: "healthy".into(),
            field: "n".into(),
            operation: Some(Operation::CounterAdd(1)),
            ..UpdateRequest::default()
        };
        let refused = timed(&mut times, || {
            runtime.block_on(async { client.update(authorized(target, request)).await }).is_ok()
        });
        (added, failed) = (added + 1 - refused, failed + refused);
    }
    Ok((times, added, failed))
}

async fn connect(target: &Target) -> anyhow::Result<ObjectsClient<tonic::transport::Channel>> {
    let endpoint = tonic::transport::Endpoint::new(format!("http://{}", target.control))?;
    Ok(ObjectsClient::new(endpoint.tcp_nodelay(true).connect().await?))
}

fn authorized<T>(target: &Target, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(value) = format!("Bearer {}", target.token).parse::<MetadataValue<Ascii>>() {
        request.metadata_mut().insert("authorization", value);
    }
    request
}

/// Publishes numbered messages of QoS 1 to a session that is kept; gives those that were acknowledged.
fn messages(target: &Target, until: Instant) -> anyhow::Result<Vec<u64>> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let (client, mut connection) = client(target, "healthy-ledger-writer", true);
    let done = AtomicBool::new(false);
    // Before the first one is taken.
    let first = NEXT.load(Ordering::Relaxed);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while Instant::now() < until {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                if client.publish(LEDGER, QoS::AtLeastOnce, false, number.to_string()).is_err() {
                    return;
                }
                std::thread::sleep(EVERY);
            }
            done.store(true, Ordering::Relaxed);
        });
        // Numbers in the order in which they are sent, by their packet identifiers.
        let (mut sent, mut acknowledged) = (std::collections::HashMap::new(), Vec::new());
        let mut number = first;
        let deadline = until + Duration::from_secs(15);
        while Instant::now() < deadline && !(done.load(Ordering::Relaxed) && sent.is_empty()) {
            match connection.recv_timeout(Duration::from_millis(200)) {
                Ok(Ok(Event::Outgoing(Outgoing::Publish(id)))) if id != 0 => {
                    sent.insert(id, number);
                    number += 1;
                }
                Ok(Ok(Event::Incoming(Incoming::PubAck(ack)))) => {
                    acknowledged.extend(sent.remove(&ack.pkid))
                }
                Ok(Err(error)) => return Err(error).context("the healthy MQTT client was cut off"),
                _ => {}
            }
        }
        let _ = client.disconnect();
        Ok(acknowledged)
    })
}

fn client(target: &Target, id: &str, clean: bool) -> (rumqttc::Client, rumqttc::Connection) {
    let mut options = MqttOptions::new(id, target.mqtt.ip().to_string(), target.mqtt.port());
    options.set_clean_session(clean).set_keep_alive(Duration::from_secs(60)).set_inflight(1000);
    rumqttc::Client::new(options, 1000)
}

impl Ledger {
    /// Makes the session that keeps the numbered messages.
    pub fn open(target: &Target) -> anyhow::Result<Self> {
        let (client, mut connection) = client(target, "healthy-ledger", false);
        client.subscribe(LEDGER, QoS::AtLeastOnce)?;
        for event in connection.iter() {
            if let Event::Incoming(Incoming::SubAck(_)) = event? {
                break;
            }
        }
        client.disconnect()?;
        while connection.recv_timeout(Duration::from_secs(1)).is_ok_and(|event| event.is_ok()) {}
        Ok(Self::default())
    }

    /// Receives what the session keeps, whose queue has a bound: less than that is published under one attack.
    pub fn receive(&mut self, target: &Target) -> anyhow::Result<()> {
        let (client, mut connection) = client(target, "healthy-ledger", false);
        while !self.missing.is_empty() {
            match connection.recv_timeout(SILENCE) {
                Ok(Ok(Event::Incoming(Incoming::Publish(message)))) => {
                    let text = std::str::from_utf8(&message.payload)?;
                    self.missing.remove(&text.parse()?);
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        client.disconnect()?;
        while connection.recv_timeout(Duration::from_secs(1)).is_ok_and(|event| event.is_ok()) {}
        Ok(())
    }

    /// How many additions and messages were acknowledged, and how many of these the node has lost.
    pub fn lost(self, target: &Target) -> anyhow::Result<(u64, u64)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let value = runtime.block_on(async {
            let request = GetRequest { app: APP.into(), object: "healthy".into(), ..GetRequest::default() };
            let object = connect(target).await?.get(authorized(target, request)).await?.into_inner();
            let field =
                object.fields.iter().find(|field| field.name == "n").context("the counter is gone")?;
            anyhow::Ok(field.json.parse::<u64>()?)
        })?;
        let lost = self.additions.saturating_sub(value) + self.missing.len() as u64;
        Ok((self.additions + self.acknowledged, lost))
    }
}
