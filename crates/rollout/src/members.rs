//! The members of a cluster, as this node sees them.

use std::collections::BTreeMap;

/// The members of the cluster. A node alone has no others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// This node.
    pub me: Member,
    /// The other members.
    pub others: Vec<Member>,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// Its number.
    pub node_id: u64,
    /// Its name.
    pub name: String,
    /// Its zone; empty if it is not known.
    pub zone: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// The connection with it.
    pub presence: Presence,
    /// Its apps that were deployed to the cluster, by name.
    pub apps: BTreeMap<String, MemberApp>,
}

/// The connection of this node with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// It is connected, or it is this node.
    #[default]
    Connected,
    /// It has been away for less than 30 seconds: it keeps its place among the nodes that run an app.
    Missing,
    /// It is away.
    Away,
}

/// An app on a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberApp {
    /// The digest of the revision, or the beginning of it, in hex.
    pub revision: String,
    /// Its state.
    pub state: AppState,
}

/// The state of a revision on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppState {
    /// It is live, and the node runs its functions.
    Live,
    /// Its manifest is known; other nodes run its functions.
    Elsewhere,
    /// It is being fetched.
    Fetching {
        /// The part that has arrived, in thousandths.
        permille: u16,
    },
    /// It could not be made live; the previous revision stays live.
    Failed {
        /// The cause.
        reason: String,
    },
}

impl Members {
    /// This node and the other members.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.me).chain(&self.others)
    }
}
