//! The function as a client of a broker: subscribes to requests, runs the function, publishes the replies.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{Compiler, Isolates, IsolatesConfig, Limits, Reply};
use rumqttc::{AsyncClient, Event, MqttOptions, NetworkOptions, Packet, QoS};

use super::{FunctionKind, announce};
use crate::functions::{self, NoHost};
use crate::mqtt::{Client, publish};

/// Requests that may wait for the client to send their replies; more than any load has under way.
const QUEUE: usize = 4096;

/// In fresh isolates, on one thread, with the usual MQTT client.
pub fn run_isolates(broker: SocketAddr, kind: FunctionKind) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let isolates = Isolates::new(&IsolatesConfig {
            pool: PoolConfig::default(),
            compiler: Compiler::InProcess,
            code_cache: None,
            clock: edgefaas_node::Clock::system(),
        })?;
        let source = match kind {
            FunctionKind::Js => functions::js_source(),
            _ => functions::rust_source()?,
        };
        let program = isolates.prepare(functions::wanted(&source)).await?;
        let meta = functions::meta();

        let name = format!("function-{}", kind.name());
        let mut options = MqttOptions::new(name, broker.ip().to_string(), broker.port());
        options.set_max_packet_size(1 << 20, 1 << 20);
        let (client, mut events) = AsyncClient::new(options, QUEUE);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        events.set_network_options(network);
        client.subscribe(requests(kind), QoS::AtMostOnce).await?;
        loop {
            match events.poll().await? {
                Event::Incoming(Packet::SubAck(_)) => announce("ready")?,
                Event::Incoming(Packet::Publish(request)) => {
                    let event = functions::call(request.payload);
                    let run = isolates.run(&program, &meta, event, Limits::default(), Box::new(NoHost));
                    let reply = match run.await.result? {
                        Reply::Bytes(bytes) => bytes,
                        other => bail!("the function answered {other:?}"),
                    };
                    let topic = reply_topic(&request.topic)?;
                    client.try_publish(topic, QoS::AtMostOnce, false, Vec::from(reply))?;
                }
                _ => {}
            }
        }
    })
}

/// Without isolates, answering all that one read brings with one write.
pub fn run_plain(broker: SocketAddr) -> anyhow::Result<()> {
    let mut client = Client::connect(broker, "function-plain")?;
    client.wait_forever()?;
    client.subscribe(&requests(FunctionKind::Plain))?;
    announce("ready")?;
    let mut out = Vec::new();
    loop {
        out.clear();
        let mut failed = None;
        client.publishes(|topic, payload| {
            match std::str::from_utf8(topic).map_err(anyhow::Error::from).and_then(reply_topic) {
                Ok(topic) => out.extend(publish(&topic, payload)),
                Err(error) => failed = Some(error),
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        client.send(&out)?;
    }
}

fn requests(kind: FunctionKind) -> String {
    format!("bench/fn/{}/invoke/+", kind.name())
}

/// `bench/fn/NAME/result/ID` for `bench/fn/NAME/invoke/ID`.
fn reply_topic(request: &str) -> anyhow::Result<String> {
    let (head, id) = request.rsplit_once("/invoke/").context("a request's topic")?;
    Ok(format!("{head}/result/{id}"))
}
