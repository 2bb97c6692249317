//! MQTT request -> function -> MQTT reply, QoS 0, 64 B: a node beside mosquitto with the function as its client.

use std::net::SocketAddr;

use edgefaas_benches::mqtt::{Topics, closed_loop, tcp_echo_loop};
use edgefaas_benches::node::Node;
use edgefaas_benches::peers::{self, FunctionKind, Mosquitto, Persistence};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::Load;

use crate::Plan;

/// Requests under way on each connection when throughput is measured.
const OUTSTANDING: usize = 64;

const BROKERED: [&str; 5] = [
    "node, JavaScript",
    "node, Rust",
    "mosquitto + client, JavaScript",
    "mosquitto + client, Rust",
    "mosquitto + client, plain Rust, batched",
];
/// Rows of `BROKERED`: ours, and the peer that runs the same function.
const PAIRS: [(&str, usize, usize); 2] = [("JavaScript", 0, 2), ("Rust", 1, 3)];

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "mqtt",
        "MQTT request, function, MQTT reply",
        "A client publishes 64 B with QoS 0, a function in a fresh isolate echoes it, the client gets the reply. The \
         same load client (blocking sockets, a thread a connection) drives all; everybody has TCP_NODELAY. The peer is \
         mosquitto with a client that runs the same function in the same isolates (rumqttc, one thread). The last row \
         is what mosquitto gives a function that costs nothing: plain Rust on a bare socket that answers all requests \
         of one read with one write.",
        &crate::command("mqtt"),
    );
    let (_echo, echo_address) = peers::start_listening("echo")?;
    let data = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    node.deploy(&plan.binary, data.path())?;
    let mosquitto = Mosquitto::start(Persistence::None)?;
    let kinds = [FunctionKind::Js, FunctionKind::Rust, FunctionKind::Plain];
    let _clients = kinds
        .into_iter()
        .map(|kind| peers::start_function_client(mosquitto.address, kind))
        .collect::<Result<Vec<_>, _>>()?;
    let brokered = |contestant: usize, connections: usize, outstanding: usize| -> anyhow::Result<Load> {
        let (address, topics) = contestant_at(contestant, node.mqtt, mosquitto.address);
        closed_loop(address, topics, connections, outstanding, plan.turn)
    };

    let figures = [("p50", "us"), ("p99", "us")];
    let contestants = [&["TCP echo, nothing else"][..], &BROKERED].concat();
    let mut latency = Table::new("One request at a time", &contestants, &figures);
    for _ in 0..plan.rounds {
        for contestant in 0..contestants.len() {
            let mut load = match contestant {
                0 => tcp_echo_loop(echo_address, plan.turn)?,
                _ => brokered(contestant - 1, 1, 1)?,
            };
            latency.add(contestant, &[load.samples.quantile_us(0.5), load.samples.quantile_us(0.99)]);
        }
    }
    for (language, ours, peer) in PAIRS {
        report.targets.push(Target::at_most(
            "mqtt-one-message",
            &format!("{language}: p50 at most 0.8 times that of the same function behind mosquitto"),
            latency.ratio(1 + ours, 1 + peer, 0),
            0.8,
        ));
        report.targets.push(Target::at_most(
            "mqtt-latency",
            &format!("{language}: p50 at most 3 times the TCP echo's"),
            latency.ratio(1 + ours, 0, 0),
            3.0,
        ));
    }
    report.tables.push(latency);

    for connections in [1, 4] {
        let title = format!("{connections} connection(s), {OUTSTANDING} requests under way on each");
        let figures = [("round trips", "1/s"), ("p50", "us"), ("p99", "us")];
        let mut table = Table::new(&title, &BROKERED, &figures);
        for _ in 0..plan.rounds {
            for contestant in 0..BROKERED.len() {
                let mut load = brokered(contestant, connections, OUTSTANDING)?;
                let (p50, p99) = (load.samples.quantile_us(0.5), load.samples.quantile_us(0.99));
                table.add(contestant, &[load.per_second, p50, p99]);
            }
        }
        for (language, ours, peer) in PAIRS {
            report.targets.push(Target::at_least(
                "mqtt-throughput",
                &format!("{language}, {connections} connection(s): at least 3 times the same function behind mosquitto"),
                table.ratio(ours, peer, 0),
                3.0,
            ));
        }
        report.tables.push(table);
    }
    Ok(report)
}

/// Where a contestant of `BROKERED` is, and its topics.
fn contestant_at(
    contestant: usize,
    node: SocketAddr,
    mosquitto: SocketAddr,
) -> (SocketAddr, Box<dyn Fn(usize) -> Topics>) {
    match contestant {
        0 => (node, Box::new(|connection| Topics::of_node("echo-js", connection))),
        1 => (node, Box::new(|connection| Topics::of_node("echo-rust", connection))),
        2 => (mosquitto, Box::new(|connection| Topics::of_client("js", connection))),
        3 => (mosquitto, Box::new(|connection| Topics::of_client("rust", connection))),
        _ => (mosquitto, Box::new(|connection| Topics::of_client("plain", connection))),
    }
}
