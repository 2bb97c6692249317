//! The state of an app on each member of a cluster, for answers to commands.

use edgefaas_cluster::status::{LiveRevision, NextRevision, NextState, Runs};
use edgefaas_functions::registry::ClusterApp;

use crate::members::{Member, Members, Presence};
use crate::rollout::digest;

/// An app on one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The member's name.
    pub node: String,
    /// Its zone; empty if it is not known.
    pub zone: String,
    /// The live revision in hex, or the last one that this node knows; empty for none.
    pub revision: String,
    /// The state of the deployment there.
    pub state: NodeState,
}

/// The state of a deployment on one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeState {
    /// The node has carried it out.
    Done,
    /// The node knows the app and leaves its functions to other nodes.
    Elsewhere,
    /// The node has not begun.
    Waiting,
    /// The node is fetching it.
    Fetching {
        /// The part that has arrived, in thousandths.
        permille: u16,
    },
    /// The node could not carry it out, and keeps the previous revision.
    Failed {
        /// The cause.
        reason: String,
    },
    /// The node runs a revision that was deployed to it alone.
    ThisNode,
    /// The node is away. It carries the deployment out when it returns.
    Away,
}

/// The app on this node.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// The live revision.
    pub live: Option<LiveRevision>,
    /// The decision of the cluster that is not carried out yet.
    pub next: Option<NextRevision>,
}

/// The state of a deployment on all members, this node first and the others by name.
pub fn report(app: &str, decided: &ClusterApp, own: &Own, members: &Members) -> Vec<NodeReport> {
    let of = |member: &Member, live: Option<LiveRevision>, state: NodeState| NodeReport {
        node: member.name.clone(),
        zone: member.zone.clone(),
        revision: live.map(|live| hex(&live.revision)).unwrap_or_default(),
        state,
    };
    let of_member = |member: &Member| {
        let known = member.apps.get(app);
        let live = known.and_then(|known| known.live);
        let state = match member.presence {
            Presence::Connected => state_of(live, known.and_then(|known| known.next.as_ref()), decided),
            Presence::Missing | Presence::Away => NodeState::Away,
        };
        of(member, live, state)
    };
    let mut reports: Vec<_> = members.others.iter().map(of_member).collect();
    reports.sort_by(|one, next| one.node.cmp(&next.node));
    reports.insert(0, of(&members.me, own.live, state_of(own.live, own.next.as_ref(), decided)));
    reports
}

/// Whether no connected member has anything left to do.
pub fn is_settled(reports: &[NodeReport]) -> bool {
    !reports.iter().any(|report| matches!(report.state, NodeState::Waiting | NodeState::Fetching { .. }))
}

/// The state of a decision on a node. What the node says about an earlier one is no state of this one.
fn state_of(live: Option<LiveRevision>, next: Option<&NextRevision>, decided: &ClusterApp) -> NodeState {
    let wanted = decided.winner.revision.as_deref().and_then(digest);
    match (next.filter(|next| next.revision == wanted).map(|next| &next.state), live) {
        (Some(NextState::Fetching { permille }), _) => NodeState::Fetching { permille: *permille },
        (Some(NextState::Failed { reason }), _) => NodeState::Failed { reason: reason.clone() },
        (None, Some(LiveRevision { runs: Runs::HereAlone, number, .. })) => {
            // One from before the node was a member is left there by a removal.
            match number == decided.winner.number || (number == 0 && wanted.is_none()) {
                true => NodeState::ThisNode,
                false => NodeState::Waiting,
            }
        }
        (None, Some(live)) if wanted == Some(live.revision) => match live.runs {
            Runs::Elsewhere => NodeState::Elsewhere,
            Runs::Here | Runs::HereAlone => NodeState::Done,
        },
        (None, None) if wanted.is_none() => NodeState::Done,
        (None, _) => NodeState::Waiting,
    }
}

fn hex(digest: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use edgefaas_functions::registry::Deployment;

    use super::*;

    fn decided(number: u64, revision: Option<u8>) -> ClusterApp {
        let revision = revision.map(|byte| hex(&[byte; 32]));
        let winner = Deployment { number, revision, node: "a".into(), deployed_unix_ms: 0, format: 1 };
        ClusterApp { winner, lost: Vec::new() }
    }

    fn live(byte: u8, runs: Runs, number: u64) -> Option<LiveRevision> {
        Some(LiveRevision { revision: [byte; 32], runs, number })
    }

    #[test]
    fn the_state_of_an_earlier_decision_is_none_of_a_later_one() {
        let failed = |revision: u8| {
            let state = NextState::Failed { reason: "no room".into() };
            Some(NextRevision { revision: Some([revision; 32]), state })
        };
        let (second, removed) = (decided(2, Some(2)), decided(3, None));
        let first = live(1, Runs::Here, 1);
        for (live, next, decided, expected) in [
            (first, None, &second, NodeState::Waiting),
            (first, failed(1), &second, NodeState::Waiting),
            (first, failed(2), &second, NodeState::Failed { reason: "no room".into() }),
            (None, None, &second, NodeState::Waiting),
            (live(2, Runs::Here, 1), None, &second, NodeState::Done),
            (live(2, Runs::Elsewhere, 2), None, &second, NodeState::Elsewhere),
            (live(7, Runs::HereAlone, 2), None, &second, NodeState::ThisNode),
            (live(7, Runs::HereAlone, 1), None, &second, NodeState::Waiting),
            (first, None, &removed, NodeState::Waiting),
            (None, None, &removed, NodeState::Done),
            (live(7, Runs::HereAlone, 0), None, &removed, NodeState::ThisNode),
            (live(7, Runs::HereAlone, 2), None, &removed, NodeState::Waiting),
        ] {
            assert_eq!(state_of(live, next.as_ref(), decided), expected, "{live:?} {next:?} {decided:?}");
        }
    }
}
