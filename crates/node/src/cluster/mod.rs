//! The node as a member of a cluster: membership, and replication of shared objects.
//!
//! `files` stores the keys and the member list; `service` starts and stops the transport and answers the control port;
//! `driver` connects the transport, the replication state machine and the local objects; `throttle` limits the time
//! that replication takes. `status` sends the load (`load`, `pressure`) and the facts of this node and keeps the `view` of
//! all members; `members` has those for rollouts, `app_facts` reports the apps of this node; `streams` distributes the
//! streams that members open. `artefact_streams` fetches and serves parts of revisions, `calls` makes and serves remote calls,
//! and `placer` decides where invocations run, by the policies that `policy` follows.

mod app_facts;
mod artefact_streams;
mod calls;
mod delta;
mod driver;
mod files;
mod load;
mod members;
mod placer;
mod policy;
mod pressure;
mod recovering;
mod replica;
mod service;
mod status;
mod streams;
mod throttle;
mod view;

/// Message on a node whose certificate was revoked.
const REVOKED: &str = "this node was revoked in its cluster, and works alone; to join again, stop it, move `cluster/` out of its data directory and start it";

pub(crate) use app_facts::live_revision;
pub use app_facts::report_apps;
pub use artefact_streams::{artefacts, transfer_artefacts};
pub use calls::{calls, serve_calls};
pub use files::{ClusterFiles, FilesError};
pub use load::LoadSources;
pub use placer::PolicyPlacer;
pub(crate) use placer::THIS_NODE;
pub use policy::{begin_policy, follow_policy};
pub use recovering::{LackingPattern, Recovering};
pub(crate) use service::transport_name;
pub use service::{
    Cluster, ClusterError, ClusterOptions, ClusterReading, ClusterStatus, MemberStatus, Standing,
    StatusReading,
};
pub use view::{ClusterView, MemberView, Presence};
