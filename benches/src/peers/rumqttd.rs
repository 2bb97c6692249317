//! rumqttd, the broker, as a child process: a program of a few lines in a workspace of its own, since the product has
//! nothing to do with it. Built when it is first wanted.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::{repository, target_folder};

/// How long it may take to listen.
const START: Duration = Duration::from_secs(10);

/// A rumqttd that listens. Dropping it kills it.
#[derive(Debug)]
pub struct Rumqttd {
    child: Child,
    /// Where.
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Rumqttd {
    /// Builds and starts it.
    ///
    /// # Errors
    /// It can't be built here, or does not listen.
    pub fn start() -> anyhow::Result<Self> {
        let target = target_folder().join("rumqttd");
        let manifest = repository().join("benches/rumqttd/Cargo.toml");
        let built = Command::new("cargo")
            .args(["build", "--release", "--quiet", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(&target)
            .status()
            .context("cargo cannot be started")?;
        if !built.success() {
            bail!("rumqttd could not be built: cargo ended with {built}");
        }
        // It can't take port 0.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("rumqttd.toml");
        let settings = format!(
            "id = 0\n[router]\nid = 0\nmax_connections = 1000\nmax_outgoing_packet_count = 200\n\
             max_segment_size = 104857600\nmax_segment_count = 10\n[v4.1]\nname = \"v4\"\nlisten = \"{address}\"\n\
             next_connection_delay_ms = 1\n[v4.1.connections]\nconnection_timeout_ms = 60000\n\
             max_payload_size = 1048576\nmax_inflight_count = 2000\ndynamic_filters = true\n"
        );
        std::fs::write(&file, settings)?;
        let child = Command::new(target.join("release/rumqttd-peer"))
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("rumqttd cannot be started")?;
        let rumqttd = Self { child, address, _folder: folder };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if started.elapsed() > START {
                bail!("rumqttd does not listen on {address} after {START:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(rumqttd)
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Rumqttd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
