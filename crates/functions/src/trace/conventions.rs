//! Roles and attributes of spans, by the names of OpenTelemetry's semantic conventions (version 1.37).

use std::time::{Duration, UNIX_EPOCH};

use edgefaas_isolates::{FetchCause, Reply, Trigger};
use serde::{Deserialize, Serialize};

use super::span::cut;
use crate::invocation::{Invocation, InvocationError, Outcome};
use crate::topics::parse_call;

/// The `messaging.system` of the broker.
const MQTT: &str = "mqtt";
/// The first time that RFC 3339 has no form for.
const YEAR_10000_UNIX_MS: u64 = 253_402_300_800_000;
/// The methods that have a value of their own in `http.request.method`.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Attributes with their names.
pub type Attributes = Vec<(&'static str, Value)>;

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Value {
    Text(String),
    Word(&'static str),
    Number(u64),
}

impl Value {
    /// The beginning of a text of unknown length.
    fn cut(text: &str) -> Self {
        Self::Text(cut(text))
    }

    pub(super) fn masked(self, mask: impl Fn(String) -> String) -> Self {
        match self {
            Self::Text(text) => Self::Text(mask(text)),
            other => other,
        }
    }

    /// Memory of its text, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.capacity(),
            Self::Word(_) | Self::Number(_) => 0,
        }
    }
}

/// The part of a span in the exchange with other programs; OpenTelemetry calls it the kind of the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Work inside the node.
    Internal,
    /// The answer to a call from outside.
    Server,
    /// A call to another server or node.
    Client,
    /// The sending of a message.
    Producer,
    /// The work that a message has started.
    Consumer,
}

impl Role {
    /// The number in OTLP (`Span.SpanKind`).
    pub fn number(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Server => 2,
            Self::Client => 3,
            Self::Producer => 4,
            Self::Consumer => 5,
        }
    }

    /// The role with this number; `Internal` for an unknown one.
    pub fn from_number(number: u32) -> Self {
        let known = [Self::Server, Self::Client, Self::Producer, Self::Consumer];
        known.into_iter().find(|role| u32::from(role.number()) == number).unwrap_or(Self::Internal)
    }

    /// The role of an invocation.
    pub fn of(invocation: &Invocation) -> Self {
        match (&invocation.event.trigger, invocation.placed_by) {
            (_, Some(_)) => Self::Server,
            (trigger, None) => Entry::of(trigger).role(),
        }
    }
}

/// The door by which a call has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A function or workflow of this node.
    #[default]
    Internal,
    /// An HTTP request.
    Http,
    /// A call of the control API.
    Grpc,
    /// A call by an MQTT topic.
    MqttCall,
    /// A message or an event.
    Message,
    /// A schedule.
    Schedule,
    /// A change of an object.
    Object,
}

impl Entry {
    fn of(trigger: &Trigger) -> Self {
        match trigger {
            Trigger::Http(_) => Self::Http,
            Trigger::Mqtt(message) if parse_call(&message.topic).is_some() => Self::MqttCall,
            Trigger::Mqtt(_) => Self::Message,
            Trigger::Cron(_) => Self::Schedule,
            Trigger::Object(_) => Self::Object,
            Trigger::Call(call) if call.caller.is_none() => Self::Grpc,
            Trigger::Call(_) | Trigger::Workflow(_) => Self::Internal,
        }
    }

    /// The role of the span that begins there.
    pub fn role(self) -> Role {
        match self {
            Self::Http | Self::Grpc | Self::MqttCall => Role::Server,
            Self::Message => Role::Consumer,
            Self::Internal | Self::Schedule | Self::Object => Role::Internal,
        }
    }

    /// The value of `faas.trigger`.
    fn faas_trigger(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Message => "pubsub",
            Self::Schedule => "timer",
            Self::Object => "datasource",
            Self::Internal | Self::Grpc | Self::MqttCall => "other",
        }
    }

    /// The attributes of a workflow instance that begins there.
    pub fn of_workflow(self, id: &str) -> Attributes {
        let mut attributes = self.common(id);
        match self {
            Self::Http => attributes.push(("http.request.method", Value::Word("POST"))),
            Self::MqttCall | Self::Message => attributes.push(("messaging.system", Value::Word(MQTT))),
            Self::Internal | Self::Grpc | Self::Schedule | Self::Object => {}
        }
        attributes
    }

    fn common(self, id: &str) -> Attributes {
        let mut attributes = vec![
            ("faas.invocation_id", Value::Text(id.to_owned())),
            ("faas.trigger", Value::Word(self.faas_trigger())),
        ];
        if self == Self::Grpc {
            attributes.push(("rpc.system", Value::Word("grpc")));
            attributes.push(("rpc.service", Value::Word("edgefaas.control.v1.Control")));
            attributes.push(("rpc.method", Value::Word("Invoke")));
        }
        attributes
    }
}

/// When the caller of an invocation gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// With the outcome of the invocation.
    ByOutcome,
    /// With its acceptance, or with the outcome of a later attempt.
    Otherwise,
}

/// The attributes of an invocation.
pub fn of_invocation(invocation: &Invocation, outcome: &Outcome, answered: Answered) -> Attributes {
    let mut attributes = Entry::of(&invocation.event.trigger).common(&invocation.id);
    match &invocation.event.trigger {
        Trigger::Http(request) => {
            attributes.extend(method(&request.method));
            attributes.push(("url.path", Value::cut(&request.path)));
            if answered == Answered::ByOutcome {
                let status = status(&outcome.result);
                attributes.push(("http.response.status_code", Value::Number(status.into())));
                if outcome.result.is_ok() && status >= 500 {
                    attributes.push(("error.type", Value::Text(status.to_string())));
                }
            }
        }
        Trigger::Mqtt(message) => {
            attributes.extend(message_attributes(&message.topic, invocation.event.body.len()));
            attributes.push(("messaging.operation.type", Value::Word("process")));
            attributes.push(("messaging.operation.name", Value::Word("process")));
        }
        Trigger::Cron(tick) => {
            let due = Some(tick.scheduled_unix_ms).filter(|due| *due < YEAR_10000_UNIX_MS);
            let due = due.map(|due| UNIX_EPOCH + Duration::from_millis(due));
            let due = due.map(|due| humantime::format_rfc3339_millis(due).to_string());
            attributes.push(("faas.cron", Value::cut(&tick.schedule)));
            attributes.extend(due.map(|due| ("faas.time", Value::Text(due))));
        }
        Trigger::Object(change) => {
            attributes.push(("faas.document.collection", Value::cut(&change.object)));
            attributes.push(("faas.document.name", Value::cut(&change.field)));
        }
        Trigger::Call(_) | Trigger::Workflow(_) => {}
    }
    if let Err(error) = &outcome.result {
        attributes.push(("error.type", Value::Text(error.status().to_string())));
    }
    attributes
}

/// The status of the gateway's answer.
fn status(result: &Result<Reply, InvocationError>) -> u16 {
    match result {
        Ok(Reply::Http(response)) => response.status,
        Ok(Reply::None) => 204,
        Ok(Reply::Json(_) | Reply::Text(_) | Reply::Bytes(_)) => 200,
        Err(error) => error.status(),
    }
}

/// The attributes of a method: a method without a value of its own is in another attribute.
pub fn method(method: &str) -> impl Iterator<Item = (&'static str, Value)> {
    let known = METHODS.into_iter().find(|known| *known == method);
    let original = known.is_none().then(|| ("http.request.method_original", Value::cut(method)));
    std::iter::once(("http.request.method", Value::Word(known.unwrap_or("_OTHER")))).chain(original)
}

/// The attributes of a request to another server. The query of its URL may have secrets, so it is left out.
pub fn of_request(request: &http::Method, url: &url::Url) -> Attributes {
    let mut attributes: Attributes = method(request.as_str()).collect();
    attributes.push(("server.address", Value::cut(url.host_str().unwrap_or_default())));
    attributes.extend(url.port_or_known_default().map(|port| ("server.port", Value::Number(port.into()))));
    attributes.push(("url.full", Value::cut(&url[..url::Position::AfterPath])));
    attributes
}

/// The `error.type` of a request without an answer.
pub fn error_type(cause: FetchCause) -> &'static str {
    match cause {
        FetchCause::Denied => "denied",
        FetchCause::Invalid => "invalid",
        FetchCause::Overloaded => "overloaded",
        FetchCause::NoAddress => "no_address",
        FetchCause::AddressDenied => "address_denied",
        FetchCause::Unreachable => "unreachable",
        FetchCause::Refused => "refused",
        FetchCause::ConnectTimeout => "connect_timeout",
        FetchCause::Certificate => "certificate",
        FetchCause::Tls => "tls",
        FetchCause::Closed => "closed",
        FetchCause::Protocol => "protocol",
        FetchCause::TooLarge { .. } => "too_large",
        FetchCause::Other => "_OTHER",
    }
}

/// The attributes of a call of a function on another node.
pub fn of_remote_call(function: &str, node: &str) -> Attributes {
    vec![
        ("faas.invoked_name", Value::cut(function)),
        ("faas.invoked_provider", Value::Word("edgefaas")),
        ("server.address", Value::cut(node)),
    ]
}

/// The attributes of a message that is sent.
pub fn of_publish(topic: &str, body_bytes: usize) -> Attributes {
    let mut attributes = message_attributes(topic, body_bytes);
    attributes.extend(sending());
    attributes
}

/// The attributes of a task that sends a message, whose topic is not known yet.
pub fn of_sending_task() -> Attributes {
    let mut attributes = vec![("messaging.system", Value::Word(MQTT))];
    attributes.extend(sending());
    attributes
}

fn sending() -> [(&'static str, Value); 2] {
    [
        ("messaging.operation.type", Value::Word("send")),
        ("messaging.operation.name", Value::Word("publish")),
    ]
}

fn message_attributes(topic: &str, body_bytes: usize) -> Attributes {
    vec![
        ("messaging.system", Value::Word(MQTT)),
        ("messaging.destination.name", Value::cut(topic)),
        ("messaging.message.body.size", Value::Number(body_bytes as u64)),
    ]
}

#[cfg(test)]
mod tests {
    use edgefaas_isolates::{CronTick, DirectCall, Event, HttpRequest, MqttMessage, ObjectChange};

    use super::*;
    use crate::invocation::{Principal, Timing};

    fn invocation(trigger: Trigger) -> Invocation {
        Invocation::new("f".into(), Principal::Operator, Event { trigger, body: "abc".into() })
    }

    fn of(invocation: &Invocation, result: Result<Reply, InvocationError>) -> Vec<(&'static str, String)> {
        let outcome = Outcome { id: invocation.id.clone(), result, timing: Timing::default(), node: None };
        let text = |value| match value {
            Value::Text(text) => text,
            Value::Word(word) => word.to_owned(),
            Value::Number(number) => number.to_string(),
        };
        let attributes = of_invocation(invocation, &outcome, Answered::ByOutcome);
        attributes.into_iter().skip(1).map(|(name, value)| (name, text(value))).collect()
    }

    fn pairs(expected: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn the_door_decides_about_the_role() {
        let message =
            |topic: &str| Trigger::Mqtt(MqttMessage { topic: topic.into(), ..Default::default() });
        let change = ObjectChange { object: "o".into(), field: "n".into() };
        let tick = CronTick { schedule: "* * * * *".into(), scheduled_unix_ms: 1_000 };
        let call = |caller: Option<&str>| Trigger::Call(DirectCall { caller: caller.map(str::to_owned) });
        for (trigger, role, faas) in [
            (Trigger::Http(HttpRequest::default()), Role::Server, "http"),
            (message("a/b"), Role::Consumer, "pubsub"),
            (message("$faas/fn/f/invoke"), Role::Server, "other"),
            (message("$faas/fn/f/invoke/7"), Role::Server, "other"),
            (call(None), Role::Server, "other"),
            (call(Some("g")), Role::Internal, "other"),
            (Trigger::Cron(tick), Role::Internal, "timer"),
            (Trigger::Object(change), Role::Internal, "datasource"),
        ] {
            let mut invocation = invocation(trigger);
            assert_eq!(Role::of(&invocation), role, "{invocation:?}");
            assert_eq!(of(&invocation, Ok(Reply::None))[0], ("faas.trigger", faas.to_owned()));
            invocation.placed_by = Some(1);
            assert_eq!(Role::of(&invocation), Role::Server, "another node has called it");
        }
        let all = [Role::Internal, Role::Server, Role::Client, Role::Producer, Role::Consumer];
        assert!(all.into_iter().all(|role| Role::from_number(role.number().into()) == role));
        assert_eq!(Role::from_number(0), Role::Internal);
    }

    #[test]
    fn a_schedule_has_its_time_and_its_expression() {
        let tick = CronTick { schedule: "0 * * * *".into(), scheduled_unix_ms: 1_500 };
        let expected = [
            ("faas.trigger", "timer"),
            ("faas.cron", "0 * * * *"),
            ("faas.time", "1970-01-01T00:00:01.500Z"),
        ];
        assert_eq!(of(&invocation(Trigger::Cron(tick)), Ok(Reply::None)), pairs(&expected));
        let last = |scheduled_unix_ms| {
            let tick = CronTick { schedule: "x".into(), scheduled_unix_ms };
            of(&invocation(Trigger::Cron(tick)), Ok(Reply::None)).pop().unwrap()
        };
        assert_eq!(last(YEAR_10000_UNIX_MS - 1).1, "9999-12-31T23:59:59.999Z");
        assert_eq!((last(YEAR_10000_UNIX_MS).0, last(u64::MAX).0), ("faas.cron", "faas.cron"));
    }

    #[test]
    fn statuses_and_methods_of_requests() {
        let request = |method: &str| {
            let path = format!("/{}", "p".repeat(70_000));
            invocation(Trigger::Http(HttpRequest { method: method.into(), path, ..Default::default() }))
        };
        let value = |attributes: &[(&'static str, String)], name: &str| {
            attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
        };
        let failed = InvocationError::Draining;
        let status = failed.status().to_string();
        for (result, expected, error) in [
            (Ok(Reply::None), "204", None),
            (Ok(Reply::Text("x".into())), "200", None),
            (Err(failed), &*status, Some(status.clone())),
        ] {
            let attributes = of(&request("GET"), result);
            assert_eq!(value(&attributes, "http.response.status_code").as_deref(), Some(expected));
            assert_eq!(value(&attributes, "error.type"), error);
            assert!(value(&attributes, "url.path").unwrap().len() < 400, "long paths are cut");
        }
        let attributes = of(&request("BREW"), Ok(Reply::None));
        assert_eq!(value(&attributes, "http.request.method").as_deref(), Some("_OTHER"));
        assert_eq!(value(&attributes, "http.request.method_original").as_deref(), Some("BREW"));
    }
}
