//! HTTP requests of `call: http`, and what a task makes of the answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::authorization::Credentials;
use super::scope::{Scope, text};
use crate::api_document::Address;
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::{Http, HttpOutput};

/// An HTTP request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestParts {
    /// The method, in upper case.
    pub method: String,
    /// The URL with its query.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The authorization that is added to the headers when the request is sent.
    pub credentials: Option<Credentials>,
}

impl RequestParts {
    /// Sets a form as the body.
    pub(crate) fn set_form(&mut self, fields: Vec<(String, String)>) {
        self.body =
            url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish().into_bytes();
        self.headers.push(("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
    }

    pub(super) fn bytes(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let credentials = self.credentials.as_ref().map_or(0, Credentials::bytes);
        (self.url.len() + headers + self.body.len() + credentials) as u64
    }
}

pub(super) fn request(
    http: &Http,
    credentials: Option<Credentials>,
    scope: &Scope<'_>,
    input: &Data,
) -> Result<RequestParts, WorkflowError> {
    let bad = |detail: String| WorkflowError::new(ErrorKind::Configuration, detail);
    let endpoint = text(scope.json(&http.endpoint, input)?);
    let endpoint = fill(&endpoint, input);
    let mut url =
        url::Url::parse(&endpoint).map_err(|error| bad(format!("`{endpoint}` is not a URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("`{endpoint}` is not an http or https URL")));
    }
    if let Some(query) = &http.query
        && let Value::Object(pairs) = scope.json(query, input)?
    {
        let mut given = url.query_pairs_mut();
        for (name, value) in pairs {
            match value {
                Value::Array(values) => {
                    for value in values {
                        given.append_pair(&name, &text(value));
                    }
                }
                Value::Null => {}
                value => {
                    given.append_pair(&name, &text(value));
                }
            }
        }
    }
    let mut headers = Vec::new();
    if let Some(given) = &http.headers
        && let Value::Object(given) = scope.json(given, input)?
    {
        headers.extend(given.into_iter().map(|(name, value)| (name, text(value))));
    }
    let has = |headers: &[(String, String)], wanted: &str| {
        headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
    };
    let body = match &http.body {
        None => Vec::new(),
        Some(body) => match scope.json(body, input)? {
            Value::Null => Vec::new(),
            Value::String(text) => text.into_bytes(),
            other => {
                if !has(&headers, "content-type") {
                    headers.push(("content-type".to_owned(), "application/json".to_owned()));
                }
                other.to_string().into_bytes()
            }
        },
    };
    Ok(RequestParts { method: http.method.clone(), url: url.into(), headers, body, credentials })
}

/// `{name}` in a URL is the value of that name in the input (RFC 6570, level 1); nothing if there is none.
pub(super) fn fill(endpoint: &str, input: &Data) -> String {
    expand(endpoint, |name| value_of(name, input))
}

/// `{name}` in the address of a channel is the value of that name in the input.
///
/// # Errors
/// A validation error if a value is missing or not a scalar: the message would go to another topic.
pub(super) fn fill_address(address: &Address, input: &Data) -> Result<String, WorkflowError> {
    let value = |name: &str| input.get(name).map(Data::to_json).unwrap_or_default();
    address.filled(value).map_err(|error| WorkflowError::new(ErrorKind::Validation, error.to_string()))
}

/// The text of a value of the input; empty if there is none.
fn value_of(name: &str, input: &Data) -> String {
    let value = input.get(name).map(Data::to_json).unwrap_or_default();
    if value.is_null() { String::new() } else { text(value) }
}

/// Replaces each `{name}` by its value, percent-encoded.
pub(crate) fn expand(template: &str, mut value: impl FnMut(&str) -> String) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            filled.push('{');
            rest = after;
            continue;
        };
        let value = value(name);
        filled.extend(url::form_urlencoded::byte_serialize(value.as_bytes()).map(|part| match part {
            "+" => "%20",
            part => part,
        }));
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// The part of a request that `output: response` shows. The header that an authentication policy adds is not a part of it, so
/// that credentials do not become data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SentRequest {
    /// The method, in upper case.
    pub method: String,
    /// The URL with its query.
    pub uri: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
}

impl From<&RequestParts> for SentRequest {
    fn from(request: &RequestParts) -> Self {
        let RequestParts { method, url, headers, .. } = request;
        Self { method: method.clone(), uri: url.clone(), headers: headers.clone() }
    }
}

/// What a task makes of an HTTP answer to the request `sent`.
///
/// # Errors
/// A `communication` error with the answer's status, where that is none of success (200 to 299, with `redirect` to 399).
pub fn read_answer(
    output: HttpOutput,
    redirect: bool,
    sent: &SentRequest,
    status: u16,
    headers: &[(String, String)],
    body: &[u8],
) -> Result<Value, WorkflowError> {
    let max_status = if redirect { 399 } else { 299 };
    let content = || match (serde_json::from_slice::<Value>(body), std::str::from_utf8(body)) {
        _ if body.is_empty() => Value::Null,
        (Ok(value), _) => value,
        (Err(_), Ok(text)) => Value::from(text),
        (Err(_), Err(_)) => Value::from(STANDARD.encode(body)),
    };
    if !(200..=max_status).contains(&status) {
        let said: String = String::from_utf8_lossy(body).chars().take(200).collect();
        let detail = match said.trim() {
            "" => format!("the server answered {status}"),
            said => format!("the server answered {status}: {said}"),
        };
        return Err(WorkflowError::new(ErrorKind::Communication, detail).with_status(status));
    }
    Ok(match output {
        HttpOutput::Content => content(),
        HttpOutput::Raw => Value::from(STANDARD.encode(body)),
        HttpOutput::Response => {
            let of = |headers: &[(String, String)]| -> serde_json::Map<String, Value> {
                headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
            };
            json!({
                "request": {"method": sent.method, "uri": sent.uri, "headers": of(&sent.headers)},
                "statusCode": status,
                "headers": of(headers),
                "content": content(),
            })
        }
    })
}
