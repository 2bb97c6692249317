//! Requests of functions to other servers.

mod cause;
mod resolver;

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use edgefaas_isolates::{FetchCause, HostError, IncomingResponse, OutgoingRequest, Redirect};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring;
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use self::resolver::GuardedResolver;
pub use self::resolver::resolve;
use crate::manifest::HttpPattern;

/// The largest body of an answer.
pub const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Bytes of answers that may be in memory on their way to functions, over all of them.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Requests under way at once, over all functions; further ones wait, until their invocation's deadline.
const MAX_REQUESTS: usize = 512;
/// The most redirections that are followed (Fetch standard, section 4.4).
const MAX_REDIRECTS: usize = 20;
/// The most headers of a request, and their bytes.
const MAX_HEADERS: usize = 256;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one that nobody uses is kept, and how many for each server.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_PER_SERVER: usize = 8;
/// What is taken of the buffered bytes at a time.
const UNIT_BYTES: usize = 1 << 10;

/// Headers that belong to the connection and not to the function (Fetch standard, forbidden request-headers, as far as they
/// change how the request travels).
const NOT_THE_FUNCTIONS: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Headers that another server than the first must not see.
const FOR_ONE_SERVER: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// Who sends the requests of all functions. Connections are kept for a while and shared.
pub struct HttpClient {
    // Made at the first request: the certificates of the system's authorities take memory.
    client: OnceLock<Connections>,
    requests: Semaphore,
    buffered: Semaphore,
}

type Connections = Client<HttpsConnector<HttpConnector<GuardedResolver>>, Full<Bytes>>;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It is no request that could be sent.
    #[error("{0}")]
    Invalid(String),
    /// The function may not call this server.
    #[error(
        "{url} is not permitted{}: add its host to permissions.http of the function",
        if *redirected { " (a redirection leads there)" } else { "" }
    )]
    NotPermitted {
        /// The URL without query.
        url: String,
        /// It was not asked for, but led to.
        redirected: bool,
    },
    /// It redirects, and the function does not want that.
    #[error("{url} answered with a redirection, which the request's `redirect` does not allow")]
    Redirected {
        /// Which URL.
        url: String,
    },
    /// It redirects on and on.
    #[error("{url} and what it leads to redirect more than {MAX_REDIRECTS} times")]
    TooManyRedirects {
        /// The first URL.
        url: String,
    },
    /// No connection, no answer, or none that is HTTP.
    #[error("{server}: {reason}")]
    Failed {
        /// Host and port.
        server: String,
        /// Why.
        reason: String,
        /// The kind of it.
        cause: FetchCause,
    },
    /// The answer is too large.
    #[error("the answer of {server} has more than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge {
        /// Host and port.
        server: String,
    },
    /// All answers together are.
    #[error("the node has no memory for the answer of {server} now; try again")]
    NoMemory {
        /// Host and port.
        server: String,
    },
}

impl From<FetchError> for HostError {
    fn from(error: FetchError) -> Self {
        let text = error.to_string();
        match error {
            FetchError::Invalid(_) => Self::Invalid(text),
            FetchError::NotPermitted { .. } => Self::NotPermitted(text),
            FetchError::NoMemory { .. } => Self::Overloaded(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<FetchError> for edgefaas_isolates::FetchError {
    fn from(error: FetchError) -> Self {
        let cause = match &error {
            FetchError::Failed { cause, .. } => *cause,
            FetchError::TooLarge { .. } => FetchCause::TooLarge,
            FetchError::Invalid(_) => FetchCause::Invalid,
            FetchError::NotPermitted { .. } => FetchCause::Denied,
            FetchError::NoMemory { .. } => FetchCause::Overloaded,
            FetchError::Redirected { .. } | FetchError::TooManyRedirects { .. } => FetchCause::Other,
        };
        Self { cause, error: error.into() }
    }
}

/// A request that may be sent.
pub struct Checked {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    redirect: Redirect,
}

impl Checked {
    /// The same with another body.
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }
}

/// Holds a request against what the function may do. `trace_parent` goes along unless the function says otherwise (W3C Trace
/// Context).
///
/// # Errors
/// [`FetchError::Invalid`] and [`FetchError::NotPermitted`].
pub fn check(
    request: OutgoingRequest,
    allowed: &[HttpPattern],
    trace_parent: Option<&str>,
) -> Result<Checked, FetchError> {
    let OutgoingRequest { method, url, headers: given, body, redirect } = request;
    let invalid = |reason: String| Err(FetchError::Invalid(reason));
    let url = match Url::parse(&url) {
        Ok(url) => url,
        Err(error) => return invalid(format!("{url:?} is no absolute URL: {error}")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid(format!("{:?} is neither http nor https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid(
            "a URL with a user or a password is not sent; use the header `authorization`".to_owned(),
        );
    }
    permitted(&url, allowed, false)?;
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return invalid(format!("{method:?} is no method"));
    };
    if matches!(method.as_str(), "CONNECT" | "TRACE" | "TRACK") {
        return invalid(format!("the method {method} is not allowed"));
    }
    let bytes: usize = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    if given.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return invalid(format!(
            "the request has {} headers of {bytes} bytes; at most {MAX_HEADERS} of {MAX_HEADER_BYTES} are sent",
            given.len()
        ));
    }
    let mut headers = HeaderMap::with_capacity(given.len() + 2);
    for (name, value) in given {
        let Ok(known) = HeaderName::from_bytes(name.as_bytes()) else {
            return invalid(format!("{name:?} is no header name"));
        };
        // Without the value, which may be a secret.
        let Ok(value) = HeaderValue::from_str(&value) else {
            return invalid(format!("the value of the header {name:?} cannot be sent"));
        };
        if !NOT_THE_FUNCTIONS.contains(&known) {
            headers.append(known, value);
        }
    }
    headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    let agent = concat!("edgefaas/", env!("CARGO_PKG_VERSION"));
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
    if let Some(value) = trace_parent.and_then(|trace| HeaderValue::from_str(trace).ok()) {
        headers.entry("traceparent").or_insert(value);
    }
    Ok(Checked { method, url, headers, body, redirect })
}

impl Default for HttpClient {
    fn default() -> Self {
        Self {
            client: OnceLock::new(),
            requests: Semaphore::new(MAX_REQUESTS),
            buffered: Semaphore::new(MAX_BUFFERED_BYTES / UNIT_BYTES),
        }
    }
}

impl HttpClient {
    /// Sends a request and reads its answer to the end; redirections lead to permitted servers only. Has no time limit of
    /// its own but for making a connection. Dropping the future closes the connection.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch(
        &self,
        request: Checked,
        allowed: Arc<[HttpPattern]>,
    ) -> Result<IncomingResponse, FetchError> {
        let Checked { mut method, mut url, mut headers, mut body, redirect } = request;
        let first = shown(&url);
        let failed = |url: &Url, error: &(dyn Error + 'static)| FetchError::Failed {
            server: server(url),
            reason: chain(error),
            cause: cause::of(error),
        };
        let _place = self.requests.acquire().await.map_err(|error| failed(&url, &error))?;
        let mut redirects = 0;
        loop {
            let uri: Uri = match &url[..url::Position::AfterQuery].parse() {
                Ok(uri) => Uri::clone(uri),
                Err(error) => return Err(FetchError::Invalid(format!("{first} cannot be sent: {error}"))),
            };
            let mut request = Request::new(Full::new(body.clone()));
            (*request.method_mut(), *request.uri_mut()) = (method.clone(), uri);
            *request.headers_mut() = headers.clone();
            let response = self.client.get_or_init(connections).request(request).await;
            let response = response.map_err(|error| failed(&url, &error))?;
            let next = match redirect {
                Redirect::Manual => None,
                _ => target(&response, &url),
            };
            let Some(next) = next else {
                return self.read(response, url, redirects > 0).await;
            };
            if redirect == Redirect::Error {
                return Err(FetchError::Redirected { url: first });
            }
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(FetchError::TooManyRedirects { url: first });
            }
            permitted(&next, &allowed, true)?;
            if next.origin() != url.origin() {
                FOR_ONE_SERVER.iter().for_each(|name| drop(headers.remove(name)));
            }
            // Fetch standard, HTTP-redirect fetch, step 12.
            let becomes_get = match response.status() {
                StatusCode::SEE_OTHER => !matches!(method, Method::GET | Method::HEAD),
                StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => method == Method::POST,
                _ => false,
            };
            if becomes_get {
                (method, body) = (Method::GET, Bytes::new());
                for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE] {
                    headers.remove(name);
                }
            }
            url = next;
        }
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        url: Url,
        redirected: bool,
    ) -> Result<IncomingResponse, FetchError> {
        let (parts, mut incoming) = response.into_parts();
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut total = 0;
        let mut taken: Option<SemaphorePermit<'_>> = None;
        while let Some(frame) = incoming.frame().await {
            let failed = |error: hyper::Error| FetchError::Failed {
                server: server(&url),
                reason: chain(&error),
                cause: cause::of(&error),
            };
            let Ok(data) = frame.map_err(failed)?.into_data() else { continue };
            total += data.len();
            if total > MAX_RESPONSE_BYTES {
                return Err(FetchError::TooLarge { server: server(&url) });
            }
            let units = data.len().div_ceil(UNIT_BYTES) as u32;
            let Ok(more) = self.buffered.try_acquire_many(units) else {
                return Err(FetchError::NoMemory { server: server(&url) });
            };
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
            // Most bodies come in one piece, and need no copy.
            if total == data.len() {
                first = data;
                continue;
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
        let headers = parts.headers.iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        Ok(IncomingResponse {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            body: if rest.is_empty() { first } else { rest.freeze() },
            url: url.into(),
            redirected,
        })
    }
}

fn connections() -> Connections {
    let mut http = HttpConnector::new_with_resolver(GuardedResolver);
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let provider = Arc::new(ring::default_provider());
    let native = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider.clone());
    let builder = match native {
        Ok(builder) => builder,
        Err(error) => {
            tracing::warn!(
                %error,
                "no certificates of authorities were found, so that no https server is trusted; install `ca-certificates` or \
                 set SSL_CERT_FILE"
            );
            let config = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("ring knows TLS 1.2 and 1.3")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        }
    };
    let https = builder.https_or_http().enable_http1().enable_http2().wrap_connector(http);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_PER_SERVER)
        .build(https)
}

fn permitted(url: &Url, allowed: &[HttpPattern], redirected: bool) -> Result<(), FetchError> {
    match allowed.iter().any(|pattern| pattern.allows(url)) {
        true => Ok(()),
        false => Err(FetchError::NotPermitted { url: shown(url), redirected }),
    }
}

/// Where an answer leads, if it is a redirection that can be followed.
fn target(response: &Response<Incoming>, url: &Url) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(header::LOCATION)?.to_str().ok()?;
    let mut next = url.join(location).ok()?;
    if next.fragment().is_none() {
        next.set_fragment(url.fragment());
    }
    Some(next)
}

/// A URL without what may be secret in it.
fn shown(url: &Url) -> String {
    url[..url::Position::AfterPath].to_owned()
}

fn server(url: &Url) -> String {
    url[url::Position::BeforeHost..url::Position::AfterPort].to_owned()
}

/// An error with what caused it: the first alone says little.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
