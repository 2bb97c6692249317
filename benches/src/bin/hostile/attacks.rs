//! What hostile devices, callers and functions do, one attack at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_benches::client::Client as HttpClient;
use edgefaas_benches::mqtt::{self, Client as MqttClient};
use rumqttc::{Event, Incoming, MqttOptions, QoS};

use crate::healthy::Target;

/// Between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(20);
/// The least that `Retry-After` says.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Of a message that fills the disk.
const MESSAGE_BYTES: usize = 8 << 10;
/// A disk that acknowledges nothing for so long is full, and a queue that sends nothing is empty.
const SILENCE: Duration = Duration::from_secs(1);

/// MQTT clients of [`Attack::Together`].
const DEVICES: usize = 1000;

/// One attack; the numbers are those of issue points and of the documentation's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// Nobody attacks: what the others are held against.
    Nobody,
    /// 64 callers of a function that fills 40 MiB.
    Hungry,
    /// A workflow that calls itself twice.
    Bomb,
    /// 64 clients ask for 8 MiB each and read nothing.
    Unread,
    /// Four instances of a loop that computes.
    Turns,
    /// Expressions without an end.
    Expressions,
    /// 24 functions that compute without an end.
    Spin,
    /// A filter of a `listen` that computes for as long as it may, for each message.
    Filter,
    /// 600 requests to a host that never answers.
    Dead,
    /// Calls of a regular expression without an end whose callers go away.
    Cancelled,
    /// Events for a durable instance.
    Durable,
    /// Messages of QoS 1 for a session that is away, until they are refused; then it takes them all.
    Disk,
    /// The hungry functions again, with 8 callers of a workflow and 1,000 MQTT clients that each send themselves a message a second.
    Together,
}

/// Answers that attackers got.
#[derive(Debug, Default)]
pub struct Tally {
    answered: AtomicU64,
    refused: AtomicU64,
}

impl Tally {
    fn count(&self, status: u16) {
        let counter = if matches!(status, 429 | 503) { &self.refused } else { &self.answered };
        counter.fetch_add(1, Relaxed);
    }

    /// Requests that were answered, and those that were refused: 429, 503, or a connection that was closed.
    pub fn figures(&self) -> (u64, u64) {
        (self.answered.load(Relaxed), self.refused.load(Relaxed))
    }
}

impl Attack {
    pub const ALL: [Self; 13] = [
        Self::Nobody,
        Self::Hungry,
        Self::Bomb,
        Self::Unread,
        Self::Turns,
        Self::Expressions,
        Self::Spin,
        Self::Filter,
        Self::Dead,
        Self::Cancelled,
        Self::Durable,
        Self::Disk,
        Self::Together,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Hungry => "memory-hungry functions",
            Self::Bomb => "fork bomb",
            Self::Unread => "unread replies",
            Self::Turns => "workflows that compute",
            Self::Expressions => "endless expressions",
            Self::Spin => "24 spinning functions",
            Self::Filter => "slow event filter",
            Self::Dead => "requests to a dead host",
            Self::Cancelled => "cancelled regular expressions",
            Self::Durable => "events for a durable instance",
            Self::Disk => "full disk and back",
            Self::Together => "hungry functions, workflows and 1,000 devices",
        }
    }

    /// Attacks until `stop` is set.
    ///
    /// # Errors
    /// The attack could not be begun.
    pub fn run(self, target: &Target, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
        match self {
            Self::Nobody => {
                while !stop.load(Relaxed) {
                    std::thread::sleep(LOOK);
                }
            }
            Self::Hungry => post(target, "/fn/hungry", 64, b"", stop, tally),
            Self::Bomb => post(target, "/workflows/bomb", 4, b"{}", stop, tally),
            Self::Unread => unread(target, stop, tally),
            Self::Turns => post(target, "/workflows/turns", 4, b"{}", stop, tally),
            Self::Expressions => post(target, "/workflows/heavy", 4, b"{}", stop, tally),
            Self::Spin => post(target, "/fn/spin", 24, b"", stop, tally),
            Self::Filter => events(target, "filter", "hostile/filter", stop, tally)?,
            Self::Dead => dead(target, stop, tally)?,
            Self::Cancelled => cancelled(target, stop, tally),
            Self::Durable => events(target, "durable", "hostile/durable", stop, tally)?,
            Self::Disk => disk(target, stop, tally)?,
            Self::Together => together(target, stop, tally)?,
        }
        Ok(())
    }
}

/// Posts to a path on so many connections, each with its next request as soon as the last one is answered.
fn post(target: &Target, path: &str, callers: usize, body: &[u8], stop: &AtomicBool, tally: &Tally) {
    post_patiently(target, path, (callers, Duration::ZERO), body, stop, tally);
}

/// The same, with a pause after each refusal.
fn post_patiently(
    target: &Target,
    path: &str,
    (callers, pause): (usize, Duration),
    body: &[u8],
    stop: &AtomicBool,
    tally: &Tally,
) {
    std::thread::scope(|threads| {
        for _ in 0..callers {
            threads.spawn(|| {
                let mut client = HttpClient::new(target.http);
                while !stop.load(Relaxed) {
                    match client.post(path, body) {
                        Ok((status, _)) => {
                            tally.count(status);
                            let until = Instant::now() + pause;
                            while status == 503 && Instant::now() < until && !stop.load(Relaxed) {
                                std::thread::sleep(LOOK);
                            }
                        }
                        Err(_) => {
                            tally.count(503);
                            std::thread::sleep(LOOK);
                        }
                    }
                }
            });
        }
    });
}

fn together(target: &Target, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
    std::thread::scope(|threads| {
        threads.spawn(|| post(target, "/fn/hungry", 64, b"", stop, tally));
        threads.spawn(|| post(target, "/workflows/steps", 8, b"{}", stop, tally));
        let devices = devices(target, stop, tally);
        // Where they could not go on the others do not either.
        stop.fetch_or(devices.is_err(), Relaxed);
        devices
    })
}

fn devices(target: &Target, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
    let mut devices = Vec::with_capacity(DEVICES);
    for number in 0..DEVICES {
        let topic = format!("hostile/device/{number}");
        let mut device = MqttClient::connect(target.mqtt, &format!("device-{number}"))?;
        device.subscribe(&topic)?;
        devices.push((device, mqtt::publish(&topic, b"21.5")));
    }
    while !stop.load(Relaxed) {
        let round = Instant::now();
        for (device, packet) in &mut devices {
            device.send(packet)?;
            device.publishes(|_, _| tally.count(200))?;
        }
        std::thread::sleep(Duration::from_secs(1).saturating_sub(round.elapsed()));
    }
    Ok(())
}

fn request(address: SocketAddr, path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n")
}

/// Connections that ask for much and read only what says whether they were refused.
fn unread(target: &Target, stop: &AtomicBool, tally: &Tally) {
    std::thread::scope(|threads| {
        for _ in 0..64 {
            threads.spawn(|| {
                while !stop.load(Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(target.http) else { return };
                    let _ = stream.set_read_timeout(Some(LOOK));
                    if stream.write_all(request(target.http, "/fn/large").as_bytes()).is_err() {
                        continue;
                    }
                    let mut status = Vec::new();
                    let mut bytes = [0; 12];
                    while status.len() < 12 && !stop.load(Relaxed) {
                        match stream.read(&mut bytes[status.len()..]) {
                            Ok(0) => break,
                            Ok(read) => status.extend_from_slice(&bytes[..read]),
                            Err(_) => {}
                        }
                    }
                    let text = status.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
                    let status = text.and_then(|digits| digits.parse().ok()).unwrap_or(503);
                    tally.count(status);
                    // What is asked for is never read; a refusal is followed by the next request.
                    let until = Instant::now() + Duration::from_secs(if status == 200 { 2 } else { 0 });
                    while Instant::now() < until && !stop.load(Relaxed) {
                        std::thread::sleep(LOOK);
                    }
                }
            });
        }
    });
}

fn dead(target: &Target, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
    // Accepts nothing: the system completes the handshakes of its backlog, and nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = silent.local_addr()?.to_string();
    // The answer says when to come again. Without that it is a flood of refusals, in which 600 callers share two cores.
    post_patiently(target, "/fn/dead", (600, RETRY_AFTER), address.as_bytes(), stop, tally);
    Ok(())
}

fn cancelled(target: &Target, stop: &AtomicBool, tally: &Tally) {
    std::thread::scope(|threads| {
        for _ in 0..32 {
            threads.spawn(|| {
                while !stop.load(Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(target.http) else { return };
                    let _ = stream.write_all(request(target.http, "/fn/regex").as_bytes());
                    std::thread::sleep(LOOK);
                    tally.count(200);
                }
            });
        }
    });
}

/// Starts an instance that listens, and publishes what it listens to.
fn events(
    target: &Target,
    workflow: &str,
    topic: &str,
    stop: &AtomicBool,
    tally: &Tally,
) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(target.http)?;
    let path = format!("/workflows/{workflow}");
    stream.write_all(
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nprefer: respond-async\r\ncontent-length: 2\r\n\r\n{{}}",
            target.http
        )
        .as_bytes(),
    )?;
    let mut client = MqttClient::connect(target.mqtt, &format!("events-{workflow}"))?;
    let packet = mqtt::publish(topic, format!("\"{}\"", "x".repeat(1024)).as_bytes());
    while !stop.load(Relaxed) {
        for _ in 0..20 {
            client.send(&packet)?;
            tally.count(200);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn session(target: &Target, id: &str) -> (rumqttc::Client, rumqttc::Connection) {
    let mut options = MqttOptions::new(id, target.mqtt.ip().to_string(), target.mqtt.port());
    options.set_clean_session(false).set_keep_alive(Duration::from_secs(600)).set_inflight(100);
    rumqttc::Client::new(options, 100)
}

/// Fills the disk and drains it, by turns.
fn disk(target: &Target, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
    let (client, mut connection) = session(target, "away");
    client.subscribe("hostile/disk", QoS::AtLeastOnce)?;
    for event in connection.iter() {
        if let Event::Incoming(Incoming::SubAck(_)) = event? {
            break;
        }
    }
    client.disconnect()?;
    while connection.recv_timeout(Duration::from_secs(1)).is_ok_and(|event| event.is_ok()) {}
    let mut message = noise();
    while !stop.load(Relaxed) {
        fill(target, &mut message, stop, tally)?;
        let (reader, mut messages) = session(target, "away");
        let mut last = Instant::now();
        while last.elapsed() < SILENCE && !stop.load(Relaxed) {
            match messages.recv_timeout(LOOK) {
                Ok(Ok(Event::Incoming(Incoming::Publish(_)))) => last = Instant::now(),
                Ok(Err(error)) => return Err(error.into()),
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        reader.disconnect()?;
        while messages.recv_timeout(SILENCE).is_ok_and(|event| event.is_ok()) {}
    }
    Ok(())
}

/// Publishes until nothing is acknowledged any more.
fn fill(
    target: &Target,
    message: &mut impl FnMut() -> Vec<u8>,
    stop: &AtomicBool,
    tally: &Tally,
) -> anyhow::Result<()> {
    let (writer, mut answers) = session(target, "fills");
    let mut last = Instant::now();
    while last.elapsed() < SILENCE && !stop.load(Relaxed) {
        while writer.try_publish("hostile/disk", QoS::AtLeastOnce, false, message()).is_ok() {}
        match answers.recv_timeout(LOOK) {
            Ok(Ok(Event::Incoming(Incoming::PubAck(_)))) => {
                last = Instant::now();
                tally.count(200);
            }
            Ok(Err(error)) => return Err(error.into()),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    tally.count(503);
    // What was not acknowledged is left: the node has not taken it.
    Ok(())
}

/// Messages that no store can compress.
fn noise() -> impl FnMut() -> Vec<u8> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        let words = std::iter::repeat_with(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_le_bytes()
        });
        words.flatten().take(MESSAGE_BYTES).collect()
    }
}
