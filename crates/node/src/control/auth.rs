//! Authentication at the control port by the token file.

use std::path::Path;

use axum::response::{IntoResponse, Response};
use edgefaas_functions::problem::{MEDIA_TYPE, Problem};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::connections::ClientConnection;
use crate::access::{TokenError, bearer, token_in};

/// Name of the token's file in the data directory.
pub const TOKEN_FILE: &str = "token";
/// Paths that need no token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The node's admin token, read from the data directory. The first start draws it and writes the file, readable only by
/// its owner.
pub fn admin_token(data_dir: &Path) -> Result<String, TokenError> {
    token_in(&data_dir.join(TOKEN_FILE))
}

/// Hash of the token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard(blake3::Hash);

impl Guard {
    pub fn new(token: &str) -> Self {
        Self(blake3::hash(token.as_bytes()))
    }

    /// Refuses a request without the token, unless its path needs none. The error is the response.
    pub fn check<B>(
        &self,
        request: &http::Request<B>,
        connection: &ClientConnection,
    ) -> Result<(), Box<Response>> {
        // `blake3::Hash` compares in constant time.
        let has_token =
            bearer(request.headers()).is_some_and(|token| blake3::hash(token.as_bytes()) == self.0);
        if has_token {
            connection.mark_authenticated();
        }
        match has_token || OPEN_PATHS.contains(&request.uri().path()) {
            true => Ok(()),
            false => Err(Box::new(refuse(request.headers()))),
        }
    }
}

/// The response to a request that violates HTTP/1; the connection is closed after it.
pub(super) fn bad_request(problem: &Problem) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (http::header::CONNECTION, HeaderValue::from_static("close")),
    ];
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, headers, problem.to_json()).into_response()
}

fn refuse(headers: &HeaderMap) -> Response {
    const NONE: &str = "the control port needs `authorization: Bearer TOKEN`; \
                        the token is in the file `token` of the node's data directory";
    const WRONG: &str = "the token is wrong, it is not that of this node; \
                         the right one is in the file `token` of the node's data directory";
    let detail = if headers.contains_key(AUTHORIZATION) { WRONG } else { NONE };
    let grpc = headers
        .get(CONTENT_TYPE)
        .is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/grpc"));
    if grpc {
        return tonic::Status::unauthenticated(detail).into_http();
    }
    let problem = Problem::new(401, "Not authorized", detail).to_json();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
    ];
    (StatusCode::UNAUTHORIZED, headers, problem).into_response()
}
