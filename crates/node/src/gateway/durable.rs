//! Durable invocations over HTTP, of functions and workflows: `Prefer: respond-async`, `Idempotency-Key`, and
//! `/invocations/ID`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::durable::{Accepted, Digest, Durable, Keep, Lookup, digest};
use edgefaas_functions::invocation::Invocation;
use edgefaas_functions::problem::{Audience, Problem};
use edgefaas_functions::registry::LiveFunction;
use edgefaas_isolates::Trigger;
use edgefaas_manifest::HttpAuth;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use ulid::Ulid;

use super::Gateway;
use super::auth::{Authorised, Caller};
use super::response::{HttpReply, INVOCATION_ID, problem_reply, result_reply, set_node};
use super::websocket::WebSocketUpgrade;
use super::write_progress::WriteProgress;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const RESPOND_ASYNC: &str = "respond-async";
/// Maximum size of an idempotency key.
const MAX_KEY_BYTES: usize = 255;
/// Wait for an outcome in addition to the timeout of one attempt: a durable invocation may have several attempts.
const RETRY_WAIT: Duration = Duration::from_secs(30);

/// Headers of a request for a durable invocation.
pub(super) struct DurableRequest {
    /// The client does not wait for the outcome.
    pub(super) respond_async: bool,
    pub(super) idempotency_key: Option<Vec<u8>>,
}

/// Parses the headers that request a durable invocation; `None` if the request has none of them.
///
/// # Errors
/// Status 400 for an invalid idempotency key.
pub(super) fn parse_headers(headers: &HeaderMap) -> Result<Option<DurableRequest>, Problem> {
    // RFC 7240: a header may contain several preferences and may be repeated; a preference may have parameters.
    let preferences = headers.get_all(PREFER).into_iter().filter_map(|value| value.to_str().ok());
    let respond_async = preferences
        .flat_map(|value| value.split(','))
        .filter_map(|preference| preference.split(';').next())
        .any(|preference| preference.trim().eq_ignore_ascii_case(RESPOND_ASYNC));
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).into_iter();
    let idempotency_key = match (keys.next(), keys.next()) {
        (None, _) => None,
        (Some(key), None) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Some(key.as_bytes().to_vec()),
        _ => {
            let detail = format!("`Idempotency-Key` is one value of 1 to {MAX_KEY_BYTES} bytes");
            return Err(Problem::new(400, "Bad idempotency key", detail));
        }
    };
    let is_durable = respond_async || idempotency_key.is_some();
    Ok(is_durable.then_some(DurableRequest { respond_async, idempotency_key }))
}

/// Recipient of a reply.
#[derive(Clone, Copy)]
pub(super) struct Recipient<'a> {
    /// Its connection.
    pub(super) progress: &'a Arc<WriteProgress>,
    /// Determines how much detail the reply contains.
    pub(super) audience: Audience,
}

/// How long a reply waits for an outcome.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// The reply is 202 after this time.
    UpTo(Duration),
    /// The reply waits for the outcome: a workflow has no time limit of its own.
    Unlimited,
}

/// Accepts a durable invocation. Replies with the location of its outcome, or waits for the outcome.
pub(super) async fn accept(
    gateway: &Gateway,
    function: Arc<LiveFunction>,
    invocation: Invocation,
    request: DurableRequest,
    authorised: &Authorised,
    progress: &Arc<WriteProgress>,
) -> HttpReply {
    let recipient = Recipient { progress, audience: authorised.audience };
    let key = request.idempotency_key.map(|key| {
        let headers = match &invocation.event.trigger {
            Trigger::Http(request) => request.headers.as_slice(),
            _ => &[],
        };
        let caller = caller_digest(&authorised.caller, headers);
        let key = digest(&[b"http", function.name.as_bytes(), &caller, &key]);
        (key, request_digest(&invocation))
    });
    let keep = Keep { key: key.map(|(key, _)| key), auth: Some(auth_code(authorised.required)) };
    let durable = Durable { keep: Some(keep), ..Durable::default() };
    let id = invocation.id.clone();
    let patience = Patience::UpTo(function.spec.limits.timeout + RETRY_WAIT);
    match gateway.durable.accept(function, invocation, durable, key).await {
        Ok(Accepted::As(id)) => {
            accepted_reply(gateway, id, request.respond_async, patience, recipient).await
        }
        Ok(Accepted::Conflict) => key_conflict(),
        Err(error) => problem_reply(&Problem::of(&error, Some(&id)).shown_to(recipient.audience)),
    }
}

/// Replies to a call that this request or an earlier one with the same key has made.
pub(super) async fn accepted_reply(
    gateway: &Gateway,
    id: Ulid,
    respond_async: bool,
    patience: Patience,
    recipient: Recipient<'_>,
) -> HttpReply {
    if !respond_async {
        return await_outcome(gateway, id, patience, recipient).await;
    }
    // The first request with this key may not be stored yet.
    gateway.durable.settled(id).await;
    match gateway.durable.lookup(id) {
        Ok(Lookup::Unknown) => return not_accepted(),
        Ok(_) => {}
        Err(error) => return store_problem(&error),
    }
    let mut reply = pending_reply(id);
    reply.headers_mut().insert(PREFERENCE_APPLIED, HeaderValue::from_static(RESPOND_ASYNC));
    reply
}

/// The reply to a key that another request has used.
pub(super) fn key_conflict() -> HttpReply {
    let detail =
        "this `Idempotency-Key` was used for another request before; use a new key for each request";
    problem_reply(&Problem::new(422, "Idempotency key used before", detail))
}

/// The stored form of the credential that a call required, see [`Keep::auth`].
pub(super) fn auth_code(required: HttpAuth) -> u8 {
    match required {
        HttpAuth::None => 0,
        HttpAuth::Jwt => 1,
        HttpAuth::Token => 2,
    }
}

/// Answers `GET /invocations/ID`.
pub(super) async fn poll(
    gateway: &Gateway,
    upgrade: &WebSocketUpgrade,
    progress: &Arc<WriteProgress>,
    id: &str,
    request: &Request<Incoming>,
) -> HttpReply {
    let known = match Ulid::from_string(id) {
        Ok(id) => gateway.durable.lookup(id).map(|lookup| (id, lookup)),
        Err(_) => Ok((Ulid::nil(), Lookup::Unknown)),
    };
    let (id, lookup) = match known {
        Ok(known) => known,
        Err(error) => return store_problem(&error),
    };
    // Reading an outcome requires the credential that the call required.
    let checked = match &lookup {
        Lookup::Pending(call) | Lookup::Done(call, _) => {
            let routes = gateway.registry.routes();
            let required = match (call.auth, routes.function(&call.function)) {
                (Some(0), _) => HttpAuth::None,
                (Some(1), _) => HttpAuth::Jwt,
                (None, Some(function)) => gateway.auth.required_by_function(function),
                (None, None) if routes.workflow(&call.function).is_some() => {
                    gateway.auth.required_by_trigger(None)
                }
                _ => HttpAuth::Token,
            };
            gateway.auth.check(required, &call.function, &mut request.headers().clone())
        }
        Lookup::Gone | Lookup::Unknown => gateway.auth.check_default(request.headers()),
    };
    let authorised = match checked {
        Err(refused) => return gateway.auth.refuse(refused, upgrade.address()).await,
        Ok(authorised) => authorised,
    };
    if let Err(problem) = authorised.check_page(upgrade, request.headers()) {
        return problem_reply(&problem);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let detail = format!("/invocations/ID accepts GET and HEAD, not {}", request.method());
        let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    lookup_reply(gateway, id, lookup, Recipient { progress, audience: authorised.audience })
}

async fn await_outcome(
    gateway: &Gateway,
    id: Ulid,
    patience: Patience,
    recipient: Recipient<'_>,
) -> HttpReply {
    let ended = gateway.durable.ended(id);
    let claimed = gateway.durable.is_claimed(id);
    match gateway.durable.lookup(id) {
        Ok(Lookup::Pending(_)) => {}
        // The invocation is being stored; `ended` also fires if storing fails.
        Ok(Lookup::Unknown) if claimed => {}
        Ok(Lookup::Unknown) => return not_accepted(),
        Ok(lookup) => return lookup_reply(gateway, id, lookup, recipient),
        Err(error) => return store_problem(&error),
    }
    match patience {
        Patience::UpTo(wait) => {
            if tokio::time::timeout(wait, ended).await.is_err() {
                // The invocation continues.
                return pending_reply(id);
            }
        }
        // The sender is dropped when the node stops.
        Patience::Unlimited => drop(ended.await),
    }
    match gateway.durable.lookup(id) {
        Ok(Lookup::Unknown) => not_accepted(),
        Ok(lookup) => lookup_reply(gateway, id, lookup, recipient),
        Err(error) => store_problem(&error),
    }
}

fn not_accepted() -> HttpReply {
    let detail = "an earlier request with the same key was not accepted; try again";
    problem_reply(&Problem::new(503, "Not accepted", detail))
}

fn lookup_reply(gateway: &Gateway, id: Ulid, lookup: Lookup, recipient: Recipient<'_>) -> HttpReply {
    match lookup {
        Lookup::Pending(_) => pending_reply(id),
        Lookup::Done(_, ended) => {
            let (result, timing) = ended.outcome.into_result(id);
            // The outcome is stored and can be requested again, so nothing was reserved before.
            let reservation = gateway.replies.unreserved(recipient.progress);
            let mut reply = result_reply(reservation, &id.to_string(), result, timing, recipient.audience);
            if let Some(node) = &ended.node {
                set_node(&mut reply, node);
            }
            reply
        }
        Lookup::Gone => {
            let detail = "the outcome of this invocation, if there was one, is no longer stored".to_owned();
            let detail = detail + other_node(gateway);
            problem_reply(&Problem::new(410, "Outcome not kept", detail))
        }
        Lookup::Unknown => {
            let detail = "no invocation has this id, or its outcome is not kept".to_owned();
            let detail = detail + other_node(gateway);
            problem_reply(&Problem::new(404, "Unknown invocation", detail))
        }
    }
}

/// In a cluster another node may have the outcome.
fn other_node(gateway: &Gateway) -> &'static str {
    match gateway.invoker.this_node() {
        Some(_) => " here; ask the node that accepted the request",
        None => "",
    }
}

fn pending_reply(id: Ulid) -> HttpReply {
    let id = id.to_string();
    let body = serde_json::json!({ "invocation": id, "status": "pending" }).to_string();
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = StatusCode::ACCEPTED;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    for (name, value) in [(LOCATION, format!("/invocations/{id}")), (INVOCATION_ID, id)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    reply
}

pub(super) fn store_problem(error: &edgefaas_state::store::StoreError) -> HttpReply {
    tracing::error!(%error, "an outcome cannot be read");
    problem_reply(&Problem::new(500, "Store failed", "the outcome could not be read; see the node's log"))
}

/// Identifies the caller, so that an idempotency key never returns the outcome of another caller. A caller without a
/// credential for the node may have one for the function: the headers `authorization` and `cookie` count.
pub(super) fn caller_digest(caller: &Caller, headers: &[(String, String)]) -> Digest {
    match caller {
        Caller::Operator => digest(&[b"operator"]),
        Caller::User(user) => digest(&[b"user", user.as_bytes()]),
        Caller::Unknown => {
            let credentials =
                headers.iter().filter(|(name, _)| ["authorization", "cookie"].contains(&&**name));
            let credentials = credentials.flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
            digest(&[&b"unknown"[..]].into_iter().chain(credentials).collect::<Vec<_>>())
        }
    }
}

/// Identifies a request: a repeated request with the same idempotency key must have the same method, path, query and body.
fn request_digest(invocation: &Invocation) -> Digest {
    match &invocation.event.trigger {
        Trigger::Http(request) => digest(&[
            request.method.as_bytes(),
            request.path.as_bytes(),
            request.query.as_bytes(),
            &invocation.event.body,
        ]),
        _ => digest(&[&invocation.event.body]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn respond_async_is_found_among_other_preferences() {
        for (value, expected) in [
            ("respond-async", true),
            ("handling=lenient, Respond-Async; wait=10", true),
            ("respond-asynchronously", false),
            ("wait=10", false),
        ] {
            let found = parse_headers(&headers(&[("prefer", value)])).unwrap();
            assert_eq!(found.is_some_and(|request| request.respond_async), expected, "{value}");
        }
    }

    #[test]
    fn an_idempotency_key_is_one_value_of_1_to_255_bytes() {
        assert!(
            parse_headers(&headers(&[("idempotency-key", "\"a-1\"")]))
                .unwrap()
                .unwrap()
                .idempotency_key
                .is_some()
        );
        for bad in [vec![("idempotency-key", "")], vec![("idempotency-key", "a"), ("idempotency-key", "b")]]
        {
            assert_eq!(parse_headers(&headers(&bad)).err().unwrap().status, 400);
        }
        assert!(parse_headers(&headers(&[("idempotency-key", &"x".repeat(256))])).is_err());
    }
}
