//! The node's calls into a running transport.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::Multiaddr;
use tokio::sync::watch;

use super::admission::Admission;
use super::copy_detector::CopyDetector;
use super::counters::{Cells, Counters};
use super::dial_signal::DialSignal;
use super::event::DownReason;
use super::gossip::Gossip;
use super::join_service::JoinService;
use super::local_node::LocalNode;
use super::node_starts::Copy;
use super::peer::PeerInfo;
use super::peer_stream::{OpenStreamError, PeerStream};
use super::peer_table::PeerTable;
use super::status::PeerStatus;
use crate::network::side_streams::StreamPurpose;
use crate::network::task_time::{TaskTime, TaskTimer};
use crate::status::StatusError;
use crate::{Certificate, CertificateError, ClusterKey, Revocation, Token};

/// A frame that was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The member's outbox is full; [`Event::Writable`](crate::Event::Writable) follows.
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
        /// [`Options::max_frame_bytes`](crate::Options::max_frame_bytes).
        limit_bytes: usize,
    },
}

/// Calls into a running transport; clones are the same one. Does not keep it running: [`EventReceiver`](crate::EventReceiver) does.
#[derive(Clone)]
pub struct Handle {
    pub(super) local: Arc<LocalNode>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) gossip: Arc<Gossip>,
    pub(super) admission: Arc<Admission>,
    pub(super) copies: Arc<CopyDetector>,
    pub(super) joins: Arc<JoinService>,
    pub(super) counters: Arc<Cells>,
    pub(super) dial_signal: DialSignal,
    pub(super) task_timer: Arc<TaskTimer>,
}

impl Handle {
    /// Puts a frame into a member's outbox; never waits.
    pub fn try_send(&self, node_id: u64, frame: Bytes) -> Result<(), SendError> {
        let limit_bytes = self.local.limits.max_frame_bytes;
        if frame.len() > limit_bytes {
            return Err(SendError::TooLarge { bytes: frame.len(), limit_bytes });
        }
        let peer = self.peers.get(node_id).filter(|peer| !peer.closing.is_cancelled());
        let peer = peer.ok_or(SendError::Gone { node_id })?;
        if peer.outbox.try_send(frame) { Ok(()) } else { Err(SendError::Full { node_id }) }
    }

    /// Opens a stream to a member, beside the channel, on the same connection. At most 8 of them are open to one member;
    /// a further one waits for the end of another. Takes at most 5 s. If the call is cancelled, no stream stays open.
    ///
    /// # Errors
    /// `Gone` without an open channel, `Unsupported` if the member runs an older version, `TimedOut` after 5 s.
    pub async fn open_stream(
        &self,
        node_id: u64,
        purpose: StreamPurpose,
    ) -> Result<PeerStream, OpenStreamError> {
        let peer = self.peers.get(node_id).ok_or(OpenStreamError::Gone { node_id })?;
        peer.open_stream(purpose).await
    }

    /// Sets the load of this node, at most 512 bytes. Members get it with the heartbeat, within a second.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn set_load(&self, load: Bytes) -> Result<(), StatusError> {
        self.local.status.set_load(load)
    }

    /// Sets the facts of this node, at most 64 KiB. Members get them within 0.1 s, large ones within 1.7 s of the last, and
    /// when a channel opens.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn set_facts(&self, facts: Bytes) -> Result<(), StatusError> {
        self.local.status.set_facts(facts)
    }

    /// The status of the members with an open channel, in no order.
    pub fn peer_statuses(&self) -> Vec<PeerStatus> {
        self.peers.all().iter().filter_map(|peer| peer.status()).collect()
    }

    /// Notified whenever a load or facts come from a member, and when a channel opens or ends; round-trip times change
    /// without.
    pub fn watch_statuses(&self) -> watch::Receiver<()> {
        self.peers.watch_status()
    }

    /// The members with a channel, by number.
    pub fn peers(&self) -> Vec<PeerInfo> {
        let mut peers: Vec<PeerInfo> = self.peers.all().iter().map(|peer| peer.info()).collect();
        peers.sort_by_key(|peer| peer.node_id);
        peers
    }

    /// Ends a member's channel. The member may connect again immediately.
    pub fn disconnect(&self, node_id: u64) {
        if let Some(peer) = self.peers.get(node_id) {
            peer.close(DownReason::Disconnected);
        }
    }

    /// Ends the channel of a member that broke the protocol of its frames. It is neither dialled nor accepted during a
    /// pause, which is longer each time, up to 60 s.
    pub fn disconnect_with_penalty(&self, node_id: u64) {
        if let Some(peer) = self.peers.get(node_id) {
            self.admission.penalise(peer.peer_id());
            peer.close(DownReason::Disconnected);
        }
    }

    /// Addresses of the listeners, with the real port and one address per interface; loopback comes last.
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        self.local.addresses()
    }

    /// The running time of all tasks of the transport so far.
    pub fn task_time(&self) -> TaskTime {
        self.task_timer.read()
    }

    /// Copies of other members that were refused in the last 10 minutes: nodes with the same identity.
    pub fn copies(&self) -> Vec<Copy> {
        self.copies.copies()
    }

    /// The last report by a member of a copy of this node, since its start.
    pub fn own_copy(&self) -> Option<String> {
        self.copies.own_copy()
    }

    /// Figures since the start.
    pub fn counters(&self) -> Counters {
        self.counters.read(self.admission.refused_unencrypted())
    }

    /// Makes a token that admits one node within `life`, and serves joining nodes until then. A token of a life of days is
    /// for a node that stays on: tokens do not survive a restart.
    ///
    /// # Errors
    /// `ForeignCluster` if the key is that of another cluster.
    pub fn open_join(&self, key: &ClusterKey, life: Duration) -> Result<Token, CertificateError> {
        self.joins.open(key, life)
    }

    /// Adds a member whose certificate came by another way; true if that changed anything.
    ///
    /// # Errors
    /// The certificate is not signed by this cluster's key.
    pub fn learn(
        &self,
        certificate: Certificate,
        addresses: &[Multiaddr],
    ) -> Result<bool, CertificateError> {
        let mut membership = self.gossip.membership.lock();
        let peer_id = certificate.peer_id();
        let learnt = membership.learn(certificate)?;
        let changed = membership.announce(&peer_id, addresses) | learnt;
        drop(membership);
        self.dial_signal.notify();
        Ok(changed)
    }

    /// Revokes a peer: sends the revocation to all members and ends the channel of the revoked one. False if the
    /// peer was revoked before.
    ///
    /// # Errors
    /// The key of another cluster, or too many revocations.
    pub fn revoke(&self, revocation: Revocation) -> Result<bool, CertificateError> {
        self.gossip.revoke(revocation)
    }
}
