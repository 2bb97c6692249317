//! Connections of the control port: limits on their number, and a time limit for unauthenticated ones.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
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
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Services;
#[cfg(feature = "dashboard")]
use super::web::{SessionSlot, SessionSlots};
#[cfg(feature = "dashboard")]
use crate::access::Role;
use crate::address_limits::network_of;
use crate::gateway::request_head::{RequestHeads, Scanned};
use crate::tls::{self, Service, Tls};

/// Maximum number of connections. They use file descriptors that other listeners leave free.
pub const MAX_CONNECTIONS: usize = 128;
/// Maximum number of unauthenticated connections. The others are reserved for clients with the token.
const MAX_UNAUTHENTICATED: usize = 32;
/// Maximum time for a connection to present the token.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
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
pub(super) struct ClientConnection {
    /// Fires once a request has presented the token.
    authenticated: CancellationToken,
    /// Address of the client.
    pub(super) address: IpAddr,
    /// Local address, if the connection is not TLS.
    pub(super) plain_at: Option<SocketAddr>,
    /// Its place among those of sessions, from its first request with one.
    #[cfg(feature = "dashboard")]
    session: parking_lot::Mutex<Option<SessionSlot>>,
}

impl ClientConnection {
    fn new(address: IpAddr, plain_at: Option<SocketAddr>) -> Self {
        Self {
            authenticated: CancellationToken::new(),
            address,
            plain_at,
            #[cfg(feature = "dashboard")]
            session: parking_lot::Mutex::default(),
        }
    }

    /// True if the connection has a place among those of sessions, or gets one.
    #[cfg(feature = "dashboard")]
    pub(super) fn has_session_slot(&self, slots: &Arc<SessionSlots>, user: &str, role: Role) -> bool {
        let mut session = self.session.lock();
        if session.is_none() {
            *session = slots.take(user, role);
        }
        session.is_some()
    }

    /// Marks the connection as authenticated: the limits on unauthenticated connections no longer apply to it.
    pub(super) fn mark_authenticated(&self) {
        self.authenticated.cancel();
    }

    fn is_authenticated(&self) -> bool {
        self.authenticated.is_cancelled()
    }
}

/// An unauthenticated connection.
struct Unauthenticated {
    /// Notified when the connection has to be closed in favour of another one.
    evicted: Arc<Notify>,
}

/// Unauthenticated connections, oldest first, until they present the token or are closed.
#[derive(Default)]
struct UnauthenticatedConnections(Vec<(IpAddr, Weak<Notify>)>);

impl UnauthenticatedConnections {
    /// Adds a connection from `address`, which is always accepted. If the maximum is exceeded, the oldest connection of the
    /// address with most unauthenticated connections is closed, so one address cannot block the others, and silent
    /// connections of one address cannot block a client at the same address: it presents the token before
    /// [`MAX_UNAUTHENTICATED`] further connections arrive.
    fn add(&mut self, address: IpAddr) -> Unauthenticated {
        self.0.retain(|(_, evicted)| evicted.strong_count() > 0);
        let address = network_of(address);
        let evicted = Arc::<Notify>::default();
        self.0.push((address, Arc::downgrade(&evicted)));
        if self.0.len() > MAX_UNAUTHENTICATED {
            let count = |address| self.0.iter().filter(|(other, _)| *other == address).count();
            // If several addresses have the same number, the one with the oldest connection.
            let max = self.0.iter().map(|(address, _)| count(*address)).max();
            let oldest = self.0.iter().position(|(address, _)| Some(count(*address)) == max);
            let closing = oldest.map(|at| self.0.remove(at).1);
            if let Some(closing) = closing.and_then(|evicted| evicted.upgrade()) {
                closing.notify_one();
            }
        }
        Unauthenticated { evicted }
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
    let mut unauthenticated = UnauthenticatedConnections::default();
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
                    let pending = unauthenticated.add(peer.ip());
                    let (tls, services, cancel) = (tls.clone(), services.clone(), cancel.clone());
                    connections.spawn(async move {
                        let _slot = slot;
                        open(stream, peer, tls, services, pending, cancel).await;
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
    pending: Unauthenticated,
    cancel: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        let client = ClientConnection::new(peer.ip(), stream.local_addr().ok());
        return serve_requests(stream, client, services, pending, cancel).await;
    };
    let secured = tokio::select! {
        secured = cancel.run_until_cancelled(tls.accept(Service::Control, peer, stream)) => secured,
        () = pending.evicted.notified() => None,
    };
    match secured {
        Some(Ok(stream)) => {
            let client = ClientConnection::new(peer.ip(), None);
            Box::pin(serve_requests(stream, client, services, pending, cancel)).await;
        }
        Some(Err(error)) => tls::log_failure(Service::Control, peer, &error),
        None => {}
    }
}

/// Completes when an unauthenticated connection is evicted, or its time has expired.
async fn closed_early(pending: &Option<Unauthenticated>, expired: Pin<&mut Sleep>) {
    let Some(pending) = pending else { return std::future::pending().await };
    tokio::select! {
        () = pending.evicted.notified() => {}
        () = expired => {}
    }
}

/// Serves the requests of a connection until it ends, is evicted, or does not authenticate in time.
async fn serve_requests<S>(
    stream: S,
    client: ClientConnection,
    services: Arc<Services>,
    pending: Unauthenticated,
    cancel: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // A client that closes its side has gone: what is sent to it ends, subscriptions above all.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
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
            services.call(checked.map(|()| request), &client)
        }),
    );
    tokio::pin!(connection);
    let expired = sleep(AUTHENTICATION_TIMEOUT);
    tokio::pin!(expired);
    let (mut pending, mut stopping) = (Some(pending), false);
    loop {
        tokio::select! {
            biased;
            // First: an authenticated connection is not closed, also if it is evicted at the same time.
            () = client.authenticated.cancelled(), if pending.is_some() => pending = None,
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the control port ended");
                }
                return;
            }
            () = closed_early(&pending, expired.as_mut()), if pending.is_some() => match client.is_authenticated() {
                true => pending = None,
                false => return,
            },
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_connection_of_the_busiest_address_is_closed() {
        let mut connections = UnauthenticatedConnections::default();
        let mut add = |address: [u8; 4]| connections.add(address.into());
        let is_evicted =
            |connection: &Unauthenticated| connection.evicted.notified().now_or_never().is_some();
        let mut same: Vec<_> = (0..MAX_UNAUTHENTICATED).map(|_| add([127, 0, 0, 1])).collect();
        assert!(!same.iter().any(is_evicted));
        same.push(add([127, 0, 0, 1]));
        let other = add([127, 0, 0, 2]);
        let evicted: Vec<_> = same.iter().map(is_evicted).collect();
        assert!(evicted.iter().take(2).all(|evicted| *evicted), "the two oldest");
        assert!(!evicted.iter().skip(2).any(|evicted| *evicted) && !is_evicted(&other));
        // A connection that has authenticated or ended counts no longer.
        same.drain(..10);
        let more: Vec<_> = (0..8).map(|_| add([127, 0, 0, 1])).collect();
        assert!(!same.iter().chain(&more).any(is_evicted));
    }
}
