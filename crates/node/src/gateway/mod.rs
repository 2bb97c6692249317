//! The HTTP gateway: requests that run functions and workflows, and MQTT over WebSocket.
//!
//! [`http`] serves a connection and routes its requests, [`auth`] says who may make them, [`durable`] and [`workflow`] are
//! what some of them ask for. [`body`] and [`replies`] bound the memory of what comes in and goes out, [`places`] that of
//! connections.

pub mod auth;
pub mod body;
mod durable;
mod frames;
pub mod http;
mod outflow;
pub mod places;
pub mod replies;
pub(crate) mod request_head;
pub mod socket;
pub mod websocket;
mod workflow;
mod write_timeout;

use std::sync::Arc;

use auth::GatewayAuth;
use body::BodyBudget;
use edgefaas_coordinator::Coordinator;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::Registry;
use replies::ReplyBudget;

/// What requests are handled with.
pub struct Gateway {
    /// Who may make which request.
    pub auth: GatewayAuth,
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Durable invocations.
    pub durable: Arc<DurableQueue>,
    /// Runs workflows.
    pub coordinator: Arc<Coordinator>,
    /// Memory of bodies that are read.
    pub bodies: BodyBudget,
    /// Memory of replies that wait for their clients.
    pub replies: ReplyBudget,
}
