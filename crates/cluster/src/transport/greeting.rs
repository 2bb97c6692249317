//! The handshake on a connection's stream: what comes before the channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::{Multiaddr, PeerId, Stream};

use super::channel::Outcome;
use super::frame::{self, Kind, ReadError};
use super::shared::{Peer, Shared};
use super::{TransportKind, address};
use crate::handshake::{Hello, MAX_HELLO_BYTES, Refusal, Refused, Verdict};
use crate::{CertificateError, RevocationList};

/// How long a refusal may take to get through.
const LINGER: Duration = Duration::from_secs(1);

/// A connection to a peer that has proved its peer id.
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
}

/// Why there is no channel.
pub(super) enum Failure {
    /// This node refused the peer.
    Ours(Refused),
    /// The peer refused this node.
    Theirs(Refused),
    /// The connection broke.
    Lost(String),
}

/// The handshake, and taking the place of the member's channel.
pub(super) async fn open(
    shared: &Arc<Shared>,
    link: &Link,
    stream: &mut Stream,
) -> Result<(Arc<Peer>, Hello), Failure> {
    if shared.penalties.lock().waits_until(&link.peer, shared.now_ms()).is_some() {
        return Err(Failure::Ours(Refusal::BackingOff.with("it was refused a short while ago")));
    }
    let limit = shared.limits.handshake_timeout;
    let (peer, hello) =
        tokio::time::timeout(limit, greet(shared, link, stream)).await.unwrap_or_else(|_| {
            let detail = format!("it did not say who it is within {} s", limit.as_secs_f32());
            Err(Failure::Ours(Refusal::Silent.with(detail)))
        })?;
    let decides = shared.own < link.peer;
    // An old channel ends only when the node has taken all that came by it; that is not the peer's fault.
    tokio::time::timeout(limit, shared.claim(&peer, decides))
        .await
        .map_err(|_| Failure::Lost("the channel before has not ended yet".into()))?
        .map_err(Failure::Ours)?;
    let settled = async {
        // It may have been put out since it was checked, and before there was a channel to end.
        if shared.membership.lock().is_revoked(&peer.certificate) {
            return Err(Failure::Ours(Refusal::Revoked.with("its certificate was taken back just now")));
        }
        if decides { accept(stream).await } else { Ok(()) }
    };
    let settled = tokio::time::timeout(limit, settled).await;
    settled.unwrap_or_else(|_| Err(Failure::Lost("it does not read".into()))).inspect_err(|_| {
        shared.release(&peer);
    })?;
    Ok((peer, hello))
}

/// Counts and reports a handshake that came to nothing, and tells the peer why.
pub(super) async fn give_up(shared: &Shared, link: &Link, mut stream: Stream, failure: Failure) -> Outcome {
    match failure {
        Failure::Ours(refused) => {
            if refused.reason == Refusal::Duplicate {
                tracing::debug!(peer = %link.peer, address = %link.address, "closed a second connection");
            } else {
                tracing::warn!(peer = %link.peer, address = %link.address, reason = %refused, "refused a peer");
            }
            shared.counters.refuse(refused.reason);
            let reason = refused.reason;
            let list = match reason {
                Refusal::Revoked => shared.membership.lock().revocations().map(RevocationList::encode),
                _ => None,
            };
            refuse(&mut stream, refused, list.filter(|list| list.len() <= MAX_HELLO_BYTES)).await;
            Outcome::Refused(reason)
        }
        Failure::Theirs(refused) => {
            if refused.reason == Refusal::Duplicate {
                tracing::debug!(peer = %link.peer, address = %link.address, "a second connection was closed");
            } else {
                tracing::warn!(peer = %link.peer, address = %link.address, reason = %refused, "refused by a peer");
            }
            shared.counters.refused_by_peer(refused.reason);
            Outcome::RefusedByPeer(refused.reason)
        }
        Failure::Lost(reason) => {
            tracing::debug!(peer = %link.peer, address = %link.address, reason, "lost before the handshake's end");
            Outcome::Lost
        }
    }
}

/// Tells the peer why, and waits a moment for it to read that and close. One that was put out gets the proof of it.
async fn refuse(stream: &mut Stream, refused: Refused, revocations: Option<Vec<u8>>) {
    let farewell = async {
        if let Some(list) = revocations {
            frame::write(stream, Kind::Revocations, &list).await?;
        }
        frame::write(stream, Kind::Verdict, &Verdict::Refused(refused).encode()).await?;
        stream.close().await?;
        let mut rest = [0; 256];
        while stream.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Whether the peer listens is its own affair.
    let _ = tokio::time::timeout(LINGER, farewell).await;
}

/// Both say Hello and judge. The higher peer id says so at once; the lower one has the last word later.
async fn greet(
    shared: &Arc<Shared>,
    link: &Link,
    stream: &mut Stream,
) -> Result<(Arc<Peer>, Hello), Failure> {
    frame::write(stream, Kind::Hello, &shared.hello().encode()).await.map_err(lost)?;
    let body = expect(shared, stream, Kind::Hello).await?;
    let hello = Hello::decode(&body).map_err(Failure::Ours)?;
    let greeted = {
        let membership = shared.membership.lock();
        hello.check(link.peer, &membership, &shared.limits.versions, shared.unix_ms())
    };
    let greeted = greeted.map_err(Failure::Ours)?;
    let kind = address::kind(&link.address).unwrap_or(TransportKind::Tcp);
    let peer = Arc::new(Peer::new(
        greeted.certificate,
        link.address.clone(),
        kind,
        greeted.protocol_version,
        &hello,
        greeted.skew_ms,
        shared.limits.outbox_bytes,
        shared.cancel.child_token(),
    ));
    if shared.own > link.peer {
        accept(stream).await?;
    }
    let body = expect(shared, stream, Kind::Verdict).await?;
    if let Verdict::Refused(refused) = Verdict::decode(&body).map_err(Failure::Ours)? {
        return Err(Failure::Theirs(refused));
    }
    Ok((peer, hello))
}

async fn accept(stream: &mut Stream) -> Result<(), Failure> {
    frame::write(stream, Kind::Verdict, &Verdict::Accepted.encode()).await.map_err(lost)
}

/// Reads a frame of a certain kind; a refusal may come in its place, and before it the list of those that were put out.
async fn expect(shared: &Shared, stream: &mut Stream, wanted: Kind) -> Result<Bytes, Failure> {
    let (mut kind, mut body) = read(stream).await?;
    if kind == Kind::Revocations {
        let malformed = |error: CertificateError| Failure::Ours(Refusal::Malformed.with(error.to_string()));
        let list = RevocationList::decode(&body).map_err(malformed)?;
        shared.membership.lock().revoke(list).map_err(malformed)?;
        (kind, body) = read(stream).await?;
    }
    if kind == wanted {
        return Ok(body);
    }
    if kind == Kind::Verdict
        && let Ok(Verdict::Refused(refused)) = Verdict::decode(&body)
    {
        return Err(Failure::Theirs(refused));
    }
    Err(Failure::Ours(Refusal::Malformed.with(format!("it sent a {kind:?} in place of a {wanted:?}"))))
}

async fn read(stream: &mut Stream) -> Result<(Kind, Bytes), Failure> {
    frame::read(stream, MAX_HELLO_BYTES, |_| ()).await.map_err(|error| match error {
        ReadError::TooLarge { .. } => Failure::Ours(Refusal::TooLarge.with(error.to_string())),
        ReadError::Empty => Failure::Ours(Refusal::Malformed.with(error.to_string())),
        ReadError::Closed | ReadError::Io(_) => Failure::Lost(error.to_string()),
    })
}

fn lost(error: std::io::Error) -> Failure {
    Failure::Lost(error.to_string())
}
