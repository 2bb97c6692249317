//! mosquitto, the broker, as a child process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
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

/// What it keeps on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    None,
    /// It saves its whole database on every change; before or after the acknowledgement, as it likes.
    EveryChange,
}

impl Mosquitto {
    /// Starts it with `TCP_NODELAY` and without limits of its own on what waits for a subscriber.
    pub fn start(persistence: Persistence) -> anyhow::Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, persistence)
    }

    /// The same at this address.
    pub fn start_at(address: Ipv4Addr, persistence: Persistence) -> anyhow::Result<Self> {
        // It can't take port 0.
        let address = TcpListener::bind((address, 0))?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("mosquitto.conf");
        let (ip, port) = (address.ip(), address.port());
        let location = folder.path().display();
        let keep = match persistence {
            Persistence::None => "persistence false\n".to_owned(),
            Persistence::EveryChange => format!(
                "persistence true\npersistence_location {location}/\nautosave_on_changes true\n\
                 autosave_interval 1\nuser root\n"
            ),
        };
        let settings = format!(
            "listener {port} {ip}\nallow_anonymous true\nset_tcp_nodelay true\n{keep}log_type error\n\
             max_inflight_messages 0\nmax_queued_messages 0\n"
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

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
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
