//! Authentication at the control port by the token file.

use std::path::Path;

use axum::response::{IntoResponse, Response};
use edgefaas_functions::problem::{MEDIA_TYPE, Problem};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::caller::Caller;
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

    /// True for the admin token.
    pub fn is_token(&self, token: &str) -> bool {
        // `blake3::Hash` compares in constant time.
        blake3::hash(token.as_bytes()) == self.0
    }

    /// Refuses a request without the token, unless its path needs none; then it has no caller. The error is the response.
    pub fn check<B>(
        &self,
        request: &http::Request<B>,
        connection: &ClientConnection,
    ) -> Result<Option<Caller>, Box<Response>> {
        if bearer(request.headers()).is_some_and(|token| self.is_token(token)) {
            connection.mark_authenticated();
            return Ok(Some(Caller::Token));
        }
        match OPEN_PATHS.contains(&request.uri().path()) {
            true => Ok(None),
            false => Err(Box::new(refuse(request.headers()))),
        }
    }
}

/// The response to a request that violates HTTP/1; the connection is closed after it.
pub(super) fn bad_request(problem: &Problem) -> Response {
    let mut response = problem_response(problem);
    response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The response to a request that the port does not carry out.
pub(super) fn forbidden(headers: &HeaderMap, problem: &Problem) -> Response {
    match is_grpc(headers) {
        true if problem.status == 429 => {
            tonic::Status::resource_exhausted(problem.detail.clone()).into_http()
        }
        true if problem.status == 409 => tonic::Status::aborted(problem.detail.clone()).into_http(),
        true => tonic::Status::permission_denied(problem.detail.clone()).into_http(),
        false => problem_response(problem),
    }
}

pub(super) fn problem_response(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = [(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE))];
    (status, headers, problem.to_json()).into_response()
}

/// True for gRPC and gRPC-Web.
fn is_grpc(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE);
    media_type.is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/grpc"))
}

fn refuse(headers: &HeaderMap) -> Response {
    const NONE: &str = "the control port needs `authorization: Bearer TOKEN`; \
                        the token is in the file `token` of the node's data directory";
    const WRONG: &str = "the token is wrong, it is not that of this node; \
                         the right one is in the file `token` of the node's data directory";
    let detail = if headers.contains_key(AUTHORIZATION) { WRONG } else { NONE };
    if is_grpc(headers) {
        return tonic::Status::unauthenticated(detail).into_http();
    }
    let problem = Problem::new(401, "Not authorized", detail).to_json();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)),
        (http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
    ];
    (StatusCode::UNAUTHORIZED, headers, problem).into_response()
}
