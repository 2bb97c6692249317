//! A node on a host of a test network. Its client ports and its control API are on the loopback address of that host: a
//! test reaches them also while the host is cut off.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use edgefaas_testnet::{Host, Network};
use serde_json::Value;

use crate::engine_code;
use crate::support::{PATIENCE, edgefaas, exchange_over, look_again, metric_over};

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
        engine_code::give(&self.dir);
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

    /// Waits for the end of the process, which a signal has begun.
    pub fn ended(&mut self) -> Option<i32> {
        self.running.take().expect("it runs").wait().expect("it ends").code()
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

    /// Runs a command with text on its stdin, and it must succeed.
    pub fn tell(&self, args: &[&str], stdin: &str) {
        let mut command: Command = edgefaas(&self.dir);
        command.args(["--node", self.word("control=")]).args(args).stdin(Stdio::piped());
        let mut child = self.host.spawn(command).expect("it runs");
        child.stdin.take().expect("piped").write_all(stdin.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "edgefaas {args:?}");
    }

    /// The JSON that a command prints.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    /// The first JSON of a command that `wanted` accepts; commands that fail are run again.
    pub fn wait(&self, args: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let output = self.cli(&[args, &["-o", "json"]].concat());
            let value: Option<Value> = serde_json::from_slice(&output.stdout).ok();
            if let Some(value) = value.as_ref().filter(|value| wanted(value)) {
                return value.clone();
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(since.elapsed() < PATIENCE, "{}: {args:?}: {value:#?} {stderr}", self.name());
            look_again();
        }
    }

    /// Waits until the log of a function has a line with this text.
    pub fn wait_log(&self, function: &str, text: &str) {
        let since = Instant::now();
        while !self.ok(&["logs", function]).contains(text) {
            assert!(since.elapsed() < PATIENCE, "{}: {function} has not logged {text:?}", self.name());
            look_again();
        }
    }

    /// Waits until the node is connected with another one and knows its load.
    pub fn wait_for_member(&self, name: &str) {
        self.wait(&["nodes"], |nodes| {
            let mut members = nodes["members"].as_array().expect("members").iter();
            members.any(|member| member["name"] == name && !member["status"]["load"].is_null())
        });
    }

    /// Waits until a node is no longer connected.
    pub fn wait_for_loss(&self, name: &str) {
        self.wait(&["nodes"], |nodes| {
            let mut members = nodes["members"].as_array().expect("members").iter();
            members.all(|member| member["name"] != name || member["peer"].is_null())
        });
    }

    /// Sends an HTTP request, and does not wait for the answer.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Sent {
        let address = self.word("http=http://").parse().expect("an address");
        let mut stream = self.host.connect(address).expect("the gateway is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n"
        );
        write!(stream, "{head}{headers}\r\n{body}").expect("sent");
        Sent { stream, at: Instant::now() }
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

/// An HTTP request in flight. A drop closes its connection.
pub struct Sent {
    stream: TcpStream,
    at: Instant,
}

/// An answer to an HTTP request.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub head: String,
    pub body: String,
    /// The time from the request to the end of the answer.
    pub after: Duration,
}

impl Sent {
    /// Resets the connection: the caller does not wait any more. By a mere close the node cannot tell that.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("it is open");
    }

    /// The answer; `None` if the connection ends without one.
    pub fn answer(mut self) -> Option<Answered> {
        let mut text = String::new();
        self.stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answered { status, head: head.to_owned(), body: body.to_owned(), after: self.at.elapsed() })
    }
}

impl Answered {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The node that ran the function, if it was another one.
    pub fn node(&self) -> Option<&str> {
        self.header("invocation-node")
    }
}

/// Writes an app into a folder of `home`, and gives its path.
pub fn write_app(home: &Path, folder: &str, files: &[(&str, &str)]) -> String {
    let dir = home.join(folder);
    std::fs::create_dir_all(&dir).expect("a folder");
    for (name, text) in files {
        std::fs::write(dir.join(name), text).expect("written");
    }
    dir.to_str().expect("UTF-8").to_owned()
}

/// Sets the policies of the cluster, and waits until all connected nodes have them.
pub fn set_policy(node: &HostedNode<'_>, home: &Path, text: &str) {
    let file = home.join("policy.yaml");
    std::fs::write(&file, text).expect("written");
    let set = node.json(&["policy", "set", file.to_str().expect("UTF-8"), "--wait", "60s"]);
    for state in set["nodes"].as_array().expect("nodes") {
        assert!(state["state"] == "in-force" || state["state"] == "away", "{set:#}");
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

/// Starts nodes with options, and unites them.
pub fn cluster<'a>(network: &'a Network, home: &Path, nodes: &[(&str, &[&str])]) -> Vec<HostedNode<'a>> {
    let start = |(name, options): &(&str, &[&str])| HostedNode::start(network.host(name), home, options);
    let nodes: Vec<_> = nodes.iter().map(start).collect();
    unite(&nodes);
    for node in &nodes {
        nodes.iter().filter(|other| other.name() != node.name()).for_each(|other| {
            node.wait_for_member(other.name());
        });
    }
    nodes
}
