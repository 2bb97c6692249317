use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;

/// The input of a function: a trigger and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    trigger: Trigger,
    body: Vec<u8>,
}

/// The kind of an event, with the data of that kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    /// A request at the HTTP gateway; the event's bytes are its body.
    Http(HttpRequest),
    /// A message that passed the broker; the event's bytes are its payload.
    Mqtt(MqttMessage),
    /// A schedule that came due; the event has no bytes.
    Cron(CronTick),
    /// A field of an object changed; the event has [`previous`](Event::previous) and [`value`](Event::value), and its bytes
    /// are JSON of all.
    Object(ObjectChange),
    /// A call by another function, the command line or an MQTT client, with its data.
    Call(DirectCall),
    /// A step of a workflow, with its input.
    Workflow(WorkflowStep),
}

/// An HTTP request without its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method in upper case.
    pub method: String,
    /// The path after `/fn/NAME`, or the whole path on a trigger's own path. Starts with `/`.
    pub path: String,
    /// The query without `?`; empty if there is none.
    pub query: String,
    /// Names in lower case, in the order received, repeated ones kept.
    pub headers: Vec<(String, String)>,
}

/// An MQTT PUBLISH without its payload (MQTT 5, section 3.3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MqttMessage {
    /// The topic it was published to.
    pub topic: String,
    /// Quality of service, 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// MQTT 5: the payload's media type.
    pub content_type: Option<String>,
    /// MQTT 5: the topic on which the sender expects the answer.
    pub response_topic: Option<String>,
    /// MQTT 5: identifies the answer for the sender.
    pub correlation_data: Option<Vec<u8>>,
    /// MQTT 5: names and values, in order.
    pub user_properties: Vec<(String, String)>,
}

/// A schedule that came due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronTick {
    /// The cron expression of the manifest.
    pub schedule: String,
    /// When it was due; the invocation itself may be later.
    pub scheduled: SystemTime,
}

/// A field of an object that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectChange {
    /// The object's name.
    pub object: String,
    /// The field's name.
    pub field: String,
}

/// A direct call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectCall {
    /// The calling function; `None` for other callers.
    pub caller: Option<String>,
}

/// A step of a workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkflowStep {
    /// The workflow's name.
    pub workflow: String,
    /// The instance's id.
    pub instance: String,
    /// The task's path in the definition.
    pub task: String,
}

/// The bytes of an event or a reply have another form than the requested one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Not UTF-8 text.
    #[error("the {what} is not UTF-8 text: byte {valid_up_to} is wrong")]
    NotText {
        /// The source of the bytes, such as `mqtt event`.
        what: &'static str,
        /// The number of valid bytes at the start.
        valid_up_to: usize,
    },
    /// Not JSON, or JSON of another shape.
    #[error("the {what} is not JSON of type {wanted}: {source}")]
    NotJson {
        /// The source of the bytes, such as `mqtt event`.
        what: &'static str,
        /// The Rust type.
        wanted: &'static str,
        /// The reason, with line and column.
        source: serde_json::Error,
    },
    /// The event is not a change of an object.
    #[error("a {kind} event has no change of an object")]
    NoChange {
        /// The kind of the event.
        kind: &'static str,
    },
}

impl Event {
    /// An event, for tests.
    pub fn new(trigger: Trigger, body: impl Into<Vec<u8>>) -> Self {
        Self { trigger, body: body.into() }
    }

    /// The kind's name: `http`, `mqtt`, `cron`, `object`, `call` or `workflow`.
    pub fn kind(&self) -> &'static str {
        match self.trigger {
            Trigger::Http(_) => "http",
            Trigger::Mqtt(_) => "mqtt",
            Trigger::Cron(_) => "cron",
            Trigger::Object(_) => "object",
            Trigger::Call(_) => "call",
            Trigger::Workflow(_) => "workflow",
        }
    }

    /// The trigger of the event.
    pub fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// The request; `None` for other kinds.
    pub fn http(&self) -> Option<&HttpRequest> {
        match &self.trigger {
            Trigger::Http(request) => Some(request),
            _ => None,
        }
    }

    /// The message; `None` for other kinds.
    pub fn mqtt(&self) -> Option<&MqttMessage> {
        match &self.trigger {
            Trigger::Mqtt(message) => Some(message),
            _ => None,
        }
    }

    /// The body, payload or data; empty if there is none.
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// The body, payload or data without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.body
    }

    /// The bytes as text.
    pub fn text(&self) -> Result<&str, PayloadError> {
        text(self.what(), &self.body)
    }

    /// The bytes as JSON, for any content type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        json(self.what(), &self.body)
    }

    fn what(&self) -> &'static str {
        match self.trigger {
            Trigger::Http(_) => "http event's body",
            Trigger::Mqtt(_) => "mqtt event's payload",
            Trigger::Cron(_) => "cron event's body",
            Trigger::Object(_) => "object event's body",
            Trigger::Call(_) => "call event's data",
            Trigger::Workflow(_) => "workflow event's input",
        }
    }
}

impl HttpRequest {
    /// The first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The first value of a query parameter, decoded.
    pub fn query_value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

impl MqttMessage {
    /// The topic's level number `index`, from 0.
    pub fn level(&self, index: usize) -> Option<&str> {
        self.topic.split('/').nth(index)
    }
}

pub(crate) fn text<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, PayloadError> {
    std::str::from_utf8(bytes)
        .map_err(|error| PayloadError::NotText { what, valid_up_to: error.valid_up_to() })
}

pub(crate) fn json<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, PayloadError> {
    serde_json::from_slice(bytes).map_err(|source| PayloadError::NotJson {
        what,
        wanted: std::any::type_name::<T>(),
        source,
    })
}

/// A time as the node sends it.
#[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
pub(crate) fn unix_ms(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mqtt(payload: &[u8]) -> Event {
        Event::new(Trigger::Mqtt(MqttMessage { topic: "a/b".into(), ..MqttMessage::default() }), payload)
    }

    #[test]
    fn what_is_no_json_says_whose_bytes_and_where() {
        assert_eq!(mqtt(b"[1, 2]").json::<Vec<u8>>().unwrap(), [1, 2]);
        let error = mqtt(b"[1,\n x]").json::<Vec<u8>>().unwrap_err().to_string();
        assert_eq!(
            error,
            "the mqtt event's payload is not JSON of type alloc::vec::Vec<u8>: expected value at line 2 column 2"
        );
        let error = mqtt(b"ok\xff").text().unwrap_err().to_string();
        assert_eq!(error, "the mqtt event's payload is not UTF-8 text: byte 2 is wrong");
    }

    #[test]
    fn requests_and_topics_are_taken_apart() {
        let request = HttpRequest {
            query: "zone=north%20end&zone=2&empty".into(),
            headers: vec![("accept".into(), "text/html".into())],
            ..HttpRequest::default()
        };
        assert_eq!(request.query_value("zone").as_deref(), Some("north end"));
        assert_eq!(request.query_value("empty").as_deref(), Some(""));
        assert_eq!(request.query_value("none"), None);
        assert_eq!(request.header("Accept"), Some("text/html"));
        assert_eq!(mqtt(b"").mqtt().unwrap().level(1), Some("b"));
        assert_eq!(mqtt(b"").kind(), "mqtt");
    }
}
