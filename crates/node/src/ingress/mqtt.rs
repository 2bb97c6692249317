//! MQTT as a way in: triggers on topics, and calls on `$faas/fn/NAME/invoke`.
//!
//! The hook sits in the broker's publish path. It decides at once and starts what is to run; it never
//! waits for a function.

use std::sync::{Arc, OnceLock, Weak};

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Client, Message, Origin, PublishHook, Publishing, QoS, RejectReason, Verdict, Version,
};
use edgefaas_isolates::{Event, MqttMessage, Reply, Trigger};

use crate::answer::Answer;
use crate::dispatch::{Admitted, Dispatcher, Workers};
use crate::invocation::{Invocation, InvocationError, Outcome, Principal};
use crate::journal::{
    Acceptance, AnswerTo, Claim, ClientRecord, Durable, Keep, Lookup, NoRoom, Slot, digest,
};
use crate::manifest::WhenFull;
use crate::problem::Problem;
use crate::registry::LiveFunction;

/// Topics that belong to the node.
const FAAS_PREFIX: &str = "$faas/";
/// Who publishes replies for functions that can't be named, in hooks and logs.
const NODE: &str = "$node";

/// Starts functions for the messages that pass.
pub struct CoordinationHook {
    // The dispatcher owns the broker, and the broker this hook.
    dispatcher: OnceLock<Weak<Dispatcher>>,
    workers: Arc<Workers>,
}

impl CoordinationHook {
    /// A hook without a dispatcher yet: it forwards everything.
    pub fn new(workers: Arc<Workers>) -> Self {
        Self { dispatcher: OnceLock::new(), workers }
    }

    /// From now on functions are started.
    pub fn attach(&self, dispatcher: &Arc<Dispatcher>) {
        let _ = self.dispatcher.set(Arc::downgrade(dispatcher));
    }

    /// `$faas/…`: calls are taken, results pass if the node made them, nothing else is let through.
    fn on_own_topic(
        &self,
        dispatcher: &Arc<Dispatcher>,
        publishing: &mut Publishing<'_>,
        topic: &str,
    ) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let Some(call) = parse_call(topic) else {
            return match origin {
                Origin::Node { .. } => Verdict::Forward,
                _ => Verdict::Reject(RejectReason::NotAuthorized),
            };
        };
        let answer_topic = message
            .properties()
            .and_then(|properties| properties.response_topic.clone())
            .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
            .or_else(|| call.result_topic());
        let answer = answer_to(answer_topic, origin, message);
        let invocation = invocation(call.function.to_owned(), origin, message);
        let refused = |error: &InvocationError| match answer.clone() {
            // Whoever can be told is told in words; the others by the acknowledgement.
            Some(answer) => {
                send(dispatcher, &Arc::from(NODE), &answer, Err(Problem::of(error, None)));
                Verdict::Consume
            }
            None => Verdict::Reject(reject_reason(error)),
        };
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
            let key = digest(&[b"mqtt", function.name.as_bytes(), request_id.as_bytes()]);
            let id = ulid::Ulid::from_string(&invocation.id).unwrap_or_default();
            match dispatcher.journal().claim(key, digest(&[&invocation.event.body]), id) {
                Ok(Claim::New(claim)) => durable.claim = Some(claim),
                Ok(Claim::Known(id)) => {
                    self.answer_again(dispatcher, function, id, answer);
                    return Verdict::Consume;
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
        match room(dispatcher, function) {
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
                        let (name, capacity) = (function.name.to_string(), function.admission.capacity());
                        let error = InvocationError::QueueFull { function: name, capacity };
                        send(dispatcher, &function.name, &answer, Err(Problem::of(&error, None)));
                        Verdict::Reject(RejectReason::QuotaExceeded)
                    }
                    None => refuse(function, origin, no_room),
                }
            }
        }
    }

    /// A call that was made before is not made again: its answer is published again, once it is there.
    fn answer_again(
        &self,
        dispatcher: &Arc<Dispatcher>,
        function: &Arc<LiveFunction>,
        id: ulid::Ulid,
        answer: Option<Answer>,
    ) {
        let Some(answer) = answer else { return };
        let (dispatcher, source) = (dispatcher.clone(), function.name.clone());
        self.workers.spawn(async move {
            match dispatcher.journal().lookup(id) {
                Ok(Lookup::Done(_, outcome)) => {
                    send(&dispatcher, &source, &answer, outcome.into_result(id).0);
                }
                // It publishes its answer itself when it ends.
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "an answer cannot be published again"),
            }
        });
    }

    /// Any other topic: every trigger that matches gets the message.
    fn on_topic(&self, dispatcher: &Arc<Dispatcher>, publishing: &mut Publishing<'_>) -> Verdict {
        let (origin, message) = (publishing.origin(), publishing.message());
        let routes = dispatcher.registry().routes();
        let mut verdict = Verdict::Forward;
        let mut accepted = Vec::new();
        let mut plain: Vec<(Arc<LiveFunction>, bool)> = Vec::new();
        let mut refused = None;
        // First whether there is room for all that are to be kept: where one has none, nothing is to have happened.
        routes.for_each_mqtt(message.topic().as_str(), |route| {
            if message.qos().min(route.qos) == QoS::AtMostOnce {
                plain.push((route.function.clone(), route.consume));
            } else if refused.is_none() {
                match room(dispatcher, &route.function) {
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
        for (function, consume) in plain {
            match self.trigger(dispatcher, &function, origin, message) {
                Ok(()) if consume => verdict = Verdict::Consume,
                // Nobody else would see it: it is refused, not lost.
                Err(error) if consume && matches!(verdict, Verdict::Forward) => {
                    verdict = Verdict::Reject(reject_reason(&error));
                }
                _ => {}
            }
        }
        verdict
    }

    fn trigger(
        &self,
        dispatcher: &Arc<Dispatcher>,
        function: &Arc<LiveFunction>,
        origin: &Origin,
        message: &Message,
    ) -> Result<(), InvocationError> {
        let answer = answer_to(open_response_topic(message), origin, message);
        let invocation = invocation(function.name.to_string(), origin, message);
        match dispatcher.admit_to(function.clone(), invocation) {
            Ok(admitted) => self.start(dispatcher, admitted, answer),
            // Of QoS 0: what finds no room is dropped, counted and said.
            Err(error) => {
                lose(dispatcher, function, answer.as_ref(), &error);
                return Err(error);
            }
        }
        Ok(())
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
            self.on_own_topic(&dispatcher, publishing, topic)
        } else {
            self.on_topic(&dispatcher, publishing)
        }
    }
}

/// A call by topic: `$faas/fn/NAME/invoke` or `$faas/fn/NAME/invoke/REQUEST-ID`.
#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    function: &'a str,
    request_id: Option<&'a str>,
}

fn parse_call(topic: &str) -> Option<Call<'_>> {
    let mut levels = topic.strip_prefix(FAAS_PREFIX)?.split('/');
    let (kind, function, verb) = (levels.next()?, levels.next()?, levels.next()?);
    let request_id = levels.next();
    let whole = kind == "fn" && verb == "invoke" && levels.next().is_none();
    (whole && request_id != Some("")).then_some(Call { function, request_id })
}

/// True if whoever may publish anything may publish here: topics that start with `$` are the node's.
fn is_open(topic: &str) -> bool {
    !topic.starts_with('$')
}

/// What a publisher is told in its acknowledgement.
fn reject_reason(error: &InvocationError) -> RejectReason {
    match error.status() {
        404 => RejectReason::TopicNameInvalid,
        413 | 429 => RejectReason::QuotaExceeded,
        _ => RejectReason::ImplementationSpecific,
    }
}

impl Call<'_> {
    /// True if `topic` is one for results of this function.
    fn is_result(&self, topic: &str) -> bool {
        let prefix = format!("$faas/fn/{}/result/", self.function);
        topic.strip_prefix(&prefix).is_some_and(|id| !id.is_empty() && !id.contains('/'))
    }

    fn result_topic(&self) -> Option<TopicName> {
        let request_id = self.request_id?;
        TopicName::new(format!("$faas/fn/{}/result/{request_id}", self.function)).ok()
    }
}

/// A place for a durable invocation. There is none either while the disk is full.
fn room(dispatcher: &Dispatcher, function: &Arc<LiveFunction>) -> Result<Slot, NoRoom> {
    let slot = dispatcher.journal().reserve(function)?;
    if dispatcher.broker().journal().is_full() {
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
        let call = |function, request_id| Some(Call { function, request_id });
        for (topic, expected) in [
            ("$faas/fn/hello/invoke", call("hello", None)),
            ("$faas/fn/hello/invoke/r-1", call("hello", Some("r-1"))),
            ("$faas/fn/hello/invoke/", None),
            ("$faas/fn/hello/invoke/a/b", None),
            ("$faas/fn/hello/result/r-1", None),
            ("$faas/wf/hello/invoke", None),
            ("$faas/fn/hello", None),
            ("faas/fn/hello/invoke", None),
        ] {
            assert_eq!(parse_call(topic), expected, "{topic}");
        }
        let call = parse_call("$faas/fn/hello/invoke/r-1").unwrap();
        assert_eq!(call.result_topic().unwrap().as_str(), "$faas/fn/hello/result/r-1");
    }
}
