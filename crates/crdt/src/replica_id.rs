//! Ids of replicas.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Id of a replica: one boot of a node.
///
/// The incarnation must grow with every start of the node. A power failure can destroy writes that other
/// replicas have already seen. If the node continued with its old incarnation, its totals would grow
/// again from the older state, and the merge would lose the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId {
    /// Id of the node, unique in its cluster.
    pub node: u64,
    /// The number of the node's boot.
    pub incarnation: u32,
}

impl ReplicaId {
    /// Creates the id of `node` for its boot number `incarnation`.
    pub const fn new(node: u64, incarnation: u32) -> Self {
        Self { node, incarnation }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.node, self.incarnation)
    }
}
