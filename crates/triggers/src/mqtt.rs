//! MQTT triggers, and calls of functions and workflows by topic, such as `$faas/fn/NAME/invoke`.
//!
//! The hook runs in the broker's publish path. It returns a verdict immediately and starts invocations on other tasks; it never
//! waits for a function.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Client, Message, Origin, PublishHook, Publishing, QoS, RejectReason, Verdict, Version,
};
use edgefaas_coordinator::{Coordinator, KeptCall, Start, declared_input_of, trace_parent};
use edgefaas_functions::answer::Answer;
use edgefaas_functions::dead_letter;
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::{
    Acceptance, AnswerTo, Claim, Digest, Durable, DurableQueue, Keep, KeyClaim, Lookup, NoRoom, digest,
};
use edgefaas_functions::invocation::{Invocation, InvocationError, Outcome, Principal};
use edgefaas_functions::invoker::{Admitted, Invoker};
use edgefaas_functions::problem::Problem;
use edgefaas_functions::publisher::{ClientRecord, Publisher};
use edgefaas_functions::registry::{LiveFunction, Registry};
use edgefaas_functions::topics::{self, Call, CallKind, DEAD_LETTERS, is_open, may_trigger, parse_call};
use edgefaas_functions::trace::Entry;
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{Event, MqttMessage, Reply, Trigger};
use edgefaas_manifest::WhenFull;
use parking_lot::Mutex;
use ulid::Ulid;

/// Source of answers that no function publishes, in hooks and logs.
const NODE: &str = "$node";
/// Maximum number of repeated calls that wait for the answer of the first call.
const MAX_REPEATED: usize = 1024;

/// Services that the hook uses.
pub struct Targets {
    /// Functions and workflows that are deployed.
    pub registry: Arc<Registry>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Stores calls and messages of QoS 1 and 2.
    pub durable: Arc<DurableQueue>,
    /// Runs workflows.
    pub coordinator: Arc<Coordinator>,
    /// Publishes answers.
    pub publisher: Arc<Publisher>,
    /// Delays the stop of the node until invocations in flight are answered.
    pub drain: Arc<Drain>,
}

/// Starts functions and workflows for published messages.
pub struct TriggerHook {
    // Weak: the targets own the broker, and the broker owns this hook.
    targets: OnceLock<Weak<Targets>>,
    workers: Arc<Workers>,
    repeated: Arc<Mutex<HashSet<Repeated>>>,
}

/// A call with a REQUEST-ID, of a function or a workflow.
struct Request<'a> {
    name: &'a Arc<str>,
    request_id: &'a str,
    /// Digest of name, caller and REQUEST-ID.
    key: Digest,
    /// The id of the new invocation.
    id: Ulid,
    answer: &'a Option<Answer>,
}

/// Id of the first invocation, and digest of the answer's topic and correlation data.
type Repeated = (Ulid, Digest);

impl TriggerHook {
    /// A hook without targets: it forwards every message.
    pub fn new(workers: Arc<Workers>) -> Self {
        Self { targets: OnceLock::new(), workers, repeated: Arc::default() }
    }

    /// Sets the targets: from now on messages start functions and workflows. Later calls have no effect.
    pub fn attach(&self, targets: &Arc<Targets>) {
        let _ = self.targets.set(Arc::downgrade(targets));
    }

    /// Handles a topic under `$faas/`. Calls are consumed. Other messages pass only if the node published them; its dead letters
    /// and events also fire triggers.
    fn on_node_topic(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        topic: &str,
    ) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let Some(call) = parse_call(topic) else {
            return match origin {
                Origin::Node { .. } if may_trigger(topic) => self.offer_to_all(targets, publishing),
                Origin::Node { .. } => Verdict::Forward,
                _ => Verdict::Reject(RejectReason::NotAuthorized),
            };
        };
        let answer = answer_to(answer_topic(&call, message), origin, message);
        let started = match call.kind {
            CallKind::Function => self.call_function(targets, publishing, &call, &answer),
            CallKind::Workflow => self.call_workflow(targets, publishing, &call, &answer),
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

    /// Accepts a call of QoS 1 or 2. It is stored before the broker acknowledges it.
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
            let caller = caller_digest(origin);
            let key = digest(&[b"mqtt", function.name.as_bytes(), &caller, request_id.as_bytes()]);
            let id = Ulid::from_string(&invocation.id).unwrap_or_default();
            let name = &function.name;
            match self.claim(targets, publishing, Request { name, request_id, key, id, answer: &answer }) {
                Ok(claim) => durable.claim = Some(claim),
                Err(verdict) => return verdict,
            }
            durable.keep = Some(Keep { key: Some(key), auth: None });
        }
        match targets.durable.reserve_for(function, publishing.message().weight()) {
            Ok(slot) => {
                let acceptance = targets.durable.prepare(slot, invocation, durable);
                record_acceptance(targets, publishing, function, acceptance);
                Verdict::Consume
            }
            Err(no_room) => {
                let must_wait = no_room.when_full == WhenFull::Block || !supports_rejection(origin);
                match answer.filter(|_| !must_wait) {
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
                        publish_answer(targets, &function.name, &answer, Err(Problem::of(&error, None)));
                        Verdict::Reject(RejectReason::QuotaExceeded)
                    }
                    None => refuse(function, origin, no_room),
                }
            }
        }
    }

    /// Starts a workflow by its call topic.
    fn call_workflow(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        call: &Call<'_>,
        answer: &Option<Answer>,
    ) -> Result<Verdict, InvocationError> {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = targets.registry.routes();
        let Some(workflow) = routes.workflow(call.function) else {
            let near = routes.near_workflows(call.function);
            return Err(InvocationError::UnknownWorkflow { name: call.function.to_owned(), near });
        };
        let content_type = message.properties().and_then(|properties| properties.content_type.as_deref());
        let input = declared_input_of(message.payload(), content_type).map_err(|error| {
            InvocationError::Workflow { workflow: call.function.to_owned(), error: Box::new(error) }
        })?;
        let mut start = Start::new(workflow.clone(), input, message.payload().len());
        start.depth = depth_of(origin);
        start.trace_parent = trace_parent(message);
        start.entry = Entry::MqttCall;
        start.answer = answer.as_ref().map(answer_record);
        let mut claim = None;
        if let Some(request_id) = call.request_id.filter(|_| message.qos() > QoS::AtMostOnce) {
            let (name, caller) = (&workflow.name, caller_digest(origin));
            let key = digest(&[b"mqtt workflow", name.as_bytes(), &caller, request_id.as_bytes()]);
            let request = Request { name, request_id, key, id: start.id, answer };
            match self.claim(targets, publishing, request) {
                Ok(new) => claim = Some(new),
                Err(verdict) => return Ok(verdict),
            }
            let keep = Keep { key: Some(key), auth: None };
            start.kept_call = Some(KeptCall::new(keep, Some(request_id)));
        }
        let entered = targets.coordinator.enter_workflow(start);
        let running = entered.inspect_err(|_| targets.coordinator.count_rejected(workflow))?;
        targets.coordinator.begin_with(publishing, running, claim);
        Ok(Verdict::Consume)
    }

    /// Claims the REQUEST-ID of a call.
    ///
    /// # Errors
    /// The verdict on a call that starts nothing: an earlier call had the same REQUEST-ID, or the store cannot be read.
    fn claim(
        &self,
        targets: &Arc<Targets>,
        publishing: &mut Publishing<'_>,
        request: Request<'_>,
    ) -> Result<KeyClaim, Verdict> {
        let Request { name, request_id, key, id, answer } = request;
        match targets.durable.claim(key, digest(&[publishing.message().payload()]), id) {
            Ok(Claim::New(claim)) => Ok(claim),
            Ok(Claim::Known(id)) => {
                self.acknowledge_with_first(targets, publishing, id);
                Err(match answer {
                    Some(answer) => self.answer_repeated_call(targets, name, id, answer.clone()),
                    None => Verdict::Consume,
                })
            }
            Ok(Claim::Conflict) => {
                let detail = format!("REQUEST-ID `{request_id}` was used with another payload before");
                let problem = Problem::new(422, "Request id used before", detail);
                if let Some(answer) = answer {
                    publish_answer(targets, &Arc::from(NODE), answer, Err(problem));
                }
                Err(Verdict::Consume)
            }
            Err(error) => {
                tracing::error!(%error, "a call is refused: the store cannot be read");
                Err(Verdict::Reject(RejectReason::Unspecified))
            }
        }
    }

    /// Delays the acknowledgement of a repeated call until the first call is stored.
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

    /// Publishes the answer of the first call to a repeated call as well, once it exists. The function does not run again.
    fn answer_repeated_call(
        &self,
        targets: &Arc<Targets>,
        name: &Arc<str>,
        id: Ulid,
        answer: Answer,
    ) -> Verdict {
        let to = digest(&[
            answer.topic.as_str().as_bytes(),
            answer.correlation_data.as_deref().unwrap_or_default(),
        ]);
        let mut repeated = self.repeated.lock();
        if repeated.len() >= MAX_REPEATED {
            let detail = format!("{MAX_REPEATED} repeated calls already wait for their answers");
            let problem = Problem::new(429, "Too many repeated calls", detail);
            drop(repeated);
            publish_answer(targets, name, &answer, Err(problem));
            return Verdict::Reject(RejectReason::QuotaExceeded);
        }
        if !repeated.insert((id, to)) {
            return Verdict::Consume;
        }
        drop(repeated);
        let (targets, source, repeated) = (targets.clone(), name.clone(), self.repeated.clone());
        self.workers.spawn(async move {
            let result = first_result(&targets, id, &answer).await;
            repeated.lock().remove(&(id, to));
            if let Some((result, node)) = result {
                publish_answer_of(&targets, &source, &answer, result, node.as_deref());
            }
        });
        Verdict::Consume
    }

    /// Offers a message to workflows and triggers.
    fn offer_to_all(&self, targets: &Arc<Targets>, publishing: &mut Publishing<'_>) -> Verdict {
        let offered = match targets.coordinator.offered_to_workflows(publishing) {
            Ok(offered) => offered,
            Err(no_room) => return no_room,
        };
        let verdict = self.fire_triggers(targets, publishing);
        // A refused message must not start anything, because it may be offered again.
        if let Some(offered) = offered
            && !matches!(verdict, Verdict::Reject(_) | Verdict::Block(_))
        {
            targets.coordinator.deliver_to_workflows(publishing, offered);
        }
        verdict
    }

    /// Starts the functions of all matching triggers.
    fn fire_triggers(&self, targets: &Arc<Targets>, publishing: &mut Publishing<'_>) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = targets.registry.routes();
        let mut verdict = Verdict::Forward;
        let mut accepted = Vec::new();
        let mut direct: Vec<(Arc<LiveFunction>, bool, bool)> = Vec::new();
        let mut refusal = None;
        let failed_function = message.topic().as_str().strip_prefix(DEAD_LETTERS);
        // Otherwise functions that fail to handle each other's dead letters would start each other without end.
        if failed_function.is_some() && is_nested_dead_letter(message) {
            return Verdict::Forward;
        }
        // First reserve slots for all durable invocations. If one function has no room, the message has no effect.
        routes.for_each_mqtt(message.topic().as_str(), |route| {
            // A function never handles its own dead letters: it could fail without end.
            if failed_function == Some(&*route.function.name) {
                return;
            }
            if message.qos().min(route.qos) == QoS::AtMostOnce {
                direct.push((route.function.clone(), route.consume, route.ordered));
            } else if refusal.is_none() {
                match targets.durable.reserve_for(&route.function, message.weight()) {
                    Ok(slot) => accepted.push((route.function.clone(), route.consume, route.ordered, slot)),
                    Err(no_room) => refusal = Some(refuse(&route.function, origin, no_room)),
                }
            }
        });
        if let Some(refusal) = refusal {
            return refusal;
        }
        for (function, consume, ordered, slot) in accepted {
            let invocation = invocation(function.name.to_string(), origin, message);
            let answer = answer_to(open_response_topic(message), origin, message);
            if let Err(error) = targets.invoker.check_durable(&function, &invocation) {
                function.metrics.record_rejected();
                report_dropped(targets, &function, answer.as_ref(), &error);
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
            record_acceptance(
                targets,
                publishing,
                &function,
                targets.durable.prepare(slot, invocation, durable),
            );
            if consume {
                verdict = Verdict::Consume;
            }
        }
        // Consuming functions first: only they can refuse the message, and a refused message must not start a function, because
        // it may be offered again.
        direct.sort_by_key(|(_, consume, _)| !consume);
        for (function, consume, ordered) in direct {
            if !consume && matches!(verdict, Verdict::Reject(_)) {
                break;
            }
            let answer = answer_to(open_response_topic(message), origin, message);
            let mut invocation = invocation(function.name.to_string(), origin, message);
            invocation.order_key = ordered.then(|| order_key(message.topic().as_str()));
            match targets.invoker.admit_to(function.clone(), invocation) {
                Ok(admitted) => {
                    self.start(targets, admitted, answer);
                    if consume {
                        verdict = Verdict::Consume;
                    }
                }
                Err(error) => {
                    // The trigger has QoS 0: without room the message is dropped, counted and logged.
                    if !(consume && is_offered_again(origin, message)) {
                        report_dropped(targets, &function, answer.as_ref(), &error);
                    }
                    // Subscribers do not get a consumed message, so it is refused instead of lost.
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
            let Outcome { id, result, node, .. } = targets.invoker.run(admitted).await;
            if let Some(answer) = answer {
                let node = targets.invoker.ran_on(node, result.as_ref().err());
                let result = result.map_err(|error| Problem::of(&error, Some(&id)));
                publish_answer_of(&targets, &source, &answer, result, node.as_deref());
            }
        });
    }
}

/// Topic of the answer to a call: the response topic if the call may use it (an open topic or a result topic of the call), else
/// the call's own result topic.
fn answer_topic(call: &Call<'_>, message: &Message) -> Option<TopicName> {
    let topic = message.properties().and_then(|properties| properties.response_topic.clone());
    topic
        .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
        .or_else(|| call.result_topic())
}

impl PublishHook for TriggerHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let targets = self.targets.get().and_then(Weak::upgrade);
        let Some(targets) = targets else { return Verdict::Forward };
        let topic = publishing.message().topic().as_str();
        if topic.starts_with(topics::PREFIX) {
            return self.on_node_topic(&targets, publishing, topic);
        }
        self.offer_to_all(&targets, publishing)
    }
}

/// True for the dead letter of an invocation that handled a dead letter itself. Only the node publishes dead letters, so their
/// properties can be trusted.
fn is_nested_dead_letter(message: &Message) -> bool {
    let user = message.properties().map(|properties| properties.user.as_slice()).unwrap_or_default();
    user.iter()
        .any(|(name, topic)| &**name == dead_letter::TOPIC_PROPERTY && topic.starts_with(DEAD_LETTERS))
}

/// True if the node itself offers the message again after a refusal. Then nothing is lost, and nothing is logged.
fn is_offered_again(origin: &Origin, message: &Message) -> bool {
    message.qos() > QoS::AtMostOnce && matches!(origin, Origin::Node { .. })
}

/// Result of the first call with the same REQUEST-ID, and the node that ran it. `None` if its own answer has the same topic and correlation data, or if the
/// store fails.
async fn first_result(
    targets: &Targets,
    id: Ulid,
    answer: &Answer,
) -> Option<(Result<Reply, Problem>, Option<String>)> {
    let durable = &targets.durable;
    loop {
        let ended = durable.ended(id);
        let claimed = durable.is_claimed(id);
        match durable.lookup(id) {
            Ok(Lookup::Done(_, ended)) => return Some((ended.outcome.into_result(id).0, ended.node)),
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
                let detail = "the first call with this REQUEST-ID was not accepted; repeat the call";
                return Some((Err(Problem::new(503, "Not accepted", detail)), None));
            }
            Err(error) => {
                tracing::error!(%error, "an answer cannot be published again");
                return None;
            }
        }
    }
}

/// Reason code of the negative acknowledgement.
fn reject_reason(error: &InvocationError) -> RejectReason {
    match error.status() {
        404 => RejectReason::TopicNameInvalid,
        // Temporary errors only: a message that is too large will never fit.
        429 | 507 => RejectReason::QuotaExceeded,
        _ => RejectReason::ImplementationSpecific,
    }
}

/// Verdict for a message for which the queue of a function has no room.
fn refuse(function: &LiveFunction, origin: &Origin, no_room: NoRoom) -> Verdict {
    match no_room.when_full {
        WhenFull::Block => Verdict::Block(no_room.room),
        // The client would take the acknowledgement for success, so the message waits instead.
        _ if !supports_rejection(origin) => Verdict::Block(no_room.room),
        _ => {
            function.metrics.record_rejected();
            Verdict::Reject(RejectReason::QuotaExceeded)
        }
    }
}

/// Verdict for a call that is not accepted. The answer contains the problem. If the same call may succeed later, the
/// acknowledgement is negative as well, for publishers that read only the acknowledgement.
fn refuse_call(
    targets: &Targets,
    origin: &Origin,
    message: &Message,
    answer: Option<&Answer>,
    error: &InvocationError,
) -> Verdict {
    let is_temporary = matches!(error.status(), 429 | 503 | 507) && message.qos() > QoS::AtMostOnce;
    if is_temporary && !supports_rejection(origin) {
        // The client would take the acknowledgement for success, so the message waits instead.
        return Verdict::Block(targets.coordinator.wait_for_room());
    }
    let Some(answer) = answer else { return Verdict::Reject(reject_reason(error)) };
    publish_answer(targets, &Arc::from(NODE), answer, Err(Problem::of(error, None)));
    if is_temporary { Verdict::Reject(reject_reason(error)) } else { Verdict::Consume }
}

/// False for MQTT 3.1.1 clients, which have no negative acknowledgement.
fn supports_rejection(origin: &Origin) -> bool {
    !matches!(origin, Origin::Client(client) if client.version == Version::V311)
}

/// Stores an invocation in the commit of its message. It is queued once the commit is in the write-ahead log.
fn record_acceptance(
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

/// Logs that a message starts no function, and publishes the problem as its answer.
fn report_dropped(
    targets: &Arc<Targets>,
    function: &LiveFunction,
    answer: Option<&Answer>,
    error: &InvocationError,
) {
    targets.invoker.log_dropped(&function.name, error);
    if let Some(answer) = answer {
        publish_answer(targets, &function.name, answer, Err(Problem::of(error, None)));
    }
}

/// Publishes the answer of a call that no node has run.
fn publish_answer(targets: &Targets, source: &Arc<str>, answer: &Answer, result: Result<Reply, Problem>) {
    publish_answer_of(targets, source, answer, result, None);
}

/// Publishes the answer of an invocation that `node` has run.
fn publish_answer_of(
    targets: &Targets,
    source: &Arc<str>,
    answer: &Answer,
    result: Result<Reply, Problem>,
    node: Option<&str>,
) {
    if let Some(message) = answer.message(result, node, targets.publisher.max_message_bytes()) {
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

/// Order key of a topic: messages with the same key run one after another. Different topics almost never share a key.
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

/// Identifies the caller, so that a REQUEST-ID never returns the answer of another caller. An anonymous client is identified by
/// its client identifier.
fn caller_digest(origin: &Origin) -> Digest {
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
