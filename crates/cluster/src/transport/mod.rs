//! The node's end of the cluster: one authenticated, ordered and bounded channel of frames per member.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use edgefaas_platform::Clock;

use bytes::Bytes;
use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    Certificate, CertificateError, ClusterKey, Identity, Membership, PROTOCOL_VERSIONS, Refusal,
    Revocation, Token,
};

use crate::revocation::encode_revocation;

mod address;
mod back_off;
mod behaviour;
mod busy;
mod channel;
mod counters;
mod crowd;
mod dial_book;
mod driver;
mod entrance;
pub(crate) mod frame;
mod greeting;
mod lives;
mod outbox;
mod shared;
mod start;

#[cfg(test)]
mod tests;

pub(crate) use behaviour::{Channels, NoStream};
pub use busy::{Busy, Work};
pub use counters::Counters;
pub(crate) use counters::add as count;
pub use lives::Copy;
pub(crate) use shared::Shared;
pub use start::StartError;
pub(crate) use start::swarm;

/// What a transport is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who this node is.
    pub identity: Identity,
    /// What it knows of its cluster. The transport adds to it and says so by [`Event::MembershipChanged`];
    /// the caller keeps it on disk, and does not hold the lock when it calls the handle.
    pub membership: Arc<Mutex<Membership>>,
    /// Where to listen, by TCP and by QUIC (UDP) on the same port. Port 0 takes one that is free for both.
    pub listen: SocketAddr,
    /// Whom to dial: `HOST:PORT` (TCP, then QUIC), `/ip4/…/tcp/…` or `/ip4/…/udp/…/quic-v1`, each perhaps
    /// with `/p2p/PEER`. Dialled again for ever, with pauses of up to 10 s.
    pub bootstrap: Vec<String>,
    /// Whether to look for members on the local link by multicast DNS (RFC 6762).
    pub mdns: bool,
    /// The largest frame that is sent and taken. 1 MiB by default.
    pub max_frame_bytes: usize,
    /// How much may wait for one member. 1 MiB by default.
    pub outbox_bytes: usize,
    /// How many events may wait for the node before nothing more is read from members. 64 by default.
    pub event_capacity: usize,
    /// Counts this node's starts; a member that comes back with another one replaces its old connection.
    pub incarnation: u32,
    /// This node's version, for people to read.
    pub software: String,
    /// Within what a peer has to say who it is. 5 s by default.
    pub handshake_timeout: Duration,
    /// Versions of the protocol to offer: [`PROTOCOL_VERSIONS`] by default, fewer to hold a new one back.
    pub versions: RangeInclusive<u32>,
    /// What the members' clocks are compared with: the system's by default.
    pub wall_clock: Clock,
}

/// What happens in the cluster, in order for each member: up, frames, down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member's channel stands.
    PeerUp {
        /// The member's number.
        node_id: u64,
        /// Its name.
        name: String,
        /// Its peer id.
        peer_id: PeerId,
        /// The highest version of the protocol that both speak.
        protocol_version: u32,
        /// Which start of the member this is.
        incarnation: u32,
        /// How far its wall clock is ahead of this node's; the way of the message is not taken off.
        skew_ms: i64,
        /// Where it is connected.
        address: Multiaddr,
    },
    /// A member's channel has ended. It is dialled again.
    PeerDown {
        /// The member's number.
        node_id: u64,
        /// Why.
        reason: DownReason,
    },
    /// A member sent a frame.
    Frame {
        /// The member's number.
        node_id: u64,
        /// What it sent.
        bytes: Bytes,
    },
    /// There is room in a member's outbox again after [`SendError::Full`].
    Writable {
        /// The member's number.
        node_id: u64,
    },
    /// The membership was added to: keep it on disk.
    MembershipChanged,
}

/// Why a channel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The member said that it leaves.
    #[error("it left")]
    Left,
    /// The connection broke.
    #[error("the connection broke")]
    Lost,
    /// Nothing came from the member for 4 s.
    #[error("it is silent")]
    Silent,
    /// The member broke the rules, or its certificate was taken back.
    #[error("it was refused: {}", .0.name())]
    Refused(Refusal),
    /// The member has connected anew.
    #[error("it connected anew")]
    Replaced,
    /// This node ended it.
    #[error("this node ended it")]
    Disconnected,
}

/// A frame that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too much waits for the member; [`Event::Writable`] follows.
    #[error("too much waits for node {node_id}")]
    Full {
        /// The member.
        node_id: u64,
    },
    /// The member has no channel.
    #[error("node {node_id} is not connected")]
    Gone {
        /// The member.
        node_id: u64,
    },
    /// The frame is over the limit.
    #[error("a frame of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// The frame's size.
        bytes: usize,
        /// [`Options::max_frame_bytes`].
        limit_bytes: usize,
    },
}

/// What a channel runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// TCP with Noise and Yamux.
    Tcp,
    /// QUIC (RFC 9000).
    Quic,
}

/// A member with a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its number.
    pub node_id: u64,
    /// Its name.
    pub name: String,
    /// Its peer id.
    pub peer_id: PeerId,
    /// Where it is connected.
    pub address: Multiaddr,
    /// By what.
    pub transport: TransportKind,
    /// Its version, as it says.
    pub software: String,
    /// The highest version of the protocol that both speak.
    pub protocol_version: u32,
    /// Which start of the member this is.
    pub incarnation: u32,
    /// Since when the channel stands.
    pub connected_since: Instant,
    /// How long the last heartbeat took there and back; none before the first.
    pub rtt: Option<Duration>,
    /// Bytes received, framing included and encryption not.
    pub bytes_in: u64,
    /// Bytes sent, framing included and encryption not.
    pub bytes_out: u64,
    /// How far its wall clock was ahead of this node's when it connected.
    pub skew_ms: i64,
}

/// Starts the node's end of the cluster.
pub struct Transport;

/// The node's hold on a running transport; clones are the same one.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
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
            incarnation: 0,
            software: String::new(),
            handshake_timeout: Duration::from_secs(5),
            versions: PROTOCOL_VERSIONS,
            wall_clock: Clock::system(),
        }
    }
}

impl Transport {
    /// Listens, and connects to members until `cancel`. Comes back once it listens. The events end when the
    /// transport has ended; while they are not taken nothing is read from members.
    pub async fn start(
        options: Options,
        cancel: CancellationToken,
    ) -> Result<(Handle, mpsc::Receiver<Event>), StartError> {
        let (shared, events) = start::start(options, cancel).await?;
        Ok((Handle { shared }, events))
    }
}

impl Handle {
    /// Puts a frame into a member's outbox; never waits.
    pub fn try_send(&self, node_id: u64, frame: Bytes) -> Result<(), SendError> {
        let limit_bytes = self.shared.limits.max_frame_bytes;
        if frame.len() > limit_bytes {
            return Err(SendError::TooLarge { bytes: frame.len(), limit_bytes });
        }
        let peer = self.shared.peer(node_id).filter(|peer| !peer.close.is_cancelled());
        let peer = peer.ok_or(SendError::Gone { node_id })?;
        if peer.outbox.try_send(frame) { Ok(()) } else { Err(SendError::Full { node_id }) }
    }

    /// The members with a channel, by number.
    pub fn peers(&self) -> Vec<PeerInfo> {
        let mut peers: Vec<PeerInfo> = self.shared.peers().iter().map(|peer| peer.info()).collect();
        peers.sort_by_key(|peer| peer.node_id);
        peers
    }

    /// Ends a member's channel. With `back_off` the member is left alone for a while, longer each time and
    /// for a minute at most: for one that sends what it may not.
    pub fn disconnect(&self, node_id: u64, back_off: bool) {
        if let Some(peer) = self.shared.peer(node_id) {
            if back_off {
                self.shared.penalise(peer.certificate.peer_id());
            }
            peer.close(DownReason::Disconnected);
        }
    }

    /// Where this node listens, with the real port and one address per interface; loopback comes last.
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        self.shared.addresses()
    }

    /// How long the transport was at work so far, all its tasks added up.
    pub fn busy(&self) -> Work {
        self.shared.busy.read()
    }

    /// Copies of other members that were refused in the last 10 minutes: nodes with the same identity.
    pub fn copies(&self) -> Vec<Copy> {
        self.shared.lives.lock().copies(self.shared.now_ms())
    }

    /// What members have said of a copy of this node since its start.
    pub fn own_copy(&self) -> Option<String> {
        self.shared.own_copy()
    }

    /// Figures since the start.
    pub fn counters(&self) -> Counters {
        self.shared.counters.read(self.shared.entrance.refused())
    }

    /// Makes a token that lets one node in within `life`, and serves newcomers until then. A token of a life
    /// of days is for a node that stays on: tokens do not survive a restart.
    pub fn open_join(&self, key: &ClusterKey, life: Duration) -> Result<Token, CertificateError> {
        let (expected, found) = (self.shared.membership.lock().cluster_id(), key.public().id());
        if expected != found {
            return Err(CertificateError::ForeignCluster { found, expected });
        }
        let now_ms = self.shared.now_ms();
        let secret = {
            let mut desk = self.shared.joins.lock();
            self.shared.serves_joins.store(true, Ordering::Relaxed);
            desk.open(key, now_ms, shared::millis(life))
        };
        self.shared.wake();
        Ok(Token::new(secret, expected, self.shared.own, &self.listen_addresses()))
    }

    /// Takes in a member whose certificate came by another way; true if that changed anything.
    pub fn learn(
        &self,
        certificate: Certificate,
        addresses: &[Multiaddr],
    ) -> Result<bool, CertificateError> {
        let mut membership = self.shared.membership.lock();
        let peer_id = certificate.peer_id();
        let learnt = membership.learn(certificate)?;
        let changed = membership.announce(&peer_id, addresses) | learnt;
        drop(membership);
        self.shared.wake();
        Ok(changed)
    }

    /// Revokes a peer: sends the revocation to all members and ends the channel of the revoked one. False if the
    /// peer was revoked before.
    ///
    /// # Errors
    /// The key of another cluster, or too many revocations.
    pub fn revoke(&self, revocation: Revocation) -> Result<bool, CertificateError> {
        let body = encode_revocation(&revocation);
        let added = self.shared.membership.lock().revoke(revocation)?;
        if added {
            // The revoked one first: all that are left hear of it.
            self.shared.drop_revoked();
            self.shared.tell_all(frame::Kind::RevocationSet, &body);
        }
        Ok(added)
    }
}

/// The options that a running transport needs.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_frame_bytes: usize,
    pub(crate) outbox_bytes: usize,
    pub(crate) incarnation: u32,
    pub(crate) software: String,
    pub(crate) handshake_timeout: Duration,
    pub(crate) versions: RangeInclusive<u32>,
    pub(crate) wall_clock: Clock,
}

/// Held by the driver and every connection, so a flag and not a lock.
type ServesJoins = Arc<AtomicBool>;
