//! nats-server with JetStream, in which it keeps MQTT sessions, as a child process. Debian 12 has 2.9, which cannot sync
//! every message: this one is built with Go when it is first wanted.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::target_folder;

const VERSION: &str = "v2.12.3";
/// How long it may take to listen.
const START: Duration = Duration::from_secs(20);

/// A nats-server that listens for MQTT. Dropping it kills it.
#[derive(Debug)]
pub struct Nats {
    child: Child,
    /// Where, for MQTT.
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Nats {
    /// Starts it so that it syncs every message before it acknowledges it.
    ///
    /// # Errors
    /// It can't be built here, or does not listen.
    pub fn start() -> anyhow::Result<Self> {
        // It can't take port 0 for MQTT.
        let free = || anyhow::Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?);
        let (address, own) = (free()?, free()?);
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("nats.conf");
        let (store, port) = (folder.path().join("store"), own.port());
        let settings = format!(
            "server_name: bench\nlisten: \"127.0.0.1:{port}\"\nlog_file: \"{}\"\n\
             jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
             mqtt {{ listen: \"{address}\", max_ack_pending: 65535 }}\n",
            folder.path().join("log").display(),
            store.display(),
        );
        std::fs::write(&file, settings)?;
        let child = Command::new(build()?)
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nats-server cannot be started")?;
        let mut nats = Self { child, address, _folder: folder };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = nats.child.try_wait()? {
                bail!("nats-server ended with {status}");
            }
            if started.elapsed() > START {
                bail!("nats-server does not listen on {address} after {START:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(nats)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, built if it is not there yet.
fn build() -> anyhow::Result<PathBuf> {
    let folder = target_folder().join("nats");
    let program = folder.join("nats-server");
    if !program.is_file() {
        let module = format!("github.com/nats-io/nats-server/v2@{VERSION}");
        let built = Command::new("go")
            .args(["install", &module])
            .env("GOBIN", &folder)
            .status()
            .context("go cannot be started")?;
        if !built.success() {
            bail!("nats-server could not be built: go ended with {built}");
        }
    }
    Ok(program)
}
