//! What is deployed: a function that computes for a known time, and chains of it.

use std::fmt::Write as _;
use std::fs::{create_dir, write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use edgefaas_benches::client::Client;
use edgefaas_benches::node::Node;
use serde_json::Value;
use tempfile::TempDir;

use crate::load::Mqtt;

/// What a function computes for, in microseconds.
pub const WORK_US: f64 = 60.0;
/// How long chains are.
pub const STEPS: [usize; 4] = [2, 3, 4, 5];
/// Turns of the loop that are timed in a function, less than a millisecond.
const TIMED_TURNS: u64 = 5000;
/// The fastest of so many counts in each of so many calls: in others somebody else had the processor, or its clock was slow.
const TRIES: usize = 200;
const CALLS: usize = 10;

/// A folder with an app.
pub struct App(TempDir);

impl App {
    /// One with these files, the manifest among them.
    pub fn new(files: &[(&str, &str)]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        create_dir(folder.path().join("workflows"))?;
        for (name, text) in files {
            write(folder.path().join(name), text)?;
        }
        Ok(Self(folder))
    }

    /// Adds a file.
    pub fn add(&self, name: &str, text: &str) -> anyhow::Result<()> {
        Ok(write(self.path().join(name), text)?)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// How a function is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In an isolate of its own.
    Fresh,
    /// In one that others were run in.
    Reuse,
}

impl Isolation {
    /// The function.
    pub fn function(self) -> &'static str {
        match self {
            Self::Fresh => "step",
            Self::Reuse => "step-reuse",
        }
    }

    /// The workflow that calls it so often.
    pub fn chain(self, steps: usize) -> String {
        match self {
            Self::Fresh => format!("chain-{steps}"),
            Self::Reuse => format!("chain-reuse-{steps}"),
        }
    }
}

/// A node with chains.
pub struct Chains {
    /// The node.
    pub node: Node,
    /// What it was deployed from needs it.
    pub data: TempDir,
}

impl Chains {
    /// Starts a node and deploys chains of a function that computes for [`WORK_US`], and says how often its loop turns.
    pub fn start(binary: &Path) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let node = Node::start_with(binary, data.path(), "[workflows]\nrunning = 20000\n")?;
        let turns = turns_in(&node, binary, data.path(), WORK_US)?;
        println!("{WORK_US} us are {turns} turns of a loop in JavaScript");
        node.deploy_app(binary, data.path(), chains(turns)?.path())?;
        Ok(Self { node, data })
    }

    /// The way to a function.
    pub fn function(&self, isolation: Isolation) -> Mqtt {
        Mqtt::asking(self.node.mqtt, &format!("$faas/fn/{}", isolation.function()), true)
    }

    /// The way to a chain.
    pub fn chain(&self, isolation: Isolation, steps: usize) -> Mqtt {
        Mqtt::asking(self.node.mqtt, &format!("$faas/wf/{}", isolation.chain(steps)), true)
    }
}

/// The app with chains of a function whose loop turns so often.
pub fn chains(turns: u64) -> anyhow::Result<App> {
    let mut manifest = "app = \"chains\"\nworkflows = [\"workflows/*.yaml\"]\n".to_owned();
    for (name, isolation) in [("step", "fresh"), ("step-reuse", "reuse")] {
        let _ = write!(
            manifest,
            "\n[functions.{name}]\nmain = \"step.js\"\nisolation = \"{isolation}\"\nlimits = {{ concurrency = 64, instances = \
             64, timeout = \"5m\", queue = {{ capacity = 100000 }} }}\n"
        );
    }
    let app = App::new(&[("edgefaas.toml", &manifest), ("step.js", &step(turns))])?;
    for steps in STEPS {
        for isolation in [Isolation::Fresh, Isolation::Reuse] {
            let name = isolation.chain(steps);
            let text = chain(&name, isolation.function(), steps, false);
            write(workflow(&app, &name), text)?;
        }
    }
    let durable = chain("chain-durable", "step", 3, true);
    write(workflow(&app, "chain-durable"), durable)?;
    Ok(app)
}

fn workflow(app: &App, name: &str) -> PathBuf {
    app.path().join("workflows").join(format!("{name}.yaml"))
}

/// A function that adds to its input what it computed.
fn step(turns: u64) -> String {
    format!(
        "export default function step(event) {{\n  const data = event.json();\n  let x = 1;\n  for (let turn = 0; turn < {turns}; \
         turn++) x = (x + turn) & 0xffff;\n  data.x = x;\n  return data;\n}}\n"
    )
}

/// A workflow that calls a function so often, one call after another.
fn chain(name: &str, function: &str, steps: usize, durable: bool) -> String {
    let mut text = format!(
        "document: {{ dsl: '1.0.3', namespace: bench, name: {name}, version: '1.0.0', metadata: {{ durable: {durable} }} }}\ndo:\n"
    );
    for step in 1..=steps {
        let _ = writeln!(text, "  - step{step}: {{ call: {function} }}");
    }
    text
}

/// How often the loop turns in `us` microseconds in a function on this node.
fn turns_in(node: &Node, binary: &Path, data_dir: &Path, us: f64) -> anyhow::Result<u64> {
    let source = format!(
        "export default function timed() {{\n  let x = 1, least = Infinity;\n  for (let i = 0; i < {TRIES}; i++) {{\n    const begun \
         = performance.now();\n    for (let turn = 0; turn < {TIMED_TURNS}; turn++) x = (x + turn) & 0xffff;\n    least = \
         Math.min(least, performance.now() - begun);\n  }}\n  return {{ ms: least, x }};\n}}\n"
    );
    let app = App::new(&[
        ("edgefaas.toml", "app = \"timed\"\n[functions.timed]\nmain = \"timed.js\"\n"),
        ("timed.js", &source),
    ])?;
    node.deploy_app(binary, data_dir, app.path())?;
    let mut least_ms = f64::INFINITY;
    for _ in 0..CALLS {
        let answer = post(node.http, "/fn/timed", "{}")?;
        let ms = answer["ms"].as_f64().filter(|ms| *ms > 0.0).context("a time")?;
        least_ms = least_ms.min(ms);
    }
    Ok((us / (least_ms * 1e3) * TIMED_TURNS as f64) as u64)
}

/// One POST that is answered with JSON.
fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<Value> {
    let (status, answer) = Client::new(address).post(path, body.as_bytes())?;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    Ok(serde_json::from_slice(&answer)?)
}
