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
        /// Which PUBLISH it acknowledges.
        packet_id: NonZeroU16,
    },
    /// PUBREC.
    PubRec {
        /// Which PUBLISH it acknowledges.
        packet_id: NonZeroU16,
        /// Whether the reason code is an error, which ends the exchange.
        failed: bool,
    },
    /// PUBREL.
    PubRel {
        /// Which PUBLISH it releases.
        packet_id: NonZeroU16,
    },
    /// PUBCOMP.
    PubComp {
        /// Which PUBLISH it completes.
        packet_id: NonZeroU16,
    },
    /// SUBSCRIBE.
    Subscribe(Subscribe),
    /// UNSUBSCRIBE.
    Unsubscribe {
        /// To be repeated in UNSUBACK.
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
    /// By protocol level.
    pub version: Version,
    /// May be empty.
    pub client_id: ByteString,
    /// Clean Start or Clean Session.
    pub clean_start: bool,
    /// 0 stands for no keepalive.
    pub keepalive_seconds: u16,
    /// To be published when the connection ends in any other way than by a normal DISCONNECT. The topic is valid.
    pub will: Option<Message>,
    /// How long to wait with the will after the connection is lost, in seconds.
    pub will_delay_seconds: u32,
    /// User name.
    pub username: Option<ByteString>,
    /// Password, binary.
    pub password: Option<Bytes>,
    /// How many QoS 1 and 2 messages the client takes at a time; 65,535 when it does not say.
    pub receive_maximum: NonZeroU16,
    /// Largest packet the client takes, in bytes.
    pub maximum_packet_bytes: Option<NonZeroU32>,
    /// How many topic aliases the client keeps; 0 when it does not say.
    pub topic_alias_maximum: u16,
    /// The client asks for Response Information.
    pub request_response_information: bool,
    /// In seconds; `u32::MAX` never expires, 0 ends with the connection. MQTT 3.1.1 says one or the other by Clean
    /// Session.
    pub session_expiry_seconds: u32,
    /// Method of enhanced authentication.
    pub authentication_method: Option<ByteString>,
}

/// The contents of PUBLISH.
#[derive(Debug, Clone, PartialEq)]
pub struct Publish {
    /// As sent, not validated; empty when `topic_alias` stands for it.
    pub topic: ByteString,
    /// Not zero; the broker's maximum is not checked here.
    pub topic_alias: Option<NonZeroU16>,
    /// Set for QoS 1 and 2.
    pub packet_id: Option<NonZeroU16>,
    /// Sent before.
    pub duplicate: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Still a slice of the read buffer.
    pub payload: Bytes,
    /// MQTT 5 only; copied out of the read buffer.
    pub properties: Option<Arc<Properties>>,
}

/// The contents of SUBSCRIBE.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscribe {
    /// To be repeated in SUBACK.
    pub packet_id: NonZeroU16,
    /// Subscription Identifier, for all of its filters.
    pub identifier: Option<NonZeroU32>,
    /// Filters as sent, not validated.
    pub filters: Vec<(ByteString, SubscriptionOptions)>,
}

/// How a client wants to get the messages of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Highest quality of service.
    pub qos: QoS,
    /// Not its own messages.
    pub no_local: bool,
    /// With the retain flag as the publisher set it.
    pub retain_as_published: bool,
    /// Whether retained messages are sent on subscribing.
    pub retain_handling: RetainHandling,
}

/// Why bytes are not a packet that a client may send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Against the format.
    #[error("malformed {packet}: {problem}")]
    Malformed {
        /// Name of the packet.
        packet: &'static str,
        /// The problem.
        problem: String,
    },
    /// In the right format, but not allowed.
    #[error("protocol error in {packet}: {problem}")]
    Protocol {
        /// Name of the packet.
        packet: &'static str,
        /// The problem.
        problem: String,
    },
    /// Larger than the broker takes.
    #[error("a packet of {bytes} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Its whole size.
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
