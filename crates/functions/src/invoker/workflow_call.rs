//! Calls of workflows by functions. The coordinator, a layer above, runs them.

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
    /// Number of functions and workflows that called one another before it.
    pub depth: u8,
    /// W3C trace context.
    pub trace_parent: Option<String>,
    /// The workflow instance that the caller descends from.
    pub lineage: Option<Lineage>,
}

/// Runs workflows for functions. A trait, because workflows run functions themselves: it turns the dependency around.
pub trait WorkflowRunner: Send + Sync {
    /// Runs a workflow to its end and returns its output. If the future is dropped, the instance continues.
    fn call_workflow(self: Arc<Self>, call: WorkflowCall) -> HostFuture<Result<Reply, InvocationError>>;
}
