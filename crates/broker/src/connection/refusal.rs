//! CONNECTs that are refused, and the CONNACKs that say so.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use super::context::ConnectionContext;
use super::io::Buffers;
use crate::config::BrokerConfig;
use crate::hook::ConnectRefusalReason;
use crate::message::Version;
use crate::wire::{ConnAck, ConnectAckReason, Encoder};

/// The reason why a client is not connected.
pub(super) enum Refusal {
    /// The client would not understand an answer.
    Silent(String),
    /// The client's maximum packet size is not known: the answer is as short as possible (MQTT-3.2.2-19).
    Malformed { version: Version, reason: ConnectAckReason, detail: String },
    Answer {
        version: Version,
        reason: ConnectAckReason,
        detail: String,
        /// The client's maximum packet size, if it has one.
        max_packet_bytes: Option<NonZeroU32>,
    },
}

/// Counts a refusal, and encodes the CONNACK that says why.
pub(super) fn refuse(
    context: &ConnectionContext,
    buffers: &mut Buffers,
    refusal: Refusal,
    peer: SocketAddr,
) {
    context.counters.refused.add(1);
    match refusal {
        Refusal::Silent(detail) => tracing::debug!(%peer, detail, "connection refused"),
        Refusal::Malformed { version, reason, detail } => {
            tracing::debug!(%peer, detail, ?reason, "connection refused");
            let ack = ConnAck { reason, ..connack(&context.config) };
            // Without a limit of the client this always fits.
            let _ = Encoder::new(version, None).connack(&mut buffers.outbound, &ack);
        }
        Refusal::Answer { version, reason, detail, max_packet_bytes } => {
            tracing::debug!(%peer, detail, ?reason, "connection refused");
            let ack = ConnAck { reason, reason_string: Some(detail), ..connack(&context.config) };
            let mut encoder = Encoder::new(version, max_packet_bytes);
            // The reason string is left out where it does not fit (MQTT-3.2.2-19).
            if encoder.connack(&mut buffers.outbound, &ack).is_err() {
                let bare = ConnAck { reason_string: None, ..ack };
                let _ = encoder.connack(&mut buffers.outbound, &bare);
            }
        }
    }
}

/// A CONNACK with the limits of the broker.
pub(super) fn connack(config: &BrokerConfig) -> ConnAck {
    ConnAck {
        reason: ConnectAckReason::Success,
        session_present: false,
        assigned_client_id: None,
        receive_maximum: config.receive_maximum,
        maximum_packet_bytes: config.max_packet_bytes,
        topic_alias_maximum: config.topic_alias_maximum,
        session_expiry_seconds: None,
        server_keepalive_seconds: None,
        response_information: None,
        reason_string: None,
    }
}

pub(super) fn refusal_code(reason: ConnectRefusalReason) -> ConnectAckReason {
    match reason {
        ConnectRefusalReason::BadUserNameOrPassword => ConnectAckReason::BadUserNameOrPassword,
        ConnectRefusalReason::NotAuthorized => ConnectAckReason::NotAuthorized,
        ConnectRefusalReason::ServerUnavailable => ConnectAckReason::ServerUnavailable,
        ConnectRefusalReason::ServerBusy => ConnectAckReason::ServerBusy,
        ConnectRefusalReason::Banned => ConnectAckReason::Banned,
    }
}
