//! MQTT as a way in: triggers on topics, and calls on `$faas/fn/NAME/invoke`.
//!
//! The hook sits in the broker's publish path. It decides at once and starts what is to run; it never
//! waits for a function.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Client, Message, Origin, PublishHook, Publishing, QoS, RejectReason, Verdict, Version,
};
use edgefaas_isolates::{Event, MqttMessage, Reply, Trigger};
use edgefaas_manifest::{NODE_TRIGGERS, WhenFull};
use parking_lot::Mutex;
use ulid::Ulid;

use crate::answer::Answer;
use crate::dispatch::{Admitted, Dispatcher, Workers};
use crate::invocation::{Invocation, InvocationError, Outcome, Principal};
use crate::journal::{
    Acceptance, AnswerTo, Claim, ClientRecord, DEAD_LETTER_TOPIC, Digest, Durable, InvocationJournal, Keep,
    Lookup, NoRoom, Slot, digest,
};
use crate::problem::Problem;
use crate::registry::LiveFunction;
use crate::workflow::{Start, input_of, trace_parent};

/// Topics that belong to the node.
const FAAS_PREFIX: &str = "$faas/";
/// Where the node says which durable invocations it has given up.
const DEAD_PREFIX: &str = "$faas/dead/";
/// Who publishes replies for functions that can't be named, in hooks and logs.
const NODE: &str = "$node";
/// Calls that were made again and wait for the answer of the first.
const MOST_REPEATED: usize = 1024;
/// Time between two looks whether an invocation has reached the disk, which takes as long as a sync.
const CLAIM_WAIT: Duration = Duration::from_millis(5);

/// Starts functions for the messages that pass.
pub struct CoordinationHook {
    // The dispatcher owns the broker, and the broker this hook.
    dispatcher: OnceLock<Weak<Dispatcher>>,
    workers: Arc<Workers>,
    repeated: Arc<Mutex<HashSet<Repeated>>>,
}

/// A call that was made again, and where its answer goes.
type Repeated = (Ulid, Digest);

impl CoordinationHook {
    /// A hook without a dispatcher yet: it forwards everything.
    pub fn new(workers: Arc<Workers>) -> Self {
        Self { dispatcher: OnceLock::new(), workers, repeated: Arc::default() }
    }

    /// From now on functions are started.
    pub fn attach(&self, dispatcher: &Arc<Dispatcher>) {
        let _ = self.dispatcher.set(Arc::downgrade(dispatcher));
    }

    /// `$faas/…`: calls are taken, results pass if the node made them and dead letters and events run functions as well,
    /// nothing else is let through.
    fn on_own_topic(
        &self,
        dispatcher: &Arc<Dispatcher>,
        publishing: &mut Publishing<'_>,
        topic: &str,
    ) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let Some(call) = parse_call(topic) else {
            return match origin {
                Origin::Node { .. } if has_triggers(topic) => self.observed(dispatcher, publishing),
                Origin::Node { .. } => Verdict::Forward,
                _ => Verdict::Reject(RejectReason::NotAuthorized),
            };
        };
        if call.kind == CallKind::Workflow {
            return self.on_workflow_call(dispatcher, publishing, &call);
        }
        let answer_topic = message
            .properties()
            .and_then(|properties| properties.response_topic.clone())
            .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
            .or_else(|| call.result_topic());
        let answer = answer_to(answer_topic, origin, message);
        let invocation = invocation(call.function.to_owned(), origin, message);
        let refused =
            |error: &InvocationError| refuse_call(dispatcher, origin, message, answer.as_ref(), error);
        let routes = dispatcher.registry().routes();
        let Some(function) = routes.function(call.function) else {
            let near = routes.near_functions(call.function);
            return refused(&InvocationError::UnknownFunction { name: call.function.to_owned(), near });
        };
        if message.qos() > QoS::AtMostOnce {
            return match dispatcher.check_durable(function, &invocation) {
                Ok(()) => self.accept_call(dispatcher, publishing, function, &call, invocation, answer),
                Err(error) => refused(&error),
            };
        }
        match dispatcher.admit_to(function.clone(), invocation) {
            Ok(admitted) => self.start(dispatcher, admitted, answer),
            Err(error) => return refused(&error),
        }
        Verdict::Consume
    }

    /// A call of QoS 1 or 2 is on the disk before it is acknowledged.
    fn accept_call(
        &self,
        dispatcher: &Arc<Dispatcher>,
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
            match dispatcher.journal().claim(key, digest(&[&invocation.event.body]), id) {
                Ok(Claim::New(claim)) => durable.claim = Some(claim),
                Ok(Claim::Known(id)) => {
                    self.acknowledge_with_first(dispatcher, publishing, id);
                    return match answer {
                        Some(answer) => self.answer_again(dispatcher, function, id, answer),
                        None => Verdict::Consume,
                    };
                }
                Ok(Claim::Conflict) => {
                    let detail = format!("REQUEST-ID `{request_id}` was used with another payload before");
                    let problem = Problem::new(422, "Request id used before", detail);
                    if let Some(answer) = &answer {
                        send(dispatcher, &Arc::from(NODE), answer, Err(problem));
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
        match room(dispatcher, function, publishing.message().weight()) {
            Ok(slot) => {
                let acceptance = dispatcher.prepare(slot, invocation, durable);
                record(dispatcher, publishing, function, acceptance);
                Verdict::Consume
            }
            Err(no_room) => {
                let waits = no_room.when_full == WhenFull::Block || !can_be_told(origin);
                match answer.filter(|_| !waits) {
                    Some(answer) => {
                        function.metrics.record_rejected();
                        let name = function.name.to_string();
                        let error =
                            match dispatcher.broker().journal().has_room(publishing.message().weight()) {
                                true => InvocationError::QueueFull {
                                    function: name,
                                    capacity: function.admission.capacity(),
                                },
                                false => InvocationError::NotStored {
                                    function: name,
                                    error: dispatcher.store().committer().disk_full(),
                                },
                            };
                        send(dispatcher, &function.name, &answer, Err(Problem::of(&error, None)));
                        Verdict::Reject(RejectReason::QuotaExceeded)
                    }
                    None => refuse(function, origin, no_room),
                }
            }
        }
    }

    /// A repeated call is acknowledged when the first is on the disk, and not before.
    fn acknowledge_with_first(
        &self,
        dispatcher: &Arc<Dispatcher>,
        publishing: &mut Publishing<'_>,
        id: Ulid,
    ) {
        let is_stored =
            move |journal: &InvocationJournal| !matches!(journal.lookup(id), Ok(Lookup::Unknown));
        if is_stored(dispatcher.journal()) {
            return;
        }
        let (journal, held) = (dispatcher.journal().clone(), publishing.hold());
        self.workers.spawn(async move {
            while journal.is_claimed(id) && !is_stored(&journal) {
                tokio::time::sleep(CLAIM_WAIT).await;
            }
            held.complete(if is_stored(&journal) { Ok(()) } else { Err(RejectReason::Unspecified) });
        });
    }

    /// A call that was made before is not made again: its answer is published here as well, once it is there.
    fn answer_again(
        &self,
        dispatcher: &Arc<Dispatcher>,
        function: &Arc<LiveFunction>,
        id: Ulid,
        answer: Answer,
    ) -> Verdict {
        let to = digest(&[
            answer.topic.as_str().as_bytes(),
            answer.correlation_data.as_deref().unwrap_or_default(),
        ]);
        let mut repeated = self.repeated.lock();
        if repeated.len() >= MOST_REPEATED {
            let detail = format!("{MOST_REPEATED} calls that were made again wait for their answers");
            let problem = Problem::new(429, "Too many repeated calls", detail);
            drop(repeated);
            send(dispatcher, &function.name, &answer, Err(problem));
            return Verdict::Reject(RejectReason::QuotaExceeded);
        }
        if !repeated.insert((id, to)) {
            return Verdict::Consume;
        }
        drop(repeated);
        let (dispatcher, source, repeated) =
            (dispatcher.clone(), function.name.clone(), self.repeated.clone());
        self.workers.spawn(async move {
            let result = first_result(&dispatcher, id, &answer).await;
            repeated.lock().remove(&(id, to));
            if let Some(result) = result {
                send(&dispatcher, &source, &answer, result);
            }
        });
        Verdict::Consume
    }

    /// Any topic that workflows and triggers may be about.
    fn observed(&self, dispatcher: &Arc<Dispatcher>, publishing: &mut Publishing<'_>) -> Verdict {
        let offered = match dispatcher.offered_to_workflows(publishing) {
            Ok(offered) => offered,
            Err(no_room) => return no_room,
        };
        let verdict = self.on_topic(dispatcher, publishing);
        // What is refused has started nothing, since it may be offered again.
        if let Some(offered) = offered
            && !matches!(verdict, Verdict::Reject(_) | Verdict::Block(_))
        {
            dispatcher.give_to_workflows(publishing, offered);
        }
        verdict
    }

    /// A workflow that is called by topic.
    fn on_workflow_call(
        &self,
        dispatcher: &Arc<Dispatcher>,
        publishing: &mut Publishing<'_>,
        call: &Call<'_>,
    ) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let answer_topic = message
            .properties()
            .and_then(|properties| properties.response_topic.clone())
            .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
            .or_else(|| call.result_topic());
        let answer = answer_to(answer_topic, origin, message);
        let refused =
            |error: &InvocationError| refuse_call(dispatcher, origin, message, answer.as_ref(), error);
        let routes = dispatcher.registry().routes();
        let Some(workflow) = routes.workflow(call.function) else {
            let near = routes.near_workflows(call.function);
            return refused(&InvocationError::UnknownFunction { name: call.function.to_owned(), near });
        };
        let mut start = Start::new(workflow.clone(), input_of(message.payload()), message.payload().len());
        start.depth = depth_of(origin);
        start.trace_parent = trace_parent(message);
        start.answer = answer.as_ref().map(answer_record);
        match dispatcher.enter_workflow(start) {
            Ok(running) => {
                dispatcher.begin_with(publishing, running);
                Verdict::Consume
            }
            Err(error) => refused(&error),
        }
    }

    /// Any other topic: every trigger that matches gets the message.
    fn on_topic(&self, dispatcher: &Arc<Dispatcher>, publishing: &mut Publishing<'_>) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = dispatcher.registry().routes();
        let mut verdict = Verdict::Forward;
        let mut accepted = Vec::new();
        let mut plain: Vec<(Arc<LiveFunction>, bool)> = Vec::new();
        let mut refused = None;
        let given_up = message.topic().as_str().strip_prefix(DEAD_PREFIX);
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
                match room(dispatcher, &route.function, message.weight()) {
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
            if let Err(error) = dispatcher.check_durable(&function, &invocation) {
                function.metrics.record_rejected();
                lose(dispatcher, &function, answer.as_ref(), &error);
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
            record(dispatcher, publishing, &function, dispatcher.prepare(slot, invocation, durable));
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
            match dispatcher.admit_to(function.clone(), invocation) {
                Ok(admitted) => {
                    self.start(dispatcher, admitted, answer);
                    if consume {
                        verdict = Verdict::Consume;
                    }
                }
                Err(error) => {
                    // Of QoS 0: what finds no room is dropped, counted and said.
                    if !(consume && is_offered_again(origin, message)) {
                        lose(dispatcher, &function, answer.as_ref(), &error);
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

    fn start(&self, dispatcher: &Arc<Dispatcher>, admitted: Admitted, answer: Option<Answer>) {
        let dispatcher = dispatcher.clone();
        let answering = dispatcher.answering();
        self.workers.spawn(async move {
            let _answering = answering;
            let source = admitted.function_name();
            let Outcome { id, result, .. } = dispatcher.run(admitted).await;
            if let Some(answer) = answer {
                let result = result.map_err(|error| Problem::of(&error, Some(&id)));
                send(&dispatcher, &source, &answer, result);
            }
        });
    }
}

impl PublishHook for CoordinationHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let dispatcher = self.dispatcher.get().and_then(Weak::upgrade);
        let Some(dispatcher) = dispatcher else { return Verdict::Forward };
        let topic = publishing.message().topic().as_str();
        if topic.starts_with(FAAS_PREFIX) {
            return self.on_own_topic(&dispatcher, publishing, topic);
        }
        self.observed(&dispatcher, publishing)
    }
}

/// What is called by topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Function,
    Workflow,
}

impl CallKind {
    /// Its level in the topic.
    fn level(self) -> &'static str {
        match self {
            Self::Function => "fn",
            Self::Workflow => "wf",
        }
    }
}

/// A call by topic: `$faas/fn/NAME/invoke` or `$faas/fn/NAME/invoke/REQUEST-ID`; of a workflow with `wf`.
#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    kind: CallKind,
    function: &'a str,
    request_id: Option<&'a str>,
}

fn parse_call(topic: &str) -> Option<Call<'_>> {
    let mut levels = topic.strip_prefix(FAAS_PREFIX)?.split('/');
    let (kind, function, verb) = (levels.next()?, levels.next()?, levels.next()?);
    let request_id = levels.next();
    let kind = [CallKind::Function, CallKind::Workflow].into_iter().find(|known| known.level() == kind)?;
    let whole = verb == "invoke" && levels.next().is_none();
    (whole && request_id != Some("")).then_some(Call { kind, function, request_id })
}

/// True if whoever may publish anything may publish here: topics that start with `$` are the node's.
pub(crate) fn is_open(topic: &str) -> bool {
    !topic.starts_with('$')
}

/// True if functions may publish here, as far as the topic is the node's: calls alone.
pub(crate) fn takes_from_functions(topic: &str) -> bool {
    !topic.starts_with(FAAS_PREFIX) || parse_call(topic).is_some()
}

/// True if what was given up was itself the handling of a dead letter. Only the node publishes these: what they say is so.
fn is_letter_about_letter(message: &Message) -> bool {
    let user = message.properties().map(|properties| properties.user.as_slice()).unwrap_or_default();
    user.iter().any(|(name, topic)| &**name == DEAD_LETTER_TOPIC && topic.starts_with(DEAD_PREFIX))
}

/// True if a message that is refused is offered again by the node itself: nothing is lost, and it need not be said.
fn is_offered_again(origin: &Origin, message: &Message) -> bool {
    message.qos() > QoS::AtMostOnce && matches!(origin, Origin::Node { .. })
}

/// True if triggers may have topics like this one of the node's.
fn has_triggers(topic: &str) -> bool {
    NODE_TRIGGERS.iter().any(|prefix| topic.starts_with(prefix))
}

/// How the first call ended of which this is a repetition; nothing if that goes to the same place by itself.
async fn first_result(
    dispatcher: &Dispatcher,
    id: Ulid,
    answer: &Answer,
) -> Option<Result<Reply, Problem>> {
    let journal = dispatcher.journal();
    loop {
        let ended = journal.ended(id);
        let claimed = journal.is_claimed(id);
        match journal.lookup(id) {
            Ok(Lookup::Done(_, outcome)) => return Some(outcome.into_result(id).0),
            Ok(Lookup::Pending(_)) => {
                let first = journal.answer_to(id);
                let is_same = first.is_some_and(|to| {
                    to.topic == answer.topic.as_str() && to.correlation_data == answer.correlation_data
                });
                if is_same || ended.await.is_err() {
                    return None;
                }
            }
            Ok(Lookup::Unknown) if claimed => tokio::time::sleep(CLAIM_WAIT).await,
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

impl Call<'_> {
    /// True if `topic` is one for results of this function.
    fn is_result(&self, topic: &str) -> bool {
        let prefix = format!("$faas/{}/{}/result/", self.kind.level(), self.function);
        topic.strip_prefix(&prefix).is_some_and(|id| !id.is_empty() && !id.contains('/'))
    }

    fn result_topic(&self) -> Option<TopicName> {
        let request_id = self.request_id?;
        TopicName::new(format!("$faas/{}/{}/result/{request_id}", self.kind.level(), self.function)).ok()
    }
}

/// A place for a durable invocation of so many bytes. There is none either while the disk is full.
fn room(dispatcher: &Dispatcher, function: &Arc<LiveFunction>, bytes: usize) -> Result<Slot, NoRoom> {
    let slot = dispatcher.journal().reserve(function)?;
    if !dispatcher.broker().journal().has_room(bytes) {
        let when_full = function.spec.limits.queue.when_full;
        return Err(NoRoom { when_full, room: Arc::default() });
    }
    Ok(slot)
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
    dispatcher: &Dispatcher,
    origin: &Origin,
    message: &Message,
    answer: Option<&Answer>,
    error: &InvocationError,
) -> Verdict {
    let is_for_now = matches!(error.status(), 429 | 503 | 507) && message.qos() > QoS::AtMostOnce;
    if is_for_now && !can_be_told(origin) {
        // It would take a refusal for a success: it waits in place of it.
        return Verdict::Block(dispatcher.coordinator().wait_for_room());
    }
    let Some(answer) = answer else { return Verdict::Reject(reject_reason(error)) };
    send(dispatcher, &Arc::from(NODE), answer, Err(Problem::of(error, None)));
    if is_for_now { Verdict::Reject(reject_reason(error)) } else { Verdict::Consume }
}

/// MQTT 3.1.1 has no negative acknowledgement.
fn can_be_told(origin: &Origin) -> bool {
    !matches!(origin, Origin::Client(client) if client.version == Version::V311)
}

/// Stores an invocation with the message; it runs as soon as that is certain.
fn record(
    dispatcher: &Arc<Dispatcher>,
    publishing: &mut Publishing<'_>,
    function: &Arc<LiveFunction>,
    mut acceptance: Acceptance,
) {
    for (key, value) in std::mem::take(&mut acceptance.entries) {
        publishing.record(key, Some(value));
    }
    let (dispatcher, function) = (dispatcher.clone(), function.clone());
    publishing.on_recorded(move |ticket| dispatcher.run_accepted(&function, acceptance, Some(ticket)));
}

/// Says that a message does not run a function.
fn lose(
    dispatcher: &Arc<Dispatcher>,
    function: &LiveFunction,
    answer: Option<&Answer>,
    error: &InvocationError,
) {
    dispatcher.log_dropped(function, error);
    if let Some(answer) = answer {
        send(dispatcher, &function.name, answer, Err(Problem::of(error, None)));
    }
}

fn send(dispatcher: &Dispatcher, source: &Arc<str>, answer: &Answer, result: Result<Reply, Problem>) {
    if let Some(message) = answer.message(result, dispatcher.max_message_bytes()) {
        dispatcher.answer(source, answer.depth.saturating_add(1), answer.requester.clone(), message);
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
    let trace_parent =
        user.iter().find(|(name, _)| &**name == "traceparent").map(|(_, value)| value.to_string());
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
    invocation.trace_parent = trace_parent;
    invocation.depth = depth_of(origin);
    invocation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_their_topic() {
        let call = |function, request_id| Some(Call { kind: CallKind::Function, function, request_id });
        for (topic, expected) in [
            ("$faas/fn/hello/invoke", call("hello", None)),
            ("$faas/fn/hello/invoke/r-1", call("hello", Some("r-1"))),
            ("$faas/fn/hello/invoke/", None),
            ("$faas/fn/hello/invoke/a/b", None),
            ("$faas/fn/hello/result/r-1", None),
            ("$faas/wf/hello", None),
            ("$faas/fn/hello", None),
            ("faas/fn/hello/invoke", None),
        ] {
            assert_eq!(parse_call(topic), expected, "{topic}");
        }
        let call = parse_call("$faas/fn/hello/invoke/r-1").unwrap();
        assert_eq!(call.result_topic().unwrap().as_str(), "$faas/fn/hello/result/r-1");
    }
}
