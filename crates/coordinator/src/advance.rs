//! Advancing instances: an event goes in, actions come out, and a durable instance is committed between the two.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use edgefaas_broker::Message;
use edgefaas_functions::invocation::{InvocationError, MAX_DEPTH, Outcome, OverBudget};
use edgefaas_functions::registry::{LiveFunction, LiveWorkflow};
use edgefaas_functions::trace::{new_trace_parent, trace_id, with_context};
use edgefaas_isolates::Reply;
use edgefaas_state::store::{Batch, CommitError};
use edgefaas_workflow::event::is_large;
use edgefaas_workflow::instance::{Action, Instance, Outgoing};
use edgefaas_workflow::{Event, Status};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use super::actions::PendingCall;
use super::coordinator::Coordinator;
use super::event_queue::{Queued, Turns};
use super::function_step::Settled;
use super::instance::{Running, Start};
use super::outgoing_messages;
use super::place::Held;
use super::run_state::INSTANCE_BYTES;
use super::run_state::{End, Refusal, RunState};
use super::start_turn::StartTurn;
use super::turn::{Paused, YieldTimer};

/// The part of a step that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    All,
    /// Without the optional changes.
    Required,
}

/// The interval between two commit attempts while the disk is full.
const DISK_WAIT: std::time::Duration = std::time::Duration::from_millis(200);

impl Coordinator {
    /// Registers an instance within the budgets. [`Event::Start`] starts it.
    ///
    /// # Errors
    /// A budget or the disk has no room for the instance, the chain of calls is too deep, or the node is draining.
    pub fn enter_workflow(self: &Arc<Self>, start: Start) -> Result<Arc<Running>, InvocationError> {
        let workflow = start.workflow.clone();
        let name = || workflow.name.to_string();
        if self.drain.is_draining() && start.depth == 0 {
            return Err(InvocationError::Draining);
        }
        if start.depth > MAX_DEPTH {
            return Err(InvocationError::TooDeep { function: name(), depth: start.depth });
        }
        let limits = self.limits;
        let full =
            |capacity: usize| InvocationError::QueueFull { function: name(), capacity: capacity as u32 };
        // A running instance may still start children, so that it can finish.
        if start.depth == 0 && !self.may_run_another(&workflow) {
            let own = workflow.figures.running.load(Relaxed);
            let error = OverBudget::Running { max: limits.running, own };
            return Err(InvocationError::OverBudget { workflow: name(), error });
        }
        let is_durable = workflow.program.durable || start.kept_call.is_some();
        if start.depth == 0
            && !is_durable
            && let Some(function) = self.full_function(&workflow)
        {
            let capacity = function.admission.capacity();
            return Err(InvocationError::QueueFull { function: function.name.to_string(), capacity });
        }
        let bytes = INSTANCE_BYTES.saturating_add(start.input_bytes);
        // A child is admitted together with its parent.
        let is_new = !start.is_recovered && start.parent.is_none();
        if is_new && is_durable && !self.broker.wal().has_room(bytes) {
            let error = self.store.committer().disk_full();
            return Err(InvocationError::NotStored { function: name(), error });
        }
        let root = start.root.unwrap_or_else(|| self.root_budget(start.id));
        let charge = match start.is_recovered {
            true => root.charge_recovered(start.id, bytes),
            false => {
                let may_exceed_budget = Coordinator::may_exceed_budget(&workflow);
                root.charge_instance(start.id, bytes, may_exceed_budget).or_else(|error| {
                    self.make_room(bytes);
                    root.charge_instance(start.id, bytes, may_exceed_budget).map_err(|_| error)
                })
            }
        };
        let charge = charge.map_err(|error| InvocationError::OverBudget { workflow: name(), error })?;
        let mut trace_parent = start.trace_parent.filter(|parent| trace_id(parent).is_some());
        if trace_parent.is_none() && start.parent.is_none() && self.traces.sample(self.clock.now_unix_ms())
        {
            trace_parent = Some(new_trace_parent());
        }
        let unix_ms = self.clock.now_unix_ms();
        let instance = Instance::new(start.id.to_string().into(), start.input, start.id.0 as u64, unix_ms);
        let max_instances = start.workflow.program.max_instances;
        let mut instances = self.instances.lock();
        if instances.len() >= limits.instances {
            return Err(full(limits.instances));
        }
        if let Some(max_instances) = max_instances {
            let same = start.workflow.figures.live.load(Relaxed);
            if same >= max_instances {
                return Err(full(max_instances as usize));
            }
        }
        start.workflow.figures.live.fetch_add(1, Relaxed);
        start.workflow.figures.started.fetch_add(1, Relaxed);
        self.figures.started.fetch_add(1, Relaxed);
        let running = Arc::new(Running {
            id: start.id,
            workflow: start.workflow,
            depth: start.depth,
            trace_parent,
            entry: start.entry,
            parent: start.parent,
            answer: start.answer,
            kept_call: start.kept_call,
            held: start.place.map(Held::from),
            input_bytes: start.input_bytes,
            memory_bytes: start.memory_bytes.unwrap_or(limits.root.bytes as u64),
            root,
            state: Mutex::new(RunState::new(instance, charge)),
            inbox: Mutex::default(),
        });
        instances.insert(running.id, running.clone());
        Ok(running)
    }

    /// A function that a workflow calls and whose queue is full. A new instance that lives in memory alone would wait behind that
    /// queue and could not be refused any more; one that is on the disk may wait there.
    pub(super) fn full_function(&self, workflow: &LiveWorkflow) -> Option<Arc<LiveFunction>> {
        let routes = self.registry.routes();
        let mut called = workflow.functions.iter().filter_map(|name| routes.function(name));
        called.find(|function| function.admission.is_full()).cloned()
    }

    /// Runs a workflow from its start to its end, as a function is run. If the future is dropped, the instance
    /// continues.
    pub async fn run_workflow(self: &Arc<Self>, start: Start) -> Outcome {
        let (id, since) = (start.id.to_string(), Instant::now());
        let workflow = start.workflow.clone();
        let result = match self.enter_workflow(start) {
            Err(error) => {
                self.count_rejected(&workflow);
                Err(error)
            }
            Ok(running) => {
                let (waiter, result) = oneshot::channel();
                running.state.lock().end = End::Open { waiter: Some(waiter) };
                self.spawn_advance(running, Queued::now(Event::Start));
                match result.await {
                    Ok(Ok(output)) if is_large(&output) => {
                        let text = tokio::task::spawn_blocking(move || output.to_string()).await;
                        text.map(Reply::Json).map_err(|_| InvocationError::Draining)
                    }
                    Ok(Ok(output)) => Ok(Reply::Json(output.to_string())),
                    Ok(Err(error)) => Err(InvocationError::Workflow {
                        workflow: workflow.name.to_string(),
                        error: Box::new(error),
                    }),
                    Err(_) => Err(InvocationError::Draining),
                }
            }
        };
        let timing =
            edgefaas_functions::invocation::Timing { execution: since.elapsed(), ..Default::default() };
        Outcome { id, result, timing, node: None }
    }

    /// Delivers an event to an instance on a new task.
    pub(crate) fn spawn_advance(self: &Arc<Self>, running: Arc<Running>, queued: Queued) {
        let coordinator = self.clone();
        let advancing: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { coordinator.advance(&running, queued).await });
        self.workers.spawn(advancing);
    }

    /// Delivers an event to an instance and carries out the calls that follow in this task.
    pub(crate) async fn advance(self: &Arc<Self>, running: &Arc<Running>, mut queued: Queued) {
        let mut turn = queued.turn.take();
        let mut next = Some(queued);
        while let Some(queued) = next {
            // Boxed, so that an instance without a pending call does not allocate memory for one.
            let pending = match running.is_durable() {
                true => Box::pin(self.step_durable(running, [queued], &mut turn)).await,
                false => {
                    if let Some(turn) = &turn {
                        turn.reached().await;
                    }
                    self.step(running, queued, &mut turn).await
                }
            };
            let Some(pending) = pending else { return };
            let call = Box::pin(self.carry_out(running, pending));
            next = match turn.take() {
                Some(turn) => Box::pin(turn.end_with(call)).await,
                None => call.await,
            };
        }
    }

    /// Delivers an event to an instance. While a long turn of the instance runs elsewhere, the event waits.
    pub(super) async fn step(
        self: &Arc<Self>,
        running: &Arc<Running>,
        queued: Queued,
        start: &mut Option<StartTurn>,
    ) -> Option<PendingCall> {
        let turn = {
            let mut state = running.state.lock();
            let queued = state.turns.offer(queued)?;
            let turn = self.begin_turn(running, &mut state, queued.event, None);
            if turn.is_err() {
                state.turns = Turns::busy();
            }
            turn
        };
        match turn {
            Ok(actions) => {
                let pending = self.perform(running, actions, true);
                // Without a call the instance has begun. The next start need not wait until its messages are stored.
                start.take_if(|_| pending.is_none());
                if self.ended_when_stored(running).await { pending } else { None }
            }
            // Boxed, since few turns are long.
            Err(paused) => Box::pin(self.step_elsewhere(running, paused)).await,
        }
    }

    /// Finishes a long turn, and delivers the events that arrived during it.
    async fn step_elsewhere(
        self: &Arc<Self>,
        running: &Arc<Running>,
        paused: Box<Paused>,
    ) -> Option<PendingCall> {
        let mut inline: Option<PendingCall> = None;
        let (mut turn, mut waiting) = (Err(paused), Vec::new().into_iter());
        let mut timer = YieldTimer::start();
        loop {
            timer.yield_if_due().await;
            let actions = match turn {
                Ok(actions) => actions,
                Err(paused) => match self.finish_turn(running, paused).await {
                    Some(actions) => actions,
                    None => {
                        self.forget(running);
                        return None;
                    }
                },
            };
            if let Some(pending) = self.perform(running, actions, true)
                && let Some(before) = inline.replace(pending)
            {
                self.spawn_call(running, before);
            }
            if !self.ended_when_stored(running).await {
                return None;
            }
            let mut state = running.state.lock();
            if waiting.as_slice().is_empty() {
                let Some(more) = state.turns.take() else { return inline };
                waiting = more.into_iter();
            }
            let Some(Queued { event, .. }) = waiting.next() else { return inline };
            turn = self.begin_turn(running, &mut state, event, None);
        }
    }

    /// Reports the end of an instance, if it has ended, once its messages are stored. False if they cannot be stored;
    /// the instance is then removed.
    async fn ended_when_stored(self: &Arc<Self>, running: &Arc<Running>) -> bool {
        let published = {
            let state = running.state.lock();
            state.published.filter(|_| state.instance.status().is_ended())
        };
        if published.is_some() {
            // Storing may take as long as the disk takes.
            running.has_settled();
        }
        if let Some(ticket) = published
            && let Err(error) = self.broker.durable(ticket).await
        {
            tracing::error!(workflow = %running.workflow.name, instance = %running.id, %error, "an instance stops: its messages could not be stored");
            self.forget(running);
            return false;
        }
        self.report_if_ended(running);
        true
    }

    /// Updates timers and counts after a turn.
    pub(super) fn settle(&self, running: &Running, state: &mut RunState) {
        let due_ms = state.instance.due_ms();
        self.timers.set(running.id, state.registered.due_ms, due_ms);
        state.registered.due_ms = due_ms;
        let fits = state.charge_for(running.input_bytes, state.instance.bytes());
        state.budget.refusal = match state.budget.refusal {
            Refusal::None if !fits => Refusal::Due,
            // The workflow caught the error, and the instance is still too large.
            Refusal::Delivered { steps } if !fits && state.instance.steps() > steps => Refusal::Due,
            Refusal::Delivered { .. } | Refusal::Due if fits => Refusal::None,
            other => other,
        };
        let runs = state.instance.status() == Status::Running;
        if runs != state.registered.is_running {
            state.registered.is_running = runs;
            match runs {
                true => {
                    self.running.fetch_add(1, Relaxed);
                    running.workflow.figures.running.fetch_add(1, Relaxed);
                }
                false => {
                    self.running.fetch_sub(1, Relaxed);
                    running.workflow.figures.running.fetch_sub(1, Relaxed);
                    self.room.notify_one();
                }
            }
        }
    }

    pub(super) fn secrets_of(&self, workflow: &LiveWorkflow) -> Value {
        let names = &workflow.program.secrets;
        if names.is_empty() {
            return Value::Object(serde_json::Map::new());
        }
        let value =
            |name: &String| Some((name.clone(), Value::String(self.secrets.get(&workflow.app, name)?)));
        Value::Object(names.iter().filter_map(value).collect())
    }

    /// Advances a durable instance. The events, the messages of its functions and its own are committed in one
    /// batch before the next step starts. Events that arrive during the commit go into the next batch. The effects of a start
    /// wait for its turn.
    pub(super) async fn step_durable(
        self: &Arc<Self>,
        running: &Arc<Running>,
        queued: impl IntoIterator<Item = Queued>,
        start: &mut Option<StartTurn>,
    ) -> Option<PendingCall> {
        {
            let mut state = running.state.lock();
            if !state.turns.begin(queued) {
                return None;
            }
        }
        let mut inline: Option<PendingCall> = None;
        loop {
            let Some(taken) = running.state.lock().turns.take() else { break };
            let mut queued = Vec::with_capacity(taken.len());
            for item in taken {
                match &item.inbox {
                    Some((_, Some(ticket))) if self.broker.durable(*ticket).await.is_err() => {
                        // The event was never accepted, and its sender has received the error.
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
            // The events stay charged to the budgets until they are on the disk.
            let mut charges = Vec::new();
            let mut waiters = Vec::new();
            let mut actions = Vec::new();
            let mut wait_for_room = Vec::new();
            let mut timer = YieldTimer::start();
            for queued in queued {
                timer.yield_if_due().await;
                let queued = match self.settle_effects(running, queued, &mut batch).await {
                    Settled::Turn(queued, messages) => {
                        outgoing.extend(messages);
                        queued
                    }
                    Settled::Unwanted => continue,
                    Settled::Waits(queued) => {
                        wait_for_room.push(queued);
                        continue;
                    }
                    Settled::Stopped(error) => {
                        tracing::error!(workflow = %running.workflow.name, instance = %running.id, %error, "an instance stops: the effects of its step could not be stored");
                        self.forget(running);
                        return None;
                    }
                };
                let Queued { event, inbox, charge, stored, .. } = queued;
                charges.extend(charge);
                waiters.extend(stored);
                let (turn, logged) = {
                    let mut state = running.state.lock();
                    let number = inbox.map(|(number, _)| number);
                    let logged = self.log_event(running, &mut state, &event, number, &mut batch);
                    (self.begin_turn(running, &mut state, event, Some(logged.times_ms())), logged)
                };
                match turn {
                    Ok(more) => actions.extend(more),
                    // Boxed, since few turns are long.
                    Err(paused) => match Box::pin(self.finish_turn(running, paused)).await {
                        Some(more) => actions.extend(more),
                        None => {
                            self.forget(running);
                            return None;
                        }
                    },
                }
                self.log_turn(&running.state.lock(), logged, &mut batch);
            }
            let kept = {
                let mut state = running.state.lock();
                let published: Vec<Message> = self.messages_of(running, &state, &mut actions);
                outgoing.extend(self.publisher.put_messages(
                    &mut batch,
                    &running.workflow.name,
                    running.depth + 1,
                    &published,
                ));
                self.log_state(running, &mut state, &actions, &mut batch)
            };
            let (optional, kept) = kept.map(|kept| (kept.optional, kept.record)).unzip();
            let committed = self.commit_step(running, batch, optional.unwrap_or_default()).await;
            let stored = match committed {
                Ok(stored) => stored,
                Err(error) => {
                    // The stored instance is unchanged and continues from there at the next start.
                    tracing::error!(workflow = %running.workflow.name, instance = %running.id, %error, "an instance stops: its step could not be stored");
                    self.forget(running);
                    return None;
                }
            };
            drop(charges);
            for waiter in waiters {
                // Whoever waited may have gone.
                let _ = waiter.send(());
            }
            if let Some(turn) = start.as_ref() {
                turn.reached().await;
            }
            self.publisher.send(outgoing);
            if let Some(kept) = kept.filter(|_| stored == Stored::All) {
                self.durable.external_ended(kept);
            }
            if let Some(pending) = self.perform(running, actions, false)
                && let Some(before) = inline.replace(pending)
            {
                self.spawn_call(running, before);
            }
            // Without a call the instance has begun.
            start.take_if(|_| inline.is_none());
            self.report_if_ended(running);
            if !wait_for_room.is_empty() {
                running.has_settled();
                if let Some(pending) = inline.take() {
                    self.spawn_call(running, pending);
                }
                tokio::time::sleep(DISK_WAIT).await;
                // Behind the events that have come meanwhile: a cancellation or a timeout needs no room.
                running.state.lock().turns.begin(wait_for_room);
            }
        }
        inline
    }

    /// Commits the batch of a step. While the disk is full, retries every [`DISK_WAIT`], without the optional changes.
    async fn commit_step(
        &self,
        running: &Running,
        batch: Batch,
        optional: Batch,
    ) -> Result<Stored, CommitError> {
        let committer = self.store.committer();
        if !optional.is_empty() {
            let mut all = batch.clone();
            all.append(optional);
            match committer.commit(all, self.durability).await {
                Err(CommitError::DiskFull { .. }) => {}
                committed => return committed.map(|()| Stored::All),
            }
            return self.commit_required(running, batch).await.map(|()| Stored::Required);
        }
        self.commit_required(running, batch).await.map(|()| Stored::All)
    }

    async fn commit_required(&self, running: &Running, batch: Batch) -> Result<(), CommitError> {
        loop {
            match self.store.committer().commit(batch.clone(), self.durability).await {
                Err(CommitError::DiskFull { .. }) if !self.drain.is_draining() => {
                    running.has_settled();
                    tokio::time::sleep(DISK_WAIT).await
                }
                committed => return committed,
            }
        }
    }

    /// Removes the publishes from `actions` and returns their messages.
    fn messages_of(&self, running: &Running, state: &RunState, actions: &mut Vec<Action>) -> Vec<Message> {
        let mut messages = Vec::new();
        // The notes are handled after the commit, so the tasks that send may not have their spans yet.
        let mut ahead = state.spans.ahead();
        actions.retain(|action| match action {
            Action::Publish(outgoing) => {
                let node = outgoing.node;
                let id = ahead.of_task(&self.traces, running, node);
                let trace_parent = match id {
                    Some(id) => self.traces.context(running.trace_parent.as_deref(), &id),
                    None => state.spans.context(&self.traces, running, node),
                };
                messages.extend(self.message_of(running, outgoing, trace_parent));
                false
            }
            Action::Note(note) => {
                ahead.note(note);
                true
            }
            _ => true,
        });
        messages
    }

    /// The message that a task sends, with this trace context unless it has one.
    pub(super) fn message_of(
        &self,
        running: &Running,
        outgoing: &Outgoing,
        trace_parent: Option<String>,
    ) -> Option<Message> {
        let max_bytes = self.publisher.max_message_bytes();
        match outgoing_messages::of(outgoing, &running.workflow.permissions, max_bytes) {
            Ok(message) => Some(with_context(message, trace_parent.as_deref(), max_bytes)),
            Err(error) => {
                let path = &running.workflow.program.node(outgoing.node).path;
                let text = self.mask(running, format!("{path}: {error}"));
                let (name, id) = (&running.workflow.name, running.id.to_string());
                self.logs.add(name, &id, edgefaas_isolates::LogLevel::Error, text);
                None
            }
        }
    }

    pub(super) fn note(&self, running: &Running, note: &edgefaas_workflow::instance::Note) {
        if self.traces.is_on() {
            let mut state = running.state.lock();
            let node = note.node.map(|node| running.workflow.program.node(node));
            if let Some(span) =
                state.spans.note(&self.traces, running, note, node, self.clock.now_unix_us())
            {
                drop(state);
                self.traces.add(span, |text| self.mask(running, text));
            }
        }
        self.publish_lifecycle(running, note);
    }
}
