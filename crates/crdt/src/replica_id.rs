//! The identity of a writer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A replica: a node in one of its boots.
///
/// The incarnation must grow with every start of the node. A power cut may take writes with it that
/// other replicas have already seen; were the node to continue under its old name, its totals would
/// count anew from the older state and the difference would be lost in the merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId {
    /// The node, unique in its cluster.
    pub node: u64,
    /// The number of the node's boot.
    pub incarnation: u32,
}

impl ReplicaId {
    /// The replica that `node` is in its boot number `incarnation`.
    pub const fn new(node: u64, incarnation: u32) -> Self {
        Self { node, incarnation }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}", self.node, self.incarnation)
    }
}
