//! What is deployed: functions that compute for a known time, and chains of them.

use std::fmt::Write as _;
use std::fs::{create_dir, write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use edgefaas_benches::client::Client;
use edgefaas_benches::functions::Guest;
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

/// The function of a chain's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// JavaScript, in an isolate of its own.
    Js,
    /// JavaScript, in one that others were run in.
    JsReuse,
    /// Rust, in an isolate of its own.
    Rust,
    /// Rust, in one that others were run in.
    RustReuse,
}

impl Step {
    /// In the order of tables.
    pub const ALL: [Self; 4] = [Self::Js, Self::JsReuse, Self::Rust, Self::RustReuse];

    /// In tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Js => "JavaScript, fresh",
            Self::JsReuse => "JavaScript, reuse",
            Self::Rust => "Rust, fresh",
            Self::RustReuse => "Rust, reuse",
        }
    }

    /// Whether it is in the language of the peer's steps.
    pub fn is_rust(self) -> bool {
        matches!(self, Self::Rust | Self::RustReuse)
    }

    /// The function's name.
    pub fn function(self) -> &'static str {
        match self {
            Self::Js => "step",
            Self::JsReuse => "step-reuse",
            Self::Rust => "step-rust",
            Self::RustReuse => "step-rust-reuse",
        }
    }

    /// The workflow that calls it so often.
    pub fn chain(self, steps: usize) -> String {
        format!("chain-{}-{steps}", self.function())
    }

    /// Its part of the manifest. The loop turns so often.
    fn manifest(self, turns: Turns) -> String {
        let (main, isolation) = match self {
            Self::Js => ("step.js", "fresh"),
            Self::JsReuse => ("step.js", "reuse"),
            Self::Rust => ("step.wasm", "fresh"),
            Self::RustReuse => ("step.wasm", "reuse"),
        };
        format!(
            "\n[functions.{}]\nmain = \"{main}\"\nisolation = \"{isolation}\"\nconfig = {{ turns = {} }}\nlimits = {{ concurrency = 64, \
             instances = 64, timeout = \"5m\", queue = {{ capacity = 100000 }} }}\n",
            self.function(),
            turns.rust,
        )
    }
}

/// How often the loops of steps turn.
#[derive(Debug, Clone, Copy)]
struct Turns {
    js: u64,
    rust: u64,
}

/// A node with chains.
pub struct Chains {
    /// The node.
    pub node: Node,
    /// What it was deployed from needs it.
    pub data: TempDir,
}

impl Chains {
    /// Starts a node and deploys chains of functions that compute for [`WORK_US`].
    pub fn start(binary: &Path) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let node = Node::start_with(binary, data.path(), "[workflows]\nrunning = 20000\n")?;
        let wasm = Guest::Step.build()?;
        let turns = turns_in(&node, binary, data.path(), &wasm, WORK_US)?;
        println!("{WORK_US} us are {} turns of a loop in JavaScript, {} in Rust", turns.js, turns.rust);
        node.deploy_app(binary, data.path(), chains(turns, &wasm)?.path())?;
        Ok(Self { node, data })
    }

    /// The way to a function.
    pub fn function(&self, step: Step) -> Mqtt {
        Mqtt::asking(self.node.mqtt, &format!("$faas/fn/{}", step.function()), true)
    }

    /// The way to a chain.
    pub fn chain(&self, step: Step, steps: usize) -> Mqtt {
        Mqtt::asking(self.node.mqtt, &format!("$faas/wf/{}", step.chain(steps)), true)
    }
}

/// The app with chains of functions whose loops turn so often.
fn chains(turns: Turns, wasm: &Path) -> anyhow::Result<App> {
    let mut manifest = "app = \"chains\"\nworkflows = [\"workflows/*.yaml\"]\n".to_owned();
    manifest.extend(Step::ALL.map(|step| step.manifest(turns)));
    let app = App::new(&[("edgefaas.toml", &manifest), ("step.js", &step(turns.js))])?;
    std::fs::copy(wasm, app.path().join("step.wasm"))?;
    for steps in STEPS {
        for step in Step::ALL {
            let name = step.chain(steps);
            write(workflow(&app, &name), chain(&name, step.function(), steps, false))?;
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

/// How often the loops turn in `us` microseconds in functions on this node.
fn turns_in(node: &Node, binary: &Path, data_dir: &Path, wasm: &Path, us: f64) -> anyhow::Result<Turns> {
    let source = format!(
        "export default function timed() {{\n  let x = 1, least = Infinity;\n  for (let i = 0; i < {TRIES}; i++) {{\n    const begun \
         = performance.now();\n    for (let turn = 0; turn < {TIMED_TURNS}; turn++) x = (x + turn) & 0xffff;\n    least = \
         Math.min(least, performance.now() - begun);\n  }}\n  return {{ ms: least, x }};\n}}\n"
    );
    let manifest = format!(
        "app = \"timed\"\n[functions.timed]\nmain = \"timed.js\"\n[functions.timed-rust]\nmain = \"step.wasm\"\nconfig = {{ us = {us:.1} \
         }}\n"
    );
    let app = App::new(&[("edgefaas.toml", &manifest), ("timed.js", &source)])?;
    std::fs::copy(wasm, app.path().join("step.wasm"))?;
    node.deploy_app(binary, data_dir, app.path())?;
    let mut least_ms = f64::INFINITY;
    for _ in 0..CALLS {
        let answer = post(node.http, "/fn/timed", "{}")?;
        let ms = answer["ms"].as_f64().filter(|ms| *ms > 0.0).context("a time")?;
        least_ms = least_ms.min(ms);
    }
    let rust = post(node.http, "/fn/timed-rust", "{}")?["x"].as_u64().context("turns")?;
    Ok(Turns { js: (us / (least_ms * 1e3) * TIMED_TURNS as f64) as u64, rust })
}

/// One POST that is answered with JSON.
fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<Value> {
    let (status, answer) = Client::new(address).post(path, body.as_bytes())?;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_a_function_with_a_chain_of_each_length() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = folder.path().join("any.wasm");
        write(&wasm, "").unwrap();
        let app = chains(Turns { js: 11, rust: 222 }, &wasm).unwrap();
        let manifest = std::fs::read_to_string(app.path().join("edgefaas.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        for step in Step::ALL {
            let function = &manifest["functions"][step.function()];
            assert_eq!(function["main"].as_str().unwrap().ends_with("wasm"), step.is_rust());
            assert_eq!(function["config"]["turns"].as_integer(), Some(222));
            for steps in STEPS {
                let text = std::fs::read_to_string(workflow(&app, &step.chain(steps))).unwrap();
                assert_eq!(text.matches(&format!("call: {} }}", step.function())).count(), steps);
            }
        }
        assert!(std::fs::read_to_string(app.path().join("step.js")).unwrap().contains("turn < 11;"));
    }
}
