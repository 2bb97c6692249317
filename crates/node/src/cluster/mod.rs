//! The node as a member of a cluster: who is let in, and what becomes of objects that others have as well.
//!
//! `files` keeps the keys and the member list; `service` starts and stops the transport and answers the control port;
//! `driver` joins the transport, the machine that decides who is sent what, and the local objects; `pace` says how soon.

mod delta;
mod driver;
mod files;
mod pace;
mod replica;
mod service;

/// What is said where the node finds that it belongs to its cluster no more.
const PUT_OUT: &str = "this node was revoked in its cluster, and works alone; move `cluster/` out of its data directory to join again";

pub use files::{ClusterFiles, FilesError};
pub(crate) use service::transport_name;
pub use service::{Cluster, ClusterError, ClusterOptions, ClusterReading, ClusterStatus, MemberStatus};
