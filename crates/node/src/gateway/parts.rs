//! What requests at the gateway are handled with.

use std::sync::Arc;

use edgefaas_coordinator::Coordinator;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::Registry;

use super::auth::GatewayAuth;
use super::body::BodyBudget;
use super::replies::ReplyBudget;

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
