//! Who may use the control port: whoever can read the token file.

use std::path::Path;

use axum::response::{IntoResponse, Response};
use edgefaas_functions::problem::{MEDIA_TYPE, Problem};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::connections::Visitor;
use crate::access::{TokenError, bearer, token_in};

/// The token's file in the data directory.
pub const TOKEN_FILE: &str = "token";
/// Paths that need no token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The node's admin token: read from the data directory, or drawn and written there at the first start,
/// readable only by its owner.
pub fn admin_token(data_dir: &Path) -> Result<String, TokenError> {
    token_in(&data_dir.join(TOKEN_FILE))
}

/// Knows the token, but not by heart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard(blake3::Hash);

impl Guard {
    pub fn new(token: &str) -> Self {
        Self(blake3::hash(token.as_bytes()))
    }

    /// Refuses every request without the token, but those for health, by the answer it gives.
    pub fn check<B>(&self, request: &http::Request<B>, visitor: &Visitor) -> Result<(), Box<Response>> {
        // Hashes are compared, which takes the same time wherever a guess goes wrong.
        let bears = bearer(request.headers()).is_some_and(|token| blake3::hash(token.as_bytes()) == self.0);
        if bears {
            visitor.is_known();
        }
        match bears || OPEN_PATHS.contains(&request.uri().path()) {
            true => Ok(()),
            false => Err(Box::new(refuse(request.headers()))),
        }
    }
}

/// The answer to a request that breaks the rules of HTTP/1, after which the connection is closed.
pub(super) fn bad_request(problem: &Problem) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (http::header::CONNECTION, HeaderValue::from_static("close")),
    ];
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, headers, problem.to_json()).into_response()
}

fn refuse(headers: &HeaderMap) -> Response {
    const DETAIL: &str = "the control port needs `authorization: Bearer TOKEN`; \
                          the token is in the file `token` of the node's data directory";
    let grpc = headers
        .get(CONTENT_TYPE)
        .is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/grpc"));
    if grpc {
        return tonic::Status::unauthenticated(DETAIL).into_http();
    }
    let problem = Problem::new(401, "Not authorized", DETAIL).to_json();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
    ];
    (StatusCode::UNAUTHORIZED, headers, problem).into_response()
}
