//! Browsers at the control port: the pages of the dashboard, sign-in, and checks of requests that carry a session.
//!
//! A browser sends the cookie of a session with every request, also with one that another site has made. So a request with a session
//! must come from a page of this port: SameSite=Strict keeps the cookie out of requests of other sites, and the checks of `Origin`,
//! `Sec-Fetch-Site` and `Host` (DNS rebinding) hold where a browser does not know one of them.

mod routes;
mod sessions;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use edgefaas_functions::problem::Problem;
use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use tonic_web::GrpcWebLayer;
use tower_layer::Layer;
use tower_service::Service;

use self::sessions::{Session, Sessions};
use super::auth::Guard;
use super::caller::required_role;
use super::dependencies::ControlParts;
use crate::access::Access;
use crate::own_origin::{SEC_FETCH_SITE, host_of, is_ip_or_localhost, is_own_origin};

/// Path of sign-in, sign-out, and the facts of a session.
const SESSION_PATH: &str = "/session";

/// Address of the client of a request, among the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub IpAddr);

/// The browsers' side of the control port.
pub(super) struct Web {
    sessions: Sessions,
    access: Arc<Access>,
    guard: Guard,
    node_id: String,
    /// The control port speaks TLS.
    secure: bool,
}

/// A request of a browser.
pub(super) enum BrowserRequest {
    /// For a page, or for `/session`: needs no session.
    Open,
    /// With a session whose role suffices.
    Authenticated(Session),
    /// Neither: it needs the admin token.
    Other,
}

impl Web {
    /// Browsers at the control port of a node; `secure` if it speaks TLS.
    pub fn new(parts: &ControlParts, secure: bool) -> Self {
        let (node_id, token) = (&parts.facts.node_id, &parts.token);
        let clock = parts.registry.clock().clone();
        Self {
            sessions: Sessions::new(node_id, token, secure, parts.dashboard.session, clock),
            access: parts.access.access().clone(),
            guard: Guard::new(token),
            node_id: node_id.clone(),
            secure,
        }
    }

    /// Pages, sign-in and sign-out.
    pub fn routes(self: &Arc<Self>) -> Router {
        routes::routes(self.clone())
    }

    /// Classifies a request without `authorization`.
    ///
    /// # Errors
    /// Status 403: the request comes from a page of another site, or the role of its session does not suffice.
    pub fn check<B>(&self, request: &Request<B>) -> Result<BrowserRequest, Problem> {
        let (path, headers) = (request.uri().path(), request.headers());
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if path == SESSION_PATH || (is_read && routes::is_page(path)) {
            self.check_host(headers)?;
            if !is_read {
                self.check_origin(headers)?;
            }
            return Ok(BrowserRequest::Open);
        }
        let Some(session) = self.sessions.find(headers, &self.access) else {
            return Ok(BrowserRequest::Other);
        };
        self.check_host(headers)?;
        self.check_site(headers)?;
        if !is_read {
            self.check_origin(headers)?;
        }
        let (needed, role) = (required_role(path), session.caller.role());
        if role < needed {
            let user = session.caller.user().unwrap_or_default();
            let detail = format!(
                "this needs the role `{needed}`, and user `{user}` has the role `{role}`; an administrator changes it with \
                 `edgefaas users role {user} {needed}`"
            );
            return Err(Problem::new(403, "Role not sufficient", detail));
        }
        Ok(BrowserRequest::Authenticated(session))
    }

    /// Without TLS, any name but `localhost` may be a name that an attacker has pointed at this node (DNS rebinding).
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = host_of(headers);
        if host.is_empty() || self.secure || is_ip_or_localhost(&host) {
            return Ok(());
        }
        let detail = format!("{host:?} is not a name of this port; use its IP address or `localhost`");
        Err(Problem::new(403, "Host not allowed", detail))
    }

    /// Browsers set `Sec-Fetch-Site` on secure origins and on this machine.
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match headers.get(SEC_FETCH_SITE) {
            Some(site) if site != "same-origin" && site != "none" => Err(other_site()),
            _ => Ok(()),
        }
    }

    /// Browsers set `Origin` on every request but GET and HEAD.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(origin) = headers.get(ORIGIN) else { return Err(other_site()) };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        match is_own_origin(&origin, &host_of(headers), self.secure) {
            true => Ok(()),
            false => Err(other_site()),
        }
    }
}

fn other_site() -> Problem {
    let detail = "requests with a session come from the pages of this port only; programs send `authorization: Bearer TOKEN`";
    Problem::new(403, "Origin not allowed", detail)
}

/// True for a request in gRPC-Web, the form of gRPC that browsers can send.
pub(super) fn is_grpc_web(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE);
    media_type.is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/grpc-web"))
}

/// Answers a request in gRPC-Web by a service for gRPC.
pub(super) async fn translated<S, B>(
    service: S,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible>
where
    S: Service<Request<tonic::body::Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + std::fmt::Display,
{
    GrpcWebLayer::new().layer(service).call(request).await
}
