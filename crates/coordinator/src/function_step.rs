//! Functions as steps of workflows: the attempt, and the commit of its effects.
//!
//! ```text
//! attempt --> Event::Ended in the queue of the instance --> its turn
//!               the task has ended without it: nothing is stored
//!               changes of objects: stored with the result in the inbox; a refusal is the error of the task
//!               messages alone, or nothing: stored with the turn
//! ```
//!
//! An object may refuse a change: its quota is used up, a bounded counter has too little, a field has another type. Then
//! the task fails, and a `try` of the workflow can catch the error. So the changes of a durable step are stored before
//! its turn, and the result with them: after a crash the instance gets it from its inbox, and the function does not run
//! again. They are stored when all earlier events had their turns, so that a task that has timed out or was cancelled
//! changes nothing. The changes of a step that is not durable are stored as those of any invocation.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::invocation::{Invocation, InvocationError, Lineage, Outcome, Principal};
use edgefaas_functions::invoker::{Attempt, Effects};
use edgefaas_functions::publisher::Outgoing;
use edgefaas_functions::registry::LiveFunction;
use edgefaas_functions::trace::cut;
use edgefaas_isolates::{Event as FunctionEvent, Reply, Trigger, WorkflowStep};
use edgefaas_state::store::{Batch, CommitError, Durability};
use edgefaas_workflow::instance::{Action, FrameId};
use edgefaas_workflow::program::NodeId;
use edgefaas_workflow::{Data, ErrorKind, Event, WorkflowError};
use serde_json::Value;

use super::actions::error_of;
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

/// A durable step that waits to be stored, with its changes of objects.
pub(crate) struct UnstoredStep {
    function: Arc<LiveFunction>,
    outcome: Outcome,
    traced: Option<(Invocation, u64)>,
    /// With the messages, and with the result in the inbox.
    batch: Batch,
    /// The number of the result in the inbox.
    number: u32,
    outgoing: Vec<(u64, Outgoing)>,
}

/// An event whose effects are settled as far as they are stored before its turn.
pub(super) enum Settled {
    /// Its turn may begin. The messages are stored with it, or before it; they are sent after it.
    Turn(Queued, Vec<(u64, Outgoing)>),
    /// The task has ended without it.
    Unwanted,
    /// The disk is full.
    Waits(Queued),
    /// The store takes no writes any more. The instance goes on after the next start.
    Stopped(CommitError),
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

    /// The result of a step as an event. Stores the effects of a step that is not durable.
    pub(super) async fn end_function_step(
        self: &Arc<Self>,
        running: &Arc<Running>,
        frame: FrameId,
        attempted: AttemptedStep,
    ) -> Queued {
        let AttemptedStep { function, id, attempt: Attempt { result, timing, node }, traced } = attempted;
        let depth = running.depth.saturating_add(1);
        let (result, effects) = match result {
            Err(error) => (Err(error), None),
            Ok((reply, effects)) if running.is_durable() => (Ok(reply), Some(effects)),
            Ok((reply, effects)) => {
                let committed = self.invoker.commit(&function, effects, depth).await;
                (committed.map(|()| reply), None)
            }
        };
        let result = result.map_err(|error| self.invoker.mask(&function, error));
        let value = match &result {
            Ok(reply) => value_of(reply).map(Arc::new),
            Err(error) => Err(error_of(error)),
        };
        // Nothing of a reply is stored that the workflow cannot use.
        let effects = effects.filter(|_| value.is_ok());
        let event = Event::Ended { frame, result: value };
        let outcome = Outcome { id, result, timing, node };
        let Some((mut batch, messages, taken)) = effects.map(Effects::into_parts) else {
            self.count_step(&function, outcome, traced);
            return Queued::now(event);
        };
        let source = function.name.clone();
        if batch.is_empty() {
            self.count_step(&function, outcome, traced);
            let effects = StepEffects::Messages { source, messages, _taken: taken };
            return Queued { effects: Some(effects), ..Queued::now(event) };
        }
        let outgoing = self.publisher.put_messages(&mut batch, &source, depth, &messages);
        let (number, key, entry) = self.inbox_entry(running, &event);
        batch.put(&self.store.spaces().invocations, key, entry);
        batch.charge(taken);
        let step = UnstoredStep { function, outcome, traced, batch, number, outgoing };
        Queued { effects: Some(StepEffects::Changes(Box::new(step))), ..Queued::now(event) }
    }

    fn count_step(&self, function: &LiveFunction, outcome: Outcome, traced: Option<(Invocation, u64)>) {
        let outcome = self.invoker.ended(function, outcome);
        self.invoker.end_trace(traced, function, &outcome, Duration::ZERO);
    }

    /// Settles the effects of an event that is about to have its turn. Messages are added to the batch of the turn; changes of
    /// objects are stored now, together with the event.
    pub(super) async fn settle_effects(
        &self,
        running: &Running,
        mut queued: Queued,
        turn: &mut Batch,
    ) -> Settled {
        let Some(effects) = queued.effects.take() else { return Settled::Turn(queued, Vec::new()) };
        let is_wanted = match queued.event {
            Event::Ended { frame, .. } => running.state.lock().instance.waits_for_call(frame),
            _ => true,
        };
        let mut step = match effects {
            StepEffects::Messages { source, messages, .. } => {
                if !is_wanted {
                    return Settled::Unwanted;
                }
                let depth = running.depth.saturating_add(1);
                let outgoing = self.publisher.put_messages(turn, &source, depth, &messages);
                return Settled::Turn(queued, outgoing);
            }
            StepEffects::Changes(step) => step,
        };
        if !is_wanted {
            let UnstoredStep { function, outcome, traced, .. } = *step;
            self.count_step(&function, outcome, traced);
            return Settled::Unwanted;
        }
        // The commit of the turn is behind this one, so it is at least as durable as that one.
        let error = match self.store.committer().commit(step.batch.clone(), Durability::Written).await {
            Ok(()) => {
                let UnstoredStep { function, outcome, traced, outgoing, number, .. } = *step;
                self.count_step(&function, outcome, traced);
                return Settled::Turn(Queued { inbox: Some((number, None)), ..queued }, outgoing);
            }
            Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                queued.effects = Some(StepEffects::Changes(step));
                return Settled::Waits(queued);
            }
            Err(error @ (CommitError::Field(_) | CommitError::KeyTooLong { .. })) => error,
            Err(error) => return Settled::Stopped(error),
        };
        let error = InvocationError::Commit { function: step.function.name.to_string(), error };
        let error = self.invoker.mask(&step.function, error);
        if let Event::Ended { result, .. } = &mut queued.event {
            *result = Err(error_of(&error));
        }
        step.outcome.result = Err(error);
        let UnstoredStep { function, outcome, traced, .. } = *step;
        self.count_step(&function, outcome, traced);
        Settled::Turn(queued, Vec::new())
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
