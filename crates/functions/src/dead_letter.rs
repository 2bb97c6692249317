//! Dead letters: messages about durable invocations and workflow instances that failed permanently.

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Message, Properties, QoS};

use crate::topics::DEAD_LETTERS;

/// The user property with the topic of the message that could not be handled.
pub const TOPIC_PROPERTY: &str = "topic";
/// Maximum length of the error detail in the `reason` property, in characters.
const MAX_REASON_CHARS: usize = 1000;

/// Contents of a dead letter.
pub struct DeadLetter {
    /// The name of the function or workflow.
    pub name: String,
    /// The title of the error, the same for all errors of one kind.
    pub title: String,
    /// The detail of the error, without secrets.
    pub detail: String,
    /// HTTP status code of the error.
    pub status: u16,
    /// More user properties, for example the id of the invocation or instance.
    pub about: Vec<(&'static str, String)>,
    /// MIME type of the payload.
    pub content_type: Option<String>,
    /// The payload that could not be handled.
    pub payload: Bytes,
}

impl DeadLetter {
    /// The message for `$faas/dead/NAME`, with QoS 1. The message has no payload if it would be larger than `max_bytes` with
    /// it. `None` if the topic would be invalid.
    pub fn message(self, max_bytes: usize) -> Option<Message> {
        let topic = TopicName::new(format!("{DEAD_LETTERS}{}", self.name)).ok()?;
        let detail: String = self.detail.chars().take(MAX_REASON_CHARS).collect();
        let reason = format!("{}: {}", self.title, detail.replace('\0', " "));
        let error = [("reason", reason), ("status", self.status.to_string())];
        let mut properties = Properties {
            content_type: self.content_type.map(Into::into),
            user: error
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
