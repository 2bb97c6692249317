//! The broker as a broker: throughput and latency by shape, idle connections, durability, restart with a backlog.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_benches::broker_load::{Shape, carry, connect, packet, text};
use edgefaas_benches::node::Node;
use edgefaas_benches::peers::{Mosquitto, Nats, Persistence, Rumqttd};
use edgefaas_benches::process::{cpu_seconds_of, resident_mb_of};
use edgefaas_benches::results::{Report, Table, Target};

use crate::Plan;
use crate::many::Many;

const NODE: usize = 0;
const MOSQUITTO: usize = 1;
const RUMQTTD: usize = 2;
const CONTESTANTS: [&str; 3] = ["node", "mosquitto", "rumqttd"];
const DELIVERED: usize = 0;
const LATENCY_P50: usize = 0;
const LATENCY_P99: usize = 1;
/// Messages a second at rest.
const REST_RATE: f64 = 500.0;

/// What a node takes by default.
const IDLE_CONNECTIONS: usize = 10_000;
/// Connections made before the first look at the memory.
const EARLY: usize = 100;
const BACKLOG: usize = 100_000;
const DURABLE_PAYLOAD_BYTES: usize = 64;

/// A broker under load.
struct Contestant {
    name: usize,
    address: SocketAddr,
    process: u32,
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "broker",
        "The broker beside its peers",
        "One load client (blocking sockets, a thread a connection, MQTT 3.1.1, TCP_NODELAY) drives all brokers in turn; the \
         publishers have at most 2,000 messages under way, so that nobody has to drop any. Processor time is that of the broker \
         a delivery. Latency is measured at the same rate for all: half of what mosquitto carries. rumqttd does not set \
         TCP_NODELAY and can't be told to.",
        &crate::command("broker"),
    );
    let data = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    let mosquitto = Mosquitto::start(Persistence::None)?;
    let rumqttd = Rumqttd::start();
    if let Err(error) = &rumqttd {
        eprintln!("without rumqttd: {error:#}");
    }
    let mut contestants = vec![
        Contestant { name: NODE, address: node.mqtt, process: node.process.id() },
        Contestant { name: MOSQUITTO, address: mosquitto.address, process: mosquitto.id() },
    ];
    if let Ok(rumqttd) = &rumqttd {
        contestants.push(Contestant { name: RUMQTTD, address: rumqttd.address, process: rumqttd.id() });
    }
    for qos in [0, 1] {
        for (publishers, subscribers) in [(1, 1), (1, 50), (50, 1)] {
            for payload_bytes in [64, 1024] {
                let shape = Shape {
                    publishers,
                    subscribers,
                    qos,
                    payload_bytes,
                    kept_sessions: false,
                    away: false,
                    rate: None,
                };
                let table = throughput(plan, &contestants, shape)?;
                let wanted = match (qos, publishers, subscribers, payload_bytes) {
                    (0, 1, 1, 64) => 5.0,
                    (1, 1, 1, 64) => 8.0,
                    _ => 2.0,
                };
                report.targets.push(Target::at_least(
                    "broker-throughput",
                    &format!("{}: at least {wanted} times mosquitto", table.title),
                    table.ratio(NODE, MOSQUITTO, DELIVERED),
                    wanted,
                ));
                if qos == 0 && publishers == 1 && contestants.len() > RUMQTTD {
                    report.targets.push(Target::at_least(
                        "broker-rumqttd",
                        &format!("{}: at least rumqttd's rate", table.title),
                        table.ratio(NODE, RUMQTTD, DELIVERED),
                        1.0,
                    ));
                }
                report.tables.push(table);
            }
        }
    }
    for qos in [0, 1] {
        for measure in [at_rest, latency] {
            let (table, target) = measure(plan, &contestants, qos)?;
            report.tables.push(table);
            report.targets.push(target);
        }
    }
    drop((mosquitto, rumqttd));
    node.process.terminate()?;
    idle_connections(plan, &mut report)?;
    scale(plan, &mut report)?;
    durable(plan, &mut report)?;
    restart(plan, &mut report)?;
    Ok(report)
}

fn throughput(plan: &Plan, contestants: &[Contestant], shape: Shape) -> anyhow::Result<Table> {
    let Shape { publishers, subscribers, qos, payload_bytes, .. } = shape;
    let mut table = Table::new(
        &format!("QoS {qos}, {publishers} to {subscribers}, {payload_bytes} B"),
        &CONTESTANTS[..contestants.len()],
        &[("delivered", "messages/s"), ("processor", "us a delivery")],
    );
    for _ in 0..plan.rounds {
        for contestant in contestants {
            let mut cpu = Vec::new();
            let carried = carry(contestant.address, shape, plan.turn, || {
                cpu.push(cpu_seconds_of(contestant.process)?);
                Ok(())
            })
            .with_context(|| CONTESTANTS[contestant.name])?;
            let used_us = (cpu[1] - cpu[0]) * 1e6 / carried.delivered.max(1) as f64;
            table.add(contestant.name, &[carried.delivered_per_second, used_us]);
        }
    }
    Ok(table)
}

/// Latency from one publisher to one subscriber at half of what mosquitto carries.
fn latency(plan: &Plan, contestants: &[Contestant], qos: u8) -> anyhow::Result<(Table, Target)> {
    let shape = one_to_one(qos);
    let mosquitto = contestants.iter().find(|contestant| contestant.name == MOSQUITTO);
    let mosquitto = mosquitto.context("mosquitto is there")?;
    let most = carry(mosquitto.address, shape, plan.turn, || Ok(()))?.delivered_per_second;
    let title =
        format!("QoS {qos}, 1 to 1, 64 B at {:.0} messages/s: from sending to receiving", most / 2.0);
    let table = latencies(plan, contestants, Shape { rate: Some(most / 2.0), ..shape }, &title)?;
    let target = Target::at_most(
        "broker-latency",
        &format!("QoS {qos}: p99 at half load not above mosquitto's"),
        table.ratio(NODE, MOSQUITTO, LATENCY_P99),
        1.0,
    );
    Ok((table, target))
}

/// One message at a time, with nothing else to do.
fn at_rest(plan: &Plan, contestants: &[Contestant], qos: u8) -> anyhow::Result<(Table, Target)> {
    let title = format!("QoS {qos}, 1 to 1, 64 B, one message every {} ms", 1e3 / REST_RATE);
    let table = latencies(plan, contestants, Shape { rate: Some(REST_RATE), ..one_to_one(qos) }, &title)?;
    let target = Target::at_most(
        "broker-at-rest",
        &format!("QoS {qos}: p50 of one message at rest at most 1.1 times mosquitto's"),
        table.ratio(NODE, MOSQUITTO, LATENCY_P50),
        1.1,
    );
    Ok((table, target))
}

fn one_to_one(qos: u8) -> Shape {
    Shape {
        publishers: 1,
        subscribers: 1,
        qos,
        payload_bytes: 64,
        kept_sessions: false,
        away: false,
        rate: None,
    }
}

fn latencies(plan: &Plan, contestants: &[Contestant], shape: Shape, title: &str) -> anyhow::Result<Table> {
    let figures = [("p50", "us"), ("p99", "us")];
    let mut table = Table::new(title, &CONTESTANTS[..contestants.len()], &figures);
    for _ in 0..plan.rounds {
        for contestant in contestants {
            let mut carried = carry(contestant.address, shape, plan.turn, || Ok(()))?;
            table.add(
                contestant.name,
                &[carried.latency.quantile_us(0.5), carried.latency.quantile_us(0.99)],
            );
        }
    }
    Ok(table)
}

/// What a connection costs that does nothing.
fn idle_connections(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = files.current.unwrap_or(1 << 20).saturating_sub(100) as usize;
    let count = IDLE_CONNECTIONS.min(files) - EARLY;
    let mut table =
        Table::new(&format!("{count} idle connections"), &CONTESTANTS[..2], &[("a connection", "bytes")]);
    for _ in 0..plan.rounds.min(3) {
        let data = tempfile::tempdir()?;
        let node = Node::start(&plan.binary, data.path())?;
        let mosquitto = Mosquitto::start(Persistence::None)?;
        for (name, address, process) in
            [(NODE, node.mqtt, node.process.id()), (MOSQUITTO, mosquitto.address, mosquitto.id())]
        {
            // The first ones also pay for what is made once.
            let mut connections = Vec::new();
            for number in 0..EARLY {
                connections.push(connect(address, &format!("early-{number}"), true)?);
            }
            std::thread::sleep(plan.settle);
            let (before_mb, _) = resident_mb_of(process)?;
            for number in 0..count {
                connections.push(connect(address, &format!("idle-{number}"), true)?);
            }
            std::thread::sleep(plan.settle);
            let (after_mb, _) = resident_mb_of(process)?;
            table.add(name, &[(after_mb - before_mb) * 1e6 / count as f64]);
        }
    }
    let bytes = table.rows[NODE].figures[0].median();
    report.targets.push(Target::at_most("broker-idle", "6 KB for an idle connection", bytes, 6144.0));
    report.tables.push(table);
    Ok(())
}

/// What many retained topics and subscriptions cost.
fn scale(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    const SIZES: [usize; 3] = [1000, 10_000, 100_000];
    let names: Vec<String> = ["node", "mosquitto"]
        .iter()
        .flat_map(|name| SIZES.map(|size| format!("{name}, {size} of each")))
        .collect();
    let mut table = Table::new(
        "Retained topics (64 B each) and subscriptions, one for each; then a SUBSCRIBE to one of the topics until its message \
         has come, and a PUBLISH to one of the subscriptions until it has come",
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
        &[
            ("a retained topic", "bytes"),
            ("a subscription", "bytes"),
            ("retained p50", "us"),
            ("publish p50", "us"),
        ],
    );
    for _ in 0..plan.rounds.min(3) {
        let data = tempfile::tempdir()?;
        let node = Node::start(&plan.binary, data.path())?;
        let mosquitto = Mosquitto::start(Persistence::None)?;
        let brokers = [(node.mqtt, node.process.id()), (mosquitto.address, mosquitto.id())];
        for (broker, (address, process)) in brokers.into_iter().enumerate() {
            let mut many = Many::start(address, process)?;
            for (row, size) in SIZES.iter().enumerate() {
                let (retained, subscription) = many.grow(*size, plan.settle)?;
                let (subscribe_us, publish_us) = many.ask()?;
                table.add(broker * SIZES.len() + row, &[retained, subscription, subscribe_us, publish_us]);
            }
        }
    }
    let growth = |figure: usize| table.ratio(SIZES.len() - 1, 0, figure);
    for (figure, what) in [(2, "retained"), (3, "subscriptions")] {
        report.targets.push(Target::at_most(
            "broker-scale",
            &format!("{what}: 100,000 take at most 1.67 times as long as 1,000 (the logarithms' quotient)"),
            growth(figure),
            5.0 / 3.0,
        ));
    }
    report.tables.push(table);
    Ok(())
}

/// QoS 1 to a session that is kept, synced before PUBACK.
fn durable(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    const APPEND: usize = 2;
    const APPEND_SAME: usize = 3;
    const NATS: usize = 4;
    let mut with_nats = true;
    for away in [true, false] {
        let what = match away {
            true => "whose client is away (acknowledged messages)",
            false => "whose client is there (deliveries); what it acknowledges in time is not written",
        };
        let mut table = Table::new(
            &format!(
                "QoS 1, 1 to 1, 64 B, to a session that is kept and {what}; synced before PUBACK, or as the peer can"
            ),
            &[
                "node",
                "mosquitto, saving on every change",
                "append + fdatasync of 1,000 messages",
                "append + fdatasync of as many as the node",
                "NATS JetStream, sync_interval always",
            ],
            &[("rate", "messages/s"), ("a sync", "messages")],
        );
        let shape = Shape {
            publishers: 1,
            subscribers: 1,
            qos: 1,
            payload_bytes: DURABLE_PAYLOAD_BYTES,
            kept_sessions: true,
            away,
            rate: None,
        };
        for _ in 0..plan.rounds {
            let folder = tempfile::tempdir()?;
            // Enough for what waits for one that is away: no message costs another its place.
            let settings =
                "[broker]\nqueue_messages = 100000000\nqueue_size = \"8GiB\"\nmax_queue_size = \"16GiB\"\n";
            let node = Node::start_with(&plan.binary, folder.path(), settings)?;
            let mut syncs = Vec::new();
            let carried = carry(node.mqtt, shape, plan.turn, || {
                syncs.push(node.metric(folder.path(), "edgefaas_store_syncs_total")?);
                Ok(())
            })?;
            let group = carried.delivered as f64 / (syncs[1] - syncs[0]).max(1.0);
            table.add(NODE, &[carried.delivered_per_second, group]);
            drop(node);
            let mosquitto = Mosquitto::start(Persistence::EveryChange)?;
            let carried = carry(mosquitto.address, shape, plan.turn, || Ok(()))?;
            table.add(MOSQUITTO, &[carried.delivered_per_second]);
            drop(mosquitto);
            for (row, group) in [(APPEND, 1000), (APPEND_SAME, group.round().max(1.0) as usize)] {
                table.add(row, &[append_and_sync(folder.path(), group, plan.turn)?, group as f64]);
            }
            if with_nats {
                let carried =
                    Nats::start().and_then(|nats| carry(nats.address, shape, plan.turn, || Ok(())));
                match carried {
                    Ok(carried) => table.add(NATS, &[carried.delivered_per_second]),
                    Err(error) => {
                        eprintln!("without NATS: {error:#}");
                        with_nats = false;
                    }
                }
            }
        }
        if !with_nats {
            table.rows.truncate(NATS);
        }
        let state = if away { "away" } else { "there" };
        report.targets.push(Target::at_least(
            "broker-durable",
            &format!("durable QoS 1, client {state}: at least half of append + fdatasync with groups of the same size"),
            table.ratio(NODE, APPEND_SAME, 0),
            0.5,
        ));
        report.tables.push(table);
    }
    Ok(())
}

/// Messages a second that a loop writes and syncs in groups.
fn append_and_sync(folder: &Path, group: usize, length: Duration) -> anyhow::Result<f64> {
    let mut file: File = OpenOptions::new().create(true).append(true).open(folder.join("append"))?;
    let bytes = vec![b'x'; group * (DURABLE_PAYLOAD_BYTES + 40)];
    let (begun, mut groups) = (Instant::now(), 0);
    while begun.elapsed() < length {
        file.write_all(&bytes)?;
        file.sync_data()?;
        groups += 1;
    }
    Ok((groups * group) as f64 / begun.elapsed().as_secs_f64())
}

/// The start of a node that has a backlog on its disk.
fn restart(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut table = Table::new(
        &format!("Start with {BACKLOG} messages that wait for a session"),
        &["node"],
        &[("ready line", "ms")],
    );
    let folder = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, folder.path())?;
    let mut stream = connect(node.mqtt, "away", false)?;
    stream.write_all(&packet(0x82, &[&[0, 1][..], &text("backlog"), &[1]].concat()))?;
    stream.read_exact(&mut [0; 5])?;
    drop(stream);
    let mut stream = connect(node.mqtt, "publisher", true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let body = [&text("backlog")[..], &[0, 1], &[b'x'; DURABLE_PAYLOAD_BYTES]].concat();
    let message = packet(0x32, &body);
    for _ in 0..BACKLOG / 1000 {
        stream.write_all(&message.repeat(1000))?;
        stream.read_exact(&mut [0; 4000])?;
    }
    node.process.terminate()?;
    for _ in 0..plan.rounds {
        let node = Node::start(&plan.binary, folder.path())?;
        table.add(NODE, &[node.process.ready_after.as_secs_f64() * 1e3]);
        // Killed: the next start finds the disk as a crash leaves it.
        drop(node);
    }
    let ready_ms = table.rows[NODE].figures[0].median();
    ensure!(ready_ms > 0.0, "it was measured");
    report.targets.push(Target::at_most(
        "broker-restart",
        "ready 1 s after exec with 100,000 queued messages",
        ready_ms,
        1000.0,
    ));
    report.tables.push(table);
    Ok(())
}
