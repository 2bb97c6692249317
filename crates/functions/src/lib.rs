//! Functions: what is deployed, how it runs, and what it may reach.
//!
//! [`registry`] holds apps as immutable revisions and the routes to their functions and workflows. [`invoker`] admits, runs
//! and commits one invocation. [`durable`] keeps invocations that have to run at least once, and [`publisher`] messages that
//! have to be published. [`outgoing`] sends the requests of functions.
//!
//! Nothing here knows how a workflow instance advances, a connection, a peer or the control port. A function calls a workflow
//! through [`invoker::Callees`], which is set at wiring.

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
pub mod secrets;
#[cfg(test)]
mod test_node;
pub mod topics;
pub mod trace;
pub mod workers;
