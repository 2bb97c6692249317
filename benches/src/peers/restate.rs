//! Restate, from npm: its server, and a service in Node.js that has a chain of three durable steps. Installed when it is first wanted.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::npm::{Scripts, installed};
use crate::client::Client;
use crate::http;
use crate::process::Process;
use crate::repository;

/// The version of the server that is measured.
pub const VERSION: &str = "1.7.12";
/// The version of the service's SDK.
pub const SDK_VERSION: &str = "1.17.2";
/// The path of the chain at the ingress.
pub const PATH: &str = "/chain/run";
/// How long the server may take to be ready.
const START: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// A server with a service. Dropping it ends both.
#[derive(Debug)]
pub struct Restate {
    server: Child,
    service: Process,
    /// Where chains are called.
    pub ingress: SocketAddr,
    _folder: TempDir,
}

impl Restate {
    /// Starts a server on free ports, with its defaults, and the service.
    ///
    /// # Errors
    /// npm or Node.js is not there, or the server is not ready in time.
    pub fn start() -> anyhow::Result<Self> {
        let (program, sdk) = (install_server()?, install_sdk()?);
        let folder = tempfile::tempdir()?;
        let [fabric, ingress, admin] = free_ports()?;
        let settings = folder.path().join("restate.toml");
        std::fs::write(&settings, configuration(fabric, ingress, admin))?;
        let mut command = Command::new("node");
        command.arg(repository().join("benches/guests/restate.mjs")).arg(sdk);
        let service = Process::start(command.env("RESTATE_LOGGING", "ERROR").stderr(Stdio::null()))?;
        let server = Command::new(program)
            .args(["--no-logo", "--node-name", "bench", "--config-file"])
            .arg(&settings)
            .arg("--base-dir")
            .arg(folder.path())
            .env("DO_NOT_TRACK", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("restate-server cannot be started")?;
        let restate = Self { server, service, ingress, _folder: folder };
        restate.register(admin)?;
        Ok(restate)
    }

    /// Its processes: the server and the service.
    pub fn processes(&self) -> [u32; 2] {
        [self.server.id(), self.service.id()]
    }

    /// Tells the server of the service, and waits until it is called.
    fn register(&self, admin: SocketAddr) -> anyhow::Result<()> {
        let started = Instant::now();
        let wait = |what: &str| -> anyhow::Result<()> {
            ensure!(started.elapsed() < START, "restate-server: {what} after {START:?}");
            std::thread::sleep(LOOK);
            Ok(())
        };
        while !matches!(http::get(admin, "/health"), Ok((200, _))) {
            wait("not healthy")?;
        }
        let service = json!({ "uri": format!("http://{}", self.service.first_line.trim()) }).to_string();
        let (status, body) = Client::new(admin).post_json("/deployments", service.as_bytes())?;
        if status != 201 {
            bail!("restate-server does not take the service: {status} {}", String::from_utf8_lossy(&body));
        }
        while !matches!(Client::new(self.ingress).post_json(PATH, br#"{"n":1}"#), Ok((200, _))) {
            wait("no answer")?;
        }
        Ok(())
    }
}

impl Drop for Restate {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// What differs from the defaults: where it listens, and that it tells nobody.
fn configuration(fabric: SocketAddr, ingress: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "bind-address = \"{fabric}\"\nlisten-mode = \"tcp\"\ndisable-telemetry = true\nlog-filter = \"off\"\n\n[ingress]\nbind-address = \
         \"{ingress}\"\n\n[admin]\nbind-address = \"{admin}\"\n"
    )
}

/// Three ports that are free now.
fn free_ports() -> anyhow::Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let listeners = [bind()?, bind()?, bind()?];
    let [one, two, three] = &listeners;
    Ok([one.local_addr()?, two.local_addr()?, three.local_addr()?])
}

/// The server's program.
fn install_server() -> anyhow::Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("there is no restate-server for {other}"),
    };
    let path = format!("@restatedev/restate-server-linux-{architecture}/bin/restate-server");
    installed("@restatedev/restate-server", VERSION, Scripts::Ignored, &path)
}

/// A path in the folder of the SDK's `node_modules`.
fn install_sdk() -> anyhow::Result<PathBuf> {
    let package =
        installed("@restatedev/restate-sdk", SDK_VERSION, Scripts::Ignored, "@restatedev/restate-sdk")?;
    let folder =
        package.ancestors().nth(3).map(Path::to_path_buf).context("a package is in node_modules")?;
    Ok(folder.join("service.mjs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_toml_with_three_listeners() {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let text = configuration(address(1), address(2), address(3));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["bind-address"].as_str(), Some("127.0.0.1:1"));
        assert_eq!(table["ingress"]["bind-address"].as_str(), Some("127.0.0.1:2"));
        assert_eq!(table["admin"]["bind-address"].as_str(), Some("127.0.0.1:3"));
    }
}
