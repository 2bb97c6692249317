//! MQTT and HTTP clients that others wrote, calling functions. `brokering.rs` has them use the broker.

use std::process::Command;

use crate::support::{Running, has, skipped};

const HELLO: &str = "export default (event) => 'hello ' + event.text();\n";

fn node_with_hello(home: &tempfile::TempDir) -> Running {
    let file = home.path().join("hello.js");
    std::fs::write(&file, HELLO).unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", file.to_str().unwrap()]);
    node
}

fn output_of(mut command: Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn mosquittos_clients_call_a_function_in_both_versions() {
    if !has("mosquitto_rr", &["--help"]) && Command::new("mosquitto_rr").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node_with_hello(&home);
    let mut call = Command::new("mosquitto_rr");
    call.args(["-p", &node.mqtt_port, "-V", "5", "-W", "60", "-q", "1"]);
    call.args(["-t", "$faas/fn/hello/invoke", "-e", "answers", "-m", "five"]);
    assert_eq!(output_of(call), "hello five\n");
    let mut call = Command::new("mosquitto_rr");
    call.args(["-p", &node.mqtt_port, "-V", "311", "-W", "60", "-q", "1"]);
    call.args(["-t", "$faas/fn/hello/invoke/7", "-e", "$faas/fn/hello/result/7", "-m", "four"]);
    assert_eq!(output_of(call), "hello four\n");
}

#[test]
fn paho_calls_a_function_in_both_versions() {
    let python = std::env::var("EDGEFAAS_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    if !has(&python, &["-c", "import paho.mqtt.client"]) {
        return skipped("python3 with paho-mqtt");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node_with_hello(&home);
    for version in ["4", "5"] {
        let mut client = Command::new(&python);
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/paho_call.py"));
        client.args([&node.mqtt_port, version, "hello", "paho"]);
        assert_eq!(output_of(client).trim(), "hello paho", "version {version}");
    }
}

#[test]
fn mqtt_js_calls_a_function_in_both_versions() {
    let path = std::env::var("EDGEFAAS_TEST_NODE_PATH").unwrap_or_default();
    let mut probe = Command::new("node");
    probe.env("NODE_PATH", &path).args(["-e", "require('mqtt')"]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("node with the package mqtt");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node_with_hello(&home);
    for version in ["4", "5"] {
        let mut client = Command::new("node");
        client.env("NODE_PATH", &path);
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/mqtt_js_call.cjs"));
        client.args([&node.mqtt_port, version, "hello", "mqtt.js"]);
        assert_eq!(output_of(client).trim(), "hello mqtt.js", "version {version}");
    }
}

#[test]
fn curl_calls_a_function() {
    if !has("curl", &["--version"]) {
        return skipped("curl");
    }
    let home = tempfile::tempdir().unwrap();
    let node = node_with_hello(&home);
    let mut curl = Command::new("curl");
    curl.args(["-sSi", "-d", "curl", &format!("http://{}/fn/hello", node.http)]);
    let answer = output_of(curl);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\nserver-timing: queue;dur="), "{answer}");
    assert!(answer.ends_with("\r\n\r\nhello curl"), "{answer}");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http1.0", &format!("http://{}/fn/nobody", node.http)]);
    assert!(output_of(curl).contains(r#""status":404"#));
}
