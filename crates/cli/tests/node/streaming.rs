//! Answers of other servers that are larger than the memory of a function, or end badly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::support::{Running, component, has_wasm_target, skipped};

/// What the server sends at a time.
static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
const LARGE_BYTES: usize = 124_000_000;
/// Several bodies at a time, with the isolates of their functions.
const MAX_GROWTH_BYTES: u64 = 64 << 20;

/// A server with answers of any size: `/sized/N`, `/chunked/N`; `/dies/N` closes the connection after half of it, `/stalls/N`
/// sends half and waits until the client has closed it.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while !matches!(line.as_str(), "\r\n" | "") {
        line.clear();
        reader.read_line(&mut line)?;
    }
    let (kind, bytes) = path.trim_start_matches('/').split_once('/').expect("a kind and a size");
    let bytes: usize = bytes.parse().expect("a size");
    let head = match kind {
        "chunked" => "transfer-encoding: chunked".to_owned(),
        _ => format!("content-length: {bytes}"),
    };
    write!(writer, "HTTP/1.1 200 OK\r\nconnection: close\r\n{head}\r\n\r\n")?;
    let mut left = if matches!(kind, "dies" | "stalls") { bytes / 2 } else { bytes };
    while left > 0 {
        let piece = &PIECE[..left.min(PIECE.len())];
        left -= piece.len();
        match kind {
            "chunked" => {
                write!(writer, "{:x}\r\n", piece.len())?;
                writer.write_all(piece)?;
                writer.write_all(b"\r\n")?;
            }
            _ => writer.write_all(piece)?,
        }
    }
    match kind {
        "chunked" => writer.write_all(b"0\r\n\r\n"),
        "stalls" => reader.read(&mut [0]).map(drop),
        _ => Ok(()),
    }
}

/// An app with a function in JavaScript and a component, which may both send requests to `server`.
fn deploy(node: &Running, home: &std::path::Path, server: &str, limits: &str) {
    let app = home.join("app");
    std::fs::create_dir_all(&app).unwrap();
    std::fs::copy(component("proxy"), app.join("proxy.wasm")).unwrap();
    let script = "export default async (event) => {
        try {
            const response = await fetch(`http://${event.query}`);
            return `${response.status} ${(await response.bytes()).length}`;
        } catch (error) { return `${error.name} ${error.code}: ${error.message}`; }
    };";
    std::fs::write(app.join("script.js"), script).unwrap();
    let function = |name: &str, main: &str| {
        format!(
            "[functions.{name}]\nmain = \"{main}\"\nlimits = {{ {limits} }}\n\
             permissions = {{ http = [\"{server}\"] }}\n"
        )
    };
    let manifest =
        format!("app = \"a\"\n{}{}", function("script", "script.js"), function("component", "proxy.wasm"));
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
}

const NEEDS: &str = "the target wasm32-wasip2 (rustup target add wasm32-wasip2)";

#[test]
fn a_component_reads_what_is_larger_than_its_memory_and_the_node_holds_little_of_it() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let server = server();
    let wasm = component("proxy");
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::copy(wasm, app.join("proxy.wasm")).unwrap();
    let manifest = format!(
        "app = \"a\"\n[functions.component]\nmain = \"proxy.wasm\"\n\
         limits = {{ response = \"200MB\", memory = \"8MiB\", timeout = \"5m\" }}\n\
         permissions = {{ http = [\"{server}\"] }}\n"
    );
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    let count = |kind: &str, bytes: usize| {
        node.http("GET", &format!("/fn/component/count?{server}/{kind}/{bytes}"), "")
    };
    assert_eq!(count("sized", 1), (200, "200 1".into()));
    let idle_bytes = node.peak_memory_bytes();
    std::thread::scope(|scope| {
        let all: Vec<_> = ["sized", "chunked", "sized", "chunked"]
            .map(|kind| scope.spawn(move || count(kind, LARGE_BYTES)))
            .into_iter()
            .collect();
        for one in all {
            assert_eq!(one.join().expect("an answer"), (200, format!("200 {LARGE_BYTES}")));
        }
    });
    let growth_bytes = node.peak_memory_bytes().saturating_sub(idle_bytes);
    println!("four answers of {LARGE_BYTES} bytes at a time: {} MiB more memory", growth_bytes >> 20);
    assert!(growth_bytes < MAX_GROWTH_BYTES, "{growth_bytes} bytes more than idle");
}

#[test]
fn the_limit_holds_exactly_with_and_without_a_length() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let server = server();
    deploy(&node, home.path(), &server, "response = \"3MB\"");
    let script = |path: &str| node.http("GET", &format!("/fn/script?{server}/{path}"), "").1;
    let component = |path: &str| node.http("GET", &format!("/fn/component/count?{server}/{path}"), "").1;
    for kind in ["sized", "chunked"] {
        for bytes in [0, 1, 2_999_999, 3_000_000] {
            let path = format!("{kind}/{bytes}");
            assert_eq!(
                [script(&path), component(&path)],
                [(); 2].map(|()| format!("200 {bytes}")),
                "{path}"
            );
        }
        let path = format!("{kind}/3000001");
        let message = format!(
            "the answer of {server} has more than the 3000000 bytes that function `script` may receive; raise \
             limits.response in the manifest"
        );
        assert_eq!(script(&path), format!("TypeError Failed: fetch failed: {message}"));
        let seen = component(&path);
        // Within a body there is no code, but the text.
        let code =
            if kind == "sized" { "HttpResponseBodySize(Some(3000000))" } else { "limit: 3000000 bytes" };
        assert!(seen.contains(code), "{path}: {seen}");
    }
    let log = node.ok(&["logs", "component"]);
    assert!(log.contains("3000000 bytes") && log.contains("limits.response"), "{log}");
}

#[test]
fn a_body_that_ends_early_or_stalls_is_an_error() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let server = server();
    deploy(&node, home.path(), &server, "timeout = \"1m\"");
    for bytes in [10, 4_000_000] {
        let (status, text) = node.http("GET", &format!("/fn/script?{server}/dies/{bytes}"), "");
        assert!(status == 200 && text.starts_with("TypeError Failed: fetch failed"), "{status} {text}");
        let (_, text) = node.http("GET", &format!("/fn/component/count?{server}/dies/{bytes}"), "");
        assert!(
            text.starts_with(&(bytes / 2).to_string()) && text.contains("connection terminated"),
            "{text}"
        );
    }
    // A component waits 10 s for each piece.
    std::thread::scope(|scope| {
        let stalls = |bytes: usize| {
            let path = format!("/fn/component/count?{server}/stalls/{bytes}");
            let (node, expected) = (&node, (bytes / 2).to_string());
            scope.spawn(move || {
                let (_, text) = node.http("GET", &path, "");
                assert!(text.starts_with(&expected) && text.contains("connection read timeout"), "{text}");
            })
        };
        for stalled in [10, 4_000_000].map(stalls) {
            stalled.join().expect("it ends with what has come");
        }
    });
    deploy(&node, home.path(), &server, "timeout = \"2s\"");
    let (status, text) = node.http("GET", &format!("/fn/script?{server}/stalls/4000000"), "");
    assert!(status == 504 && text.contains("2s"), "{status} {text}");
}

#[test]
fn javascript_collects_a_body_in_the_memory_of_the_function() {
    if !has_wasm_target() {
        return skipped(NEEDS);
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let server = server();
    deploy(&node, home.path(), &server, "response = \"120MiB\", memory = \"192MiB\", timeout = \"1m\"");
    let (_, text) = node.http("GET", &format!("/fn/script?{server}/sized/{}", 120 << 20), "");
    assert_eq!(text, format!("200 {}", 120 << 20));
    deploy(&node, home.path(), &server, "response = \"24MB\", memory = \"24MB\"");
    let (_, text) = node.http("GET", &format!("/fn/script?{server}/sized/24000000"), "");
    assert!(text.contains("24000000 bytes") && text.contains("limits.memory"), "{text}");
    let manifest = home.path().join("app/edgefaas.toml");
    let text =
        std::fs::read_to_string(&manifest).unwrap().replace("response = \"24MB\"", "response = \"25MB\"");
    std::fs::write(&manifest, text).unwrap();
    let output = node.cli(&["deploy", home.path().join("app").to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("limits.response"), "{stderr}");
}
