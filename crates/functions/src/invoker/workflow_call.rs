//! What a function may call that is no function: workflows, which a layer above runs.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_isolates::{HostFuture, Reply};

use crate::invocation::{InvocationError, Lineage};
use crate::registry::LiveWorkflow;

/// A call of a workflow by a function.
pub struct WorkflowCall {
    /// The workflow.
    pub workflow: Arc<LiveWorkflow>,
    /// The payload.
    pub body: Bytes,
    /// How many functions and workflows have called one another before it.
    pub depth: u8,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// The workflow instance that the caller descends from.
    pub lineage: Option<Lineage>,
}

/// Runs workflows for functions. Set once at wiring, since workflows run functions themselves.
pub trait Callees: Send + Sync {
    /// Runs a workflow from its start to its end. If the future is dropped, the instance continues.
    fn call_workflow(self: Arc<Self>, call: WorkflowCall) -> HostFuture<Result<Reply, InvocationError>>;
}
