//! What a request has to be before it is sent.

use bytes::Bytes;
use edgefaas_isolates::{OutgoingRequest, Redirect};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use url::Url;

use super::error::{FetchError, server, shown};
use super::reach::{Caller, NotPermitted};

/// The most headers of a request, and their bytes.
const MAX_HEADERS: usize = 256;
const MAX_HEADER_BYTES: usize = 64 << 10;
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

/// A request that may be sent.
pub struct Checked {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) redirect: Redirect,
}

impl Checked {
    /// The same with another body.
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }
}

/// Holds a request against what the caller may do. `trace_parent` goes along unless the function says otherwise (W3C Trace
/// Context).
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
    permitted(&url, caller, false)?;
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

/// Whether the caller may send a request to this URL.
pub(super) fn permitted(url: &Url, caller: &Caller, redirected: bool) -> Result<(), FetchError> {
    let guarded = match caller.reach.check(url) {
        Ok(()) => return Ok(()),
        Err(NotPermitted::NotNamed) => None,
        Err(NotPermitted::Guarded(guarded)) => Some(guarded),
    };
    let (server, owner) = (server(url), caller.owner().clone());
    Err(FetchError::NotPermitted { url: shown(url), redirected, guarded, server, owner })
}
