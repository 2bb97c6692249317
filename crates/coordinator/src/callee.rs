//! Workflows that functions call.

use std::sync::Arc;

use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::invoker::{WorkflowCall, WorkflowRunner};
use edgefaas_isolates::{HostFuture, Reply};

use super::coordinator::Coordinator;
use super::instance::{Start, input_of};
use super::root_budget::RootBudget;

impl WorkflowRunner for Coordinator {
    fn call_workflow(self: Arc<Self>, call: WorkflowCall) -> HostFuture<Result<Reply, InvocationError>> {
        let WorkflowCall { workflow, body, depth, trace_parent, lineage } = call;
        let mut start = Start::new(workflow, input_of(&body), body.len());
        (start.depth, start.trace_parent) = (depth, trace_parent);
        start.root = lineage.map(|lineage| match lineage.ancestor::<RootBudget>() {
            Some(root) => root,
            None => self.root_elsewhere(lineage.root()),
        });
        Box::pin(async move { self.run_workflow(start).await.result })
    }
}
