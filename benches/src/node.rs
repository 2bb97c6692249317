//! The real binary as a child process.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::functions::{ECHO_JS, Guest};
use crate::process::Process;
use crate::{repository, target_folder};

/// The app that is measured: the same function in both languages.
const MANIFEST: &str = r#"app = "bench"

[functions.echo-js]
main = "echo.js"

[functions.echo-rust]
main = "echo.wasm"
"#;

/// A node that is ready.
#[derive(Debug)]
pub struct Node {
    /// Its process.
    pub process: Process,
    /// The gateway.
    pub http: SocketAddr,
    /// The broker.
    pub mqtt: SocketAddr,
    /// The control port.
    pub control: SocketAddr,
}

#[derive(Deserialize)]
struct ReadyLine {
    http: String,
    mqtt: String,
    control: String,
}

/// Builds the binary with cargo and gives its path.
pub fn build_binary() -> anyhow::Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "-p", "edgefaas"])
        .current_dir(repository())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("the node could not be built: cargo ended with {status}");
    }
    Ok(target_folder().join("release/edgefaas"))
}

impl Node {
    /// Starts a node on free ports and waits for its ready line.
    pub fn start(binary: &Path, data_dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(binary, data_dir, "")
    }

    /// The same without a log, for functions that fail on purpose.
    pub fn start_silent(binary: &Path, data_dir: &Path) -> anyhow::Result<Self> {
        Self::start_logging(binary, data_dir, "", "off")
    }

    /// The same with settings, as in a configuration file.
    pub fn start_with(binary: &Path, data_dir: &Path, settings: &str) -> anyhow::Result<Self> {
        Self::start_logging(binary, data_dir, settings, "error")
    }

    /// Starts a coordinator: a node that sees what is published on `inward` at another broker, which sees what is published
    /// on `outward` here.
    pub fn start_coordinator(
        binary: &Path,
        data_dir: &Path,
        broker: SocketAddr,
        [inward, outward]: [&str; 2],
    ) -> anyhow::Result<Self> {
        let broker = format!("mqtt://{broker}");
        let words = ["coordinator", "--broker", &broker, "--in", inward, "--out", outward];
        Self::start_as(&words, binary, data_dir, "", "error")
    }

    /// Starts a node in a control group: it joins by writing its number to `procs`.
    pub fn start_in(binary: &Path, data_dir: &Path, procs: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs).arg(binary);
        Self::start_command(command, &["run"], data_dir, "", "error")
    }

    fn start_logging(binary: &Path, data_dir: &Path, settings: &str, log: &str) -> anyhow::Result<Self> {
        Self::start_as(&["run"], binary, data_dir, settings, log)
    }

    fn start_as(
        words: &[&str],
        binary: &Path,
        data_dir: &Path,
        settings: &str,
        log: &str,
    ) -> anyhow::Result<Self> {
        Self::start_command(Command::new(binary), words, data_dir, settings, log)
    }

    fn start_command(
        mut command: Command,
        words: &[&str],
        data_dir: &Path,
        settings: &str,
        log: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("node.toml");
        std::fs::write(&file, settings)?;
        command.args(words).arg("--config").arg(&file);
        command.args(["-o", "json", "--data-dir"]).arg(data_dir).env("RUST_LOG", log);
        for listener in ["--http", "--mqtt", "--control"] {
            command.args([listener, "127.0.0.1:0"]);
        }
        let process = Process::start(&mut command)?;
        let line: ReadyLine = serde_json::from_str(&process.first_line)
            .with_context(|| format!("not a ready line: {}", process.first_line))?;
        let address = |url: &str| -> anyhow::Result<SocketAddr> {
            Ok(url.rsplit('/').next().context("an address")?.parse()?)
        };
        Ok(Self {
            http: address(&line.http)?,
            mqtt: address(&line.mqtt)?,
            control: address(&line.control)?,
            process,
        })
    }

    /// Deploys the functions `echo-js` and `echo-rust` with the command line.
    pub fn deploy(&self, binary: &Path, data_dir: &Path) -> anyhow::Result<()> {
        let app = tempfile::tempdir()?;
        std::fs::write(app.path().join("edgefaas.toml"), MANIFEST)?;
        std::fs::write(app.path().join("echo.js"), ECHO_JS)?;
        std::fs::copy(Guest::Echo.build()?, app.path().join("echo.wasm"))?;
        self.deploy_app(binary, data_dir, app.path())
    }

    /// Deploys an app, a folder or a single file, with the command line.
    pub fn deploy_app(&self, binary: &Path, data_dir: &Path, app: &Path) -> anyhow::Result<()> {
        let output = Command::new(binary)
            .arg("deploy")
            .arg(app)
            .args(["--node", &format!("http://{}", self.control), "--data-dir"])
            .arg(data_dir)
            .output()?;
        if !output.status.success() {
            bail!("deploy failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// What the command line says as JSON.
    pub fn said(&self, binary: &Path, data_dir: &Path, words: &[&str]) -> anyhow::Result<Value> {
        let output = Command::new(binary)
            .args(words)
            .args(["-o", "json", "--node", &format!("http://{}", self.control), "--data-dir"])
            .arg(data_dir)
            .output()?;
        if !output.status.success() {
            bail!("{words:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The figure of `/metrics` with this name, without labels.
    pub fn metric(&self, data_dir: &Path, name: &str) -> anyhow::Result<f64> {
        let figure = self.metrics(data_dir)?.remove(name);
        figure.with_context(|| format!("the node has no metric {name}"))
    }

    /// All figures of `/metrics` without labels.
    pub fn metrics(&self, data_dir: &Path) -> anyhow::Result<HashMap<String, f64>> {
        let token = token(data_dir)?;
        let mut stream = TcpStream::connect(self.control)?;
        write!(stream, "GET /metrics HTTP/1.0\r\nauthorization: Bearer {token}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let figure = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(figure).collect())
    }
}

/// The admin token of a node that has been started in this folder.
pub fn token(data_dir: &Path) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(data_dir.join("token"))?.trim().to_owned())
}
