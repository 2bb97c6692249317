//! mosquitto, the broker, as a child process.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(10);

/// A mosquitto that listens. Dropping it kills it.
#[derive(Debug)]
pub struct Mosquitto {
    child: Child,
    /// Where.
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Mosquitto {
    /// Starts it with `TCP_NODELAY` and without persistence.
    pub fn start() -> anyhow::Result<Self> {
        // It can't take port 0.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("mosquitto.conf");
        let port = address.port();
        let settings = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\n\
             log_type error\n"
        );
        std::fs::write(&file, settings)?;
        let program = find().context("mosquitto is not installed (Debian: apt-get install mosquitto)")?;
        let child = Command::new(program).arg("-c").arg(&file).stdin(Stdio::null()).spawn()?;
        let mosquitto = Self { child, address, _folder: folder };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if started.elapsed() > START {
                bail!("mosquitto does not listen on {address} after {START:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mosquitto)
    }

    /// What it says its version is.
    pub fn version() -> Option<String> {
        let output = Command::new(find()?).arg("-h").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(|line| line.trim().to_owned())
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian has it in a folder that not everybody's PATH names.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.into_iter().map(|folder| folder.join("mosquitto")).find(|program| program.is_file())
}
