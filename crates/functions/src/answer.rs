//! Answers over MQTT: where they go and what is in them.

use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Client, Message, Properties};
use edgefaas_isolates::{HttpResponse, Reply};
use edgefaas_platform::is_loopback;

use crate::invocation::MAX_DEPTH;
use crate::problem::{self, Audience, Problem};

/// The user property that carries the status code of a reply that is not simply good.
const STATUS_PROPERTY: &str = "faas-status";

/// JSON text.
const JSON: &str = "application/json";
/// Plain text.
const TEXT: &str = "text/plain; charset=utf-8";
/// Bytes of no known kind.
const BYTES: &str = "application/octet-stream";

/// The body of a reply and its media type; nothing for an HTTP response, which has its own.
pub fn body_of(reply: Reply) -> Result<(Bytes, Option<&'static str>), HttpResponse> {
    match reply {
        Reply::None => Ok((Bytes::new(), None)),
        Reply::Json(text) => Ok((text.into(), Some(JSON))),
        Reply::Text(text) => Ok((text.into(), Some(TEXT))),
        Reply::Bytes(bytes) => Ok((bytes, Some(BYTES))),
        Reply::Http(response) => Err(response),
    }
}

/// The size of the body of a reply.
pub fn body_bytes(reply: &Reply) -> usize {
    match reply {
        Reply::None => 0,
        Reply::Json(text) | Reply::Text(text) => text.len(),
        Reply::Bytes(bytes) => bytes.len(),
        Reply::Http(response) => response.body.len(),
    }
}

/// Where the answer of an invocation goes.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The topic.
    pub topic: TopicName,
    /// Given back as it came.
    pub correlation_data: Option<Bytes>,
    /// How many functions deep the question was.
    pub depth: u8,
    /// Whose rules say where it may go.
    pub requester: Option<Arc<Client>>,
}

impl Answer {
    /// Who reads it: functions of the node, users, and clients on this machine may know all of it.
    fn audience(&self) -> Audience {
        match &self.requester {
            Some(client) if client.username.is_none() && !is_loopback(client.peer.ip()) => Audience::Public,
            _ => Audience::Trusted,
        }
    }

    /// The message that says how it ended; `None` where functions answer one another without end: an answer may trigger
    /// a function as any message does, this one's own included, and where the chain has been ended, its answer is not to
    /// begin it anew.
    pub fn message(&self, result: Result<Reply, Problem>, max_bytes: usize) -> Option<Message> {
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
            Err(problem) => {
                let problem = problem.shown_to(self.audience());
                properties.content_type = Some(problem::MEDIA_TYPE.into());
                properties.user.push((STATUS_PROPERTY.into(), problem.status.to_string().into()));
                problem.to_json().into()
            }
        };
        if properties.problem().is_some() {
            properties.content_type = None;
        }
        let bytes = payload.len();
        let message = Message::new(self.topic.clone(), payload).with_properties(properties.clone());
        if message.weight() <= max_bytes {
            return Some(message);
        }
        // Said instead of not sent: somebody waits for it.
        let detail = format!(
            "the reply has {bytes} bytes; an MQTT message may have {max_bytes} (broker.max_packet)"
        );
        properties.content_type = Some(problem::MEDIA_TYPE.into());
        properties.user = vec![(STATUS_PROPERTY.into(), "413".into())];
        let payload = Problem::new(413, "Reply too large", detail).to_json();
        Some(Message::new(self.topic.clone(), payload).with_properties(properties))
    }
}
