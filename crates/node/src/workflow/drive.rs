//! Doing what instances ask for, and telling them what came of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use edgefaas_broker::{Message, Ticket};
use edgefaas_isolates::{Event as FunctionEvent, Reply, RunError, Trigger, WorkflowStep};
use edgefaas_workflow::instance::{Action, FrameId, Instance, Outgoing};
use edgefaas_workflow::program::{Kind, NodeId};
use edgefaas_workflow::{Environment, ErrorKind, Event, Status, WorkflowError};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use ulid::Ulid;

use super::interests::{Interest, Waiter};
use super::{INSTANCE_BYTES, RunState, Running, Start, messages};
use crate::dispatch::{Dispatcher, Effects};
use crate::invocation::{Invocation, InvocationError, MAX_DEPTH, Outcome, Principal};
use crate::store::{Batch, CommitError};
use crate::trace::new_trace_parent;

/// How long a full disk is waited for.
const DISK_WAIT: std::time::Duration = std::time::Duration::from_millis(200);

/// Instances that failed and are kept to be retried.
const MAX_FAULTED: usize = 1000;

/// The output of a workflow, or its error.
pub(crate) type Ended = Result<Arc<Value>, WorkflowError>;

/// An event on its way to an instance, with what is to be committed with it.
pub(crate) struct Queued {
    pub event: Event,
    effects: Option<StepEffects>,
    /// It is in the journal's inbox already, from this moment on.
    pub inbox: Option<(u32, Option<Ticket>)>,
}

/// What a function has changed and published.
struct StepEffects {
    batch: Batch,
    source: Arc<str>,
    messages: Vec<Message>,
}

impl Queued {
    /// An event that nothing comes with.
    pub fn now(event: Event) -> Self {
        Self { event, effects: None, inbox: None }
    }

    /// An event that is in the journal's inbox since before the start.
    pub fn from_inbox(event: Event, number: u32) -> Self {
        Self { event, effects: None, inbox: Some((number, None)) }
    }

    /// An event that is on the disk, or will be at `ticket`.
    pub fn recorded(event: Event, number: u32, ticket: Ticket) -> Self {
        Self { event, effects: None, inbox: Some((number, Some(ticket))) }
    }
}

/// Something that an instance waits for.
pub(super) struct Asked {
    action: Action,
    frame: FrameId,
    cancel: Arc<Notify>,
}

impl Running {
    /// The timers have let go of it.
    pub(super) fn timer_fired(&self) {
        self.state.lock().due_ms = None;
    }

    pub(super) fn is_durable(&self) -> bool {
        self.workflow.program.durable
    }
}

impl Dispatcher {
    /// Gives an instance its place. It begins with [`Event::Start`].
    ///
    /// # Errors
    /// There is no room for it, or workflows start one another without end.
    pub(crate) fn enter_workflow(
        self: &Arc<Self>,
        start: Start,
    ) -> Result<(Arc<Running>, oneshot::Receiver<Ended>), InvocationError> {
        let coordinator = self.coordinator();
        let workflow = start.workflow.clone();
        let name = || workflow.name.to_string();
        if self.is_draining() && start.depth == 0 {
            return Err(InvocationError::Draining);
        }
        if start.depth > MAX_DEPTH {
            return Err(InvocationError::TooDeep { function: name(), depth: start.depth });
        }
        let limits = coordinator.limits;
        let full =
            |capacity: usize| InvocationError::QueueFull { function: name(), capacity: capacity as u32 };
        // What runs already may start others: it is to finish.
        if start.depth == 0 && coordinator.running.load(Relaxed) >= limits.running {
            return Err(full(limits.running));
        }
        let bytes = coordinator.bytes.take(INSTANCE_BYTES.saturating_add(start.input_bytes));
        let bytes = bytes.ok_or(InvocationError::NoMemory { max_bytes: coordinator.bytes.most() })?;
        let mut start = start;
        if start.trace_parent.is_none()
            && start.parent.is_none()
            && self.traces().sample(coordinator.clock.now_unix_ms())
        {
            start.trace_parent = Some(new_trace_parent());
        }
        let (waiter, result) = oneshot::channel();
        let unix_ms = coordinator.clock.now_unix_ms();
        let instance = Instance::new(start.id.to_string().into(), start.input, start.id.0 as u64, unix_ms);
        let most = start.workflow.program.max_instances;
        let mut instances = coordinator.instances.lock();
        if instances.len() >= limits.instances {
            return Err(full(limits.instances));
        }
        if let Some(most) = most {
            let same = start.workflow.figures.live.load(Relaxed);
            if same >= most {
                return Err(full(most as usize));
            }
        }
        start.workflow.figures.live.fetch_add(1, Relaxed);
        start.workflow.figures.started.fetch_add(1, Relaxed);
        coordinator.figures.started.fetch_add(1, Relaxed);
        let running = Arc::new(Running {
            id: start.id,
            workflow: start.workflow,
            depth: start.depth,
            trace_parent: start.trace_parent,
            parent: start.parent,
            answer: start.answer,
            input_bytes: start.input_bytes,
            state: parking_lot::Mutex::new(RunState::new(instance, Some(waiter))),
            _bytes: bytes,
        });
        instances.insert(running.id, running.clone());
        Ok((running, result))
    }

    /// Runs a workflow from its start to its end, as a function is run. If the future is dropped it goes on all the same.
    pub(crate) async fn run_workflow(self: &Arc<Self>, start: Start) -> Outcome {
        let (id, since) = (start.id.to_string(), Instant::now());
        let workflow = start.workflow.clone();
        let result = match self.enter_workflow(start) {
            Err(error) => {
                workflow.figures.rejected.fetch_add(1, Relaxed);
                self.coordinator().figures.rejected.fetch_add(1, Relaxed);
                Err(error)
            }
            Ok((running, result)) => {
                self.spawn_drive(running, Queued::now(Event::Start));
                match result.await {
                    Ok(Ok(output)) => Ok(Reply::Json(output.to_string())),
                    Ok(Err(error)) => Err(InvocationError::Workflow {
                        workflow: workflow.name.to_string(),
                        error: Box::new(error),
                    }),
                    Err(_) => Err(InvocationError::Draining),
                }
            }
        };
        let timing = crate::invocation::Timing { execution: since.elapsed(), ..Default::default() };
        Outcome { id, result, timing }
    }

    /// Tells an instance of an event, on a task of its own.
    pub(crate) fn spawn_drive(self: &Arc<Self>, running: Arc<Running>, queued: Queued) {
        let dispatcher = self.clone();
        let drive: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { dispatcher.drive(&running, queued).await });
        self.coordinator().workers.spawn(drive);
    }

    /// Tells an instance of events in the order of these calls.
    pub(crate) fn tell_in_order(self: &Arc<Self>, running: &Arc<Running>, queued: Queued) {
        {
            let mut state = running.state.lock();
            state.arrivals.push(queued);
            if std::mem::replace(&mut state.draining, true) {
                return;
            }
        }
        let (dispatcher, running) = (self.clone(), running.clone());
        let drain: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { dispatcher.tell_arrivals(&running).await });
        self.coordinator().workers.spawn(drain);
    }

    async fn tell_arrivals(self: &Arc<Self>, running: &Arc<Running>) {
        loop {
            let arrivals = {
                let mut state = running.state.lock();
                if state.arrivals.is_empty() {
                    state.draining = false;
                    return;
                }
                std::mem::take(&mut state.arrivals)
            };
            // What they make it do is not to hold up those behind them.
            if running.is_durable() {
                if let Some(asked) = self.step_durable(running, arrivals).await {
                    self.spawn_asked(running, asked);
                }
                continue;
            }
            for queued in arrivals {
                if let Some(asked) = self.step(running, queued) {
                    self.spawn_asked(running, asked);
                }
            }
        }
    }

    /// Tells an instance of an event, and goes on with it as far as this task can.
    pub(crate) async fn drive(self: &Arc<Self>, running: &Arc<Running>, queued: Queued) {
        let mut next = Some(queued);
        while let Some(queued) = next {
            let asked = match running.is_durable() {
                true => self.step_durable(running, [queued]).await,
                false => self.step(running, queued),
            };
            next = match asked {
                Some(asked) => self.carry_out(running, asked).await,
                None => None,
            };
        }
    }

    fn step(self: &Arc<Self>, running: &Arc<Running>, queued: Queued) -> Option<Asked> {
        let actions = self.advance(running, &mut running.state.lock(), queued.event, None);
        let asked = self.perform(running, actions, true);
        self.ended_if(running);
        asked
    }

    /// Advances an instance, its lock held; at the times that its journal has, where it has one.
    fn advance(
        &self,
        running: &Running,
        state: &mut RunState,
        event: Event,
        times_ms: Option<(u64, u64)>,
    ) -> Vec<Action> {
        let coordinator = self.coordinator();
        if let Event::Ended { frame, .. } = &event {
            state.calls.retain(|(call, _)| call != frame);
            state.children.retain(|(child, _)| child != frame);
        }
        let program = &running.workflow.program;
        let secrets = self.secrets_of(program);
        let (now_ms, unix_ms) =
            times_ms.unwrap_or_else(|| (coordinator.time.now_ms(), coordinator.clock.now_unix_ms()));
        let environment = Environment {
            now_ms,
            unix_ms,
            secrets: &secrets,
            runtime: &coordinator.runtime,
            observed: running.trace_parent.is_some() || self.lifecycle_is_wanted(&running.workflow.name),
        };
        let actions = state.instance.advance(program, event, &environment);
        self.settle(running, state);
        actions
    }

    /// Timers and counts after something has happened.
    pub(super) fn settle(&self, running: &Running, state: &mut RunState) {
        let coordinator = self.coordinator();
        let due_ms = state.instance.due_ms();
        coordinator.timers.set(running.id, state.due_ms, due_ms);
        state.due_ms = due_ms;
        let runs = state.instance.status() == Status::Running;
        if runs != state.counted {
            state.counted = runs;
            match runs {
                true => drop(coordinator.running.fetch_add(1, Relaxed)),
                false => {
                    coordinator.running.fetch_sub(1, Relaxed);
                    coordinator.room.notify_one();
                }
            }
        }
    }

    pub(super) fn secrets_of(&self, program: &edgefaas_workflow::Program) -> Value {
        if program.secrets.is_empty() {
            return Value::Object(serde_json::Map::new());
        }
        let value = |name: &String| Some((name.clone(), Value::String(self.secrets().get(name)?)));
        Value::Object(program.secrets.iter().filter_map(value).collect())
    }

    /// Advances a durable instance: what happened, what functions changed and what is to be sent are one batch, before
    /// anything else begins. Events that come meanwhile go with the next batch.
    async fn step_durable(
        self: &Arc<Self>,
        running: &Arc<Running>,
        queued: impl IntoIterator<Item = Queued>,
    ) -> Option<Asked> {
        {
            let mut state = running.state.lock();
            state.queue.extend(queued);
            if std::mem::replace(&mut state.busy, true) {
                return None;
            }
        }
        let mut inline: Option<Asked> = None;
        loop {
            let taken = {
                let mut state = running.state.lock();
                if state.queue.is_empty() {
                    state.busy = false;
                    break;
                }
                std::mem::take(&mut state.queue)
            };
            let mut queued = Vec::with_capacity(taken.len());
            for item in taken {
                match &item.inbox {
                    Some((_, Some(ticket))) if self.broker().durable(*ticket).await.is_err() => {
                        // It was never accepted, and whoever sent it has been told so.
                        if matches!(item.event, Event::Start) {
                            self.forget(running);
                            return None;
                        }
                    }
                    _ => queued.push(item),
                }
            }
            if queued.is_empty() {
                continue;
            }
            let mut batch = Batch::default();
            let mut outgoing = Vec::new();
            let actions = {
                let mut state = running.state.lock();
                let mut actions = Vec::new();
                for Queued { event, effects, inbox } in queued {
                    let times_ms = self.log_event(
                        running,
                        &mut state,
                        &event,
                        inbox.map(|(number, _)| number),
                        &mut batch,
                    );
                    if let Some(StepEffects { batch: changes, source, messages }) = effects {
                        batch.append(changes);
                        outgoing.extend(self.put_outgoing(
                            &mut batch,
                            &source,
                            running.depth + 1,
                            &messages,
                        ));
                    }
                    actions.extend(self.advance(running, &mut state, event, Some(times_ms)));
                }
                let published: Vec<Message> = self.messages_of(running, &mut actions);
                outgoing.extend(self.put_outgoing(
                    &mut batch,
                    &running.workflow.name,
                    running.depth + 1,
                    &published,
                ));
                self.log_state(running, &mut state, &mut batch);
                actions
            };
            if let Err(error) = self.commit_step(batch).await {
                // On the disk it is where it was, and goes on from there at the next start.
                tracing::error!(workflow = %running.workflow.name, instance = %running.id, %error, "an instance stops");
                self.forget(running);
                return None;
            }
            self.send_outgoing(outgoing);
            if let Some(asked) = self.perform(running, actions, false)
                && let Some(before) = inline.replace(asked)
            {
                self.spawn_asked(running, before);
            }
            self.ended_if(running);
        }
        inline
    }

    /// Commits what a step came to, once there is room for it.
    async fn commit_step(&self, batch: Batch) -> Result<(), CommitError> {
        loop {
            match self.store().committer().commit(batch.clone(), self.coordinator().durability).await {
                Err(CommitError::DiskFull { .. }) if !self.is_draining() => {
                    tokio::time::sleep(DISK_WAIT).await
                }
                committed => return committed,
            }
        }
    }

    /// Takes the messages out of what is to be done.
    fn messages_of(&self, running: &Running, actions: &mut Vec<Action>) -> Vec<Message> {
        let mut messages = Vec::new();
        actions.retain(|action| match action {
            Action::Publish(outgoing) => {
                messages.extend(self.message_of(running, outgoing));
                false
            }
            _ => true,
        });
        messages
    }

    fn message_of(&self, running: &Running, outgoing: &Outgoing) -> Option<Message> {
        match messages::of(outgoing, &running.workflow.permissions, self.max_message_bytes()) {
            Ok(message) => Some(message),
            Err(reason) => {
                let path = &running.workflow.program.node(outgoing.node).path;
                let text = format!("{path}: {reason}");
                let (name, id) = (&running.workflow.name, running.id.to_string());
                self.logs().add(name, &id, edgefaas_isolates::LogLevel::Error, text);
                None
            }
        }
    }

    /// Begins what is to be done. One thing that is waited for is handed back, to be done by the task that is here.
    pub(super) fn perform(
        self: &Arc<Self>,
        running: &Arc<Running>,
        actions: Vec<Action>,
        publish: bool,
    ) -> Option<Asked> {
        let coordinator = self.coordinator();
        let mut inline: Option<Asked> = None;
        for action in actions {
            let asked = match action {
                Action::Publish(outgoing) => {
                    if publish && let Some(message) = self.message_of(running, &outgoing) {
                        self.publish(&running.workflow.name, running.depth.saturating_add(1), message);
                    }
                    continue;
                }
                Action::Listen { frame, filters, queue } => {
                    running.state.lock().listens.push(frame);
                    let mut interests = coordinator.interests.write();
                    for (source, filter) in filters.into_iter().enumerate() {
                        let waiter = Waiter::Instance(running.id, frame);
                        interests.add(Interest { waiter, source: source as u32, filter: Arc::new(filter) });
                    }
                    drop(interests);
                    if let Some(queue) = queue {
                        coordinator.watch_queue(running.id, frame, queue);
                    }
                    coordinator.interested.store(true, Relaxed);
                    // It may have ended on another thread meanwhile.
                    if coordinator.find(running.id).is_none() {
                        coordinator.unlisten(running.id, frame);
                    }
                    continue;
                }
                Action::Unlisten { frame } => {
                    running.state.lock().listens.retain(|listen| *listen != frame);
                    coordinator.unlisten(running.id, frame);
                    continue;
                }
                Action::Cancel { frame } => {
                    self.call_off(running, frame);
                    continue;
                }
                Action::Note(note) => {
                    self.note(running, &note);
                    continue;
                }
                Action::Continue => {
                    self.spawn_drive(running.clone(), Queued::now(Event::Continue));
                    continue;
                }
                Action::Workflow { wait: false, name, input, frame, .. } => {
                    if let Err(error) = self.run_child(running, frame, &name, input, false) {
                        let (workflow, id) = (&running.workflow.name, running.id.to_string());
                        let text = format!("`{name}` is not run: {error}");
                        self.logs().add(workflow, &id, edgefaas_isolates::LogLevel::Error, text);
                    }
                    continue;
                }
                Action::Workflow { wait: true, name, input, frame, .. } => {
                    if let Err(error) = self.run_child(running, frame, &name, input, true) {
                        let event = Event::Ended { frame, result: Err(error) };
                        self.spawn_drive(running.clone(), Queued::now(event));
                    }
                    continue;
                }
                Action::Call { frame, ref function, ref body, .. } => {
                    let routes = self.registry().routes();
                    // A composition is a function: it is called like one.
                    if routes.function(function).is_none() && routes.workflow(function).is_some() {
                        if let Err(error) = self.run_child(running, frame, function, body.clone(), true) {
                            let event = Event::Ended { frame, result: Err(error) };
                            self.spawn_drive(running.clone(), Queued::now(event));
                        }
                        continue;
                    }
                    drop(routes);
                    self.asked(running, frame, action)
                }
                Action::Request { frame, .. } => self.asked(running, frame, action),
                Action::Script { frame, wait, .. } => {
                    let asked = self.asked(running, frame, action);
                    if !wait {
                        self.spawn_asked(running, asked);
                        continue;
                    }
                    asked
                }
            };
            // What is on the disk goes on after the next start.
            if self.is_draining() && running.is_durable() {
                continue;
            }
            if let Some(before) = inline.replace(asked) {
                self.spawn_asked(running, before);
            }
        }
        inline
    }

    fn asked(&self, running: &Running, frame: FrameId, action: Action) -> Asked {
        let cancel = Arc::new(Notify::new());
        running.state.lock().calls.push((frame, cancel.clone()));
        Asked { action, frame, cancel }
    }

    pub(super) fn spawn_asked(self: &Arc<Self>, running: &Arc<Running>, asked: Asked) {
        let (dispatcher, running) = (self.clone(), running.clone());
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            if let Some(queued) = dispatcher.carry_out(&running, asked).await {
                dispatcher.drive(&running, queued).await;
            }
        });
        self.coordinator().workers.spawn(work);
    }

    fn call_off(self: &Arc<Self>, running: &Running, frame: FrameId) {
        let (call, child) = {
            let mut state = running.state.lock();
            let call = state.calls.iter().position(|(call, _)| *call == frame);
            let child = state.children.iter().position(|(child, _)| *child == frame);
            (call.map(|at| state.calls.swap_remove(at).1), child.map(|at| state.children.swap_remove(at).1))
        };
        if let Some(call) = call {
            call.notify_one();
        }
        if let Some(child) = child.and_then(|id| self.coordinator().find(id)) {
            self.spawn_drive(child, Queued::now(Event::Cancel));
        }
    }

    /// Does one thing and gives what came of it; nothing if it was called off.
    async fn carry_out(self: &Arc<Self>, running: &Arc<Running>, asked: Asked) -> Option<Queued> {
        let Asked { action, frame, cancel } = asked;
        tokio::select! {
            biased;
            () = cancel.notified() => None,
            (result, effects) = self.outcome_of(running, action) => {
                Some(Queued { event: Event::Ended { frame, result }, effects, inbox: None })
            }
        }
    }

    async fn outcome_of(
        self: &Arc<Self>,
        running: &Arc<Running>,
        action: Action,
    ) -> (Ended, Option<StepEffects>) {
        match action {
            Action::Call { frame, node, function, body } => {
                self.call_step(running, frame, node, &function, &body).await
            }
            Action::Request { node, request, output, .. } => {
                let redirect =
                    matches!(&running.workflow.program.node(node).kind, Kind::Http(http) if http.redirect);
                (self.request_step(running, *request, output, redirect).await, None)
            }
            Action::Script { node, code, input, .. } => {
                let path = &running.workflow.program.node(node).path;
                (self.script_step(running, path, &code, &input).await, None)
            }
            _ => (Ok(Arc::new(Value::Null)), None),
        }
    }

    /// Runs a function as a step.
    async fn call_step(
        self: &Arc<Self>,
        running: &Arc<Running>,
        frame: FrameId,
        node: NodeId,
        name: &str,
        body: &Value,
    ) -> (Ended, Option<StepEffects>) {
        let routes = self.registry().routes();
        let Some(function) = routes.function(name).cloned() else {
            let near = routes.near_functions(name);
            let error = InvocationError::UnknownFunction { name: name.to_owned(), near };
            return (Err(error_of(&error)), None);
        };
        drop(routes);
        if !running.workflow.may_call(name, &function.app) {
            let detail =
                format!("workflow `{}` may not call `{name}` of another app", running.workflow.name);
            return (Err(WorkflowError::new(ErrorKind::Authorization, detail)), None);
        }
        let step = WorkflowStep {
            workflow: running.workflow.name.to_string(),
            instance: running.id.to_string(),
            task: running.workflow.program.node(node).path.clone(),
        };
        let body = match body {
            Value::Null => Bytes::new(),
            body => serde_json::to_vec(body).unwrap_or_default().into(),
        };
        let event = FunctionEvent { trigger: Trigger::Workflow(step), body };
        let principal = Principal::Function { name: running.workflow.name.to_string() };
        let invocation = Invocation {
            // The same however often the step is run.
            id: format!("{}.{frame}", running.id),
            function: name.to_owned(),
            principal,
            parent: None,
            trace_parent: running.trace_parent.clone(),
            attempt: 1,
            depth: running.depth.saturating_add(1),
            event,
        };
        let id = invocation.id.clone();
        let mut invocation = invocation;
        // Whether the instance is recorded has been decided at its start.
        let mut traced = running.trace_parent.as_ref().and_then(|_| self.begin_trace(&mut invocation));
        if let Some((invocation, _)) = &mut traced {
            invocation.parent = running.state.lock().spans.of_task(node);
        }
        let admitted = match self.admit_durable(function.clone(), invocation) {
            Ok(admitted) => admitted,
            Err(error) => return (Err(error_of(&error)), None),
        };
        let (result, timing) = self.attempt(admitted).await;
        let (result, effects) = match result {
            Ok((reply, effects)) if running.is_durable() => (Ok(reply), Some(effects)),
            Ok((reply, effects)) => (
                self.commit(&function, effects, running.depth.saturating_add(1)).await.map(|()| reply),
                None,
            ),
            Err(error) => (Err(error), None),
        };
        let result = result.map_err(|error| self.mask(&function, error));
        let outcome = self.ended(&function, Outcome { id, result, timing });
        self.end_trace(traced, &function, &outcome, std::time::Duration::ZERO);
        let effects = effects.map(|effects: Effects| {
            let (batch, messages) = effects.into_parts();
            StepEffects { batch, source: function.name.clone(), messages }
        });
        match outcome.result {
            Ok(reply) => match value_of(reply) {
                Ok(value) => (Ok(Arc::new(value)), effects),
                Err(error) => (Err(error), None),
            },
            Err(error) => (Err(error_of(&error)), None),
        }
    }

    /// Runs a workflow for another one.
    fn run_child(
        self: &Arc<Self>,
        running: &Arc<Running>,
        frame: FrameId,
        name: &str,
        input: Arc<Value>,
        wait: bool,
    ) -> Result<(), WorkflowError> {
        let routes = self.registry().routes();
        let Some(workflow) = routes.workflow(name).cloned() else {
            let detail = format!("there is no workflow `{name}`");
            return Err(WorkflowError::new(ErrorKind::Configuration, detail).with_status(404));
        };
        drop(routes);
        if !running.workflow.may_call(name, &workflow.app) {
            let detail =
                format!("workflow `{}` may not run `{name}` of another app", running.workflow.name);
            return Err(WorkflowError::new(ErrorKind::Authorization, detail));
        }
        let id = child_id(running.id, frame);
        if let Some(child) = self.coordinator().find(id) {
            // It was brought back from the disk, and tells of its end itself, unless it had failed before.
            if let Some(Err(error)) = child.state.lock().instance.result() {
                return Err(error.clone());
            }
            running.state.lock().children.push((frame, child.id));
            return Ok(());
        }
        let start = Start {
            workflow,
            input_bytes: 0,
            input,
            id,
            depth: running.depth.saturating_add(1),
            trace_parent: running.trace_parent.clone(),
            parent: wait.then_some((running.id, frame)),
            answer: None,
        };
        let (child, _) = self.enter_workflow(start).map_err(|error| error_of(&error))?;
        if wait {
            running.state.lock().children.push((frame, id));
        }
        self.spawn_drive(child, Queued::now(Event::Start));
        Ok(())
    }

    /// Tells whoever waits that an instance has ended, if it has.
    pub(super) fn ended_if(self: &Arc<Self>, running: &Arc<Running>) {
        let coordinator = self.coordinator();
        let (status, result, waiter, since, steps) = {
            let mut state = running.state.lock();
            let status = state.instance.status();
            if !status.is_ended() || std::mem::replace(&mut state.told, true) {
                return;
            }
            let cancelled =
                || WorkflowError::new(ErrorKind::Runtime, "the instance was cancelled").with_status(499);
            let result = state.instance.result().cloned().unwrap_or_else(|| Err(cancelled()));
            (status, result, state.waiter.take(), state.started, state.instance.steps())
        };
        let figures = &running.workflow.figures;
        let (own, all) = match status {
            Status::Completed => (&figures.completed, &coordinator.figures.completed),
            Status::Cancelled => (&figures.cancelled, &coordinator.figures.cancelled),
            _ => (&figures.faulted, &coordinator.figures.faulted),
        };
        own.fetch_add(1, Relaxed);
        all.fetch_add(1, Relaxed);
        figures.duration_us.fetch_add(since.elapsed().as_micros() as u64, Relaxed);
        // One that failed and can be retried stays; what was no input for it will be none later.
        let stays = status == Status::Faulted && running.is_durable();
        if stays && steps > 0 {
            self.keep_faulted(running);
        } else if stays {
            self.spawn_drop(running.clone());
        } else {
            self.forget(running);
        }
        // Of many at a time nobody asks for each.
        if running.is_durable() || result.is_err() || running.trace_parent.is_some() {
            let secrets = &running.workflow.program.secrets;
            coordinator.ended.lock().add(running, &result, |text| self.secrets().mask(secrets, text));
        }
        if let Err(error) = &result
            && status == Status::Faulted
        {
            let (name, id) = (&running.workflow.name, running.id.to_string());
            let text = self.secrets().mask(&running.workflow.program.secrets, error.to_string());
            self.logs().add(name, &id, edgefaas_isolates::LogLevel::Error, text);
        }
        let told = waiter.is_some_and(|waiter| waiter.send(result.clone()).is_ok());
        self.answer_workflow(running, &result, told);
        if let Some((parent, frame)) = running.parent
            && let Some(parent) = coordinator.find(parent)
        {
            self.spawn_drive(parent, Queued::now(Event::Ended { frame, result }));
        }
        coordinator.after_end(&running.workflow.name);
    }

    /// Keeps an instance that failed, in place of the one that failed first of too many.
    fn keep_faulted(self: &Arc<Self>, running: &Running) {
        let coordinator = self.coordinator();
        let mut faulted = coordinator.faulted.lock();
        faulted.push_back(running.id);
        if faulted.len() <= MAX_FAULTED {
            return;
        }
        let oldest = faulted.pop_front().and_then(|id| coordinator.find(id));
        drop(faulted);
        // It may have been retried meanwhile.
        if let Some(oldest) =
            oldest.filter(|oldest| oldest.state.lock().instance.status() == Status::Faulted)
        {
            self.spawn_drop(oldest);
        }
    }

    fn spawn_drop(self: &Arc<Self>, running: Arc<Running>) {
        let dispatcher = self.clone();
        self.coordinator().workers.spawn(async move { dispatcher.drop_faulted(&running).await });
    }

    /// Takes an instance out of memory.
    pub(super) fn forget(&self, running: &Running) {
        let coordinator = self.coordinator();
        if coordinator.instances.lock().remove(&running.id).is_none() {
            return;
        }
        let mut state = running.state.lock();
        coordinator.timers.set(running.id, state.due_ms.take(), None);
        if std::mem::replace(&mut state.counted, false) {
            coordinator.running.fetch_sub(1, Relaxed);
        }
        for (_, call) in state.calls.drain(..) {
            call.notify_one();
        }
        for frame in std::mem::take(&mut state.listens) {
            coordinator.unlisten(running.id, frame);
        }
        drop(state);
        running.workflow.figures.live.fetch_sub(1, Relaxed);
        coordinator.room.notify_one();
    }

    fn note(&self, running: &Running, note: &edgefaas_workflow::instance::Note) {
        if self.traces().is_on() {
            let mut state = running.state.lock();
            let node = note.node.map(|node| running.workflow.program.node(node));
            if let Some(span) =
                state.spans.note(running, note, node, self.coordinator().clock.now_unix_us())
            {
                let secrets = &running.workflow.program.secrets;
                drop(state);
                self.traces().add(span, |text| self.secrets().mask(secrets, text));
            }
        }
        self.publish_lifecycle(running, note);
    }
}

impl super::Coordinator {
    pub(super) fn unlisten(&self, id: Ulid, frame: FrameId) {
        let mut interests = self.interests.write();
        interests.remove(id, frame);
        if interests.is_empty() {
            self.interested.store(false, Relaxed);
        }
        drop(interests);
        self.unwatch_queue(id, frame);
    }
}

/// The id of a workflow that another one runs: the same however often the step is run.
pub(super) fn child_id(parent: Ulid, frame: FrameId) -> Ulid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.0.to_be_bytes());
    hasher.update(&frame.to_be_bytes());
    let digest = hasher.finalize();
    let random = digest.as_bytes().iter().take(10).fold(0u128, |sum, byte| (sum << 8) | u128::from(*byte));
    Ulid::from_parts(parent.timestamp_ms(), random)
}

/// What a workflow sees of a reply.
fn value_of(reply: Reply) -> Result<Value, WorkflowError> {
    match reply {
        Reply::None => Ok(Value::Null),
        Reply::Json(text) => Ok(serde_json::from_str(&text).unwrap_or(Value::String(text))),
        Reply::Text(text) => Ok(Value::String(text)),
        Reply::Bytes(bytes) => Ok(super::input_of(&bytes)),
        Reply::Http(response) if response.status >= 400 => {
            let said: String = String::from_utf8_lossy(&response.body).chars().take(200).collect();
            let detail = format!("the function answered {}: {said}", response.status);
            Err(WorkflowError::new(ErrorKind::Runtime, detail).with_status(response.status))
        }
        Reply::Http(response) => Ok(super::input_of(&response.body)),
    }
}

/// An invocation's error as the DSL has it.
pub(super) fn error_of(error: &InvocationError) -> WorkflowError {
    let (kind, status) = match error {
        InvocationError::Workflow { error, .. } => return (**error).clone(),
        InvocationError::Run {
            error: RunError::TimedOut { .. } | RunError::CpuTimeUsed { .. }, ..
        }
        | InvocationError::QueueTimeout { .. } => (ErrorKind::Timeout, 408),
        InvocationError::UnknownFunction { .. } => (ErrorKind::Configuration, 404),
        InvocationError::Run { error: RunError::Failed { .. }, .. } => (ErrorKind::Runtime, 500),
        other => (ErrorKind::Runtime, other.status()),
    };
    WorkflowError::new(kind, error.detail()).with_status(status)
}
