//! The control port's connections: few at a time, and few seconds for whoever does not show the token.

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

/// Connections at a time. They take from what other listeners leave of the process's files.
pub const MAX_CONNECTIONS: usize = 128;
/// Those of them that have not shown the token.
const MAX_STRANGERS: usize = 32;
const STRANGERS_PER_ADDRESS: usize = 16;
/// How long a connection may last without the token.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time for a request's head to come in, and for an idle connection of HTTP/1 to be kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections of HTTP/2 are asked so often whether they are still there, and have so long to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// What waits for a client of HTTP/2 on each of its streams.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How long to leave a listener alone that can't accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whose connection a request came by.
pub(super) struct Visitor {
    known: CancellationToken,
    /// Where it comes from.
    pub(super) address: IpAddr,
    /// Where it was accepted, if it does not speak TLS.
    pub(super) plain_at: Option<SocketAddr>,
}

impl Visitor {
    fn new(address: IpAddr, plain_at: Option<SocketAddr>) -> Self {
        Self { known: CancellationToken::new(), address, plain_at }
    }

    /// The connection has shown the token.
    pub(super) fn is_known(&self) {
        self.known.cancel();
    }
}

/// A connection that has not shown the token.
struct Stranger {
    /// Notified when it is to leave for another one.
    leaves: Arc<Notify>,
    _share: Share,
}

/// Those that have not shown the token, the oldest first, until they have or are gone.
#[derive(Default)]
struct Strangers(Vec<(IpAddr, Weak<Notify>)>);

impl Strangers {
    /// One more, from there. It is let in at once; where there are too many, one of the address leaves that has most of
    /// them: whoever fills the places is not the one who gets them.
    fn enter(&mut self, address: IpAddr, share: Share) -> Stranger {
        self.0.retain(|(_, leaves)| leaves.strong_count() > 0);
        let address = network_of(address);
        let leaves = Arc::<Notify>::default();
        self.0.push((address, Arc::downgrade(&leaves)));
        if self.0.len() > MAX_STRANGERS {
            let count = |address| self.0.iter().filter(|(other, _)| *other == address).count();
            // Of several addresses with as many the first.
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

/// Serves connections until `cancel` fires; those that are still open then are cut after `grace`.
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
                    // Its others are closed within seconds, if it is somebody who has no token.
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
