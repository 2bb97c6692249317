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
//! A node with a failing disk may lose what a round brought: claims count after [`CLAIM_DELAY`], unless the driver reports
//! [`NotStored`](crate::replication::Event::NotStored) in the meantime. A deletion is agreed [`MARGIN_MS`] after its time at
//! the earliest, since a write takes a moment from its time to the digests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::replication::NodeId;

/// Time after a round at which what it brought counts as stored.
pub(super) const CLAIM_DELAY: Duration = Duration::from_secs(5);
/// Minimum age of an agreed deletion.
pub(super) const MARGIN_MS: u64 = 30_000;

/// A comparison of all objects with a peer, by one round or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Clock that both sides have followed before they compared.
    clock_ms: u64,
    /// Time up to which this node had all deletions when it began.
    gathered_ms: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    gathered_ms: u64,
    spread_ms: u64,
}

#[derive(Debug)]
struct Claim {
    due: Duration,
    node: NodeId,
    sweep: Sweep,
}

/// What this node knows of the deletions of the members.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// All other members.
    members: BTreeMap<NodeId, Known>,
    claims: Vec<Claim>,
    agreed_ms: u64,
}

impl Agreement {
    /// The other members. New ones hold agreement back until they have been compared twice.
    pub(crate) fn set_members(&mut self, members: &BTreeSet<NodeId>) {
        self.members.retain(|node, _| members.contains(node));
        self.claims.retain(|claim| members.contains(&claim.node));
        for node in members {
            self.members.entry(*node).or_default();
        }
    }

    /// Begins to compare all objects with a peer; `None` if one of both does not follow the clock.
    pub(crate) fn begin(&self, clock_ms: u64) -> Option<Sweep> {
        (clock_ms > 0).then(|| Sweep { clock_ms, gathered_ms: self.gathered_ms(clock_ms) })
    }

    /// All objects have been compared with a peer, and what differed has been exchanged.
    pub(crate) fn compared(&mut self, node: NodeId, sweep: Sweep, now: Duration) {
        self.claims.retain(|claim| claim.node != node);
        self.claims.push(Claim { due: now + CLAIM_DELAY, node, sweep });
    }

    /// What a peer sent could not be stored.
    pub(crate) fn lost(&mut self, node: NodeId) {
        self.claims.retain(|claim| claim.node != node);
        if let Some(known) = self.members.get_mut(&node) {
            *known = Known::default();
        }
    }

    /// A member says what is agreed; `clock_ms` is the clock of this node.
    pub(crate) fn told(&mut self, agreed_ms: u64, clock_ms: u64) {
        if agreed_ms <= clock_ms.saturating_sub(MARGIN_MS) {
            self.agreed_ms = self.agreed_ms.max(agreed_ms);
        }
    }

    /// Counts claims that are due. `clock_ms` is the clock of this node.
    pub(crate) fn advance(&mut self, now: Duration, clock_ms: u64) {
        let Self { claims, members, .. } = self;
        claims.retain(|claim| {
            let is_due = claim.due <= now;
            if is_due && let Some(known) = members.get_mut(&claim.node) {
                known.gathered_ms = known.gathered_ms.max(claim.sweep.clock_ms - 1);
                known.spread_ms = known.spread_ms.max(claim.sweep.gathered_ms);
            }
            !is_due
        });
        let spread_ms = self.members.values().map(|known| known.spread_ms).min().unwrap_or(clock_ms);
        self.agreed_ms = self.agreed_ms.max(spread_ms.saturating_sub(MARGIN_MS));
    }

    /// Time at which the next claim counts.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.claims.iter().map(|claim| claim.due).min()
    }

    /// Every member has the deletions up to this time.
    pub(crate) fn agreed_ms(&self) -> u64 {
        self.agreed_ms
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

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn agreement(members: &[u64]) -> Agreement {
        let mut agreement = Agreement::default();
        agreement.set_members(&members.iter().map(|node| NodeId(*node)).collect());
        agreement
    }

    fn round(agreement: &mut Agreement, node: u64, clock_ms: u64) {
        let sweep = agreement.begin(clock_ms).unwrap();
        let now = Duration::from_millis(clock_ms);
        agreement.compared(NodeId(node), sweep, now);
        agreement.advance(now + CLAIM_DELAY, clock_ms);
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
        let sweep = agreement.begin(3 * MINUTE_MS).unwrap();
        agreement.compared(NodeId(1), sweep, secs(180));
        agreement.lost(NodeId(1));
        let before = agreement.agreed_ms();
        agreement.advance(secs(200), 200_000);
        round(&mut agreement, 1, 4 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), before);
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
    fn a_node_alone_agrees_with_itself() {
        let mut agreement = agreement(&[]);
        agreement.advance(secs(1), 5 * MINUTE_MS);
        assert_eq!(agreement.agreed_ms(), 5 * MINUTE_MS - MARGIN_MS);
    }
}
