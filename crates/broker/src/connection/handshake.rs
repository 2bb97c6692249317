//! The handshake: from the first byte to a CONNECT that is accepted or refused.

use std::sync::Arc;

use bytestring::ByteString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::attached::Attached;
use super::context::ConnectionContext;
use super::io::{Buffers, Io, read};
use super::refusal::{Refusal, connack, refusal_code};
use crate::client::{Client, Peer, Transport};
use crate::hook::{ConnectRefusal, ConnectRefusalReason, ConnectRequest};
use crate::message::Version;
use crate::sessions::{Claimed, NoSession, Wanted};
use crate::stored::MAX_KEPT_NAME_BYTES;
use crate::wire::{ConnAck, Connect, ConnectAckReason, DecodeError, Decoder, Encoder, Packet};

/// A client whose CONNACK is ready to be sent.
pub(super) struct Accepted<'a> {
    pub connect: Box<Connect>,
    pub encoder: Encoder,
    /// The Keep Alive in force; 0 for none.
    pub keepalive_seconds: u16,
    pub attached: Attached<'a>,
}

/// Waits for the CONNECT, as long as the configuration allows, and prepares the CONNACK. Dropping the future gives
/// everything back.
pub(super) async fn handshake<'a, S>(
    context: &'a ConnectionContext,
    io: &mut Io<S>,
    buffers: &mut Buffers,
    decoder: &mut Decoder,
    peer: &Peer,
) -> Result<Accepted<'a>, Refusal>
where
    S: AsyncRead + AsyncWrite,
{
    let Some(_place) = context.admission.begin_handshake() else {
        return Err(Refusal::Silent("too many others have not sent a CONNECT yet".into()));
    };
    let deadline = Instant::now() + context.config.connect_timeout;
    let connect = timeout_at(deadline, first_packet(context, io, buffers, decoder)).await;
    let connect = connect.unwrap_or_else(|_| Err(Refusal::Silent("no CONNECT in time".into())))?;
    accept(context, buffers, connect, peer, deadline).await
}

/// Decides about a CONNECT, and prepares its CONNACK.
async fn accept<'a>(
    context: &'a ConnectionContext,
    buffers: &mut Buffers,
    connect: Box<Connect>,
    peer: &Peer,
    deadline: Instant,
) -> Result<Accepted<'a>, Refusal> {
    let internal = peer.transport == Transport::Internal;
    if let Some(refusal) = check(context, &connect, internal) {
        return Err(refusal);
    }
    let mut connect = connect;
    let assigned = connect.client_id.is_empty().then(|| context.client_ids.assign());
    let client_id: Arc<str> = assigned.as_deref().unwrap_or(&connect.client_id).into();
    let request = ConnectRequest {
        client_id: client_id.clone(),
        username: connect.username.as_deref().map(Into::into),
        password: connect.password.clone(),
        peer: peer.clone(),
        version: connect.version,
        will: connect.will.clone(),
    };
    let decided = timeout_at(deadline, context.hooks.authenticate(&request)).await;
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
    let config = &context.config;
    let will = connect
        .will
        .take()
        .map(|message| (context.sessions.claim_will(message), connect.will_delay_seconds));
    let max_expiry_seconds = if internal { u32::MAX } else { config.max_session_expiry_seconds };
    let expiry_seconds = connect.session_expiry_seconds.min(max_expiry_seconds);
    let wanted = Wanted {
        clean_start: connect.clean_start,
        expiry_seconds,
        will: will.as_ref().map(|(will, delay)| (&will.message, *delay)),
    };
    let max_will_bytes = config.max_will_bytes;
    if will.as_ref().is_some_and(|(will, _)| !will.claim.fits(max_will_bytes)) {
        return Err(Refusal::Answer {
            version: connect.version,
            reason: ConnectAckReason::QuotaExceeded,
            detail: format!("the wills of all clients would have more than {max_will_bytes} bytes"),
            max_packet_bytes: connect.maximum_packet_bytes,
        });
    }
    let claimed = timeout_at(deadline, context.sessions.claim(&client, wanted)).await;
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
    let Claimed { mailbox, state, present, record } = claimed;
    // From this line on, the session is given back in any case.
    let mut attached = Attached::new(context, mailbox, client, state, expiry_seconds);
    attached.recheck_subscriptions();
    if let Some(record) = record {
        let stored = timeout_at(deadline, context.wal.durable(record)).await;
        stored
            .map_err(|_| refused(ConnectAckReason::ServerBusy, "storing the session took too long"))?
            .map_err(|_| refused(ConnectAckReason::ServerUnavailable, "the session could not be stored"))?;
    }
    let keepalive_seconds = match (connect.keepalive_seconds, config.max_keepalive_seconds) {
        (wanted, 0) => wanted,
        (0, max) => max,
        (wanted, max) => wanted.min(max),
    };
    let changed_keepalive =
        connect.version == Version::V5 && keepalive_seconds != connect.keepalive_seconds;
    let response_information = config.response_information.as_ref().filter(|_| {
        // A client identifier may have characters that a topic must not have.
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
        ..connack(config)
    };
    let keepalive_seconds =
        if connect.version == Version::V5 { keepalive_seconds } else { connect.keepalive_seconds };
    let mut encoder = Encoder::new(connect.version, connect.maximum_packet_bytes);
    match encoder.connack(&mut buffers.outbound, &ack) {
        Ok(()) => {
            attached.will = will;
            Ok(Accepted { connect, encoder, keepalive_seconds, attached })
        }
        Err(error) => Err(Refusal::Silent(format!("it does not take the CONNACK: {error}"))),
    }
}

async fn first_packet<S>(
    context: &ConnectionContext,
    io: &mut Io<S>,
    buffers: &mut Buffers,
    decoder: &mut Decoder,
) -> Result<Box<Connect>, Refusal>
where
    S: AsyncRead + AsyncWrite,
{
    loop {
        match decoder.decode(&mut buffers.inbound) {
            Ok(Some(Packet::Connect(connect))) => return Ok(connect),
            Ok(Some(_)) => return Err(Refusal::Silent("the first packet is not a CONNECT".into())),
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
        match read(&mut io.reader, &mut buffers.inbound).await {
            Ok(0) => return Err(Refusal::Silent("closed before its CONNECT was complete".into())),
            Ok(bytes) => context.counters.bytes_in.add(bytes as u64),
            Err(error) => return Err(Refusal::Silent(error.to_string())),
        }
    }
}

/// Refuses a CONNECT that the broker cannot serve, before a hook is asked.
fn check(context: &ConnectionContext, connect: &Connect, internal: bool) -> Option<Refusal> {
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
    if !internal && context.sessions.is_full(&connect.client_id) {
        let detail =
            format!("the broker has its maximum of {} connections", context.config.max_connections);
        let reason = ConnectAckReason::ServerBusy;
        return Some(Refusal::Answer { version, reason, detail, max_packet_bytes });
    }
    None
}
