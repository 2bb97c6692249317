//! MQTT over WebSocket at the gateway: a client that others wrote, and bad input byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::{PATIENCE, Running, skipped};

const CONNECT: &[u8] = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04raw1";
const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

fn node(home: &tempfile::TempDir, config: &str) -> Running {
    let file = home.path().join("node.toml");
    std::fs::write(&file, config).unwrap();
    Running::start(&home.path().join("data"), &["--config", file.to_str().unwrap()])
}

/// Sends a request for an upgrade and gives the head of the answer, with what the rest is read from.
fn upgrade(node: &Running, headers: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(&node.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13";
    let asks = "connection: Upgrade\r\nupgrade: websocket";
    write!(stream, "GET /mqtt HTTP/1.1\r\nhost: {}\r\n{asks}\r\n{key}\r\n{headers}\r\n", node.http)
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (String::from_utf8(head).unwrap(), stream)
}

fn open(node: &Running) -> TcpStream {
    let (head, stream) = upgrade(node, "sec-websocket-protocol: mqtt\r\n");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.to_ascii_lowercase().contains("sec-websocket-protocol: mqtt\r\n"), "{head}");
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    stream
}

/// The head of a client's frame: masked, with a mask that changes nothing.
fn head(kind: u8, length: u64) -> Vec<u8> {
    let mut frame = vec![kind];
    match length {
        0..126 => frame.push(0x80 | length as u8),
        126..65536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&length.to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame
}

fn send(stream: &mut TcpStream, kind: u8, payload: &[u8]) {
    stream.write_all(&[&head(kind, payload.len() as u64), payload].concat()).unwrap();
}

fn receive(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    assert!(head[1] < 126, "a short frame");
    let mut payload = vec![0; head[1].into()];
    stream.read_exact(&mut payload).unwrap();
    (head[0], payload)
}

/// The status in the close frame that comes next, and that nothing comes after it.
fn closed(stream: &mut TcpStream) -> u16 {
    let (kind, payload) = receive(stream);
    assert_eq!(kind, CLOSE);
    send(stream, CLOSE, &payload[..2]);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    u16::from_be_bytes([payload[0], payload[1]])
}

#[test]
fn mqtt_js_has_what_it_asks_for_over_websocket() {
    let path = std::env::var("EDGEFAAS_TEST_NODE_PATH").unwrap_or_default();
    let mut probe = Command::new("node");
    probe.env("NODE_PATH", &path).args(["-e", "require('mqtt')"]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("node with the package mqtt");
    }
    for version in ["4", "5"] {
        let home = tempfile::tempdir().unwrap();
        let node = node(&home, "");
        let mut client = Command::new("node");
        client.env("NODE_PATH", &path);
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/mqtt_js_broker.cjs"));
        client.args([&format!("ws://{}/mqtt", node.http), version]);
        let output = client.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "version {version}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok", "version {version}");
    }
}

#[test]
fn packets_span_frames_and_share_them_and_pings_are_answered() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "");
    let mut stream = open(&node);
    send(&mut stream, BINARY, &CONNECT[..5]);
    send(&mut stream, PING, b"there?");
    send(&mut stream, BINARY, &[]);
    // The rest of the CONNECT and two PINGREQs.
    send(&mut stream, BINARY, &[&CONNECT[5..], b"\xc0\0\xc0\0"].concat());
    let mut bytes = Vec::new();
    let mut pongs = Vec::new();
    while bytes.len() < 8 || pongs.is_empty() {
        match receive(&mut stream) {
            (BINARY, payload) => bytes.extend(payload),
            (PONG, payload) => pongs.push(payload),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pongs, [b"there?"]);
    assert_eq!(bytes, b"\x20\x02\0\0\xd0\0\xd0\0");
    // DISCONNECT: the broker closes.
    send(&mut stream, BINARY, b"\xe0\0");
    assert_eq!(closed(&mut stream), 1000);
}

#[test]
fn a_stopping_node_ends_websockets_with_the_other_connections() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "");
    let mut stream = open(&node);
    send(&mut stream, BINARY, CONNECT);
    assert_eq!(receive(&mut stream), (BINARY, b"\x20\x02\0\0".to_vec()));
    assert_eq!(node.terminate(), Some(0));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest.first(), Some(&CLOSE), "{rest:?}");
}

#[test]
fn bad_requests_are_refused_as_problems() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "");
    let refused = |headers: &str, status: &str| {
        let (head, mut stream) = upgrade(&node, headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {head}");
        assert!(head.contains("content-type: application/problem+json\r\n"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    };
    assert!(refused("", "400").contains("subprotocol"));
    assert!(refused("sec-websocket-protocol: mqttv3.1, MQTT\r\n", "400").contains("subprotocol"));
    let foreign = "sec-websocket-protocol: mqtt\r\norigin: https://evil.example\r\n";
    assert!(refused(foreign, "403").contains("https://evil.example"));
    assert!(refused("sec-websocket-protocol: mqtt\r\norigin: null\r\n", "403").contains("allowed_origins"));
    let (status, body) = node.http("GET", "/mqtt", "");
    assert_eq!(status, 426, "{body}");
    let (status, body) = node.http("POST", "/mqtt", "x");
    assert_eq!(status, 405, "{body}");
    // A page of the gateway itself.
    let own = format!("sec-websocket-protocol: mqtt\r\norigin: http://{}\r\n", node.http);
    assert!(upgrade(&node, &own).0.starts_with("HTTP/1.1 101 "));
}

#[test]
fn pages_of_allowed_origins_connect() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "[websocket]\nallowed_origins = [\"https://app.example/\"]\n");
    let from =
        |origin: &str| upgrade(&node, &format!("sec-websocket-protocol: mqtt\r\norigin: {origin}\r\n")).0;
    assert!(from("https://app.example").starts_with("HTTP/1.1 101 "));
    assert!(from("https://other.example").starts_with("HTTP/1.1 403 "));
}

#[test]
fn text_is_not_mqtt() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "");
    let mut stream = open(&node);
    send(&mut stream, TEXT, b"hello");
    assert_eq!(closed(&mut stream), 1003);
}

#[test]
fn packets_that_are_large_together_may_share_a_message_and_those_over_the_limit_may_not_come() {
    let home = tempfile::tempdir().unwrap();
    let node = node(&home, "[broker]\nmax_packet = \"128KiB\"\n");
    let publish = |identifier: u8, bytes: usize| {
        let mut packet = vec![0x32];
        let mut length = bytes + 5;
        while length > 0 {
            packet.push((length % 128) as u8 | if length > 127 { 0x80 } else { 0 });
            length /= 128;
        }
        packet.extend([0, 1, b't', 0, identifier]);
        packet.resize(packet.len() + bytes, b'x');
        packet
    };
    // Ten times the largest packet in one frame, and in the pieces of one message.
    let batch: Vec<u8> = (1..=10).flat_map(|identifier| publish(identifier, 120 * 1024)).collect();
    for pieces in [1, 7] {
        let mut stream = open(&node);
        send(&mut stream, BINARY, CONNECT);
        assert_eq!(receive(&mut stream), (BINARY, b"\x20\x02\0\0".to_vec()));
        let size = batch.len().div_ceil(pieces);
        for (index, piece) in batch.chunks(size).enumerate() {
            let kind = if index == 0 { 0x02 } else { 0x00 };
            send(&mut stream, if index + 1 == pieces { kind | 0x80 } else { kind }, piece);
        }
        let mut acknowledged = Vec::new();
        while acknowledged.len() < 40 {
            acknowledged.extend(receive(&mut stream).1);
        }
        let expected: Vec<u8> = (1..=10).flat_map(|identifier| [0x40, 2, 0, identifier]).collect();
        assert_eq!(acknowledged, expected);
        send(&mut stream, CLOSE, &1000_u16.to_be_bytes());
        assert_eq!(receive(&mut stream), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
    }
    // The broker takes no packet that is too large, however it comes.
    let mut stream = open(&node);
    send(&mut stream, BINARY, CONNECT);
    assert_eq!(receive(&mut stream), (BINARY, b"\x20\x02\0\0".to_vec()));
    stream.write_all(&[head(BINARY, 1 << 40), publish(1, 1 << 20)[..1000].to_vec()].concat()).unwrap();
    assert_eq!(receive(&mut stream).0, CLOSE);
    // Not masked: against the protocol.
    let mut stream = open(&node);
    stream.write_all(b"\x82\x01x").unwrap();
    assert_eq!(closed(&mut stream), 1002);
}
