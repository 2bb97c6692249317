//! A blocking HTTP/1.1 client with one connection that is kept, for loads of a few hundred requests a second.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use socket2::{Domain, Socket, Type};

/// Longer than any request here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connection that was used later than this is not looked at before it is used again.
const FRESH: Duration = Duration::from_secs(1);

/// Connects, from an address of this machine if one is given.
pub fn connect(source: Option<IpAddr>, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// One connection, made when it is needed.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    source: Option<IpAddr>,
    stream: Option<BufReader<TcpStream>>,
    used: Instant,
}

impl Client {
    /// A client of a server.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, source: None, stream: None, used: Instant::now() }
    }

    /// The same from an address of this machine.
    pub fn from(source: IpAddr, address: SocketAddr) -> Self {
        Self { source: Some(source), ..Self::new(address) }
    }

    /// Sends `POST path` and gives status and body. A connection that the server has closed meanwhile is made anew.
    pub fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        self.send(path, "", body)
    }

    /// The same with a body that says that it is JSON.
    pub fn post_json(&mut self, path: &str, body: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        self.send(path, "content-type: application/json\r\n", body)
    }

    fn send(&mut self, path: &str, headers: &str, body: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        if self.used.elapsed() > FRESH
            && let Some(stream) = self.stream.take()
        {
            let mut end = [0];
            // A peek: what is closed reads as its end.
            stream.get_ref().set_nonblocking(true)?;
            let closed = matches!(stream.get_ref().peek(&mut end), Ok(0));
            stream.get_ref().set_nonblocking(false)?;
            self.stream = (!closed).then_some(stream);
        }
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = connect(self.source, self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                BufReader::new(stream)
            }
        };
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\n{headers}content-length: {}\r\n\r\n",
            self.address,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        stream.get_mut().write_all(&request)?;
        let (mut line, mut length, mut close) = (String::new(), None, false);
        stream.read_line(&mut line)?;
        let status =
            line.split(' ').nth(1).with_context(|| format!("{line:?} is not a status line"))?.parse()?;
        loop {
            line.clear();
            ensure!(stream.read_line(&mut line)? > 0, "the answer to {path} has no end");
            let header = line.trim().to_ascii_lowercase();
            match header.split_once(':') {
                Some(("content-length", value)) => length = Some(value.trim().parse()?),
                Some(("connection", value)) => close = value.trim() == "close",
                Some(_) => {}
                None => break,
            }
        }
        let mut answer = vec![0; length.context("an answer without content-length")?];
        stream.read_exact(&mut answer)?;
        (self.stream, self.used) = ((!close).then_some(stream), Instant::now());
        Ok((status, answer))
    }
}
