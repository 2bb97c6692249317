//! Wires a transport together and starts it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::swarm::SwarmEvent;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{PeerId, Swarm, mdns};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::channel::ChannelServer;
use super::clock::TransportClock;
use super::copy_detector::CopyDetector;
use super::counters::Cells;
use super::dial_signal::DialSignal;
use super::driver::{Behaviour, Driver};
use super::event_receiver::EventReceiver;
use super::gossip::Gossip;
use super::greeting::Greeter;
use super::handle::Handle;
use super::join_service::JoinService;
use super::local_node::{Limits, LocalNode};
use super::options::Options;
use super::peer_stream::IncomingStreams;
use super::peer_table::PeerTable;
use crate::CertificateError;
use crate::network::address::{Bootstrap, BootstrapError, TransportKind};
use crate::network::behaviour::{Channels, Gate, GateClosed};
use crate::network::swarm::{self, ListenError, ListenFailure, SetupError};
use crate::network::task_time::TaskTimer;
use crate::network::unencrypted::UnencryptedConnections;

/// Limit of opening the listeners.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// More connections than the members need.
const MAX_INCOMING: u32 = 1_024;
const MAX_PER_PEER: u32 = 4;

/// The reason why a transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bootstrap address is invalid.
    #[error("`{text}` is not a bootstrap address: {reason}")]
    Bootstrap {
        /// The address.
        text: String,
        /// The cause.
        reason: BootstrapError,
    },
    /// The address cannot be listened on.
    #[error(
        "the cluster port cannot listen on {address} by {kind}: {reason}; choose another port or stop what uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// `TCP`, `QUIC (UDP)` or `TCP and QUIC`.
        kind: &'static str,
        /// The cause.
        reason: ListenFailure,
    },
    /// The membership is another node's.
    #[error(
        "the member list is that of peer {membership}, the identity that of {identity}; restore both from the same backup or join again"
    )]
    OtherNode {
        /// The peer of the membership's own certificate.
        membership: Box<PeerId>,
        /// The peer of the identity.
        identity: Box<PeerId>,
    },
    /// This node was removed from the cluster.
    #[error("the certificate of this node was revoked; join the cluster again")]
    Revoked,
    /// libp2p could not be set up.
    #[error("the cluster transport cannot be set up: {0}")]
    Setup(#[from] SetupError),
    /// The membership is inconsistent.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        Self::Listen { address: error.address, kind: error.kind, reason: error.failure }
    }
}

/// A future that this crate compiles, and not its user: it contains libp2p.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Starts a transport.
pub struct Transport;

impl Transport {
    /// Listens, and connects to members until `cancel` or until the [`EventReceiver`] are dropped. Returns once it listens.
    ///
    /// # Errors
    /// `StartError`; nothing is left running then. Cancelling the call has the same effect.
    pub fn start(
        options: Options,
        cancel: CancellationToken,
    ) -> Boxed<Result<(Handle, EventReceiver, IncomingStreams), StartError>> {
        Box::pin(Self::open(options, cancel))
    }

    async fn open(
        options: Options,
        cancel: CancellationToken,
    ) -> Result<(Handle, EventReceiver, IncomingStreams), StartError> {
        check_membership(&options)?;
        let bootstrap = parse_bootstrap(&options.bootstrap)?;
        let (events, event_receiver) = mpsc::channel(options.event_capacity.max(1));
        let (incoming_streams, stream_receiver) = mpsc::channel(options.incoming_stream_capacity.max(1));
        let (cancel, serves_joins) = (cancel.child_token(), Arc::new(AtomicBool::new(false)));
        let unencrypted: Arc<UnencryptedConnections> = Arc::default();
        let handle = parts(&options, unencrypted.clone(), serves_joins.clone());
        let gate = gate(handle.admission.clone(), serves_joins.clone());
        let own = options.identity.peer_id();
        let mut swarm = swarm::swarm(&options.identity, handle.task_timer.clone(), unencrypted, || {
            let mdns = match options.mdns {
                true => Some(mdns::tokio::Behaviour::new(mdns::Config::default(), own)?),
                false => None,
            };
            Ok(Behaviour {
                channels: Channels::member(serves_joins, gate),
                mdns: Toggle::from(mdns),
                limits: connection_limits::Behaviour::new(
                    ConnectionLimits::default()
                        .with_max_established_incoming(Some(MAX_INCOMING))
                        .with_max_established_per_peer(Some(MAX_PER_PEER)),
                ),
            })
        })?;
        swarm::listen(&mut swarm, options.listen)?;
        await_addresses(&mut swarm, &handle.local, options.listen).await?;
        let greeter = Greeter {
            local: handle.local.clone(),
            admission: handle.admission.clone(),
            gossip: handle.gossip.clone(),
            peers: handle.peers.clone(),
            copies: handle.copies.clone(),
            counters: handle.counters.clone(),
            cancel: cancel.clone(),
        };
        let dial_signal = handle.dial_signal.clone();
        let channels = ChannelServer { greeter, dial_signal, events, incoming_streams };
        let driver =
            Driver::new(channels, handle.joins.clone(), handle.task_timer.clone(), swarm, bootstrap);
        let driver = tokio::spawn(handle.task_timer.clone().time(driver.run()));
        let events = EventReceiver::new(event_receiver, driver, cancel);
        Ok((handle, events, IncomingStreams::new(stream_receiver)))
    }
}

/// The parts of a transport that do not run by themselves.
fn parts(
    options: &Options,
    unencrypted: Arc<UnencryptedConnections>,
    serves_joins: Arc<AtomicBool>,
) -> Handle {
    let membership = options.membership.clone();
    let limits = Limits {
        max_frame_bytes: options.max_frame_bytes,
        outbox_bytes: options.outbox_bytes,
        handshake_timeout: options.handshake_timeout,
        versions: options.versions.clone(),
    };
    let clock = TransportClock::new(options.wall_clock.clone());
    let local = Arc::new(LocalNode::new(
        options.identity.peer_id(),
        limits,
        clock.clone(),
        options.incarnation,
        options.software.clone(),
        membership.clone(),
    ));
    let dial_signal = DialSignal::default();
    let (peers, counters): (Arc<PeerTable>, Arc<Cells>) = Default::default();
    let admission =
        Arc::new(Admission::new(membership.clone(), clock.clone(), dial_signal.clone(), unencrypted));
    let gossip = Arc::new(Gossip::new(
        membership.clone(),
        peers.clone(),
        admission.clone(),
        counters.clone(),
        dial_signal.clone(),
    ));
    let copies = Arc::new(CopyDetector::new(peers.clone(), clock, options.handshake_timeout));
    let joins = Arc::new(JoinService::new(
        local.clone(),
        membership,
        admission.clone(),
        counters.clone(),
        dial_signal.clone(),
        serves_joins,
    ));
    let task_timer: Arc<TaskTimer> = Arc::default();
    Handle { local, peers, gossip, admission, copies, joins, counters, dial_signal, task_timer }
}

fn parse_bootstrap(texts: &[String]) -> Result<Vec<Bootstrap>, StartError> {
    let parse =
        |text: &String| text.parse().map_err(|reason| StartError::Bootstrap { text: text.clone(), reason });
    texts.iter().map(parse).collect()
}

fn check_membership(options: &Options) -> Result<(), StartError> {
    let identity = options.identity.peer_id();
    let membership = options.membership.lock();
    membership.own().verify(membership.cluster())?;
    let found = membership.own().peer_id();
    if found != identity {
        return Err(StartError::OtherNode { membership: Box::new(found), identity: Box::new(identity) });
    }
    if membership.is_own_revoked() {
        return Err(StartError::Revoked);
    }
    Ok(())
}

/// Refuses penalised peers before anything is read from them. While joining nodes are expected, every peer reaches the
/// protocol: a removed one may have a token.
fn gate(admission: Arc<Admission>, expects_joins: Arc<AtomicBool>) -> Gate {
    Arc::new(move |connection, peer, remote| {
        if !expects_joins.load(Ordering::Relaxed) && admission.is_penalised(&peer) {
            Err(GateClosed::BackingOff)
        } else if admission.may_greet(connection, &peer, remote) {
            Ok(())
        } else {
            Err(GateClosed::Crowded)
        }
    })
}

/// Waits until both listeners have reported an address.
async fn await_addresses(
    swarm: &mut Swarm<Behaviour>,
    local: &LocalNode,
    listen: SocketAddr,
) -> Result<(), StartError> {
    let reported = async {
        while !(local.listens_by(TransportKind::Tcp) && local.listens_by(TransportKind::Quic)) {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                local.listens_on(address);
            }
        }
    };
    let no_address =
        ListenError { address: listen, kind: "TCP and QUIC", failure: ListenFailure::NoAddress };
    Ok(tokio::time::timeout(LISTEN_TIMEOUT, reported).await.map_err(|_| no_address)?)
}
