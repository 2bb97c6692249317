//! Detects cloned data directories: two nodes with one identity.

use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;

use super::clock::TransportClock;
use super::node_starts::{Copy, NodeStart, NodeStarts};
use super::peer::Peer;
use super::peer_table::PeerTable;
use crate::Membership;
use crate::handshake::{Refusal, Refused};
use crate::network::frame::Kind;

/// A running node answers a heartbeat within this time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Detects copies of other members, and keeps reports of a copy of this node.
pub(crate) struct CopyDetector {
    peers: Arc<PeerTable>,
    clock: TransportClock,
    probe_timeout: Duration,
    starts: Mutex<NodeStarts>,
    /// The last report of a copy of this node.
    own_copy: Mutex<Option<String>>,
}

impl CopyDetector {
    pub(crate) fn new(peers: Arc<PeerTable>, clock: TransportClock, handshake_timeout: Duration) -> Self {
        let probe_timeout = PROBE_TIMEOUT.min(handshake_timeout / 2);
        Self { peers, clock, probe_timeout, starts: Mutex::default(), own_copy: Mutex::default() }
    }

    /// Refuses a node that has the identity of another one: a cloned data directory that runs beside its original, or
    /// an older copy of it. Takes up to 2 s.
    ///
    /// # Errors
    /// `Cloned`, with the addresses of both.
    pub(crate) async fn check(&self, peer: &Peer) -> Result<(), Refused> {
        let Some(start) = peer.node_start() else { return Ok(()) };
        let (name, peer_id) = (peer.certificate.name(), peer.peer_id());
        let holder = self.peers.get(peer.node_id()).filter(|holder| {
            holder.peer_id() == peer_id
                && holder.instance.is_some_and(|instance| instance != start.instance)
        });
        // A restarted node does not answer over its old connection.
        if let Some(holder) = holder
            && !holder.closing.is_cancelled()
            && holder.answers(self.clock.now_us(), self.probe_timeout).await
        {
            self.report(peer_id, &holder.address, &peer.address);
            holder.outbox.control(Kind::Copied, peer.address.to_string().into_bytes());
            return Err(Refusal::Cloned.with(format!(
                "two nodes with the identity of `{name}` are running, at {} and at {}; stop one of them and start it \
                 with an empty data directory",
                holder.address, peer.address
            )));
        }
        let latest = self.starts.lock().contradiction(&peer_id, &start).cloned();
        if let Some(latest) = latest {
            self.report(peer_id, &latest.address, &peer.address);
            return Err(Refusal::Cloned.with(format!(
                "the data directory of `{name}` at {} is a copy: it counts start {}, and start {} was at {}; start it \
                 with an empty data directory and join it again",
                peer.address, start.incarnation, latest.incarnation, latest.address
            )));
        }
        Ok(())
    }

    /// Remembers the start of a member whose channel has opened.
    pub(crate) fn accept(&self, peer_id: PeerId, start: NodeStart) {
        self.starts.lock().accept(peer_id, start);
    }

    /// The copies that were refused in the last 10 minutes.
    pub(crate) fn copies(&self) -> Vec<Copy> {
        self.starts.lock().copies(self.clock.now_ms())
    }

    /// Forgets removed members.
    pub(crate) fn retain_members(&self, membership: &Membership) {
        self.starts.lock().retain(|peer| membership.member(peer).is_some());
    }

    /// A member has reported a copy of this node.
    pub(crate) fn own_copy_reported(&self, report: String) {
        let mut own_copy = self.own_copy.lock();
        if own_copy.as_ref() != Some(&report) {
            tracing::error!(copy = report, "another node is running with the identity of this one");
            *own_copy = Some(report);
        }
    }

    /// The last report of a copy of this node since its start.
    pub(crate) fn own_copy(&self) -> Option<String> {
        self.own_copy.lock().clone()
    }

    fn report(&self, peer_id: PeerId, known_at: &Multiaddr, refused_at: &Multiaddr) {
        let copy = Copy { peer_id, known_at: known_at.clone(), refused_at: refused_at.clone() };
        self.starts.lock().refuse(copy, self.clock.now_ms());
    }
}
