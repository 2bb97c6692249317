//! Components of `wasi:http/proxy` on a real node, as they come out of their toolchain.

use std::time::Duration;

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::v5::{Client, Event, MqttOptions};

use crate::support::{Running, component, echo_server, free_port, has_wasm_target, repository, skipped};

const NEEDS: &str = "the target wasm32-wasip2 (rustup target add wasm32-wasip2)";

fn app() -> String {
    repository().join("crates/cli/tests/node/guests/proxy").to_str().unwrap().to_owned()
}

#[test]
fn an_event_becomes_a_request_and_the_response_the_reply() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", &app()]);
    let (status, body) = node.http("POST", "/fn/proxy/a%20b?c=d&e", "text");
    assert_eq!((status, &*body), (200, "POST /a%20b?c=d&e localhost - - text"));
    let (status, body) = node.http("GET", "/mounted/x", "");
    assert_eq!((status, &*body), (200, "GET /mounted/x localhost - - "));
    // Any method, and a body of several parts.
    let (_, body) = node.http("PATCH", "/fn/proxy/", &"long ".repeat(40_000));
    assert!(body.starts_with("Method::Patch /") && body.ends_with(&"long ".repeat(40_000)), "{body:.100}");
    assert_eq!(node.http("GET", "/fn/proxy/status?404", ""), (404, "told".into()));
    assert_eq!(node.http("GET", "/fn/proxy/trailers", ""), (200, "body".into()));
    let (status, body) = node.http("GET", "/fn/proxy/large?1000000", "");
    assert_eq!((status, body.len()), (200, 1_000_000));

    assert_eq!(node.ok(&["invoke", "proxy", "-d", "data"]), "POST / localhost edgefaas.call - data\n");
}

#[test]
fn a_message_is_a_cloud_event_and_its_response_the_answer() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", &app()]);
    let port = node.mqtt_port.parse().unwrap();
    let (client, mut connection) = Client::new(MqttOptions::new("asker", "127.0.0.1", port), 10);
    client.subscribe("answers", QoS::AtMostOnce).unwrap();
    let properties = PublishProperties { response_topic: Some("answers".into()), ..Default::default() };
    client.publish_with_properties("proxy/in", QoS::AtMostOnce, false, "payload", properties).unwrap();
    let answer = connection.iter().find_map(|event| match event.unwrap() {
        Event::Incoming(Packet::Publish(message)) => Some(message),
        _ => None,
    });
    let answer = answer.expect("an answer");
    assert_eq!(answer.payload, "POST / localhost edgefaas.mqtt proxy/in payload");
    assert_eq!(answer.properties.unwrap().content_type.as_deref(), Some("text/plain"));
}

#[test]
fn a_handler_that_misbehaves_is_contained_and_told() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", &app()]);
    for (what, status, title, words) in [
        ("unset", 500, "", "set no response"),
        ("unset-kept", 500, "", "set no response"),
        ("code", 500, "Function failed", "LoopDetected"),
        ("unfinished", 500, "", "not finished"),
        ("dropped", 500, "", "not finished"),
        ("short", 500, "", "content-length"),
        ("trap", 500, "Function trapped", "after the response"),
        ("hoard", 500, "Function trapped", "more than 4096"),
        ("never", 504, "Function timed out", "2s"),
        ("large?1048577", 500, "Reply too large", "limit is 1048576"),
        ("endless", 500, "Reply too large", "limit is 1048576"),
        ("status?103", 500, "", "status 103"),
    ] {
        // The others have all the time that a busy machine may need.
        let function = if what == "never" { "brief" } else { "proxy" };
        let (found, body) = node.http("GET", &format!("/fn/{function}/{what}"), "");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        assert_eq!(found, status, "{what}: {body:.300}");
        assert!(problem["title"].as_str().unwrap().contains(title), "{what}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{what}: {problem}");
        assert_eq!(node.http("GET", "/fn/proxy/trailers", ""), (200, "body".into()), "after {what}");
    }
}

#[test]
fn config_and_secrets_are_its_environment() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", &app()]);
    assert_eq!(node.http("GET", "/fn/proxy/environment", "").1, "A_LIST=[1,2] GREETING=hello [\"proxy\"]");
    node.tell(&["secrets", "set", "api_key", "--app", "proxy"], "s3cret");
    assert_eq!(
        node.http("GET", "/fn/proxy/environment", "").1,
        "API_KEY=s3cret A_LIST=[1,2] GREETING=hello [\"proxy\"]"
    );
}

#[test]
fn it_sends_requests_to_permitted_servers() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let server = echo_server(1);
    // Nobody listens there, and no other test is given it.
    let refused = format!("127.0.0.1:{}", free_port());
    let wasm = component("proxy");
    node.ok(&[
        "deploy",
        wasm.to_str().unwrap(),
        "--allow",
        &format!("http={server}"),
        "--allow",
        &format!("http={refused}"),
        "--allow",
        "http=nobody.invalid",
    ]);
    // Longer than what is buffered between the two sides.
    let text = "text ".repeat(60_000);
    let (status, body) = node.http("POST", &format!("/fn/proxy/fetch?{server}/path"), &text);
    assert_eq!((status, body.len()), (200, "POST /path ".len() + text.len()), "{body:.200}");
    assert!(body.starts_with("POST /path text text"), "{body:.200}");
    for (authority, code) in [
        ("127.0.0.1:9/", "HttpRequestDenied"),
        (&*format!("{refused}/"), "ConnectionRefused"),
        ("nobody.invalid/", "DnsError"),
    ] {
        let (status, body) = node.http("POST", &format!("/fn/proxy/fetch?{authority}"), "x");
        assert!(status == 502 && body.contains(code), "{authority}: {status} {body}");
    }
    let log = node.ok(&["logs", "proxy"]);
    assert!(log.contains("127.0.0.1:9") && log.contains("permissions.http"), "{log}");
}

#[test]
fn a_component_of_neither_world_is_refused_with_the_names_of_both() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let deploy = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, wat(text)).unwrap();
        let output = node.cli(&["deploy", path.to_str().unwrap()]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let stderr = deploy("empty.wasm", "");
    assert!(stderr.contains("edgefaas:function/function"), "{stderr}");
    assert!(stderr.contains("wasi:http/incoming-handler"), "{stderr}");
    let stderr = deploy("stranger.wasm", "wasi:nn/tensor@0.2.0");
    assert!(stderr.contains("wasi:nn/tensor@0.2.0") && stderr.contains("not given"), "{stderr}");
}

/// A component without exports that imports the named instance, or nothing.
fn wat(import: &str) -> Vec<u8> {
    let mut wasm = b"\0asm\x0d\0\x01\0".to_vec();
    if import.is_empty() {
        return wasm;
    }
    // A type section: one instance type that exports a function without parameters and results.
    wasm.extend([7, 14, 1, 0x42, 2, 0x01, 0x40, 0, 0x01, 0, 0x04, 0, 1, b'f', 0x01, 0]);
    // An import section: one import of that type.
    let name = import.as_bytes();
    let body = [&[1, 0, name.len() as u8][..], name, &[5, 0]].concat();
    wasm.extend([&[10, body.len() as u8][..], &body].concat());
    wasm
}

#[test]
fn starting_one_takes_microseconds() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", &app()]);
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        let (head, _) = node.exchange("GET", "/fn/proxy/trailers", "");
        let timing = head.lines().find(|line| line.to_lowercase().starts_with("server-timing")).unwrap();
        let start = timing.split("start;dur=").nth(1).expect(timing);
        let ms: f64 = start.split([',', ';']).next().unwrap().trim().parse().unwrap();
        times.push(Duration::from_secs_f64(ms / 1000.0));
    }
    times.sort();
    println!("start: median {:?}, 99th percentile {:?}", times[100], times[198]);
    // Far from what it takes: tests run side by side.
    assert!(times[100] < Duration::from_millis(5), "{:?}", times[100]);
}
