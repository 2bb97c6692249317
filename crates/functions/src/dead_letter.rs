//! Dead letters: messages about durable invocations and workflow instances that were given up.

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Message, Properties, QoS};

use crate::topics::DEAD_LETTERS;

/// The user property that has the topic of the message which could not be handled.
pub const TOPIC_PROPERTY: &str = "topic";
/// The longest reason, in characters.
const MAX_REASON_CHARS: usize = 1000;

/// What a dead letter says.
pub struct DeadLetter {
    /// The function or workflow.
    pub name: String,
    /// The kind of error, the same for every error of the kind.
    pub title: String,
    /// The error, without secrets.
    pub detail: String,
    /// HTTP status code of the error.
    pub status: u16,
    /// User properties: which invocation or instance, and what it is known of it.
    pub about: Vec<(&'static str, String)>,
    /// MIME type of the payload.
    pub content_type: Option<String>,
    /// The payload that could not be handled.
    pub payload: Bytes,
}

impl DeadLetter {
    /// The message on `$faas/dead/NAME`, with QoS 1. The payload is left out if the message would have more than `max_bytes`
    /// with it. `None` if the name cannot be a level of a topic.
    pub fn message(self, max_bytes: usize) -> Option<Message> {
        let topic = TopicName::new(format!("{DEAD_LETTERS}{}", self.name)).ok()?;
        let detail: String = self.detail.chars().take(MAX_REASON_CHARS).collect();
        let reason = format!("{}: {}", self.title, detail.replace('\0', " "));
        let said = [("reason", reason), ("status", self.status.to_string())];
        let mut properties = Properties {
            content_type: self.content_type.map(Into::into),
            user: said
                .into_iter()
                .chain(self.about)
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..Properties::default()
        };
        if properties.problem().is_some() {
            properties.content_type = None;
        }
        let bytes = self.payload.len();
        let letter = |payload: Bytes, properties: Properties| {
            Message::new(topic.clone(), payload).with_qos(QoS::AtLeastOnce).with_properties(properties)
        };
        let whole = letter(self.payload, properties.clone());
        if whole.weight() <= max_bytes {
            return Some(whole);
        }
        properties.user.push(("left-out".into(), format!("the payload of {bytes} bytes").into()));
        Some(letter(Bytes::new(), properties))
    }
}
