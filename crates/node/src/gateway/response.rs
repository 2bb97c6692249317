//! HTTP responses of the gateway: results of functions and workflows, and problems (RFC 9457).

use bytes::Bytes;
use edgefaas_functions::answer::body_of;
use edgefaas_functions::invocation::{InvocationError, Timing};
use edgefaas_functions::problem::{self, Audience, Problem};
use edgefaas_isolates::{HttpResponse, Reply, RunError};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

use super::reply_budget::{ReplyBudgetFull, Reservation};
use super::request_body::{BODY_TIMEOUT, BodyError};

pub(super) const INVOCATION_ID: HeaderName = HeaderName::from_static("invocation-id");
const INVOCATION_NODE: HeaderName = HeaderName::from_static("invocation-node");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Headers that belong to a connection and not to a message (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A response of the gateway.
pub(super) type HttpReply = Response<Full<Bytes>>;

/// The problem of a call that was not made because its reply found no memory.
pub(super) fn no_reply_memory(error: &ReplyBudgetFull) -> Problem {
    Problem::new(503, "No memory for replies", format!("the call was not made: {error}; try again"))
}

/// The problem of a request body that was not received.
pub(super) fn body_problem(name: &str, limit_bytes: usize, error: BodyError) -> Problem {
    match error {
        BodyError::TooLarge { actual_bytes } => {
            let function = name.to_owned();
            let error = InvocationError::PayloadTooLarge { function, actual_bytes, limit_bytes };
            Problem::of(&error, None)
        }
        BodyError::NoMemory { max_bytes } => {
            let detail = format!(
                "the limit for the memory of all request bodies is {max_bytes} bytes, that for one address half of it; \
                 try again"
            );
            Problem::new(503, "No memory for bodies", detail)
        }
        BodyError::Evicted => {
            let detail = "the body came too slowly, and other requests needed its memory; send it faster";
            Problem::new(503, "No memory for bodies", detail)
        }
        BodyError::TooSlow => {
            let detail = format!("the body was not complete within {BODY_TIMEOUT:?}");
            Problem::new(408, "Request timeout", detail)
        }
        BodyError::Broken(reason) => {
            let detail = format!("the body could not be read: {reason}");
            Problem::new(400, "Bad request body", detail)
        }
    }
}

pub(super) fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The response to a call of a function or workflow.
pub(super) fn result_reply(
    reservation: Reservation,
    id: &str,
    result: Result<Reply, Problem>,
    timing: Timing,
    audience: Audience,
) -> HttpReply {
    let response = result.and_then(|reply| match body_of(reply) {
        Ok((body, media_type)) => {
            let mut response = Response::new(Full::new(hold_until_sent(reservation, body)?));
            match media_type {
                Some(media_type) => {
                    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
                }
                None => *response.status_mut() = StatusCode::NO_CONTENT,
            }
            Ok(response)
        }
        Err(mut response) => {
            response.body = hold_until_sent(reservation, response.body)?;
            function_response(response).map_err(|error| Problem::of(&error, Some(id)))
        }
    });
    let mut reply = response.unwrap_or_else(|problem| problem_reply(&problem.shown_to(audience)));
    let headers = reply.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(INVOCATION_ID, id);
    }
    if let Ok(timing) = HeaderValue::from_str(&server_timing(timing)) {
        headers.append(SERVER_TIMING, timing);
    }
    reply
}

/// Names the node that ran an invocation.
pub(super) fn set_node(reply: &mut HttpReply, name: &str) {
    if let Ok(name) = HeaderValue::from_str(name) {
        reply.headers_mut().insert(INVOCATION_NODE, name);
    }
}

/// Accounts the body of a reply until it is sent.
fn hold_until_sent(reservation: Reservation, body: Bytes) -> Result<Bytes, Problem> {
    let bytes = body.len();
    reservation.hold(body).map_err(|error| {
        let detail = format!(
            "the call was made, but its reply of {bytes} bytes is larger than expected: {error}; the outcome of a \
             durable invocation can be requested again"
        );
        Problem::new(503, "No memory for replies", detail)
    })
}

/// Converts the HTTP response of a function; drops the headers that only the gateway may set.
fn function_response(response: HttpResponse) -> Result<HttpReply, InvocationError> {
    let invalid = |reason: String| InvocationError::Run {
        function: String::new(),
        error: RunError::InvalidReply { reason },
    };
    let status = StatusCode::from_u16(response.status).map_err(|error| invalid(error.to_string()))?;
    let mut reply = Response::new(Full::new(response.body));
    *reply.status_mut() = status;
    for (name, value) in response.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(&value).ok());
        let Some((name, value)) = parsed else {
            return Err(invalid(format!("`{name}: {value}` is not a valid header")));
        };
        if !HOP_BY_HOP.contains(&name.as_str()) && reply.headers_mut().try_append(name, value).is_err() {
            return Err(invalid("it has too many headers".to_owned()));
        }
    }
    Ok(reply)
}

pub(super) fn problem_reply(problem: &Problem) -> HttpReply {
    let mut reply = Response::new(Full::new(Bytes::from(problem.to_json())));
    *reply.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
    if [429, 503].contains(&problem.status) {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply
}

/// Value of `Server-Timing`, with durations in milliseconds.
fn server_timing(timing: Timing) -> String {
    let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    format!(
        "queue;dur={:.3}, start;dur={:.3}, exec;dur={:.3}",
        ms(timing.queue),
        ms(timing.start),
        ms(timing.execution)
    )
}
