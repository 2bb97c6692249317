//! MQTT as a way in: triggers on topics, and calls on `$faas/fn/NAME/invoke`.
//!
//! The hook sits in the broker's publish path. It decides at once and starts what is to run; it never
//! waits for a function.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Client, Message, Origin, PublishHook, Publishing, QoS, RejectReason, Verdict, Version,
};
use edgefaas_coordinator::{Coordinator, Start, input_of, trace_parent};
use edgefaas_functions::answer::Answer;
use edgefaas_functions::dead_letter;
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::{
    Acceptance, AnswerTo, Claim, Digest, Durable, DurableQueue, Keep, Lookup, NoRoom, digest,
};
use edgefaas_functions::invocation::{Invocation, InvocationError, Outcome, Principal};
use edgefaas_functions::invoker::{Admitted, Invoker};
use edgefaas_functions::problem::Problem;
use edgefaas_functions::publisher::{ClientRecord, Publisher};
use edgefaas_functions::registry::{LiveFunction, Registry};
use edgefaas_functions::topics::{self, Call, CallKind, DEAD_LETTERS, is_open, may_trigger, parse_call};
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{Event, MqttMessage, Reply, Trigger};
use edgefaas_manifest::WhenFull;
use parking_lot::Mutex;
use ulid::Ulid;

/// Who publishes replies for functions that can't be named, in hooks and logs.
const NODE: &str = "$node";
/// Calls that were made again and wait for the answer of the first.
const MAX_REPEATED: usize = 1024;

/// What messages start, and where their answers go.
pub struct Targets {
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Keeps calls and messages of QoS 1 and 2.
    pub durable: Arc<DurableQueue>,
    /// Runs workflows.
    pub coordinator: Arc<Coordinator>,
    /// Publishes answers.
    pub publisher: Arc<Publisher>,
    /// Waits for answers when the node stops.
    pub drain: Arc<Drain>,
}

/// Starts functions for the messages that pass.
pub struct CoordinationHook {
    // The targets own the broker, and the broker this hook.
    targets: OnceLock<Weak<Targets>>,
    workers: Arc<Workers>,
    repeated: Arc<Mutex<HashSet<Repeated>>>,
}

/// A call that was made again, and where its answer goes.
type Repeated = (Ulid, Digest);

impl CoordinationHook {
    /// A hook without targets: it forwards everything.
    pub fn new(workers: Arc<Workers>) -> Self {
        Self { targets: OnceLock::new(), workers, repeated: Arc::default() }
    }

    /// From now on messages start functions and workflows. Set once.
    pub fn attach(&self, targets: &Arc<Targets>) {
        let _ = self.targets.set(Arc::downgrade(targets));
    }

    /// `$faas/…`: calls are taken, results pass if the node made them and dead letters and events run functions as well,
    /// nothing else is let through.
    fn on_own_topic(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        topic: &str,
    ) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let Some(call) = parse_call(topic) else {
            return match origin {
                Origin::Node { .. } if may_trigger(topic) => self.observed(targets, publishing),
                Origin::Node { .. } => Verdict::Forward,
                _ => Verdict::Reject(RejectReason::NotAuthorized),
            };
        };
        let answer = answer_to(answer_topic(&call, message), origin, message);
        let started = match call.kind {
            CallKind::Function => self.call_function(targets, publishing, &call, &answer),
            CallKind::Workflow => call_workflow(targets, publishing, &call, &answer),
        };
        started.unwrap_or_else(|error| refuse_call(targets, origin, message, answer.as_ref(), &error))
    }

    fn call_function(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        call: &Call<'_>,
        answer: &Option<Answer>,
    ) -> Result<Verdict, InvocationError> {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = targets.registry.routes();
        let Some(function) = routes.function(call.function) else {
            let near = routes.near_functions(call.function);
            return Err(InvocationError::UnknownFunction { name: call.function.to_owned(), near });
        };
        let invocation = invocation(call.function.to_owned(), origin, message);
        if message.qos() > QoS::AtMostOnce {
            targets.invoker.check_durable(function, &invocation)?;
            return Ok(self.accept_call(targets, publishing, function, call, invocation, answer.clone()));
        }
        let admitted = targets.invoker.admit_to(function.clone(), invocation)?;
        self.start(targets, admitted, answer.clone());
        Ok(Verdict::Consume)
    }

    /// A call of QoS 1 or 2 is on the disk before it is acknowledged.
    fn accept_call(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        function: &Arc<LiveFunction>,
        call: &Call<'_>,
        invocation: Invocation,
        answer: Option<Answer>,
    ) -> Verdict {
        let origin = publishing.origin();
        let mut durable = Durable { answer: answer.as_ref().map(answer_record), ..Durable::default() };
        if let Some(request_id) = call.request_id {
            let asker = asker_digest(origin);
            let key = digest(&[b"mqtt", function.name.as_bytes(), &asker, request_id.as_bytes()]);
            let id = Ulid::from_string(&invocation.id).unwrap_or_default();
            match targets.durable.claim(key, digest(&[&invocation.event.body]), id) {
                Ok(Claim::New(claim)) => durable.claim = Some(claim),
                Ok(Claim::Known(id)) => {
                    self.acknowledge_with_first(targets, publishing, id);
                    return match answer {
                        Some(answer) => self.answer_again(targets, function, id, answer),
                        None => Verdict::Consume,
                    };
                }
                Ok(Claim::Conflict) => {
                    let detail = format!("REQUEST-ID `{request_id}` was used with another payload before");
                    let problem = Problem::new(422, "Request id used before", detail);
                    if let Some(answer) = &answer {
                        send(targets, &Arc::from(NODE), answer, Err(problem));
                    }
                    return Verdict::Consume;
                }
                Err(error) => {
                    tracing::error!(%error, "a call is refused");
                    return Verdict::Reject(RejectReason::Unspecified);
                }
            }
            durable.keep = Some(Keep { key: Some(key), auth: None });
        }
        match targets.durable.reserve_for(function, publishing.message().weight()) {
            Ok(slot) => {
                let acceptance = targets.durable.prepare(slot, invocation, durable);
                record(targets, publishing, function, acceptance);
                Verdict::Consume
            }
            Err(no_room) => {
                let waits = no_room.when_full == WhenFull::Block || !can_be_told(origin);
                match answer.filter(|_| !waits) {
                    Some(answer) => {
                        function.metrics.record_rejected();
                        let name = function.name.to_string();
                        let error = match targets.durable.disk_full(publishing.message().weight()) {
                            None => InvocationError::QueueFull {
                                function: name,
                                capacity: function.admission.capacity(),
                            },
                            Some(error) => InvocationError::NotStored { function: name, error },
                        };
                        send(targets, &function.name, &answer, Err(Problem::of(&error, None)));
                        Verdict::Reject(RejectReason::QuotaExceeded)
                    }
                    None => refuse(function, origin, no_room),
                }
            }
        }
    }

    /// A repeated call is acknowledged when the first is on the disk, and not before.
    fn acknowledge_with_first(&self, targets: &Arc<Targets>, publishing: &mut Publishing<'_>, id: Ulid) {
        let is_stored = move |durable: &DurableQueue| !matches!(durable.lookup(id), Ok(Lookup::Unknown));
        if is_stored(&targets.durable) {
            return;
        }
        let (durable, held) = (targets.durable.clone(), publishing.hold());
        self.workers.spawn(async move {
            durable.settled(id).await;
            held.complete(if is_stored(&durable) { Ok(()) } else { Err(RejectReason::Unspecified) });
        });
    }

    /// A call that was made before is not made again: its answer is published here as well, once it is there.
    fn answer_again(
        &self,
        targets: &Arc<Targets>,
        function: &Arc<LiveFunction>,
        id: Ulid,
        answer: Answer,
    ) -> Verdict {
        let to = digest(&[
            answer.topic.as_str().as_bytes(),
            answer.correlation_data.as_deref().unwrap_or_default(),
        ]);
        let mut repeated = self.repeated.lock();
        if repeated.len() >= MAX_REPEATED {
            let detail = format!("{MAX_REPEATED} calls that were made again wait for their answers");
            let problem = Problem::new(429, "Too many repeated calls", detail);
            drop(repeated);
            send(targets, &function.name, &answer, Err(problem));
            return Verdict::Reject(RejectReason::QuotaExceeded);
        }
        if !repeated.insert((id, to)) {
            return Verdict::Consume;
        }
        drop(repeated);
        let (targets, source, repeated) = (targets.clone(), function.name.clone(), self.repeated.clone());
        self.workers.spawn(async move {
            let result = first_result(&targets, id, &answer).await;
            repeated.lock().remove(&(id, to));
            if let Some(result) = result {
                send(&targets, &source, &answer, result);
            }
        });
        Verdict::Consume
    }

    /// Any topic that workflows and triggers may be about.
    fn observed(&self, targets: &Arc<Targets>, publishing: &mut Publishing<'_>) -> Verdict {
        let offered = match targets.coordinator.offered_to_workflows(publishing) {
            Ok(offered) => offered,
            Err(no_room) => return no_room,
        };
        let verdict = self.on_topic(targets, publishing);
        // What is refused has started nothing, since it may be offered again.
        if let Some(offered) = offered
            && !matches!(verdict, Verdict::Reject(_) | Verdict::Block(_))
        {
            targets.coordinator.give_to_workflows(publishing, offered);
        }
        verdict
    }

    /// Any other topic: every trigger that matches gets the message.
    fn on_topic(&self, targets: &Arc<Targets>, publishing: &mut Publishing<'_>) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = targets.registry.routes();
        let mut verdict = Verdict::Forward;
        let mut accepted = Vec::new();
        let mut plain: Vec<(Arc<LiveFunction>, bool)> = Vec::new();
        let mut refused = None;
        let given_up = message.topic().as_str().strip_prefix(DEAD_LETTERS);
        // Functions that fail with each other's dead letters would start each other without end.
        if given_up.is_some() && is_letter_about_letter(message) {
            return Verdict::Forward;
        }
        // First whether there is room for all that are to be kept: where one has none, nothing is to have happened.
        routes.for_each_mqtt(message.topic().as_str(), |route| {
            // What it could not do it would not do better with its own dead letter, and again and again.
            if given_up == Some(&*route.function.name) {
                return;
            }
            if message.qos().min(route.qos) == QoS::AtMostOnce {
                plain.push((route.function.clone(), route.consume));
            } else if refused.is_none() {
                match targets.durable.reserve_for(&route.function, message.weight()) {
                    Ok(slot) => accepted.push((route.function.clone(), route.consume, route.ordered, slot)),
                    Err(no_room) => refused = Some(refuse(&route.function, origin, no_room)),
                }
            }
        });
        if let Some(refused) = refused {
            return refused;
        }
        for (function, consume, ordered, slot) in accepted {
            let invocation = invocation(function.name.to_string(), origin, message);
            let answer = answer_to(open_response_topic(message), origin, message);
            if let Err(error) = targets.invoker.check_durable(&function, &invocation) {
                function.metrics.record_rejected();
                lose(targets, &function, answer.as_ref(), &error);
                if consume && matches!(verdict, Verdict::Forward) {
                    verdict = Verdict::Reject(reject_reason(&error));
                }
                continue;
            }
            let durable = Durable {
                order_key: ordered.then(|| order_key(message.topic().as_str())),
                answer: answer.as_ref().map(answer_record),
                ..Durable::default()
            };
            record(targets, publishing, &function, targets.durable.prepare(slot, invocation, durable));
            if consume {
                verdict = Verdict::Consume;
            }
        }
        // Those first that may refuse it: a message that is refused has run nothing, since it may be offered again.
        plain.sort_by_key(|(_, consume)| !consume);
        for (function, consume) in plain {
            if !consume && matches!(verdict, Verdict::Reject(_)) {
                break;
            }
            let answer = answer_to(open_response_topic(message), origin, message);
            let invocation = invocation(function.name.to_string(), origin, message);
            match targets.invoker.admit_to(function.clone(), invocation) {
                Ok(admitted) => {
                    self.start(targets, admitted, answer);
                    if consume {
                        verdict = Verdict::Consume;
                    }
                }
                Err(error) => {
                    // Of QoS 0: what finds no room is dropped, counted and said.
                    if !(consume && is_offered_again(origin, message)) {
                        lose(targets, &function, answer.as_ref(), &error);
                    }
                    // Nobody else would see it: it is refused, not lost.
                    if consume && matches!(verdict, Verdict::Forward) {
                        verdict = Verdict::Reject(reject_reason(&error));
                    }
                }
            }
        }
        verdict
    }

    fn start(&self, targets: &Arc<Targets>, admitted: Admitted, answer: Option<Answer>) {
        let targets = targets.clone();
        let in_flight = targets.drain.in_flight();
        self.workers.spawn(async move {
            let _in_flight = in_flight;
            let source = admitted.function_name();
            let Outcome { id, result, .. } = targets.invoker.run(admitted).await;
            if let Some(answer) = answer {
                let result = result.map_err(|error| Problem::of(&error, Some(&id)));
                send(&targets, &source, &answer, result);
            }
        });
    }
}

/// Starts a workflow that is called by topic.
fn call_workflow(
    targets: &Arc<Targets>,
    publishing: &mut Publishing<'_>,
    call: &Call<'_>,
    answer: &Option<Answer>,
) -> Result<Verdict, InvocationError> {
    let (origin, message) = (publishing.origin(), publishing.message());
    let routes = targets.registry.routes();
    let Some(workflow) = routes.workflow(call.function) else {
        let near = routes.near_workflows(call.function);
        return Err(InvocationError::UnknownFunction { name: call.function.to_owned(), near });
    };
    let mut start = Start::new(workflow.clone(), input_of(message.payload()), message.payload().len());
    start.depth = depth_of(origin);
    start.trace_parent = trace_parent(message);
    start.answer = answer.as_ref().map(answer_record);
    let running = targets.coordinator.enter_workflow(start)?;
    targets.coordinator.begin_with(publishing, running);
    Ok(Verdict::Consume)
}

/// Where the answer of a call goes: the response topic if it is open or one of the call's results, else the result topic.
fn answer_topic(call: &Call<'_>, message: &Message) -> Option<TopicName> {
    let topic = message.properties().and_then(|properties| properties.response_topic.clone());
    topic
        .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
        .or_else(|| call.result_topic())
}

impl PublishHook for CoordinationHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let targets = self.targets.get().and_then(Weak::upgrade);
        let Some(targets) = targets else { return Verdict::Forward };
        let topic = publishing.message().topic().as_str();
        if topic.starts_with(topics::PREFIX) {
            return self.on_own_topic(&targets, publishing, topic);
        }
        self.observed(&targets, publishing)
    }
}

/// True if what was given up was itself the handling of a dead letter. Only the node publishes these: what they say is so.
fn is_letter_about_letter(message: &Message) -> bool {
    let user = message.properties().map(|properties| properties.user.as_slice()).unwrap_or_default();
    user.iter()
        .any(|(name, topic)| &**name == dead_letter::TOPIC_PROPERTY && topic.starts_with(DEAD_LETTERS))
}

/// True if a message that is refused is offered again by the node itself: nothing is lost, and it need not be said.
fn is_offered_again(origin: &Origin, message: &Message) -> bool {
    message.qos() > QoS::AtMostOnce && matches!(origin, Origin::Node { .. })
}

/// How the first call ended of which this is a repetition; nothing if that goes to the same place by itself.
async fn first_result(targets: &Targets, id: Ulid, answer: &Answer) -> Option<Result<Reply, Problem>> {
    let durable = &targets.durable;
    loop {
        let ended = durable.ended(id);
        let claimed = durable.is_claimed(id);
        match durable.lookup(id) {
            Ok(Lookup::Done(_, outcome)) => return Some(outcome.into_result(id).0),
            Ok(Lookup::Pending(_)) => {
                let first = durable.answer_to(id);
                let is_same = first.is_some_and(|to| {
                    to.topic == answer.topic.as_str() && to.correlation_data == answer.correlation_data
                });
                if is_same || ended.await.is_err() {
                    return None;
                }
            }
            Ok(Lookup::Unknown) if claimed => durable.settled(id).await,
            Ok(Lookup::Unknown | Lookup::Gone) => {
                let detail = "the first call with this REQUEST-ID could not be taken; make it again";
                return Some(Err(Problem::new(503, "Not accepted", detail)));
            }
            Err(error) => {
                tracing::error!(%error, "an answer cannot be published again");
                return None;
            }
        }
    }
}

/// What a publisher is told in its acknowledgement.
fn reject_reason(error: &InvocationError) -> RejectReason {
    match error.status() {
        404 => RejectReason::TopicNameInvalid,
        // What is too large will be no smaller later.
        429 | 507 => RejectReason::QuotaExceeded,
        _ => RejectReason::ImplementationSpecific,
    }
}

/// What becomes of a message for which there is no room.
fn refuse(function: &LiveFunction, origin: &Origin, no_room: NoRoom) -> Verdict {
    match no_room.when_full {
        WhenFull::Block => Verdict::Block(no_room.room),
        // It would take a refusal for a success: it waits in place of it.
        _ if !can_be_told(origin) => Verdict::Block(no_room.room),
        _ => {
            function.metrics.record_rejected();
            Verdict::Reject(RejectReason::QuotaExceeded)
        }
    }
}

/// What becomes of a call that is not accepted. Its answer says why. The acknowledgement says so too where the same call may be
/// accepted later: its publisher may look at nothing else.
fn refuse_call(
    targets: &Targets,
    origin: &Origin,
    message: &Message,
    answer: Option<&Answer>,
    error: &InvocationError,
) -> Verdict {
    let is_for_now = matches!(error.status(), 429 | 503 | 507) && message.qos() > QoS::AtMostOnce;
    if is_for_now && !can_be_told(origin) {
        // It would take a refusal for a success: it waits in place of it.
        return Verdict::Block(targets.coordinator.wait_for_room());
    }
    let Some(answer) = answer else { return Verdict::Reject(reject_reason(error)) };
    send(targets, &Arc::from(NODE), answer, Err(Problem::of(error, None)));
    if is_for_now { Verdict::Reject(reject_reason(error)) } else { Verdict::Consume }
}

/// MQTT 3.1.1 has no negative acknowledgement.
fn can_be_told(origin: &Origin) -> bool {
    !matches!(origin, Origin::Client(client) if client.version == Version::V311)
}

/// Stores an invocation with the message; it runs as soon as that is certain.
fn record(
    targets: &Arc<Targets>,
    publishing: &mut Publishing<'_>,
    function: &Arc<LiveFunction>,
    mut acceptance: Acceptance,
) {
    for (key, value) in std::mem::take(&mut acceptance.entries) {
        publishing.record(key, Some(value));
    }
    let (targets, function) = (targets.clone(), function.clone());
    publishing.on_recorded(move |ticket| targets.durable.run_accepted(&function, acceptance, Some(ticket)));
}

/// Says that a message does not run a function.
fn lose(targets: &Arc<Targets>, function: &LiveFunction, answer: Option<&Answer>, error: &InvocationError) {
    targets.invoker.log_dropped(&function.name, error);
    if let Some(answer) = answer {
        send(targets, &function.name, answer, Err(Problem::of(error, None)));
    }
}

fn send(targets: &Targets, source: &Arc<str>, answer: &Answer, result: Result<Reply, Problem>) {
    if let Some(message) = answer.message(result, targets.publisher.max_message_bytes()) {
        targets.publisher.answer(source, answer.depth.saturating_add(1), answer.requester.clone(), message);
    }
}

fn open_response_topic(message: &Message) -> Option<TopicName> {
    let topic = message.properties().and_then(|properties| properties.response_topic.clone());
    topic.filter(|topic| is_open(topic.as_str()))
}

fn answer_to(topic: Option<TopicName>, origin: &Origin, message: &Message) -> Option<Answer> {
    let properties = message.properties();
    Some(Answer {
        topic: topic?,
        correlation_data: properties.and_then(|properties| properties.correlation_data.clone()),
        depth: depth_of(origin),
        requester: requester(origin),
    })
}

fn answer_record(answer: &Answer) -> AnswerTo {
    AnswerTo {
        topic: answer.topic.as_str().to_owned(),
        correlation_data: answer.correlation_data.clone(),
        requester: answer.requester.as_deref().map(ClientRecord::from),
    }
}

/// Topics that differ have different ones, as good as always.
fn order_key(topic: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest(&[topic.as_bytes()]);
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn requester(origin: &Origin) -> Option<Arc<Client>> {
    match origin {
        Origin::Client(client) => Some(client.clone()),
        Origin::Node { requester, .. } => requester.clone(),
        _ => None,
    }
}

/// Stands for who asks: what one asker was answered is no other one's business. Without a name a client is who it says
/// it is.
fn asker_digest(origin: &Origin) -> Digest {
    match origin {
        Origin::Client(client) => match &client.username {
            Some(name) => digest(&[b"user", name.as_bytes()]),
            None => digest(&[b"client", client.client_id.as_bytes()]),
        },
        Origin::Node { source, .. } => digest(&[b"function", source.as_bytes()]),
        Origin::Bridge { client_id } => digest(&[b"bridge", client_id.as_bytes()]),
        _ => digest(&[b"node"]),
    }
}

fn depth_of(origin: &Origin) -> u8 {
    match origin {
        Origin::Node { depth, .. } => *depth,
        _ => 0,
    }
}

fn invocation(function: String, origin: &Origin, message: &Message) -> Invocation {
    let principal = match origin {
        Origin::Client(client) => Principal::Mqtt { client_id: client.client_id.to_string() },
        Origin::Node { source, .. } => Principal::Function { name: source.to_string() },
        _ => Principal::Operator,
    };
    let properties = message.properties();
    let user = properties.map(|properties| properties.user.as_slice()).unwrap_or_default();
    let event = Event {
        trigger: Trigger::Mqtt(MqttMessage {
            topic: message.topic().as_str().to_owned(),
            qos: match message.qos() {
                QoS::AtMostOnce => 0,
                QoS::AtLeastOnce => 1,
                QoS::ExactlyOnce => 2,
            },
            retain: message.retain(),
            content_type: properties.and_then(|p| p.content_type.as_ref().map(ToString::to_string)),
            response_topic: properties
                .and_then(|p| p.response_topic.as_ref().map(|topic| topic.as_str().to_owned())),
            correlation_data: properties.and_then(|p| p.correlation_data.clone()),
            user_properties: user.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        }),
        body: message.payload_bytes(),
    };
    let mut invocation = Invocation::new(function, principal, event);
    invocation.trace_parent = trace_parent(message);
    invocation.depth = depth_of(origin);
    invocation
}
