//! The node as a member of a cluster: membership, and replication of shared objects.
//!
//! `files` stores the keys and the member list; `service` starts and stops the transport and answers the control port;
//! `driver` connects the transport, the replication state machine and the local objects; `members` publishes the members
//! for rollouts; `throttle` limits the time that replication takes.

mod delta;
mod driver;
mod files;
mod members;
mod replica;
mod service;
mod throttle;

/// Message on a node whose certificate was revoked.
const REVOKED: &str = "this node was revoked in its cluster, and works alone; move `cluster/` out of its data directory to join again";

pub use files::{ClusterFiles, FilesError};
pub(crate) use service::transport_name;
pub use service::{Cluster, ClusterError, ClusterOptions, ClusterReading, ClusterStatus, MemberStatus};
