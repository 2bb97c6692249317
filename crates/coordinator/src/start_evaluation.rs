//! Starts by events whose filters are evaluated in a [lane](super::start_lanes).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_broker::{Change, Space};
use edgefaas_functions::durable::Digest;
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::{LiveWorkflow, has_rule};
use edgefaas_functions::trace::Entry;
use edgefaas_isolates::LogLevel;
use edgefaas_workflow::Event;
use edgefaas_workflow::instance::{ActiveFilter, accepts};
use edgefaas_workflow::synthesizer::SynthesisError;
use serde_json::Value;

use super::coordinator::Coordinator;
use super::event_log::start_event_key;
use super::event_queue::Queued;
use super::incoming_messages::order_key;
use super::instance::Start;
use super::rule_log;
use super::start_lanes::{Arrival, Lane, LaneRoom, StartEvent};
use super::start_rules::{Counted, OverShare, StartRules, input_of_firing};

/// Interval between two attempts of a start without room.
const ROOM_WAIT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Adds an event to the lane of its workflow.
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

    /// Adds a recovered event to its lane.
    pub(super) fn enqueue_recovered(self: &Arc<Self>, workflow: &Arc<str>, event: StartEvent) {
        let lane = self.lanes.of(workflow);
        lane.queue.lock().waiting.push_back((event, None));
    }

    /// Starts the lanes with recovered events.
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
            // Recorded events are evaluated after the next start.
            if !self.drain.is_draining() {
                self.handle_start(&lane.workflow, event).await;
            }
            self.notify_publishers();
        }
    }

    async fn handle_start(self: &Arc<Self>, name: &str, event: StartEvent) {
        let Some(workflow) = self.registry.routes().workflow(name).cloned() else {
            return self.forget_start(event.number);
        };
        let StartEvent { source, filter, event, arrival, number } = event;
        let rule = match number.is_some() && has_rule(&workflow.program) {
            true => self.rules.of(&workflow, arrival.now_ms),
            false => None,
        };
        let turn_of_rule = match &rule {
            Some(rule) => Some(rule.turn.lock().await),
            None => None,
        };
        let counted_event = (source, event.clone());
        let inputs = {
            let Ok(_turn) = self.lanes.turns.acquire().await else { return };
            let (coordinator, workflow, arrival) = (self.clone(), workflow.clone(), arrival.clone());
            let evaluation = tokio::task::spawn_blocking(move || {
                let rules = &coordinator.rules;
                evaluate(rules, &workflow, source as usize, &filter, &event, &arrival)
            });
            evaluation.await
        };
        let (mut key, mut is_counted) = (arrival.topic, false);
        let inputs = match inputs {
            Ok(Ok(evaluated)) => {
                key = evaluated.key.unwrap_or(key);
                is_counted = evaluated.is_counted;
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
        let fires = !inputs.is_empty();
        for input in inputs {
            let mut start = Start::new(workflow.clone(), input, arrival.payload_bytes);
            start.depth = arrival.depth;
            start.trace_parent.clone_from(&arrival.trace_parent);
            start.entry = Entry::Message;
            start.place = self.place_of(&workflow, &key);
            let Some(running) = self.enter_when_there_is_room(start, number.is_some()).await else {
                continue;
            };
            if number.is_some() {
                let entries = self.start_entries(&running, &mut running.state.lock(), None);
                let put = |(key, value): (_, Vec<u8>)| Change {
                    space: Space::Hook,
                    key,
                    value: Some(value.into()),
                };
                changes.extend(entries.into_iter().map(put));
            }
            started.push(running);
        }
        let counting = rule.as_ref().filter(|_| is_counted);
        // Evaluated again after the next start.
        if self.drain.is_draining()
            && number.is_some()
            && started.is_empty()
            && (fires || counting.is_none())
        {
            return;
        }
        changes.extend(number.map(forgotten));
        if let (Some(rule), Some(number)) = (counting, number) {
            changes.push(rule_log::counted_event(&workflow, rule, number, arrival.now_ms, counted_event));
        }
        let ticket = (!changes.is_empty()).then(|| self.broker.record(changes)).flatten();
        for running in started {
            let queued = match ticket {
                Some(ticket) => Queued::recorded(Event::Start, 0, ticket),
                None => Queued::now(Event::Start),
            };
            let turn = self.turns.turn(&workflow.name, &key);
            self.begin_in_order(running, queued, Some(turn));
        }
        if let Some(rule) = counting {
            self.compact_rule(&workflow, rule, ticket).await;
        }
        drop(turn_of_rule);
        if rule.is_some() {
            // A time that was due meanwhile.
            self.rules_due.notify_one();
        }
    }

    /// Registers an instance. The start by a recorded event waits for room.
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
            self.count_rejected(&start.workflow);
            let text = format!("an event starts no instance: {error}");
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
    Change { space: Space::Hook, key: start_event_key(number), value: None }
}

/// Result of the evaluation of an event.
#[derive(Default)]
struct Evaluated {
    /// The inputs of the instances that it starts.
    inputs: Vec<Value>,
    /// The key that orders them, if it starts any.
    key: Option<Digest>,
    /// The workflow's rule has counted it.
    is_counted: bool,
    /// The workflow's rule is due earlier than before.
    is_due_earlier: bool,
    /// The workflow's rule exceeds its share since now.
    exceeds: Option<OverShare>,
}

/// Evaluates the filter and the rule of a workflow over an event. Runs on a thread for blocking work, since it may take
/// the whole time limit of the expressions.
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
        let key = Some(order_key(workflow, event, arrival));
        return Ok(Evaluated { inputs: vec![input], key, ..Evaluated::default() });
    }
    let Some(rule) = rules.of(workflow, arrival.now_ms) else { return Ok(Default::default()) };
    let counted = rule.handle(source, event, arrival.now_ms, rules.share_bytes())?;
    let inputs = counted.firings.iter().map(|firing| input_of_firing(&workflow.program, firing)).collect();
    let key = (!counted.firings.is_empty()).then(|| order_key(workflow, event, arrival));
    let Counted { is_due_earlier, exceeds, .. } = counted;
    Ok(Evaluated { inputs, key, is_counted: true, is_due_earlier, exceeds })
}
