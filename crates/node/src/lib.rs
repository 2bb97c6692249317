//! The edgefaas node: it puts broker, isolates and state together and is the only crate that knows all of
//! them.
//!
//! [`Node::build`] is the one place where things are wired; tests call the same function as the binary.

pub mod access;
pub mod bridge;
pub mod cluster;
pub mod config;
pub mod control;
pub mod gateway;
mod listeners;
pub mod memory_plan;
pub mod metrics;
mod node;
pub mod platform;
mod pressure;
mod settings;
mod shares;
pub mod tls;
mod trace_export;
pub mod triggers;

pub use edgefaas_platform::Clock;
pub use listeners::Addresses;
pub use node::{BuildError, Node, RunError};
pub use platform::Platform;
