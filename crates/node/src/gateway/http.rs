//! The HTTP gateway: `/fn/NAME[/rest]`, the paths of http triggers, `/invocations/ID`, and the way to MQTT over
//! WebSocket.

use std::convert::Infallible;
use std::sync::Arc;

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

use super::connection_slots::ConnectionSlot;
use super::outflow::Outflow;
use super::parts::Gateway;
use super::replies::Reservation;
use super::reply::{HttpReply, body_problem, header_text, not_run, problem_reply, result_reply};
use super::request_head::{MAX_HEAD_BYTES, RequestHeads, Scanned};
use super::socket::GatewaySocket;
use super::websocket::{self, Upgrading};
use super::write_timeout::WriteTimeout;
use super::{durable, workflow};

/// The longest time for a request's head to come in, and for an idle connection to be kept.
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// How long a connection that is turned away has for its request.
const REFUSAL_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// The longest time for which a client may leave its answer unread.
const WRITE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// Serves one connection, and MQTT once it was upgraded, until its client closes it, or `cancel` fires and the
/// request under way is answered.
///
/// A client that has closed its side of the connection may still wait for the answer (RFC 9112, section 9.6): its call
/// goes on. A client that has reset the connection does not, and its call ends.
pub async fn serve<S>(
    stream: S,
    socket: GatewaySocket,
    place: ConnectionSlot,
    gateway: Arc<Gateway>,
    upgrading: Upgrading,
    cancel: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upgrade = upgrading.clone();
    let outflow = Arc::new(Outflow::new(upgrading.address()));
    let heads = Arc::<RequestHeads>::default();
    let stream = Scanned::new(stream, heads.clone());
    let stream = WriteTimeout::new(stream, WRITE_TIMEOUT, outflow.clone());
    let out = outflow.clone();
    let place = Arc::new(place);
    let served = place.clone();
    let service = service_fn(move |mut request| {
        let (gateway, upgrade) = (gateway.clone(), upgrade.clone());
        let (out, heads, place) = (out.clone(), heads.clone(), served.clone());
        async move {
            place.begin();
            let reply = match heads.check(&request) {
                Err(problem) => closing(problem_reply(&problem)),
                Ok(()) if request.uri().path() == websocket::PATH => {
                    let reply = upgrade.answer(&mut request);
                    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
                        heads.end();
                    }
                    reply
                }
                Ok(()) => handle(&gateway, &upgrade, &out, request).await,
            };
            place.end();
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
            () = place.given_up(), if !stopping => {
                // A request that has come is answered, and a reply that has begun is sent to its end.
                if !outflow.is_unread() && !place.is_serving() {
                    return;
                }
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = outflow.evicted() => {
                tracing::debug!(peer = %outflow.address(), "a connection is closed: its client does not read");
                return socket.reset_on_close();
            }
            () = socket.failed() => return,
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection ended");
    }
    // MQTT counts as a client of the broker.
    place.leave();
    // Boxed: few connections come this far, and the others need no room for it.
    Box::pin(upgrading.serve(cancel)).await;
}

/// Turns a connection away, for which there is no memory. A client that speaks TLS cannot be told.
pub async fn refuse(stream: &TcpStream, is_secure: bool) {
    if is_secure {
        return;
    }
    // With a request unread the client would see a reset instead of the reply.
    let _ = tokio::time::timeout(REFUSAL_WAIT, stream.readable()).await;
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
    // A client that cannot take it at once does without.
    let _ = stream.try_write(&[head.as_bytes(), &body].concat());
}

/// The last reply of its connection.
fn closing(mut reply: HttpReply) -> HttpReply {
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

async fn handle(
    gateway: &Gateway,
    upgrading: &Upgrading,
    outflow: &Arc<Outflow>,
    request: Request<Incoming>,
) -> HttpReply {
    // A client that sends requests ahead gets no further reply before it has taken the last one.
    outflow.taken().await;
    if let Some(id) = request.uri().path().strip_prefix("/invocations/") {
        return durable::poll(gateway, upgrading, outflow, id, &request).await;
    }
    if let Some(name) = workflow_name(gateway, request.uri().path()) {
        return workflow::run(gateway, upgrading, outflow, &name, request).await;
    }
    let Routed { function, path, wanted, open } = match route(gateway, &request) {
        Ok(found) => found,
        // Where a token is needed, what there is and is not is told only to those who have one.
        Err(reply) => {
            return match gateway.auth.check_default(request.headers()) {
                Ok(_) => *reply,
                Err(refused) => gateway.auth.refuse(refused, upgrading.address()).await,
            };
        }
    };
    let limit_bytes = function.spec.limits.payload_bytes;
    let (mut head, body) = request.into_parts();
    let authorised = match gateway.auth.check(wanted, &function.name, &mut head.headers) {
        Ok(authorised) => authorised,
        Err(refused) => return gateway.auth.refuse(refused, upgrading.address()).await,
    };
    if !open && let Err(problem) = authorised.check_page(upgrading, &head.headers) {
        return problem_reply(&problem);
    }
    let read = gateway.bodies.read(&head.headers, body, upgrading.address(), limit_bytes).await;
    let body = match read.map_err(|error| body_problem(&function.name, limit_bytes, error)) {
        Ok(body) => body,
        Err(problem) => return problem_reply(&problem),
    };
    let asked = match durable::wanted(&head.headers) {
        Ok(asked) => asked,
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
    if let Some(asked) = asked {
        return durable::accept(gateway, function, invocation, asked, &authorised, outflow).await;
    }
    let room = match reserve(gateway, outflow, &function, &invocation).await {
        Ok(room) => room,
        Err(problem) => {
            function.metrics.record_rejected();
            return problem_reply(&problem);
        }
    };
    let id = invocation.id.clone();
    let outcome = match gateway.invoker.admit_to(function.clone(), invocation) {
        Ok(admitted) => gateway.invoker.run(admitted).await,
        Err(error) => Outcome { id, result: Err(error), timing: Timing::default() },
    };
    let Outcome { id, result, timing } = outcome;
    match &result {
        Ok(reply) => function.reply_size.learn(body_bytes(reply)),
        Err(InvocationError::Run { .. }) => function.reply_size.learn(0),
        Err(_) => {}
    }
    let result = result.map_err(|error| Problem::of(&error, Some(&id)));
    result_reply(room, &id, result, timing, authorised.audience)
}

/// Room for the reply of a function that has not run. Its event counts while it waits.
async fn reserve(
    gateway: &Gateway,
    outflow: &Arc<Outflow>,
    function: &LiveFunction,
    invocation: &Invocation,
) -> Result<Reservation, Problem> {
    let limit_bytes = function.spec.limits.reply_bytes;
    let replies = &gateway.replies;
    let waits = async {
        let _event_bytes = gateway
            .invoker
            .take_event_bytes(invocation.event.body.len())
            .map_err(|error| Problem::of(&error, Some(&invocation.id)))?;
        let reserved = replies.reserve_soon(outflow, &function.reply_size, limit_bytes).await;
        reserved.map_err(|error| not_run(&error))
    };
    match replies.reserve(outflow, &function.reply_size, limit_bytes) {
        Ok(room) => Ok(room),
        // Few come here, and the others need no room for it.
        Err(_) => Box::pin(waits).await,
    }
}

/// The name in `/workflows/NAME`, or of a workflow that is called like a function.
fn workflow_name(gateway: &Gateway, path: &str) -> Option<String> {
    if let Some(name) = path.strip_prefix("/workflows/") {
        return Some(name.to_owned());
    }
    let name = path.strip_prefix("/fn/")?;
    let routes = gateway.registry.routes();
    (routes.function(name).is_none() && routes.workflow(name).is_some()).then(|| name.to_owned())
}

/// What a request is for.
struct Routed {
    function: Arc<LiveFunction>,
    /// As the function sees it.
    path: String,
    /// What the request needs.
    wanted: HttpAuth,
    /// The function's manifest says that it needs nothing.
    open: bool,
}

/// What a request is for, or the answer that there is no such thing.
fn route(gateway: &Gateway, request: &Request<Incoming>) -> Result<Routed, Box<HttpReply>> {
    let path = request.uri().path();
    let routes = gateway.registry.routes();
    if let Some(rest) = path.strip_prefix("/fn/") {
        let (name, rest) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        return match routes.function(name) {
            Some(function) => Ok(Routed {
                function: function.clone(),
                path: rest.to_owned(),
                wanted: gateway.auth.of_function(function),
                open: false,
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
        Some(target) => Ok(Routed {
            function: target.function.clone(),
            path: path.to_owned(),
            wanted: gateway.auth.of_trigger(target.auth),
            open: target.auth == Some(HttpAuth::None),
        }),
        None => {
            let allowed = route.allowed();
            let detail = format!("{path} does not take {method}; it takes {allowed}");
            let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
            if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                reply.headers_mut().insert(ALLOW, allowed);
            }
            Err(Box::new(reply))
        }
    }
}

/// All headers as text; bytes that are none become replacement characters.
fn header_list(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}
