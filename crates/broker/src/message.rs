//! Messages.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

use crate::topic::TopicName;

/// Quality of service of a message or a subscription (MQTT 5, section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum QoS {
    /// QoS 0: fire and forget.
    #[default]
    AtMostOnce = 0,
    /// QoS 1: acknowledged by PUBACK.
    AtLeastOnce = 1,
    /// QoS 2: acknowledged by PUBREC, PUBREL and PUBCOMP.
    ExactlyOnce = 2,
}

/// Protocol version of a connection, chosen by its CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol level 5.
    V5,
}

/// The MQTT 5 properties of a message that travel from publisher to subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    /// Payload Format Indicator: the publisher says that the payload is UTF-8 text.
    pub payload_is_utf8: bool,
    /// Message Expiry Interval in seconds, counted from the moment the broker got the message.
    pub expiry_seconds: Option<u32>,
    /// Content Type, such as `application/json`.
    pub content_type: Option<ByteString>,
    /// Response Topic of a request.
    pub response_topic: Option<TopicName>,
    /// Correlation Data of a request.
    pub correlation_data: Option<Bytes>,
    /// User Properties, in order; a name may occur more than once.
    pub user: Vec<(ByteString, ByteString)>,
}

/// One application message.
///
/// Cheap to clone, with one exception that is on purpose: a message which has just been read still points into the
/// read buffer of its connection, and the first clone copies topic and payload out, so that a message which is
/// kept never keeps a whole read buffer alive. Clones of that clone share it.
#[derive(Debug)]
pub struct Message {
    topic: TopicName,
    payload: Bytes,
    qos: QoS,
    retain: bool,
    properties: Option<Arc<Properties>>,
    /// Topic and payload are slices of a read buffer.
    borrowed: bool,
}

impl Message {
    /// A QoS 0 message without properties, not retained.
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Message {
        Message {
            topic,
            payload: payload.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            properties: None,
            borrowed: false,
        }
    }

    /// The message with this quality of service.
    #[must_use]
    pub fn with_qos(mut self, qos: QoS) -> Message {
        self.qos = qos;
        self
    }

    /// The message with this retain flag.
    #[must_use]
    pub fn with_retain(mut self, retain: bool) -> Message {
        self.retain = retain;
        self
    }

    /// The message with these properties in place of its own.
    #[must_use]
    pub fn with_properties(mut self, properties: Properties) -> Message {
        self.properties = (properties != Properties::default()).then(|| Arc::new(properties));
        self
    }

    /// The message on another topic.
    #[must_use]
    pub fn with_topic(mut self, topic: TopicName) -> Message {
        self.topic = topic;
        self
    }

    /// The message with another payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Bytes>) -> Message {
        self.payload = payload.into();
        self
    }

    /// The topic of the message.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The payload, to keep: copied when it still points into a read buffer, shared otherwise.
    pub fn payload_bytes(&self) -> Bytes {
        if self.borrowed { Bytes::copy_from_slice(&self.payload) } else { self.payload.clone() }
    }

    /// Quality of service the publisher chose.
    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// True if the broker keeps the message as the last message of its topic.
    pub fn retain(&self) -> bool {
        self.retain
    }

    /// The message's MQTT 5 properties; `None` stands for all defaults.
    pub fn properties(&self) -> Option<&Properties> {
        self.properties.as_deref()
    }

    /// Message Expiry Interval in seconds, counted from when the broker received it.
    pub(crate) fn expiry_seconds(&self) -> Option<u32> {
        self.properties.as_ref().and_then(|properties| properties.expiry_seconds)
    }

    /// A message whose topic and payload may be slices of a read buffer.
    pub(crate) fn borrowed(
        topic: TopicName,
        payload: Bytes,
        qos: QoS,
        retain: bool,
        properties: Option<Arc<Properties>>,
    ) -> Message {
        Message { topic, payload, qos, retain, properties, borrowed: true }
    }

    /// The payload without a copy, for immediate encoding.
    pub(crate) fn shared_payload(&self) -> Bytes {
        self.payload.clone()
    }

    /// Approximate cost in bytes of keeping or sending it: topic, payload and properties.
    pub fn weight(&self) -> usize {
        let properties = self.properties.as_deref().map_or(0, Properties::weight);
        self.topic.as_str().len() + self.payload.len() + properties + 16
    }
}

impl Clone for Message {
    fn clone(&self) -> Message {
        let topic = if self.borrowed { self.topic.detached() } else { self.topic.clone() };
        Message {
            topic,
            payload: self.payload_bytes(),
            qos: self.qos,
            retain: self.retain,
            properties: self.properties.clone(),
            borrowed: false,
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Message) -> bool {
        self.topic == other.topic
            && self.payload == other.payload
            && self.qos == other.qos
            && self.retain == other.retain
            && self.properties == other.properties
    }
}

/// A property cannot be sent over MQTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PropertyError {
    /// The property has more than 65,535 bytes.
    #[error("the {property} has {bytes} bytes; at most 65535 are allowed")]
    TooLong {
        /// The property.
        property: &'static str,
        /// Size of the property, in bytes.
        bytes: usize,
    },
    /// The text has a NUL character.
    #[error("the {property} has a NUL character in it")]
    Nul {
        /// The property.
        property: &'static str,
    },
}

impl Properties {
    /// The first fault of properties that cannot be sent. Every string and the correlation data have at most 65,535 bytes,
    /// and strings have no NUL (MQTT 5, sections 1.5.4 and 1.5.6).
    pub fn problem(&self) -> Option<PropertyError> {
        let content_type = self.content_type.iter().map(|text| ("content type", text));
        let user = self.user.iter().flat_map(|(name, value)| {
            [("name of a user property", name), ("value of a user property", value)]
        });
        for (property, text) in content_type.chain(user) {
            if text.len() > usize::from(u16::MAX) {
                return Some(PropertyError::TooLong { property, bytes: text.len() });
            }
            if text.contains('\0') {
                return Some(PropertyError::Nul { property });
            }
        }
        let bytes = self.correlation_data.as_ref().map_or(0, Bytes::len);
        let is_too_long = bytes > usize::from(u16::MAX);
        is_too_long.then_some(PropertyError::TooLong { property: "correlation data", bytes })
    }

    fn weight(&self) -> usize {
        let text = |text: &Option<ByteString>| text.as_ref().map_or(0, |text| text.len() + 3);
        text(&self.content_type)
            + self.response_topic.as_ref().map_or(0, |topic| topic.as_str().len() + 3)
            + self.correlation_data.as_ref().map_or(0, |data| data.len() + 3)
            + self.user.iter().map(|(name, value)| name.len() + value.len() + 5).sum::<usize>()
    }
}
