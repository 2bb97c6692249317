//! A minimal HTTP/1.1 load: one thread, connections kept alive, the same for every server.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::samples::{Load, Samples, Window};

/// Sends `GET path` on each of `connections` connections, one after another, for `length` after a warm-up.
pub fn closed_loop(
    address: SocketAddr,
    path: &str,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Load> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut open = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            open.push(stream);
        }
        let window = Window::after_warm_up(length);
        let request = request(address, path);
        let mut tasks = JoinSet::new();
        for stream in open {
            tasks.spawn(run_connection(stream, request.clone(), window));
        }
        let mut samples = Samples::default();
        while let Some(ended) = tasks.join_next().await {
            samples.extend(ended??);
        }
        Ok(Load::new(samples, window))
    })
}

/// Connections that are open together, each with one request at a time.
#[derive(Debug)]
pub struct Connections {
    address: SocketAddr,
    open: Vec<std::net::TcpStream>,
}

impl Connections {
    /// Opens `count` of them. An answer may take as long as `patience`.
    pub fn open(address: SocketAddr, count: usize, patience: Duration) -> anyhow::Result<Self> {
        let open = (0..count).map(|_| {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_read_timeout(Some(patience))?;
            Ok(stream)
        });
        Ok(Self { address, open: open.collect::<anyhow::Result<_>>()? })
    }

    /// Sends `GET path` on all of them, and waits for no answer.
    pub fn ask(&mut self, path: &str) -> anyhow::Result<()> {
        let request = request(self.address, path);
        Ok(self.open.iter_mut().try_for_each(|stream| stream.write_all(request.as_bytes()))?)
    }

    /// Sends `GET path` on one after another and waits for each answer.
    pub fn ask_in_turn(&mut self, path: &str) -> anyhow::Result<()> {
        let request = request(self.address, path);
        for stream in &mut self.open {
            stream.write_all(request.as_bytes())?;
            read_answer(stream)?;
        }
        Ok(())
    }

    /// Waits for the answers of all of them.
    ///
    /// # Errors
    /// One of them is not 200.
    pub fn answers(&mut self) -> anyhow::Result<()> {
        self.open.iter_mut().try_for_each(read_answer)
    }
}

fn read_answer(stream: &mut std::net::TcpStream) -> anyhow::Result<()> {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !is_whole(&answer)? {
        match stream.read(&mut part)? {
            0 => bail!("the server closed the connection"),
            read => answer.extend_from_slice(&part[..read]),
        }
    }
    ensure!(status(&answer)? == 200, "not 200: {}", String::from_utf8_lossy(&answer));
    Ok(())
}

fn request(address: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: */*\r\n\r\n")
}

/// One GET; gives status code and body.
pub fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    get_with(address, path, "")
}

/// One GET with further header lines, each with its end (`\r\n`).
pub fn get_with(address: SocketAddr, path: &str, headers: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let head = head_bytes(&answer).context("the answer has no end of its head")?;
        Ok((status(&answer)?, answer[head..].to_vec()))
    })
}

async fn run_connection(mut stream: TcpStream, request: String, window: Window) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    let mut answer = Vec::with_capacity(4096);
    loop {
        let sent = Instant::now();
        if sent >= window.to {
            return Ok(samples);
        }
        stream.write_all(request.as_bytes()).await?;
        answer.clear();
        while !is_whole(&answer)? {
            if stream.read_buf(&mut answer).await? == 0 {
                bail!("the server closed the connection");
            }
        }
        let now = Instant::now();
        ensure!(status(&answer)? == 200, "not 200: {}", String::from_utf8_lossy(&answer));
        samples.add(sent, now, window);
    }
}

fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = head_bytes(answer) else { return Ok(false) };
    let text = std::str::from_utf8(&answer[..head])?;
    let lines = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let length = lines
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value)
        .next();
    let length: usize = length.context("the answer does not say its length")?.trim().parse()?;
    Ok(answer.len() >= head + length)
}

fn head_bytes(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

fn status(answer: &[u8]) -> anyhow::Result<u16> {
    let text = answer.get(9..12).context("the answer has no status")?;
    Ok(std::str::from_utf8(text)?.parse()?)
}
