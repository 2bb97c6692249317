//! Messages that pass: which workflows they start, and which instances go on with them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_broker::{Message, Origin, Publishing, QoS, RejectReason, Verdict, Version};
use edgefaas_isolates::LogLevel;
use edgefaas_workflow::Event;
use edgefaas_workflow::event::{is_cloud_event, of_message};
use edgefaas_workflow::program::{Mode, Program, Read};
use edgefaas_workflow::synthesizer::Firing;
use serde_json::{Map, Value};
use ulid::Ulid;

use super::drive::Queued;
use super::interests::{Interest, Waiter};
use super::messages::CLOUD_EVENT;
use super::{INSTANCE_BYTES, Running, Start};
use crate::dispatch::Dispatcher;
use crate::registry::LiveWorkflow;

/// The attributes of a CloudEvent in binary mode (CloudEvents MQTT binding, section 3.1).
const REQUIRED: [&str; 4] = ["specversion", "id", "source", "type"];

/// A message and the workflows that wait for it.
pub(crate) struct Offered {
    found: Vec<Interest>,
    event: Arc<Value>,
    depth: u8,
}

impl Dispatcher {
    /// Which workflows wait for a message, if any do. Nothing has happened yet.
    ///
    /// # Errors
    /// It would start some, and there is no room: what its publisher is to be told.
    pub(crate) fn offered_to_workflows(
        &self,
        publishing: &Publishing<'_>,
    ) -> Result<Option<Offered>, Verdict> {
        let coordinator = self.coordinator();
        let routes = self.registry().routes();
        let starts = routes.starts();
        if starts.is_empty() && !coordinator.interested.load(Relaxed) {
            return Ok(None);
        }
        let (origin, message) = (publishing.origin(), publishing.message());
        let topic = message.topic().as_str();
        let interests = coordinator.interests.read();
        let by_topic = || starts.wants_topic(topic) || interests.wants_topic(topic);
        let by_type = || is_event(message) && (starts.wants_events() || interests.wants_events());
        if !by_topic() && !by_type() {
            return Ok(None);
        }
        let unix_ms = coordinator.clock.now_unix_ms();
        let (event, plain) = event_of(message, unix_ms);
        let found_by = plain.then_some(topic);
        let mut found = starts.matching(found_by, &event, unix_ms);
        found.extend(interests.matching(found_by, &event, unix_ms));
        drop(interests);
        if found.is_empty() {
            return Ok(None);
        }
        coordinator.figures.events.fetch_add(1, Relaxed);
        let depth = match origin {
            Origin::Node { depth, .. } => *depth,
            _ => 0,
        };
        let bytes = message.payload().len();
        let mut starts = found.iter().filter_map(|interest| match &interest.waiter {
            Waiter::Start(name) => routes.workflow(name),
            Waiter::Instance(..) => None,
        });
        // Asked before anything has happened, since the message may be offered again.
        if depth == 0 && starts.any(|workflow| self.is_full_of(workflow, bytes)) {
            coordinator.figures.rejected.fetch_add(1, Relaxed);
            if message.qos() == QoS::AtMostOnce {
                return Ok(None);
            }
            let told = !matches!(origin, Origin::Client(client) if client.version == Version::V311);
            return Err(match told {
                true => Verdict::Reject(RejectReason::QuotaExceeded),
                false => Verdict::Block(coordinator.room.clone()),
            });
        }
        Ok(Some(Offered { found, event: Arc::new(event), depth }))
    }

    /// Gives a message to the workflows that wait for it. They observe: everybody else still gets it.
    pub(crate) fn give_to_workflows(self: &Arc<Self>, publishing: &mut Publishing<'_>, offered: Offered) {
        let Offered { found, event, depth } = offered;
        let (bytes, trace) = (publishing.message().payload().len(), trace_parent(publishing.message()));
        let routes = self.registry().routes();
        for Interest { waiter, source, .. } in found {
            match waiter {
                Waiter::Instance(id, frame) => {
                    let Some(running) = self.coordinator().find(id) else { continue };
                    let told = Event::Message { frame, source, event: event.clone() };
                    self.tell(publishing, &running, told);
                }
                Waiter::Start(name) => {
                    let Some(workflow) = routes.workflow(&name) else { continue };
                    for input in self.synthesize(workflow, source as usize, &event) {
                        let mut start = Start::new(workflow.clone(), input, bytes);
                        start.depth = depth;
                        start.trace_parent = trace.clone();
                        self.start_by(publishing, start);
                    }
                }
            }
        }
    }

    /// There is no room for another instance of a workflow with so large an input.
    fn is_full_of(&self, workflow: &LiveWorkflow, bytes: usize) -> bool {
        let coordinator = self.coordinator();
        let most = workflow.program.max_instances.filter(|_| !has_rule(&workflow.program));
        most.is_some_and(|most| workflow.figures.live.load(Relaxed) >= most)
            || coordinator.bytes.take(INSTANCE_BYTES.saturating_add(bytes)).is_none()
            || coordinator.running.load(Relaxed) >= coordinator.limits.running
            || coordinator.instances.lock().len() >= coordinator.limits.instances
            || self.broker().journal().is_full()
    }

    /// Starts an instance for a message; one that is durable is on the disk before the message is acknowledged.
    fn start_by(self: &Arc<Self>, publishing: &mut Publishing<'_>, start: Start) {
        let workflow = start.workflow.clone();
        match self.enter_workflow(start) {
            Ok((running, _)) => self.begin_with(publishing, running),
            Err(error) => {
                workflow.figures.rejected.fetch_add(1, Relaxed);
                self.coordinator().figures.rejected.fetch_add(1, Relaxed);
                self.logs().add(
                    &workflow.name,
                    "",
                    LogLevel::Warn,
                    format!("an event starts nothing: {error}"),
                );
            }
        }
    }

    /// Begins an instance that has its place.
    pub(crate) fn begin_with(self: &Arc<Self>, publishing: &mut Publishing<'_>, running: Arc<Running>) {
        if !running.is_durable() || publishing.message().qos() == QoS::AtMostOnce {
            return self.spawn_drive(running, Queued::now(Event::Start));
        }
        let entries = {
            let mut state = running.state.lock();
            self.start_entries(&running, &mut state)
        };
        for (key, value) in entries {
            publishing.record(key, Some(value));
        }
        let dispatcher = self.clone();
        publishing.on_recorded(move |ticket| {
            dispatcher.spawn_drive(running, Queued::recorded(Event::Start, 0, ticket))
        });
    }

    /// Tells an instance of a message.
    fn tell(self: &Arc<Self>, publishing: &mut Publishing<'_>, running: &Arc<Running>, event: Event) {
        if !running.is_durable() || publishing.message().qos() == QoS::AtMostOnce {
            return self.tell_in_order(running, Queued::now(event));
        }
        let (number, key, value) = self.inbox_entry(running, &event);
        publishing.record(key, Some(value));
        let (dispatcher, running) = (self.clone(), running.clone());
        publishing.on_recorded(move |ticket| {
            dispatcher.tell_in_order(&running, Queued::recorded(event, number, ticket));
        });
    }

    /// The inputs of the instances that an event starts: at once, or when the workflow's rule says so.
    fn synthesize(&self, workflow: &Arc<LiveWorkflow>, source: usize, event: &Arc<Value>) -> Vec<Value> {
        let Some(on) = workflow.program.schedule.as_ref().and_then(|schedule| schedule.on.as_ref()) else {
            return Vec::new();
        };
        if !on.filters.get(source).is_some_and(|filter| filter.takes(event)) {
            return Vec::new();
        }
        if !has_rule(&workflow.program) {
            return vec![Value::Array(vec![(**event).clone()])];
        }
        let coordinator = self.coordinator();
        let now_ms = coordinator.time.now_ms();
        let mut rules = coordinator.rules.lock();
        let Some(synthesizer) = rules.of(workflow, now_ms) else { return Vec::new() };
        let due_ms = synthesizer.due_ms();
        match synthesizer.handle(source, event, now_ms) {
            Ok(firings) => {
                // Whoever waits for the rules need not be woken by each event.
                if synthesizer.due_ms().is_some_and(|due| due_ms.is_none_or(|before| due < before)) {
                    coordinator.rules_due.notify_one();
                }
                firings.iter().map(|firing| input_of_firing(&workflow.program, firing)).collect()
            }
            Err(error) => {
                drop(rules);
                self.logs().add(
                    &workflow.name,
                    "",
                    LogLevel::Warn,
                    format!("an event is not counted: {error}"),
                );
                Vec::new()
            }
        }
    }
}

/// A message as a CloudEvent, and whether it was none before.
fn event_of(message: &Message, unix_ms: u64) -> (Value, bool) {
    let properties = message.properties();
    if is_event(message) {
        let user = properties.map(|properties| properties.user.as_slice()).unwrap_or_default();
        let binary: Map<String, Value> =
            user.iter().map(|(name, value)| (name.to_string(), Value::from(&**value))).collect();
        if REQUIRED.iter().all(|name| binary.contains_key(*name)) {
            let mut event = binary;
            edgefaas_workflow::event::set_data(&mut event, message.payload());
            return (Value::Object(event), false);
        }
        if let Ok(event) = serde_json::from_slice::<Value>(message.payload())
            && is_cloud_event(&event)
        {
            return (event, false);
        }
    }
    let time = chrono::DateTime::<chrono::Utc>::from_timestamp_millis(unix_ms as i64).unwrap_or_default();
    let time = time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let id = Ulid::generate().to_string();
    (of_message(&id, "/mqtt", message.topic().as_str(), message.payload(), &time), true)
}

/// Whether a workflow starts only when several events have come together.
pub(super) fn has_rule(program: &Program) -> bool {
    let Some(schedule) = &program.schedule else { return false };
    let several = schedule.on.as_ref().is_some_and(|on| on.mode == Mode::All && on.filters.len() > 1);
    schedule.rule.is_some() || several
}

/// What an instance gets that a rule starts: what the rule found, or for `all` without one the events.
pub(super) fn input_of_firing(program: &Program, firing: &Firing) -> Value {
    let has_own = program.schedule.as_ref().is_some_and(|schedule| schedule.rule.is_some());
    match has_own {
        true => Value::Array(vec![edgefaas_workflow::instance::firing_value(firing, Read::Envelope)]),
        false => firing.events.iter().map(|event| (**event).clone()).collect(),
    }
}

fn is_event(message: &Message) -> bool {
    message.properties().is_some_and(|properties| {
        properties.content_type.as_deref().is_some_and(|kind| kind.starts_with(CLOUD_EVENT))
            || REQUIRED.iter().all(|name| properties.user.iter().any(|(key, _)| **key == **name))
    })
}

pub(crate) fn trace_parent(message: &Message) -> Option<String> {
    let user = message.properties().map(|properties| properties.user.as_slice()).unwrap_or_default();
    user.iter().find(|(name, _)| &**name == "traceparent").map(|(_, value)| value.to_string())
}
