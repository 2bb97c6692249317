//! The edgefaas node: it puts broker, isolates and state together and is the only crate that knows all of
//! them.
//!
//! [`Node::build`] is the one place where things are wired; tests call the same function as the binary.

pub mod access;
mod answer;
pub mod bridge;
pub mod cluster;
pub mod config;
pub mod control;
pub mod dispatch;
pub mod ingress;
pub mod invocation;
pub mod journal;
mod listeners;
pub mod logs;
pub mod memory_plan;
pub mod metrics;
mod node;
pub mod outgoing;
pub mod platform;
mod pressure;
pub mod problem;
pub mod registry;
pub mod secrets;
mod settings;
mod shares;
pub mod tls;
pub mod trace;
mod trace_export;
pub mod workflow;

pub use edgefaas_platform::Clock;
pub use listeners::Addresses;
pub use node::{BuildError, Node, RunError};
pub use platform::Platform;
