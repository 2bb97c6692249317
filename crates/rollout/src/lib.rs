//! Apps of a cluster: which nodes run an app, and how its revisions get there.
//!
//! The revision of each app is replicated state ([`edgefaas_functions::registry::cluster_apps`]). Each node compares it with
//! its own apps ([`plan`]), fetches what it lacks, and makes it live by itself ([`Rollout`]). No node waits for another one.

mod fetching;
mod firings;
pub mod members;
pub mod plan;
pub mod report;
mod rollout;
pub mod selection;
pub mod shared_policy;
pub mod shared_secrets;
pub mod transfer;

pub use firings::Firings;
pub use members::{Member, Members, Presence};
pub use rollout::{Rollout, RolloutParts};
