//! Pages of the dashboard, and `/session`: sign-in (POST), sign-out (DELETE), facts of the session (GET; `null` without one).

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use edgefaas_functions::problem::{MEDIA_TYPE, Problem};
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use super::sessions::{Session, SigningIn};
use super::{ClientAddress, SESSION_PATH, Web};
use crate::access::{Role, SignInError};

/// Maximum size of a sign-in, in bytes.
const MAX_SIGN_IN_BYTES: usize = 8 << 10;
/// Everything comes from this port, and nothing is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The body of a sign-in: `{"user": …, "password": …}` or `{"token": …}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum SignIn {
    Token { token: String },
    User { user: String, password: String },
}

/// The facts of a session.
#[derive(Serialize)]
struct SessionFacts<'a> {
    /// `null`: the holder of the admin token.
    user: Option<&'a str>,
    role: Role,
    expires_unix_s: u64,
    node_id: &'a str,
    tag: String,
}

pub(super) fn routes(web: Arc<Web>) -> Router {
    let session = get(facts).post(sign_in).delete(sign_out);
    let mut router = Router::new().route(SESSION_PATH, session);
    for file in edgefaas_dashboard::FILES {
        router = router.route(file.path, get(page));
    }
    router.with_state(web)
}

/// True for the path of a file of the dashboard.
pub(super) fn is_page(path: &str) -> bool {
    edgefaas_dashboard::file(path).is_some()
}

/// A file of the dashboard. Browsers ask for it with the tag that they have, and get it again only if it has changed.
async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let Some(file) = edgefaas_dashboard::file(uri.path()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let general = [
        (ETAG, file.etag),
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ];
    let mut tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_same = |tag: &str| tag == "*" || tag.trim_start_matches("W/") == file.etag;
    if tags.any(|tags| tags.split(',').any(|tag| is_same(tag.trim()))) {
        return (StatusCode::NOT_MODIFIED, general).into_response();
    }
    let media_type = [(CONTENT_TYPE, file.media_type)];
    match takes_gzip(&headers) {
        true => (general, media_type, [(CONTENT_ENCODING, "gzip")], file.gzip).into_response(),
        false => match file.content() {
            Ok(content) => (general, media_type, content).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        },
    }
}

/// True if a client takes gzip: RFC 9110, section 12.5.3. `q=0` refuses it.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let quality = |coding: &str| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).and_then(|q| q.parse::<f32>().ok());
        (name, quality.unwrap_or(1.0))
    };
    let codings: Vec<_> = values.flat_map(|value| value.split(',')).map(quality).collect();
    let of = |wanted: &str| codings.iter().find(|(name, _)| name == wanted).map(|(_, quality)| *quality);
    of("gzip").or_else(|| of("*")).is_some_and(|quality| quality > 0.0)
}

async fn facts(State(web): State<Arc<Web>>, headers: HeaderMap) -> Response {
    match web.sessions.find(&headers, &web.access) {
        Some(session) => answer(&web, &session, session.renewed.clone()),
        None => ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], "null").into_response(),
    }
}

async fn sign_in(
    State(web): State<Arc<Web>>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    body: Body,
) -> Response {
    let Ok(body) = to_bytes(body, MAX_SIGN_IN_BYTES).await else {
        return refusal(413, "Sign-in too large", "a sign-in has at most 8 KiB");
    };
    let Ok(sign_in) = serde_json::from_slice(&body) else {
        let detail = "a sign-in is {\"user\": …, \"password\": …} or {\"token\": …}";
        return refusal(400, "Invalid sign-in", detail);
    };
    let who = match sign_in {
        SignIn::Token { token } if web.guard.is_token(&token) => SigningIn::Token,
        SignIn::Token { .. } => {
            web.access.hold_back(address).await;
            let detail =
                "the token is wrong; the right one is in the file `token` of the node's data directory";
            return refusal(401, "Not signed in", detail);
        }
        SignIn::User { user, password } => match web.access.sign_in(&user, &password, address).await {
            Ok(signed_in) => SigningIn::User(user, signed_in),
            Err(error) => {
                let status = match error {
                    SignInError::Wrong => 401,
                    SignInError::NoRole { .. } => 403,
                    SignInError::Busy => 429,
                };
                return refusal(status, "Not signed in", error.to_string());
            }
        },
    };
    let (cookie, session) = web.sessions.begin(who);
    answer(&web, &session, Some(cookie))
}

async fn sign_out(State(web): State<Arc<Web>>, headers: HeaderMap) -> Response {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, web.sessions.end(&headers).await)]).into_response()
}

fn answer(web: &Web, session: &Session, cookie: Option<HeaderValue>) -> Response {
    let facts = SessionFacts {
        user: session.caller.user(),
        role: session.caller.role(),
        expires_unix_s: session.expires_unix_s,
        node_id: &web.node_id,
        tag: session.tag(),
    };
    // This cannot fail: the facts are texts and numbers.
    let text = serde_json::to_vec(&facts).unwrap_or_default();
    let mut response =
        ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], text).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

fn refusal(status: u16, title: &'static str, detail: impl Into<String>) -> Response {
    let status_code = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = [(CONTENT_TYPE, MEDIA_TYPE), (CACHE_CONTROL, "no-store")];
    (status_code, headers, Problem::new(status, title, detail).to_json()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let takes = |accept: &str| {
            takes_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_str(accept).unwrap())]))
        };
        for accept in ["gzip", "deflate, GZIP;q=0.5, br", "*", "br, *;q=0.1"] {
            assert!(takes(accept), "{accept}");
        }
        for accept in ["", "identity", "gzip;q=0", "gzip; q=0.0, *", "br", "xgzip", "*;q=0"] {
            assert!(!takes(accept), "{accept}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
