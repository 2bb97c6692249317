//! Functions as steps of workflows: the attempt, and the commit of its effects.
//!
//! ```text
//! attempt --> effects on objects --commit with the result in the inbox--> Event::Ended, from the inbox
//!         --> messages alone, or nothing --------------------------------> Event::Ended, stored with its turn
//! ```
//!
//! An object may refuse a change: its quota is used up, a bounded counter has too little, a field has another type. Then
//! the task fails, and a `try` of the workflow can catch the error. So the changes of a durable step are stored before
//! the instance gets the result, and the result with them: after a crash the instance gets it from its inbox, and the
//! function does not run again. The changes of other steps are stored in the same place, as those of any invocation.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::invocation::{Invocation, InvocationError, Lineage, Outcome, Principal};
use edgefaas_functions::invoker::{Attempt, Effects};
use edgefaas_functions::registry::LiveFunction;
use edgefaas_functions::trace::cut;
use edgefaas_isolates::{Event as FunctionEvent, Reply, Trigger, WorkflowStep};
use edgefaas_state::store::{CommitError, Durability};
use edgefaas_workflow::instance::{Action, FrameId};
use edgefaas_workflow::program::NodeId;
use edgefaas_workflow::{Data, ErrorKind, Event, WorkflowError};
use serde_json::Value;
use tokio::sync::Notify;

use super::actions::error_of;
use super::advance::DISK_WAIT;
use super::coordinator::Coordinator;
use super::event_queue::{Queued, StepEffects};
use super::instance::{Running, input_of};

/// A function has run as a step. Its effects are not stored yet.
pub(super) struct AttemptedStep {
    function: Arc<LiveFunction>,
    id: String,
    attempt: Attempt,
    /// The invocation of a recorded span, and the time of its start.
    traced: Option<(Invocation, u64)>,
}

/// Why the effects of a step are not stored.
enum NotStored {
    /// The task was cancelled while the disk was full.
    Cancelled,
    /// The store takes no writes any more. The instance goes on after the next start.
    Stopped(CommitError),
    /// The task fails.
    Refused(CommitError),
}

impl From<CommitError> for NotStored {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Field(_) | CommitError::KeyTooLong { .. } => Self::Refused(error),
            CommitError::DiskFull { .. } | CommitError::Failed(_) | CommitError::Closed => {
                Self::Stopped(error)
            }
        }
    }
}

impl Coordinator {
    /// Runs a function as a step. Dropping the future ends the function, and nothing of it is stored.
    pub(super) async fn attempt_function_step(
        self: &Arc<Self>,
        running: &Arc<Running>,
        frame: FrameId,
        node: NodeId,
        name: &str,
        body: &Data,
    ) -> Result<AttemptedStep, WorkflowError> {
        let routes = self.registry.routes();
        let Some(function) = routes.function(name).cloned() else {
            let near = routes.near_functions(name);
            return Err(error_of(&InvocationError::UnknownFunction { name: name.to_owned(), near }));
        };
        drop(routes);
        if !running.workflow.may_call(name, &function.app) {
            let detail =
                format!("workflow `{}` may not call `{name}` of another app", running.workflow.name);
            return Err(WorkflowError::new(ErrorKind::Authorization, detail));
        }
        let step = WorkflowStep {
            workflow: running.workflow.name.to_string(),
            instance: running.id.to_string(),
            task: running.workflow.program.node(node).path.clone(),
        };
        let body = match body {
            Data::Null => Bytes::new(),
            body => serde_json::to_vec(body).unwrap_or_default().into(),
        };
        let event = FunctionEvent { trigger: Trigger::Workflow(step), body };
        let principal = Principal::Function { name: running.workflow.name.to_string() };
        let mut invocation = Invocation {
            // Every run of the step has the same id.
            id: format!("{}.{frame}", running.id),
            function: name.to_owned(),
            principal,
            parent: None,
            trace_parent: self.context_of(running, node),
            attempt: 1,
            depth: running.depth.saturating_add(1),
            lineage: Some(Lineage::new(running.root.id(), running.root.clone())),
            placed_by: None,
            order_key: None,
            event,
        };
        let id = invocation.id.clone();
        // The start of the instance decided whether its spans are recorded.
        let mut traced =
            running.trace_parent.as_ref().and_then(|_| self.invoker.begin_trace(&mut invocation));
        if let Some((invocation, _)) = &mut traced {
            invocation.parent = Some(running.state.lock().spans.of_task(running, node));
            // The function may be of another app.
            let shown = cut(&String::from_utf8_lossy(&invocation.event.body));
            invocation.event.body = self.mask(running, shown).into();
        }
        let place = running.place_of_call();
        let admitted = self.invoker.admit_durable(function.clone(), invocation, place);
        let attempt = self.invoker.attempt(admitted.map_err(|error| error_of(&error))?).await;
        Ok(AttemptedStep { function, id, attempt, traced })
    }

    /// Stores the effects of a step, and returns its result as an event. `None` if `cancel` ends the wait for a full disk,
    /// or if the store takes no writes any more: the instance is then removed, and goes on after the next start.
    pub(super) async fn end_function_step(
        self: &Arc<Self>,
        running: &Arc<Running>,
        frame: FrameId,
        attempted: AttemptedStep,
        cancel: &Notify,
    ) -> Option<Queued> {
        let AttemptedStep { function, id, attempt: Attempt { result, timing, node }, traced } = attempted;
        let depth = running.depth.saturating_add(1);
        let (result, queued) = match result {
            Err(error) => (Err(error), None),
            Ok((reply, effects)) if running.is_durable() => {
                match value_of(&reply).map(Arc::new) {
                    // The function has run, but a workflow has no value for its reply.
                    Err(error) => {
                        (Ok(reply), Some(Queued::now(Event::Ended { frame, result: Err(error) })))
                    }
                    Ok(value) => {
                        let event = Event::Ended { frame, result: Ok(value) };
                        match self.store_effects(running, &function, event, effects, cancel).await {
                            Ok(queued) => (Ok(reply), Some(queued)),
                            Err(NotStored::Refused(error)) => {
                                let function = function.name.to_string();
                                (Err(InvocationError::Commit { function, error }), None)
                            }
                            Err(NotStored::Cancelled) => return None,
                            Err(NotStored::Stopped(error)) => {
                                tracing::error!(workflow = %running.workflow.name, instance = %running.id, %error, "an instance stops: the effects of its step could not be stored");
                                self.forget(running);
                                return None;
                            }
                        }
                    }
                }
            }
            Ok((reply, effects)) => {
                let committed = self.invoker.commit(&function, effects, depth).await;
                (committed.map(|()| reply), None)
            }
        };
        let result = result.map_err(|error| self.invoker.mask(&function, error));
        let outcome = self.invoker.ended(&function, Outcome { id, result, timing, node });
        self.invoker.end_trace(traced, &function, &outcome, Duration::ZERO);
        if queued.is_some() {
            return queued;
        }
        let result = match &outcome.result {
            Ok(reply) => value_of(reply).map(Arc::new),
            Err(error) => Err(error_of(error)),
        };
        Some(Queued::now(Event::Ended { frame, result }))
    }

    /// Stores changes of objects together with `event`, the result of their step. Messages alone wait for the turn of
    /// the event. While the disk is full, retries every [`DISK_WAIT`] until `cancel`.
    async fn store_effects(
        self: &Arc<Self>,
        running: &Running,
        function: &LiveFunction,
        event: Event,
        effects: Effects,
        cancel: &Notify,
    ) -> Result<Queued, NotStored> {
        let (mut batch, messages, taken) = effects.into_parts();
        let source = function.name.clone();
        if batch.is_empty() {
            let effects = StepEffects::Messages { source, messages, _taken: taken };
            return Ok(Queued { effects: Some(effects), ..Queued::now(event) });
        }
        let depth = running.depth.saturating_add(1);
        let outgoing = self.publisher.put_messages(&mut batch, &source, depth, &messages);
        let (number, key, entry) = self.inbox_entry(running, &event);
        batch.put(&self.store.spaces().invocations, key, entry);
        batch.charge(taken);
        loop {
            // The commit of the turn is behind this one, so it is at least as durable as that one.
            match self.store.committer().commit(batch.clone(), Durability::Written).await {
                Ok(()) => break,
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => tokio::select! {
                    () = cancel.notified() => return Err(NotStored::Cancelled),
                    () = tokio::time::sleep(DISK_WAIT) => {}
                },
                Err(error) => return Err(error.into()),
            }
        }
        let effects = Some(StepEffects::Stored { outgoing });
        Ok(Queued { effects, ..Queued::from_inbox(event, number) })
    }
}

/// The frames whose results wait in an inbox. Their calls have been made.
pub(super) fn frames_with_results(queued: &[Queued]) -> HashSet<FrameId> {
    let frame = |queued: &Queued| match queued.event {
        Event::Ended { frame, .. } => Some(frame),
        _ => None,
    };
    queued.iter().filter_map(frame).collect()
}

/// The frame of a call of a function.
pub(super) fn frame_of_call(action: &Action) -> Option<FrameId> {
    match action {
        Action::Call { frame, .. } => Some(*frame),
        _ => None,
    }
}

/// A function's reply as a value of the workflow.
fn value_of(reply: &Reply) -> Result<Value, WorkflowError> {
    match reply {
        Reply::None => Ok(Value::Null),
        Reply::Json(text) => Ok(serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))),
        Reply::Text(text) => Ok(Value::String(text.clone())),
        Reply::Bytes(bytes) => Ok(input_of(bytes)),
        Reply::Http(response) if response.status >= 400 => {
            let excerpt: String = String::from_utf8_lossy(&response.body).chars().take(200).collect();
            let detail = format!("the function answered {}: {excerpt}", response.status);
            Err(WorkflowError::new(ErrorKind::Runtime, detail).with_status(response.status))
        }
        Reply::Http(response) => Ok(input_of(&response.body)),
    }
}
