//! The wire protocol: bytes to packets and back, for both versions.
//!
//! Encoding and decoding is rmqtt-codec's; this module is its only user. Around it stand the checks that the codec does
//! not make (in `frame.rs`), packets that look the same for both versions, and reason codes as the standard wants
//! them. Nothing here knows of sessions, sockets or time.

mod decode;
mod encode;
mod frame;

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;

pub use decode::Decoder;
pub use encode::{ConnAck, EncodeError, Encoder, PublishHeader, TopicAlias};
pub use rmqtt_codec::v5::{
    ConnectAckReason, DisconnectReasonCode, PublishAck2Reason, PublishAckReason, RetainHandling,
    SubscribeAckReason, UnsubscribeAckReason,
};

use crate::message::{Message, Properties, QoS, Version};
use crate::topic::{TopicName, TopicNameError};

/// A packet from a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet {
    /// CONNECT.
    Connect(Box<Connect>),
    /// PUBLISH.
    Publish(Publish),
    /// PUBACK.
    PubAck {
        /// Identifier of the PUBLISH that is acknowledged.
        packet_id: NonZeroU16,
    },
    /// PUBREC.
    PubRec {
        /// Identifier of the PUBLISH that is acknowledged.
        packet_id: NonZeroU16,
        /// True if the reason code is an error, which ends the exchange.
        failed: bool,
    },
    /// PUBREL.
    PubRel {
        /// Identifier of the PUBLISH that is released.
        packet_id: NonZeroU16,
    },
    /// PUBCOMP.
    PubComp {
        /// Identifier of the PUBLISH that is completed.
        packet_id: NonZeroU16,
    },
    /// SUBSCRIBE.
    Subscribe(Subscribe),
    /// UNSUBSCRIBE.
    Unsubscribe {
        /// Packet identifier, which UNSUBACK repeats.
        packet_id: NonZeroU16,
        /// Filters as sent, not validated.
        filters: Vec<ByteString>,
    },
    /// PINGREQ.
    PingReq,
    /// DISCONNECT.
    Disconnect {
        /// 0 for MQTT 3.1.1.
        reason: DisconnectReasonCode,
        /// A changed Session Expiry Interval, in seconds.
        session_expiry_seconds: Option<u32>,
    },
    /// AUTH.
    Auth,
}

/// The contents of CONNECT.
#[derive(Debug, Clone, PartialEq)]
pub struct Connect {
    /// Protocol version, by the protocol level.
    pub version: Version,
    /// Client identifier; may be empty.
    pub client_id: ByteString,
    /// Clean Start or Clean Session.
    pub clean_start: bool,
    /// 0 stands for no keepalive.
    pub keepalive_seconds: u16,
    /// Will: published when the connection ends in any other way than by a normal DISCONNECT. The topic is valid.
    pub will: Option<Message>,
    /// Will Delay Interval: time from the loss of the connection to the publication of the will, in seconds.
    pub will_delay_seconds: u32,
    /// User name.
    pub username: Option<ByteString>,
    /// Password, binary.
    pub password: Option<Bytes>,
    /// Receive Maximum: number of unacknowledged QoS 1 and 2 messages that the client accepts; 65,535 by default.
    pub receive_maximum: NonZeroU16,
    /// Largest packet the client takes, in bytes.
    pub maximum_packet_bytes: Option<NonZeroU32>,
    /// Topic Alias Maximum: number of topic aliases that the client keeps; 0 by default.
    pub topic_alias_maximum: u16,
    /// The client asks for Response Information.
    pub request_response_information: bool,
    /// Session Expiry Interval, in seconds; `u32::MAX` never expires, 0 ends with the connection. MQTT 3.1.1 has only
    /// these two values, by Clean Session.
    pub session_expiry_seconds: u32,
    /// Method of enhanced authentication.
    pub authentication_method: Option<ByteString>,
}

/// The contents of PUBLISH.
#[derive(Debug, Clone, PartialEq)]
pub struct Publish {
    /// Topic as sent, not validated; empty when `topic_alias` stands for it.
    pub topic: ByteString,
    /// Topic alias, not zero; the broker's maximum is not checked here.
    pub topic_alias: Option<NonZeroU16>,
    /// Packet identifier, for QoS 1 and 2.
    pub packet_id: Option<NonZeroU16>,
    /// DUP flag: the packet was sent before.
    pub duplicate: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Payload; still a slice of the read buffer.
    pub payload: Bytes,
    /// MQTT 5 only; copied out of the read buffer.
    pub properties: Option<Arc<Properties>>,
}

/// The contents of SUBSCRIBE.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscribe {
    /// Packet identifier, which SUBACK repeats.
    pub packet_id: NonZeroU16,
    /// Subscription Identifier, for all of its filters.
    pub identifier: Option<NonZeroU32>,
    /// Filters as sent, not validated.
    pub filters: Vec<(ByteString, SubscriptionOptions)>,
}

/// Options of a subscription, as the client sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Highest quality of service.
    pub qos: QoS,
    /// No Local: the client's own messages are not sent to it.
    pub no_local: bool,
    /// Retain As Published: messages keep the retain flag that the publisher set.
    pub retain_as_published: bool,
    /// Retain Handling: the condition under which retained messages are sent on subscribing.
    pub retain_handling: RetainHandling,
}

/// The reason why bytes are not a packet that a client may send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The packet has an invalid format.
    #[error("malformed {packet}: {problem}")]
    Malformed {
        /// Name of the packet.
        packet: &'static str,
        /// The problem.
        problem: String,
    },
    /// The packet has a valid format, but is not allowed.
    #[error("protocol error in {packet}: {problem}")]
    Protocol {
        /// Name of the packet.
        packet: &'static str,
        /// The problem.
        problem: String,
    },
    /// The packet is larger than the broker accepts.
    #[error("a packet of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Size of the whole packet, in bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A protocol level that is neither 4 nor 5.
    #[error("protocol level {level} is not supported; use MQTT 3.1.1 (level 4) or MQTT 5 (level 5)")]
    UnsupportedVersion {
        /// The protocol level of the CONNECT.
        level: u8,
    },
    /// The first packet is not a CONNECT, or no MQTT at all.
    #[error("the connection does not start with an MQTT CONNECT")]
    NotConnect,
    /// An empty client identifier with Clean Session 0 in MQTT 3.1.1.
    #[error("an empty client identifier needs Clean Session 1")]
    ClientIdRejected,
    /// A PUBLISH without a topic, where one is required.
    #[error("invalid topic: it is empty")]
    EmptyTopic,
    /// The topic of a will is invalid.
    #[error("invalid topic of the will: {error}")]
    WillTopic {
        /// The fault.
        error: TopicNameError,
    },
    /// Topic alias 0.
    #[error("topic alias 0 is not allowed")]
    TopicAlias,
}

impl DecodeError {
    /// The reason code for DISCONNECT.
    pub fn reason(&self) -> DisconnectReasonCode {
        match self {
            DecodeError::Malformed { .. } => DisconnectReasonCode::MalformedPacket,
            DecodeError::Protocol { .. }
            | DecodeError::UnsupportedVersion { .. }
            | DecodeError::NotConnect
            | DecodeError::ClientIdRejected => DisconnectReasonCode::ProtocolError,
            DecodeError::TooLarge { .. } => DisconnectReasonCode::PacketTooLarge,
            DecodeError::EmptyTopic | DecodeError::WillTopic { .. } => {
                DisconnectReasonCode::TopicNameInvalid
            }
            DecodeError::TopicAlias => DisconnectReasonCode::TopicAliasInvalid,
        }
    }

    /// The reason code for CONNACK, when the packet was a CONNECT.
    pub fn connect_reason(&self) -> ConnectAckReason {
        match self {
            DecodeError::Malformed { .. } => ConnectAckReason::MalformedPacket,
            DecodeError::Protocol { .. } | DecodeError::NotConnect | DecodeError::TopicAlias => {
                ConnectAckReason::ProtocolError
            }
            DecodeError::TooLarge { .. } => ConnectAckReason::PacketTooLarge,
            DecodeError::UnsupportedVersion { .. } => ConnectAckReason::UnsupportedProtocolVersion,
            DecodeError::ClientIdRejected => ConnectAckReason::ClientIdentifierNotValid,
            DecodeError::EmptyTopic | DecodeError::WillTopic { .. } => ConnectAckReason::TopicNameInvalid,
        }
    }

    fn malformed(packet: &'static str, problem: impl Into<String>) -> DecodeError {
        DecodeError::Malformed { packet, problem: problem.into() }
    }

    fn protocol(packet: &'static str, problem: impl Into<String>) -> DecodeError {
        DecodeError::Protocol { packet, problem: problem.into() }
    }
}

impl Publish {
    /// The message on `topic`, which is its own or the one its alias stands for.
    pub fn into_message(self, topic: TopicName) -> Message {
        Message::borrowed(topic, self.payload, self.qos, self.retain, self.properties)
    }
}
