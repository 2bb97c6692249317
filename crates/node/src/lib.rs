//! The edgefaas node: broker, isolates, functions, workflows and state in one process. No other crate knows all of them.
//!
//! [`Node::build`] wires all parts; tests call the same function as the binary.

// Roles and checks of pages have no caller then.
#![cfg_attr(not(feature = "dashboard"), allow(dead_code))]

pub mod access;
mod address_limits;
mod advance;
pub mod bridge;
pub mod cluster;
pub mod config;
pub mod control;
pub mod gateway;
mod health;
mod history;
mod listeners;
pub mod memory_plan;
mod memory_pressure;
pub mod metrics;
mod node;
mod object_expiry;
mod own_origin;
pub mod platform;
mod settings;
mod settings_list;
pub mod tls;
mod trace_export;

pub use advance::{Advance, AdvanceError, MAX_ADVANCE};
pub use bridge::local_subscription::{LocalSubscription, Received, SubscriptionError, SubscriptionOptions};
pub use edgefaas_platform::{Clock, ClockControl};
pub use health::{Health, Readiness};
pub use listeners::Addresses;
pub use node::{BuildError, CACHE_KEY_FILE, Node, RunError};
pub use platform::Platform;
