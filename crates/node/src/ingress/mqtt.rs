//! MQTT as a way in: triggers on topics, and calls on `$faas/fn/NAME/invoke`.
//!
//! The hook sits in the broker's publish path. It decides at once and starts what is to run; it never
//! waits for a function.

use std::sync::{Arc, OnceLock, Weak};

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Client, Message, Origin, Properties, PublishHook, Publishing, QoS, RejectReason, Verdict,
};
use edgefaas_isolates::{Event, MqttMessage, Trigger};

use super::reply::body_of;
use crate::dispatch::{Admitted, Dispatcher, Workers};
use crate::invocation::{Invocation, InvocationError, MAX_DEPTH, Outcome, Principal};
use crate::problem::{self, Problem};
use crate::registry::LiveFunction;

/// Topics that belong to the node.
const FAAS_PREFIX: &str = "$faas/";
/// The user property that carries the status code of a reply that is not simply good.
const STATUS_PROPERTY: &str = "faas-status";
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
        origin: &Origin,
        topic: &str,
        message: &Message,
    ) -> Verdict {
        let Some(call) = parse_call(topic) else {
            return match origin {
                Origin::Node { .. } => Verdict::Forward,
                _ => Verdict::Reject(RejectReason::NotAuthorized),
            };
        };
        let properties = message.properties();
        let answer = Answer {
            topic: properties
                .and_then(|properties| properties.response_topic.clone())
                .filter(|topic| is_open(topic.as_str()) || call.is_result(topic.as_str()))
                .or_else(|| call.result_topic()),
            correlation_data: properties.and_then(|properties| properties.correlation_data.clone()),
            depth: depth_of(origin),
            requester: requester(origin),
        };
        let invocation = invocation(call.function.to_owned(), origin, message);
        match dispatcher.admit(invocation) {
            Ok(admitted) => self.start(dispatcher, admitted, answer),
            // Whoever can be told is told in words; the others by the acknowledgement.
            Err(error) if answer.topic.is_some() => {
                answer.send(dispatcher, &Arc::from(NODE), Err(&error), None);
            }
            Err(error) => return Verdict::Reject(reject_reason(&error)),
        }
        Verdict::Consume
    }

    /// Any other topic: every trigger that matches gets the message.
    fn on_topic(&self, dispatcher: &Arc<Dispatcher>, origin: &Origin, message: &Message) -> Verdict {
        let mut verdict = Verdict::Forward;
        dispatcher.registry().routes().for_each_mqtt(message.topic().as_str(), |route| {
            let started = self.trigger(dispatcher, &route.function, origin, message);
            match started {
                Ok(()) if route.consume => verdict = Verdict::Consume,
                // Nobody else would see it: it is refused, not lost.
                Err(error) if route.consume && matches!(verdict, Verdict::Forward) => {
                    verdict = Verdict::Reject(reject_reason(&error));
                }
                _ => {}
            }
        });
        verdict
    }

    fn trigger(
        &self,
        dispatcher: &Arc<Dispatcher>,
        function: &Arc<LiveFunction>,
        origin: &Origin,
        message: &Message,
    ) -> Result<(), InvocationError> {
        let properties = message.properties();
        let answer = Answer {
            topic: properties
                .and_then(|properties| properties.response_topic.clone())
                .filter(|topic| is_open(topic.as_str())),
            correlation_data: properties.and_then(|properties| properties.correlation_data.clone()),
            depth: depth_of(origin),
            requester: requester(origin),
        };
        let invocation = invocation(function.name.to_string(), origin, message);
        match dispatcher.admit_to(function.clone(), invocation) {
            Ok(admitted) => self.start(dispatcher, admitted, answer),
            // Triggers are of QoS 0: what finds no room is dropped, counted and said.
            Err(error) => {
                dispatcher.log_dropped(function, &error);
                answer.send(dispatcher, &function.name, Err(&error), None);
                return Err(error);
            }
        }
        Ok(())
    }

    fn start(&self, dispatcher: &Arc<Dispatcher>, admitted: Admitted, answer: Answer) {
        let dispatcher = dispatcher.clone();
        let answering = dispatcher.answering();
        self.workers.spawn(async move {
            let _answering = answering;
            let source = admitted.function_name();
            let Outcome { id, result, .. } = dispatcher.run(admitted).await;
            match result {
                Ok(reply) => answer.send(&dispatcher, &source, Ok(reply), Some(&id)),
                Err(error) => answer.send(&dispatcher, &source, Err(&error), Some(&id)),
            }
        });
    }
}

impl PublishHook for CoordinationHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let dispatcher = self.dispatcher.get().and_then(Weak::upgrade);
        let Some(dispatcher) = dispatcher else { return Verdict::Forward };
        let (origin, message) = (publishing.origin(), publishing.message());
        let topic = message.topic().as_str();
        if topic.starts_with(FAAS_PREFIX) {
            self.on_own_topic(&dispatcher, origin, topic, message)
        } else {
            self.on_topic(&dispatcher, origin, message)
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

/// Where the answer of an invocation goes.
struct Answer {
    topic: Option<TopicName>,
    correlation_data: Option<bytes::Bytes>,
    depth: u8,
    /// Whose rules say where it may go.
    requester: Option<Arc<Client>>,
}

impl Answer {
    fn send(
        self,
        dispatcher: &Dispatcher,
        source: &Arc<str>,
        result: Result<edgefaas_isolates::Reply, &InvocationError>,
        invocation: Option<&str>,
    ) {
        let Some(topic) = self.topic else { return };
        // An answer may trigger a function as any message does, this one's own included. Where the chain
        // has been ended, its answer is not to begin it anew.
        if self.depth > MAX_DEPTH {
            return;
        }
        let mut properties =
            Properties { correlation_data: self.correlation_data, ..Properties::default() };
        let payload = match result.map(body_of) {
            Ok(Ok((body, media_type))) => {
                properties.content_type = media_type.map(Into::into);
                body
            }
            // What a function may say in HTTP and not in MQTT is left out.
            Ok(Err(response)) => {
                let content_type =
                    response.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
                properties.content_type = content_type.map(|(_, value)| value.clone().into());
                if response.status != 200 {
                    properties.user.push((STATUS_PROPERTY.into(), response.status.to_string().into()));
                }
                response.body
            }
            Err(error) => {
                properties.content_type = Some(problem::MEDIA_TYPE.into());
                properties.user.push((STATUS_PROPERTY.into(), error.status().to_string().into()));
                Problem::of(error, invocation).to_json().into()
            }
        };
        if properties.problem().is_some() {
            properties.content_type = None;
        }
        let depth = self.depth.saturating_add(1);
        let (bytes, max_bytes) = (payload.len(), dispatcher.max_message_bytes());
        let message = Message::new(topic.clone(), payload).with_properties(properties.clone());
        if message.weight() <= max_bytes {
            dispatcher.answer(source, depth, self.requester, message);
            return;
        }
        // Said instead of not sent: somebody waits for it.
        let detail = format!(
            "the reply has {bytes} bytes; an MQTT message may have {max_bytes} (broker.max_packet)"
        );
        let mut problem = Problem::new(413, "Reply too large", detail);
        problem.invocation = invocation.map(str::to_owned);
        properties.content_type = Some(problem::MEDIA_TYPE.into());
        properties.user = vec![(STATUS_PROPERTY.into(), "413".into())];
        let message = Message::new(topic, problem.to_json()).with_properties(properties);
        dispatcher.answer(source, depth, self.requester, message);
    }
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
