//! Requests of web pages of other sites: preflights that the node answers, and replies that pages may read.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{PATIENCE, Running};

/// Head and body of the answer to a request with these headers.
fn ask(node: &Running, method: &str, path: &str, headers: &[&str]) -> (String, String) {
    let mut stream = TcpStream::connect(&node.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
    write!(stream, "{head}content-length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

fn preflight(node: &Running, path: &str, origin: &str, method: &str) -> String {
    let headers = [
        format!("origin: {origin}"),
        format!("access-control-request-method: {method}"),
        "access-control-request-headers: authorization, content-type".to_owned(),
    ];
    ask(node, "OPTIONS", path, &headers.each_ref().map(String::as_str)).0
}

const MANIFEST: &str = r#"
app = "pages"

[functions.open]
main = "f.js"
triggers = [
    { http = "/open", methods = ["GET", "PUT"], cors = ["https://shop.example", "http://localhost:*"] },
    { http = "/closed" },
    { http = "/own", cors = ["*"] },
]

[functions.guarded]
main = "f.js"
triggers = [{ http = "/guarded", auth = "token", cors = ["https://shop.example"] }]
"#;

const FUNCTION: &str = "export default (event) => event.path === '/own'\n\
    ? new Response('own', { headers: { 'access-control-allow-origin': 'https://mine.example' } })\n\
    : `${event.method} ${event.path}`;\n";

fn deployed(config: &str) -> (tempfile::TempDir, Running) {
    let home = tempfile::tempdir().unwrap();
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("edgefaas.toml"), MANIFEST).unwrap();
    std::fs::write(app.join("f.js"), FUNCTION).unwrap();
    let file = home.path().join("node.toml");
    std::fs::write(&file, config).unwrap();
    let node = Running::start(&home.path().join("data"), &["--config", file.to_str().unwrap()]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    (home, node)
}

#[test]
fn a_trigger_permits_pages_and_the_node_answers_their_preflights() {
    let (_home, node) = deployed("");
    let head = preflight(&node, "/open", "https://shop.example", "PUT");
    assert!(head.starts_with("http/1.1 204"), "{head}");
    for header in [
        "access-control-allow-origin: https://shop.example",
        "access-control-allow-methods: put",
        "access-control-allow-headers: authorization, content-type",
        "access-control-max-age: 600",
        "vary: origin",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(preflight(&node, "/open", "http://localhost:5173", "GET").starts_with("http/1.1 204"));
    let odd = preflight(&node, "/open", "https://shop.example", "FOO BAR");
    assert!(!odd.contains("foo bar"), "what is no method is not permitted: {odd}");
    let (head, body) =
        ask(&node, "PUT", "/open", &["origin: https://shop.example", "sec-fetch-site: cross-site"]);
    assert!(head.starts_with("http/1.1 200") && body == "PUT /open", "{head}{body}");
    assert!(head.contains("access-control-allow-origin: https://shop.example"), "{head}");
    assert!(head.contains("access-control-expose-headers: invocation-id"), "{head}");

    // Errors too: a page has to see them.
    let (head, _) = ask(&node, "PUT", "/guarded", &["origin: https://shop.example"]);
    assert!(head.starts_with("http/1.1 401") && head.contains("access-control-allow-origin"), "{head}");
    assert!(
        preflight(&node, "/guarded", "https://shop.example", "POST").starts_with("http/1.1 204"),
        "needs no token"
    );

    // The headers of the function stay.
    let (head, body) = ask(&node, "GET", "/own", &["origin: https://other.example"]);
    assert!(body == "own" && head.matches("access-control-allow-origin").count() == 1, "{head}");
    assert!(head.contains("access-control-allow-origin: https://mine.example"), "{head}");
}

#[test]
fn without_a_setting_pages_of_other_sites_get_nothing() {
    let (_home, node) = deployed("");
    for (path, origin) in [
        ("/open", "https://evil.example"),
        ("/open", "http://localhost.evil.example"),
        ("/closed", "https://shop.example"),
        ("/fn/open", "https://shop.example"),
    ] {
        let (head, body) = ask(&node, "GET", path, &[&format!("origin: {origin}")]);
        assert!(
            head.starts_with("http/1.1 403") && !head.contains("access-control"),
            "{path} {origin}: {head}{body}"
        );
        let head = preflight(&node, path, origin, "GET");
        assert!(
            !head.starts_with("http/1.1 2") && !head.contains("access-control"),
            "{path} {origin}: {head}"
        );
    }
    // Without a page.
    assert!(!ask(&node, "GET", "/open", &[]).0.contains("access-control"));
}

#[test]
fn the_gateway_permits_pages_on_all_paths() {
    let (home, node) = deployed("[gateway]\ncors = [\"https://shop.example\"]\n");
    for path in ["/closed", "/fn/open"] {
        assert!(
            preflight(&node, path, "https://shop.example", "POST").starts_with("http/1.1 204"),
            "{path}"
        );
        let (head, _) = ask(&node, "GET", path, &["origin: https://shop.example"]);
        assert!(
            head.starts_with("http/1.1 200") && head.contains("access-control-allow-origin"),
            "{path}: {head}"
        );
    }
    // A setting for pages of the gateway is none for MQTT over WebSocket.
    let upgrade = ["origin: https://shop.example", "upgrade: websocket", "sec-websocket-version: 13"];
    let key = [
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol: mqtt",
        "connection: upgrade",
    ];
    let mut stream = TcpStream::connect(&node.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let lines = [&upgrade[..], &key[..]].concat().join("\r\n");
    write!(stream, "GET /mqtt HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n").unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 403");

    let file = home.path().join("wrong.toml");
    std::fs::write(&file, "[gateway]\ncors = [\"shop.example\"]\n").unwrap();
    let wrong = node.cli(&["run", "--config", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("`shop.example` is not an origin"));
}
