use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::{self, PayloadError};
use crate::host::{Fetch, Host};
use crate::{HostError, Response};

/// A request to another server, for [`Context::fetch`](crate::Context::fetch).
///
/// ```
/// use edgefaas::Request;
///
/// let reading = serde_json::json!({ "zone": "north", "temperature_c": 24.0 });
/// let request = Request::post("https://api.example.com/readings")
///     .header("authorization", "Bearer …")
///     .json(&reading)?;
/// # Ok::<(), edgefaas::HostError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The absolute URL, http or https.
    pub url: String,
    /// Names and values, in order. The node sets those of the connection, such as `host` and `content-length`.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The treatment of a redirection.
    pub redirect: Redirect,
}

/// The treatment of a redirection (status 301, 302, 303, 307 or 308).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Redirect {
    /// It is followed, to servers that the manifest permits.
    #[default]
    Follow,
    /// The request fails.
    Error,
    /// It is the answer.
    Manual,
}

/// Another server's answer to a [`Request`], of any status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Status code.
    pub status: u16,
    /// Names in lower case and values, in the order received.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
    /// The final URL; empty in a test that does not set it.
    pub url: String,
    /// Whether a redirection led there.
    pub redirected: bool,
}

impl Request {
    /// A request with any method.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self { method: method.into(), url: url.into(), ..Self::default() }
    }

    /// A GET.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A POST.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// A PUT.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// A DELETE.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// The request with one more header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The request with this body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The request with a value as JSON. `HostError::Invalid` if the value has no JSON form.
    pub fn json(self, value: &impl Serialize) -> Result<Self, HostError> {
        let json = serde_json::to_vec(value);
        let json = json.map_err(|error| HostError::Invalid(format!("the body is not JSON: {error}")))?;
        Ok(self.header("content-type", "application/json").body(json))
    }

    /// The request with another way of treating redirections.
    pub fn redirect(mut self, redirect: Redirect) -> Self {
        self.redirect = redirect;
        self
    }
}

impl Fetched {
    /// True for status 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> Result<&str, PayloadError> {
        event::text("answer's body", &self.body)
    }

    /// The body read as JSON, for any content type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        event::json("answer's body", &self.body)
    }
}

/// As the function's own answer.
impl From<Fetched> for Response {
    fn from(fetched: Fetched) -> Self {
        Self { status: fetched.status, headers: fetched.headers, body: fetched.body }
    }
}

/// A request in flight; a drop closes its connection.
#[derive(Debug)]
#[must_use = "a request that is not waited for is given up"]
pub struct PendingFetch {
    /// `None` after the answer was returned.
    fetch: Option<Result<Fetch, HostError>>,
}

impl PendingFetch {
    pub(crate) fn start(host: &Host, request: Request) -> Self {
        Self { fetch: Some(host.fetch(request)) }
    }

    /// Waits for the answer. Earlier calls and requests continue in the meantime.
    pub fn wait(self) -> Result<Fetched, HostError> {
        match self.fetch {
            Some(fetch) => fetch?.wait(),
            None => panic!("the request was awaited to its end and then waited for"),
        }
    }
}

/// Panics when polled after it has returned the answer.
impl Future for PendingFetch {
    type Output = Result<Fetched, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.fetch.as_mut().expect("a request is polled after its answer") {
            Ok(fetch) => std::task::ready!(fetch.poll(context.waker())),
            Err(refused) => Err(refused.clone()),
        };
        self.fetch = None;
        Poll::Ready(answer)
    }
}
