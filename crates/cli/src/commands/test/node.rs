//! The node of a file of tests: its data is in a folder that ends with it, its ports are free ones of loopback.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_broker::Broker;
use edgefaas_client::connection::{self, Client, NodeUrl, ObjectsClient};
use edgefaas_client::dev_file::control_url;
use edgefaas_node::config::NodeConfig;
use edgefaas_node::{Addresses, Advance, CACHE_KEY_FILE, RunError};
use edgefaas_platform::{Clock, ClockControl};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::node;

/// Code that a node of the tests has compiled, for the others, with the key that authenticates it.
pub struct SharedCode {
    folder: tempfile::TempDir,
    key: Option<Vec<u8>>,
}

impl SharedCode {
    /// No code.
    pub fn none() -> anyhow::Result<Self> {
        Ok(Self { folder: temporary_folder()?, key: None })
    }
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
    pub async fn start(code: &mut SharedCode) -> anyhow::Result<Self> {
        let data = temporary_folder()?;
        if let Some(key) = &code.key {
            write_private(&data.path().join(CACHE_KEY_FILE), key)
                .context("the key of compiled code cannot be written")?;
        }
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = NodeConfig {
            data_dir: data.path().to_owned(),
            cache_dir: Some(code.folder.path().to_owned()),
            http: free,
            mqtt: free,
            control: free,
            ..NodeConfig::default()
        };
        let control = ClockControl::new();
        let clock = control.clock();
        let node = node::build_with(config, clock.clone()).await?;
        if code.key.is_none() {
            let key = std::fs::read(data.path().join(CACHE_KEY_FILE));
            code.key = Some(key.context("the key of compiled code cannot be read")?);
        }
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
