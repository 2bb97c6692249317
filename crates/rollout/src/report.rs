//! The state of an app on each member of a cluster, for answers to commands.

use edgefaas_functions::registry::{ClusterApp, Reach};

use crate::members::{AppState, Member, Members, Presence};
use crate::rollout::Progress;

/// An app on one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The member's name.
    pub node: String,
    /// Its zone.
    pub zone: String,
    /// The revision that it runs, or has run last as far as this node knows; in hex, perhaps only its beginning.
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
    /// The revision that is live, and the reach of its deploy.
    pub live: Option<(String, Reach)>,
    /// Whether it is live as the cluster has decided, and this node runs its functions.
    pub state: Option<AppState>,
}

impl Own {
    /// The app here, with its progress.
    pub fn new(live: Option<(String, Reach, AppState)>, progress: Option<&Progress>) -> Self {
        let state = progress.map(|progress| progress.state.clone());
        match live {
            Some((revision, reach, live)) => {
                Self { live: Some((revision, reach)), state: state.or(Some(live)) }
            }
            None => Self { live: None, state },
        }
    }
}

/// The state of a deployment on all members, this node first and the others by name.
pub fn report(app: &str, decided: &ClusterApp, own: &Own, members: &Members) -> Vec<NodeReport> {
    let mut others: Vec<_> = members.others.iter().map(|member| of_member(app, decided, member)).collect();
    others.sort_by(|one, next| one.node.cmp(&next.node));
    others.insert(0, of_this_node(decided, own, &members.me));
    others
}

/// Whether no connected member has anything left to do.
pub fn is_settled(reports: &[NodeReport]) -> bool {
    !reports.iter().any(|report| matches!(report.state, NodeState::Waiting | NodeState::Fetching { .. }))
}

fn of_this_node(decided: &ClusterApp, own: &Own, me: &Member) -> NodeReport {
    let (revision, reach) = own.live.clone().unwrap_or_default();
    let state = match &own.state {
        _ if own.live.is_some() && reach == Reach::ThisNode => NodeState::ThisNode,
        Some(state) => of_state(state, &revision, decided),
        None if decided.winner.revision.is_none() => NodeState::Done,
        None => NodeState::Waiting,
    };
    NodeReport { node: me.name.clone(), zone: me.zone.clone(), revision, state }
}

fn of_member(app: &str, decided: &ClusterApp, member: &Member) -> NodeReport {
    let known = member.apps.get(app);
    let revision = known.map(|known| known.revision.clone()).unwrap_or_default();
    let state = match known {
        _ if member.presence != Presence::Connected => NodeState::Away,
        Some(known) => of_state(&known.state, &revision, decided),
        None if decided.winner.revision.is_none() => NodeState::Done,
        None => NodeState::Waiting,
    };
    NodeReport { node: member.name.clone(), zone: member.zone.clone(), revision, state }
}

fn of_state(state: &AppState, revision: &str, decided: &ClusterApp) -> NodeState {
    let wanted = decided.winner.revision.as_deref();
    let is_wanted = !revision.is_empty() && wanted.is_some_and(|wanted| wanted.starts_with(revision));
    match state {
        AppState::Fetching { permille } => NodeState::Fetching { permille: *permille },
        AppState::Failed { reason } => NodeState::Failed { reason: reason.clone() },
        AppState::Live if is_wanted => NodeState::Done,
        AppState::Elsewhere if is_wanted => NodeState::Elsewhere,
        AppState::Live | AppState::Elsewhere => NodeState::Waiting,
    }
}
