//! Durable invocations over HTTP: `Prefer: respond-async`, `Idempotency-Key`, and `/invocations/ID`.

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

use super::auth::{Authorised, Caller};
use super::outflow::Outflow;
use super::parts::Gateway;
use super::reply::{HttpReply, INVOCATION_ID, problem_reply, result_reply};
use super::websocket::Upgrading;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const RESPOND_ASYNC: &str = "respond-async";
/// The longest idempotency key, in bytes.
const KEY_BYTES: usize = 255;
/// How much longer than one run may take a request waits for its answer; runs may be repeated.
const FURTHER_WAIT: Duration = Duration::from_secs(30);

/// What a request wants of a durable invocation.
pub(super) struct Wanted {
    /// The answer is not awaited.
    respond_async: bool,
    key: Option<Vec<u8>>,
}

/// What a request asks for with its headers: nothing, or a durable invocation.
///
/// # Errors
/// The idempotency key is none.
pub(super) fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Problem> {
    // RFC 7240: several preferences in one header or in several, each perhaps with parameters.
    let preferences = headers.get_all(PREFER).into_iter().filter_map(|value| value.to_str().ok());
    let respond_async = preferences
        .flat_map(|value| value.split(','))
        .filter_map(|preference| preference.split(';').next())
        .any(|preference| preference.trim().eq_ignore_ascii_case(RESPOND_ASYNC));
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).into_iter();
    let key = match (keys.next(), keys.next()) {
        (None, _) => None,
        (Some(key), None) if (1..=KEY_BYTES).contains(&key.len()) => Some(key.as_bytes().to_vec()),
        _ => {
            let detail = format!("`Idempotency-Key` is one value of 1 to {KEY_BYTES} bytes");
            return Err(Problem::new(400, "Bad idempotency key", detail));
        }
    };
    Ok((respond_async || key.is_some()).then_some(Wanted { respond_async, key }))
}

/// Who reads a reply.
#[derive(Clone, Copy)]
struct Reader<'a> {
    /// The connection it goes to.
    outflow: &'a Arc<Outflow>,
    /// What may be in it.
    audience: Audience,
}

/// Accepts an invocation; then tells where its outcome will be, or waits for it.
pub(super) async fn accept(
    gateway: &Gateway,
    function: Arc<LiveFunction>,
    invocation: Invocation,
    wanted: Wanted,
    authorised: &Authorised,
    outflow: &Arc<Outflow>,
) -> HttpReply {
    let reader = Reader { outflow, audience: authorised.audience };
    let key = wanted.key.map(|key| {
        let key = digest(&[
            b"http",
            function.name.as_bytes(),
            &caller_digest(&authorised.caller, &invocation),
            &key,
        ]);
        (key, request_digest(&invocation))
    });
    let auth = match authorised.needed {
        HttpAuth::None => 0,
        HttpAuth::Jwt => 1,
        HttpAuth::Token => 2,
    };
    let keep = Keep { key: key.map(|(key, _)| key), auth: Some(auth) };
    let durable = Durable { keep: Some(keep), ..Durable::default() };
    let id = invocation.id.clone();
    let wait = function.spec.limits.timeout + FURTHER_WAIT;
    match gateway.durable.accept(function, invocation, durable, key).await {
        Ok(Accepted::As(id)) if wanted.respond_async => {
            // The first request with its key may be in flight to the disk.
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
        Ok(Accepted::As(id)) => await_outcome(gateway, id, wait, reader).await,
        Ok(Accepted::Conflict) => {
            let detail = "this `Idempotency-Key` came with another request before; use a new one for each";
            problem_reply(&Problem::new(422, "Idempotency key used before", detail))
        }
        Err(error) => problem_reply(&Problem::of(&error, Some(&id)).shown_to(reader.audience)),
    }
}

/// Answers `GET /invocations/ID`.
pub(super) async fn poll(
    gateway: &Gateway,
    upgrading: &Upgrading,
    outflow: &Arc<Outflow>,
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
    // Who may ask for an outcome is who may have asked for it to come about.
    let checked = match &lookup {
        Lookup::Pending(asked) | Lookup::Done(asked, _) => {
            let routes = gateway.registry.routes();
            let wanted = match (asked.auth, routes.function(&asked.function)) {
                (Some(0), _) => HttpAuth::None,
                (Some(1), _) => HttpAuth::Jwt,
                (None, Some(function)) => gateway.auth.of_function(function),
                _ => HttpAuth::Token,
            };
            gateway.auth.check(wanted, &asked.function, &mut request.headers().clone())
        }
        Lookup::Gone | Lookup::Unknown => gateway.auth.check_default(request.headers()),
    };
    let authorised = match checked {
        Err(refused) => return gateway.auth.refuse(refused, upgrading.address()).await,
        Ok(authorised) => authorised,
    };
    if let Err(problem) = authorised.check_page(upgrading, request.headers()) {
        return problem_reply(&problem);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let detail = format!("/invocations/ID takes GET and HEAD, not {}", request.method());
        let mut reply = problem_reply(&Problem::new(405, "Method not allowed", detail));
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    lookup_reply(gateway, id, lookup, Reader { outflow, audience: authorised.audience })
}

async fn await_outcome(gateway: &Gateway, id: Ulid, wait: Duration, reader: Reader<'_>) -> HttpReply {
    let ended = gateway.durable.ended(id);
    let claimed = gateway.durable.is_claimed(id);
    match gateway.durable.lookup(id) {
        Ok(Lookup::Pending(_)) => {}
        // On its way to the disk: whoever brings it there tells when it has failed to.
        Ok(Lookup::Unknown) if claimed => {}
        Ok(Lookup::Unknown) => return not_accepted(),
        Ok(lookup) => return lookup_reply(gateway, id, lookup, reader),
        Err(error) => return store_problem(&error),
    }
    if tokio::time::timeout(wait, ended).await.is_err() {
        // It goes on.
        return pending_reply(id);
    }
    match gateway.durable.lookup(id) {
        Ok(Lookup::Unknown) => not_accepted(),
        Ok(lookup) => lookup_reply(gateway, id, lookup, reader),
        Err(error) => store_problem(&error),
    }
}

fn not_accepted() -> HttpReply {
    let detail = "the request with the same key that was under way could not be taken; try again";
    problem_reply(&Problem::new(503, "Not accepted", detail))
}

fn lookup_reply(gateway: &Gateway, id: Ulid, lookup: Lookup, reader: Reader<'_>) -> HttpReply {
    match lookup {
        Lookup::Pending(_) => pending_reply(id),
        Lookup::Done(_, outcome) => {
            let (result, timing) = outcome.into_result(id);
            // It is kept, and may be asked for again: there is nothing to reserve before.
            let room = gateway.replies.unreserved(reader.outflow);
            result_reply(room, &id.to_string(), result, timing, reader.audience)
        }
        Lookup::Gone => {
            let detail = "the outcome of this invocation is not kept any more, if there was one";
            problem_reply(&Problem::new(410, "Outcome not kept", detail))
        }
        Lookup::Unknown => {
            let detail = "there is no such invocation, or its outcome was not to be kept";
            problem_reply(&Problem::new(404, "Unknown invocation", detail))
        }
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

fn store_problem(error: &edgefaas_state::store::StoreError) -> HttpReply {
    tracing::error!(%error, "an outcome cannot be read");
    problem_reply(&Problem::new(500, "Store failed", "the outcome could not be read; see the node's log"))
}

/// Stands for who asks: what one caller was answered is no other one's business. Those who had to prove nothing here may
/// have to prove it to the function: what they show for that counts.
fn caller_digest(caller: &Caller, invocation: &Invocation) -> Digest {
    match caller {
        Caller::Operator => digest(&[b"operator"]),
        Caller::User(user) => digest(&[b"user", user.as_bytes()]),
        Caller::Unknown => {
            let headers = match &invocation.event.trigger {
                Trigger::Http(request) => request.headers.as_slice(),
                _ => &[],
            };
            let shown = headers.iter().filter(|(name, _)| ["authorization", "cookie"].contains(&&**name));
            let shown = shown.flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
            digest(&[&b"unknown"[..]].into_iter().chain(shown).collect::<Vec<_>>())
        }
    }
}

/// Stands for all that has to be the same where an idempotency key is.
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
    fn preferences_are_found_among_others() {
        for (value, expected) in [
            ("respond-async", true),
            ("handling=lenient, Respond-Async; wait=10", true),
            ("respond-asynchronously", false),
            ("wait=10", false),
        ] {
            let found = wanted(&headers(&[("prefer", value)])).unwrap();
            assert_eq!(found.is_some_and(|wanted| wanted.respond_async), expected, "{value}");
        }
    }

    #[test]
    fn a_key_is_one_value_of_a_sane_length() {
        assert!(wanted(&headers(&[("idempotency-key", "\"a-1\"")])).unwrap().unwrap().key.is_some());
        for bad in [vec![("idempotency-key", "")], vec![("idempotency-key", "a"), ("idempotency-key", "b")]]
        {
            assert_eq!(wanted(&headers(&bad)).err().unwrap().status, 400);
        }
        assert!(wanted(&headers(&[("idempotency-key", &"x".repeat(256))])).is_err());
    }
}
