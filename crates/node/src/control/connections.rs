//! Connections of the control port: limits on their number, and a time limit for unauthenticated ones.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Services;
use crate::gateway::request_head::{RequestHeads, Scanned};
use crate::shares::{Share, Shares, network_of};
use crate::tls::{self, Service, Tls};

/// Maximum number of connections. They use file descriptors that other listeners leave free.
pub const MAX_CONNECTIONS: usize = 128;
/// Maximum number of unauthenticated connections.
const MAX_STRANGERS: usize = 32;
const STRANGERS_PER_ADDRESS: usize = 16;
/// Maximum time of a connection without the token.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for receiving a request's head, and for an idle HTTP/1 connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Keepalive of HTTP/2 connections: interval of pings, and maximum time for their answers.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of unsent bytes on each HTTP/2 stream.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connection of a request.
pub(super) struct Visitor {
    known: CancellationToken,
    /// Address of the client.
    pub(super) address: IpAddr,
    /// Local address, if the connection is not TLS.
    pub(super) plain_at: Option<SocketAddr>,
}

impl Visitor {
    fn new(address: IpAddr, plain_at: Option<SocketAddr>) -> Self {
        Self { known: CancellationToken::new(), address, plain_at }
    }

    /// True if the connection has shown the token.
    pub(super) fn is_known(&self) {
        self.known.cancel();
    }
}

/// An unauthenticated connection.
struct Stranger {
    /// Notified when the connection has to be closed in favour of another one.
    leaves: Arc<Notify>,
    _share: Share,
}

/// Unauthenticated connections, oldest first, until they show the token or are closed.
#[derive(Default)]
struct Strangers(Vec<(IpAddr, Weak<Notify>)>);

impl Strangers {
    /// Adds a connection from `address`, which is always accepted. If the maximum is exceeded, a connection of the
    /// address with most unauthenticated connections is closed, so one address cannot keep others out.
    fn enter(&mut self, address: IpAddr, share: Share) -> Stranger {
        self.0.retain(|(_, leaves)| leaves.strong_count() > 0);
        let address = network_of(address);
        let leaves = Arc::<Notify>::default();
        self.0.push((address, Arc::downgrade(&leaves)));
        if self.0.len() > MAX_STRANGERS {
            let count = |address| self.0.iter().filter(|(other, _)| *other == address).count();
            // The first address, if several have the same number.
            let most = self.0.iter().map(|(address, _)| count(*address)).max();
            let oldest = self.0.iter().position(|(address, _)| Some(count(*address)) == most);
            let leaving = oldest.map(|at| self.0.remove(at).1);
            if let Some(leaving) = leaving.and_then(|leaves| leaves.upgrade()) {
                leaving.notify_one();
            }
        }
        Stranger { leaves, _share: share }
    }
}

/// Serves connections until `cancel` fires; connections that are open then are cut off after `grace`.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    services: Arc<Services>,
    cancel: CancellationToken,
    grace: Duration,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut strangers = Strangers::default();
    let shares = Shares::new(STRANGERS_PER_ADDRESS);
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            let (stream, peer) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, peer, slot))
        };
        tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = next => match accepted {
                Ok((stream, peer, slot)) => {
                    // Unauthenticated connections of the address are closed within seconds.
                    let Some(share) = shares.take(peer.ip()) else { continue };
                    let stranger = strangers.enter(peer.ip(), share);
                    let (tls, services, cancel) = (tls.clone(), services.clone(), cancel.clone());
                    connections.spawn(async move {
                        let _slot = slot;
                        open(stream, peer, tls, services, stranger, cancel).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

async fn open(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<Tls>>,
    services: Arc<Services>,
    stranger: Stranger,
    cancel: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        let visitor = Visitor::new(peer.ip(), stream.local_addr().ok());
        return talk(stream, visitor, services, stranger, cancel).await;
    };
    let shaken = tokio::select! {
        shaken = cancel.run_until_cancelled(tls.accept(Service::Control, peer, stream)) => shaken,
        () = stranger.leaves.notified() => None,
    };
    match shaken {
        Some(Ok(stream)) => {
            let visitor = Visitor::new(peer.ip(), None);
            Box::pin(talk(stream, visitor, services, stranger, cancel)).await;
        }
        Some(Err(error)) => tls::log_failure(Service::Control, peer, &error),
        None => {}
    }
}

async fn gives_way(stranger: &Option<Stranger>) {
    match stranger {
        Some(stranger) => stranger.leaves.notified().await,
        None => std::future::pending().await,
    }
}

async fn talk<S>(
    stream: S,
    visitor: Visitor,
    services: Arc<Services>,
    stranger: Stranger,
    cancel: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).half_close(true);
    builder
        .http2()
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let heads = Arc::<RequestHeads>::default();
    let connection = builder.serve_connection(
        TokioIo::new(Scanned::new(stream, heads.clone())),
        service_fn(|request: http::Request<Incoming>| {
            let checked = heads.check(&request);
            services.call(checked.map(|()| request), &visitor)
        }),
    );
    tokio::pin!(connection);
    let too_long = sleep(STRANGER_TIMEOUT);
    tokio::pin!(too_long);
    let (mut stranger, mut stopping) = (Some(stranger), false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the control port ended");
                }
                return;
            }
            () = visitor.known.cancelled(), if stranger.is_some() => stranger = None,
            () = &mut too_long, if stranger.is_some() => return,
            () = gives_way(&stranger), if stranger.is_some() => return,
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
