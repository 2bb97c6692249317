//! Nodes of one cluster, each a process of its own on this machine.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgefaas_benches::node::{Node, token};
use tempfile::TempDir;

use crate::apps::App;
use crate::client::Endpoint;

/// Port 0: a free one, which the token that lets others in names.
const SETTINGS: &str = "[cluster]\nlisten = \"127.0.0.1:0\"\n";
/// How long nodes may take to find one another.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// A node with what it keeps.
pub struct Member {
    /// The node.
    pub node: Node,
    /// Its data directory.
    pub data: TempDir,
}

/// Nodes that are connected with one another and have the same app.
pub struct Cluster {
    /// The first one lets others in.
    pub members: Vec<Member>,
}

impl Member {
    /// Starts a node that is in no cluster.
    pub fn start(binary: &Path) -> anyhow::Result<Self> {
        Self::start_again(binary, tempfile::tempdir()?)
    }

    /// The same with more settings of a configuration file.
    pub fn start_with(binary: &Path, settings: &str) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let node = Node::start_with(binary, data.path(), &format!("{SETTINGS}\n{settings}"))?;
        Ok(Self { node, data })
    }

    /// Starts a node again with what it has kept.
    pub fn start_again(binary: &Path, data: TempDir) -> anyhow::Result<Self> {
        let node = Node::start_with(binary, data.path(), SETTINGS)?;
        Ok(Self { node, data })
    }

    /// Makes it the first of a cluster.
    pub fn begin_cluster(&self, binary: &Path) -> anyhow::Result<()> {
        self.node.said(binary, self.data.path(), &["cluster", "init", "--name", "n0"])?;
        Ok(())
    }

    /// Makes it one more node of the cluster of another.
    pub fn join(&self, binary: &Path, first: &Member, name: &str) -> anyhow::Result<()> {
        let said = first.node.said(binary, first.data.path(), &["cluster", "token"])?;
        let token = said["token"].as_str().context("a token")?;
        self.node.said(binary, self.data.path(), &["cluster", "join", token, "--name", name])?;
        Ok(())
    }

    /// Deploys an app on it.
    pub fn deploy(&self, binary: &Path, app: &App) -> anyhow::Result<()> {
        self.node.deploy_app(binary, self.data.path(), app.path())
    }

    /// How its objects are reached.
    pub fn endpoint(&self) -> anyhow::Result<Endpoint> {
        Ok(Endpoint { address: self.node.control, token: token(self.data.path())? })
    }

    /// A figure of `/metrics`.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        self.node.metric(self.data.path(), name)
    }

    /// Waits until it is connected with so many others.
    pub fn wait_for_peers(&self, peers: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        while (self.metric("edgefaas_cluster_peers")? as usize) < peers {
            if begun.elapsed() > PATIENCE {
                bail!(
                    "a node is connected with {} others of {peers} after {PATIENCE:?}",
                    self.metric("edgefaas_cluster_peers")?
                );
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Cluster {
    /// Starts so many nodes, each with the app; a single one is in no cluster.
    pub fn start(binary: &Path, count: usize, app: &App) -> anyhow::Result<Self> {
        let first = Member::start(binary)?;
        if count > 1 {
            first.begin_cluster(binary)?;
        }
        let mut members = vec![first];
        for number in 1..count {
            let member = Member::start(binary)?;
            member.join(binary, &members[0], &format!("n{number}"))?;
            members.push(member);
        }
        for member in &members {
            member.deploy(binary, app)?;
        }
        for member in &members {
            member.wait_for_peers(count - 1)?;
        }
        // Until they know of one another's functions, and have compared what they have.
        sleep(Duration::from_secs(1));
        Ok(Self { members })
    }

    /// How the objects of each are reached.
    pub fn endpoints(&self) -> anyhow::Result<Vec<Endpoint>> {
        self.members.iter().map(Member::endpoint).collect()
    }
}
