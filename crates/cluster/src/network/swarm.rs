//! Builds a libp2p swarm over TCP and QUIC, and opens its listeners.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Transport as _;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::swarm::{self, Executor, NetworkBehaviour};
use libp2p::{Multiaddr, Swarm, TransportError, noise, quic, tcp, yamux};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::task::{JoinError, JoinSet};

use super::address;
use super::side_streams::MAX_SIDE_STREAMS;
use super::task_time::TaskTimer;
use super::unencrypted::{LimitedTransport, UnencryptedConnections};
use crate::Identity;

/// Limit of a dial, until the connection is encrypted.
const DIAL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Attempts to find a port that is free for both TCP and UDP.
const MAX_PORT_ATTEMPTS: usize = 16;
/// Streams of one connection, in both directions together. Yamux ends a connection that has more, so this leaves room for
/// as many again that the peer has reset and that were not dropped here yet, or that are being refused.
const MAX_STREAMS: usize = 4 * MAX_SIDE_STREAMS;
const QUIC_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes that wait in the kernel of one TCP connection, beside those in flight.
const MAX_UNSENT_BYTES: u32 = 64 << 10;

/// libp2p could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The node's key cannot sign for Noise.
    #[error(transparent)]
    Noise(#[from] noise::Error),
    /// Multicast DNS could not be started.
    #[error(transparent)]
    Mdns(#[from] io::Error),
}

/// The reason why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenFailure {
    /// The operating system refused it.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The transport cannot listen on addresses of this form.
    #[error("{0} cannot be listened on")]
    Unsupported(Multiaddr),
    /// The listeners reported no address within 5 s.
    #[error("no address came up")]
    NoAddress,
}

/// A listener that could not be opened.
#[derive(Debug)]
pub(crate) struct ListenError {
    pub(crate) address: SocketAddr,
    /// `TCP` or `QUIC (UDP)`.
    pub(crate) kind: &'static str,
    pub(crate) failure: ListenFailure,
}

/// A connection's task, as libp2p hands it to its executor.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Owns the tasks of a swarm's connections; dropping it aborts them.
struct ConnectionTasks {
    tasks: Mutex<JoinSet<()>>,
    task_timer: Arc<TaskTimer>,
}

impl ConnectionTasks {
    fn new(task_timer: Arc<TaskTimer>) -> Self {
        Self { tasks: Mutex::default(), task_timer }
    }
}

impl Executor for ConnectionTasks {
    fn exec(&self, task: Task) {
        let mut tasks = self.tasks.lock();
        while let Some(ended) = tasks.try_join_next() {
            report_panic(ended);
        }
        tasks.spawn(self.task_timer.clone().time(task));
    }
}

impl Drop for ConnectionTasks {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut();
        while let Some(ended) = tasks.try_join_next() {
            report_panic(ended);
        }
    }
}

fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a cluster connection failed");
    }
}

/// A swarm over TCP (Noise, Yamux) and QUIC. `task_timer` measures the tasks of its connections; they end with the swarm.
///
/// # Errors
/// `SetupError` if the identity is unusable or `behaviour` fails.
pub(crate) fn swarm<B: NetworkBehaviour>(
    identity: &Identity,
    task_timer: Arc<TaskTimer>,
    unencrypted: Arc<UnencryptedConnections>,
    behaviour: impl FnOnce() -> io::Result<B>,
) -> Result<Swarm<B>, SetupError> {
    let keypair = identity.libp2p_keypair();
    let mut yamux = yamux::Config::default();
    yamux.set_max_num_streams(MAX_STREAMS);
    let noise = noise::Config::new(&keypair)?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .map(|stream, _| {
            limit_unsent(&stream);
            stream
        })
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
    let config = swarm::Config::with_executor(ConnectionTasks::new(task_timer));
    Ok(Swarm::new(
        LimitedTransport::new(transport, unencrypted).boxed(),
        behaviour()?,
        identity.peer_id(),
        config,
    ))
}

/// Keeps what waits in the kernel short: with its default, megabytes of objects would stand before a heartbeat or a call
/// on a slow link, for many seconds.
fn limit_unsent(stream: &tcp::tokio::TcpStream) {
    if let Err(error) = SockRef::from(&stream.0).set_tcp_notsent_lowat(MAX_UNSENT_BYTES) {
        tracing::debug!(%error, "the kernel does not limit what waits on a connection");
    }
}

/// Listens by TCP and QUIC on the same port; port 0 takes one that is free for both.
///
/// # Errors
/// `ListenError` if the port is taken, or if 16 free ports of UDP were all taken for TCP.
pub(crate) fn listen<B: NetworkBehaviour>(
    swarm: &mut Swarm<B>,
    listen: SocketAddr,
) -> Result<(), ListenError> {
    if listen.port() != 0 {
        return listen_both(swarm, listen);
    }
    let mut attempt = 1;
    loop {
        let port = std::net::UdpSocket::bind(listen)
            .and_then(|socket| socket.local_addr())
            .map_err(|error| ListenError { address: listen, kind: QUIC, failure: error.into() })?
            .port();
        match listen_both(swarm, SocketAddr::new(listen.ip(), port)) {
            Err(_) if attempt < MAX_PORT_ATTEMPTS => attempt += 1,
            listening => return listening,
        }
    }
}

const QUIC: &str = "QUIC (UDP)";

fn listen_both<B: NetworkBehaviour>(swarm: &mut Swarm<B>, address: SocketAddr) -> Result<(), ListenError> {
    let error = |kind, error| ListenError { address, kind, failure: listen_failure(error) };
    let tcp = swarm.listen_on(address::tcp(address)).map_err(|reason| error("TCP", reason))?;
    if let Err(reason) = swarm.listen_on(address::quic(address)) {
        swarm.remove_listener(tcp);
        return Err(error(QUIC, reason));
    }
    Ok(())
}

fn listen_failure(error: TransportError<io::Error>) -> ListenFailure {
    match error {
        TransportError::Other(error) => ListenFailure::System(error),
        TransportError::MultiaddrNotSupported(address) => ListenFailure::Unsupported(address),
    }
}
