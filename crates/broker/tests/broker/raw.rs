//! A client that sends and sees bytes.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::soon;

pub struct Raw {
    stream: TcpStream,
}

/// A packet from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub first_byte: u8,
    pub body: Vec<u8>,
}

impl Frame {
    /// The packet type, 1 to 15.
    pub fn kind(&self) -> u8 {
        self.first_byte >> 4
    }

    /// Of CONNACK or DISCONNECT.
    pub fn reason(&self) -> u8 {
        self.body[if self.kind() == 2 { 1 } else { 0 }]
    }

    /// Topic of a PUBLISH.
    pub fn topic(&self) -> &str {
        assert_eq!(self.kind(), 3, "{self:?} is a PUBLISH");
        let length = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        std::str::from_utf8(&self.body[2..2 + length]).expect("text")
    }

    /// Packet identifier of a PUBLISH with QoS 1 or 2, or of an acknowledgement.
    pub fn packet_id(&self) -> u16 {
        let at = if self.kind() == 3 { 2 + self.topic().len() } else { 0 };
        u16::from_be_bytes([self.body[at], self.body[at + 1]])
    }

    /// What follows topic and packet identifier: properties (MQTT 5) and payload.
    pub fn rest(&self) -> &[u8] {
        let id = if self.first_byte & 0b110 == 0 { 0 } else { 2 };
        &self.body[2 + self.topic().len() + id..]
    }
}

impl Raw {
    pub async fn open(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).await.expect("connects");
        stream.set_nodelay(true).expect("nodelay");
        Raw { stream }
    }

    /// Connects with a clean session and takes the CONNACK.
    pub async fn connect(address: SocketAddr, level: u8, client_id: &str) -> Raw {
        let mut raw = Raw::open(address).await;
        raw.send(&connect(level, 2, &[], client_id, &[])).await;
        let ack = raw.receive().await;
        assert_eq!((ack.kind(), ack.reason()), (2, 0), "{ack:?} is an accepting CONNACK");
        raw
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        soon("sends", self.stream.write_all(bytes)).await.expect("sends");
    }

    /// Sends what the broker may refuse to read to its end.
    pub async fn try_send(&mut self, bytes: &[u8]) {
        let _ = soon("sends", self.stream.write_all(bytes)).await;
    }

    pub async fn receive(&mut self) -> Frame {
        soon("a packet from the broker", self.next())
            .await
            .expect("a packet, not the end of the connection")
    }

    /// The next packet, or `None` when the connection is over.
    pub async fn next(&mut self) -> Option<Frame> {
        let first_byte = self.stream.read_u8().await.ok()?;
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.stream.read_u8().await.ok()?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Frame { first_byte, body })
    }

    /// Takes everything until the connection ends.
    pub async fn until_closed(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        soon("the broker closes the connection", async {
            while let Some(frame) = self.next().await {
                frames.push(frame);
            }
        })
        .await;
        frames
    }

    pub async fn subscribe(&mut self, level: u8, filter: &str, options: u8) {
        let properties: &[u8] = if level == 5 { &[0] } else { &[] };
        self.send(&packet(0x82, &[&[0, 1], properties, &text(filter), &[options]])).await;
        let ack = self.receive().await;
        assert_eq!(
            (ack.kind(), ack.body[ack.body.len() - 1]),
            (9, options & 3),
            "{ack:?} grants the subscription"
        );
    }

    /// Waits until the broker has handled everything sent before.
    pub async fn ping(&mut self) {
        self.send(&[0xc0, 0]).await;
        let pong = self.receive().await;
        assert_eq!(pong.first_byte, 0xd0, "{pong:?} is a PINGRESP");
    }
}

pub fn packet(first_byte: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut packet = vec![first_byte];
    let mut left = body.len();
    loop {
        let more = left > 127;
        packet.push((left % 128) as u8 | if more { 0x80 } else { 0 });
        left /= 128;
        if !more {
            break;
        }
    }
    packet.extend(body);
    packet
}

pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    let length = u16::try_from(bytes.len()).expect("short");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// CONNECT with keepalive 60; `properties` without their length, `rest` is what follows the client identifier.
pub fn connect(level: u8, flags: u8, properties: &[u8], client_id: &str, rest: &[u8]) -> Vec<u8> {
    let mut length = Vec::new();
    if level == 5 {
        length.push(u8::try_from(properties.len()).expect("short"));
    }
    packet(0x10, &[&text("MQTT"), &[level, flags, 0, 60], &length, properties, &text(client_id), rest])
}

/// PUBLISH; `properties` without their length, for MQTT 5.
pub fn publish(
    level: u8,
    flags: u8,
    topic: &str,
    packet_id: u16,
    properties: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let id = packet_id.to_be_bytes();
    let id: &[u8] = if flags & 0b110 == 0 { &[] } else { &id };
    let mut length = Vec::new();
    if level == 5 {
        length.push(u8::try_from(properties.len()).expect("short"));
    }
    packet(0x30 | flags, &[&text(topic), id, &length, properties, payload])
}
