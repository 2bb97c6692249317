//! Who plays the trace: a node with fresh instances, one that reuses them, and a process for each instance.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_benches::http::{get, get_with};
use edgefaas_benches::node::Node;
use edgefaas_benches::process::{Process, cpu_seconds_of_family, tree_of};
use tempfile::TempDir;

use crate::functions::Guests;
use crate::load::{self, Answer};
use crate::memory::{Sample, Sampler};
use crate::trace::Trace;

/// Contestants' names, in the order of tables.
pub const NAMES: [&str; 3] = ["node, fresh instances", "node, instances reused", "a process an instance"];
/// The last of them.
pub const PROCESSES: usize = 2;
/// How long a node may take to be ready.
const START: Duration = Duration::from_secs(30);
/// Left alone after the start, and again after the last answer, so that memory is seen at rest.
const SETTLE: Duration = Duration::from_secs(1);

/// What all of them have in common.
pub struct Setting {
    /// The node's binary.
    pub binary: PathBuf,
    /// What is played.
    pub trace: Trace,
    /// What functions ask.
    pub url: String,
    /// How long a process waits for its next invocation; sped up.
    pub keep_alive: Duration,
}

/// One turn of one contestant.
pub struct Turn {
    /// One for each call.
    pub answers: Vec<Answer>,
    /// Memory, from the first call to a little after the last answer.
    pub samples: Vec<Sample>,
    /// Instances that were started.
    pub starts: f64,
    /// Processor time of all processes, in seconds.
    pub cpu_seconds: f64,
    /// From the first call to the last answer.
    pub took: Duration,
}

/// A contestant that can be started.
pub enum Contestant {
    /// A node whose functions are deployed; its data directory.
    Node(TempDir),
    /// The front; a folder with `catalogue.json` and scripts.
    Processes(TempDir),
}

impl Contestant {
    /// A node with the trace's functions deployed, which is stopped again.
    pub fn node(setting: &Setting, guests: &Guests, isolation: &str) -> anyhow::Result<Self> {
        let (data, app) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let server = setting.url.split('/').nth(2).context("a URL has a server")?;
        guests.write_app(&setting.trace.functions, isolation, server, app.path())?;
        let node = Node::start(&setting.binary, data.path())?;
        node.deploy_app(&setting.binary, data.path(), app.path())?;
        node.process.terminate()?;
        Ok(Self::Node(data))
    }

    /// The front and its catalogue.
    pub fn processes(setting: &Setting, guests: &Guests) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let catalogue = guests.catalogue(&setting.trace.functions, folder.path())?;
        fs::write(folder.path().join("catalogue.json"), serde_json::to_string(&catalogue)?)?;
        Ok(Self::Processes(folder))
    }

    /// Starts it, plays the trace and ends it.
    pub fn play(&self, setting: &Setting) -> anyhow::Result<Turn> {
        match self {
            Self::Node(data) => {
                let node = Node::start(&setting.binary, data.path())?;
                let begun = Instant::now();
                while !matches!(get(node.control, "/readyz"), Ok((200, _))) {
                    ensure!(begun.elapsed() < START, "the node is not ready after {START:?}");
                }
                let token = fs::read_to_string(data.path().join("token"))?;
                let headers = format!("authorization: Bearer {}\r\n", token.trim());
                let turn = play(setting, &node.process, node.http, node.control, headers)?;
                node.process.terminate()?;
                Ok(turn)
            }
            Self::Processes(folder) => {
                let keep_alive = setting.keep_alive.as_millis().to_string();
                let catalogue = folder.path().join("catalogue.json");
                let mut command = crate::own_binary()?;
                command.arg("front").arg(path(&catalogue)?).arg(keep_alive);
                let front = Process::start(&mut command)?;
                let address: SocketAddr = front.first_line.trim().parse()?;
                let turn = play(setting, &front, address, address, String::new());
                let instances = tree_of(front.id());
                drop(front);
                // Instances end when their input does.
                let ended = Instant::now();
                while instances[1..].iter().any(|process| Path::new(&format!("/proc/{process}")).exists()) {
                    ensure!(ended.elapsed() < START, "instances of the front do not end");
                    std::thread::sleep(Duration::from_millis(10));
                }
                turn
            }
        }
    }
}

fn play(
    setting: &Setting,
    process: &Process,
    server: SocketAddr,
    control: SocketAddr,
    headers: String,
) -> anyhow::Result<Turn> {
    std::thread::sleep(SETTLE);
    let starts = move || starts(control, &headers).unwrap_or(f64::NAN);
    let (starts_before, cpu_before) = (starts(), cpu_seconds_of_family(process.id())?);
    let sampler = Sampler::start(process.id(), starts.clone());
    let begun = Instant::now();
    let answers = load::play(&setting.trace, server, &setting.url)?;
    let took = begun.elapsed();
    std::thread::sleep(SETTLE);
    let samples = sampler.stop();
    let starts = starts() - starts_before;
    ensure!(starts.is_finite(), "the contestant does not tell how many instances it has started");
    Ok(Turn {
        answers,
        samples,
        starts,
        cpu_seconds: cpu_seconds_of_family(process.id())? - cpu_before,
        took,
    })
}

/// Instances that were started so far, of all functions: the counters `…starts_total{…,start="cold"}`.
fn starts(control: SocketAddr, headers: &str) -> anyhow::Result<f64> {
    let (status, body) = get_with(control, "/metrics", headers)?;
    ensure!(status == 200, "/metrics: {status}");
    let text = String::from_utf8(body)?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let cold = lines.filter(|(name, _)| name.contains("starts_total{") && name.contains("start=\"cold\""));
    Ok(cold.map(|(_, value)| value.trim().parse::<f64>()).sum::<Result<f64, _>>()?)
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}
