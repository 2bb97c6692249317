//! Answers over MQTT: their topic, payload and properties.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Client, Message, Properties};
use edgefaas_isolates::{HttpResponse, Reply};
use edgefaas_platform::is_loopback;

use crate::invocation::MAX_DEPTH;
use crate::problem::{self, Audience, Problem};

/// The user property with the HTTP status code of a reply, if it is not 200.
const STATUS_PROPERTY: &str = "faas-status";

/// The user property with the name of the node that ran an invocation.
pub const NODE_PROPERTY: &str = "invocation-node";

/// Media type of JSON.
const JSON: &str = "application/json";
/// Media type of plain text.
const TEXT: &str = "text/plain; charset=utf-8";
/// Media type of bytes without a known type.
const BYTES: &str = "application/octet-stream";

/// The body of a reply and its media type. `Err` with the response if the reply is an HTTP response, which has its own
/// content type.
pub fn body_of(reply: Reply) -> Result<(Bytes, Option<&'static str>), HttpResponse> {
    match reply {
        Reply::None => Ok((Bytes::new(), None)),
        Reply::Json(text) => Ok((text.into(), Some(JSON))),
        Reply::Text(text) => Ok((text.into(), Some(TEXT))),
        Reply::Bytes(bytes) => Ok((bytes, Some(BYTES))),
        Reply::Http(response) => Err(response),
    }
}

/// The size of the body of a reply, in bytes.
pub fn body_bytes(reply: &Reply) -> usize {
    match reply {
        Reply::None => 0,
        Reply::Json(text) | Reply::Text(text) => text.len(),
        Reply::Bytes(bytes) => bytes.len(),
        Reply::Http(response) => response.body.len(),
    }
}

/// The destination of the answer of an invocation.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The topic.
    pub topic: TopicName,
    /// MQTT 5 correlation data of the request, returned unchanged.
    pub correlation_data: Option<Bytes>,
    /// The depth of the invocation: the number of functions that called or triggered one another before it.
    pub depth: u8,
    /// The client that sent the request: the answer is published only if its rules allow it. `None` for a request of the
    /// node.
    pub requester: Option<Arc<Client>>,
}

impl Answer {
    /// The readers of the answer. Functions of the node, users, and clients on this machine see all details of an error.
    fn audience(&self) -> Audience {
        match &self.requester {
            Some(client) if client.username.is_none() && !is_loopback(client.peer.ip()) => Audience::Public,
            _ => Audience::Trusted,
        }
    }

    /// The message with the reply or the error, and the name of the node that ran the invocation, if it is known. If it would be larger than `max_bytes`, it says that the reply is too large.
    ///
    /// `None` if the invocation was over [`MAX_DEPTH`]: an answer may trigger functions, also the same one, so an answer to
    /// the invocation that ended a loop must not start the loop again.
    pub fn message(
        &self,
        result: Result<Reply, Problem>,
        node: Option<&str>,
        max_bytes: usize,
    ) -> Option<Message> {
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut properties =
            Properties { correlation_data: self.correlation_data.clone(), ..Properties::default() };
        let payload = match result.map(body_of) {
            Ok(Ok((body, media_type))) => {
                properties.content_type = media_type.map(Into::into);
                body
            }
            // MQTT carries only the status, content type and body of an HTTP response.
            Ok(Err(response)) => {
                let content_type =
                    response.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
                properties.content_type = content_type.map(|(_, value)| value.clone().into());
                if response.status != 200 {
                    properties.user.push((STATUS_PROPERTY.into(), response.status.to_string().into()));
                }
                response.body
            }
            Err(problem) => {
                let problem = problem.shown_to(self.audience());
                properties.content_type = Some(problem::MEDIA_TYPE.into());
                properties.user.push((STATUS_PROPERTY.into(), problem.status.to_string().into()));
                problem.to_json().into()
            }
        };
        properties.user.extend(node.map(|node| (NODE_PROPERTY.into(), node.into())));
        if properties.problem().is_some() {
            properties.content_type = None;
        }
        let bytes = payload.len();
        let message = Message::new(self.topic.clone(), payload).with_properties(properties.clone());
        if message.weight() <= max_bytes {
            return Some(message);
        }
        // The requester waits for an answer, so an error is sent instead of no message.
        let detail = format!(
            "the reply has {bytes} bytes; an MQTT message may have {max_bytes} (broker.max_packet)"
        );
        properties.content_type = Some(problem::MEDIA_TYPE.into());
        properties.user.retain(|(name, _)| &**name != STATUS_PROPERTY);
        properties.user.push((STATUS_PROPERTY.into(), "413".into()));
        let payload = Problem::new(413, "Reply too large", detail).to_json();
        Some(Message::new(self.topic.clone(), payload).with_properties(properties))
    }
}
