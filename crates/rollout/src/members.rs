//! The members of a cluster, as this node sees them.

use std::collections::BTreeMap;

use edgefaas_cluster::status::{AppFact, LiveRevision, PolicyFact};

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
    /// True if it has reported its zone, if it has one, and its labels.
    pub has_reported: bool,
    /// The connection with it.
    pub presence: Presence,
    /// Its apps by name, as it has reported them last.
    pub apps: BTreeMap<String, AppFact>,
    /// The placement policies that it knows, as it has reported them last.
    pub policy: Option<PolicyFact>,
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

impl Members {
    /// This node and the other members.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.me).chain(&self.others)
    }
}

impl Member {
    /// The live revision of an app, as far as it is known.
    pub fn live(&self, app: &str) -> Option<LiveRevision> {
        self.apps.get(app)?.live
    }
}
