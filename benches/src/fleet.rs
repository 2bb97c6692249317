//! A cluster whose nodes are on hosts of a test network. Client ports and control API of each node are on the loopback address
//! of its host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use edgefaas_testnet::{Host, Network};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;

const P2P_PORT: u16 = 7071;
/// How long nodes may take to find one another, or to get a deploy.
const PATIENCE: Duration = Duration::from_secs(1800);
const LOOK: Duration = Duration::from_millis(20);
/// The header that names the node that ran an invocation.
const NODE_HEADER: &str = "invocation-node";

/// How an app comes to all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeployTo {
    /// One deploy to the cluster.
    Cluster,
    /// One deploy to each node: for versions without deploys to a cluster, and without zones.
    EachNode,
}

/// Nodes of one cluster.
pub struct Fleet<'a> {
    /// In the order of their hosts.
    pub members: Vec<Member<'a>>,
    deploy_to: DeployTo,
    _home: TempDir,
}

/// A node.
pub struct Member<'a> {
    /// Where it is.
    pub host: &'a Host,
    /// Its process.
    pub process: Process,
    /// The gateway, on the host.
    pub http: SocketAddr,
    binary: PathBuf,
    control: String,
    data: PathBuf,
}

impl<'a> Fleet<'a> {
    /// Starts a node on each of these hosts, in a zone, and makes a cluster of them. Waits until each is connected with each.
    pub fn start(
        binary: &Path,
        hosts: &[(&'a Host, &str)],
        deploy_to: DeployTo,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let home = home()?;
        let mut members = Vec::new();
        for (host, zone) in hosts {
            let member = Member::start(binary, home.path(), host, zone, deploy_to, settings)?;
            match members.first() {
                None => drop(member.said(&["cluster", "init", "--name", host.name()])?),
                Some(first) => member.join(first)?,
            }
            members.push(member);
        }
        let fleet = Self { members, deploy_to, _home: home };
        fleet.wait_for_connections(&fleet.members.iter().collect::<Vec<_>>(), hosts.len() - 1)?;
        Ok(fleet)
    }

    /// The node on the host of this name.
    pub fn member(&self, name: &str) -> anyhow::Result<&Member<'a>> {
        self.members
            .iter()
            .find(|member| member.host.name() == name)
            .with_context(|| format!("no node {name}"))
    }

    /// Deploys an app, and waits until `path` answers on each node that has it.
    pub fn deploy(&self, app: &Path, path: &str) -> anyhow::Result<Duration> {
        self.deploy_until(app, path, |answer| answer.status == 200)
    }

    /// Deploys an app, and waits until an answer of `path` is `expected` on each node.
    pub fn deploy_until(
        &self,
        app: &Path,
        path: &str,
        expected: impl Fn(&Answer) -> bool + Sync,
    ) -> anyhow::Result<Duration> {
        let app = app.to_str().context("a path of UTF-8")?;
        let begun = Instant::now();
        let first = self.members.first().context("a node")?;
        match self.deploy_to {
            DeployTo::Cluster => drop(first.ok(&["deploy", app])?),
            DeployTo::EachNode => {
                for member in &self.members {
                    member.ok(&["deploy", app])?;
                }
            }
        }
        for member in &self.members {
            member.wait_for(path, &expected)?;
        }
        Ok(begun.elapsed())
    }

    /// Waits until each of these is connected with so many others.
    pub fn wait_for_connections(&self, members: &[&Member<'a>], others: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        for member in members {
            loop {
                let connected = member.connected()?;
                if connected == others {
                    break;
                }
                let name = member.host.name();
                ensure!(
                    begun.elapsed() < PATIENCE,
                    "{name} is connected with {connected} others of {others}"
                );
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }
}

impl<'a> Member<'a> {
    fn start(
        binary: &Path,
        home: &Path,
        host: &'a Host,
        zone: &str,
        deploy_to: DeployTo,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let zone = match deploy_to {
            DeployTo::Cluster => format!("zone = \"{zone}\"\n"),
            DeployTo::EachNode => String::new(),
        };
        let file = home.join(format!("{}.toml", host.name()));
        let listen = format!("{}:{P2P_PORT}", host.address());
        std::fs::write(
            &file,
            format!("[cluster]\nlisten = \"{listen}\"\nmdns = false\n{zone}\n{settings}"),
        )?;
        let data = home.join(host.name());
        let any = "127.0.0.1:0";
        let mut command = Command::new(binary);
        command.args(["run", "-o", "json", "--http", any, "--mqtt", any, "--control", any, "--config"]);
        command.arg(&file).arg("--data-dir").arg(&data).env("RUST_LOG", "error");
        let process = Process::start_on(host, command)?;
        let ready: Value = serde_json::from_str(&process.first_line)
            .with_context(|| format!("not a ready line: {}", process.first_line))?;
        let url = |name: &str| ready[name].as_str().with_context(|| format!("no {name} in {ready}"));
        let http: SocketAddr = url("http")?.rsplit('/').next().context("an address")?.parse()?;
        let control = url("control")?.to_owned();
        Ok(Self { host, http, control, data, binary: binary.to_owned(), process })
    }

    fn join(&self, first: &Member<'_>) -> anyhow::Result<()> {
        let said = first.said(&["cluster", "token"])?;
        let token = said["token"].as_str().context("a token")?;
        self.said(&["cluster", "join", token, "--name", self.host.name()])?;
        Ok(())
    }

    /// With how many others it is connected.
    fn connected(&self) -> anyhow::Result<usize> {
        let nodes = self.said(&["nodes"])?;
        let members = nodes["members"].as_array().context("members")?;
        Ok(members.iter().filter(|member| !member["peer"].is_null()).count())
    }

    /// Runs a command of the CLI against it.
    pub fn cli(&self, words: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.binary);
        command.args(words).args(["--node", &self.control, "--data-dir"]).arg(&self.data);
        Ok(self.host.output(command)?)
    }

    /// The same, and it must succeed; gives its stdout.
    pub fn ok(&self, words: &[&str]) -> anyhow::Result<Vec<u8>> {
        let output = self.cli(words)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}: edgefaas {words:?}: {said}", self.host.name());
        }
        Ok(output.stdout)
    }

    /// What the command line says as JSON.
    pub fn said(&self, words: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.ok(&[words, &["-o", "json"]].concat())?)?)
    }

    /// Asks with `GET path` until an answer is `expected`.
    pub fn wait_for(&self, path: &str, expected: impl Fn(&Answer) -> bool + Sync) -> anyhow::Result<()> {
        self.host.enter(|| {
            let (begun, mut connection) = (Instant::now(), None);
            loop {
                let answer = ask(&mut connection, self.http, path);
                if answer.as_ref().is_ok_and(&expected) {
                    return Ok(());
                }
                let name = self.host.name();
                let said = answer
                    .map(|answer| (answer.status, String::from_utf8_lossy(&answer.body).into_owned()));
                ensure!(begun.elapsed() < PATIENCE, "{name}: {path} gives {said:?} after {PATIENCE:?}");
                std::thread::sleep(LOOK);
            }
        })
    }
}

/// Of an HTTP request.
#[derive(Debug)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// The node that ran the function, if it is not the one that was asked.
    pub node: Option<String>,
    /// What it says.
    pub body: Vec<u8>,
}

/// Sends `GET path` over a connection, which is made if there is none and kept after an answer.
pub fn ask(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    path: &str,
) -> anyhow::Result<Answer> {
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            BufReader::new(stream)
        }
    };
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n")?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).context("no status line")?.parse()?;
    let (mut length, mut node) = (None, None);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.trim().parse()?),
            NODE_HEADER => node = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length.context("the answer does not say its length")?];
    stream.read_exact(&mut body)?;
    *connection = Some(stream);
    Ok(Answer { status, node, body })
}

/// A folder in memory if there is one: the nodes of a fleet share a disk that in reality each has for itself.
fn home() -> std::io::Result<TempDir> {
    const MEMORY: &str = "/dev/shm";
    match Path::new(MEMORY).is_dir() {
        true => tempfile::tempdir_in(MEMORY),
        false => tempfile::tempdir(),
    }
}

/// All hosts of a network whose names are given, with the zone of each.
pub fn hosts<'a, 'z>(network: &'a Network, zones: &[(&'z str, &[String])]) -> Vec<(&'a Host, &'z str)> {
    zones.iter().flat_map(|(zone, names)| names.iter().map(|name| (network.host(name), *zone))).collect()
}
