//! What the functions use, in the zone `south`: Redis with a small and a large document, and an HTTP backend.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_testnet::Host;

const REDIS_PORT: u16 = 6379;
const BACKEND_PORT: u16 = 8080;
/// The large document of the evaluation.
const LARGE_BYTES: usize = 124_000_000;
/// What the backend answers with.
const ANSWER_BYTES: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// A redis-server on a host. Dropping it kills it.
pub struct Database {
    child: Child,
}

impl Database {
    /// Starts it with both documents.
    pub fn start(host: &Host, folder: &std::path::Path, quick: bool) -> anyhow::Result<Self> {
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &REDIS_PORT.to_string(), "--bind", &host.address().to_string()])
            .args(["--save", "", "--appendonly", "no", "--protected-mode", "no"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = host.spawn(command);
        let child =
            child.context("redis-server is not installed (Debian: apt-get install redis-server)")?;
        let database = Self { child };
        let address = SocketAddr::from((host.address(), REDIS_PORT));
        let begun = Instant::now();
        while host.connect(address).is_err() {
            ensure!(begun.elapsed() < PATIENCE, "redis-server does not listen on {address}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let large_bytes = if quick { LARGE_BYTES / 10 } else { LARGE_BYTES };
        host.enter(|| -> anyhow::Result<()> {
            let mut connection = edgefaas_benches::peers::redis::connect(address)?;
            for (key, bytes) in [("small", 200), ("large", large_bytes)] {
                redis::cmd("SET").arg(key).arg(document(bytes)).query::<()>(&mut connection)?;
            }
            Ok(())
        })?;
        Ok(database)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A document in JSON of so many bytes, whose property `name` comes last.
fn document(bytes: usize) -> String {
    const END: &str = "\"\"],\"name\":\"harbour\"}";
    const ENTRY: &str = "\"measured 20.5 at 12:00\",";
    let mut text = String::with_capacity(bytes + ENTRY.len() + END.len());
    text.push_str("{\"values\":[");
    while text.len() + END.len() < bytes {
        text.push_str(ENTRY);
    }
    text.push_str(END);
    text
}

/// Starts an HTTP server on a host, which ends with the process.
pub fn start_backend(host: &Host) -> anyhow::Result<()> {
    let address = SocketAddr::from((host.address(), BACKEND_PORT));
    let listener = host.enter(|| TcpListener::bind(address))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    Ok(())
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER_BYTES}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + ANSWER_BYTES, b'.');
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut body_bytes) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let lower = line.to_ascii_lowercase();
            if let Some(bytes) = lower.strip_prefix("content-length:") {
                body_bytes = bytes.trim().parse().unwrap_or(0);
            }
        }
        std::io::copy(&mut reader.by_ref().take(body_bytes), &mut std::io::sink())?;
        writer.write_all(&answer)?;
    }
}
