//! What a node is measured beside, each a process of its own: a TCP echo, a bare hyper server, other brokers, clients of
//! mosquitto that run the function, and other servers that run functions.

mod echo;
mod function_client;
mod hono;
mod hyper_server;
mod mosquitto;
mod nats;
pub mod node_red;
mod nodejs;
mod npm;
pub mod redis;
pub mod restate;
mod rumqttd;
mod wasmtime_serve;
mod workerd;

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};

pub use self::redis::{Redis, Stage, start_redis_stage};
pub use hono::{VERSION as HONO_VERSION, copy_hono};
pub use mosquitto::{Mosquitto, Persistence};
pub use nats::Nats;
pub use node_red::{NodeRed, VERSION as NODE_RED_VERSION};
pub use nodejs::start_nodejs;
pub use restate::Restate;
pub use rumqttd::Rumqttd;
pub use wasmtime_serve::{VERSION as WASMTIME_VERSION, WasmtimeServe};
pub use workerd::{VERSION as WORKERD_VERSION, Workerd};

use crate::process::Process;
use hyper_server::Answers;

/// A peer that the benchmark's own binary runs as a child.
#[derive(Debug, Clone, Subcommand)]
pub enum Peer {
    /// Sends back what it gets, on one thread
    Echo,
    /// Answers every request with "hello", on a single-threaded runtime a core
    Hyper,
    /// Answers every request with what a process says that it starts for it, on a single-threaded runtime a core
    ProcessPerRequest,
    /// Runs the function for what mosquitto sends it
    FunctionClient {
        /// mosquitto's address
        broker: SocketAddr,
        /// How the function is run
        kind: FunctionKind,
    },
    /// Works on the entries of one stream and adds them to the next
    RedisStage(Stage),
}

/// How a client of mosquitto runs the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FunctionKind {
    /// The JavaScript function in a fresh isolate
    Js,
    /// The Rust function in a fresh isolate
    Rust,
    /// Plain Rust on a bare socket, in batches: the best a client can do
    Plain,
}

impl FunctionKind {
    /// Its name on the command line and in topics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Js => "js",
            Self::Rust => "rust",
            Self::Plain => "plain",
        }
    }
}

/// Runs a peer in this process until it is killed. Prints its address, or `ready`, on its first line.
pub fn run(peer: &Peer) -> anyhow::Result<()> {
    match peer {
        Peer::Echo => echo::run(),
        Peer::Hyper => hyper_server::run(Answers::Constant),
        Peer::ProcessPerRequest => hyper_server::run(Answers::Process),
        Peer::FunctionClient { broker, kind: FunctionKind::Plain } => function_client::run_plain(*broker),
        Peer::FunctionClient { broker, kind } => function_client::run_isolates(*broker, *kind),
        Peer::RedisStage(stage) => self::redis::run_stage(stage),
    }
}

/// Starts a peer that listens, as a child; gives its address too.
pub fn start_listening(name: &str) -> anyhow::Result<(Process, SocketAddr)> {
    let process = Process::start(own_binary()?.arg("peer").arg(name))?;
    let address = process.first_line.trim().parse()?;
    Ok((process, address))
}

/// Starts a client of mosquitto as a child; it has subscribed when this returns.
pub fn start_function_client(broker: SocketAddr, kind: FunctionKind) -> anyhow::Result<Process> {
    Process::start(own_binary()?.args(["peer", "function-client", &broker.to_string(), kind.name()]))
}

fn own_binary() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("this program's own file is unknown")?))
}

/// Says the first line.
fn announce(line: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
