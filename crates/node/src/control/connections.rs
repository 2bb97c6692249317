//! The control port's connections: few at a time, and few seconds for whoever does not show the token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::shares::{Share, Shares};
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
/// How long to leave a listener alone that can't accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// With each request: whose connection it came by.
#[derive(Clone, Default)]
pub(super) struct Visitor(CancellationToken);

impl Visitor {
    /// The connection has shown the token.
    pub(super) fn is_known(&self) {
        self.0.cancel();
    }
}

/// A place for a connection that has not shown the token.
type Stranger = (OwnedSemaphorePermit, Share);

/// Serves connections until `cancel` fires; those that are still open then are cut after `grace`.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    routes: Router,
    cancel: CancellationToken,
    grace: Duration,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
    let shares = Shares::new(STRANGERS_PER_ADDRESS);
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            let stranger = strangers.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            let (stream, peer) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, peer, slot, stranger))
        };
        tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = next => match accepted {
                Ok((stream, peer, slot, stranger)) => {
                    // Its others are closed within seconds, if it is somebody who has no token.
                    let Some(share) = shares.take(peer.ip()) else { continue };
                    let (tls, routes, cancel) = (tls.clone(), routes.clone(), cancel.clone());
                    connections.spawn(async move {
                        let _slot = slot;
                        open(stream, peer, tls, routes, (stranger, share), cancel).await;
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
    routes: Router,
    stranger: Stranger,
    cancel: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return talk(stream, routes, stranger, cancel).await };
    let shaken = cancel.run_until_cancelled(tls.accept(Service::Control, peer, stream)).await;
    match shaken {
        Some(Ok(stream)) => Box::pin(talk(stream, routes, stranger, cancel)).await,
        Some(Err(error)) => tls::log_failure(Service::Control, peer, &error),
        None => {}
    }
}

async fn talk<S>(stream: S, routes: Router, stranger: Stranger, cancel: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let visitor = Visitor::default();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let connection = builder.serve_connection(
        TokioIo::new(stream),
        service_fn(|mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(visitor.clone());
            routes.clone().call(request)
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
            () = visitor.0.cancelled(), if stranger.is_some() => stranger = None,
            () = &mut too_long, if stranger.is_some() => return,
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
