//! Stands in for the node until `edgefaas_node` has one, with the same names and signatures.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

pub struct NodeConfig {
    pub data_dir: PathBuf,
    pub http: SocketAddr,
    pub mqtt: SocketAddr,
    pub control: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl NodeConfig {
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        if let Some(file) = file {
            std::fs::read(file).map_err(|error| ConfigError(format!("{}: {error}", file.display())))?;
        }
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self {
            data_dir: default_data_dir(),
            http: loopback(8080),
            mqtt: loopback(1883),
            control: loopback(7070),
        })
    }
}

pub struct Platform;

impl Platform {
    pub fn system() -> Self {
        Self
    }
}

#[derive(Debug, Clone)]
pub struct Addresses {
    pub http: SocketAddr,
    pub mqtt: SocketAddr,
    pub control: SocketAddr,
}

pub struct Node(Addresses);

impl Node {
    pub async fn build(config: NodeConfig, _platform: Platform) -> anyhow::Result<Self> {
        let NodeConfig { data_dir, http, mqtt, control } = config;
        let _node = Self(Addresses { http, mqtt, control });
        anyhow::bail!("this build has no node; the data directory would be {}", data_dir.display())
    }

    pub fn addresses(&self) -> Addresses {
        self.0.clone()
    }

    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        shutdown.cancelled().await;
        Ok(())
    }
}

pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("EDGEFAAS_DATA_DIR") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/edgefaas");
    }
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from(".edgefaas"), |base| base.join("edgefaas"))
}
