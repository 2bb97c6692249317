//! A node on a host of a test network. Its client ports and its control API are on the loopback address of that host: a
//! test reaches them also while the host is cut off.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use edgefaas_testnet::Host;

use crate::support::{edgefaas, exchange_over, metric_over};

/// The port of the cluster, on the address of each host.
const P2P_PORT: u16 = 7071;

pub struct HostedNode<'a> {
    host: &'a Host,
    dir: PathBuf,
    options: Vec<String>,
    running: Option<Child>,
    /// What it said when it was ready.
    ready: String,
}

impl<'a> HostedNode<'a> {
    /// Starts a node, whose name is that of its host, with its data in a folder of `home`.
    pub fn start(host: &'a Host, home: &Path, options: &[&str]) -> Self {
        let dir = home.join(host.name());
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut node = Self { host, dir, options, running: None, ready: String::new() };
        node.up();
        node
    }

    /// Starts it again after `kill`.
    pub fn up(&mut self) {
        let any = "127.0.0.1:0";
        let mut command = edgefaas(&self.dir);
        command
            .args(["run", "--http", any, "--mqtt", any, "--control", any])
            .args(["--p2p", &format!("{}:{P2P_PORT}", self.host.address())])
            .args(&self.options)
            .stdout(Stdio::piped());
        let mut child = self.host.spawn(command).expect("the binary starts");
        self.ready.clear();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut self.ready).expect("a line");
        self.running = Some(child);
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            child.kill().expect("it was alive");
            child.wait().expect("it ends");
        }
    }

    /// Sends a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let id = self.running.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let address = self.word("control=http://").parse().expect("an address");
        let token = std::fs::read_to_string(self.dir.join("token")).expect("the token");
        let stream = self.host.connect(address).expect("the control port is open");
        metric_over(stream, token.trim(), name)
    }

    pub fn name(&self) -> &str {
        self.host.name()
    }

    /// Runs a command of the CLI on the host, against this node.
    pub fn cli(&self, args: &[&str]) -> Output {
        let mut command: Command = edgefaas(&self.dir);
        command.args(["--node", self.word("control=")]).args(args);
        self.host.output(command).expect("it runs")
    }

    /// The same, and it must succeed; gives its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: edgefaas {args:?}: {stderr}", self.name());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Head and body of the answer to an HTTP request that a client on the host sends.
    pub fn exchange(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let address = self.word("http=http://").parse().expect("an address");
        let stream = self.host.connect(address).expect("the gateway is open");
        exchange_over(stream, method, path, body)
    }

    /// What follows `start` in the line that it said when it was ready.
    fn word(&self, start: &str) -> &str {
        let found = self.ready.split_whitespace().find_map(|word| word.strip_prefix(start));
        found.unwrap_or_else(|| panic!("{}: no {start} in {:?}", self.name(), self.ready))
    }
}

impl Drop for HostedNode<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes a cluster of these nodes. The first has its key.
pub fn unite(nodes: &[HostedNode<'_>]) {
    let (first, others) = nodes.split_first().expect("a node");
    first.ok(&["cluster", "init", "--name", first.name()]);
    for node in others {
        let token = first.ok(&["cluster", "token"]);
        node.ok(&["cluster", "join", token.trim(), "--name", node.name()]);
    }
}
