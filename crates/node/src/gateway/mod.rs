//! The HTTP gateway: requests that run functions and workflows, and MQTT over WebSocket.
//!
//! ```text
//! connection  connection_slots (limits), socket, write_timeout, write_progress, http (serves it, routes its requests)
//! request     request_head (checks of RFC 9112), auth, request_body (memory limit), durable, workflow
//! pages       cors (requests of pages of other sites)
//! reply       response (HTTP responses), reply_budget (memory limit)
//! WebSocket   websocket (upgrade), frames
//! ```

pub mod auth;
pub mod connection_slots;
mod cors;
mod durable;
mod frames;
pub mod http;
pub mod reply_budget;
pub mod request_body;
pub(crate) mod request_head;
mod response;
pub mod socket;
pub mod websocket;
mod workflow;
mod write_progress;
mod write_timeout;

use std::sync::Arc;

use edgefaas_coordinator::Coordinator;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::Registry;
use edgefaas_manifest::CorsOrigin;

use self::auth::GatewayAuth;
use self::reply_budget::ReplyBudget;
use self::request_body::BodyBudget;

/// Dependencies of all request handlers.
pub struct Gateway {
    /// Authorisation of requests.
    pub auth: Arc<GatewayAuth>,
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Durable invocations.
    pub durable: Arc<DurableQueue>,
    /// Runs workflows.
    pub coordinator: Arc<Coordinator>,
    /// Memory limit of request bodies that are being received.
    pub bodies: BodyBudget,
    /// Memory limit of replies that are being sent.
    pub replies: ReplyBudget,
    /// Origins whose pages may send requests to all paths.
    pub cors: Vec<CorsOrigin>,
}
