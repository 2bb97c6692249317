//! Errors of outgoing requests.

use std::error::Error;

use edgefaas_isolates::{FetchCause, HostError};
use url::Url;

use super::MAX_REDIRECTS;
use super::caller::{GuardedAddress, ResponseLimit};
use super::cause;
use super::fair_pool::ShareError;

/// Errors of outgoing requests.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The function may not call this server.
    #[error(
        "{url} is not permitted{}: {}", 
        if *redirected { " (a redirection leads there)" } else { "" },
        remedy(guarded.as_ref(), server, owner)
    )]
    NotPermitted {
        /// The URL without query.
        url: String,
        /// True if a redirection leads to the URL.
        redirected: bool,
        /// The address, if a pattern permits the server but not its address.
        guarded: Option<GuardedAddress>,
        /// The server in the form of `permissions.http`: with its port, if it is not the default port of the scheme.
        server: String,
        /// The function or workflow.
        owner: std::sync::Arc<str>,
    },
    /// The server redirects, and the request does not allow redirections.
    #[error("{url} answered with a redirection, which the request's `redirect` does not allow")]
    Redirected {
        /// The first URL.
        url: String,
    },
    /// There are too many redirections.
    #[error("{url} redirects more than {MAX_REDIRECTS} times")]
    TooManyRedirects {
        /// The first URL.
        url: String,
    },
    /// The connection or the exchange failed.
    #[error("{server}: {reason}")]
    Failed {
        /// Host and port.
        server: String,
        /// The chain of errors as text.
        reason: String,
        /// The kind of failure.
        cause: FetchCause,
    },
    /// The answer is too large.
    #[error("the answer of {server} has more than the {} bytes that {owner} may receive{}", limit.bytes(), limit.remedy())]
    TooLarge {
        /// Host and port.
        server: String,
        /// The function or workflow.
        owner: std::sync::Arc<str>,
        /// The limit.
        limit: ResponseLimit,
    },
    /// The function's share of requests or bytes is used up.
    #[error("{server}: {reason}")]
    Overloaded {
        /// Host and port.
        server: String,
        /// The error of the pool.
        reason: ShareError,
    },
    /// Other answers in flight use up the function's share of bytes.
    #[error(
        "{server}: {owner} has no memory for the rest of the answer now, because its answers in flight use up its share of the \
         node's {capacity} bytes; try again later"
    )]
    NoRoom {
        /// Host and port.
        server: String,
        /// The function or workflow.
        owner: std::sync::Arc<str>,
        /// The bytes for all functions together.
        capacity: usize,
    },
}

fn remedy(guarded: Option<&GuardedAddress>, server: &str, owner: &str) -> String {
    match guarded {
        Some(guarded) => format!("{guarded} to permissions.http of {owner}"),
        None => format!("add `{server}` to permissions.http of {owner}"),
    }
}

impl FetchError {
    /// The request to `url` failed.
    pub(super) fn failed(url: &Url, error: &(dyn Error + 'static)) -> Self {
        Self::Failed { server: server(url), reason: chain(error), cause: cause::of(error) }
    }
}

impl From<FetchError> for HostError {
    fn from(error: FetchError) -> Self {
        let text = error.to_string();
        match error {
            FetchError::Invalid(_) => Self::Invalid(text),
            FetchError::NotPermitted { .. } => Self::NotPermitted(text),
            FetchError::Failed { cause: FetchCause::Overloaded, .. }
            | FetchError::Overloaded { .. }
            | FetchError::NoRoom { .. } => Self::Overloaded(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<FetchError> for edgefaas_isolates::FetchError {
    fn from(error: FetchError) -> Self {
        let cause = match &error {
            FetchError::Failed { cause, .. } => *cause,
            FetchError::TooLarge { limit, .. } => FetchCause::TooLarge { limit_bytes: limit.bytes() },
            FetchError::Invalid(_) => FetchCause::Invalid,
            FetchError::NotPermitted { .. } => FetchCause::Denied,
            FetchError::Overloaded { .. } | FetchError::NoRoom { .. } => FetchCause::Overloaded,
            FetchError::Redirected { .. } | FetchError::TooManyRedirects { .. } => FetchCause::Other,
        };
        Self { cause, error: error.into() }
    }
}

/// A URL without query and fragment, which may have secrets.
pub(super) fn shown(url: &Url) -> String {
    url[..url::Position::AfterPath].to_owned()
}

/// Host and port of a URL.
pub(super) fn server(url: &Url) -> String {
    url[url::Position::BeforeHost..url::Position::AfterPort].to_owned()
}

/// The text of an error and its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
