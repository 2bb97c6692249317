//! Requests of pages of other sites (CORS, Fetch standard, section "HTTP CORS protocol"): the node answers their preflights, and permits
//! their pages to read replies.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;

use super::Gateway;
use super::response::HttpReply;

/// Time for which a browser may keep the answer to a preflight, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Headers of the gateway that a page may read, beside the safelisted ones.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("invocation-id, invocation-node, server-timing, retry-after, location");

/// What a page of a permitted origin sent.
pub(super) struct Permitted {
    origin: HeaderValue,
    /// Of a preflight: the method and the headers that the page wants to send.
    preflight: Option<(HeaderValue, Option<HeaderValue>)>,
}

impl Permitted {
    /// The permission of a request, if it comes from a page whose origin the gateway or the trigger of the path permits.
    pub(super) fn of<B>(gateway: &Gateway, request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        let value = headers.get(ORIGIN)?;
        let origin = value.to_str().ok()?;
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_METHOD).filter(|wanted| {
            request.method() == Method::OPTIONS && Method::from_bytes(wanted.as_bytes()).is_ok()
        });
        let method = wanted.and_then(|wanted| wanted.to_str().ok()).unwrap_or(request.method().as_str());
        let is_permitted = gateway.cors.iter().any(|permitted| permitted.matches(origin)) || {
            let routes = gateway.registry.routes();
            let target = routes.http(request.uri().path()).and_then(|route| route.target(method).cloned());
            target.is_some_and(|target| target.cors.iter().any(|permitted| permitted.matches(origin)))
        };
        let preflight =
            wanted.map(|method| (method.clone(), headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned()));
        is_permitted.then(|| Self { origin: value.clone(), preflight })
    }

    /// The answer to a preflight; `None` for other requests.
    pub(super) fn preflight(&self) -> Option<HttpReply> {
        let (method, wanted_headers) = self.preflight.as_ref()?;
        let mut reply = HttpReply::new(Full::new(Bytes::new()));
        *reply.status_mut() = StatusCode::NO_CONTENT;
        let headers = reply.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, method.clone());
        if let Some(wanted) = wanted_headers {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        self.permit(&mut reply);
        Some(reply)
    }

    /// Permits the page to read a reply. The headers of a function that answers such pages itself stay.
    pub(super) fn permit(&self, reply: &mut HttpReply) {
        let headers = reply.headers_mut();
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}
