//! Who may use the control port: whoever can read the token file.

use std::path::{Path, PathBuf};

use axum::response::{IntoResponse, Response};
use edgefaas_functions::problem::{MEDIA_TYPE, Problem};
use edgefaas_platform::replace_file;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::connections::Visitor;

/// The token's file in the data directory.
pub const TOKEN_FILE: &str = "token";
/// Paths that need no token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The token can't be read or made.
#[derive(Debug, thiserror::Error)]
#[error("the token {path} cannot be read or made: {reason}")]
pub struct TokenError {
    path: PathBuf,
    reason: std::io::Error,
}

/// The node's admin token: read from the data directory, or drawn and written there at the first start,
/// readable only by its owner.
pub fn admin_token(data_dir: &Path) -> Result<String, TokenError> {
    token_in(&data_dir.join(TOKEN_FILE))
}

/// A token in a file, which is drawn if it is not there.
pub(crate) fn token_in(path: &Path) -> Result<String, TokenError> {
    let failed = |reason| TokenError { path: path.to_owned(), reason };
    match std::fs::read_to_string(path) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let token = blake3::Hash::from_bytes(rand::random()).to_hex().to_string();
    // At once: a node that dies half-way leaves no half token.
    replace_file(path, format!("{token}\n").as_bytes()).map_err(failed)?;
    Ok(token)
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

/// The token in `authorization: Bearer TOKEN`; none if there are several such headers, which nobody can choose from.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once([' ', '\t'])?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
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
