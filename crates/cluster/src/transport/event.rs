//! Events of a transport, for the node.

use bytes::Bytes;
use libp2p::{Multiaddr, PeerId};

use crate::Refusal;

/// Something happened in the cluster. In order for each member: up, frames, down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member's channel is open.
    PeerUp {
        /// The member's number.
        node_id: u64,
        /// The member's name.
        name: String,
        /// The member's peer id.
        peer_id: PeerId,
        /// The highest version of the protocol that both speak.
        protocol_version: u32,
        /// The number of the member's start.
        incarnation: u32,
        /// Milliseconds by which the member's wall clock is ahead of this node's; the latency of the message is not
        /// subtracted.
        skew_ms: i64,
        /// The remote address of its connection.
        address: Multiaddr,
    },
    /// A member's channel has ended. It is dialled again.
    PeerDown {
        /// The member's number.
        node_id: u64,
        /// The cause.
        reason: DownReason,
    },
    /// A member sent a frame.
    Frame {
        /// The member's number.
        node_id: u64,
        /// The frame's content.
        bytes: Bytes,
    },
    /// A member's outbox has room again after [`SendError::Full`](crate::SendError::Full).
    Writable {
        /// The member's number.
        node_id: u64,
    },
    /// The membership was added to: keep it on disk.
    MembershipChanged,
}

/// The cause of a channel's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The member said that it leaves.
    #[error("it left")]
    Left,
    /// The connection broke.
    #[error("the connection broke")]
    Lost,
    /// No bytes came from the member for 4 s.
    #[error("it is silent")]
    Silent,
    /// The member broke the protocol, or its certificate was revoked.
    #[error("it was refused: {}", .0.name())]
    Refused(Refusal),
    /// The member has connected anew.
    #[error("it connected anew")]
    Replaced,
    /// This node closed the channel.
    #[error("this node ended it")]
    Disconnected,
}
