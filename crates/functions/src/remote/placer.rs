//! The decision where an invocation runs.

use std::fmt;
use std::sync::Arc;

use edgefaas_cluster::calls::NotStarted;
use edgefaas_cluster::placement::{PlacedCall, Refusal};

use crate::invocation::Invocation;
use crate::registry::LiveFunction;

/// Decides where invocations run, and how much of this node other nodes may use. The node implements it over the placement
/// policies and its view of the cluster.
pub trait Placer: Send + Sync {
    /// The place of an invocation. Does not wait. Nodes of `tried` did not start it.
    fn place(&self, function: &LiveFunction, invocation: &Invocation, tried: &[NodeFailure]) -> Placement;

    /// A call of the function begins at a node. It is in flight there until the result is dropped; its end says whether the node
    /// has accepted it.
    fn begin(&self, function: &LiveFunction, node_id: u64) -> PlacedCall;

    /// The time for the end of a [`PlacedCall`], in milliseconds of a monotonic clock.
    fn now_ms(&self) -> u64;

    /// This node, as a member of its cluster. `None` in no cluster.
    fn this_node(&self) -> Option<Arc<ThisNode>>;

    /// What member `node_id` may use of this node for invocations that need `invocation_bytes` each.
    fn share(&self, node_id: u64, invocation_bytes: u64) -> Share;
}

/// The part of a node that another one may use at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Function memory in bytes, by the limits of the functions. 0: nothing.
    pub memory_bytes: u64,
    /// Invocations.
    pub permits: u32,
}

/// Where an invocation runs.
#[derive(Debug, Clone)]
pub enum Placement {
    /// On this node.
    Here,
    /// On another one.
    On(RemoteNode),
    /// On no node.
    Refused(NoNode),
}

/// A node that runs invocations of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteNode {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: Arc<str>,
}

/// This node, as a member of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisNode {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: Arc<str>,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
}

/// A node that did not start an invocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    /// The node.
    pub node: RemoteNode,
    /// The cause.
    pub error: NotStarted,
}

/// Reasons why no node can run an invocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoNode {
    /// The placement policies allow no node.
    #[error("{refusal}; `edgefaas policy explain {function}` shows the decision")]
    Policy {
        /// The function.
        function: Arc<str>,
        /// The reasons, as numbers of nodes.
        refusal: Refusal,
    },
    /// All nodes that the policy allows were tried.
    #[error("{}", DisplayFailures(.failures))]
    AllTried {
        /// The nodes and their errors, in the order of the attempts.
        failures: Vec<NodeFailure>,
    },
    /// The node is in no cluster, and has not got the code of the function.
    #[error("its code is not on this node, and this node is connected to no other")]
    NotHere,
}

struct DisplayFailures<'a>(&'a [NodeFailure]);

impl fmt::Display for DisplayFailures<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, failure) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(out, "{separator}node `{}`: {}", failure.node.name, failure.error)?;
        }
        Ok(())
    }
}
