//! Events and replies of functions, independent of their language.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use serde::{Deserialize, Serialize};

use crate::host::FetchError;

/// One event for a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The origin of the event.
    pub trigger: Trigger,
    /// HTTP body, MQTT payload or call data; empty if there is none.
    pub body: Bytes,
}

/// The kind of an event, with the data of the kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// A request at the HTTP gateway.
    Http(HttpRequest),
    /// A message passing the broker.
    Mqtt(MqttMessage),
    /// A schedule that came due.
    Cron(CronTick),
    /// A field of a stateful object that changed.
    Object(ObjectChange),
    /// A call by another function or the command line.
    Call(DirectCall),
    /// A step of a workflow.
    Workflow(WorkflowStep),
}

impl Trigger {
    /// The kind's name as functions see it in `event.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Mqtt(_) => "mqtt",
            Self::Cron(_) => "cron",
            Self::Object(_) => "object",
            Self::Call(_) => "call",
            Self::Workflow(_) => "workflow",
        }
    }
}

/// An HTTP request without its body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRequest {
    /// The method in upper case.
    pub method: String,
    /// The path as the function sees it: after `/fn/NAME`, or whole on a mounted trigger.
    pub path: String,
    /// The query without `?`; empty if there is none.
    pub query: String,
    /// Header names in lower case, in the order received.
    pub headers: Vec<(String, String)>,
}

/// An MQTT PUBLISH without its payload (MQTT 5, section 3.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MqttMessage {
    /// The topic name.
    pub topic: String,
    /// Quality of service, 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// MQTT 5 content type.
    pub content_type: Option<String>,
    /// MQTT 5 response topic.
    pub response_topic: Option<String>,
    /// MQTT 5 correlation data.
    pub correlation_data: Option<Bytes>,
    /// MQTT 5 user properties, in order.
    pub user_properties: Vec<(String, String)>,
}

/// A schedule that came due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronTick {
    /// The cron expression.
    pub schedule: String,
    /// Time for which the tick was due, in milliseconds since the Unix epoch.
    pub scheduled_unix_ms: u64,
}

/// A field of an object that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChange {
    /// The object's name.
    pub object: String,
    /// The field's name.
    pub field: String,
}

/// A direct call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectCall {
    /// The function that called, if one did.
    pub caller: Option<String>,
}

/// A step of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowStep {
    /// The workflow's name.
    pub workflow: String,
    /// The instance's id.
    pub instance: String,
    /// The task's path in the definition.
    pub task: String,
}

/// The reply of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The function replied with nothing (HTTP 204).
    #[default]
    None,
    /// JSON text.
    Json(String),
    /// Plain text.
    Text(String),
    /// Bytes.
    Bytes(Bytes),
    /// A full HTTP response.
    Http(HttpResponse),
}

/// An HTTP response as a function made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpResponse {
    /// Status code, 100 to 599.
    pub status: u16,
    /// Header names and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// A request of a function to another server. Bodies are held whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutgoingRequest {
    /// The method; a token (RFC 9110, section 5.6.2).
    pub method: String,
    /// The absolute URL, http or https.
    pub url: String,
    /// Header names and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there is none.
    pub body: Bytes,
    /// The handling of redirections.
    pub redirect: Redirect,
}

/// The handling of redirections (status 301, 302, 303, 307 or 308).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Redirect {
    /// Followed, to permitted servers only.
    #[default]
    Follow,
    /// The request fails.
    Error,
    /// The redirection is the response.
    Manual,
}

/// The answer to an [`OutgoingRequest`], with its whole body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncomingResponse {
    /// Status code, 100 to 599.
    pub status: u16,
    /// Header names in lower case and values, in the order received.
    pub headers: Vec<(String, String)>,
    /// The whole body, decoded from its transfer coding; a content coding (gzip) is the function's to undo.
    pub body: Bytes,
    /// The URL of the response, after redirections.
    pub url: String,
    /// True if a redirection was followed.
    pub redirected: bool,
}

/// The answer to an [`OutgoingRequest`], whose body is still being received.
pub struct StreamedResponse {
    /// Status code, 100 to 599.
    pub status: u16,
    /// As those of [`IncomingResponse`].
    pub headers: Vec<(String, String)>,
    /// The size of the body in bytes, if the server has said it.
    pub body_bytes: Option<u64>,
    /// The body.
    pub body: ResponseBody,
    /// The URL of the response, after redirections.
    pub url: String,
    /// True if a redirection was followed.
    pub redirected: bool,
}

/// The body of an answer, in pieces of at most a few hundred KiB. The node reads no further piece from the server before the
/// last one was taken. An error is the last item. Dropping the body closes the connection.
pub type ResponseBody = Pin<Box<dyn Stream<Item = Result<Bytes, FetchError>> + Send>>;
