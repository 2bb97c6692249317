//! Calls of workflows by functions. The coordinator, a layer above, runs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use edgefaas_isolates::{HostFuture, Reply};

use crate::invocation::{InvocationError, Lineage};
use crate::registry::LiveWorkflow;

/// Counts an invocation while it has open calls of workflows.
#[derive(Debug)]
pub(super) struct OpenCalls {
    open: AtomicUsize,
    /// Invocations of the node with open calls.
    invocations: Arc<AtomicUsize>,
}

/// An open call.
pub(super) struct OpenCall(Arc<OpenCalls>);

impl OpenCalls {
    pub(super) fn new(invocations: Arc<AtomicUsize>) -> Self {
        Self { open: AtomicUsize::new(0), invocations }
    }

    pub(super) fn open(self: Arc<Self>) -> OpenCall {
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.invocations.fetch_add(1, Ordering::Relaxed);
        }
        OpenCall(self)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.invocations.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invocation_counts_once_while_it_has_an_open_call() {
        let invocations = Arc::<AtomicUsize>::default();
        let calls = Arc::new(OpenCalls::new(invocations.clone()));
        let count = || invocations.load(Ordering::Relaxed);
        let (first, second) = (calls.clone().open(), calls.clone().open());
        assert_eq!(count(), 1);
        drop(first);
        assert_eq!(count(), 1);
        drop(second);
        assert_eq!(count(), 0);
        let _again = calls.open();
        assert_eq!(count(), 1);
    }
}
