//! Keys and records of the store. Pure functions.
//!
//! ```text
//! Space::State  s CLIENT-ID             SessionRecord
//!               u SESSION FILTER        SubscriptionRecord
//!               i SESSION PACKET-ID     empty: a QoS 2 message from the client that is not released
//!               r TOPIC                 RetainedRecord
//!               m SESSION               a number: messages of the session below it may have been sent, later ones not
//! Space::Queue  SESSION NUMBER          QueueRecord: a message for the session, in order
//! ```
//!
//! SESSION and NUMBER are 8 bytes, PACKET-ID 2, big-endian, so that keys sort as numbers do. A record is a version byte,
//! its fields (postcard), and a CRC-32 of both. Entries that can't be read are left out with a warning; all others
//! count.

use bytes::Bytes;
use bytestring::ByteString;
use serde::{Deserialize, Serialize};

use crate::delivery::Delivery;
use crate::message::{Message, Properties, QoS};
use crate::topic::TopicName;
use crate::wire::{RetainHandling, SubscriptionOptions};

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// Bytes of a stored message beside its topic, payload and properties, at most.
pub(crate) const MAX_RECORD_OVERHEAD_BYTES: usize = 64;

pub(crate) const SESSION: u8 = b's';
pub(crate) const SUBSCRIPTION: u8 = b'u';
pub(crate) const INCOMING: u8 = b'i';
pub(crate) const RETAINED: u8 = b'r';
pub(crate) const MARK: u8 = b'm';

/// The reason why a record cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("it is cut off or its checksum is wrong")]
    Checksum,
    #[error("its format {0} is not known; was it written by a newer version?")]
    Version(u8),
    #[error("its fields make no sense")]
    Fields,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionRecord<'a> {
    pub id: u64,
    pub username: Option<&'a str>,
    /// `u32::MAX` never expires.
    pub expiry_seconds: u32,
    /// `None` while it is connected.
    pub offline_since_unix_ms: Option<u64>,
    #[serde(borrow)]
    pub will: Option<WillRecord<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WillRecord<'a> {
    pub delay_seconds: u32,
    #[serde(borrow)]
    pub message: MessageRecord<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriptionRecord {
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    retain_handling: u8,
    pub identifier: Option<std::num::NonZeroU32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RetainedRecord<'a> {
    #[serde(borrow)]
    pub message: MessageRecord<'a>,
    pub received_unix_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum QueueRecord<'a> {
    /// The message waits, or it was sent and is not acknowledged.
    Message {
        #[serde(borrow)]
        message: MessageRecord<'a>,
        qos: u8,
        retain: bool,
        identifiers: Vec<std::num::NonZeroU32>,
        received_unix_ms: u64,
    },
    /// QoS 2: the client has it (PUBREC), PUBCOMP is missing.
    Released,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MessageRecord<'a> {
    topic: &'a str,
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
    qos: u8,
    retain: bool,
    #[serde(borrow)]
    properties: Option<PropertiesRecord<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PropertiesRecord<'a> {
    payload_is_utf8: bool,
    expiry_seconds: Option<u32>,
    content_type: Option<&'a str>,
    response_topic: Option<&'a str>,
    #[serde(with = "serde_bytes")]
    correlation_data: Option<&'a [u8]>,
    #[serde(borrow)]
    user: Vec<(&'a str, &'a str)>,
}

/// A record as it is stored.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Serializing these types into memory does not fail; an empty record would be noticed when it is read.
    let mut bytes = postcard::to_extend(record, vec![VERSION]).unwrap_or_default();
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A record as it was stored.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Damage> {
    let body_bytes = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(Damage::Checksum)?;
    let (body, checksum) = bytes.split_at(body_bytes);
    if crc32fast::hash(body).to_le_bytes() != checksum {
        return Err(Damage::Checksum);
    }
    match body.split_first() {
        Some((&VERSION, fields)) => postcard::from_bytes(fields).map_err(|_| Damage::Fields),
        Some((&version, _)) => Err(Damage::Version(version)),
        None => Err(Damage::Checksum),
    }
}

pub(crate) fn session_key(client_id: &str) -> Vec<u8> {
    key(SESSION, client_id.as_bytes())
}

pub(crate) fn subscription_key(session: u64, filter: &str) -> Vec<u8> {
    let mut bytes = key(SUBSCRIPTION, &session.to_be_bytes());
    bytes.extend_from_slice(filter.as_bytes());
    bytes
}

/// The record says up to which number a session's messages may have been sent.
pub(crate) fn mark_key(session: u64) -> Vec<u8> {
    key(MARK, &session.to_be_bytes())
}

pub(crate) fn incoming_key(session: u64, packet_id: u16) -> Vec<u8> {
    let mut bytes = key(INCOMING, &session.to_be_bytes());
    bytes.extend_from_slice(&packet_id.to_be_bytes());
    bytes
}

/// The longest client identifier of a session that is kept, and the longest filter of one of its subscriptions, in bytes: they
/// are parts of keys, and a store takes none of more than 65,535 bytes.
pub(crate) const MAX_KEPT_NAME_BYTES: usize = 65_000;

/// A longer topic has a digest in its key, after a NUL, which no topic has.
pub(crate) fn retained_key(topic: &str) -> Vec<u8> {
    if topic.len() <= MAX_KEPT_NAME_BYTES {
        return key(RETAINED, topic.as_bytes());
    }
    let mut bytes = key(RETAINED, &[0]);
    bytes.extend_from_slice(blake3::hash(topic.as_bytes()).as_bytes());
    bytes
}

pub(crate) fn queue_key(session: u64, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend_from_slice(&session.to_be_bytes());
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes
}

/// Session and number of a queue key.
pub(crate) fn parse_queue_key(key: &[u8]) -> Option<(u64, u64)> {
    let (session, number) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*session), u64::from_be_bytes(number.try_into().ok()?)))
}

/// Session and the rest of a key without its first byte.
pub(crate) fn parse_session_part(key: &[u8]) -> Option<(u64, &[u8])> {
    let (session, rest) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*session), rest))
}

fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + rest.len() + 8);
    bytes.push(kind);
    bytes.extend_from_slice(rest);
    bytes
}

impl<'a> MessageRecord<'a> {
    pub(crate) fn of(message: &'a Message) -> MessageRecord<'a> {
        MessageRecord {
            topic: message.topic().as_str(),
            payload: message.payload(),
            qos: message.qos() as u8,
            retain: message.retain(),
            properties: message.properties().map(|properties| PropertiesRecord {
                payload_is_utf8: properties.payload_is_utf8,
                expiry_seconds: properties.expiry_seconds,
                content_type: properties.content_type.as_deref(),
                response_topic: properties.response_topic.as_ref().map(TopicName::as_str),
                correlation_data: properties.correlation_data.as_deref(),
                user: properties.user.iter().map(|(name, value)| (&**name, &**value)).collect(),
            }),
        }
    }

    pub(crate) fn topic(&self) -> &'a str {
        self.topic
    }

    /// Message Expiry Interval in seconds, counted from when the broker received it.
    pub(crate) fn expiry_seconds(&self) -> Option<u32> {
        self.properties.as_ref().and_then(|properties| properties.expiry_seconds)
    }

    pub(crate) fn message(self) -> Result<Message, Damage> {
        let topic = TopicName::new(self.topic).map_err(|_| Damage::Fields)?;
        let message = Message::new(topic, Bytes::copy_from_slice(self.payload))
            .with_qos(qos(self.qos)?)
            .with_retain(self.retain);
        let Some(properties) = self.properties else { return Ok(message) };
        let response_topic = properties.response_topic.map(TopicName::new).transpose();
        Ok(message.with_properties(Properties {
            payload_is_utf8: properties.payload_is_utf8,
            expiry_seconds: properties.expiry_seconds,
            content_type: properties.content_type.map(ByteString::from),
            response_topic: response_topic.map_err(|_| Damage::Fields)?,
            correlation_data: properties.correlation_data.map(Bytes::copy_from_slice),
            user: properties.user.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }))
    }
}

impl<'a> QueueRecord<'a> {
    pub(crate) fn of(message: &'a Message, delivery: &Delivery, received_unix_ms: u64) -> QueueRecord<'a> {
        QueueRecord::Message {
            message: MessageRecord::of(message),
            qos: delivery.qos as u8,
            retain: delivery.retain,
            identifiers: delivery.identifiers.clone(),
            received_unix_ms,
        }
    }
}

impl SubscriptionRecord {
    pub(crate) fn of(
        options: SubscriptionOptions,
        identifier: Option<std::num::NonZeroU32>,
    ) -> SubscriptionRecord {
        SubscriptionRecord {
            qos: options.qos as u8,
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            retain_handling: match options.retain_handling {
                RetainHandling::AtSubscribe => 0,
                RetainHandling::AtSubscribeNew => 1,
                RetainHandling::NoAtSubscribe => 2,
            },
            identifier,
        }
    }

    pub(crate) fn options(&self) -> Result<SubscriptionOptions, Damage> {
        Ok(SubscriptionOptions {
            qos: qos(self.qos)?,
            no_local: self.no_local,
            retain_as_published: self.retain_as_published,
            retain_handling: match self.retain_handling {
                0 => RetainHandling::AtSubscribe,
                1 => RetainHandling::AtSubscribeNew,
                2 => RetainHandling::NoAtSubscribe,
                _ => return Err(Damage::Fields),
            },
        })
    }
}

pub(crate) fn qos(number: u8) -> Result<QoS, Damage> {
    match number {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(Damage::Fields),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let text = "[a-z]{0,8}";
        let properties = (
            any::<bool>(),
            any::<Option<u32>>(),
            proptest::option::of(text),
            proptest::option::of("[a-z]{1,8}"),
            proptest::option::of(prop::collection::vec(any::<u8>(), 0..8)),
            prop::collection::vec((text, text), 0..3),
        );
        let properties = properties.prop_map(|(utf8, expiry, content, response, data, user)| Properties {
            payload_is_utf8: utf8,
            expiry_seconds: expiry,
            content_type: content.map(ByteString::from),
            response_topic: response.map(|topic| TopicName::new(topic).expect("valid")),
            correlation_data: data.map(Bytes::from),
            user: user.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        });
        let payload = prop::collection::vec(any::<u8>(), 0..64);
        ("[a-z/]{1,16}", payload, 0..3u8, any::<bool>(), properties).prop_map(
            |(topic, payload, level, retain, properties)| {
                Message::new(TopicName::new(topic).expect("valid"), payload)
                    .with_qos(qos(level).expect("0 to 2"))
                    .with_retain(retain)
                    .with_properties(properties)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_stored_comes_back(message in message(), level in 0..3u8, retain: bool, received: u64) {
            let identifiers = vec![std::num::NonZeroU32::new(7).expect("not 0")];
            let delivery = Delivery { qos: qos(level).expect("0 to 2"), retain, identifiers };
            let record = QueueRecord::of(&message, &delivery, received);
            let bytes = encode(&record);
            let back: QueueRecord<'_> = decode(&bytes).expect("it is whole");
            prop_assert_eq!(&back, &record);
            let QueueRecord::Message { message: back, .. } = back else { panic!("a message") };
            prop_assert_eq!(back.message(), Ok(message));
        }

        #[test]
        fn a_record_that_was_cut_or_changed_is_noticed(message in message(), at: prop::sample::Index, bit in 0..8u8) {
            let record = RetainedRecord { message: MessageRecord::of(&message), received_unix_ms: 1 };
            let bytes = encode(&record);
            let cut = at.index(bytes.len());
            prop_assert!(decode::<RetainedRecord<'_>>(&bytes[..cut]).is_err());
            let mut changed = bytes.clone();
            changed[cut] ^= 1 << bit;
            prop_assert!(decode::<RetainedRecord<'_>>(&changed).is_err());
        }

        #[test]
        fn anything_may_be_in_the_store(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut whole = vec![VERSION];
            whole.extend_from_slice(&bytes);
            let checksum = crc32fast::hash(&whole);
            whole.extend_from_slice(&checksum.to_le_bytes());
            for bytes in [&bytes, &whole] {
                if let Ok(record) = decode::<RetainedRecord<'_>>(bytes) {
                    let _ = record.message.message();
                }
                let _ = decode::<QueueRecord<'_>>(bytes);
                let _ = decode::<SessionRecord<'_>>(bytes);
                let _ = decode::<SubscriptionRecord>(bytes).map(|record| record.options());
                let _ = parse_queue_key(bytes);
            }
        }
    }

    /// The format itself: nodes in the field have such records on their disks.
    #[test]
    fn the_format_stays() {
        let message = Message::new(TopicName::new("a/b").expect("valid"), "hi").with_qos(QoS::AtLeastOnce);
        let delivery = Delivery { qos: QoS::AtLeastOnce, retain: false, identifiers: Vec::new() };
        let bytes = encode(&QueueRecord::of(&message, &delivery, 300));
        let golden = b"\x01\x00\x03a/b\x02hi\x01\x00\x00\x01\x00\x00\xac\x02";
        assert_eq!(&bytes[..bytes.len() - CHECKSUM_BYTES], golden);
        assert_eq!(&encode(&QueueRecord::Released)[..2], b"\x01\x01");
    }
}
