//! Browsers at the control port: the pages of the dashboard, sign-in, and checks of requests that carry a session.
//!
//! A browser sends the cookie of a session with every request, also with one that another site has made. So a request with a session
//! must come from a page of this port: SameSite=Strict keeps the cookie out of requests of other sites, and the checks of `Origin`,
//! `Sec-Fetch-Site` and `Host` (DNS rebinding) hold where a browser does not know one of them.

mod routes;
mod sessions;
mod signed_out;
mod slots;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use edgefaas_functions::problem::Problem;
use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tonic_web::GrpcWebLayer;
use tower_layer::Layer;
use tower_service::Service;

use self::sessions::{Session, Sessions};
use self::signed_out::SignedOut;
use self::slots::{MAX_SESSION_CONNECTIONS, MAX_SESSION_CONNECTIONS_OF_USER};
pub(super) use self::slots::{SessionSlot, SessionSlots};
use super::auth::Guard;
use super::caller::required_role;
use super::connections::ClientConnection;
use super::dependencies::ControlParts;
use crate::access::Access;
use crate::own_origin::{SEC_FETCH_SITE, host_of_request, is_ip_or_localhost, is_own_origin};

/// The header in which a page names the session that it shows, see [`Session::tag`].
const SESSION_TAG: HeaderName = HeaderName::from_static("x-edgefaas-session");
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
    slots: Arc<SessionSlots>,
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
    /// Browsers at the control port of a node; `secure` if it speaks TLS. Blocks.
    pub fn new(parts: &ControlParts, secure: bool) -> Self {
        let (node_id, token) = (&parts.facts.node_id, &parts.token);
        let clock = parts.registry.clock().clone();
        let signed_out = SignedOut::load(&parts.facts.data_dir);
        Self {
            sessions: Sessions::new((node_id, token), secure, parts.dashboard.session, clock, signed_out),
            access: parts.access.access().clone(),
            guard: Guard::new(token),
            node_id: node_id.clone(),
            secure,
            slots: Arc::default(),
        }
    }

    /// True as long as the session has not ended and its user has the same role.
    pub fn still_holds(&self, session: &Session) -> bool {
        self.sessions.caller(&session.claims, &self.access).as_ref() == Some(&session.caller)
    }

    /// Pages, sign-in and sign-out.
    pub fn routes(self: &Arc<Self>) -> Router {
        routes::routes(self.clone())
    }

    /// Classifies a request without `authorization`.
    ///
    /// # Errors
    /// Status 403: the request comes from a page of another site, or the role of its session does not suffice. 409: the page shows
    /// another session. 429: the user has too many connections.
    pub fn check<B>(
        &self,
        request: &Request<B>,
        connection: &ClientConnection,
    ) -> Result<BrowserRequest, Problem> {
        let (path, headers) = (request.uri().path(), request.headers());
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read && routes::is_page(path) {
            self.check_host(request)?;
            return Ok(BrowserRequest::Open);
        }
        if path == SESSION_PATH {
            self.check_site(request, is_read)?;
            return Ok(BrowserRequest::Open);
        }
        let Some(session) = self.sessions.find(headers, &self.access) else {
            return Ok(BrowserRequest::Other);
        };
        self.check_site(request, is_read)?;
        if headers.get(SESSION_TAG).is_some_and(|shown| shown.as_bytes() != session.tag().as_bytes()) {
            let detail = "somebody else has signed in in this browser, or the role has changed; try again";
            return Err(Problem::new(409, "Another session", detail));
        }
        // A page of another site cannot send this content type without a preflight, which nothing answers.
        if !is_read && !is_grpc_web(headers) {
            return Err(other_site());
        }
        let (needed, role) = (required_role(path), session.caller.role());
        let user = session.caller.user().unwrap_or_default();
        if role < needed {
            let detail = format!(
                "this needs the role `{needed}`, and user `{user}` has the role `{role}`; an administrator changes it with \
                 `edgefaas users role {user} {needed}`"
            );
            return Err(Problem::new(403, "Role not sufficient", detail));
        }
        if !connection.has_session_slot(&self.slots, user, role) {
            let detail = format!(
                "user `{user}` has {MAX_SESSION_CONNECTIONS_OF_USER} connections, or all sessions have {MAX_SESSION_CONNECTIONS}; \
                 close other pages of this node"
            );
            return Err(Problem::new(429, "Too many connections", detail));
        }
        Ok(BrowserRequest::Authenticated(session))
    }

    /// Without TLS, any name but `localhost` may be a name that an attacker has pointed at this node (DNS rebinding).
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let host = host_of_request(request);
        if host.is_empty() || self.secure || is_ip_or_localhost(&host) {
            return Ok(());
        }
        let detail = format!("{host:?} is not a name of this port; use its IP address or `localhost`");
        Err(Problem::new(403, "Host not allowed", detail))
    }

    /// Checks that a request comes from a page of this port. Browsers set `Origin` on every request but GET and HEAD, and
    /// `Sec-Fetch-Site` on secure origins and on this machine.
    fn check_site<B>(&self, request: &Request<B>, is_read: bool) -> Result<(), Problem> {
        self.check_host(request)?;
        let headers = request.headers();
        if headers.get(SEC_FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none") {
            return Err(other_site());
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_own = |origin: &HeaderValue| {
            let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
            is_own_origin(&origin, &host_of_request(request), self.secure)
        };
        match (origins.next(), origins.next()) {
            (None, _) if is_read => Ok(()),
            (Some(origin), None) if is_own(origin) => Ok(()),
            _ => Err(other_site()),
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
