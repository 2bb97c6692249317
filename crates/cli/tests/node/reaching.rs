//! What a component of the function world may reach: servers, its environment, the clock and chance.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use crate::support::{Running, component, echo_server, has_wasm_target, skipped};

const NEEDS: &str = "the target wasm32-wasip2 (rustup target add wasm32-wasip2)";

/// A node with the guest, which may do what `allow` says.
fn reaching(home: &std::path::Path, allow: &[String]) -> Running {
    let node = Running::start(home, &[]);
    let wasm = component("reach");
    let mut words = vec!["deploy", wasm.to_str().unwrap()];
    words.extend(allow.iter().flat_map(|permission| ["--allow", permission]));
    node.ok(&words);
    node
}

fn ask(node: &Running, what: &str) -> String {
    let (status, body) = node.http("POST", "/fn/reach", what);
    assert_eq!(status, 200, "{what}: {body}");
    body
}

/// Answers each connection with what it was told, in capitals.
fn shouting() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                stream.write_all(text.to_uppercase().as_bytes()).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
        }
    });
    port
}

#[test]
fn tcp_connections_lead_to_permitted_servers_only() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let (named, by_address) = (shouting(), shouting());
    let allow = [format!("tcp=localhost:{named}"), format!("tcp=127.0.0.1:{by_address}")];
    let node = reaching(home.path(), &allow);
    assert_eq!(ask(&node, &format!("tcp localhost:{named}")), "HELLO");
    assert_eq!(ask(&node, &format!("tcp 127.0.0.1:{by_address}")), "HELLO");
    // A permission is for one port, and an address is not the name that leads there.
    for server in [format!("127.0.0.1:{named}"), "localhost:1".into(), "127.0.0.1:1".into()] {
        assert_eq!(ask(&node, &format!("tcp {server}")), "PermissionDenied", "{server}");
    }
    // Not even a lookup.
    let other = ask(&node, "tcp example.com:80");
    assert!(!other.contains("HELLO"), "{other}");
    let log = node.ok(&["logs", "reach"]);
    assert!(log.contains("server `example.com`") && log.contains("permissions.tcp"), "{log}");
    assert_eq!(ask(&node, "listen"), "PermissionDenied");
    assert_eq!(ask(&node, "udp"), "PermissionDenied");
    assert_eq!(ask(&node, &format!("sockets 127.0.0.1:{by_address}")), "64");
}

#[test]
fn without_a_permission_there_are_no_sockets() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let port = shouting();
    let node = reaching(home.path(), &[]);
    assert_eq!(ask(&node, &format!("tcp 127.0.0.1:{port}")), "PermissionDenied");
    assert!(!ask(&node, &format!("tcp localhost:{port}")).contains("HELLO"));
}

#[test]
fn requests_go_to_permitted_servers_and_overlap() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    // The second answers nobody before two have asked.
    let (one, two) = (echo_server(1), echo_server(2));
    let node = reaching(home.path(), &[format!("http={one}"), format!("http={two}")]);
    assert_eq!(ask(&node, &format!("fetch http://{one}/a?b")), "200 POST /a?b asked");
    assert_eq!(ask(&node, &format!("both http://{two}/x")), "GET /x  GET /x ");
    let refused = ask(&node, "fetch http://127.0.0.1:9/");
    assert!(refused.contains("not permitted") && refused.contains("permissions.http"), "{refused}");
    assert!(ask(&node, "fetch nowhere").contains("not an absolute URL"));
}

#[test]
fn wasi_is_what_a_fresh_process_would_have() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = reaching(home.path(), &[]);
    assert_eq!(ask(&node, "variable PATH"), "environment variable not found");
    assert_eq!(ask(&node, "arguments"), "reach");
    assert_eq!(ask(&node, "stdin"), "0 \"\"");
    assert!(["NotFound", "Uncategorized", "Other"].contains(&&*ask(&node, "file")));
    assert_ne!(ask(&node, "random"), ask(&node, "random"));
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let before = now();
    let told: u128 = ask(&node, "clock").parse().unwrap();
    assert!((before..=now()).contains(&told), "{told}");
}
