//! Listening sockets, and the acceptance of connections: slots, limits of addresses, TLS handshakes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_platform::is_loopback;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::address_limits::{AddressLimits, AddressPermit};
use crate::config::NodeConfig;
use crate::tls::{self, Service, Tls};

/// Pause after a failed accept, for example when the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listen addresses of a node.
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
    /// True if the control port has pages for browsers.
    pub has_dashboard: bool,
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

    /// URL of the pages for browsers, if the control port has them. Where it listens on all addresses, it is that of the machine's own
    /// address in its network, if it has one.
    pub fn dashboard_url(&self) -> Option<String> {
        let mut at = self.control;
        if at.ip().is_unspecified() {
            at.set_ip(own_address(at.is_ipv6()).unwrap_or(at.ip()));
        }
        self.has_dashboard.then(|| format!("{}/", url(at, self.control_tls)))
    }
}

/// The address that this machine sends from. Nothing is sent: the system only looks at its routes to a documentation address.
fn own_address(is_ipv6: bool) -> Option<IpAddr> {
    let of = |any: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((to, 9)).map(|()| socket));
        socket.and_then(|socket| socket.local_addr()).ok().map(|address| address.ip())
    };
    let v4 = || of(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let v6 = || of(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    // A socket for `::` takes IPv4 too.
    v4().or_else(|| is_ipv6.then(v6).flatten())
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

    /// The bound addresses. A configured port 0 is replaced by the real port.
    pub fn addresses(&self, config: &NodeConfig) -> Addresses {
        let bound =
            |listener: &TcpListener, configured: SocketAddr| listener.local_addr().unwrap_or(configured);
        Addresses {
            http: bound(&self.clients.http, config.http),
            http_tls: !is_loopback(config.http.ip()),
            mqtt: bound(&self.clients.mqtt, config.mqtt),
            mqtts: self
                .clients
                .mqtts
                .as_ref()
                .zip(config.mqtts)
                .map(|(mqtts, configured)| bound(mqtts, configured)),
            control: bound(&self.control, config.control),
            control_tls: !is_loopback(config.control.ip()),
            has_dashboard: cfg!(feature = "dashboard") && config.dashboard.is_enabled,
        }
    }
}

async fn listen(listener: &'static str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|reason| ListenError { listener, address, reason })
}

/// Performs the TLS handshake; `None` if it fails or `cancel` fires first. A failure is logged.
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

/// Maximum number of client connections: the file descriptors of the process, less those of the store and of `control`
/// connections of the control port. A store that cannot open a file accepts no more writes.
pub(crate) fn connection_slots(control: usize) -> usize {
    const STORE_FILES: u64 = 256;
    const MIN_SLOTS: u64 = 16;
    let reserved_files = STORE_FILES + control as u64;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    files.saturating_sub(reserved_files).clamp(MIN_SLOTS, 1 << 20) as usize
}

/// The slot of a connection and its permit among those of its address; dropping it releases both.
pub(crate) struct Slot {
    _slot: OwnedSemaphorePermit,
    _permit: Option<AddressPermit>,
}

/// Passes every connection to `serve` until `cancel` fires. While no slot is free, clients wait in the backlog of the
/// listener. Connections of an address that has reached its limit are closed. Loopback addresses have no limit, since a
/// proxy may connect for many clients.
pub(crate) async fn accept(
    listener: TcpListener,
    slots: Arc<Semaphore>,
    limits: Arc<AddressLimits>,
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
                let permit = (!is_loopback(peer.ip())).then(|| limits.acquire(peer.ip()));
                if !matches!(permit, Some(None)) {
                    serve(stream, peer, Slot { _slot: slot, _permit: permit.flatten() });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Registers the connection with the runtime of the current thread and serves it. The slot is released afterwards.
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
