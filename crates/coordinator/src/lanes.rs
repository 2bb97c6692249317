//! Events that may start workflows whose filters or rules have expressions that need jaq, or state.
//!
//! ```text
//! publish hook --reserve, record--> lane of the workflow --one at a time--> evaluation --> starts
//! ```
//!
//! Such an expression may take its whole limit, and nothing else is to wait for it: neither the publisher nor another
//! workflow. So the hook only records the event (for durable workflows on the disk, before it is acknowledged) and puts it
//! into the lane of its workflow. A lane evaluates its events in their order, one at a time, on a thread that serves no
//! connections. At most [`EVALUATIONS`] lanes do at the same time, and they take turns after each event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use edgefaas_broker::{Change, Space};
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::{LiveWorkflow, has_rule};
use edgefaas_isolates::LogLevel;
use edgefaas_platform::{Budget, Taken};
use edgefaas_workflow::Event;
use edgefaas_workflow::instance::{ActiveFilter, accepts, start_filter};
use edgefaas_workflow::synthesizer::SynthesisError;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Coordinator;
use super::Start;
use super::drive::Queued;
use super::events::input_of_firing;
use super::inbox::NoRoomForEvent;
use super::schedule::{OverShare, StartRules};

/// Events that are evaluated at the same time, over all workflows.
const EVALUATIONS: usize = 2;
/// The time after which a start that found no room is tried again.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// The lanes of all workflows that have some.
pub(super) struct Lanes {
    lanes: Mutex<HashMap<Arc<str>, Arc<Lane>>>,
    turns: Semaphore,
    lane_bytes: usize,
}

/// The events of one workflow.
struct Lane {
    workflow: Arc<str>,
    queue: Mutex<Queue>,
    budget: Budget,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(StartEvent, Option<LaneRoom>)>,
    /// A task works on them.
    draining: bool,
}

/// Room for an event in a lane.
pub(super) struct LaneRoom {
    lane: Arc<Lane>,
    _of_lane: Taken,
    _of_node: Taken,
}

/// An event that may start a workflow.
pub(super) struct StartEvent {
    /// The index of the filter.
    pub source: u32,
    pub filter: Arc<ActiveFilter>,
    pub event: Arc<Value>,
    pub arrival: Arrival,
    /// Its entry on the disk, if it has one.
    pub number: Option<u64>,
}

/// The circumstances of an event.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Arrival {
    /// By the node's own clock.
    pub now_ms: u64,
    pub unix_ms: u64,
    /// The size of its message's payload.
    pub payload_bytes: usize,
    pub depth: u8,
    pub trace_parent: Option<String>,
}

impl Lanes {
    /// No lanes yet; each may have `lane_bytes` of events.
    pub fn new(lane_bytes: usize) -> Self {
        Self { lanes: Mutex::default(), turns: Semaphore::new(EVALUATIONS), lane_bytes }
    }

    fn of(&self, workflow: &Arc<str>) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        // Of workflows that were deployed before and have no events any more.
        if lanes.len() > 16 && lanes.len().is_power_of_two() && !lanes.contains_key(workflow) {
            let is_used =
                |lane: &Arc<Lane>| Arc::strong_count(lane) > 1 || !lane.queue.lock().waiting.is_empty();
            lanes.retain(|_, lane| is_used(lane));
        }
        let new = || {
            let budget = Budget::new(self.lane_bytes);
            Arc::new(Lane { workflow: workflow.clone(), queue: Mutex::default(), budget })
        };
        lanes.entry(workflow.clone()).or_insert_with(new).clone()
    }

    /// Reserves room for an event.
    ///
    /// # Errors
    /// The lane has none, or the node.
    pub fn reserve(
        &self,
        workflow: &Arc<str>,
        event_bytes: usize,
        node: &Budget,
    ) -> Result<LaneRoom, NoRoomForEvent> {
        let lane = self.of(workflow);
        let full = |budget: &Budget| NoRoomForEvent::Filters { max_bytes: budget.most() };
        let of_lane = lane.budget.take(event_bytes).ok_or(full(&lane.budget))?;
        let of_node = node.take(event_bytes).ok_or(full(node))?;
        Ok(LaneRoom { lane, _of_lane: of_lane, _of_node: of_node })
    }

    /// Events that wait, over all workflows.
    pub fn waiting(&self) -> usize {
        self.lanes.lock().values().map(|lane| lane.queue.lock().waiting.len()).sum()
    }
}

impl Coordinator {
    /// Puts an event into the lane of its workflow.
    pub(super) fn enqueue_start(self: &Arc<Self>, room: LaneRoom, event: StartEvent) {
        let lane = room.lane.clone();
        {
            let mut queue = lane.queue.lock();
            queue.waiting.push_back((event, Some(room)));
            if std::mem::replace(&mut queue.draining, true) {
                return;
            }
        }
        self.spawn_drain(lane);
    }

    /// Puts an event into its lane that was accepted before the node was started.
    pub(super) fn enqueue_recovered(self: &Arc<Self>, workflow: &Arc<str>, event: StartEvent) {
        let lane = self.lanes.of(workflow);
        lane.queue.lock().waiting.push_back((event, None));
    }

    /// Starts the lanes that have events which were recovered.
    pub(super) fn drain_recovered(self: &Arc<Self>) {
        let lanes: Vec<Arc<Lane>> = self.lanes.lanes.lock().values().cloned().collect();
        for lane in lanes {
            let starts = {
                let mut queue = lane.queue.lock();
                !queue.waiting.is_empty() && !std::mem::replace(&mut queue.draining, true)
            };
            if starts {
                self.spawn_drain(lane);
            }
        }
    }

    fn spawn_drain(self: &Arc<Self>, lane: Arc<Lane>) {
        let coordinator = self.clone();
        self.workers.spawn(async move { coordinator.drain_lane(&lane).await });
    }

    async fn drain_lane(self: &Arc<Self>, lane: &Lane) {
        loop {
            let (event, _room) = {
                let mut queue = lane.queue.lock();
                match queue.waiting.pop_front() {
                    Some(next) => next,
                    None => {
                        queue.draining = false;
                        queue.waiting = VecDeque::new();
                        return;
                    }
                }
            };
            // Those on the disk are for the next start.
            if !self.drain.is_draining() {
                self.handle_start(&lane.workflow, event).await;
            }
            self.room_is_free();
        }
    }

    async fn handle_start(self: &Arc<Self>, name: &str, event: StartEvent) {
        let Some(workflow) = self.registry.routes().workflow(name).cloned() else {
            return self.forget_start(event.number);
        };
        let StartEvent { source, filter, event, arrival, number } = event;
        let inputs = {
            let Ok(_turn) = self.lanes.turns.acquire().await else { return };
            let (coordinator, workflow, arrival) = (self.clone(), workflow.clone(), arrival.clone());
            let evaluation = tokio::task::spawn_blocking(move || {
                let rules = &coordinator.rules;
                evaluate(rules, &workflow, source as usize, &filter, &event, &arrival)
            });
            evaluation.await
        };
        let inputs = match inputs {
            Ok(Ok(evaluated)) => {
                if evaluated.is_due_earlier {
                    self.rules_due.notify_one();
                }
                self.log_exceeded(&workflow.name, evaluated.exceeds);
                evaluated.inputs
            }
            Ok(Err(error)) => {
                let text = format!("an event is not counted: {error}");
                self.logs.add(&workflow.name, "", LogLevel::Warn, text);
                Vec::new()
            }
            Err(error) => {
                tracing::error!(workflow = name, %error, "the evaluation of a filter failed");
                Vec::new()
            }
        };
        let mut changes = Vec::new();
        let mut started = Vec::new();
        for input in inputs {
            let mut start = Start::new(workflow.clone(), input, arrival.payload_bytes);
            start.depth = arrival.depth;
            start.trace_parent.clone_from(&arrival.trace_parent);
            let Some(running) = self.enter_when_there_is_room(start, number.is_some()).await else {
                continue;
            };
            if number.is_some() {
                let entries = self.start_entries(&running, &mut running.state.lock());
                let put = |(key, value): (_, Vec<u8>)| Change {
                    space: Space::Hook,
                    key,
                    value: Some(value.into()),
                };
                changes.extend(entries.into_iter().map(put));
            }
            started.push(running);
        }
        if self.drain.is_draining() && number.is_some() && started.is_empty() {
            return;
        }
        changes.extend(number.map(forgotten));
        let ticket = (!changes.is_empty()).then(|| self.broker.record(changes)).flatten();
        for running in started {
            let queued = match ticket {
                Some(ticket) => Queued::recorded(Event::Start, 0, ticket),
                None => Queued::now(Event::Start),
            };
            self.spawn_drive(running, queued);
        }
    }

    /// Gives an instance its place. The start of an event that was acknowledged as durable waits for room.
    async fn enter_when_there_is_room(
        self: &Arc<Self>,
        start: Start,
        is_recorded: bool,
    ) -> Option<Arc<super::Running>> {
        loop {
            let error = match self.enter_workflow(start.clone()) {
                Ok(running) => return Some(running),
                Err(error) => error,
            };
            let is_overload =
                matches!(error, InvocationError::QueueFull { .. } | InvocationError::OverBudget { .. });
            if is_recorded && is_overload && !self.drain.is_draining() {
                let _ = tokio::time::timeout(ROOM_WAIT, self.room.notified()).await;
                continue;
            }
            start.workflow.figures.rejected.fetch_add(1, Relaxed);
            self.figures.rejected.fetch_add(1, Relaxed);
            let text = format!("an event starts nothing: {error}");
            self.logs.add(&start.workflow.name, "", LogLevel::Warn, text);
            return None;
        }
    }

    fn forget_start(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.broker.record(vec![forgotten(number)]);
        }
    }
}

fn forgotten(number: u64) -> Change {
    Change { space: Space::Hook, key: super::event_log::start_event_key(number), value: None }
}

/// What came of an event.
#[derive(Default)]
struct Evaluated {
    /// The inputs of the instances that it starts.
    inputs: Vec<Value>,
    /// The workflow's rule is due earlier than before.
    is_due_earlier: bool,
    /// The workflow's rule exceeds its share since now.
    exceeds: Option<OverShare>,
}

/// Evaluates the filter and the rule of a workflow over an event. Runs on a thread of its own, since it takes as long as
/// the expressions may.
fn evaluate(
    rules: &StartRules,
    workflow: &LiveWorkflow,
    source: usize,
    filter: &ActiveFilter,
    event: &Arc<Value>,
    arrival: &Arrival,
) -> Result<Evaluated, SynthesisError> {
    let on = workflow.program.schedule.as_ref().and_then(|schedule| schedule.on.as_ref());
    let Some(condition) = on.and_then(|on| on.filters.get(source)) else { return Ok(Default::default()) };
    if !accepts(filter, event, arrival.unix_ms) || !condition.takes(event) {
        return Ok(Default::default());
    }
    if !has_rule(&workflow.program) {
        let input = Value::Array(vec![(**event).clone()]);
        return Ok(Evaluated { inputs: vec![input], ..Evaluated::default() });
    }
    let Some(rule) = rules.of(workflow, arrival.now_ms) else { return Ok(Default::default()) };
    let counted = rule.handle(source, event, arrival.now_ms, rules.share_bytes())?;
    let inputs = counted.firings.iter().map(|firing| input_of_firing(&workflow.program, firing)).collect();
    Ok(Evaluated { inputs, is_due_earlier: counted.is_due_earlier, exceeds: counted.exceeds })
}

/// The filter of a start event that was read from the disk.
pub(super) fn filter_of(workflow: &LiveWorkflow, source: u32) -> Option<Arc<ActiveFilter>> {
    let on = workflow.program.schedule.as_ref()?.on.as_ref()?;
    start_filter(on.filters.get(source as usize)?).map(Arc::new)
}
