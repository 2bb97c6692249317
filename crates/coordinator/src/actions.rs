//! Actions of instances: calls, requests, scripts, listens and child workflows.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use edgefaas_broker::QoS;
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::{Interest, LiveWorkflow, Waiter};
use edgefaas_functions::trace::Entry;
use edgefaas_isolates::RunError;
use edgefaas_workflow::instance::{Action, FrameId};
use edgefaas_workflow::program::{Kind, NodeId, RunWorkflow};
use edgefaas_workflow::{ErrorKind, Event, WorkflowError, weight};
use serde_json::Value;
use tokio::sync::Notify;
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::function_step::AttemptedStep;
use super::instance::{Running, Start};
use super::run_state::WorkflowResult;

/// A call, request or script that an instance waits for.
pub(super) struct PendingCall {
    action: Action,
    frame: FrameId,
    cancel: Arc<Notify>,
}

/// What a pending call has given.
#[expect(
    clippy::large_enum_variant,
    reason = "most are functions, and a box would cost each of them an allocation"
)]
enum Ended {
    Task(WorkflowResult),
    /// A function has run; its effects are not stored yet.
    Function(AttemptedStep),
}

impl Coordinator {
    /// Starts `actions`. Returns one pending call, which the current task is to carry out.
    pub(super) fn perform(
        self: &Arc<Self>,
        running: &Arc<Running>,
        actions: Vec<Action>,
        publish: bool,
    ) -> Option<PendingCall> {
        let mut inline: Option<PendingCall> = None;
        for action in actions {
            let pending = match action {
                Action::Publish(outgoing) => {
                    // The messages of durable instances were sent after the commit.
                    if !publish {
                        continue;
                    }
                    let trace_parent = self.context_of(running, outgoing.node);
                    if let Some(message) = self.message_of(running, &outgoing, trace_parent) {
                        let is_awaited = message.qos() > QoS::AtMostOnce;
                        let depth = running.depth.saturating_add(1);
                        let stored_at = self.publisher.publish(&running.workflow.name, depth, message);
                        if is_awaited && stored_at.is_some() {
                            running.state.lock().published = stored_at;
                        }
                    }
                    continue;
                }
                Action::Listen { frame, filters, queue } => {
                    running.state.lock().open.listens.push(frame);
                    let waiter = Waiter::Instance(running.id, frame);
                    let interest = |(source, filter)| Interest {
                        waiter: waiter.clone(),
                        source: source as u32,
                        filter: Arc::new(filter),
                    };
                    self.interests.add(filters.into_iter().enumerate().map(interest));
                    if let Some(queue) = queue {
                        self.watch_queue(running.id, frame, queue);
                    }
                    // The instance may have ended on another thread in the meantime.
                    if self.find(running.id).is_none() {
                        self.unlisten(running.id, frame);
                    }
                    continue;
                }
                Action::Unlisten { frame } => {
                    running.state.lock().open.listens.retain(|listen| *listen != frame);
                    self.unlisten(running.id, frame);
                    continue;
                }
                Action::Cancel { frame } => {
                    self.cancel_call(running, frame);
                    continue;
                }
                Action::Note(note) => {
                    self.note(running, &note);
                    continue;
                }
                Action::Continue => {
                    self.spawn_advance(running.clone(), Queued::now(Event::Continue));
                    continue;
                }
                Action::Workflow { wait: false, name, input, frame, node } => {
                    let child = run_of(running, node).and_then(|run| self.child_workflow(run));
                    let run =
                        child.and_then(|child| self.run_child(running, (frame, node), child, input, false));
                    if let Err(error) = run {
                        let (workflow, id) = (&running.workflow.name, running.id.to_string());
                        let text = self.mask(running, format!("`{name}` is not run: {error}"));
                        self.logs.add(workflow, &id, edgefaas_isolates::LogLevel::Error, text);
                    }
                    continue;
                }
                Action::Workflow { wait: true, input, frame, node, .. } => {
                    let child = run_of(running, node).and_then(|run| self.child_workflow(run));
                    let run =
                        child.and_then(|child| self.run_child(running, (frame, node), child, input, true));
                    if let Err(error) = run {
                        let event = Event::Ended { frame, result: Err(error) };
                        self.spawn_advance(running.clone(), Queued::now(event));
                    }
                    continue;
                }
                Action::Call { frame, node, ref function, ref body, .. } => {
                    let routes = self.registry.routes();
                    // A workflow can be called like a function.
                    if routes.function(function).is_none()
                        && let Some(child) = routes.workflow(function).cloned()
                    {
                        let input = Arc::new(body.to_json());
                        if let Err(error) = self.run_child(running, (frame, node), child, input, true) {
                            let event = Event::Ended { frame, result: Err(error) };
                            self.spawn_advance(running.clone(), Queued::now(event));
                        }
                        continue;
                    }
                    drop(routes);
                    self.open_call(running, frame, action)
                }
                Action::Request { frame, .. } | Action::Document { frame, .. } => {
                    self.open_call(running, frame, action)
                }
                Action::Script { frame, wait, .. } => {
                    let pending = self.open_call(running, frame, action);
                    if !wait {
                        self.spawn_call(running, pending);
                        continue;
                    }
                    pending
                }
            };
            // A durable instance continues after the next start.
            if self.drain.is_draining() && running.is_durable() {
                continue;
            }
            if let Some(before) = inline.replace(pending) {
                self.spawn_call(running, before);
            }
        }
        inline
    }

    fn open_call(&self, running: &Running, frame: FrameId, action: Action) -> PendingCall {
        let cancel = Arc::new(Notify::new());
        running.state.lock().open.calls.push((frame, cancel.clone()));
        PendingCall { action, frame, cancel }
    }

    pub(super) fn spawn_call(self: &Arc<Self>, running: &Arc<Running>, pending: PendingCall) {
        let (coordinator, running) = (self.clone(), running.clone());
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            if let Some(queued) = coordinator.carry_out(&running, pending).await {
                coordinator.advance(&running, queued).await;
            }
        });
        self.workers.spawn(work);
    }

    fn cancel_call(self: &Arc<Self>, running: &Running, frame: FrameId) {
        let (call, child) = {
            let mut state = running.state.lock();
            let call = state.open.calls.iter().position(|(call, _)| *call == frame);
            let child = state.open.children.iter().position(|(child, _)| *child == frame);
            (
                call.map(|at| state.open.calls.swap_remove(at).1),
                child.map(|at| state.open.children.swap_remove(at).1),
            )
        };
        if let Some(call) = call {
            call.notify_one();
        }
        if let Some(child) = child.and_then(|id| self.find(id)) {
            self.spawn_advance(child, Queued::now(Event::Cancel));
        }
    }

    /// Carries out a pending call and returns its result as an event; `None` if the call was cancelled.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        running: &Arc<Running>,
        pending: PendingCall,
    ) -> Option<Queued> {
        let PendingCall { action, frame, cancel } = pending;
        let ended = tokio::select! {
            biased;
            () = cancel.notified() => return None,
            ended = self.carried_out(running, action) => ended,
        };
        match ended {
            Ended::Task(result) => Some(Queued::now(Event::Ended { frame, result })),
            Ended::Function(attempted) => Some(self.end_function_step(running, frame, attempted).await),
        }
    }

    async fn carried_out(self: &Arc<Self>, running: &Arc<Running>, action: Action) -> Ended {
        if let Some(error) = self.missing_secret(running, &action) {
            return Ended::Task(Err(error));
        }
        let _outside = (!matches!(action, Action::Call { .. })).then(|| self.outside.begin());
        // Boxed but for calls, which are most: all would have the size of the largest.
        let result = match action {
            Action::Call { frame, node, function, body } => {
                match self.attempt_function_step(running, frame, node, &function, &body).await {
                    Ok(attempted) => return Ended::Function(attempted),
                    Err(error) => Err(error),
                }
            }
            Action::Request { node, request, output, .. } => {
                let redirect =
                    matches!(&running.workflow.program.node(node).kind, Kind::Http(http) if http.redirect);
                Box::pin(self.request_step(running, node, *request, output, redirect)).await
            }
            Action::Document { node, document, parameters, credentials, .. } => {
                let credentials = credentials.map(|credentials| *credentials);
                Box::pin(self.document_step(running, node, *document, &parameters, credentials)).await
            }
            Action::Script { node, code, input, .. } => {
                let path = &running.workflow.program.node(node).path;
                Box::pin(self.script_step(running, path, &code, &input)).await
            }
            _ => Ok(Arc::new(Value::Null)),
        };
        Ended::Task(result)
    }

    /// The error of a call whose secret is gone: a call that starts again after a restart was built without it.
    fn missing_secret(&self, running: &Running, action: &Action) -> Option<WorkflowError> {
        let (Action::Call { node, .. }
        | Action::Request { node, .. }
        | Action::Document { node, .. }
        | Action::Script { node, .. }) = action
        else {
            return None;
        };
        let workflow = &running.workflow;
        workflow.program.missing_secret(*node, &|name| self.secrets.get(&workflow.app, name).is_some())
    }

    /// The `traceparent` of what a task sends or starts.
    pub(super) fn context_of(&self, running: &Running, node: NodeId) -> Option<String> {
        running.trace_parent.as_ref()?;
        running.state.lock().spans.context(&self.traces, running, node)
    }

    /// The workflow that a task runs.
    fn child_workflow(&self, run: &RunWorkflow) -> Result<Arc<LiveWorkflow>, WorkflowError> {
        let routes = self.registry.routes();
        let found = routes.workflow_version(run).cloned();
        found.map_err(|error| {
            WorkflowError::new(ErrorKind::Configuration, error.to_string()).with_status(404)
        })
    }

    /// Runs a child workflow.
    fn run_child(
        self: &Arc<Self>,
        running: &Arc<Running>,
        (frame, node): (FrameId, NodeId),
        workflow: Arc<LiveWorkflow>,
        input: Arc<Value>,
        wait: bool,
    ) -> Result<(), WorkflowError> {
        let name = &workflow.program.name;
        if !running.workflow.may_call(name, &workflow.app) {
            let detail =
                format!("workflow `{}` may not run `{name}` of another app", running.workflow.name);
            return Err(WorkflowError::new(ErrorKind::Authorization, detail));
        }
        let id = child_id(running.id, frame);
        if let Some(child) = self.find(id) {
            // A recovered child reports its end itself, unless it failed before the restart.
            let result = child.state.lock().instance.result().cloned();
            if let Some(Err(error)) = result {
                return Err(self.masked(&child, error));
            }
            running.state.lock().open.children.push((frame, child.id));
            return Ok(());
        }
        let start = Start {
            workflow,
            input_bytes: weight(&input),
            input,
            id,
            depth: running.depth.saturating_add(1),
            trace_parent: self.context_of(running, node),
            entry: Entry::Internal,
            parent: wait.then_some((running.id, frame)),
            root: Some(running.root.clone()),
            is_recovered: false,
            memory_bytes: Some(running.memory_bytes),
            answer: None,
            kept_call: None,
            place: None,
        };
        let child = self.enter_workflow(start).map_err(|error| error_of(&error))?;
        if wait {
            running.state.lock().open.children.push((frame, id));
        }
        self.spawn_advance(child, Queued::now(Event::Start));
        Ok(())
    }
}

/// The run of a task that runs a workflow.
fn run_of(running: &Running, node: NodeId) -> Result<&RunWorkflow, WorkflowError> {
    match &running.workflow.program.node(node).kind {
        Kind::RunWorkflow(run) => Ok(run),
        _ => Err(WorkflowError::new(ErrorKind::Configuration, "the task runs no workflow")),
    }
}

/// The id of a child instance. Every run of the step gives the same id.
pub(super) fn child_id(parent: Ulid, frame: FrameId) -> Ulid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.0.to_be_bytes());
    hasher.update(&frame.to_be_bytes());
    let digest = hasher.finalize();
    let random = digest.as_bytes().iter().take(10).fold(0u128, |sum, byte| (sum << 8) | u128::from(*byte));
    Ulid::from_parts(parent.timestamp_ms(), random)
}

/// An invocation's error as an error of the workflow DSL.
pub(super) fn error_of(error: &InvocationError) -> WorkflowError {
    let (kind, status) = match error {
        InvocationError::Workflow { error, .. } => return (**error).clone(),
        InvocationError::OverBudget { .. } => return WorkflowError::over_budget(error.detail()),
        InvocationError::Run {
            error: RunError::TimedOut { .. } | RunError::CpuTimeUsed { .. }, ..
        }
        | InvocationError::QueueTimeout { .. }
        | InvocationError::ObjectsMissing { .. } => (ErrorKind::Timeout, 408),
        InvocationError::UnknownFunction { .. } | InvocationError::UnknownWorkflow { .. } => {
            (ErrorKind::Configuration, 404)
        }
        InvocationError::Run { error: RunError::Failed { .. }, .. } => (ErrorKind::Runtime, 500),
        other => (ErrorKind::Runtime, other.status()),
    };
    WorkflowError::new(kind, error.detail()).with_status(status)
}
