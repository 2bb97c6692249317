//! Configuration of a transport.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_platform::Clock;
use parking_lot::Mutex;

use crate::{Identity, Membership, PROTOCOL_VERSIONS};

/// Configuration of a transport.
#[derive(Debug, Clone)]
pub struct Options {
    /// The identity of this node.
    pub identity: Identity,
    /// The cluster as this node knows it. The transport adds to it and reports that by
    /// [`Event::MembershipChanged`](crate::Event::MembershipChanged); the caller keeps it on disk, and does not hold the
    /// lock when it calls the handle.
    pub membership: Arc<Mutex<Membership>>,
    /// The address to listen on, by TCP and by QUIC (UDP) on the same port. Port 0 takes one that is free for both.
    pub listen: SocketAddr,
    /// Addresses to dial: `HOST:PORT` (TCP, then QUIC), `/ip4/…/tcp/…` or `/ip4/…/udp/…/quic-v1`, each perhaps
    /// with `/p2p/PEER`. Dialled again without end, with pauses of up to 10 s.
    pub bootstrap: Vec<String>,
    /// True to look for members on the local link by multicast DNS (RFC 6762).
    pub mdns: bool,
    /// The largest frame that is sent and accepted, in bytes. 1 MiB by default.
    pub max_frame_bytes: usize,
    /// The size of one member's outbox in bytes. 1 MiB by default.
    pub outbox_bytes: usize,
    /// Events that may wait for the node before nothing more is read from members. 64 by default.
    pub event_capacity: usize,
    /// Streams of members that may wait for the node; further ones are reset. 64 by default.
    pub incoming_stream_capacity: usize,
    /// The number of this start of the node; a member that comes back with another one replaces its old connection.
    pub incarnation: u32,
    /// This node's version, for people to read.
    pub software: String,
    /// The time that a peer has for its handshake. 5 s by default.
    pub handshake_timeout: Duration,
    /// Versions of the protocol to offer: [`PROTOCOL_VERSIONS`] by default, fewer to hold a new one back.
    pub versions: RangeInclusive<u32>,
    /// The clock that members' clocks are compared with: the system's by default.
    pub wall_clock: Clock,
}

impl Options {
    /// The defaults: no bootstrap addresses, no mDNS.
    pub fn new(identity: Identity, membership: Arc<Mutex<Membership>>, listen: SocketAddr) -> Self {
        Self {
            identity,
            membership,
            listen,
            bootstrap: Vec::new(),
            mdns: false,
            max_frame_bytes: 1 << 20,
            outbox_bytes: 1 << 20,
            event_capacity: 64,
            incoming_stream_capacity: 64,
            incarnation: 0,
            software: String::new(),
            handshake_timeout: Duration::from_secs(5),
            versions: PROTOCOL_VERSIONS,
            wall_clock: Clock::system(),
        }
    }
}
