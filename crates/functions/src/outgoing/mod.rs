//! Outgoing requests of functions and workflows to other servers.

mod caller;
mod cause;
mod check;
mod connector;
mod error;
mod fair_pool;
mod http2;
mod lookup;
mod own_addresses;
mod response;

use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
use edgefaas_isolates::{HostError, IncomingResponse, Redirect, StreamedResponse};
use edgefaas_manifest::Permissions;
use http::header::{self, HeaderName};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use url::Url;

pub use self::caller::{Caller, ResponseLimit};
use self::check::permitted;
pub use self::check::{Checked, check};
use self::connector::{Tls, connections};
pub use self::error::FetchError;
use self::error::{server, shown};
use self::fair_pool::{FairPool, Share};
pub use self::http2::Http2;
use self::lookup::{LookupError, lookup};
use self::response::Answer;

/// Maximum size of the body of an answer without a limit in a manifest, in bytes.
pub const MAX_RESPONSE_BYTES: u64 = 8 << 20;
/// Maximum number of requests in flight, over all functions.
const MAX_REQUESTS: usize = 512;
/// Maximum number of concurrent lookups, over all functions. Each blocks a thread.
const MAX_LOOKUPS: usize = 32;
/// Maximum number of TCP sockets of components, over all functions.
const MAX_SOCKETS: usize = 512;
/// Maximum number of redirections of a request (Fetch standard, section 4.4).
const MAX_REDIRECTS: usize = 20;
/// Headers that are removed when a redirection leads to another origin.
const CREDENTIAL_HEADERS: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// Sends the requests of all callers, with a fair share of the node's limits for each.
pub struct HttpClient {
    tls: Tls,
    requests: FairPool,
    buffered: FairPool,
    lookups: FairPool,
    sockets: FairPool,
}

impl HttpClient {
    /// A client. `max_buffered_bytes` is the maximum memory for incomplete answers, over all functions.
    pub fn new(max_buffered_bytes: usize) -> Self {
        Self {
            tls: Tls::default(),
            requests: FairPool::new("requests to other servers", MAX_REQUESTS),
            buffered: FairPool::new("bytes for answers of other servers", max_buffered_bytes),
            lookups: FairPool::new("lookups of names", MAX_LOOKUPS),
            sockets: FairPool::new("TCP sockets", MAX_SOCKETS),
        }
    }

    /// Sends a request and reads its answer to the end. Follows redirections to permitted servers only. The whole exchange has
    /// no time limit; only the wait for a share (30 s) and opening a connection (10 s) have one. Dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// See [`FetchError`].
    // Boxed: the crate that polls a future compiles it, and this one contains an HTTP client.
    pub fn fetch<'a>(
        &'a self,
        caller: &'a Caller,
        request: Checked,
    ) -> Pin<Box<dyn Future<Output = Result<IncomingResponse, FetchError>> + Send + 'a>> {
        Box::pin(async move {
            let answer = self.request(caller, request).await?;
            self.whole(caller, answer).await
        })
    }

    /// As [`fetch`](Self::fetch), but the body is read as the caller takes it. At most 512 KiB of it are in memory.
    ///
    /// # Errors
    /// See [`FetchError`]. The body ends with an error if it is larger than the caller's limit, or the connection fails.
    pub fn open<'a>(
        &'a self,
        caller: &'a Caller,
        request: Checked,
    ) -> Pin<Box<dyn Future<Output = Result<StreamedResponse, FetchError>> + Send + 'a>> {
        Box::pin(async move {
            let answer = self.request(caller, request).await?;
            self.streamed(caller, answer).await
        })
    }

    /// Sends a request and returns the head of its answer.
    async fn request(&self, caller: &Caller, request: Checked) -> Result<Answer, FetchError> {
        let Checked { mut method, mut url, mut headers, mut body, redirect } = request;
        let first = shown(&url);
        let share = self.requests.take(caller.owner(), 1).await;
        let share = share.map_err(|reason| FetchError::Overloaded { server: server(&url), reason })?;
        let connections = caller.connections.get_or_init(|| {
            connections(caller.permissions.clone(), self.lookups.clone(), self.tls.clone())
        });
        let mut redirects = 0;
        loop {
            let uri: Uri = match &url[..url::Position::AfterQuery].parse() {
                Ok(uri) => Uri::clone(uri),
                Err(error) => return Err(FetchError::Invalid(format!("{first} cannot be sent: {error}"))),
            };
            let mut request = Request::new(Full::new(body.clone()));
            (*request.method_mut(), *request.uri_mut()) = (method.clone(), uri);
            *request.headers_mut() = headers.clone();
            let response = connections.request(request).await;
            let response = response.map_err(|error| FetchError::failed(&url, &error))?;
            let next = match redirect {
                Redirect::Manual => None,
                _ => target(&response, &url),
            };
            let Some(next) = next else {
                return Ok(Answer { response, url, redirected: redirects > 0, share });
            };
            if redirect == Redirect::Error {
                return Err(FetchError::Redirected { url: first });
            }
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(FetchError::TooManyRedirects { url: first });
            }
            permitted(&next, caller, true)?;
            if next.origin() != url.origin() {
                CREDENTIAL_HEADERS.iter().for_each(|name| drop(headers.remove(name)));
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

    /// Looks up the addresses of a name to which a function may open TCP connections. Returns each with each of `ports`.
    ///
    /// # Errors
    /// `Overloaded` if the caller's share of lookups is used up, `Failed` if the name has no address or no permitted one.
    pub async fn resolve(
        &self,
        caller: &Caller,
        permissions: &Permissions,
        name: &str,
        ports: &[u16],
    ) -> Result<Vec<SocketAddr>, HostError> {
        let found = lookup(&self.lookups, caller.owner(), name, 0).await.map_err(|error| match error {
            LookupError::Share(_) => HostError::Overloaded(error.to_string()),
            LookupError::Failed { .. } => HostError::Failed(error.to_string()),
        })?;
        let with = |port: u16| found.iter().map(move |address| SocketAddr::new(address.ip(), port));
        let found = ports.iter().flat_map(|port| with(*port)).collect();
        let permitted = caller::tcp_addresses(name, found, |address| permissions.allows_tcp(address));
        permitted.map_err(|guarded| HostError::Failed(format!("{name}: {guarded} to permissions.tcp")))
    }

    /// Takes one of the TCP sockets for components. Dropping the share returns it.
    ///
    /// # Errors
    /// `Overloaded` if the caller's share of sockets is used up.
    pub fn socket(&self, caller: &Caller) -> Result<Share, HostError> {
        self.sockets.try_take(caller.owner(), 1).ok_or_else(|| {
            HostError::Overloaded(format!(
                "{} has used up its share of the node's {MAX_SOCKETS} TCP sockets; try again later",
                caller.owner()
            ))
        })
    }
}

/// The target of a redirection; `None` if the answer is not a redirection or its `Location` is invalid.
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
