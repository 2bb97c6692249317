//! Functions that compute without end, beside MQTT clients and small functions.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use rumqttc::{Client, Event, Incoming, MqttOptions, QoS};

use crate::support::{Running, look_again};

const SPINNING: usize = 24;
/// Round trips and calls of a small function, while all of the others compute.
const ROUND_TRIPS: usize = 300;

/// The order of events shows it, and no clock: each of the functions that compute has two seconds of processor time, so
/// that all of them together keep two threads for 24 seconds. What waits for a slice of each of them does not get so
/// much done before the first of them ends.
#[test]
fn connections_and_small_functions_do_not_wait_for_those_that_compute() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("node.toml");
    std::fs::write(&config, "workers = 2\n").unwrap();
    let node = Running::start(&home.path().join("data"), &["--config", config.to_str().unwrap()]);
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    let mut manifest = "app = \"spinning\"\n[functions.small]\nmain = \"small.js\"\n".to_owned();
    for number in 0..SPINNING {
        manifest += &format!(
            "[functions.spin-{number}]\nmain = \"spin.js\"\nlimits = {{ timeout = \"5m\", cpu = \"2s\" }}\n"
        );
    }
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(app.join("small.js"), "export default (event) => event.text();\n").unwrap();
    std::fs::write(app.join("spin.js"), "export default () => { for (;;); };\n").unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);

    let mut options = MqttOptions::new("watch", "127.0.0.1", node.mqtt_port.parse().unwrap());
    options.set_keep_alive(Duration::from_secs(60));
    let (client, mut connection) = Client::new(options, 10);
    client.subscribe("echo", QoS::AtMostOnce).unwrap();
    let calls: Vec<TcpStream> = (0..SPINNING)
        .map(|number| {
            let mut call = TcpStream::connect(&node.http).unwrap();
            write!(call, "POST /fn/spin-{number} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
                .unwrap();
            call.set_nonblocking(true).unwrap();
            call
        })
        .collect();
    let compute = || {
        calls
            .iter()
            .all(|call| matches!(call.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock))
    };
    // All of them compute: the node says so.
    loop {
        let said: serde_json::Value = serde_json::from_str(&node.ok(&["status", "-o", "json"])).unwrap();
        if said["isolates_running"].as_u64() >= Some(SPINNING as u64) {
            break;
        }
        assert!(compute(), "none of them ends before all have begun: {said}");
    }
    let mut round_trips = 0;
    for event in connection.iter() {
        match event.unwrap() {
            Event::Incoming(Incoming::SubAck(_)) => {}
            Event::Incoming(Incoming::Publish(message)) => {
                assert_eq!(&message.payload[..], round_trips.to_string().as_bytes());
                round_trips += 1;
                let answer = node.http("POST", "/fn/small", "hello");
                assert_eq!(answer, (200, "hello".to_owned()), "after {round_trips}");
            }
            _ => continue,
        }
        if round_trips == ROUND_TRIPS {
            break;
        }
        client.publish("echo", QoS::AtMostOnce, false, round_trips.to_string()).unwrap();
    }
    assert!(compute(), "{round_trips} round trips while all of them compute");
}

/// The callee of each computes, and waits for its turn, while its caller computes too.
#[test]
fn callers_that_compute_do_not_stop_their_callees() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("node.toml");
    std::fs::write(&config, "workers = 1\n").unwrap();
    let node = Running::start(&home.path().join("data"), &["--config", config.to_str().unwrap()]);
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    let spin =
        "const spin = () => { let sum = 0; for (let i = 0; i < 300_000; i++) sum += i; return sum; };\n";
    let callee = "export default () => String(spin());\n";
    let caller = "export default async (event, context) => {\n\
                  const calls = Promise.all([1, 2, 3].map((n) => context.call(\"callee\", n)));\n\
                  for (let i = 0; i < 5; i++) { await new Promise((done) => setTimeout(done, 0)); spin(); }\n\
                  return String((await calls).length);\n};\n";
    let limits = "limits = { timeout = \"30s\" }\n";
    std::fs::write(
        app.join("edgefaas.toml"),
        format!(
            "app = \"calls\"\n[functions.callee]\nmain = \"callee.js\"\n{limits}[functions.caller]\nmain = \
             \"caller.js\"\npermissions = {{ call = [\"callee\"] }}\n{limits}"
        ),
    )
    .unwrap();
    std::fs::write(app.join("callee.js"), format!("{spin}{callee}")).unwrap();
    std::fs::write(app.join("caller.js"), format!("{spin}{caller}")).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(node.http("POST", "/fn/caller", ""), (200, "3".to_owned()));
                }
            });
        }
    });
}

/// The order shows it: a listener whose filter computes for each of many messages is still at it when others are answered.
#[test]
fn a_filter_that_computes_holds_up_nobody() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("node.toml");
    std::fs::write(&config, "workers = 1\n").unwrap();
    let node = Running::start(&home.path().join("data"), &["--config", config.to_str().unwrap()]);
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    let manifest =
        "app = \"filters\"\n[functions.small]\nmain = \"small.js\"\n[workflows]\nfiles = [\"*.yaml\"]\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(app.join("small.js"), "export default (event) => event.text();\n").unwrap();
    let workflow = "document: { dsl: '1.0.3', namespace: test, name: slow, version: '1.0.0' }\n\
        do:\n  - hear:\n      listen:\n        to:\n          any:\n\
        \x20           - with: { type: mqtt.publish, subject: slow/end }\n\
        \x20           - with: { type: mqtt.publish, subject: slow/t, data: '${ [range(20000)] | length == 0 }' }\n";
    std::fs::write(app.join("slow.yaml"), workflow).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);

    let publish = |topic: &str, lines: String| {
        let mut client = std::process::Command::new("mosquitto_pub")
            .args(["-p", &node.mqtt_port, "-q", "1", "-t", topic, "-l"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        client.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(client.wait().unwrap().success());
    };
    let listens_meanwhile = || {
        let mut instance = TcpStream::connect(&node.http).unwrap();
        instance
            .write_all(b"POST /workflows/slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
            .unwrap();
        instance.set_nonblocking(true).unwrap();
        while !node.ok(&["workflow", "list", "slow"]).contains("waiting") {
            look_again();
        }
        publish("slow/t", "1\n".repeat(500));
        publish("slow/end", "1\n".to_owned());
        for _ in 0..20 {
            assert_eq!(node.http("POST", "/fn/small", "hello"), (200, "hello".to_owned()));
        }
        matches!(instance.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    // If this test itself was held up for longer than the filter takes, it has seen nothing.
    let listens = (0..4).any(|_| listens_meanwhile());
    assert!(listens, "its filter had not seen all messages when others were answered");
}
