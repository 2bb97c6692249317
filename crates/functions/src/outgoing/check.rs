//! Checks of an outgoing request before it is sent.

use bytes::Bytes;
use edgefaas_isolates::{OutgoingRequest, Redirect};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use url::Url;

use super::caller::{Caller, NotPermitted};
use super::error::{FetchError, server, shown};
use crate::trace::TRACE_PARENT;

/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 256;
/// Maximum size of all header names and values of a request, in bytes.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Headers that the connection sets. Those of the function are ignored (Fetch standard, forbidden request-headers, as far as
/// they change the transport of the request).
const CONNECTION_HEADERS: [HeaderName; 10] = [
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

/// A checked request.
pub struct Checked {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) redirect: Redirect,
}

impl Checked {
    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The URL, with its query.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// This request with another body.
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }
}

/// Checks a request and the caller's permission. Adds the header `traceparent` (W3C Trace Context) if the function did not set
/// it.
///
/// # Errors
/// [`FetchError::Invalid`] and [`FetchError::NotPermitted`].
pub fn check(
    request: OutgoingRequest,
    caller: &Caller,
    trace_parent: Option<&str>,
) -> Result<Checked, FetchError> {
    let OutgoingRequest { method, url, headers: given, body, redirect } = request;
    let invalid = |reason: String| Err(FetchError::Invalid(reason));
    let url = match Url::parse(&url) {
        Ok(url) => url,
        Err(error) => return invalid(format!("{url:?} is not an absolute URL: {error}")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid(format!("{:?} is neither http nor https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid(
            "a URL with a user or a password is not sent; use the header `authorization`".to_owned(),
        );
    }
    permitted(&url, caller, false)?;
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return invalid(format!("{method:?} is not a valid method"));
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
            return invalid(format!("{name:?} is not a valid header name"));
        };
        // The error does not show the value, which may be a secret.
        let Ok(value) = HeaderValue::from_str(&value) else {
            return invalid(format!("the value of the header {name:?} cannot be sent"));
        };
        if !CONNECTION_HEADERS.contains(&known) {
            headers.append(known, value);
        }
    }
    headers.entry(header::ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    let agent = concat!("edgefaas/", env!("CARGO_PKG_VERSION"));
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
    if let Some(value) = trace_parent.and_then(|trace| HeaderValue::from_str(trace).ok()) {
        headers.entry(TRACE_PARENT).or_insert(value);
    }
    Ok(Checked { method, url, headers, body, redirect })
}

/// Checks that the caller may send a request to this URL. `redirected` is true if a redirection leads there.
pub(super) fn permitted(url: &Url, caller: &Caller, redirected: bool) -> Result<(), FetchError> {
    let guarded = match caller.permissions.check(url) {
        Ok(()) => return Ok(()),
        Err(NotPermitted::NotNamed) => None,
        Err(NotPermitted::Guarded(guarded)) => Some(guarded),
    };
    let (server, owner) = (server(url), caller.owner().clone());
    Err(FetchError::NotPermitted { url: shown(url), redirected, guarded, server, owner })
}
