//! Bearer tokens of requests, and token files.

use std::path::{Path, PathBuf};

use edgefaas_platform::replace_file;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The token cannot be read or created.
#[derive(Debug, thiserror::Error)]
#[error("the token {path} cannot be read or made: {reason}")]
pub struct TokenError {
    path: PathBuf,
    reason: std::io::Error,
}

/// Reads the token from a file; the first call draws it.
pub fn token_in(path: &Path) -> Result<String, TokenError> {
    let failed = |reason| TokenError { path: path.to_owned(), reason };
    match std::fs::read_to_string(path) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let token = blake3::Hash::from_bytes(rand::random()).to_hex().to_string();
    // Atomic: a crash leaves no partial token.
    replace_file(path, format!("{token}\n").as_bytes()).map_err(failed)?;
    Ok(token)
}

/// The token in `authorization: Bearer TOKEN`; `None` without such a header or with several.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once([' ', '\t'])?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
