//! Functions: deployment, invocations and permissions.
//!
//! [`registry`] holds apps as immutable revisions and the routes to their functions and workflows. [`invoker`] admits, runs
//! and commits one invocation. [`durable`] stores invocations that have to run at least once, and [`publisher`] stores
//! messages until the broker has them. [`outgoing`] sends the outgoing requests of functions. [`remote`] runs invocations on
//! other nodes, and those of other nodes here.
//!
//! This crate knows no workflow instance, connection, peer or control API. A function calls a workflow through
//! [`invoker::WorkflowRunner`], which the node sets when it starts.

pub mod answer;
pub mod dead_letter;
pub mod drain;
pub mod durable;
pub mod invocation;
pub mod invoker;
pub mod logs;
pub mod metrics;
pub mod outgoing;
pub mod problem;
pub mod publisher;
pub mod records;
pub mod registry;
pub mod remote;
pub mod secrets;
#[cfg(test)]
mod test_node;
pub mod topics;
pub mod trace;
pub mod workers;
