//! Redis as a child process, and a stage of a pipeline over its streams: reads an entry, works, adds an entry to the next
//! stream.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use redis::io::tcp::TcpSettings;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{Commands, Connection, IntoConnectionInfo};
use serde_json::Value;
use tempfile::TempDir;

use super::{announce, own_binary};
use crate::process::Process;
use crate::work::work;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(10);
const GROUP: &str = "stage";
/// The field of an entry that has the data.
const FIELD: &str = "data";
/// What a stage waits for an entry at a time; it goes on until it is killed.
const BLOCK_MS: usize = 1000;

/// A redis-server that keeps nothing on the disk. Dropping it kills it.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    /// Where.
    pub address: SocketAddr,
    _folder: TempDir,
}

/// What a stage does.
#[derive(Debug, Clone, Args)]
pub struct Stage {
    /// The server's address
    pub server: SocketAddr,
    /// The stream that it reads
    pub from: String,
    /// The stream that it adds to
    pub to: String,
    /// Entries that it takes at a time, at most
    pub count: usize,
    /// Turns of the loop that is the work on each
    pub turns: u64,
}

impl Redis {
    /// Starts it on a free port.
    ///
    /// # Errors
    /// It is not installed, or does not listen.
    pub fn start() -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let child = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server is not installed (Debian: apt-get install redis-server)")?;
        let redis = Self { child, address, _folder: folder };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if started.elapsed() > START {
                bail!("redis-server does not listen on {address} after {START:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it says its version is.
    pub fn version() -> Option<String> {
        let output = Command::new("redis-server").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.split_whitespace().find_map(|word| word.strip_prefix("v="))?.to_owned())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection with `TCP_NODELAY`.
pub fn connect(server: SocketAddr) -> anyhow::Result<Connection> {
    let info = format!("redis://{server}/").into_connection_info()?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Ok(redis::Client::open(info)?.get_connection()?)
}

/// Adds entries with these data to a stream, with one write.
pub fn add(
    connection: &mut Connection,
    stream: &str,
    data: impl Iterator<Item = String>,
) -> anyhow::Result<()> {
    let mut pipeline = redis::pipe();
    for data in data {
        pipeline.xadd(stream, "*", &[(FIELD, data)]).ignore();
    }
    Ok(pipeline.query::<()>(connection)?)
}

/// The data of the entries of a stream that come after the entry `after`, which becomes the last of them. There may be none
/// after `block_ms`.
pub fn read(
    connection: &mut Connection,
    stream: &str,
    after: &mut String,
    block_ms: usize,
) -> anyhow::Result<Vec<String>> {
    let options = StreamReadOptions::default().block(block_ms).count(1000);
    let reply = connection.xread_options(&[stream], &[after.as_str()], &options)?;
    let entries = entries(reply)?;
    if let Some((id, _)) = entries.last() {
        after.clone_from(id);
    }
    Ok(entries.into_iter().map(|(_, data)| data).collect())
}

/// Starts a stage as a child; it reads when this returns.
pub fn start_redis_stage(stage: &Stage) -> anyhow::Result<Process> {
    let Stage { server, from, to, count, turns } = stage;
    let arguments = [&server.to_string(), from, to, &count.to_string(), &turns.to_string()];
    Process::start(own_binary()?.args(["peer", "redis-stage"]).args(arguments))
}

/// Runs a stage until it is killed. Entries are not acknowledged: what a crash costs is lost, as it is in a workflow that is
/// not durable.
pub fn run_stage(stage: &Stage) -> anyhow::Result<()> {
    let mut connection = connect(stage.server)?;
    let _: () = connection.xgroup_create_mkstream(&stage.from, GROUP, "$")?;
    announce("ready")?;
    let options =
        StreamReadOptions::default().group(GROUP, "one").count(stage.count).noack().block(BLOCK_MS);
    loop {
        let reply = connection.xread_options(&[&stage.from], &[">"], &options)?;
        let mut results = Vec::new();
        for (_, data) in entries(reply)? {
            let mut data: Value = serde_json::from_str(&data)?;
            data["x"] = work(stage.turns).into();
            results.push(data.to_string());
        }
        if !results.is_empty() {
            add(&mut connection, &stage.to, results.into_iter())?;
        }
    }
}

/// Identifiers and data.
fn entries(reply: Option<StreamReadReply>) -> anyhow::Result<Vec<(String, String)>> {
    let keys = reply.map(|reply| reply.keys).unwrap_or_default();
    let mut entries = Vec::new();
    for mut entry in keys.into_iter().flat_map(|key| key.ids) {
        let data = entry.map.remove(FIELD).context("an entry without data")?;
        entries.push((entry.id, redis::from_redis_value(data)?));
    }
    Ok(entries)
}
