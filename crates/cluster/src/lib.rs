//! What the nodes of a cluster say to one another.

pub mod replication;
pub mod simulation;

pub mod wire;
