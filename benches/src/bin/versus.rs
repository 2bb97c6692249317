//! Two builds of the node on the hot path: both run at the same time, and one at a time has its turn, in changing order. What is
//! slow in a round is slow for both, so that some percent of difference can be seen on a machine whose speed varies by more.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use edgefaas_benches::http;
use edgefaas_benches::mqtt::{self, Topics};
use edgefaas_benches::node::Node;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::Load;

const NAMES: [&str; 2] = ["base", "head"];
/// Rates may be lower, and processor time higher, by no more than this.
const TOLERANCE: f64 = 0.03;
#[derive(Debug, Parser)]
#[command(about = "Compares two binaries of the node on the hot path, in alternating turns")]
struct Arguments {
    /// The binary of before
    #[arg(long)]
    base: PathBuf,
    /// The binary that is held against it
    #[arg(long)]
    head: PathBuf,
    /// How often each has its turn
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// The length of a turn in milliseconds
    #[arg(long, default_value_t = 500)]
    turn_ms: u64,
    /// Only loads whose title contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// The load of one turn on a node.
enum Work {
    /// Calls over MQTT: function, connections, requests under way on each.
    Mqtt(&'static str, usize, usize),
    /// Calls over HTTP: path, connections.
    Http(&'static str, usize),
}

const WORK: [(&str, Work); 7] = [
    ("MQTT call, JavaScript, one at a time", Work::Mqtt("echo-js", 1, 1)),
    ("MQTT call, Rust, one at a time", Work::Mqtt("echo-rust", 1, 1)),
    ("MQTT call, JavaScript, 64 under way", Work::Mqtt("echo-js", 1, 64)),
    ("MQTT call, Rust, 64 under way", Work::Mqtt("echo-rust", 1, 64)),
    ("MQTT call, JavaScript, 4 connections with 64", Work::Mqtt("echo-js", 4, 64)),
    ("HTTP call, JavaScript, 32 connections", Work::Http("/fn/echo-js", 32)),
    ("HTTP call, Rust, 32 connections", Work::Http("/fn/echo-rust", 32)),
];

impl Work {
    fn run(&self, mqtt: SocketAddr, http: SocketAddr, turn: Duration) -> anyhow::Result<Load> {
        match *self {
            Self::Mqtt(function, connections, outstanding) => {
                let topics = |connection| Topics::of_node(function, connection);
                mqtt::closed_loop(mqtt, topics, connections, outstanding, turn)
            }
            Self::Http(path, connections) => http::closed_loop(http, path, connections, turn),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let turn = Duration::from_millis(arguments.turn_ms);
    let mut nodes = Vec::new();
    for binary in [&arguments.base, &arguments.head] {
        let data = tempfile::tempdir()?;
        let node = Node::start(binary, data.path())?;
        node.deploy(binary, data.path())?;
        nodes.push((node, data));
    }
    let mut report = Report::new(
        "versus",
        "Two builds on the hot path",
        "Both nodes run on the same machine, and take turns in changing order; medians of the rounds' quotients.",
        "target/release/versus --base BINARY --head BINARY",
    );
    for (title, work) in WORK.iter().filter(|(title, _)| title.contains(&arguments.only)) {
        let figures = [("rate", "1/s"), ("p50", "us"), ("p99", "us"), ("processor", "us a call")];
        let mut table = Table::new(title, &NAMES, &figures);
        for round in 0..arguments.rounds {
            // The second of two turns may find other caches and another clock of the processor.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for contestant in order {
                let node = &nodes[contestant].0;
                let before = node.process.cpu_seconds()?;
                let mut load = work.run(node.mqtt, node.http, turn)?;
                let cpu_us = (node.process.cpu_seconds()? - before) * 1e6 / load.samples.completed() as f64;
                let (p50, p99) = (load.samples.quantile_us(0.5), load.samples.quantile_us(0.99));
                table.add(contestant, &[load.per_second, p50, p99, cpu_us]);
            }
        }
        println!("{}", table.markdown());
        let (rate, cpu) = (table.ratio(1, 0, 0), table.ratio(1, 0, 3));
        println!("rate {rate:.3}, processor {cpu:.3}\n");
        let limit = |what: &str| format!("{title}: {what} within {:.0} %", TOLERANCE * 100.0);
        report.targets.push(Target::at_least("versus", &limit("rate"), rate, 1.0 - TOLERANCE));
        report.targets.push(Target::at_most("versus", &limit("processor time"), cpu, 1.0 + TOLERANCE));
        report.tables.push(table);
    }
    report.print();
    Ok(())
}
