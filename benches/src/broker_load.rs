//! A load client for brokers: MQTT 3.1.1 on blocking sockets, a thread a connection, packets made beforehand, so that
//! it costs little beside what it measures, and the same for every broker.
//!
//! The loop is closed: a publisher stops when so many of its messages are neither acknowledged (QoS 1) nor delivered
//! (QoS 0). So no broker has to drop anything, and what is measured is what it can carry.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::samples::{Samples, Window};

const TOPIC: &str = "bench/load";
/// Messages of all publishers under way at a time: less than any broker queues for one subscriber.
const UNDER_WAY: u64 = 2000;
/// Messages written with one call.
const BATCH: u64 = 50;
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// Who publishes to whom.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Connections that publish.
    pub publishers: usize,
    /// Connections that subscribe, all to the same topic.
    pub subscribers: usize,
    /// 0 or 1, of publishes and subscriptions.
    pub qos: u8,
    /// At least 8: the time of sending is in it.
    pub payload_bytes: usize,
    /// The subscribers have sessions that are kept (Clean Session 0).
    pub kept_sessions: bool,
    /// The subscribers leave after they have subscribed: acknowledgements count in place of deliveries (QoS 1).
    pub away: bool,
    /// Messages a second of all publishers; without it as many as possible.
    pub rate: Option<f64>,
}

/// What came of it.
#[derive(Debug)]
pub struct Carried {
    /// Deliveries a second, of all subscribers.
    pub delivered_per_second: f64,
    /// From sending to receiving.
    pub latency: Samples,
    /// In the window: deliveries.
    pub delivered: u64,
}

struct Shared {
    stop: AtomicBool,
    delivered: AtomicU64,
    epoch: Instant,
}

/// Puts a load on a broker for `length` after a warm-up; `at_borders` is called when the window begins and ends.
pub fn carry(
    address: SocketAddr,
    shape: Shape,
    length: Duration,
    mut at_borders: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Carried> {
    ensure!(
        shape.payload_bytes >= 8 && shape.qos <= 1 && (shape.qos == 1 || !shape.away),
        "{shape:?} is not possible"
    );
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        delivered: AtomicU64::new(0),
        epoch: Instant::now(),
    });
    let window = Window::after_warm_up(length);
    let mut subscribers: Vec<JoinHandle<anyhow::Result<Samples>>> = Vec::new();
    for number in 0..shape.subscribers {
        let client_id = format!("load-subscriber-{number}");
        if shape.kept_sessions {
            // Whatever an earlier run left.
            connect(address, &client_id, true)?;
        }
        let mut stream = connect(address, &client_id, !shape.kept_sessions)?;
        let body = [&[0, 1][..], &text(TOPIC), &[shape.qos]].concat();
        stream.write_all(&packet(0x82, &body))?;
        let mut suback = [0; 5];
        stream.read_exact(&mut suback)?;
        ensure!(suback == [0x90, 3, 0, 1, shape.qos], "SUBACK is {suback:x?}");
        if shape.away {
            stream.write_all(&[0xe0, 0])?;
            continue;
        }
        let shared = shared.clone();
        subscribers.push(spawn(move || subscribe(stream, &shared, window)));
    }
    let mut publishers: Vec<JoinHandle<anyhow::Result<()>>> = Vec::new();
    for number in 0..shape.publishers {
        let stream = connect(address, &format!("load-publisher-{number}"), true)?;
        let shared = shared.clone();
        publishers.push(spawn(move || publish(stream, &shared, shape)));
    }
    sleep(window.from.saturating_duration_since(Instant::now()));
    at_borders()?;
    let before = shared.delivered.load(Relaxed);
    let begun = Instant::now();
    sleep(window.to.saturating_duration_since(Instant::now()));
    let delivered = shared.delivered.load(Relaxed) - before;
    let elapsed = begun.elapsed();
    at_borders()?;
    shared.stop.store(true, Relaxed);
    let mut latency = Samples::default();
    for publisher in publishers {
        publisher.join().expect("a publisher does not panic")?;
    }
    for subscriber in subscribers {
        latency.extend(subscriber.join().expect("a subscriber does not panic")?);
    }
    Ok(Carried { delivered_per_second: delivered as f64 / elapsed.as_secs_f64(), latency, delivered })
}

/// Connects with a keepalive of an hour, since rumqttd takes none of 0, and waits for the CONNACK.
pub fn connect(address: SocketAddr, client_id: &str, clean_session: bool) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let flags = if clean_session { 2 } else { 0 };
    let body = [&text("MQTT"), &[4, flags, 0x0e, 0x10][..], &text(client_id)].concat();
    stream.write_all(&packet(0x10, &body))?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).context("no CONNACK")?;
    ensure!((connack[0], connack[3]) == (0x20, 0), "CONNACK is {connack:x?}");
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    Ok(stream)
}

/// A length and UTF-8.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// A packet with its fixed header.
pub fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first_byte];
    let mut length = body.len();
    loop {
        let byte = (length % 128) as u8;
        length /= 128;
        packet.push(if length > 0 { byte | 128 } else { byte });
        if length == 0 {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}

fn subscribe(mut stream: TcpStream, shared: &Shared, window: Window) -> anyhow::Result<Samples> {
    let mut buffer = vec![0; 1 << 18];
    let (mut filled, mut acks, mut samples, mut count) = (0, Vec::new(), Samples::default(), 0u64);
    while !shared.stop.load(Relaxed) {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        let (mut at, mut delivered) = (0, 0);
        while let Some((body, end)) = frame(&buffer[at..filled]) {
            let (first_byte, body) = (buffer[at], &buffer[at + body..at + end]);
            at += end;
            if first_byte >> 4 != 3 {
                continue;
            }
            delivered += 1;
            let mut payload = 2 + TOPIC.len();
            if first_byte & 6 != 0 {
                acks.extend_from_slice(&[0x40, 2, body[payload], body[payload + 1]]);
                payload += 2;
            }
            count += 1;
            // Every 16th is enough, and costs less than all.
            if count % 16 == 0
                && let Some(sent) = body.get(payload..payload + 8)
            {
                let sent = u64::from_be_bytes(sent.try_into().expect("8 bytes"));
                samples.add(shared.epoch + Duration::from_nanos(sent), now, window);
            }
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        shared.delivered.fetch_add(delivered, Relaxed);
        if !acks.is_empty() {
            stream.write_all(&acks)?;
            acks.clear();
        }
    }
    Ok(samples)
}

fn publish(mut stream: TcpStream, shared: &Shared, shape: Shape) -> anyhow::Result<()> {
    let id_bytes = if shape.qos > 0 { 2 } else { 0 };
    let body = vec![b'x'; 2 + TOPIC.len() + id_bytes + shape.payload_bytes];
    let mut message = packet(0x30 | (shape.qos << 1), &body);
    let topic_at = message.len() - body.len();
    message[topic_at..topic_at + 2 + TOPIC.len()].copy_from_slice(&text(TOPIC));
    let id_at = topic_at + 2 + TOPIC.len();
    let payload_at = id_at + id_bytes;

    let under_way = (UNDER_WAY / shape.publishers as u64).max(20);
    let (mut sent, mut acknowledged, mut part) = (0u64, 0u64, 0usize);
    let (mut batch, mut answers) = (Vec::new(), vec![0; 1 << 14]);
    let started = Instant::now();
    let rate = shape.rate.map(|rate| rate / shape.publishers as f64);
    while !shared.stop.load(Relaxed) {
        let done = match shape.qos {
            0 => shared.delivered.load(Relaxed) / (shape.subscribers * shape.publishers) as u64,
            _ => acknowledged,
        };
        let mut room = under_way.saturating_sub(sent - done.min(sent)).min(BATCH);
        if let Some(rate) = rate {
            let due = (started.elapsed().as_secs_f64() * rate) as u64;
            room = room.min(due.saturating_sub(sent));
        }
        if room > 0 {
            batch.clear();
            let now = (shared.epoch.elapsed().as_nanos() as u64).to_be_bytes();
            message[payload_at..payload_at + 8].copy_from_slice(&now);
            for _ in 0..room {
                sent += 1;
                if shape.qos > 0 {
                    let id = (sent % 60_000) as u16 + 1;
                    message[id_at..id_at + 2].copy_from_slice(&id.to_be_bytes());
                }
                batch.extend_from_slice(&message);
            }
            stream.write_all(&batch)?;
        }
        let must_wait = room == 0;
        if shape.qos == 0 || (rate.is_some() && sent == acknowledged) {
            if must_wait {
                sleep(Duration::from_micros(50));
            }
            continue;
        }
        // Acknowledgements: taken when there is no room, or when a few may have come.
        if must_wait || sent - acknowledged > under_way / 2 || rate.is_some() {
            let wait = if must_wait && rate.is_none() { READ_TIMEOUT } else { Duration::from_micros(50) };
            stream.set_read_timeout(Some(wait))?;
            match stream.read(&mut answers) {
                Ok(0) => break,
                Ok(bytes) => {
                    let acks = ((bytes + part) / 4) as u64;
                    acknowledged += acks;
                    if shape.away {
                        shared.delivered.fetch_add(acks, Relaxed);
                    }
                    part = (bytes + part) % 4;
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Where the body of the first packet begins and ends, if it is all there.
pub fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (index, byte) in bytes.get(1..)?.iter().take(4).enumerate() {
        length |= usize::from(byte & 127) << (7 * index);
        if byte & 128 == 0 {
            let body = index + 2;
            return (bytes.len() >= body + length).then_some((body, body + length));
        }
    }
    None
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
