use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::{self, PayloadError};
use crate::{Error, HostError};

/// The answer of a function, also of a called one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Nothing; over HTTP status 204.
    #[default]
    None,
    /// JSON text.
    Json(String),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A whole HTTP response.
    Http(Response),
}

/// An HTTP response.
///
/// ```
/// use edgefaas::prelude::*;
///
/// let moved = Response::new(301).header("location", "/greenhouse");
/// let page = Response::html("<h1>Greenhouse</h1>");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code, 100 to 599.
    pub status: u16,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// A value that is sent as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// Types that a function may return.
#[diagnostic::on_unimplemented(
    message = "a function can't return `{Self}`",
    label = "not a reply",
    note = "a reply is (), text, bytes, `Json(VALUE)`, a `Response`, a `Reply`, or an `Option` or `Result` of one"
)]
pub trait IntoReply {
    /// The reply, or the failure.
    fn into_reply(self) -> Result<Reply, Error>;
}

/// Types that may be published, or passed to a call.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent as a payload",
    note = "a payload is text, bytes or `Json(VALUE)`"
)]
pub trait IntoPayload {
    /// The bytes. `HostError::Invalid` if the value has no JSON form.
    fn into_payload(self) -> Result<Vec<u8>, HostError>;
}

impl Reply {
    /// The answer's bytes; empty if it is nothing.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Json(text) | Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
            Self::Http(response) => &response.body,
        }
    }

    /// The answer as text.
    pub fn text(&self) -> Result<&str, PayloadError> {
        event::text("reply", self.bytes())
    }

    /// The answer read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        event::json("reply", self.bytes())
    }
}

impl Response {
    /// A response without headers and body.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Status 200 with a page.
    pub fn html(page: impl Into<String>) -> Self {
        Self::new(200).header("content-type", "text/html; charset=utf-8").body(page.into())
    }

    /// Status 200 with a value as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, Error> {
        Ok(Self::new(200).header("content-type", "application/json").body(serde_json::to_vec(value)?))
    }

    /// The response with another status.
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The response with one more header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The response with this body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

impl IntoReply for Reply {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(self)
    }
}

impl IntoReply for () {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::None)
    }
}

impl IntoReply for String {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Text(self))
    }
}

impl IntoReply for &str {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Text(self.to_owned()))
    }
}

impl IntoReply for Vec<u8> {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Bytes(self))
    }
}

impl IntoReply for &[u8] {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Bytes(self.to_vec()))
    }
}

impl<T: Serialize> IntoReply for Json<T> {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Json(serde_json::to_string(&self.0)?))
    }
}

impl IntoReply for serde_json::Value {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Json(self.to_string()))
    }
}

impl IntoReply for Response {
    fn into_reply(self) -> Result<Reply, Error> {
        Ok(Reply::Http(self))
    }
}

/// `None` becomes [`Reply::None`].
impl<T: IntoReply> IntoReply for Option<T> {
    fn into_reply(self) -> Result<Reply, Error> {
        self.map_or(Ok(Reply::None), T::into_reply)
    }
}

/// An error fails the invocation.
impl<T: IntoReply, E: Display> IntoReply for Result<T, E> {
    fn into_reply(self) -> Result<Reply, Error> {
        self.map_err(Error::new)?.into_reply()
    }
}

impl IntoPayload for Vec<u8> {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        Ok(self)
    }
}

impl IntoPayload for &[u8] {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        Ok(self.to_vec())
    }
}

impl<const N: usize> IntoPayload for &[u8; N] {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        Ok(self.to_vec())
    }
}

impl IntoPayload for String {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        Ok(self.into_bytes())
    }
}

impl IntoPayload for &str {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        Ok(self.as_bytes().to_vec())
    }
}

impl<T: Serialize> IntoPayload for Json<T> {
    fn into_payload(self) -> Result<Vec<u8>, HostError> {
        serde_json::to_vec(&self.0)
            .map_err(|error| HostError::Invalid(format!("the payload can't be made JSON: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn values_become_replies() {
        let reply = |value: Result<Reply, Error>| value.unwrap();
        assert_eq!(reply(().into_reply()), Reply::None);
        assert_eq!(reply("text".into_reply()), Reply::Text("text".into()));
        assert_eq!(reply(vec![1u8].into_reply()), Reply::Bytes(vec![1]));
        assert_eq!(reply(Json([1, 2]).into_reply()), Reply::Json("[1,2]".into()));
        assert_eq!(reply(serde_json::json!({"a": null}).into_reply()), Reply::Json(r#"{"a":null}"#.into()));
        assert_eq!(reply(None::<String>.into_reply()), Reply::None);
        assert_eq!(reply(Ok::<_, String>(Some("x")).into_reply()), Reply::Text("x".into()));
        let response = Response::html("<p>").status(404);
        assert_eq!(reply(response.clone().into_reply()), Reply::Http(response));
    }

    #[test]
    fn errors_become_failures() {
        let failure = Err::<(), _>("too hot").into_reply().unwrap_err();
        assert_eq!(failure.message(), "too hot");
        let keys = Json(BTreeMap::from([((1, 2), 3)]));
        assert_eq!(keys.into_reply().unwrap_err().message(), "key must be a string");
        let keys = Json(BTreeMap::from([((1, 2), 3)]));
        let refused = HostError::Invalid("the payload can't be made JSON: key must be a string".into());
        assert_eq!(keys.into_payload(), Err(refused));
    }

    #[test]
    fn a_reply_is_read_like_an_event() {
        assert_eq!(Reply::Json("[1,2]".into()).json::<Vec<u8>>().unwrap(), [1, 2]);
        assert_eq!(Reply::None.text().unwrap(), "");
        let error = Reply::Text("x".into()).json::<u8>().unwrap_err().to_string();
        assert_eq!(error, "the reply is not JSON of type u8: expected value at line 1 column 1");
    }
}
