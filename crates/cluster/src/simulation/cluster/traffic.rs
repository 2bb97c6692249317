//! What a simulated node has sent.

use crate::network::frame::{HEADER_BYTES, Kind};

/// Bytes that Yamux (12), Noise (18), TCP and IPv4 with timestamps (52) add to each packet.
pub const PACKET_BYTES: usize = 82;
/// Bytes of one side of a connection before the channel is open: TCP, protocol negotiation, Noise, Hello and verdict.
pub const HANDSHAKE_BYTES: usize = 900;

/// What a node has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Writes to a stream; one packet each if it is short.
    pub packets: u64,
    /// All bytes: frames, handshakes and what the layers below add.
    pub bytes: u64,
    /// Heartbeats and their answers, in bytes of frames.
    pub heartbeat_bytes: u64,
    /// Loads, in bytes of frames.
    pub load_bytes: u64,
    /// Facts, in bytes of frames.
    pub facts_bytes: u64,
    /// Replication, in bytes of frames.
    pub data_bytes: u64,
    /// Handshakes.
    pub handshakes: u64,
}

impl Traffic {
    /// What was sent since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            heartbeat_bytes: self.heartbeat_bytes - before.heartbeat_bytes,
            load_bytes: self.load_bytes - before.load_bytes,
            facts_bytes: self.facts_bytes - before.facts_bytes,
            data_bytes: self.data_bytes - before.data_bytes,
            handshakes: self.handshakes - before.handshakes,
        }
    }

    pub(super) fn packet(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub(super) fn frame(&mut self, kind: Kind, body_bytes: usize) {
        let bytes = (HEADER_BYTES + body_bytes) as u64;
        match kind {
            Kind::Ping | Kind::Pong => self.heartbeat_bytes += bytes,
            Kind::Load => self.load_bytes += bytes,
            Kind::Facts => self.facts_bytes += bytes,
            Kind::Data => self.data_bytes += bytes,
            _ => {}
        }
    }

    pub(super) fn handshake(&mut self) {
        self.handshakes += 1;
        self.bytes += HANDSHAKE_BYTES as u64;
    }
}
