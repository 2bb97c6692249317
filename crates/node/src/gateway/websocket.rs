//! MQTT over WebSocket, at `/mqtt` of the gateway (MQTT 5, section 6; RFC 6455).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use edgefaas_broker::{Broker, Peer, Transport};
use edgefaas_functions::problem::Problem;
use http::header::{
    ALLOW, CONNECTION, HeaderName, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::frames::PacketStream;
use super::response::problem_reply;
use crate::config::WebSocketSection;
use crate::own_origin::{SEC_FETCH_SITE, host_of, is_ip_or_localhost, is_own_origin};

/// Path of MQTT over WebSocket.
pub const PATH: &str = "/mqtt";

const SUBPROTOCOL: &str = "mqtt";
/// GUID that is appended to the key before hashing (RFC 6455, section 1.3).
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum time for sending the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for reading and discarding input after the close frame. Closing the socket with unread input would reset the
/// connection, and the client might lose the close frame.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);

/// Settings of all WebSocket upgrades of a gateway, and its checks of web pages.
pub struct WebSocketGateway {
    broker: Broker,
    allowed_origins: Vec<String>,
    /// True if the gateway uses TLS.
    secure: bool,
    /// True if MQTT clients need a client certificate, which the gateway does not request.
    certificates_required: bool,
}

impl WebSocketGateway {
    /// For a gateway to this broker.
    pub fn new(
        broker: Broker,
        section: &WebSocketSection,
        secure: bool,
        certificates_required: bool,
    ) -> Self {
        let allowed = section.allowed_origins.iter();
        let allowed_origins = allowed.map(|origin| origin.trim_end_matches('/').to_ascii_lowercase());
        Self { broker, allowed_origins: allowed_origins.collect(), secure, certificates_required }
    }

    /// Refuses requests of pages whose origin is neither this gateway nor in `allowed_origins`.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let listed = self.allowed_origins.iter().any(|allowed| allowed == "*" || *allowed == origin);
        if listed || is_own_origin(&origin, &host_of(headers), self.secure) {
            return Ok(());
        }
        let detail = format!(
            "pages of {origin:?} may not send requests to this node; to permit it, add the origin to \
             `cors` of the function's http trigger, or to `allowed_origins` under [websocket] in the node's configuration"
        );
        Err(Problem::new(403, "Origin not allowed", detail))
    }

    /// Refuses requests without `Origin` of pages of other sites. Browsers omit `Origin` for images, scripts and links, but they
    /// set `Sec-Fetch-Site`.
    fn check_site(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let is_own_site =
            headers.get(SEC_FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none");
        if is_own_site
            || headers.contains_key(ORIGIN)
            || self.allowed_origins.iter().any(|allowed| allowed == "*")
        {
            return Ok(());
        }
        let detail = "pages of other sites may not send requests to this node; pages of `allowed_origins` under [websocket] \
                      in the node's configuration may, by requests with an `Origin` header (CORS)";
        Err(Problem::new(403, "Site not allowed", detail))
    }

    /// Refuses requests to a gateway without TLS whose `Host` is neither an IP address, `localhost` nor in `allowed_origins`.
    /// An attacker can make any other name resolve to this node (DNS rebinding); for pages of that name the node is their own
    /// site, so browsers omit `Origin`.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = host_of(headers);
        let is_host_of = |origin: &String| {
            origin == "*" || origin.split_once("://").is_some_and(|(_, allowed)| allowed == host)
        };
        if host.is_empty()
            || self.secure
            || is_ip_or_localhost(&host)
            || self.allowed_origins.iter().any(is_host_of)
        {
            return Ok(());
        }
        let detail = format!(
            "{host:?} is not a name of this gateway; use its IP address or `localhost`, or add the origin, such as \
             \"https://{host}\", to `allowed_origins` under [websocket] in the node's configuration"
        );
        Err(Problem::new(403, "Host not allowed", detail))
    }
}

/// Permission of the page that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    /// Its origin is to be checked.
    Unknown,
    /// A setting of CORS permits its origin.
    Permitted,
}

/// The possible upgrade of one connection to MQTT over WebSocket.
#[derive(Clone)]
pub struct WebSocketUpgrade {
    gateway: Arc<WebSocketGateway>,
    peer: SocketAddr,
    page: Page,
    /// Set once an upgrade is accepted.
    accepted: Arc<Mutex<Option<OnUpgrade>>>,
}

impl WebSocketUpgrade {
    /// For a connection from `peer` that is not upgraded yet.
    pub fn new(gateway: Arc<WebSocketGateway>, peer: SocketAddr) -> Self {
        Self { gateway, peer, page: Page::Unknown, accepted: Arc::default() }
    }

    /// The same for a request whose page is permitted by a setting of CORS.
    pub fn for_permitted_page(&self) -> Self {
        Self { page: Page::Permitted, ..self.clone() }
    }

    /// Address of the client.
    pub fn address(&self) -> IpAddr {
        self.peer.ip()
    }

    /// Checks that a request without a credential does not come from a page of another site.
    ///
    /// # Errors
    /// Status 403.
    pub fn check_page(&self, headers: &HeaderMap) -> Result<(), Problem> {
        self.gateway.check_host(headers)?;
        if self.page == Page::Permitted {
            return Ok(());
        }
        self.gateway.check_site(headers)?;
        self.gateway.check_origin(headers)
    }

    /// Answers a request for [`PATH`]: accepts the upgrade with status 101, or replies with a problem.
    pub fn answer<B>(&self, request: &mut Request<B>) -> Response<Full<Bytes>> {
        let accept = match check_request(request.method(), request.headers()) {
            Ok(accept) => accept,
            Err(refusal) => {
                let (problem, header) = *refusal;
                let mut reply = problem_reply(&problem);
                reply.headers_mut().extend(header);
                return reply;
            }
        };
        if self.gateway.certificates_required {
            let detail = "MQTT clients of this node need a certificate (`client_certificates` under [tls]), which the gateway \
                          does not support; connect to `mqtts`";
            return problem_reply(&Problem::new(403, "Certificate required", detail));
        }
        if let Err(problem) = self.gateway.check_origin(request.headers()) {
            return problem_reply(&problem);
        }
        *self.accepted.lock() = Some(hyper::upgrade::on(request));
        let mut reply = Response::new(Full::default());
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = reply.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        reply
    }

    /// If the connection was upgraded, serves MQTT until it ends or `cancel` fires. Must be called after the HTTP connection
    /// has ended.
    pub async fn serve(self, cancel: CancellationToken) {
        let Some(accepted) = self.accepted.lock().take() else { return };
        let stream = match accepted.await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "the upgrade to a WebSocket failed");
                return;
            }
        };
        let gateway = self.gateway;
        let mut socket = PacketStream::new(stream);
        let transport = if gateway.secure { Transport::SecureWebSocket } else { Transport::WebSocket };
        let peer = Peer { address: self.peer, transport, certificate: None };
        gateway.broker.serve(&mut socket, peer, cancel).await;
        let _ = timeout(CLOSE_TIMEOUT, socket.shutdown()).await;
        let _ = timeout(LINGER_TIMEOUT, async {
            let mut discarded = [0; 4096];
            while let Ok(1..) = socket.get_mut().read(&mut discarded).await {}
        })
        .await;
    }
}

/// A problem, and a header of its reply.
type Refusal = Box<(Problem, Option<(HeaderName, HeaderValue)>)>;

/// Checks an upgrade request (RFC 6455, section 4.2.1; MQTT 5, section 6). Returns the value of `Sec-WebSocket-Accept`.
fn check_request(method: &Method, headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    if method != Method::GET {
        let problem = Problem::new(405, "Method not allowed", format!("{PATH} accepts GET only"));
        return Err(Box::new((problem, Some((ALLOW, HeaderValue::from_static("GET"))))));
    }
    let has = |name, expected| tokens(headers, name).any(|token| token.eq_ignore_ascii_case(expected));
    if !has(UPGRADE, "websocket") || !has(CONNECTION, "upgrade") {
        let detail =
            format!("{PATH} serves MQTT over WebSocket only: the request must ask for that upgrade");
        let header = (UPGRADE, HeaderValue::from_static("websocket"));
        return Err(Box::new((Problem::new(426, "Upgrade required", detail), Some(header))));
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let detail = "only version 13 of the WebSocket protocol is supported";
        let header = (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(Box::new((Problem::new(426, "Upgrade required", detail), Some(header))));
    }
    let bad = |detail: &str| Box::new((Problem::new(400, "Bad WebSocket request", detail), None));
    let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    if BASE64_STANDARD.decode(key).map_or(0, |key| key.len()) != 16 {
        return Err(bad("Sec-WebSocket-Key must be 16 bytes in base64"));
    }
    // Subprotocol names are case-sensitive. `mqttv3.1` names MQTT 3.1, which the broker does not support.
    if !tokens(headers, SEC_WEBSOCKET_PROTOCOL).any(|offered| offered == SUBPROTOCOL) {
        return Err(bad("the WebSocket subprotocol must be `mqtt` (Sec-WebSocket-Protocol)"));
    }
    let mut digest = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key);
    digest.update(ACCEPT_SUFFIX.as_bytes());
    let accept = BASE64_STANDARD.encode(digest.finish());
    HeaderValue::try_from(accept).map_err(|error| bad(&error.to_string()))
}

/// Elements of a header that is a comma-separated list.
fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_value_for_the_key_of_rfc_6455_is_correct() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (UPGRADE, "WebSocket"),
            (CONNECTION, "keep-alive, Upgrade"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
            (SEC_WEBSOCKET_PROTOCOL, "mqttv3.1, mqtt"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        // RFC 6455, section 1.3.
        let accept = check_request(&Method::GET, &headers).unwrap();
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
