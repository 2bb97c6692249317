//! One connection as the driver, the handshake and the channel see it.

use std::time::Duration;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};

use super::event::DownReason;
use crate::handshake::Refusal;

/// A connection to a peer that has proved its peer id.
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    pub(crate) connection: ConnectionId,
    /// True if this node has dialled the connection.
    pub(crate) is_dialed: bool,
}

/// The end of a connection's stream.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This node refused the peer.
    Refused(Refusal),
    /// The peer refused this node.
    RefusedByPeer(Refusal),
    /// The connection broke before the peer was known.
    Lost,
    /// The channel was open for `up`.
    Down { up: Duration, reason: DownReason },
}
