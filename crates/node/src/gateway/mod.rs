//! The HTTP gateway: requests that run functions and workflows, and MQTT over WebSocket.
//!
//! [`http`] serves a connection and routes its requests, [`auth`] says who may make them, [`durable`] and [`workflow`] are
//! what some of them ask for. [`body`] and [`replies`] bound the memory of what comes in and goes out, [`connection_slots`] that of
//! connections.

pub mod auth;
pub mod body;
pub mod connection_slots;
mod durable;
mod frames;
pub mod http;
mod outflow;
mod parts;
pub mod replies;
mod reply;
pub(crate) mod request_head;
pub mod socket;
pub mod websocket;
mod workflow;
mod write_timeout;

pub use parts::Gateway;
