//! The members with a channel: at most one channel per member.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::event::DownReason;
use super::peer::Peer;
use crate::handshake::{Refusal, Refused};
use crate::network::frame::Kind;

/// The members with a channel, by node number.
#[derive(Default)]
pub(crate) struct PeerTable {
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    status: watch::Sender<()>,
}

impl PeerTable {
    pub(crate) fn get(&self, node_id: u64) -> Option<Arc<Peer>> {
        self.peers.lock().get(&node_id).cloned()
    }

    /// A peer's status has changed, or a channel has opened or ended.
    pub(crate) fn status_changed(&self) {
        self.status.send_replace(());
    }

    /// Notified whenever a peer's status changes.
    pub(crate) fn watch_status(&self) -> watch::Receiver<()> {
        self.status.subscribe()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Enters a member's channel, after the end of an older channel that it replaces. `decides` is whether this side
    /// chooses between two connections.
    ///
    /// # Errors
    /// `NodeIdTaken` if another peer has the number; `Duplicate` if the older connection stays. Cancel-safe.
    pub(crate) async fn claim(&self, peer: &Arc<Peer>, decides: bool) -> Result<(), Refused> {
        let node_id = peer.node_id();
        loop {
            let holder = {
                let mut peers = self.peers.lock();
                let Some(holder) = peers.get(&node_id) else {
                    peers.insert(node_id, peer.clone());
                    return Ok(());
                };
                holder.clone()
            };
            if holder.peer_id() != peer.peer_id() {
                return Err(Refusal::NodeIdTaken.with(format!(
                    "`{}` is connected with the same node number as `{}`; join one of them again",
                    holder.certificate.name(),
                    peer.certificate.name()
                )));
            }
            // A restarted node has not seen its old connection end, and this node may not have either.
            let restarted = holder.incarnation != peer.incarnation || holder.instance != peer.instance;
            if decides && !restarted && !holder.closing.is_cancelled() {
                return Err(Refusal::Duplicate.with("there is a connection already"));
            }
            holder.close(DownReason::Replaced);
            holder.gone.cancelled().await;
        }
    }

    /// Removes a member's channel.
    pub(crate) fn release(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock();
        let node_id = peer.node_id();
        if peers.get(&node_id).is_some_and(|holder| Arc::ptr_eq(holder, peer)) {
            peers.remove(&node_id);
        }
        drop(peers);
        peer.gone.cancel();
        self.status_changed();
    }

    /// Sends a control frame to every member.
    pub(crate) fn broadcast(&self, kind: Kind, body: &[u8]) {
        for peer in self.all() {
            peer.outbox.control(kind, body.to_vec());
        }
    }

    /// Sends a control frame to every member but one.
    pub(crate) fn broadcast_except(&self, node_id: u64, kind: Kind, body: &[u8]) {
        for peer in self.all().iter().filter(|peer| peer.node_id() != node_id) {
            peer.outbox.control(kind, body.to_vec());
        }
    }
}
