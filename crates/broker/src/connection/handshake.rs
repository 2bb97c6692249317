//! From the first byte to a CONNECT that is accepted or refused.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytestring::ByteString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::Attached;
use super::io::{Io, read};
use crate::attach::NoSession;
use crate::attach::{Claimed, Wanted};
use crate::broker::Shared;
use crate::client::{Client, Peer, Transport};
use crate::hook::{ConnectRefusal, ConnectRefusalReason, ConnectRequest};
use crate::limits::Claim;
use crate::message::Version;
use crate::sessions::Will;
use crate::stored::MAX_KEPT_NAME_BYTES;
use crate::wire::{ConnAck, Connect, ConnectAckReason, DecodeError, Decoder, Encoder, Packet};

/// A client whose CONNACK is ready to be sent.
pub(super) struct Accepted<'a> {
    pub connect: Box<Connect>,
    pub encoder: Encoder,
    /// What holds for this connection; 0 for none.
    pub keepalive_seconds: u16,
    pub attached: Attached<'a>,
}

/// Waits for the CONNECT, as long as the configuration allows, and prepares the CONNACK.
pub(super) async fn handshake<'a, S>(
    shared: &'a Shared,
    io: &mut Io<S>,
    decoder: &mut Decoder,
    peer: &Peer,
) -> Result<Accepted<'a>, Refusal>
where
    S: AsyncRead + AsyncWrite,
{
    let Some(_place) = shared.begin_handshake() else {
        return Err(Refusal::Silent("too many others have not sent a CONNECT yet".into()));
    };
    let deadline = Instant::now() + shared.config.connect_timeout;
    let connect = timeout_at(deadline, first_packet(io, decoder, shared)).await;
    let connect = connect.unwrap_or_else(|_| Err(Refusal::Silent("no CONNECT in time".into())))?;
    let internal = peer.transport == Transport::Internal;
    if let Some(refusal) = refusal(shared, &connect, internal) {
        return Err(refusal);
    }
    let mut connect = connect;
    let assigned = connect.client_id.is_empty().then(|| shared.assign_client_id());
    let client_id: Arc<str> = assigned.as_deref().unwrap_or(&connect.client_id).into();
    let request = ConnectRequest {
        client_id: client_id.clone(),
        username: connect.username.as_deref().map(Into::into),
        password: connect.password.clone(),
        peer: peer.clone(),
        version: connect.version,
        will: connect.will.clone(),
    };
    let decided = timeout_at(deadline, shared.authenticate(&request)).await;
    let username = decided
        .unwrap_or_else(|_| {
            let detail = "deciding about the CONNECT took too long".into();
            Err(ConnectRefusal { reason: ConnectRefusalReason::ServerBusy, detail })
        })
        .map_err(|refusal| Refusal::Answer {
            version: connect.version,
            reason: refusal_code(refusal.reason),
            detail: refusal.detail,
            max_packet_bytes: connect.maximum_packet_bytes,
        })?;
    let client = Arc::new(Client {
        client_id,
        username,
        peer: peer.address,
        version: connect.version,
        transport: peer.transport,
    });
    let config = &shared.config;
    let will = connect.will.take().map(|message| {
        let claim = Claim::of(&shared.will_bytes, message.weight());
        (Will { message, claim }, connect.will_delay_seconds)
    });
    let longest_seconds = if internal { u32::MAX } else { config.max_session_expiry_seconds };
    let expiry_seconds = connect.session_expiry_seconds.min(longest_seconds);
    let wanted = Wanted {
        clean_start: connect.clean_start,
        expiry_seconds,
        will: will.as_ref().map(|(will, delay)| (&will.message, *delay)),
    };
    let most = config.max_will_bytes;
    if will.as_ref().is_some_and(|(will, _)| !will.claim.fits(most)) {
        return Err(Refusal::Answer {
            version: connect.version,
            reason: ConnectAckReason::QuotaExceeded,
            detail: format!("the wills of all clients would have more than {most} bytes"),
            max_packet_bytes: connect.maximum_packet_bytes,
        });
    }
    let claimed = timeout_at(deadline, shared.claim(&client, wanted)).await;
    let refused = |reason, detail: &str| Refusal::Answer {
        version: connect.version,
        reason,
        detail: detail.into(),
        max_packet_bytes: connect.maximum_packet_bytes,
    };
    let claimed = claimed
        .map_err(|_| refused(ConnectAckReason::ServerBusy, "the session is still in use"))?
        .map_err(|reason| match reason {
            NoSession::TooMany => {
                refused(ConnectAckReason::QuotaExceeded, "the broker has no room for one more session")
            }
            NoSession::NotOwner => {
                refused(ConnectAckReason::NotAuthorized, "the client identifier is another user's")
            }
        })?;
    let Claimed { mailbox, state, present } = claimed;
    // From here on the session is given back whatever happens.
    let mut attached = Attached::new(shared, mailbox, client, state, expiry_seconds);
    attached.recheck();
    let keepalive_seconds = match (connect.keepalive_seconds, config.max_keepalive_seconds) {
        (wanted, 0) => wanted,
        (0, most) => most,
        (wanted, most) => wanted.min(most),
    };
    let changed_keepalive =
        connect.version == Version::V5 && keepalive_seconds != connect.keepalive_seconds;
    let response_information = config.response_information.as_ref().filter(|_| {
        // A client identifier may have anything in it; a topic may not.
        connect.request_response_information && !attached.client.client_id.contains(['+', '#', '/', '\0'])
    });
    let ack = ConnAck {
        session_present: present,
        assigned_client_id: assigned.map(ByteString::from),
        session_expiry_seconds: (expiry_seconds != connect.session_expiry_seconds)
            .then_some(expiry_seconds),
        server_keepalive_seconds: changed_keepalive.then_some(keepalive_seconds),
        response_information: response_information
            .map(|pattern| pattern.replace("%c", &attached.client.client_id).into()),
        ..connack(shared)
    };
    let keepalive_seconds =
        if connect.version == Version::V5 { keepalive_seconds } else { connect.keepalive_seconds };
    let mut encoder = Encoder::new(connect.version, connect.maximum_packet_bytes);
    match encoder.connack(&mut io.outbound, &ack) {
        Ok(()) => {
            attached.will = will;
            Ok(Accepted { connect, encoder, keepalive_seconds, attached })
        }
        Err(error) => Err(Refusal::Silent(format!("it does not take the CONNACK: {error}"))),
    }
}

/// Why there is no session.
pub(super) enum Refusal {
    /// The client would not understand an answer.
    Silent(String),
    /// How large a packet the client takes is not known: it is told as shortly as possible (MQTT-3.2.2-19).
    Malformed { version: Version, reason: ConnectAckReason, detail: String },
    Answer {
        version: Version,
        reason: ConnectAckReason,
        detail: String,
        /// What the client takes, as far as it is known.
        max_packet_bytes: Option<NonZeroU32>,
    },
}

async fn first_packet<S>(
    io: &mut Io<S>,
    decoder: &mut Decoder,
    shared: &Shared,
) -> Result<Box<Connect>, Refusal>
where
    S: AsyncRead + AsyncWrite,
{
    loop {
        match decoder.decode(&mut io.inbound) {
            Ok(Some(Packet::Connect(connect))) => return Ok(connect),
            Ok(Some(_)) => return Err(Refusal::Silent("the first packet is no CONNECT".into())),
            Ok(None) => {}
            Err(error) => {
                let version = match (&error, decoder.version()) {
                    (_, Some(version)) => version,
                    (&DecodeError::UnsupportedVersion { level }, None) if level < 5 || level == 0x83 => {
                        Version::V311
                    }
                    (DecodeError::UnsupportedVersion { .. }, None) => Version::V5,
                    (_, None) => return Err(Refusal::Silent(error.to_string())),
                };
                let answered = version == Version::V5
                    || matches!(
                        error,
                        DecodeError::UnsupportedVersion { .. } | DecodeError::ClientIdRejected
                    );
                let detail = error.to_string();
                return Err(match answered {
                    true => Refusal::Malformed { version, reason: error.connect_reason(), detail },
                    false => Refusal::Silent(detail),
                });
            }
        }
        match read(&mut io.reader, &mut io.inbound).await {
            Ok(0) => return Err(Refusal::Silent("closed before its CONNECT was complete".into())),
            Ok(bytes) => shared.counters.bytes_in.add(bytes as u64),
            Err(error) => return Err(Refusal::Silent(error.to_string())),
        }
    }
}

fn refusal(shared: &Shared, connect: &Connect, internal: bool) -> Option<Refusal> {
    let version = connect.version;
    let max_packet_bytes = connect.maximum_packet_bytes;
    if connect.authentication_method.is_some() {
        let reason = ConnectAckReason::BadAuthenticationMethod;
        return Some(Refusal::Answer {
            version,
            reason,
            max_packet_bytes,
            detail: "enhanced authentication is not supported".into(),
        });
    }
    if connect.session_expiry_seconds > 0 && connect.client_id.len() > MAX_KEPT_NAME_BYTES {
        let reason = ConnectAckReason::ClientIdentifierNotValid;
        let detail = format!(
            "client identifiers of sessions that are kept have at most {MAX_KEPT_NAME_BYTES} bytes"
        );
        return Some(Refusal::Answer { version, reason, detail, max_packet_bytes });
    }
    if !internal && shared.is_full(&connect.client_id) {
        let detail = format!("the broker has its maximum of {} connections", shared.config.max_connections);
        let reason = ConnectAckReason::ServerBusy;
        return Some(Refusal::Answer { version, reason, detail, max_packet_bytes });
    }
    None
}

pub(super) async fn refuse<S>(shared: &Shared, mut io: Io<S>, refusal: Refusal, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite,
{
    shared.counters.connections_refused.add(1);
    match refusal {
        Refusal::Silent(detail) => tracing::debug!(%peer, detail, "connection refused"),
        Refusal::Malformed { version, reason, detail } => {
            tracing::debug!(%peer, detail, ?reason, "connection refused");
            let ack = ConnAck { reason, ..connack(shared) };
            // Without a limit of the client this always fits.
            let _ = Encoder::new(version, None).connack(&mut io.outbound, &ack);
        }
        Refusal::Answer { version, reason, detail, max_packet_bytes } => {
            tracing::debug!(%peer, detail, ?reason, "connection refused");
            let ack = ConnAck { reason, reason_string: Some(detail), ..connack(shared) };
            let mut encoder = Encoder::new(version, max_packet_bytes);
            // The reason string is left out where it does not fit (MQTT-3.2.2-19).
            if encoder.connack(&mut io.outbound, &ack).is_err() {
                let bare = ConnAck { reason_string: None, ..ack };
                let _ = encoder.connack(&mut io.outbound, &bare);
            }
        }
    }
    io.farewell(shared).await;
}

/// What the broker offers.
pub(super) fn connack(shared: &Shared) -> ConnAck {
    ConnAck {
        reason: ConnectAckReason::Success,
        session_present: false,
        assigned_client_id: None,
        receive_maximum: shared.config.receive_maximum,
        maximum_packet_bytes: shared.config.max_packet_bytes,
        topic_alias_maximum: shared.config.topic_alias_maximum,
        session_expiry_seconds: None,
        server_keepalive_seconds: None,
        response_information: None,
        reason_string: None,
    }
}

fn refusal_code(reason: ConnectRefusalReason) -> ConnectAckReason {
    match reason {
        ConnectRefusalReason::BadUserNameOrPassword => ConnectAckReason::BadUserNameOrPassword,
        ConnectRefusalReason::NotAuthorized => ConnectAckReason::NotAuthorized,
        ConnectRefusalReason::ServerUnavailable => ConnectAckReason::ServerUnavailable,
        ConnectRefusalReason::ServerBusy => ConnectAckReason::ServerBusy,
        ConnectRefusalReason::Banned => ConnectAckReason::Banned,
    }
}
