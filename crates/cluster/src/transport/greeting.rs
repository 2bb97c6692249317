//! The handshake on a connection's stream, before the channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::copy_detector::CopyDetector;
use super::counters::Cells;
use super::gossip::Gossip;
use super::link::{Link, Outcome};
use super::local_node::LocalNode;
use super::outbox::Outbox;
use super::peer::Peer;
use super::peer_table::PeerTable;
use crate::CertificateError;
use crate::handshake::{Hello, MAX_HELLO_BYTES, Refusal, Refused, Verdict};
use crate::network::frame::{self, Kind, ReadError};

/// The time that a refusal has to get through.
const LINGER: Duration = Duration::from_secs(1);

/// The reason why no channel was opened.
pub(super) enum Failure {
    /// This node refused the peer.
    Ours(Refused),
    /// The peer refused this node.
    Theirs(Refused),
    /// The connection broke.
    Lost(Lost),
}

/// The error that broke a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Write(std::io::Error),
    #[error(transparent)]
    Read(ReadError),
    #[error("the channel before has not ended yet")]
    NotReplaced,
    #[error("it does not read")]
    Unread,
}

/// Performs handshakes.
pub(super) struct Greeter {
    pub(super) local: Arc<LocalNode>,
    pub(super) admission: Arc<Admission>,
    pub(super) gossip: Arc<Gossip>,
    pub(super) peers: Arc<PeerTable>,
    pub(super) copies: Arc<CopyDetector>,
    pub(super) counters: Arc<Cells>,
    pub(super) cancel: CancellationToken,
}

impl Greeter {
    /// Performs the handshake and enters the peer into the table. On cancellation it may stay there: the caller ends
    /// only with the transport.
    pub(super) async fn open(
        &self,
        link: &Link,
        stream: &mut Stream,
    ) -> Result<(Arc<Peer>, Hello), Failure> {
        if self.admission.is_penalised(&link.peer) {
            return Err(Failure::Ours(Refusal::BackingOff.with("it was refused a short while ago")));
        }
        let limit = self.local.limits.handshake_timeout;
        let (peer, hello) =
            tokio::time::timeout(limit, self.greet(link, stream)).await.unwrap_or_else(|_| {
                let detail = format!("it did not say who it is within {} s", limit.as_secs_f32());
                Err(Failure::Ours(Refusal::Silent.with(detail)))
            })?;
        let decides = self.local.peer_id < link.peer;
        // An old channel ends only when the node has taken all its frames; that is not the peer's fault.
        tokio::time::timeout(limit, self.peers.claim(&peer, decides))
            .await
            .map_err(|_| Failure::Lost(Lost::NotReplaced))?
            .map_err(Failure::Ours)?;
        let settled = async {
            // The certificate may have been revoked since it was checked, and before there was a channel to end.
            if self.gossip.membership.lock().is_revoked(&peer.certificate) {
                return Err(Failure::Ours(Refusal::Revoked.with("it was revoked just now")));
            }
            if decides { accept(stream).await } else { Ok(()) }
        };
        let settled = tokio::time::timeout(limit, settled).await;
        settled.unwrap_or(Err(Failure::Lost(Lost::Unread))).inspect_err(|_| self.peers.release(&peer))?;
        Ok((peer, hello))
    }

    /// Counts and logs a failed handshake, and tells the peer why. Takes up to 1 s.
    pub(super) async fn give_up(&self, link: &Link, mut stream: Stream, failure: Failure) -> Outcome {
        match failure {
            Failure::Ours(refused) => {
                if refused.reason == Refusal::Duplicate {
                    tracing::debug!(peer = %link.peer, address = %link.address, "closed a second connection");
                } else {
                    tracing::warn!(peer = %link.peer, address = %link.address, reason = %refused, "refused a peer");
                }
                self.counters.refuse(refused.reason);
                let reason = refused.reason;
                let proof = (self.gossip.proof_of_revocation(&link.peer))
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
                self.counters.refused_by_peer(refused.reason);
                if refused.reason == Refusal::Cloned {
                    self.copies.own_copy_reported(refused.detail.clone());
                }
                Outcome::RefusedByPeer(refused.reason)
            }
            Failure::Lost(reason) => {
                tracing::debug!(peer = %link.peer, address = %link.address, %reason, "lost before the handshake's end");
                Outcome::Lost
            }
        }
    }

    /// Both send Hello and judge. The higher peer id answers immediately; the lower one has the last word later.
    async fn greet(&self, link: &Link, stream: &mut Stream) -> Result<(Arc<Peer>, Hello), Failure> {
        frame::write(stream, Kind::Hello, &self.local.hello(&link.peer).encode()).await.map_err(lost)?;
        let body = self.expect(stream, Kind::Hello).await?;
        let hello = Hello::decode(&body).map_err(Failure::Ours)?;
        let greeted = {
            let membership = self.gossip.membership.lock();
            hello.check(link.peer, &membership, &self.local.limits.versions, self.local.clock.unix_ms())
        };
        let greeted = greeted.map_err(Failure::Ours)?;
        self.admission.release(link.connection);
        let peer = Arc::new(Peer::new(
            greeted,
            &hello,
            link.address.clone(),
            link.is_dialed,
            Outbox::new(
                self.local.limits.outbox_bytes,
                self.local.status.clone(),
                self.local.clock.clone(),
            ),
            self.cancel.child_token(),
        ));
        self.copies.check(&peer).await.map_err(Failure::Ours)?;
        if self.local.peer_id > link.peer {
            accept(stream).await?;
        }
        let body = self.expect(stream, Kind::Verdict).await?;
        if let Verdict::Refused(refused) = Verdict::decode(&body).map_err(Failure::Ours)? {
            return Err(Failure::Theirs(refused));
        }
        Ok((peer, hello))
    }

    /// Reads a frame of a certain kind; a refusal may come in its place, and before it the revocation that it is for.
    async fn expect(&self, stream: &mut Stream, wanted: Kind) -> Result<Bytes, Failure> {
        let (mut kind, mut body) = read(stream).await?;
        let malformed = |error: CertificateError| Failure::Ours(Refusal::Malformed.with(error.to_string()));
        if kind == Kind::Revocations {
            self.gossip.take_early_list(&body).map_err(malformed)?;
            (kind, body) = read(stream).await?;
        } else if kind == Kind::RevocationSet {
            self.gossip.take_early_revocations(&body).map_err(malformed)?;
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
}

/// Tells the peer why, and waits a moment for it to read that and close. A revoked peer gets the proof of it.
async fn refuse(stream: &mut Stream, refused: Refused, proof: Option<(Kind, Vec<u8>)>) {
    let closing = async {
        if let Some((kind, body)) = proof {
            frame::write(stream, kind, &body).await?;
        }
        frame::write(stream, Kind::Verdict, &Verdict::Refused(refused).encode()).await?;
        stream.close().await?;
        let mut remaining = [0; 256];
        while stream.read(&mut remaining).await? > 0 {}
        std::io::Result::Ok(())
    };
    // A peer that does not read loses only the reason.
    let _ = tokio::time::timeout(LINGER, closing).await;
}

async fn accept(stream: &mut Stream) -> Result<(), Failure> {
    frame::write(stream, Kind::Verdict, &Verdict::Accepted.encode()).await.map_err(lost)
}

async fn read(stream: &mut Stream) -> Result<(Kind, Bytes), Failure> {
    frame::read(stream, MAX_HELLO_BYTES, |_| ()).await.map_err(|error| match error {
        ReadError::TooLarge { .. } => Failure::Ours(Refusal::TooLarge.with(error.to_string())),
        ReadError::Empty => Failure::Ours(Refusal::Malformed.with(error.to_string())),
        ReadError::Closed | ReadError::Io(_) => Failure::Lost(Lost::Read(error)),
    })
}

fn lost(error: std::io::Error) -> Failure {
    Failure::Lost(Lost::Write(error))
}
