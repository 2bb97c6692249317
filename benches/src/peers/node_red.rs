//! Node-RED, from npm: an MQTT flow of function nodes. Installed when it is first wanted.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::npm::{Scripts, installed};
use crate::process::Process;

/// The version that is measured: the newest one for Node.js 20.
pub const VERSION: &str = "4.1.8";

/// As Node-RED writes it for a new user, without the editor. Its log has one line: that the flow is connected.
const SETTINGS: &str = r#"module.exports = {
  flowFile: "flows.json",
  httpAdminRoot: false,
  httpNodeRoot: false,
  uiHost: "127.0.0.1",
  uiPort: 0,
  logging: {
    console: { level: "off" },
    bench: {
      level: "info",
      handler: () => (entry) => {
        if (String(entry.msg).includes("Connected to broker")) process.stdout.write("connected\n");
      },
    },
  },
};
"#;

/// What it says once the flow is connected.
const CONNECTED: &str = "connected";

/// A flow that runs. Dropping it ends it.
#[derive(Debug)]
pub struct NodeRed {
    /// Its process.
    pub process: Process,
    _folder: TempDir,
}

impl NodeRed {
    /// Starts a flow of these nodes, which are on the tab `flow` and connect to `broker`.
    ///
    /// # Errors
    /// npm is not there, or the broker does not listen.
    pub fn start(broker: SocketAddr, nodes: Vec<Value>) -> anyhow::Result<Self> {
        let program = install()?;
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("settings.js"), SETTINGS)?;
        fs::write(folder.path().join("flows.json"), Value::Array(flow(broker, nodes)).to_string())?;
        let mut command = Command::new("node");
        command.arg(program).arg("--userDir").arg(folder.path()).stderr(Stdio::null());
        let process = Process::start(&mut command).context("Node-RED")?;
        if process.first_line.trim() != CONNECTED {
            bail!("Node-RED says {:?}", process.first_line.trim());
        }
        Ok(Self { process, _folder: folder })
    }
}

/// A function node whose output goes to these.
pub fn function(id: &str, body: &str, to: &[&str]) -> Value {
    json!({ "id": id, "type": "function", "z": "flow", "func": body, "outputs": 1, "wires": [to] })
}

/// A node that subscribes, for JSON (QoS 0).
pub fn mqtt_in(id: &str, topic: &str, to: &[&str]) -> Value {
    json!({
        "id": id, "type": "mqtt in", "z": "flow", "topic": topic, "qos": "0", "datatype": "json", "broker": "broker",
        "wires": [to],
    })
}

/// A node that publishes (QoS 0). With an empty topic it takes that of the message.
pub fn mqtt_out(id: &str, topic: &str) -> Value {
    json!({
        "id": id, "type": "mqtt out", "z": "flow", "topic": topic, "qos": "0", "retain": "false", "broker": "broker",
        "wires": [],
    })
}

/// A node that makes an array of so many payloads.
pub fn join(id: &str, count: u64, to: &[&str]) -> Value {
    json!({
        "id": id, "type": "join", "z": "flow", "mode": "custom", "build": "array", "property": "payload",
        "propertyType": "msg", "count": count.to_string(), "timeout": "", "accumulate": false, "wires": [to],
    })
}

/// What the editor saves with the nodes.
fn flow(broker: SocketAddr, mut nodes: Vec<Value>) -> Vec<Value> {
    nodes.extend([
        json!({ "id": "flow", "type": "tab", "label": "bench" }),
        json!({
            "id": "broker", "type": "mqtt-broker", "broker": broker.ip().to_string(),
            "port": broker.port().to_string(), "protocolVersion": "4", "keepalive": "60", "cleansession": true,
            "autoConnect": true,
        }),
    ]);
    nodes
}

/// Its program.
fn install() -> anyhow::Result<PathBuf> {
    installed("node-red", VERSION, Scripts::Run, "node-red/red.js")
}
