//! Issues join tokens and serves joining nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::mpsc;

use super::admission::Admission;
use super::clock::millis;
use super::counters::{Cells, add};
use super::dial_signal::DialSignal;
use super::event::Event;
use super::local_node::LocalNode;
use crate::join::admit::{Application, admit};
use crate::join::issuer::TokenIssuer;
use crate::join::protocol::{JoinRefusal, JoinReply, MAX_REQUEST_BYTES};
use crate::network::frame::{self, Kind, ReadError};
use crate::{CertificateError, ClusterKey, Membership, Token};

/// The delay of every refusal, whatever its reason.
const REFUSAL_DELAY: Duration = Duration::from_millis(300);
/// Limit of one joining node's stream.
const SERVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Issues join tokens and serves joining nodes.
pub(crate) struct JoinService {
    local: Arc<LocalNode>,
    membership: Arc<Mutex<Membership>>,
    admission: Arc<Admission>,
    counters: Arc<Cells>,
    dial_signal: DialSignal,
    issuer: Mutex<TokenIssuer>,
    is_open: Arc<AtomicBool>,
}

impl JoinService {
    /// `is_open` is set while joining nodes are served: read by every connection, so a flag and not a lock.
    pub(crate) fn new(
        local: Arc<LocalNode>,
        membership: Arc<Mutex<Membership>>,
        admission: Arc<Admission>,
        counters: Arc<Cells>,
        dial_signal: DialSignal,
        is_open: Arc<AtomicBool>,
    ) -> Self {
        Self { local, membership, admission, counters, dial_signal, issuer: Mutex::default(), is_open }
    }

    /// Issues a token for one node, and serves joining nodes until its expiry.
    ///
    /// # Errors
    /// `ForeignCluster` if the key is that of another cluster.
    pub(crate) fn open(&self, key: &ClusterKey, life: Duration) -> Result<Token, CertificateError> {
        let (expected, found) = (self.membership.lock().cluster_id(), key.public().id());
        if expected != found {
            return Err(CertificateError::ForeignCluster { found, expected });
        }
        let now_ms = self.local.clock.now_ms();
        let secret = {
            let mut issuer = self.issuer.lock();
            self.is_open.store(true, Ordering::Relaxed);
            issuer.open(key, now_ms, millis(life))
        };
        self.dial_signal.notify();
        Ok(Token::new(secret, expected, self.local.peer_id, &self.local.addresses()))
    }

    /// Forgets expired tokens. Gives the time of the next expiry; `None` if no token is remembered.
    pub(crate) fn expire(&self, now_ms: u64) -> Option<u64> {
        let mut issuer = self.issuer.lock();
        issuer.forget(now_ms);
        let until_ms = issuer.open_until_ms();
        self.is_open.store(until_ms.is_some(), Ordering::Relaxed);
        until_ms
    }

    /// Answers one joining node, within 10 s.
    pub(crate) async fn serve(&self, events: &mpsc::Sender<Event>, peer: PeerId, mut stream: Stream) {
        let served = tokio::time::timeout(SERVE_TIMEOUT, async {
            let (_, body) = frame::read(&mut stream, MAX_REQUEST_BYTES, |_| ()).await?;
            let reply = match self.admit(peer, &body) {
                Ok(reply) => {
                    tracing::info!(%peer, "a node has joined the cluster");
                    add(&self.counters.joins);
                    self.admission.forgive(&peer);
                    // A node that takes no more events is stopping.
                    let _ = events.send(Event::MembershipChanged).await;
                    self.dial_signal.notify();
                    reply
                }
                Err(refusal) => {
                    tracing::warn!(%peer, reason = ?refusal, "a node was not admitted to the cluster");
                    add(&self.counters.joins_refused);
                    tokio::time::sleep(REFUSAL_DELAY).await;
                    JoinReply { code: refusal.code(), ..JoinReply::default() }
                }
            };
            let io = ReadError::Io;
            frame::write(&mut stream, Kind::Data, &reply.encode_to_vec()).await.map_err(io)?;
            stream.close().await.map_err(io)?;
            let mut remaining = [0; 64];
            while stream.read(&mut remaining).await.map_err(io)? > 0 {}
            Ok::<(), ReadError>(())
        });
        if let Ok(Err(error)) = served.await {
            tracing::debug!(%peer, %error, "a joining node has disconnected");
        }
    }

    fn admit(&self, peer: PeerId, body: &[u8]) -> Result<JoinReply, JoinRefusal> {
        let clock = &self.local.clock;
        let listening = self.local.addresses();
        let application = Application { peer, body, now_ms: clock.now_ms(), unix_ms: clock.unix_ms() };
        let mut issuer = self.issuer.lock();
        let mut membership = self.membership.lock();
        admit(&mut issuer, &mut membership, &listening, &application)
    }
}
