//! A minimal MQTT 3.1.1 client on a blocking socket, QoS 0: it costs next to nothing beside what it measures, and the
//! same for every broker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::samples::{Load, Samples, Window};

/// How large payloads are.
pub const PAYLOAD_BYTES: usize = 64;
/// After this long without a reply one is taken as lost.
const LOST: Duration = Duration::from_secs(10);

/// Where requests go and where their replies come.
#[derive(Debug, Clone)]
pub struct Topics {
    /// Requests of one connection.
    pub request: String,
    /// Its replies.
    pub reply: String,
}

impl Topics {
    /// Topics on which a node calls a function by itself.
    pub fn of_node(function: &str, connection: usize) -> Self {
        Self {
            request: format!("$faas/fn/{function}/invoke/{connection}"),
            reply: format!("$faas/fn/{function}/result/{connection}"),
        }
    }

    /// Topics of the same length for a function that is a client.
    pub fn of_client(function: &str, connection: usize) -> Self {
        Self {
            request: format!("bench/fn/{function}/invoke/{connection}"),
            reply: format!("bench/fn/{function}/result/{connection}"),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    inbound: Vec<u8>,
    /// How much of `inbound` is taken already.
    taken: usize,
}

/// A packet: its first byte and what follows the length.
type Packet<'a> = (u8, &'a [u8]);

impl Client {
    /// Connects with a clean session and keepalive 0.
    pub fn connect(address: SocketAddr, client_id: &str) -> anyhow::Result<Self> {
        Self::over(TcpStream::connect(address)?, client_id)
    }

    /// The same over a connection that is there.
    pub fn over(stream: TcpStream, client_id: &str) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOST))?;
        let mut client = Self { stream, inbound: Vec::new(), taken: 0 };
        let body = [&text("MQTT"), &[4, 2, 0, 0][..], &text(client_id)].concat();
        client.send(&packet(0x10, &body))?;
        let (first_byte, body) = client.receive()?;
        ensure!((first_byte, body) == (0x20, &[0, 0][..]), "CONNACK is {first_byte:x} {body:x?}");
        Ok(client)
    }

    /// Subscribes with QoS 0.
    pub fn subscribe(&mut self, filter: &str) -> anyhow::Result<()> {
        let body = [&[0, 1][..], &text(filter), &[0]].concat();
        self.send(&packet(0x82, &body))?;
        let (first_byte, body) = self.receive()?;
        ensure!((first_byte, body) == (0x90, &[0, 1, 0][..]), "SUBACK is {first_byte:x} {body:x?}");
        Ok(())
    }

    /// Takes silence for idleness and not for loss.
    pub fn wait_forever(&self) -> anyhow::Result<()> {
        Ok(self.stream.set_read_timeout(None)?)
    }

    /// Sends packets.
    pub fn send(&mut self, packets: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(packets)?)
    }

    /// Gives topic and payload of every PUBLISH that is there, after waiting for at least one.
    pub fn publishes(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> anyhow::Result<usize> {
        let mut count = 0;
        while count == 0 || self.next_frame()?.is_some() {
            let (first_byte, body) = self.receive()?;
            ensure!(first_byte & 0xf6 == 0x30, "{first_byte:x} is not a PUBLISH of QoS 0");
            let (length, rest) = body.split_first_chunk::<2>().context("a topic")?;
            let (topic, payload) =
                rest.split_at_checked(usize::from(u16::from_be_bytes(*length))).context("a topic")?;
            each(topic, payload);
            count += 1;
        }
        Ok(count)
    }

    /// The next packet, after waiting for it.
    fn receive(&mut self) -> anyhow::Result<Packet<'_>> {
        let (head, total) = loop {
            if let Some(frame) = self.next_frame()? {
                break frame;
            }
            self.inbound.drain(..self.taken);
            self.taken = 0;
            let filled = self.inbound.len();
            self.inbound.resize(filled + 64 * 1024, 0);
            let read = self.stream.read(&mut self.inbound[filled..]).context("no packet came")?;
            self.inbound.truncate(filled + read);
            if read == 0 {
                bail!("the broker closed the connection");
            }
        };
        let start = self.taken;
        self.taken += total;
        Ok((self.inbound[start], &self.inbound[start + head..start + total]))
    }

    /// Sizes of the next packet's head and of all of it, if it is there.
    fn next_frame(&self) -> anyhow::Result<Option<(usize, usize)>> {
        let bytes = &self.inbound[self.taken..];
        let mut length = 0;
        for index in 0..4 {
            let Some(byte) = bytes.get(1 + index) else { return Ok(None) };
            length |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                let head = 2 + index;
                return Ok((bytes.len() >= head + length).then_some((head, head + length)));
            }
        }
        bail!("a packet's length has more than four bytes")
    }
}

/// A PUBLISH of QoS 0.
pub fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    packet(0x30, &[&text(topic), payload].concat())
}

fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first_byte];
    let mut left = body.len();
    loop {
        packet.push((left & 0x7f) as u8 | if left > 0x7f { 0x80 } else { 0 });
        left >>= 7;
        if left == 0 {
            break;
        }
    }
    packet.extend(body);
    packet
}

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("topics and identifiers are short");
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

/// Sends as many bytes as a payload has to a TCP echo and waits for them, for `length` after a warm-up.
pub fn tcp_echo_loop(address: SocketAddr, length: Duration) -> anyhow::Result<Load> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let window = Window::after_warm_up(length);
    let mut samples = Samples::default();
    let mut bytes = [b'x'; PAYLOAD_BYTES];
    loop {
        let sent = Instant::now();
        if sent >= window.to {
            return Ok(Load::new(samples, window));
        }
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        samples.add(sent, Instant::now(), window);
    }
}

/// Keeps `outstanding` requests under way on each of `connections` connections, each with a thread of its own, for
/// `length` after a warm-up.
pub fn closed_loop(
    address: SocketAddr,
    topics: impl Fn(usize) -> Topics,
    connections: usize,
    outstanding: usize,
    length: Duration,
) -> anyhow::Result<Load> {
    let mut clients = Vec::with_capacity(connections);
    for connection in 0..connections {
        let topics = topics(connection);
        let mut client = Client::connect(address, &format!("load-{connection}"))?;
        client.subscribe(&topics.reply)?;
        clients.push((client, topics));
    }
    let window = Window::after_warm_up(length);
    let barrier = Barrier::new(connections);
    let samples = std::thread::scope(|scope| {
        let run = |(client, topics): (Client, Topics)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                run_connection(client, &topics, outstanding, window)
            })
        };
        let threads: Vec<_> = clients.into_iter().map(run).collect();
        let mut samples = Samples::default();
        for thread in threads {
            samples.extend(thread.join().expect("a load thread does not panic")?);
        }
        anyhow::Ok(samples)
    })?;
    Ok(Load::new(samples, window))
}

fn run_connection(
    mut client: Client,
    topics: &Topics,
    outstanding: usize,
    window: Window,
) -> anyhow::Result<Samples> {
    let template = publish(&topics.request, &[b'x'; PAYLOAD_BYTES]);
    let payload_at = template.len() - PAYLOAD_BYTES;
    // Requests are told by the slot that their payload begins with, since replies may overtake one another.
    let mut sent = vec![Instant::now(); outstanding];
    let mut free: Vec<usize> = (0..outstanding).collect();
    let mut samples = Samples::default();
    let mut out = Vec::with_capacity(outstanding * template.len());
    let mut under_way = 0;
    loop {
        let now = Instant::now();
        if now < window.to {
            out.clear();
            for slot in free.drain(..) {
                let start = out.len();
                out.extend_from_slice(&template);
                out[start + payload_at..start + payload_at + 8]
                    .copy_from_slice(&(slot as u64).to_be_bytes());
                sent[slot] = now;
                under_way += 1;
            }
            client.send(&out)?;
        } else if under_way == 0 {
            return Ok(samples);
        }
        let mut wrong = None;
        let received = client.publishes(|_, payload| {
            let now = Instant::now();
            let slot = payload.first_chunk::<8>().map(|slot| u64::from_be_bytes(*slot) as usize);
            match slot.filter(|slot| payload.len() == PAYLOAD_BYTES && *slot < outstanding) {
                Some(slot) => {
                    free.push(slot);
                    samples.add(sent[slot], now, window);
                }
                None => wrong = Some(String::from_utf8_lossy(payload).into_owned()),
            }
        })?;
        if let Some(payload) = wrong {
            bail!("a reply is not what was sent: {payload}");
        }
        under_way -= received;
    }
}
