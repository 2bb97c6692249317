//! MQTT clients that outlive the node: what was not acknowledged they send again, and they know what they got.
//!
//! MQTT 3.1.1 with CleanSession 0, by hand: a library would keep to itself what these tests have to know.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Messages that a publisher has under way.
const WINDOW: usize = 20;
/// Longer than a loaded node takes to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than a loaded node is held up in the middle of what it sends.
const HELD_UP: Duration = Duration::from_secs(10);

/// One connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What CONNACK said.
    pub session_present: bool,
}

impl Connection {
    pub fn open(port: &str, client_id: &str, clean: bool) -> io::Result<Self> {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, buffer: Vec::new(), session_present: false };
        let flags = if clean { 2 } else { 0 };
        connection.send(0x10, &[&text("MQTT")[..], &[4, flags, 0, 0], &text(client_id)].concat())?;
        let (kind, body) = connection.receive()?.ok_or(io::ErrorKind::TimedOut)?;
        assert!(kind == 0x20 && body[1] == 0, "CONNACK: {kind:#x} {body:?}");
        connection.session_present = body[0] == 1;
        Ok(connection)
    }

    fn send(&mut self, first_byte: u8, body: &[u8]) -> io::Result<()> {
        let (mut length, mut left) = (Vec::new(), body.len());
        while left >= 128 {
            length.push(left as u8 | 128);
            left >>= 7;
        }
        length.push(left as u8);
        self.stream.write_all(&[&[first_byte][..], &length, body].concat())
    }

    pub fn publish(&mut self, flags: u8, topic: &str, id: u16, payload: &[u8]) -> io::Result<()> {
        self.send(0x30 | flags, &[&text(topic)[..], &id.to_be_bytes(), payload].concat())
    }

    /// Publishes with QoS 0.
    pub fn publish_unacknowledged(&mut self, topic: &str, payload: &[u8]) -> io::Result<()> {
        self.send(0x30, &[&text(topic)[..], payload].concat())
    }

    pub fn ack(&mut self, kind: u8, id: u16) -> io::Result<()> {
        self.send(kind << 4 | if kind == 6 { 2 } else { 0 }, &id.to_be_bytes())
    }

    /// Subscribes and waits for SUBACK, before which nothing else may come.
    pub fn subscribe(&mut self, filter: &str, qos: u8) -> io::Result<()> {
        self.send(0x82, &[&[0, 1][..], &text(filter), &[qos]].concat())?;
        let (kind, body) = self.receive()?.ok_or(io::ErrorKind::TimedOut)?;
        assert_eq!((kind, &body[..]), (0x90, &[0, 1, qos][..]), "SUBACK");
        Ok(())
    }

    /// Ends the connection in good order, and waits until the node has closed it: what is published after this finds the session away.
    pub fn leave(mut self) -> io::Result<()> {
        self.send(0xe0, &[])?;
        while self.receive_within(PATIENCE).is_ok_and(|packet| packet.is_some()) {}
        Ok(())
    }

    /// The next packet; an error when the connection is over or nothing comes for long.
    fn receive(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        self.receive_within(PATIENCE)
    }

    /// The next packet, if one comes in time.
    pub fn receive_within(&mut self, most: Duration) -> io::Result<Option<(u8, Vec<u8>)>> {
        let until = Instant::now() + most;
        loop {
            if let Some(packet) = self.buffered() {
                return Ok(Some(packet));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut bytes = [0; 16_384];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn buffered(&mut self) -> Option<(u8, Vec<u8>)> {
        let (mut length, mut at) = (0, 1);
        loop {
            let byte = usize::from(*self.buffer.get(at)?);
            length |= (byte & 127) << (7 * (at - 1));
            at += 1;
            if byte < 128 {
                break;
            }
        }
        let body = self.buffer.get(at..at + length)?.to_vec();
        let first_byte = self.buffer[0];
        self.buffer.drain(..at + length);
        Some((first_byte, body))
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// The packet identifier that a packet other than PUBLISH begins with.
pub fn id_of(body: &[u8]) -> u16 {
    u16::from_be_bytes([body[0], body[1]])
}

/// A publisher of numbers, in order, at one QoS.
pub struct Publisher {
    pub name: String,
    pub qos: u8,
    pub retain: bool,
    /// The next number.
    pub next: u32,
    /// Numbers below this are acknowledged: by PUBACK, or by PUBREC.
    pub acknowledged: u32,
    inflight: VecDeque<Pending>,
    first_id: u16,
    next_id: u16,
    most: u32,
    known: bool,
}

struct Pending {
    id: u16,
    number: u32,
    /// PUBREC came, PUBREL was sent.
    released: bool,
}

impl Publisher {
    pub fn new(name: &str, qos: u8, retain: bool) -> Self {
        Self {
            name: name.into(),
            qos,
            retain,
            next: 0,
            acknowledged: 0,
            inflight: VecDeque::new(),
            first_id: 1,
            next_id: 1,
            most: u32::MAX,
            known: false,
        }
    }

    /// Its first message has this packet identifier, the next one the next, and so on for so many messages.
    pub fn with_ids(mut self, first: u16, count: u32) -> Self {
        (self.first_id, self.next_id, self.most) = (first, first, count);
        self
    }

    /// Whether the packet identifier is one of its own.
    pub fn sent(&self, id: u16) -> bool {
        id >= self.first_id && u32::from(id - self.first_id) < self.most
    }

    /// The number of the message with this identifier.
    pub fn number(&self, id: u16) -> u32 {
        u32::from(id - self.first_id)
    }

    pub fn topic(&self) -> String {
        format!("load/{}", self.name)
    }

    /// Publishes until the connection ends; once `finish` is set it sends nothing new, and leaves when all it has
    /// sent is acknowledged.
    pub fn run(&mut self, port: &str, finish: &AtomicBool) -> io::Result<()> {
        let mut connection = Connection::open(port, &self.name, false)?;
        assert!(connection.session_present || !self.known, "the session of {} is gone", self.name);
        self.known = true;
        for at in 0..self.inflight.len() {
            let (id, number, released) =
                (self.inflight[at].id, self.inflight[at].number, self.inflight[at].released);
            match released {
                true => connection.ack(6, id)?,
                false => self.send(&mut connection, id, number, true)?,
            }
        }
        loop {
            while self.inflight.len() < WINDOW && self.next < self.most && !finish.load(Relaxed) {
                let (id, number) = (self.free_id(), self.next);
                self.next += 1;
                self.inflight.push_back(Pending { id, number, released: false });
                self.send(&mut connection, id, number, false)?;
            }
            if self.inflight.is_empty() {
                return connection.leave();
            }
            let (first_byte, body) = connection.receive()?.ok_or(io::ErrorKind::TimedOut)?;
            self.take(&mut connection, first_byte >> 4, id_of(&body))?;
        }
    }

    fn take(&mut self, connection: &mut Connection, kind: u8, id: u16) -> io::Result<()> {
        let Some(at) = self.inflight.iter().position(|pending| pending.id == id) else {
            panic!("{}: packet type {kind} for {id}, which is not under way", self.name)
        };
        match (kind, self.qos) {
            (4, 1) | (7, 2) => {
                let pending = self.inflight.remove(at).expect("it is there");
                self.acknowledged = self.acknowledged.max(pending.number + 1);
                Ok(())
            }
            (5, 2) => {
                self.inflight[at].released = true;
                self.acknowledged = self.acknowledged.max(self.inflight[at].number + 1);
                connection.ack(6, id)
            }
            _ => panic!("{}: packet type {kind} at QoS {}", self.name, self.qos),
        }
    }

    fn send(&self, connection: &mut Connection, id: u16, number: u32, again: bool) -> io::Result<()> {
        let flags = if again { 8 } else { 0 } | self.qos << 1 | u8::from(self.retain);
        connection.publish(flags, &self.topic(), id, &number.to_be_bytes())
    }

    fn free_id(&mut self) -> u16 {
        loop {
            let id = self.next_id;
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            if self.inflight.iter().all(|pending| pending.id != id) {
                return id;
            }
        }
    }
}

/// A subscriber at QoS 2 to everything under `load/`, and what it got.
#[derive(Default)]
pub struct Subscriber {
    /// Topic and number, in the order they came; QoS 2 messages that came again before they were released are not in it.
    pub got: Vec<(String, u32)>,
    /// QoS 2 identifiers whose message is taken, and which are not released yet.
    open: HashSet<u16>,
    known: bool,
}

impl Subscriber {
    /// One that has subscribed before, and got nothing yet.
    pub fn resumed() -> Self {
        Self { known: true, ..Self::default() }
    }

    /// No exchange of QoS 2 is open.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// What came on a topic.
    pub fn numbers(&self, topic: &str) -> Vec<u32> {
        self.got.iter().filter(|(of, _)| of == topic).map(|(_, number)| *number).collect()
    }

    /// Takes messages until none came for so long, and for [`HELD_UP`] while `all` says that some have not come; false if its
    /// session is gone.
    pub fn run_until_quiet(
        &mut self,
        port: &str,
        quiet: Duration,
        all: impl Fn(&Self) -> bool,
    ) -> io::Result<bool> {
        let mut connection = Connection::open(port, "subscriber", false)?;
        if !connection.session_present {
            return Ok(false);
        }
        let mut last = Instant::now();
        loop {
            match connection.receive_within(quiet)? {
                Some((first_byte, body)) => {
                    self.take(&mut connection, first_byte, &body)?;
                    last = Instant::now();
                }
                None if all(self) || last.elapsed() > HELD_UP => break,
                None => {}
            }
        }
        connection.leave()?;
        Ok(true)
    }

    /// Takes messages until the connection ends or `enough` says so; subscribes once, in the first connection.
    pub fn run(&mut self, port: &str, enough: impl Fn(&Self) -> bool) -> io::Result<()> {
        let mut connection = Connection::open(port, "subscriber", false)?;
        assert!(connection.session_present || !self.known, "the session of the subscriber is gone");
        if !self.known {
            connection.subscribe("load/#", 2)?;
            self.known = true;
        }
        let mut last = Instant::now();
        while !enough(self) {
            let Some((first_byte, body)) = connection.receive_within(Duration::from_millis(50))? else {
                if last.elapsed() > PATIENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                continue;
            };
            last = Instant::now();
            self.take(&mut connection, first_byte, &body)?;
        }
        connection.leave()
    }

    fn take(&mut self, connection: &mut Connection, first_byte: u8, body: &[u8]) -> io::Result<()> {
        match (first_byte >> 4, first_byte >> 1 & 3) {
            (3, qos) if qos > 0 => {
                let end = 2 + usize::from(id_of(body));
                let topic = String::from_utf8(body[2..end].to_vec()).expect("text");
                let id = id_of(&body[end..]);
                let number = u32::from_be_bytes(body[end + 2..].try_into().expect("4 bytes"));
                if qos == 1 {
                    self.got.push((topic, number));
                    return connection.ack(4, id);
                }
                if self.open.insert(id) {
                    self.got.push((topic, number));
                }
                connection.ack(5, id)
            }
            (6, _) => {
                self.open.remove(&id_of(body));
                connection.ack(7, id_of(body))
            }
            other => panic!("a subscriber does not expect {other:?}"),
        }
    }
}

/// Holds what came against what was published; gives how often a QoS 1 message came again.
pub fn check(publishers: &[Publisher], got: &[(String, u32)]) -> usize {
    let mut again = 0;
    for publisher in publishers {
        let topic = publisher.topic();
        let numbers = got.iter().filter(|(of, _)| *of == topic).map(|(_, number)| *number);
        let mut next = 0;
        for number in numbers {
            let context =
                || format!("{} (QoS {}): {number} instead of {next}", publisher.name, publisher.qos);
            if number < next {
                assert_eq!(publisher.qos, 1, "came twice: {}", context());
                again += 1;
                continue;
            }
            assert_eq!(number, next, "lost or out of order: {}", context());
            next += 1;
        }
        assert!(next >= publisher.acknowledged, "{}: acknowledged and lost after {next}", publisher.name);
        assert_eq!(next, publisher.next, "{}: sent until acknowledged, and lost", publisher.name);
    }
    again
}

/// A small generator of random numbers: the same for the same seed.
pub struct Random(pub u64);

impl Random {
    /// Seeded by the environment, or by the clock; says which.
    pub fn seeded(variable: &str) -> Self {
        let now =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let seed = std::env::var(variable).ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| now().as_nanos() as u64);
        println!("{variable}={seed} does the same again");
        Self(seed)
    }

    /// Up to but without `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
