//! Packets to bytes.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::BytesMut;
use bytestring::ByteString;
use rmqtt_codec::{types, v3, v5};
use tokio_util::codec::Encoder as _;

use super::frame;
use super::{
    ConnectAckReason, DisconnectReasonCode, PublishAck2Reason, PublishAckReason, SubscribeAckReason,
    UnsubscribeAckReason,
};
use crate::message::{Message, Properties, QoS, Version};

/// The largest remaining length of a packet.
const MAX_PACKET_BYTES: usize = 268_435_455;

/// Encodes packets for one connection.
#[derive(Debug)]
pub struct Encoder {
    codec: Codec,
    /// The client's maximum packet size, fixed header included.
    max_packet_bytes: usize,
}

#[derive(Debug)]
enum Codec {
    V311(v3::Codec),
    V5(v5::Codec),
}

/// The fields of a PUBLISH beside its message.
#[derive(Debug, Clone, Copy)]
pub struct PublishHeader<'a> {
    /// Quality of service of this delivery.
    pub qos: QoS,
    /// Retain flag of this delivery.
    pub retain: bool,
    /// Packet identifier: needed for QoS 1 and 2, not allowed for QoS 0.
    pub packet_id: Option<NonZeroU16>,
    /// Identifiers of the subscriptions that matched; MQTT 5 only.
    pub subscription_identifiers: &'a [NonZeroU32],
    /// The rest of the Message Expiry Interval; MQTT 5 only.
    pub expiry_seconds: Option<u32>,
    /// DUP flag: the packet may have been sent before.
    pub duplicate: bool,
    /// A number for the topic; MQTT 5 only.
    pub alias: Option<TopicAlias>,
}

/// A number that stands for a topic from then on (MQTT 5, section 3.3.2.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicAlias {
    /// Number of the alias; at most the client's Topic Alias Maximum.
    pub number: NonZeroU16,
    /// The client knows it: the topic itself is left out.
    pub known: bool,
}

/// The contents of CONNACK for MQTT 5; MQTT 3.1.1 gets the return code that fits `reason`.
#[derive(Debug, Clone)]
pub struct ConnAck {
    /// The reason code: success, or the reason of the refusal.
    pub reason: ConnectAckReason,
    /// Session Present flag: the session existed before. True only with a success code.
    pub session_present: bool,
    /// The client identifier, when the broker chose it.
    pub assigned_client_id: Option<ByteString>,
    /// Receive Maximum: number of QoS 2 messages that the broker keeps open.
    pub receive_maximum: NonZeroU16,
    /// Largest packet the broker takes.
    pub maximum_packet_bytes: u32,
    /// Topic Alias Maximum: number of topic aliases that the broker keeps.
    pub topic_alias_maximum: u16,
    /// The Session Expiry Interval in seconds, if it differs from the one in CONNECT.
    pub session_expiry_seconds: Option<u32>,
    /// The keep alive in seconds, if it differs from the one in CONNECT.
    pub server_keepalive_seconds: Option<u16>,
    /// Start of the topics that the client may use for responses, if it requested them.
    pub response_information: Option<ByteString>,
    /// Reason string, for people.
    pub reason_string: Option<String>,
}

/// The reason why a packet was not encoded; the output is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The packet is larger than the client accepts, or than MQTT can encode.
    #[error("a packet of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Size of the packet, in bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A field does not fit into its place.
    #[error("the packet cannot be encoded: {problem}")]
    Invalid {
        /// Text of the codec.
        problem: String,
    },
}

impl Encoder {
    /// Encoder for a client of `version` that accepts packets of up to `max_packet_bytes` (`None`: no limit).
    pub fn new(version: Version, max_packet_bytes: Option<NonZeroU32>) -> Encoder {
        let codec = match version {
            Version::V311 => Codec::V311(v3::Codec::new(0)),
            Version::V5 => Codec::V5(v5::Codec::new(0, 0)),
        };
        let max_packet_bytes = max_packet_bytes.map_or(usize::MAX, |bytes| bytes.get() as usize);
        Encoder { codec, max_packet_bytes }
    }

    /// The version it encodes for.
    pub fn version(&self) -> Version {
        match self.codec {
            Codec::V311(_) => Version::V311,
            Codec::V5(_) => Version::V5,
        }
    }

    /// PUBLISH.
    ///
    /// # Errors
    /// The packet is too large for the client, or a field of it for MQTT.
    pub fn publish(
        &mut self,
        out: &mut BytesMut,
        message: &Message,
        header: PublishHeader<'_>,
    ) -> Result<(), EncodeError> {
        let weight = message.weight();
        // The codec panics above this; its count differs from `weight` by less than the margin.
        if weight > MAX_PACKET_BYTES - 4096 {
            return Err(EncodeError::TooLarge { bytes: weight, limit: MAX_PACKET_BYTES - 4096 });
        }
        let v5 = matches!(self.codec, Codec::V5(_));
        let plain = message.properties().is_none()
            && header.subscription_identifiers.is_empty()
            && header.alias.is_none();
        let known = v5 && header.alias.is_some_and(|alias| alias.known);
        let properties = (v5 && !plain).then(|| publish_properties(message.properties(), &header));
        let publish = Box::new(types::Publish {
            dup: header.duplicate,
            retain: header.retain,
            qos: header.qos.into(),
            topic: if known { ByteString::new() } else { message.topic().text().clone() },
            packet_id: header.packet_id,
            payload: message.shared_payload(),
            properties,
        });
        let start = out.len();
        match &mut self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::Publish(publish))?,
            Codec::V5(_) => self.put_v5(out, v5::Packet::Publish(publish))?,
        }
        if v5
            && header.expiry_seconds == Some(0)
            && let Some(at) = frame::expiry_position(&mut out[start..])
        {
            // The codec cannot say 0, see `publish_properties`.
            out[start + at..start + at + 4].fill(0);
        }
        Ok(())
    }

    /// CONNACK.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn connack(&mut self, out: &mut BytesMut, ack: &ConnAck) -> Result<(), EncodeError> {
        let accepted = ack.reason == ConnectAckReason::Success;
        let session_present = accepted && ack.session_present;
        if let Codec::V311(_) = self.codec {
            let ack = v3::ConnectAck { return_code: return_code(ack.reason), session_present };
            return self.put_v311(out, v3::Packet::ConnectAck(ack));
        }
        let mut packet = v5::ConnectAck {
            reason_code: ack.reason,
            reason_string: ack.reason_string.as_deref().map(ByteString::from),
            ..v5::ConnectAck::default()
        };
        if accepted {
            packet.session_expiry_interval_secs = ack.session_expiry_seconds;
            packet.receive_max = ack.receive_maximum;
            packet.max_packet_size = Some(ack.maximum_packet_bytes);
            packet.assigned_client_id = ack.assigned_client_id.clone();
            packet.topic_alias_max = ack.topic_alias_maximum;
            packet.session_present = session_present;
            packet.server_keepalive_sec = ack.server_keepalive_seconds;
            packet.response_info = ack.response_information.clone();
        }
        let packet = v5::Packet::ConnectAck(Box::new(packet));
        self.put_v5(out, packet)
    }

    /// PUBACK. MQTT 3.1.1 has no reason.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn puback(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        reason: PublishAckReason,
    ) -> Result<(), EncodeError> {
        match self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::PublishAck { packet_id }),
            Codec::V5(_) => self.put_v5(out, v5::Packet::PublishAck(publish_ack(packet_id, reason))),
        }
    }

    /// PUBREC. MQTT 3.1.1 has no reason.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn pubrec(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        reason: PublishAckReason,
    ) -> Result<(), EncodeError> {
        match self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::PublishReceived { packet_id }),
            Codec::V5(_) => self.put_v5(out, v5::Packet::PublishReceived(publish_ack(packet_id, reason))),
        }
    }

    /// PUBREL. MQTT 3.1.1 has no reason.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn pubrel(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        reason: PublishAck2Reason,
    ) -> Result<(), EncodeError> {
        match self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::PublishRelease { packet_id }),
            Codec::V5(_) => self.put_v5(out, v5::Packet::PublishRelease(publish_ack2(packet_id, reason))),
        }
    }

    /// PUBCOMP. MQTT 3.1.1 has no reason.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn pubcomp(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        reason: PublishAck2Reason,
    ) -> Result<(), EncodeError> {
        match self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::PublishComplete { packet_id }),
            Codec::V5(_) => self.put_v5(out, v5::Packet::PublishComplete(publish_ack2(packet_id, reason))),
        }
    }

    /// SUBACK. MQTT 3.1.1 knows one error only.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn suback(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        status: Vec<SubscribeAckReason>,
    ) -> Result<(), EncodeError> {
        if let Codec::V5(_) = self.codec {
            let ack = v5::SubscribeAck { packet_id, properties: Vec::new(), reason_string: None, status };
            return self.put_v5(out, v5::Packet::SubscribeAck(ack));
        }
        let status = status.into_iter().map(|reason| match reason {
            SubscribeAckReason::GrantedQos0 => v3::SubscribeReturnCode::Success(types::QoS::AtMostOnce),
            SubscribeAckReason::GrantedQos1 => v3::SubscribeReturnCode::Success(types::QoS::AtLeastOnce),
            SubscribeAckReason::GrantedQos2 => v3::SubscribeReturnCode::Success(types::QoS::ExactlyOnce),
            _ => v3::SubscribeReturnCode::Failure,
        });
        let status = status.collect();
        self.put_v311(out, v3::Packet::SubscribeAck { packet_id, status })
    }

    /// UNSUBACK. MQTT 3.1.1 has no reasons.
    ///
    /// # Errors
    /// The packet is too large for the client.
    pub fn unsuback(
        &mut self,
        out: &mut BytesMut,
        packet_id: NonZeroU16,
        status: Vec<UnsubscribeAckReason>,
    ) -> Result<(), EncodeError> {
        match self.codec {
            Codec::V311(_) => self.put_v311(out, v3::Packet::UnsubscribeAck { packet_id }),
            Codec::V5(_) => {
                let ack =
                    v5::UnsubscribeAck { packet_id, properties: Vec::new(), reason_string: None, status };
                self.put_v5(out, v5::Packet::UnsubscribeAck(ack))
            }
        }
    }

    /// PINGRESP.
    pub fn pingresp(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(&[0xd0, 0]);
    }

    /// DISCONNECT, of which MQTT 3.1.1 has none from a server: then nothing is written. The reason string is left out
    /// where it would make the packet too large for the client.
    pub fn disconnect(
        &mut self,
        out: &mut BytesMut,
        reason: DisconnectReasonCode,
        reason_string: Option<&str>,
    ) {
        if let Codec::V311(_) = self.codec {
            return;
        }
        let mut packet = v5::Disconnect::new(reason);
        packet.reason_string = reason_string.map(ByteString::from);
        if self.put_v5(out, v5::Packet::Disconnect(packet)).is_err() {
            let bare = v5::Packet::Disconnect(v5::Disconnect::new(reason));
            // A client that takes not even this closes without a reason.
            let _ = self.put_v5(out, bare);
        }
    }

    fn put_v311(&mut self, out: &mut BytesMut, packet: v3::Packet) -> Result<(), EncodeError> {
        let start = out.len();
        let Codec::V311(codec) = &mut self.codec else { unreachable!("callers match on the version") };
        let result = codec.encode(packet, out);
        finish(out, start, usize::MAX, result)
    }

    fn put_v5(&mut self, out: &mut BytesMut, packet: v5::Packet) -> Result<(), EncodeError> {
        let start = out.len();
        let Codec::V5(codec) = &mut self.codec else { unreachable!("callers match on the version") };
        let result = codec.encode(packet, out);
        finish(out, start, self.max_packet_bytes, result)
    }
}

/// Removes bytes that must not be sent: the codec counts without the fixed header, and writes before it fails.
fn finish(
    out: &mut BytesMut,
    start: usize,
    limit: usize,
    result: Result<(), rmqtt_codec::error::EncodeError>,
) -> Result<(), EncodeError> {
    let bytes = out.len() - start;
    let error = match result {
        Ok(()) if bytes <= limit => return Ok(()),
        Ok(()) => EncodeError::TooLarge { bytes, limit },
        Err(error) => EncodeError::Invalid { problem: error.to_string() },
    };
    out.truncate(start);
    Err(error)
}

fn publish_properties(
    properties: Option<&Properties>,
    header: &PublishHeader<'_>,
) -> v5::PublishProperties {
    let mut encoded = v5::PublishProperties {
        topic_alias: header.alias.map(|alias| alias.number),
        subscription_ids: header.subscription_identifiers.to_vec(),
        // 0 cannot be said: it is put in afterwards.
        message_expiry_interval: header
            .expiry_seconds
            .map(|left| NonZeroU32::new(left).unwrap_or(NonZeroU32::MIN)),
        ..v5::PublishProperties::default()
    };
    if let Some(properties) = properties {
        encoded.is_utf8_payload = properties.payload_is_utf8;
        encoded.content_type = properties.content_type.clone();
        encoded.response_topic = properties.response_topic.as_ref().map(|topic| topic.text().clone());
        encoded.correlation_data = properties.correlation_data.clone();
        encoded.user_properties = properties.user.clone();
    }
    encoded
}

fn publish_ack(packet_id: NonZeroU16, reason_code: PublishAckReason) -> v5::PublishAck {
    v5::PublishAck { packet_id, reason_code, properties: Vec::new(), reason_string: None }
}

fn publish_ack2(packet_id: NonZeroU16, reason_code: PublishAck2Reason) -> v5::PublishAck2 {
    v5::PublishAck2 { packet_id, reason_code, properties: Vec::new(), reason_string: None }
}

fn return_code(reason: ConnectAckReason) -> v3::ConnectAckReason {
    match reason {
        ConnectAckReason::Success => v3::ConnectAckReason::ConnectionAccepted,
        ConnectAckReason::UnsupportedProtocolVersion => v3::ConnectAckReason::UnacceptableProtocolVersion,
        ConnectAckReason::ClientIdentifierNotValid => v3::ConnectAckReason::IdentifierRejected,
        ConnectAckReason::BadUserNameOrPassword => v3::ConnectAckReason::BadUserNameOrPassword,
        ConnectAckReason::NotAuthorized => v3::ConnectAckReason::NotAuthorized,
        ConnectAckReason::Banned => v3::ConnectAckReason::NotAuthorized,
        _ => v3::ConnectAckReason::ServiceUnavailable,
    }
}
