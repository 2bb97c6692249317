//! The node of a file of tests: its data is in a folder that ends with it, its ports are free ones of loopback.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytesize::ByteSize;
use edgefaas_api::control as proto;
use edgefaas_broker::Broker;
use edgefaas_client::connection::{self, Client, NodeUrl, ObjectsClient};
use edgefaas_client::dev_file::control_url;
use edgefaas_node::config::{IsolatesSection, NodeConfig};
use edgefaas_node::{Addresses, Advance, CACHE_KEY_FILE, RunError};
use edgefaas_platform::{Clock, ClockControl};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::node;

/// Maximum size of the compiled code that is kept; the least recently used is deleted first.
const MAX_KEPT_CODE: ByteSize = ByteSize::mib(128);

/// Code that nodes of tests have compiled, for those after them, with the key that authenticates it: the JavaScript engine alone takes
/// seconds.
pub struct SharedCode {
    folder: PathBuf,
    key: Vec<u8>,
    /// Removed when it is dropped.
    _temporary: Option<tempfile::TempDir>,
}

impl SharedCode {
    /// The code that runs before this one have left in the user's cache folder; without such a folder, or if it cannot be used, code of
    /// this run alone.
    ///
    /// # Errors
    /// There is no folder for temporary files either.
    pub fn open() -> anyhow::Result<Self> {
        if let Some(kept) = cache_home().and_then(|home| Self::kept(&home.join("edgefaas/tests")).ok()) {
            return Ok(kept);
        }
        let temporary = temporary_folder()?;
        let code = Self::kept(temporary.path()).context("compiled code cannot be kept")?;
        Ok(Self { _temporary: Some(temporary), ..code })
    }

    fn kept(home: &Path) -> std::io::Result<Self> {
        let folder = home.join("code");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let file = home.join(CACHE_KEY_FILE);
        if !file.exists() {
            // Readable only by its owner. Of two that begin at the same time one draws it.
            let mut drawn = tempfile::NamedTempFile::new_in(home)?;
            drawn.write_all(&rand::random::<[u8; 32]>())?;
            match drawn.persist_noclobber(&file) {
                Err(refused) if refused.error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(refused.error);
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Self { folder, key: std::fs::read(file)?, _temporary: None })
    }
}

/// `$XDG_CACHE_HOME`, else `~/.cache` (XDG Base Directory Specification).
fn cache_home() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .filter(|home| home.is_absolute())
}

/// A folder that ends with the value.
fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("edgefaas-test-").tempdir();
    folder.context("there is no folder for the data of the tests")
}

/// A running node.
pub struct TestNode {
    pub addresses: Addresses,
    pub broker: Broker,
    pub control: Client,
    pub objects: ObjectsClient,
    /// The token of the gateway.
    pub gateway_token: String,
    /// The time of the node, and what advances it.
    pub clock: Clock,
    pub time: Arc<Advance>,
    serving: JoinHandle<Result<(), RunError>>,
    shutdown: CancellationToken,
    /// Removed when it is dropped.
    _data: tempfile::TempDir,
}

impl TestNode {
    /// Starts a node that shares compiled code with the other nodes of the tests.
    pub async fn start(code: &SharedCode) -> anyhow::Result<Self> {
        let data = temporary_folder()?;
        write_private(&data.path().join(CACHE_KEY_FILE), &code.key)
            .context("the key of compiled code cannot be written")?;
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig {
            data_dir: data.path().to_owned(),
            cache_dir: Some(code.folder.clone()),
            isolates: IsolatesSection { code_cache: MAX_KEPT_CODE, ..IsolatesSection::default() },
            http: free,
            mqtt: free,
            control: free,
            ..NodeConfig::default()
        };
        let control = ClockControl::new();
        let clock = control.clock();
        let node = node::build_with(config, clock.clone()).await?;
        let (addresses, broker) = (node.addresses(), node.broker().clone());
        let time = Arc::new(node.advance(control));
        let (token, gateway_token) = (node.token().to_owned(), read(data.path(), "http-token")?);
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(node.run(shutdown.clone()));
        let url = NodeUrl::parse(&control_url(addresses.control, false))?;
        let control = connection::connect_to(&url, Some(&token), None).await?;
        let objects = connection::connect_objects_to(&url, Some(&token)).await?;
        Ok(Self {
            addresses,
            broker,
            control,
            objects,
            gateway_token,
            clock,
            time,
            serving,
            shutdown,
            _data: data,
        })
    }

    /// Log lines since a time of the node, in milliseconds since the Unix epoch, of the functions that `of` is true for; at most the last `max`.
    pub async fn log(
        &self,
        since_unix_ms: u64,
        of: impl Fn(&str) -> bool,
        max: usize,
    ) -> anyhow::Result<Vec<proto::LogLine>> {
        let request = proto::LogsRequest::default();
        let mut control = self.control.clone();
        let mut lines =
            control.logs(request).await.map_err(|status| connection::failure(&status))?.into_inner();
        let mut found = std::collections::VecDeque::new();
        while let Some(line) = lines.message().await.map_err(|status| connection::failure(&status))? {
            if line.time_unix_ms as u64 >= since_unix_ms && of(&line.function) {
                found.push_back(line);
                if found.len() > max {
                    found.pop_front();
                }
            }
        }
        Ok(found.into())
    }

    /// Ends the node.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Self { control, objects, time, serving, shutdown, _data, .. } = self;
        // The node waits some seconds for connections that are open.
        drop((control, objects, time));
        shutdown.cancel();
        Ok(serving.await??)
    }
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(content)
}

fn read(folder: &Path, name: &str) -> anyhow::Result<String> {
    let path = folder.join(name);
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(text.trim().to_owned())
}
