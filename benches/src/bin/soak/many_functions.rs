//! An app of many functions, most of them good, on a node of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use edgefaas_benches::functions::Guest;
use edgefaas_benches::misbehaviours::{self, Misbehaviour};
use edgefaas_benches::node::Node;
use serde::Deserialize;
use tempfile::TempDir;

/// Counts itself and adds one to a number.
const GOOD_JS: &str = "export default async (event, context) => {
  await context.object(\"soak\").counter(context.function).add(1);
  return event.json() + 1;
};
";

/// Says how often each of the functions it is told has counted itself.
const READ_JS: &str = "export default async (event, context) => {
  const object = context.object(\"soak\");
  return Promise.all(event.json().map((name) => object.counter(name).value()));
};
";

/// A node and the functions on it.
pub struct ManyFunctions {
    pub node: Node,
    /// Functions in JavaScript that count themselves.
    pub counting: Vec<String>,
    /// Functions in Rust that say hello.
    pub echoing: Vec<String>,
    /// The others, with what they do.
    pub bad: Vec<(String, Misbehaviour)>,
    data: TempDir,
}

/// What the node says of a function.
#[derive(Debug, Clone, Deserialize)]
pub struct Told {
    pub name: String,
    pub invocations: u64,
    pub failures: u64,
    pub rejected: u64,
}

#[derive(Deserialize)]
struct List {
    apps: Vec<App>,
}

#[derive(Deserialize)]
struct App {
    functions: Vec<Told>,
}

impl ManyFunctions {
    /// Starts a node with `counting` and `echoing` good functions and `each` of every misbehaviour.
    pub fn start(binary: &Path, counting: usize, echoing: usize, each: usize) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let node = Node::start_silent(binary, data.path())?;
        let app = tempfile::tempdir()?;
        let names =
            |kind: &str, count: usize| (0..count).map(|n| format!("{kind}-{n}")).collect::<Vec<_>>();
        let (counting, echoing) = (names("counting", counting), names("echoing", echoing));
        let kinds = misbehaviours::ALL.iter();
        let bad: Vec<_> =
            kinds.flat_map(|kind| names(kind.name, each).into_iter().map(|name| (name, *kind))).collect();
        let mut manifest = "app = \"soak\"\n".to_owned();
        let permissions = "permissions = { objects = [\"soak\"] }\nlimits = { timeout = \"1s\" }\n";
        for name in &counting {
            manifest += &format!("[functions.{name}]\nmain = \"counting.js\"\n{permissions}");
        }
        for name in &echoing {
            manifest +=
                &format!("[functions.{name}]\nmain = \"echo.wasm\"\nlimits = {{ timeout = \"1s\" }}\n");
        }
        manifest += "[functions.read]\nmain = \"read.js\"\npermissions = { objects = [\"soak\"] }\n";
        for (name, kind) in &bad {
            manifest += &kind.manifest(name);
            if let Some(source) = kind.source() {
                std::fs::write(app.path().join(format!("{}.js", kind.name)), source)?;
            }
        }
        std::fs::write(app.path().join("edgefaas.toml"), manifest)?;
        std::fs::write(app.path().join("counting.js"), GOOD_JS)?;
        std::fs::write(app.path().join("read.js"), READ_JS)?;
        std::fs::copy(Guest::Echo.build()?, app.path().join("echo.wasm"))?;
        std::fs::copy(misbehaviours::build_guest()?, app.path().join("misbehave.wasm"))?;
        let started = Self { node, counting, echoing, bad, data };
        started.command(binary, &["deploy", app.path().to_str().context("a path in UTF-8")?])?;
        Ok(started)
    }

    /// What the node says of its functions.
    pub fn told(&self, binary: &Path) -> anyhow::Result<Vec<Told>> {
        let list: List = serde_json::from_str(&self.command(binary, &["list", "-o", "json"])?)?;
        Ok(list.apps.into_iter().flat_map(|app| app.functions).collect())
    }

    fn command(&self, binary: &Path, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(binary)
            .args(words)
            .args(["--node", &format!("http://{}", self.node.control), "--data-dir"])
            .arg(self.data.path())
            .output()?;
        if !output.status.success() {
            bail!("{words:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
