//! Connections of the gateway and routing of requests: `/fn/NAME[/REST]`, `/workflows/NAME`, the paths of http triggers,
//! `/invocations/ID`, and the upgrade to MQTT over WebSocket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_functions::answer::body_bytes;
use edgefaas_functions::invocation::{Invocation, InvocationError, Outcome, Principal, Timing};
use edgefaas_functions::problem::{self, Problem};
use edgefaas_functions::registry::LiveFunction;
use edgefaas_isolates::{Event, HttpRequest, Trigger};
use edgefaas_manifest::HttpAuth;
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::Gateway;
use super::connection_slots::ConnectionSlot;
use super::cors::Permitted;
use super::reply_budget::Reservation;
use super::request_head::{MAX_HEAD_BYTES, RequestHeads, Scanned};
use super::response::{
    HttpReply, body_problem, header_text, no_reply_memory, problem_reply, result_reply, set_node,
};
use super::socket::GatewaySocket;
use super::websocket::{self, WebSocketUpgrade};
use super::write_progress::WriteProgress;
use super::write_timeout::WriteTimeout;
use super::{durable, workflow};

/// Maximum time for receiving the head of a request, and maximum time for which a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for the first bytes of a request on a connection that is refused.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time for which a write may be blocked because the client does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves one connection, including MQTT after an upgrade. Returns when the client closes the connection, or when `cancel`
/// fires and the request in progress is answered.
///
/// A client that closes only its sending side may still wait for the reply (RFC 9112, section 9.6): its call continues. If
/// the client resets the connection, its call is cancelled.
pub async fn serve<S>(
    stream: S,
    socket: GatewaySocket,
    slot: ConnectionSlot,
    gateway: Arc<Gateway>,
    upgrade: WebSocketUpgrade,
    cancel: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service_upgrade = upgrade.clone();
    let progress = Arc::new(WriteProgress::new(upgrade.address()));
    let heads = Arc::<RequestHeads>::default();
    let stream = Scanned::new(stream, heads.clone());
    let stream = WriteTimeout::new(stream, WRITE_TIMEOUT, progress.clone());
    let slot = Arc::new(slot);
    let (service_progress, service_slot) = (progress.clone(), slot.clone());
    let service = service_fn(move |mut request| {
        let (gateway, upgrade) = (gateway.clone(), service_upgrade.clone());
        let (progress, heads, slot) = (service_progress.clone(), heads.clone(), service_slot.clone());
        async move {
            slot.begin_request();
            let reply = match heads.check(&request) {
                Err(problem) => with_close(problem_reply(&problem)),
                Ok(()) if request.uri().path() == websocket::PATH => {
                    let reply = upgrade.answer(&mut request);
                    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
                        heads.stop();
                    }
                    reply
                }
                Ok(()) => for_page(&gateway, &upgrade, &progress, request).await,
            };
            slot.end_request();
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .half_close(true)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let mut stopping = false;
    let ended = loop {
        tokio::select! {
            ended = &mut connection => break ended,
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = slot.evicted(), if !stopping => {
                // A request in progress is answered, and a reply is sent completely.
                if !progress.has_unsent() && !slot.is_serving() {
                    return;
                }
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = progress.evicted() => {
                let peer = progress.address();
                tracing::debug!(%peer, "a connection was closed to free memory: its client reads too slowly");
                return socket.reset_on_close();
            }
            () = socket.failed() => return,
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection ended");
    }
    // From here on the connection counts as a client of the broker.
    slot.release();
    // Boxed: only WebSocket connections need the memory of this future.
    Box::pin(upgrade.serve(cancel)).await;
}

/// Refuses a connection for which the node has no memory, with status 503. A TLS connection gets no reply, because
/// the node refuses it before the handshake.
pub async fn refuse(stream: &TcpStream, is_secure: bool) {
    if is_secure {
        return;
    }
    // Closing the socket with unread bytes would reset the connection, and the client would lose the reply.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, stream.readable()).await;
    let _ = stream.try_read(&mut [0; 4096]);
    let detail =
        "requests are served on all connections for which this node has memory; try again in a second";
    let body = Problem::new(503, "Too many connections", detail).to_json();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: {}\r\n\
         content-length: {}\r\n\r\n",
        problem::MEDIA_TYPE,
        body.len()
    );
    // Best effort: a client whose receive window is full gets no reply.
    let _ = stream.try_write(&[head.as_bytes(), &body].concat());
}

/// Marks a reply as the last one of its connection.
fn with_close(mut reply: HttpReply) -> HttpReply {
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// Answers a request, also of a page of another site that is permitted.
async fn for_page(
    gateway: &Gateway,
    upgrade: &WebSocketUpgrade,
    progress: &Arc<WriteProgress>,
    request: Request<Incoming>,
) -> HttpReply {
    let Some(permitted) = Permitted::of(gateway, &request) else {
        return handle(gateway, upgrade, progress, request).await;
    };
    // Pipelined requests wait until the previous reply is sent.
    progress.drained().await;
    let mut reply = match permitted.preflight() {
        Some(answer) => return answer,
        None => handle(gateway, &upgrade.for_permitted_page(), progress, request).await,
    };
    permitted.permit(&mut reply);
    reply
}

async fn handle(
    gateway: &Gateway,
    upgrade: &WebSocketUpgrade,
    progress: &Arc<WriteProgress>,
    request: Request<Incoming>,
) -> HttpReply {
    // Pipelined requests wait until the previous reply is sent.
    progress.drained().await;
    if let Some(id) = request.uri().path().strip_prefix("/invocations/") {
        return durable::poll(gateway, upgrade, progress, id, &request).await;
    }
    if let Some(name) = workflow_name(gateway, request.uri().path()) {
        return workflow::run(gateway, upgrade, progress, &name, request).await;
    }
    let RoutedRequest { function, path, required_auth, is_public } = match route(gateway, &request) {
        Ok(found) => found,
        // If a token is required by default, only a client with a valid credential learns which functions and paths exist.
        Err(reply) => {
            return match gateway.auth.check_default(request.headers()) {
                Ok(_) => *reply,
                Err(refused) => gateway.auth.refuse(refused, upgrade.address()).await,
            };
        }
    };
    let limit_bytes = function.spec.limits.payload_bytes;
    let (mut head, body) = request.into_parts();
    let authorised = match gateway.auth.check(required_auth, &function.name, &mut head.headers) {
        Ok(authorised) => authorised,
        Err(refused) => return gateway.auth.refuse(refused, upgrade.address()).await,
    };
    if !is_public && let Err(problem) = authorised.check_page(upgrade, &head.headers) {
        return problem_reply(&problem);
    }
    let read = gateway.bodies.read(&head.headers, body, upgrade.address(), limit_bytes).await;
    let body = match read.map_err(|error| body_problem(&function.name, limit_bytes, error)) {
        Ok(body) => body,
        Err(problem) => return problem_reply(&problem),
    };
    let durable_request = match durable::parse_headers(&head.headers) {
        Ok(durable_request) => durable_request,
        Err(problem) => return problem_reply(&problem),
    };
    let trace_parent = header_text(&head.headers, "traceparent");
    let event = Event {
        trigger: Trigger::Http(HttpRequest {
            method: head.method.as_str().to_owned(),
            path,
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: header_list(&head.headers),
        }),
        body,
    };
    let mut invocation = Invocation::new(function.name.to_string(), Principal::Http, event);
    invocation.trace_parent = trace_parent;
    if let Some(durable_request) = durable_request {
        return durable::accept(gateway, function, invocation, durable_request, &authorised, progress)
            .await;
    }
    let reservation = match reserve(gateway, progress, &function, &invocation).await {
        Ok(reservation) => reservation,
        Err(problem) => {
            function.metrics.record_rejected();
            return problem_reply(&problem);
        }
    };
    let id = invocation.id.clone();
    let outcome = match gateway.invoker.admit_to(function.clone(), invocation) {
        Ok(admitted) => gateway.invoker.run(admitted).await,
        Err(error) => Outcome { id, result: Err(error), timing: Timing::default(), node: None },
    };
    let Outcome { id, result, timing, node } = outcome;
    match &result {
        Ok(reply) => function.reply_size.learn(body_bytes(reply)),
        Err(InvocationError::Run { .. }) => function.reply_size.learn(0),
        Err(_) => {}
    }
    let node = gateway.invoker.ran_on(node, result.as_ref().err());
    let result = result.map_err(|error| Problem::of(&error, Some(&id)));
    let mut reply = result_reply(reservation, &id, result, timing, authorised.audience);
    if let Some(node) = node {
        set_node(&mut reply, &node);
    }
    reply
}

/// Reserves memory for the reply of a function before it runs. While this waits, the event counts against the memory limit
/// of events.
async fn reserve(
    gateway: &Gateway,
    progress: &Arc<WriteProgress>,
    function: &LiveFunction,
    invocation: &Invocation,
) -> Result<Reservation, Problem> {
    let limit_bytes = function.spec.limits.reply_bytes;
    let replies = &gateway.replies;
    let wait = async {
        let _event_bytes = gateway
            .invoker
            .take_event_bytes(invocation.event.body.len())
            .map_err(|error| Problem::of(&error, Some(&invocation.id)))?;
        let reserved = replies.reserve_or_wait(progress, &function.reply_size, limit_bytes).await;
        reserved.map_err(|error| no_reply_memory(&error))
    };
    match replies.reserve(progress, &function.reply_size, limit_bytes) {
        Ok(reservation) => Ok(reservation),
        // Boxed: few requests wait, and the others need no memory for this future.
        Err(_) => Box::pin(wait).await,
    }
}

/// NAME in `/workflows/NAME`, or in `/fn/NAME` if it names a workflow and no function.
fn workflow_name(gateway: &Gateway, path: &str) -> Option<String> {
    if let Some(name) = path.strip_prefix("/workflows/") {
        return Some(name.to_owned());
    }
    let name = path.strip_prefix("/fn/")?;
    let routes = gateway.registry.routes();
    (routes.function(name).is_none() && routes.workflow(name).is_some()).then(|| name.to_owned())
}

/// Target of a request.
struct RoutedRequest {
    function: Arc<LiveFunction>,
    /// Path that the function receives.
    path: String,
    /// Credential that the request needs.
    required_auth: HttpAuth,
    /// True if the trigger says `auth = "none"`: pages of any site may send the request.
    is_public: bool,
}

/// Finds the function of a request.
///
/// # Errors
/// A reply with status 404 or 405.
fn route(gateway: &Gateway, request: &Request<Incoming>) -> Result<RoutedRequest, Box<HttpReply>> {
    let path = request.uri().path();
    let routes = gateway.registry.routes();
    if let Some(rest) = path.strip_prefix("/fn/") {
        let (name, rest) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        return match routes.function(name) {
            Some(function) => Ok(RoutedRequest {
                function: function.clone(),
                path: rest.to_owned(),
                required_auth: gateway.auth.required_by_function(function),
                is_public: false,
            }),
            None => {
                let near = routes.near_functions(name);
                let error = InvocationError::UnknownFunction { name: name.to_owned(), near };
                Err(Box::new(problem_reply(&Problem::of(&error, None))))
            }
        };
    }
    let Some(route) = routes.http(path) else {
        let detail = format!(
            "nothing is mounted at {path}; functions are at /fn/NAME and at the paths of their http triggers"
        );
        return Err(Box::new(problem_reply(&Problem::new(404, "Not found", detail))));
    };
    let method = request.method().as_str();
    match route.target(method) {
        Some(target) => Ok(RoutedRequest {
            function: target.function.clone(),
            path: path.to_owned(),
            required_auth: gateway.auth.required_by_trigger(target.auth),
            is_public: target.auth == Some(HttpAuth::None),
        }),
        None => {
            let allowed = route.allowed();
            let detail = format!("{path} does not accept {method}; it accepts {allowed}");
            let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
            if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                reply.headers_mut().insert(ALLOW, allowed);
            }
            Err(Box::new(reply))
        }
    }
}

/// All headers as text; invalid UTF-8 becomes replacement characters.
pub(super) fn header_list(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}
