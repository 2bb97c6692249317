//! Published messages as events: the workflows that they start, and the instances that wait for them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_broker::{Message, Origin, Publishing, QoS, RejectReason, Verdict, Version};
use edgefaas_functions::durable::{Digest, KeyClaim, digest};
use edgefaas_functions::registry::{Interest, LiveWorkflow, Routes, Waiter, has_rule};
use edgefaas_functions::trace::{Entry, TRACE_PARENT};
use edgefaas_isolates::LogLevel;
use edgefaas_manifest::Succession;
use edgefaas_platform::Taken;
use edgefaas_workflow::event::{is_cloud_event, of_message};
use edgefaas_workflow::instance::FrameId;
use edgefaas_workflow::{Event, weight};
use serde_json::{Map, Value};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::inbox::NoRoomForEvent;
use super::instance::{Running, Start};
use super::outgoing_messages::CLOUD_EVENT;
use super::place::Place;
use super::root_budget::{Charge, NodeBudget};
use super::run_state::INSTANCE_BYTES;
use super::start_lanes::{Arrival, LaneRoom, StartEvent};

/// The attributes of a CloudEvent in binary mode (CloudEvents MQTT binding, section 3.1).
const REQUIRED: [&str; 4] = ["specversion", "id", "source", "type"];

/// A message and the workflows that wait for it, with the room reserved for each.
pub struct Offered {
    event: Arc<Value>,
    event_bytes: usize,
    /// The event's memory, shared by all instances that receive it.
    held: Option<Arc<Taken>>,
    arrival: Arrival,
    deliveries: Vec<Delivery>,
    starts: Vec<Arc<LiveWorkflow>>,
    lanes: Vec<(Arc<LiveWorkflow>, Interest, LaneRoom)>,
}

/// A message for an instance that waits for it.
struct Delivery {
    running: Arc<Running>,
    frame: FrameId,
    source: u32,
    charge: Charge,
}

impl Offered {
    /// Charges the event's memory once for all instances that receive it.
    fn hold_event(&mut self, budget: &NodeBudget) -> Result<&Arc<Taken>, NoRoomForEvent> {
        let held = match self.held.take() {
            Some(held) => held,
            None => Arc::new(budget.take(self.event_bytes)?),
        };
        Ok(self.held.insert(held))
    }
}

impl Coordinator {
    /// The workflows that wait for a message, with reserved room; `None` without any. No instance has changed yet.
    ///
    /// # Errors
    /// A workflow has no room for the message: the verdict for its publisher.
    pub fn offered_to_workflows(&self, publishing: &Publishing<'_>) -> Result<Option<Offered>, Verdict> {
        let routes = self.registry.routes();
        let starts = routes.starts();
        if starts.is_empty() && self.interests.is_empty() {
            return Ok(None);
        }
        let message = publishing.message();
        let topic = message.topic().as_str();
        let interests = &self.interests;
        let by_topic = || starts.wants_topic(topic) || interests.wants_topic(topic);
        let by_type = || is_event(message) && (starts.wants_events() || interests.wants_events());
        if !by_topic() && !by_type() {
            return Ok(None);
        }
        let unix_ms = self.clock.now_unix_ms();
        let (event, plain) = event_of(message, unix_ms);
        let found_by = plain.then_some(topic);
        let mut found = starts.matching(found_by, &event, unix_ms);
        found.extend(interests.matching(found_by, &event, unix_ms));
        if found.is_empty() {
            return Ok(None);
        }
        self.figures.events.fetch_add(1, Relaxed);
        let event_bytes = weight(&event);
        let mut offered = Offered {
            event: Arc::new(event),
            event_bytes,
            held: None,
            arrival: Arrival {
                now_ms: self.time.now_ms(),
                unix_ms,
                payload_bytes: message.payload().len(),
                depth: match publishing.origin() {
                    Origin::Node { depth, .. } => *depth,
                    _ => 0,
                },
                trace_parent: trace_parent(message),
                topic: digest(&[topic.as_bytes()]),
            },
            deliveries: Vec::new(),
            starts: Vec::new(),
            lanes: Vec::new(),
        };
        for interest in found {
            if let Err(refusal) = self.reserve_room(publishing, &routes, interest, &mut offered) {
                self.figures.rejected.fetch_add(1, Relaxed);
                return Err(refusal);
            }
        }
        Ok(Some(offered))
    }

    /// Reserves room for a message with one waiter.
    ///
    /// # Errors
    /// The waiter has no room, and the publisher can be refused.
    fn reserve_room(
        &self,
        publishing: &Publishing<'_>,
        routes: &Routes,
        interest: Interest,
        offered: &mut Offered,
    ) -> Result<(), Verdict> {
        let qos = publishing.message().qos();
        let can_refuse = qos > QoS::AtMostOnce;
        match &interest.waiter {
            Waiter::Instance(id, frame) => {
                let Some(running) = self.find(*id) else { return Ok(()) };
                let is_full = || self.broker.wal().is_full();
                let event = offered.hold_event(&self.budget);
                match event.and_then(|event| running.reserve(event, qos, is_full)) {
                    Ok(charge) => {
                        let (frame, source) = (*frame, interest.source);
                        offered.deliveries.push(Delivery { running, frame, source, charge });
                    }
                    Err(_) if can_refuse => return Err(self.refusal(publishing)),
                    Err(reason) => self.drop_event(&running.workflow, &id.to_string(), &reason),
                }
            }
            Waiter::Start(name) => {
                let Some(workflow) = routes.workflow(name) else { return Ok(()) };
                // Checked before any change, since the message may be offered again.
                let (depth, payload_bytes) = (offered.arrival.depth, offered.arrival.payload_bytes);
                if depth == 0 && self.is_out_of_room_for(workflow, payload_bytes) {
                    if can_refuse {
                        workflow.figures.rejected.fetch_add(1, Relaxed);
                        return Err(self.refusal(publishing));
                    }
                    self.count_rejected(workflow);
                    return Ok(());
                }
                if !workflow.needs_lane {
                    if self.starts_by(workflow, interest.source as usize, &offered.event) {
                        offered.starts.push(workflow.clone());
                    }
                    return Ok(());
                }
                match self.lanes.reserve(name, offered.event_bytes, self.budget.bytes()) {
                    Ok(room) => offered.lanes.push((workflow.clone(), interest, room)),
                    Err(_) if can_refuse => return Err(self.refusal(publishing)),
                    Err(reason) => self.drop_event(workflow, "", &reason),
                }
            }
        }
        Ok(())
    }

    /// The verdict for the publisher of a message without room.
    fn refusal(&self, publishing: &Publishing<'_>) -> Verdict {
        // MQTT 3.1.1 has no negative acknowledgement.
        match publishing.origin() {
            Origin::Client(client) if client.version == Version::V311 => {
                Verdict::Block(self.wait_for_room())
            }
            _ => Verdict::Reject(RejectReason::QuotaExceeded),
        }
    }

    /// True if an event starts a workflow whose filters are evaluated in the publish hook.
    fn starts_by(&self, workflow: &LiveWorkflow, source: usize, event: &Value) -> bool {
        let on = workflow.program.schedule.as_ref().and_then(|schedule| schedule.on.as_ref());
        on.and_then(|on| on.filters.get(source)).is_some_and(|filter| filter.takes(event))
    }

    /// Delivers a message to the workflows that wait for it. Subscribers receive it as well.
    pub fn deliver_to_workflows(self: &Arc<Self>, publishing: &mut Publishing<'_>, offered: Offered) {
        let Offered { event, arrival, deliveries, starts, lanes, .. } = offered;
        for Delivery { running, frame, source, charge } in deliveries {
            let message = Event::Message { frame, source, event: event.clone() };
            self.deliver(publishing, &running, message, charge);
        }
        for workflow in starts {
            let input = Value::Array(vec![(*event).clone()]);
            let mut start = Start::new(workflow, input, arrival.payload_bytes);
            start.depth = arrival.depth;
            start.trace_parent.clone_from(&arrival.trace_parent);
            start.entry = Entry::Message;
            let key = order_key(&start.workflow, &event, &arrival);
            start.place = self.place_of(&start.workflow, &key);
            self.start_by_message(publishing, start, &key);
        }
        for (workflow, Interest { source, filter, .. }, room) in lanes {
            let (event, arrival) = (event.clone(), arrival.clone());
            let mut event = StartEvent { source, filter, event, arrival, number: None };
            if !workflow.program.durable || publishing.message().qos() == QoS::AtMostOnce {
                self.enqueue_start(room, event);
                continue;
            }
            let number = self.next_start_event();
            event.number = Some(number);
            let (key, value) = super::event_log::start_event_entry(&workflow.name, number, &event);
            publishing.record(key, Some(value));
            let coordinator = self.clone();
            publishing.on_recorded(move |_| coordinator.enqueue_start(room, event));
        }
    }

    /// True if a workflow has no room for another instance with an input of `bytes` bytes.
    fn is_out_of_room_for(&self, workflow: &LiveWorkflow, bytes: usize) -> bool {
        let max_instances = workflow.program.max_instances.filter(|_| !has_rule(&workflow.program));
        max_instances.is_some_and(|max| workflow.figures.live.load(Relaxed) >= max)
            || !self.has_room_for(workflow, INSTANCE_BYTES.saturating_add(bytes))
            || !self.may_run_another(workflow)
            || !workflow.program.durable && self.full_function(workflow).is_some()
            || self.instances.lock().len() >= self.limits.instances
            || self.broker.wal().is_full()
    }

    /// Starts an instance for a message. A durable instance is on the disk before the message is acknowledged.
    fn start_by_message(self: &Arc<Self>, publishing: &mut Publishing<'_>, start: Start, key: &Digest) {
        let workflow = start.workflow.clone();
        match self.enter_workflow(start) {
            Ok(running) => self.begin_of_key(publishing, running, None, key),
            Err(error) => {
                self.count_rejected(&workflow);
                self.logs.add(
                    &workflow.name,
                    "",
                    LogLevel::Warn,
                    format!("an event starts no instance: {error}"),
                );
            }
        }
    }

    /// The place of a start among those of the same [key](order_key), if they run one after another.
    pub(super) fn place_of(&self, workflow: &LiveWorkflow, key: &Digest) -> Option<Place> {
        match workflow.order.succession {
            Succession::Run => Some(self.places.place(&workflow.name, key)),
            Succession::Start => None,
        }
    }

    /// Begins an instance that a call by topic has registered. `claim` is that of its key, if it has one.
    pub fn begin_with(
        self: &Arc<Self>,
        publishing: &mut Publishing<'_>,
        running: Arc<Running>,
        claim: Option<KeyClaim>,
    ) {
        let topic = digest(&[publishing.message().topic().as_str().as_bytes()]);
        self.begin_of_key(publishing, running, claim, &topic);
    }

    /// Begins a registered instance after the earlier ones of the same key.
    fn begin_of_key(
        self: &Arc<Self>,
        publishing: &mut Publishing<'_>,
        running: Arc<Running>,
        claim: Option<KeyClaim>,
        key: &Digest,
    ) {
        // The turn is taken here, in the order of the messages.
        let turn = running.held.is_none().then(|| self.turns.turn(&running.workflow.name, key));
        if !running.is_durable() || publishing.message().qos() == QoS::AtMostOnce {
            return self.begin_in_order(running, Queued::now(Event::Start), turn);
        }
        let entries = {
            let mut state = running.state.lock();
            self.start_entries(&running, &mut state, claim.as_ref())
        };
        for (key, value) in entries {
            publishing.record(key, Some(value));
        }
        let coordinator = self.clone();
        publishing.on_recorded(move |ticket| {
            if let Some(claim) = claim {
                coordinator.durable.external_recorded(running.id, claim, ticket);
            }
            coordinator.begin_in_order(running, Queued::recorded(Event::Start, 0, ticket), turn)
        });
    }

    /// Delivers a message to an instance.
    fn deliver(
        self: &Arc<Self>,
        publishing: &mut Publishing<'_>,
        running: &Arc<Running>,
        event: Event,
        charge: Charge,
    ) {
        if !running.is_durable() || publishing.message().qos() == QoS::AtMostOnce {
            return self.deliver_in_order(running, Queued { charge: Some(charge), ..Queued::now(event) });
        }
        let (number, key, value) = self.inbox_entry(running, &event);
        publishing.record(key, Some(value));
        let (coordinator, running) = (self.clone(), running.clone());
        publishing.on_recorded(move |ticket| {
            let queued = Queued { charge: Some(charge), ..Queued::recorded(event, number, ticket) };
            coordinator.deliver_in_order(&running, queued);
        });
    }
}

/// The digest of the key that orders an instance among those of its workflow: the topic, or the value of the expression in
/// `order_by` for the event. If the expression fails, the value is null.
pub(super) fn order_key(workflow: &LiveWorkflow, event: &Value, arrival: &Arrival) -> Digest {
    match &workflow.order.key {
        None => arrival.topic,
        Some(expression) => {
            let key = expression.eval_json(event, arrival.unix_ms).unwrap_or_default();
            digest(&[b"key", key.to_string().as_bytes()])
        }
    }
}

/// A message as a CloudEvent; true if the message was not a CloudEvent itself.
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
    let mut event = of_message(&id, "/mqtt", message.topic().as_str(), message.payload(), &time);
    if let (Some(properties), Value::Object(event)) = (properties, &mut event) {
        if !properties.user.is_empty() {
            let headers =
                properties.user.iter().map(|(name, value)| (name.to_string(), Value::from(&**value)));
            event.insert("headers".to_owned(), Value::Object(headers.collect()));
        }
        let correlation = properties.correlation_data.as_deref();
        if let Some(id) = correlation.and_then(|data| std::str::from_utf8(data).ok()) {
            event.insert("correlationid".to_owned(), Value::from(id));
        }
    }
    (event, true)
}

fn is_event(message: &Message) -> bool {
    message.properties().is_some_and(|properties| {
        properties.content_type.as_deref().is_some_and(|kind| kind.starts_with(CLOUD_EVENT))
            || REQUIRED.iter().all(|name| properties.user.iter().any(|(key, _)| **key == **name))
    })
}

/// W3C trace context of a message: its user property `traceparent`.
pub fn trace_parent(message: &Message) -> Option<String> {
    let user = message.properties().map(|properties| properties.user.as_slice()).unwrap_or_default();
    user.iter().find(|(name, _)| &**name == TRACE_PARENT).map(|(_, value)| value.to_string())
}
