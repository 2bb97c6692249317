//! Bytes to packets.

use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use rmqtt_codec::error::DecodeError as CodecError;
use rmqtt_codec::types::QoS as CodecQoS;
use rmqtt_codec::{types, v3, v5};
use tokio_util::codec::Decoder as _;

use super::frame::{self, Patched};
use super::{
    Connect, DecodeError, DisconnectReasonCode, Packet, Publish, RetainHandling, Subscribe,
    SubscriptionOptions,
};
use crate::message::{Message, Properties, QoS, Version};
use crate::topic::TopicName;

/// Growth of the read buffer for a packet that is not there yet: a client that announces a large packet pays for it
/// with bytes before the broker does with memory.
const GROWTH_BYTES: usize = 64 * 1024;

/// Decodes the packets of one connection, in order.
#[derive(Debug)]
pub struct Decoder {
    codec: Codec,
    max_packet_bytes: usize,
    /// An MQTT 3.1.1 client that is a bridge: it does not get its own messages, and gets the retain flag as published.
    bridge: bool,
}

#[derive(Debug)]
enum Codec {
    /// The client has not sent a CONNECT yet.
    Undecided,
    V311(v3::Codec),
    V5(v5::Codec),
}

impl Decoder {
    /// Takes packets of up to `max_packet_bytes`, fixed header included. The first one has to be a CONNECT; it decides
    /// on the version.
    pub fn new(max_packet_bytes: usize) -> Decoder {
        Decoder { codec: Codec::Undecided, max_packet_bytes, bridge: false }
    }

    /// Takes packets of `version`, as after a CONNECT.
    pub fn with_version(version: Version, max_packet_bytes: usize) -> Decoder {
        // The codec has limits of its own; 0 is none.
        let codec = match version {
            Version::V311 => Codec::V311(v3::Codec::new(0)),
            Version::V5 => Codec::V5(v5::Codec::new(0, 0)),
        };
        Decoder { codec, max_packet_bytes, bridge: false }
    }

    /// The version, once CONNECT has said it.
    pub fn version(&self) -> Option<Version> {
        match self.codec {
            Codec::Undecided => None,
            Codec::V311(_) => Some(Version::V311),
            Codec::V5(_) => Some(Version::V5),
        }
    }

    /// Takes the next packet from the front of `source`. `None`: it needs more bytes; for those of a large packet room was
    /// made.
    ///
    /// # Errors
    /// The bytes are not a packet that a client may send. Nothing sensible can follow: end the connection.
    pub fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Packet>, DecodeError> {
        let Some(frame) = frame::peek(source)? else { return Ok(None) };
        if let Codec::Undecided = self.codec {
            let Some(version) = frame::version(frame, source)? else { return Ok(None) };
            *self = Decoder::with_version(version, self.max_packet_bytes);
        }
        if frame.total_bytes > self.max_packet_bytes {
            return Err(DecodeError::TooLarge { bytes: frame.total_bytes, limit: self.max_packet_bytes });
        }
        if source.len() < frame.total_bytes {
            let missing = frame.total_bytes - source.len();
            source.reserve(missing.min(source.len().max(GROWTH_BYTES)));
            return Ok(None);
        }
        let packet_bytes = &mut source[..frame.total_bytes];
        match &mut self.codec {
            Codec::Undecided => Err(DecodeError::NotConnect),
            Codec::V311(codec) => {
                self.bridge |= frame::check(frame, packet_bytes, Version::V311)?.bridge;
                let decoded =
                    codec.decode(source).map_err(|error| codec_error(frame.first_byte, &error))?;
                decoded.map(|(packet, _)| from_v311(packet, self.bridge)).transpose()
            }
            Codec::V5(codec) => {
                let patched = frame::check(frame, packet_bytes, Version::V5)?;
                let decoded =
                    codec.decode(source).map_err(|error| codec_error(frame.first_byte, &error))?;
                decoded.map(|(packet, _)| from_v5(packet, patched)).transpose()
            }
        }
    }
}

fn from_v311(packet: v3::Packet, bridge: bool) -> Result<Packet, DecodeError> {
    Ok(match packet {
        v3::Packet::Connect(connect) => {
            let will = match connect.last_will {
                Some(will) => Some(
                    Message::new(will_topic(will.topic)?, Bytes::copy_from_slice(&will.message))
                        .with_qos(will.qos.into())
                        .with_retain(will.retain),
                ),
                None => None,
            };
            Packet::Connect(Box::new(Connect {
                version: Version::V311,
                client_id: text("CONNECT", connect.client_id)?,
                clean_start: connect.clean_session,
                keepalive_seconds: connect.keep_alive,
                will,
                will_delay_seconds: 0,
                username: connect.username.map(|name| text("CONNECT", name)).transpose()?,
                password: connect.password,
                receive_maximum: NonZeroU16::MAX,
                maximum_packet_bytes: None,
                topic_alias_maximum: 0,
                request_response_information: false,
                session_expiry_seconds: if connect.clean_session { 0 } else { u32::MAX },
                authentication_method: None,
            }))
        }
        v3::Packet::Publish(publish) => Packet::Publish(from_publish(*publish, Patched::default())?),
        v3::Packet::PublishAck { packet_id } => Packet::PubAck { packet_id },
        v3::Packet::PublishReceived { packet_id } => Packet::PubRec { packet_id, failed: false },
        v3::Packet::PublishRelease { packet_id } => Packet::PubRel { packet_id },
        v3::Packet::PublishComplete { packet_id } => Packet::PubComp { packet_id },
        v3::Packet::Subscribe { packet_id, topic_filters } => {
            let filters = topic_filters.into_iter().map(|(filter, qos)| {
                let options = SubscriptionOptions {
                    qos: qos.into(),
                    no_local: bridge,
                    retain_as_published: bridge,
                    retain_handling: RetainHandling::AtSubscribe,
                };
                (filter, options)
            });
            Packet::Subscribe(Subscribe { packet_id, identifier: None, filters: filters.collect() })
        }
        v3::Packet::Unsubscribe { packet_id, topic_filters } => {
            Packet::Unsubscribe { packet_id, filters: topic_filters }
        }
        v3::Packet::PingRequest => Packet::PingReq,
        v3::Packet::Disconnect => Packet::Disconnect {
            reason: DisconnectReasonCode::NormalDisconnection,
            session_expiry_seconds: None,
        },
        v3::Packet::ConnectAck(_)
        | v3::Packet::SubscribeAck { .. }
        | v3::Packet::UnsubscribeAck { .. }
        | v3::Packet::PingResponse => {
            return Err(DecodeError::protocol("packet", "its type is for servers only"));
        }
    })
}

fn from_v5(packet: v5::Packet, patched: Patched) -> Result<Packet, DecodeError> {
    Ok(match packet {
        v5::Packet::Connect(connect) => {
            let connect = *connect;
            Packet::Connect(Box::new(Connect {
                version: Version::V5,
                client_id: text("CONNECT", connect.client_id)?,
                clean_start: connect.clean_start && !patched.not_clean_start,
                keepalive_seconds: connect.keep_alive,
                will_delay_seconds: connect
                    .last_will
                    .as_ref()
                    .and_then(|will| will.will_delay_interval_sec)
                    .unwrap_or_default(),
                will: connect.last_will.map(|will| from_will(will, patched)).transpose()?,
                username: connect.username.map(|name| text("CONNECT", name)).transpose()?,
                password: connect.password,
                receive_maximum: connect.receive_max.unwrap_or(NonZeroU16::MAX),
                maximum_packet_bytes: connect.max_packet_size,
                topic_alias_maximum: connect.topic_alias_max,
                request_response_information: connect.request_response_info,
                session_expiry_seconds: connect.session_expiry_interval_secs,
                authentication_method: connect.auth_method,
            }))
        }
        v5::Packet::Publish(publish) => Packet::Publish(from_publish(*publish, patched)?),
        v5::Packet::PublishAck(ack) => Packet::PubAck { packet_id: ack.packet_id },
        v5::Packet::PublishReceived(ack) => {
            Packet::PubRec { packet_id: ack.packet_id, failed: u8::from(ack.reason_code) >= 0x80 }
        }
        v5::Packet::PublishRelease(ack) => Packet::PubRel { packet_id: ack.packet_id },
        v5::Packet::PublishComplete(ack) => Packet::PubComp { packet_id: ack.packet_id },
        v5::Packet::Subscribe(subscribe) => {
            let filters = subscribe.topic_filters.into_iter().map(|(filter, options)| {
                let options = SubscriptionOptions {
                    qos: options.qos.into(),
                    no_local: options.no_local,
                    retain_as_published: options.retain_as_published,
                    retain_handling: options.retain_handling,
                };
                (filter, options)
            });
            Packet::Subscribe(Subscribe {
                packet_id: subscribe.packet_id,
                identifier: subscribe.id,
                filters: filters.collect(),
            })
        }
        v5::Packet::Unsubscribe(unsubscribe) => {
            Packet::Unsubscribe { packet_id: unsubscribe.packet_id, filters: unsubscribe.topic_filters }
        }
        v5::Packet::PingRequest => Packet::PingReq,
        v5::Packet::Disconnect(disconnect) => Packet::Disconnect {
            reason: disconnect.reason_code,
            session_expiry_seconds: disconnect.session_expiry_interval_secs,
        },
        v5::Packet::Auth(_) => Packet::Auth,
        v5::Packet::ConnectAck(_)
        | v5::Packet::SubscribeAck(_)
        | v5::Packet::UnsubscribeAck(_)
        | v5::Packet::PingResponse => {
            return Err(DecodeError::protocol("packet", "its type is for servers only"));
        }
    })
}

fn from_publish(publish: types::Publish, patched: Patched) -> Result<Publish, DecodeError> {
    let mut topic_alias = None;
    let properties = match publish.properties {
        None => None,
        Some(properties) => {
            topic_alias = properties.topic_alias;
            from_properties(properties, patched)?
        }
    };
    Ok(Publish {
        topic: publish.topic,
        topic_alias,
        packet_id: publish.packet_id,
        duplicate: publish.dup,
        qos: publish.qos.into(),
        retain: publish.retain,
        payload: publish.payload,
        properties,
    })
}

fn from_properties(
    properties: v5::PublishProperties,
    patched: Patched,
) -> Result<Option<Arc<Properties>>, DecodeError> {
    if !properties.subscription_ids.is_empty() {
        return Err(DecodeError::protocol("PUBLISH", "a client sent a subscription identifier"));
    }
    let properties = Properties {
        payload_is_utf8: properties.is_utf8_payload,
        expiry_seconds: expiry(properties.message_expiry_interval, patched),
        content_type: optional_text("PUBLISH", properties.content_type)?,
        response_topic: properties.response_topic.map(response_topic).transpose()?,
        correlation_data: properties.correlation_data.map(|data| Bytes::copy_from_slice(&data)),
        user: user_properties("PUBLISH", properties.user_properties)?,
    };
    Ok((properties != Properties::default()).then(|| Arc::new(properties)))
}

fn from_will(will: v5::LastWill, patched: Patched) -> Result<Message, DecodeError> {
    let properties = Properties {
        payload_is_utf8: will.is_utf8_payload.unwrap_or_default(),
        expiry_seconds: expiry(will.message_expiry_interval, patched),
        content_type: optional_text("CONNECT", will.content_type)?,
        response_topic: will.response_topic.map(response_topic).transpose()?,
        correlation_data: will.correlation_data.map(|data| Bytes::copy_from_slice(&data)),
        user: user_properties("CONNECT", will.user_properties)?,
    };
    Ok(Message::new(will_topic(will.topic)?, Bytes::copy_from_slice(&will.message))
        .with_qos(will.qos.into())
        .with_retain(will.retain)
        .with_properties(properties))
}

fn expiry(decoded: Option<std::num::NonZeroU32>, patched: Patched) -> Option<u32> {
    match decoded {
        Some(_) if patched.expiry_zero => Some(0),
        other => other.map(Into::into),
    }
}

fn will_topic(topic: ByteString) -> Result<TopicName, DecodeError> {
    match TopicName::new(topic) {
        Ok(topic) => Ok(topic.detached()),
        Err(error) => Err(DecodeError::WillTopic { error }),
    }
}

fn response_topic(topic: ByteString) -> Result<TopicName, DecodeError> {
    match TopicName::new(topic) {
        Ok(topic) => Ok(topic.detached()),
        Err(error) => Err(DecodeError::protocol("response topic", error.to_string())),
    }
}

fn user_properties(
    packet: &'static str,
    properties: v5::UserProperties,
) -> Result<Vec<(ByteString, ByteString)>, DecodeError> {
    properties.into_iter().map(|(name, value)| Ok((text(packet, name)?, text(packet, value)?))).collect()
}

fn optional_text(
    packet: &'static str,
    value: Option<ByteString>,
) -> Result<Option<ByteString>, DecodeError> {
    value.map(|value| text(packet, value)).transpose()
}

/// Copies a string out of the read buffer, unless it has a null character (MQTT 5, section 1.5.4).
fn text(packet: &'static str, value: ByteString) -> Result<ByteString, DecodeError> {
    if value.as_bytes().contains(&0) {
        return Err(DecodeError::malformed(packet, "a string has a null character"));
    }
    let value: &str = &value;
    Ok(ByteString::from(value))
}

fn codec_error(first_byte: u8, error: &CodecError) -> DecodeError {
    let packet = match first_byte >> 4 {
        1 => "CONNECT",
        3 => "PUBLISH",
        4 => "PUBACK",
        5 => "PUBREC",
        6 => "PUBREL",
        7 => "PUBCOMP",
        8 => "SUBSCRIBE",
        10 => "UNSUBSCRIBE",
        14 => "DISCONNECT",
        15 => "AUTH",
        _ => "packet",
    };
    match error {
        CodecError::InvalidTopicName => DecodeError::EmptyTopic,
        CodecError::InvalidTopicFilter => {
            DecodeError::protocol(packet, "it has no topic filter, or an empty one")
        }
        CodecError::Utf8Error => DecodeError::malformed(packet, "a string is not UTF-8"),
        other => DecodeError::malformed(packet, other.to_string().to_lowercase()),
    }
}

impl From<CodecQoS> for QoS {
    fn from(qos: CodecQoS) -> QoS {
        match qos {
            CodecQoS::AtMostOnce => QoS::AtMostOnce,
            CodecQoS::AtLeastOnce => QoS::AtLeastOnce,
            CodecQoS::ExactlyOnce => QoS::ExactlyOnce,
        }
    }
}

impl From<QoS> for CodecQoS {
    fn from(qos: QoS) -> CodecQoS {
        match qos {
            QoS::AtMostOnce => CodecQoS::AtMostOnce,
            QoS::AtLeastOnce => CodecQoS::AtLeastOnce,
            QoS::ExactlyOnce => CodecQoS::ExactlyOnce,
        }
    }
}
