//! The decision where an invocation runs.

use std::fmt;
use std::sync::Arc;

use edgefaas_cluster::calls::NotStarted;

use crate::invocation::Invocation;
use crate::registry::LiveFunction;

/// Decides where invocations run. The node implements it over the placement policies and its view of the cluster.
pub trait Placer: Send + Sync {
    /// The place of an invocation. Does not wait. Nodes of `tried` did not start it.
    fn place(&self, function: &LiveFunction, invocation: &Invocation, tried: &[NodeFailure]) -> Placement;

    /// This node.
    fn entry(&self) -> EntryNode;
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

/// The node at which an event arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryNode {
    /// Its number.
    pub id: u64,
    /// Its zone; empty if it has none.
    pub zone: Arc<str>,
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
    /// No node satisfies the placement policy.
    #[error("no node satisfies the policy `{tag}` (`edgefaas policy explain FUNCTION` says why)")]
    Policy {
        /// The tag of the policy.
        tag: Arc<str>,
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
