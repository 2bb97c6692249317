//! The handshake on a connection's stream: what comes before the channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, Stream};

use super::channel::Outcome;
use super::frame::{self, Kind, ReadError};
use super::shared::{Peer, Shared};
use super::{TransportKind, address};
use crate::handshake::{Hello, MAX_HELLO_BYTES, Refusal, Refused, Verdict};
use crate::revocation::{RevocationFrame, encode_revocation};
use crate::{CertificateError, RevocationList};

/// How long a refusal may take to get through.
const LINGER: Duration = Duration::from_secs(1);

/// A connection to a peer that has proved its peer id.
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    pub(crate) address: Multiaddr,
    pub(crate) connection: ConnectionId,
    /// This node has dialled it.
    pub(crate) is_dialed: bool,
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
        // It may have been revoked since it was checked, and before there was a channel to end.
        if shared.membership.lock().is_revoked(&peer.certificate) {
            return Err(Failure::Ours(Refusal::Revoked.with("it was revoked just now")));
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
            let proof = proof_of_revocation(shared, &link.peer)
                .filter(|(_, body)| reason == Refusal::Revoked && body.len() <= MAX_HELLO_BYTES);
            refuse(&mut stream, refused, proof).await;
            Outcome::Refused(reason)
        }
        Failure::Theirs(refused) => {
            if refused.reason == Refusal::Duplicate {
                tracing::debug!(peer = %link.peer, address = %link.address, "a second connection was closed");
            } else {
                tracing::warn!(peer = %link.peer, address = %link.address, reason = %refused, "refused by a peer");
            }
            shared.counters.refused_by_peer(refused.reason);
            if refused.reason == Refusal::Cloned {
                shared.is_copied(refused.detail.clone());
            }
            Outcome::RefusedByPeer(refused.reason)
        }
        Failure::Lost(reason) => {
            tracing::debug!(peer = %link.peer, address = %link.address, reason, "lost before the handshake's end");
            Outcome::Lost
        }
    }
}

/// The signed revocation of a peer, as a frame. It is sent to that peer, which then works alone.
pub(super) fn proof_of_revocation(shared: &Shared, peer_id: &PeerId) -> Option<(Kind, Vec<u8>)> {
    let membership = shared.membership.lock();
    let revocations = membership.revocations();
    if let Some(revocation) = revocations.of_peer(peer_id) {
        return Some((Kind::RevocationSet, encode_revocation(revocation)));
    }
    // By its serial number then. The longest list is the likeliest.
    revocations.lists().next().map(|list| (Kind::Revocations, list.encode()))
}

/// Tells the peer why, and waits a moment for it to read that and close. A revoked one gets the proof of it.
async fn refuse(stream: &mut Stream, refused: Refused, proof: Option<(Kind, Vec<u8>)>) {
    let farewell = async {
        if let Some((kind, body)) = proof {
            frame::write(stream, kind, &body).await?;
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
    shared.is_proven(link.connection);
    let kind = address::kind(&link.address).unwrap_or(TransportKind::Tcp);
    let peer = Arc::new(Peer::new(
        greeted.certificate,
        link.address.clone(),
        link.is_dialed.then(|| link.address.clone()),
        kind,
        greeted.protocol_version,
        &hello,
        greeted.skew_ms,
        shared.limits.outbox_bytes,
        shared.cancel.child_token(),
    ));
    shared.refuse_copies(&peer).await.map_err(Failure::Ours)?;
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

/// Reads a frame of a certain kind; a refusal may come in its place, and before it the revocation that it is for.
async fn expect(shared: &Shared, stream: &mut Stream, wanted: Kind) -> Result<Bytes, Failure> {
    let (mut kind, mut body) = read(stream).await?;
    let malformed = |error: CertificateError| Failure::Ours(Refusal::Malformed.with(error.to_string()));
    if kind == Kind::Revocations {
        let list = RevocationList::decode(&body).map_err(malformed)?;
        if shared.membership.lock().learn_revocation_list(list).map_err(malformed)? {
            shared.pass_on_revocation(kind, &body);
        }
        (kind, body) = read(stream).await?;
    } else if kind == Kind::RevocationSet {
        let frame = RevocationFrame::decode(&body).map_err(malformed)?;
        for revocation in frame.peers {
            let body = encode_revocation(&revocation);
            if shared.membership.lock().learn_revocation(revocation).map_err(malformed)? {
                shared.pass_on_revocation(kind, &body);
            }
        }
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
