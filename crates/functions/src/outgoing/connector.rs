//! Connections of functions to other servers.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::body::Body;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::crypto::ring;
use tokio::net::TcpStream;
use tower_service::Service;
use url::Url;

use super::caller::{CallerPermissions, GuardedAddress};
use super::fair_pool::FairPool;
use super::lookup::{LookupError, lookup};

/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An unused connection is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that speaks HTTP/2 alone is checked by a PING after this time without data, while it has a request.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// It is closed if the PING has no answer within this time.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of unused connections of one caller to one server.
const MAX_IDLE_PER_SERVER: usize = 8;

/// Maximum size of the read buffer of a connection, and so of a piece of an answer; in bytes, HTTP/1.
pub(super) const HTTP1_BUFFER_BYTES: usize = 128 << 10;
/// Bytes of an answer that a server may send before the caller has taken earlier ones; HTTP/2.
pub(super) const HTTP2_STREAM_BYTES: u32 = 512 << 10;
/// The same for all answers of a connection. Larger, so that an answer that is not read does not stop the others.
const HTTP2_CONNECTION_BYTES: u32 = 16 << 20;

/// The connection pool of one caller.
pub(super) type Connections = Client<Connector, Full<Bytes>>;

/// Creates an empty connection pool.
pub(super) fn connections(permissions: Arc<CallerPermissions>, lookups: FairPool, tls: Tls) -> Connections {
    builder().build(Connector { tcp: TcpConnector { permissions, lookups }, tls })
}

/// Creates an empty pool of connections that speak HTTP/2 alone.
pub(super) fn http2_connections<B>(
    permissions: Arc<CallerPermissions>,
    lookups: FairPool,
    tls: Tls,
) -> Client<Connector, B>
where
    B: Body<Data = Bytes> + Send,
{
    builder()
        .http2_only(true)
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
        .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
        .build(Connector { tcp: TcpConnector { permissions, lookups }, tls })
}

fn builder() -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_PER_SERVER)
        .http1_max_buf_size(HTTP1_BUFFER_BYTES)
        .http2_initial_stream_window_size(HTTP2_STREAM_BYTES)
        .http2_initial_connection_window_size(HTTP2_CONNECTION_BYTES);
    builder
}

/// The TLS configuration of all callers. It is created for the first https request, because loading the system's root
/// certificates takes time and memory.
#[derive(Clone, Default)]
pub(super) struct Tls(Arc<OnceLock<Arc<ClientConfig>>>);

impl Tls {
    fn get(&self) -> Arc<ClientConfig> {
        self.0.get_or_init(|| Arc::new(tls())).clone()
    }
}

fn tls() -> ClientConfig {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3")
    };
    let mut config = match builder().with_native_roots() {
        Ok(builder) => builder.with_no_client_auth(),
        Err(error) => {
            tracing::warn!(
                %error,
                "no root certificates were found, so that no https server is trusted; install `ca-certificates` or set \
                 SSL_CERT_FILE"
            );
            builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Opens connections for http and https.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: TcpConnector,
    tls: Tls,
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if uri.scheme() == Some(&http::uri::Scheme::HTTPS) {
            return HttpsConnector::from((self.tcp.clone(), self.tls.get())).call(uri);
        }
        let connected = self.tcp.call(uri);
        Box::pin(async move { Ok(MaybeHttpsStream::Http(connected.await?)) })
    }
}

/// Opens TCP connections, only to addresses that the caller may connect to.
#[derive(Clone)]
struct TcpConnector {
    permissions: Arc<CallerPermissions>,
    lookups: FairPool,
}

/// A name resolves only to addresses that the caller may not connect to.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {guarded} to permissions.http")]
pub(super) struct AddressNotPermitted {
    name: String,
    guarded: GuardedAddress,
}

impl Service<Uri> for TcpConnector {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { permissions, lookups } = self.clone();
        Box::pin(async move {
            let url = Url::parse(&uri.to_string())?;
            let mut http =
                HttpConnector::new_with_resolver(Resolver { permissions, lookups, url: Arc::new(url) });
            http.enforce_http(false);
            http.set_nodelay(true);
            http.set_connect_timeout(Some(CONNECT_TIMEOUT));
            Ok(http.call(uri).await?)
        })
    }
}

/// Looks up the name of one URL and checks its addresses. It is not called for an address in the URL, which was checked with
/// the URL.
#[derive(Clone)]
struct Resolver {
    permissions: Arc<CallerPermissions>,
    lookups: FairPool,
    url: Arc<Url>,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Self { permissions, lookups, url } = self.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found: Result<_, LookupError> = lookup(&lookups, &permissions.owner, name, 0).await;
            let permitted = permissions.addresses(&url, name, found?);
            let permitted =
                permitted.map_err(|guarded| AddressNotPermitted { name: name.to_owned(), guarded })?;
            Ok(permitted.into_iter())
        })
    }
}
