//! Setting a transport up.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Transport as _;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{self, NetworkBehaviour, SwarmEvent};
use libp2p::{PeerId, Swarm, TransportError, mdns, noise, quic, tcp, yamux};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::address::{self, Bootstrap};
use super::behaviour::{Channels, Gate, GateClosed};
use super::busy::Busy;
use super::driver::{Behaviour, Command, Driver};
use super::entrance::{Entrance, Guarded};
use super::shared::Shared;
use super::{Event, Limits, Options, ServesJoins};
use crate::{CertificateError, Identity};

/// Until a connection that this node has dialled is encrypted.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Ports that are free for TCP and taken for UDP are rare.
const PORT_ATTEMPTS: usize = 16;
/// More connections than the members need.
const MAX_INCOMING: u32 = 1_024;
const MAX_PER_PEER: u32 = 4;
/// A connection has one stream; a few more leave room for those that are being refused.
const MAX_STREAMS: usize = 8;
const QUIC_WINDOW_BYTES: u32 = 1 << 20;

/// Why a transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bootstrap address is none.
    #[error("`{text}` is no bootstrap address: {reason}")]
    Bootstrap {
        /// The address.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The address cannot be listened on.
    #[error(
        "the cluster port cannot listen on {address} by {kind}: {reason}; choose another port or stop what uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// `TCP` or `QUIC (UDP)`.
        kind: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The membership is another node's.
    #[error(
        "the member list is that of peer {membership}, the identity that of {identity}; restore both from the same backup or join again"
    )]
    OtherNode {
        /// Whose certificate the membership holds.
        membership: Box<PeerId>,
        /// Who this node is.
        identity: Box<PeerId>,
    },
    /// This node was put out of the cluster.
    #[error("the certificate of this node was taken back; join the cluster again")]
    Revoked,
    /// libp2p could not be set up.
    #[error("the cluster transport cannot be set up: {reason}")]
    Setup {
        /// What went wrong.
        reason: String,
    },
    /// The membership is wrong in itself.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

pub(super) async fn start(
    options: Options,
    cancel: CancellationToken,
) -> Result<(Arc<Shared>, mpsc::Receiver<Event>), StartError> {
    let own = options.identity.peer_id();
    check_membership(&options)?;
    let bootstrap = (options.bootstrap.iter())
        .map(|text| text.parse().map_err(|reason| StartError::Bootstrap { text: text.clone(), reason }))
        .collect::<Result<Vec<Bootstrap>, _>>()?;
    let (event_sender, events) = mpsc::channel(options.event_capacity.max(1));
    // Bounded by what may send: one end per connection, one answer per bootstrap address, one look per change of the
    // membership, which goes through the bounded events first, or per call of the node.
    let (commands, command_receiver) = mpsc::unbounded_channel::<Command>();
    let serves_joins = ServesJoins::default();
    let limits = Limits {
        max_frame_bytes: options.max_frame_bytes,
        outbox_bytes: options.outbox_bytes,
        incarnation: options.incarnation,
        software: options.software.clone(),
        handshake_timeout: options.handshake_timeout,
        versions: options.versions.clone(),
        wall_clock: options.wall_clock.clone(),
    };
    let shared = Arc::new(Shared::new(
        own,
        limits,
        options.membership.clone(),
        serves_joins.clone(),
        commands,
        cancel.child_token(),
    ));
    let gate = gate(&shared);
    let entrance = shared.entrance.clone();
    let mut swarm = swarm(&options.identity, shared.busy.clone(), entrance, || {
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
    })
    .map_err(|reason| StartError::Setup { reason })?;
    listen(&mut swarm, options.listen)?;
    await_addresses(&mut swarm, &shared, options.listen).await?;
    let driver = Driver::new(shared.clone(), event_sender, swarm, command_receiver, bootstrap);
    tokio::spawn(shared.busy.clone().time(driver.run()));
    Ok((shared, events))
}

/// What libp2p runs a connection by.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// libp2p over TCP and QUIC, with as little as possible of what it can do. `busy` counts what its connections need.
pub(crate) fn swarm<B: NetworkBehaviour>(
    identity: &Identity,
    busy: Arc<Busy>,
    entrance: Arc<Entrance>,
    behaviour: impl FnOnce() -> Result<B, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<Swarm<B>, String> {
    let keypair = identity.libp2p_keypair();
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(MAX_STREAMS);
    let noise = noise::Config::new(&keypair).map_err(|error| error.to_string())?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(yamux)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let mut quic = quic::Config::new(&keypair);
    quic.max_stream_data = QUIC_WINDOW_BYTES;
    quic.max_connection_data = 2 * QUIC_WINDOW_BYTES;
    quic.max_concurrent_stream_limit = MAX_STREAMS as u32;
    let quic = quic::tokio::Transport::new(quic).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let either = tcp.or_transport(quic).map(|either, _| either.into_inner());
    let transport = TransportTimeout::with_outgoing_timeout(either, DIAL_TIMEOUT).boxed();
    let config = swarm::Config::with_executor(move |task: Task| {
        tokio::spawn(busy.clone().time(task));
    });
    let behaviour = behaviour().map_err(|error| error.to_string())?;
    Ok(Swarm::new(Guarded::new(transport, entrance).boxed(), behaviour, identity.peer_id(), config))
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

/// Keeps peers out that were refused a short while ago, before anything is read from them. While newcomers are
/// expected everybody gets in as far as the protocol: one that was put out may have a token.
fn gate(shared: &Arc<Shared>) -> Gate {
    let shared = Arc::downgrade(shared);
    Arc::new(move |connection, peer, remote| {
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let waits = {
            let now_ms = shared.now_ms();
            let expects_newcomers = shared.serves_joins.load(Ordering::Relaxed);
            !expects_newcomers && shared.penalties.lock().waits_until(&peer, now_ms).is_some()
        };
        match waits {
            true => Err(GateClosed::BackingOff),
            false if shared.may_greet(connection, &peer, remote) => Ok(()),
            false => Err(GateClosed::Crowded),
        }
    })
}

/// Listens by TCP and QUIC on the same port.
fn listen<B: NetworkBehaviour>(swarm: &mut Swarm<B>, listen: SocketAddr) -> Result<(), StartError> {
    if listen.port() != 0 {
        return listen_both(swarm, listen);
    }
    let mut attempt = 1;
    loop {
        let port = std::net::UdpSocket::bind(listen)
            .and_then(|socket| socket.local_addr())
            .map_err(|error| listen_error(listen, "QUIC (UDP)", error.to_string()))?
            .port();
        match listen_both(swarm, SocketAddr::new(listen.ip(), port)) {
            Err(StartError::Listen { .. }) if attempt < PORT_ATTEMPTS => attempt += 1,
            listening => return listening,
        }
    }
}

fn listen_both<B: NetworkBehaviour>(swarm: &mut Swarm<B>, listen: SocketAddr) -> Result<(), StartError> {
    let tcp =
        swarm.listen_on(address::tcp(listen)).map_err(|error| listen_error(listen, "TCP", plain(error)))?;
    if let Err(error) = swarm.listen_on(address::quic(listen)) {
        swarm.remove_listener(tcp);
        return Err(listen_error(listen, "QUIC (UDP)", plain(error)));
    }
    Ok(())
}

/// Waits until both listeners have told an address.
async fn await_addresses(
    swarm: &mut Swarm<Behaviour>,
    shared: &Shared,
    listen: SocketAddr,
) -> Result<(), StartError> {
    let told = async {
        let has = |kind| shared.listening.lock().iter().any(|known| address::kind(known) == Some(kind));
        while !(has(super::TransportKind::Tcp) && has(super::TransportKind::Quic)) {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                shared.listening.lock().push(address);
            }
        }
    };
    tokio::time::timeout(LISTEN_TIMEOUT, told)
        .await
        .map_err(|_| listen_error(listen, "TCP and QUIC", "no address came up".into()))
}

fn plain(error: TransportError<io::Error>) -> String {
    match error {
        TransportError::Other(error) => error.to_string(),
        TransportError::MultiaddrNotSupported(address) => format!("{address} cannot be listened on"),
    }
}

fn listen_error(address: SocketAddr, kind: &'static str, reason: String) -> StartError {
    StartError::Listen { address, kind, reason }
}
