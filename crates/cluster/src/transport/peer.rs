//! A member with an open channel.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::event::DownReason;
use super::node_starts::NodeStart;
use super::outbox::Outbox;
use super::pacing::ProbePurpose;
use super::peer_stream::{OpenStreamError, PeerStream, PeerStreams};
use super::status::{PeerStatus, ReceivedStatus, RoundTrips};
use crate::Certificate;
use crate::handshake::{Greeted, Hello};
use crate::network::address::{self, TransportKind};
use crate::network::side_streams::{StreamOpener, StreamPurpose};

/// A member with a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The member's number.
    pub node_id: u64,
    /// The member's name.
    pub name: String,
    /// The member's peer id.
    pub peer_id: PeerId,
    /// The remote address of its connection.
    pub address: Multiaddr,
    /// The protocol of its connection.
    pub transport: TransportKind,
    /// The member's software version, as it claims.
    pub software: String,
    /// The highest version of the protocol that both speak.
    pub protocol_version: u32,
    /// The number of the member's start.
    pub incarnation: u32,
    /// Time at which the channel opened.
    pub connected_since: Instant,
    /// Median of the round-trip times of the last 9 heartbeats; `None` before the first.
    pub rtt: Option<Duration>,
    /// Bytes received, with framing, without encryption.
    pub bytes_in: u64,
    /// Bytes sent, with framing, without encryption.
    pub bytes_out: u64,
    /// Milliseconds by which the member's wall clock was ahead of this node's when it connected.
    pub skew_ms: i64,
}

/// A member with a channel.
pub(crate) struct Peer {
    pub(crate) certificate: Certificate,
    pub(crate) address: Multiaddr,
    /// True if this node has dialled the connection.
    pub(crate) is_dialed: bool,
    pub(crate) protocol_version: u32,
    pub(crate) incarnation: u32,
    pub(crate) instance: Option<u64>,
    pub(crate) skew_ms: i64,
    pub(crate) since: Instant,
    pub(crate) outbox: Outbox,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// Cancelled when the channel is to end; `close_reason` has the reason.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the channel has ended and the node was notified.
    pub(crate) gone: CancellationToken,
    software: String,
    round_trips: Mutex<RoundTrips>,
    received_status: Mutex<ReceivedStatus>,
    /// Time at which the last answered heartbeat was sent, in microseconds.
    answered_us: AtomicU64,
    answered: Notify,
    close_reason: Mutex<Option<DownReason>>,
    /// Set while the channel is open.
    streams: OnceLock<PeerStreams>,
}

impl Peer {
    /// A peer whose Hello was accepted. The channel ends with `closing`.
    pub(crate) fn new(
        greeted: Greeted,
        hello: &Hello,
        address: Multiaddr,
        is_dialed: bool,
        outbox: Outbox,
        closing: CancellationToken,
    ) -> Self {
        Self {
            certificate: greeted.certificate,
            address,
            is_dialed,
            protocol_version: greeted.protocol_version,
            incarnation: hello.incarnation,
            instance: hello.instance,
            skew_ms: greeted.skew_ms,
            since: Instant::now(),
            outbox,
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            closing,
            gone: CancellationToken::new(),
            software: hello.software.clone(),
            round_trips: Mutex::default(),
            received_status: Mutex::default(),
            answered_us: AtomicU64::new(0),
            answered: Notify::new(),
            close_reason: Mutex::new(None),
            streams: OnceLock::new(),
        }
    }

    pub(crate) fn node_id(&self) -> u64 {
        self.certificate.node_id()
    }

    pub(crate) fn peer_id(&self) -> PeerId {
        self.certificate.peer_id()
    }

    /// The start of the node that this is; `None` from versions up to 0.1.
    pub(crate) fn node_start(&self) -> Option<NodeStart> {
        let instance = self.instance?;
        Some(NodeStart { instance, incarnation: self.incarnation, address: self.address.clone() })
    }

    /// The heartbeat sent at `sent_us` was answered after `rtt_us`.
    pub(crate) fn heartbeat_answered(&self, sent_us: u64, rtt_us: u64) {
        // Those behind data say how long a queue is, not how far the peer is.
        if self.outbox.answered(sent_us, rtt_us) == ProbePurpose::Liveness {
            self.round_trips.lock().add(rtt_us);
        }
        self.answered_us.fetch_max(sent_us, Ordering::AcqRel);
        self.answered.notify_waiters();
    }

    /// True if the peer answers a heartbeat that is sent now, within a limit.
    pub(crate) async fn answers(&self, now_us: u64, within: Duration) -> bool {
        self.outbox.ping(now_us);
        let answered = async {
            loop {
                let mut notified = std::pin::pin!(self.answered.notified());
                notified.as_mut().enable();
                if self.answered_us.load(Ordering::Acquire) >= now_us {
                    return true;
                }
                tokio::select! {
                    () = notified => {}
                    () = self.closing.cancelled() => return false,
                    () = self.gone.cancelled() => return false,
                }
            }
        };
        tokio::time::timeout(within, answered).await.unwrap_or(false)
    }

    /// The channel is open: streams can be opened on its connection until `ended`.
    pub(crate) fn serve_streams(&self, opener: StreamOpener, ended: CancellationToken) {
        // A peer has one channel.
        let _ = self.streams.set(PeerStreams { opener, ended });
    }

    /// Opens a stream within 5 s.
    pub(crate) async fn open_stream(&self, purpose: StreamPurpose) -> Result<PeerStream, OpenStreamError> {
        let node_id = self.node_id();
        let streams = self.streams.get().ok_or(OpenStreamError::Gone { node_id })?;
        streams.open(node_id, purpose).await
    }

    /// The peer has sent its load.
    pub(crate) fn load_received(&self, load: Bytes) {
        self.received_status.lock().load = Some((load, Instant::now()));
    }

    /// The peer has sent its facts.
    pub(crate) fn facts_received(&self, facts: Bytes) {
        self.received_status.lock().facts = Some(facts);
    }

    /// The status of the peer; `None` while its channel is not open.
    pub(crate) fn status(&self) -> Option<PeerStatus> {
        if self.streams.get()?.ended.is_cancelled() {
            return None;
        }
        let (round_trips, received) = (self.round_trips.lock(), self.received_status.lock());
        Some(PeerStatus {
            node_id: self.node_id(),
            incarnation: self.incarnation,
            load: received.load.clone(),
            facts: received.facts.clone(),
            rtt: round_trips.median(),
            last_rtt: round_trips.last(),
            heartbeats: round_trips.count(),
        })
    }

    /// Ends the channel; the first reason counts.
    pub(crate) fn close(&self, reason: DownReason) {
        self.close_reason.lock().get_or_insert(reason);
        self.closing.cancel();
    }

    /// The reason for which this side ended the channel.
    pub(crate) fn close_reason(&self) -> DownReason {
        self.close_reason.lock().unwrap_or(DownReason::Disconnected)
    }

    pub(crate) fn info(&self) -> PeerInfo {
        PeerInfo {
            node_id: self.node_id(),
            name: self.certificate.name().to_owned(),
            peer_id: self.peer_id(),
            address: self.address.clone(),
            transport: address::kind(&self.address).unwrap_or(TransportKind::Tcp),
            software: self.software.clone(),
            protocol_version: self.protocol_version,
            incarnation: self.incarnation,
            connected_since: self.since,
            rtt: self.round_trips.lock().median(),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            skew_ms: self.skew_ms,
        }
    }
}
