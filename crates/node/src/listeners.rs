//! Where a node listens, and how it takes connections: slots, shares of addresses, handshakes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_platform::is_loopback;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::config::NodeConfig;
use crate::shares::{Share, Shares};
use crate::tls::{self, Service, Tls};

/// How long to leave a listener alone that can't accept, when the process is out of files, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a node listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The HTTP gateway.
    pub http: SocketAddr,
    /// True if the gateway speaks TLS.
    pub http_tls: bool,
    /// MQTT.
    pub mqtt: SocketAddr,
    /// MQTT over TLS.
    pub mqtts: Option<SocketAddr>,
    /// The control API.
    pub control: SocketAddr,
    /// True if the control API speaks TLS.
    pub control_tls: bool,
}

impl Addresses {
    /// URL of the gateway.
    pub fn http_url(&self) -> String {
        url(self.http, self.http_tls)
    }

    /// URL of the control API.
    pub fn control_url(&self) -> String {
        url(self.control, self.control_tls)
    }
}

fn url(address: SocketAddr, tls: bool) -> String {
    format!("{}://{address}", if tls { "https" } else { "http" })
}

impl fmt::Display for Addresses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} mqtt://{} control {}", self.http_url(), self.mqtt, self.control_url())?;
        self.mqtts.map_or(Ok(()), |mqtts| write!(out, " mqtts://{mqtts}"))
    }
}

/// All listening sockets.
pub(crate) struct Listeners {
    pub clients: ClientListeners,
    pub control: TcpListener,
}

/// The listening sockets of clients.
pub(crate) struct ClientListeners {
    pub http: TcpListener,
    pub mqtt: TcpListener,
    pub mqtts: Option<TcpListener>,
}

/// A listener cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "the {listener} listener cannot use {address}: {reason}; choose another with --{listener} ADDR:PORT"
)]
pub struct ListenError {
    /// The listener's name, as in the configuration.
    pub listener: &'static str,
    /// Its address.
    pub address: SocketAddr,
    /// The system's error.
    pub reason: std::io::Error,
}

impl Listeners {
    /// Binds all listeners.
    pub async fn bind(config: &NodeConfig) -> Result<Self, ListenError> {
        let clients = ClientListeners {
            http: listen("http", config.http).await?,
            mqtt: listen("mqtt", config.mqtt).await?,
            mqtts: match config.mqtts {
                Some(address) => Some(listen("mqtts", address).await?),
                None => None,
            },
        };
        Ok(Self { clients, control: listen("control", config.control).await? })
    }

    /// Where they are.
    pub fn addresses(&self, config: &NodeConfig) -> Addresses {
        let bound = |listener: &TcpListener, wanted: SocketAddr| listener.local_addr().unwrap_or(wanted);
        Addresses {
            http: bound(&self.clients.http, config.http),
            http_tls: !is_loopback(config.http.ip()),
            mqtt: bound(&self.clients.mqtt, config.mqtt),
            mqtts: self
                .clients
                .mqtts
                .as_ref()
                .zip(config.mqtts)
                .map(|(mqtts, wanted)| bound(mqtts, wanted)),
            control: bound(&self.control, config.control),
            control_tls: !is_loopback(config.control.ip()),
        }
    }
}

async fn listen(listener: &'static str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|reason| ListenError { listener, address, reason })
}

/// Shakes hands; nothing if that fails or the node stops meanwhile.
pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &Tls,
    service: Service,
    stream: S,
    peer: SocketAddr,
    cancel: &CancellationToken,
) -> Option<tokio_rustls::server::TlsStream<S>> {
    let accepted = cancel.run_until_cancelled(tls.accept(service, peer, stream)).await?;
    accepted.inspect_err(|error| tls::log_failure(service, peer, error)).ok()
}

/// How many connections there may be: what the process may open, less what the store needs. A store that
/// can't open a file takes no writes any more. `control` has so many of its own.
pub(crate) fn connection_slots(control: usize) -> usize {
    const STORE_FILES: u64 = 256;
    const FEWEST: u64 = 16;
    let kept_files = STORE_FILES + control as u64;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    files.saturating_sub(kept_files).clamp(FEWEST, 1 << 20) as usize
}

/// The place of a connection, until it is dropped.
pub(crate) struct Slot {
    _slot: OwnedSemaphorePermit,
    _share: Option<Share>,
}

/// Hands every connection to `serve` until `cancel` fires. Without a free slot clients wait to be let in; those of an
/// address that has its share already are closed. Those of this machine have none: a proxy may stand for many.
pub(crate) async fn accept(
    listener: TcpListener,
    slots: Arc<Semaphore>,
    shares: Arc<Shares>,
    cancel: CancellationToken,
    serve: impl Fn(std::net::TcpStream, SocketAddr, Slot),
) {
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            let (stream, peer) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream.into_std()?, peer, slot))
        };
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                let share = (!is_loopback(peer.ip())).then(|| shares.take(peer.ip()));
                if !matches!(share, Some(None)) {
                    serve(stream, peer, Slot { _slot: slot, _share: share.flatten() });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Registers the connection with the runtime it is served on.
pub(crate) async fn on_this_runtime<F: Future<Output = ()>>(
    stream: std::net::TcpStream,
    _slot: Slot,
    serve: impl FnOnce(TcpStream) -> F,
) {
    match TcpStream::from_std(stream) {
        Ok(stream) => serve(stream).await,
        Err(error) => tracing::warn!(%error, "a connection could not be served"),
    }
}
