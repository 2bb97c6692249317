//! Why a request of a function has no answer.

use std::error::Error;

use edgefaas_isolates::{FetchCause, HostError};
use url::Url;

use super::cause;
use super::fair_pool::ShareError;
use super::reach::Guarded;
use super::{MAX_REDIRECTS, MAX_RESPONSE_BYTES};

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It is no request that could be sent.
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
        /// It was not asked for, but led to.
        redirected: bool,
        /// It is permitted by `*`, which does not cover its address.
        guarded: Option<Guarded>,
        /// The server as `permissions.http` names it: with its port, if it is not that of the scheme.
        server: String,
        /// The function or workflow.
        owner: std::sync::Arc<str>,
    },
    /// It redirects, and the function does not want that.
    #[error("{url} answered with a redirection, which the request's `redirect` does not allow")]
    Redirected {
        /// Which URL.
        url: String,
    },
    /// It redirects on and on.
    #[error("{url} and what it leads to redirect more than {MAX_REDIRECTS} times")]
    TooManyRedirects {
        /// The first URL.
        url: String,
    },
    /// No connection, no answer, or none that is HTTP.
    #[error("{server}: {reason}")]
    Failed {
        /// Host and port.
        server: String,
        /// Why.
        reason: String,
        /// The kind of it.
        cause: FetchCause,
    },
    /// The answer is too large.
    #[error("the answer of {server} has more than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge {
        /// Host and port.
        server: String,
    },
    /// The function's share of requests or bytes is used up.
    #[error("{server}: {reason}")]
    Overloaded {
        /// Host and port.
        server: String,
        /// What of.
        reason: ShareError,
    },
    /// The function's share of bytes is used up by answers that are being read.
    #[error(
        "{server}: {owner} has no room for more of the answer now, since its answers in flight take its share of the node's \
         {capacity} bytes; try again later"
    )]
    NoRoom {
        /// Host and port.
        server: String,
        /// The function or workflow.
        owner: std::sync::Arc<str>,
        /// What all functions have together.
        capacity: usize,
    },
}

fn remedy(guarded: Option<&Guarded>, server: &str, owner: &str) -> String {
    match guarded {
        Some(guarded) => format!("{guarded} to permissions.http of {owner}"),
        None => format!("add `{server}` to permissions.http of {owner}"),
    }
}

impl FetchError {
    /// The server of `url` could not be asked.
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
            FetchError::TooLarge { .. } => FetchCause::TooLarge,
            FetchError::Invalid(_) => FetchCause::Invalid,
            FetchError::NotPermitted { .. } => FetchCause::Denied,
            FetchError::Overloaded { .. } | FetchError::NoRoom { .. } => FetchCause::Overloaded,
            FetchError::Redirected { .. } | FetchError::TooManyRedirects { .. } => FetchCause::Other,
        };
        Self { cause, error: error.into() }
    }
}

/// A URL without what may be secret in it.
pub(super) fn shown(url: &Url) -> String {
    url[..url::Position::AfterPath].to_owned()
}

pub(super) fn server(url: &Url) -> String {
    url[url::Position::BeforeHost..url::Position::AfterPort].to_owned()
}

/// An error with what caused it: the first alone says little.
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
