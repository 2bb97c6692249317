//! Deletions that all members have: up to which time each node may drop the tombstones of deleted fields.
//!
//! A deletion has a time of the hybrid clock of the node that deletes. Of two nodes that compare their objects in a round,
//! one says its clock and the other follows it before it looks at its own objects: later deletions of either have later
//! times. So when the round is over,
//!
//! - this node has *gathered* all deletions of the other node up to that time, and
//! - what this node had gathered from all members when the round began has *spread* to the other node.
//!
//! Deletions up to the least time that has spread to every member are *agreed*: every member has them. Nodes tell each
//! other that time, leave agreed deletions out of what they compare, and drop them. A member that is away holds it back.
//!
//! A node that starts may have a clock that is behind what was agreed, and delete before it meets a member. So it compares all
//! its deletions with each member once before it leaves out or drops any.
//!
//! A node with a full disk may lose what a round brought. So each node says in its next message about a round whether it has
//! stored all that it got; what a round has shown counts from then on. A deletion is agreed [`MARGIN_MS`] after its time at the
//! earliest, since a write takes a moment from its time to the digests.

use std::collections::{BTreeMap, BTreeSet};

use crate::replication::NodeId;

/// Minimum age of an agreed deletion.
pub(super) const MARGIN_MS: u64 = 30_000;

/// A comparison of all objects with a peer, by one round or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Clock that both sides have followed before they compared.
    clock_ms: u64,
    /// Time up to which this node had all deletions when it began.
    gathered_ms: u64,
    /// Deletions up to this time were not compared.
    without_ms: u64,
}

impl Sweep {
    /// A round of it does not compare deletions up to this time.
    pub(crate) fn leaves_out(&mut self, without_ms: u64) {
        self.without_ms = self.without_ms.max(without_ms);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    gathered_ms: u64,
    spread_ms: u64,
}

/// What this node knows of the deletions of the members.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// All other members.
    members: BTreeMap<NodeId, Known>,
    /// The last whole comparison with each connected peer, until the peer says that it has stored what it got.
    compared: BTreeMap<NodeId, Sweep>,
    /// Members with which all deletions have been compared since the start.
    met: BTreeSet<NodeId>,
    agreed_ms: u64,
}

impl Agreement {
    /// The other members. New ones hold agreement back until they have been compared twice.
    pub(crate) fn set_members(&mut self, members: &BTreeSet<NodeId>) {
        self.members.retain(|node, _| members.contains(node));
        self.compared.retain(|node, _| members.contains(node));
        self.met.retain(|node| members.contains(node));
        for node in members {
            self.members.entry(*node).or_default();
        }
    }

    /// Begins to compare all objects with a peer; `None` if one of both does not follow the clock.
    pub(crate) fn begin(&self, clock_ms: u64) -> Option<Sweep> {
        (clock_ms > 0).then(|| Sweep { clock_ms, gathered_ms: self.gathered_ms(clock_ms), without_ms: 0 })
    }

    /// All objects have been compared with a peer, and what differed has been exchanged.
    pub(crate) fn compared(&mut self, node: NodeId, sweep: Sweep) {
        self.compared.insert(node, sweep);
    }

    /// A peer says whether it could not store all that this node has sent.
    pub(crate) fn confirmed(&mut self, node: NodeId, has_lost: bool) {
        let sweep = self.compared.remove(&node).filter(|_| !has_lost);
        if let Some((sweep, known)) = sweep.zip(self.members.get_mut(&node)) {
            known.gathered_ms = known.gathered_ms.max(sweep.clock_ms - 1);
            known.spread_ms = known.spread_ms.max(sweep.gathered_ms);
            if sweep.without_ms == 0 {
                self.met.insert(node);
            }
        }
    }

    /// What a peer sent could not be stored, or its connection is gone.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.compared.remove(&node);
    }

    /// A member says what is agreed; `clock_ms` is the clock of this node.
    pub(crate) fn told(&mut self, agreed_ms: u64, clock_ms: u64) {
        if agreed_ms <= clock_ms.saturating_sub(MARGIN_MS) {
            self.agreed_ms = self.agreed_ms.max(agreed_ms);
        }
    }

    /// Computes what is agreed. `clock_ms` is the clock of this node.
    pub(crate) fn advance(&mut self, clock_ms: u64) {
        let spread_ms = self.members.values().map(|known| known.spread_ms).min().unwrap_or(clock_ms);
        self.agreed_ms = self.agreed_ms.max(spread_ms.saturating_sub(MARGIN_MS));
    }

    /// Every member has the deletions up to this time.
    pub(crate) fn agreed_ms(&self) -> u64 {
        self.agreed_ms
    }

    /// Deletions up to this time need not be compared with a peer.
    pub(crate) fn known_to(&self, node: NodeId) -> u64 {
        if self.met.contains(&node) { self.agreed_ms } else { 0 }
    }

    /// This node may drop deletions up to this time.
    pub(crate) fn droppable_ms(&self) -> u64 {
        let has_met_all = self.members.keys().all(|node| self.met.contains(node));
        if has_met_all { self.agreed_ms } else { 0 }
    }

    /// This node has all deletions up to this time.
    fn gathered_ms(&self, clock_ms: u64) -> u64 {
        self.members.values().map(|known| known.gathered_ms).min().unwrap_or(clock_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    fn agreement(members: &[u64]) -> Agreement {
        let mut agreement = Agreement::default();
        agreement.set_members(&members.iter().map(|node| NodeId(*node)).collect());
        agreement
    }

    fn round(agreement: &mut Agreement, node: u64, clock_ms: u64) {
        agreement.compared(NodeId(node), agreement.begin(clock_ms).unwrap());
        agreement.confirmed(NodeId(node), false);
        agreement.advance(clock_ms);
    }

    #[test]
    fn what_all_have_takes_two_comparisons_with_each() {
        let mut agreement = agreement(&[1, 2]);
        round(&mut agreement, 1, MINUTE_MS);
        round(&mut agreement, 2, 2 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 0, "member 1 may lack what came from member 2");
        round(&mut agreement, 1, 3 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 0);
        round(&mut agreement, 2, 4 * MINUTE_MS);
        // All of member 1 up to its first comparison had come when the second one began.
        assert_eq!(agreement.agreed_ms(), MINUTE_MS - 1 - MARGIN_MS);
        round(&mut agreement, 1, 5 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 2 * MINUTE_MS - 1 - MARGIN_MS);
    }

    #[test]
    fn a_member_that_is_away_or_new_holds_it_back() {
        let mut agreement = agreement(&[1]);
        (1..=3).for_each(|minute| round(&mut agreement, 1, minute * MINUTE_MS));
        let agreed_ms = agreement.agreed_ms();
        assert_eq!(agreed_ms, 2 * MINUTE_MS - 1 - MARGIN_MS);
        agreement.set_members(&[1, 2].map(NodeId).into());
        (4..=9).for_each(|minute| round(&mut agreement, 1, minute * MINUTE_MS));
        assert_eq!(agreement.agreed_ms(), agreed_ms);
        agreement.set_members(&[1].map(NodeId).into());
        round(&mut agreement, 1, 10 * MINUTE_MS);
        assert!(agreement.agreed_ms() > agreed_ms);
    }

    #[test]
    fn what_was_not_stored_does_not_count() {
        let mut agreement = agreement(&[1]);
        round(&mut agreement, 1, MINUTE_MS);
        round(&mut agreement, 1, 2 * MINUTE_MS);
        let before = agreement.agreed_ms();
        // Stored neither here nor there.
        for has_lost in [false, true] {
            agreement.compared(NodeId(1), agreement.begin(3 * MINUTE_MS).unwrap());
            if !has_lost {
                agreement.lost(NodeId(1));
            }
            agreement.confirmed(NodeId(1), has_lost);
            agreement.advance(3 * MINUTE_MS);
            assert_eq!(agreement.agreed_ms(), before);
        }
        round(&mut agreement, 1, 4 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 2 * MINUTE_MS - 1 - MARGIN_MS);
    }

    #[test]
    fn a_member_cannot_agree_to_what_has_not_happened() {
        let mut agreement = agreement(&[1]);
        agreement.told(u64::MAX, 10 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 0);
        agreement.told(8 * MINUTE_MS, 10 * MINUTE_MS);
        agreement.told(7 * MINUTE_MS, 10 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 8 * MINUTE_MS);
        assert_eq!(agreement.begin(0), None, "the other side does not follow the clock");
    }

    #[test]
    fn a_node_compares_all_deletions_with_each_member_once() {
        let mut agreement = agreement(&[1, 2]);
        agreement.told(8 * MINUTE_MS, 10 * MINUTE_MS);
        round(&mut agreement, 1, 10 * MINUTE_MS);
        assert_eq!([1, 2].map(|node| agreement.known_to(NodeId(node))), [8 * MINUTE_MS, 0]);
        let mut sweep = agreement.begin(11 * MINUTE_MS).unwrap();
        sweep.leaves_out(1);
        agreement.compared(NodeId(2), sweep);
        agreement.confirmed(NodeId(2), false);
        assert_eq!(agreement.droppable_ms(), 0);
        round(&mut agreement, 2, 12 * MINUTE_MS);
        assert_eq!(agreement.droppable_ms(), 8 * MINUTE_MS);
    }

    #[test]
    fn a_node_alone_agrees_with_itself() {
        let mut agreement = agreement(&[]);
        agreement.advance(5 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 5 * MINUTE_MS - MARGIN_MS);
    }
}
