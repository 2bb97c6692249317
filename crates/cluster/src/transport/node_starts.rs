//! Copies of a node: two running nodes with one identity. No clock and no socket.
//!
//! Each start of a node has a random instance number and an incarnation, which grows with every start of one data
//! directory. A node that was restarted has another instance and a higher incarnation, and the earlier one answers no more. All
//! else is a copied data directory. Which of the two is the copy cannot be known: the later one is refused.

use std::collections::HashMap;

use libp2p::{Multiaddr, PeerId};

/// Time for which a refused copy is reported.
const REPORTED_MS: u64 = 10 * 60_000;

/// The starts of the other members that this node has seen.
#[derive(Debug, Default)]
pub(crate) struct NodeStarts {
    latest: HashMap<PeerId, NodeStart>,
    copies: HashMap<PeerId, Sighting>,
}

/// One start of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeStart {
    pub(crate) instance: u64,
    pub(crate) incarnation: u32,
    /// The remote address of its connection.
    pub(crate) address: Multiaddr,
}

/// A copy of a member that this node has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The identity that two nodes have.
    pub peer_id: PeerId,
    /// The address of the node that was connected first.
    pub known_at: Multiaddr,
    /// The address of the refused node.
    pub refused_at: Multiaddr,
}

#[derive(Debug)]
struct Sighting {
    copy: Copy,
    at_ms: u64,
}

impl NodeStarts {
    /// The known start that proves that this one is a copy, if there is one: it has the same or a higher incarnation.
    pub(crate) fn contradiction(&self, peer: &PeerId, start: &NodeStart) -> Option<&NodeStart> {
        let latest = self.latest.get(peer)?;
        (latest.instance != start.instance && start.incarnation <= latest.incarnation).then_some(latest)
    }

    /// A member with this start is connected.
    pub(crate) fn accept(&mut self, peer: PeerId, start: NodeStart) {
        self.latest.insert(peer, start);
    }

    /// A copy of a member was refused.
    pub(crate) fn refuse(&mut self, copy: Copy, now_ms: u64) {
        self.copies.insert(copy.peer_id, Sighting { copy, at_ms: now_ms });
    }

    /// The copies that were refused in the last 10 minutes.
    pub(crate) fn copies(&self, now_ms: u64) -> Vec<Copy> {
        let recent =
            self.copies.values().filter(|sighting| now_ms.saturating_sub(sighting.at_ms) < REPORTED_MS);
        recent.map(|sighting| sighting.copy.clone()).collect()
    }

    /// Forgets removed members.
    pub(crate) fn retain(&mut self, is_member: impl Fn(&PeerId) -> bool) {
        self.latest.retain(|peer, _| is_member(peer));
        self.copies.retain(|peer, _| is_member(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(instance: u64, incarnation: u32) -> NodeStart {
        NodeStart { instance, incarnation, address: "/ip4/10.0.0.1/tcp/1".parse().unwrap() }
    }

    #[test]
    fn a_restart_is_no_copy_and_an_older_disk_is_one() {
        let (mut starts, peer) = (NodeStarts::default(), PeerId::random());
        assert_eq!(starts.contradiction(&peer, &start(1, 5)), None);
        starts.accept(peer, start(1, 5));
        for (instance, incarnation, is_copy) in
            [(1, 5, false), (2, 6, false), (2, 5, true), (2, 4, true), (2, 0, true)]
        {
            let found = starts.contradiction(&peer, &start(instance, incarnation));
            assert_eq!(found.is_some(), is_copy, "{instance} {incarnation}");
        }
        assert_eq!(starts.contradiction(&PeerId::random(), &start(2, 0)), None);
        // A copy that was started more often came in while the first one was away, which now is the later one.
        starts.accept(peer, start(2, 9));
        assert!(starts.contradiction(&peer, &start(3, 6)).is_some());
    }

    #[test]
    fn a_copy_is_reported_for_a_while() {
        let (mut starts, peer) = (NodeStarts::default(), PeerId::random());
        let at = start(1, 1).address;
        let copy = Copy { peer_id: peer, known_at: at.clone(), refused_at: at };
        starts.refuse(copy.clone(), 1_000);
        assert_eq!(starts.copies(2_000), [copy]);
        assert_eq!(starts.copies(1_000 + REPORTED_MS), []);
        starts.retain(|_| false);
        assert_eq!(starts.copies(2_000), []);
    }
}
