//! Tokens of authorization servers (OAuth 2), kept until they expire.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_functions::durable::{Digest, digest};
use edgefaas_isolates::IncomingResponse;
use edgefaas_workflow::instance::{Credentials, RequestParts, TokenEncoding, TokenEndpoint, TokenRequest};
use edgefaas_workflow::program::NodeId;
use edgefaas_workflow::{ErrorKind, WorkflowError};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::coordinator::Coordinator;
use super::instance::Running;

/// Maximum number of kept tokens. Beyond it all are dropped and asked for again.
const MAX_TOKENS: usize = 1_024;
/// A token is not used in the last part of its time, which is one in this many parts and at most [`MAX_MARGIN_MS`].
const MARGIN: u64 = 10;
const MAX_MARGIN_MS: u64 = 30_000;
/// A token is used for at most this time, in seconds: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;
/// Limit of the requests for one token, with the wait for those of other tasks.
const TOKEN_WAIT: Duration = Duration::from_secs(30);
/// Maximum length of a server's error code in a message.
const MAX_CODE_BYTES: usize = 100;

/// A token and its type.
#[derive(Clone)]
pub(super) struct Token {
    /// The scheme of the `Authorization` header.
    pub kind: String,
    pub text: String,
}

/// The kept tokens of a node, by app and request.
#[derive(Default)]
pub(crate) struct Tokens {
    kept: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<Option<Kept>>>>>,
}

struct Kept {
    token: Token,
    /// By the clock of instances.
    until_ms: u64,
}

/// The answer of a token endpoint (RFC 6749, section 5.1).
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    access_token: String,
    token_type: Option<String>,
    /// At most [`MAX_SECONDS`]. Without it the token is used once.
    expires_in: Option<u64>,
}

/// The answer of a token endpoint with status 200 is not what OAuth 2 says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum AnswerError {
    #[error("the answer of `{url}` is not a JSON object")]
    Shape { url: String },
    #[error("the answer of `{url}` has no `access_token`")]
    Token { url: String },
    #[error("`{field}` in the answer of `{url}` is not a text")]
    Text { url: String, field: &'static str },
    #[error("`expires_in` in the answer of `{url}` is not a number of seconds")]
    Seconds { url: String },
}

/// The metadata of an authority (OpenID Connect Discovery 1.0, section 3).
#[derive(Deserialize)]
struct Metadata {
    token_endpoint: String,
}

impl Tokens {
    /// The place of a token. Tokens of one place are asked for one after another, so that many tasks ask once.
    fn place(&self, app: &str, request: &TokenRequest) -> Arc<tokio::sync::Mutex<Option<Kept>>> {
        let key = key(app, request);
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_TOKENS && !kept.contains_key(&key) {
            kept.clear();
        }
        kept.entry(key).or_default().clone()
    }

    /// Drops a token that a server did not accept.
    pub fn forget(&self, app: &str, request: &TokenRequest) {
        self.kept.lock().remove(&key(app, request));
    }
}

fn key(app: &str, request: &TokenRequest) -> Digest {
    let TokenRequest { endpoint, basic, .. } = request;
    let (id, secret) = basic.as_ref().map_or(("", ""), |(id, secret)| (id, secret));
    let endpoint = match endpoint {
        TokenEndpoint::Url(url) | TokenEndpoint::Discovered(url) => url,
    };
    digest(&[app.as_bytes(), endpoint.as_bytes(), id.as_bytes(), secret.as_bytes(), &request.body().0])
}

fn authentication(detail: String) -> WorkflowError {
    WorkflowError::new(ErrorKind::Authentication, detail)
}

impl Coordinator {
    /// A token for a request of a task.
    ///
    /// # Errors
    /// An `authentication` error if the server refuses the credentials or its answer is not a token, an `authorization` error if the
    /// workflow may not call the server or the client may not have the token, a `communication` error if the server cannot be reached.
    /// No message has a secret.
    pub(super) async fn token(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        request: &TokenRequest,
    ) -> Result<Token, WorkflowError> {
        let (TokenEndpoint::Url(url) | TokenEndpoint::Discovered(url)) = &request.endpoint;
        in_time(url, self.token_or_wait(running, node, request)).await
    }

    async fn token_or_wait(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        request: &TokenRequest,
    ) -> Result<Token, WorkflowError> {
        let place = self.tokens.place(&running.workflow.app, request);
        let mut kept = place.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.until_ms > self.time.now_ms()) {
            return Ok(kept.token.clone());
        }
        *kept = None;
        let url = self.token_endpoint(running, node, &request.endpoint).await?;
        let (body, content_type) = request.body();
        let mut headers = vec![
            ("content-type".to_owned(), content_type.to_owned()),
            ("accept".to_owned(), "application/json".to_owned()),
        ];
        if let Some((id, secret)) = &request.basic {
            headers.push(("authorization".to_owned(), basic(id, secret, request.encoding)));
        }
        let parts =
            RequestParts { method: "POST".to_owned(), url: url.clone(), headers, body, credentials: None };
        let answer = self.send(running, node, parts).await?;
        let Answer { access_token, token_type, expires_in } = read(&url, &answer)?;
        let kind = match token_type {
            Some(kind) if !kind.eq_ignore_ascii_case("bearer") => kind,
            _ => "Bearer".to_owned(),
        };
        let token = Token { kind, text: access_token };
        *kept = expires_in.map(|seconds| {
            let ms = seconds.saturating_mul(1_000);
            let until_ms = self.time.now_ms().saturating_add(ms - (ms / MARGIN).min(MAX_MARGIN_MS));
            Kept { token: token.clone(), until_ms }
        });
        Ok(token)
    }

    /// The URL of a token endpoint.
    async fn token_endpoint(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        endpoint: &TokenEndpoint,
    ) -> Result<String, WorkflowError> {
        let url = match endpoint {
            TokenEndpoint::Url(url) => return Ok(url.clone()),
            TokenEndpoint::Discovered(url) => url,
        };
        let parts = RequestParts { method: "GET".to_owned(), url: url.clone(), ..RequestParts::default() };
        let answer = self.send(running, node, parts).await?;
        let metadata: Option<Metadata> = serde_json::from_slice(&answer.body).ok();
        match metadata.filter(|_| (200..300).contains(&answer.status)) {
            Some(metadata) => Ok(metadata.token_endpoint),
            None => {
                let status = answer.status;
                Err(authentication(format!("`{url}` answered {status} and names no `token_endpoint`")))
            }
        }
    }
}

/// Bounds the time for a token: a task without `timeout` waits too.
async fn in_time(
    url: &str,
    token: impl Future<Output = Result<Token, WorkflowError>>,
) -> Result<Token, WorkflowError> {
    match tokio::time::timeout(TOKEN_WAIT, token).await {
        Ok(token) => token,
        Err(_) => {
            let detail = format!("`{url}` gave no token within {TOKEN_WAIT:?}");
            Err(WorkflowError::new(ErrorKind::Communication, detail).with_status(504))
        }
    }
}

/// The credentials of a client in a header; in a form they are encoded first (RFC 6749, section 2.3.1).
fn basic(id: &str, secret: &str, encoding: TokenEncoding) -> String {
    let encoded = |text: &str| match encoding {
        TokenEncoding::Form => url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>(),
        TokenEncoding::Json => text.to_owned(),
    };
    match Credentials::basic(&encoded(id), &encoded(secret)) {
        Credentials::Known { scheme, parameter } => format!("{scheme} {parameter}"),
        Credentials::Token(_) => String::new(),
    }
}

/// Reads the answer of a token endpoint. An error has the server's code (RFC 6749, section 5.2), never its text or a part of the
/// request.
fn read(url: &str, answer: &IncomingResponse) -> Result<Answer, WorkflowError> {
    let status = answer.status;
    if (200..300).contains(&status) {
        return token_of(url, &answer.body).map_err(|error| authentication(error.to_string()));
    }
    let code = serde_json::from_slice::<Value>(&answer.body).ok();
    let code = code.as_ref().and_then(|body| body.get("error")?.as_str()).filter(|code| {
        code.len() <= MAX_CODE_BYTES
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    });
    let code = code.map(|code| format!(": {code}")).unwrap_or_default();
    let detail = format!("`{url}` gives no token, it answered {status}{code}");
    Err(match status {
        403 => WorkflowError::new(ErrorKind::Authorization, detail),
        500.. => WorkflowError::new(ErrorKind::Communication, detail).with_status(status),
        _ => authentication(detail),
    })
}

/// Reads the answer that has a token. Servers send `expires_in` as a number, with or without a fraction, and as a text.
fn token_of(url: &str, body: &[u8]) -> Result<Answer, AnswerError> {
    let url = || url.to_owned();
    let Ok(Value::Object(answer)) = serde_json::from_slice(body) else {
        return Err(AnswerError::Shape { url: url() });
    };
    let text = |field: &'static str| match answer.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(AnswerError::Text { url: url(), field }),
    };
    let access_token = text("access_token")?.filter(|token| !token.is_empty());
    let access_token = access_token.ok_or_else(|| AnswerError::Token { url: url() })?;
    let seconds = match answer.get("expires_in") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.trim().parse::<f64>().ok()),
        Some(Value::Number(number)) => Some(number.as_f64()),
        Some(_) => Some(None),
    };
    let expires_in = match seconds {
        None => None,
        Some(Some(seconds)) if !seconds.is_nan() => Some(seconds.clamp(0.0, MAX_SECONDS as f64) as u64),
        Some(_) => return Err(AnswerError::Seconds { url: url() }),
    };
    Ok(Answer { access_token, token_type: text("token_type")?, expires_in })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(expires_in: &str) -> Result<Option<u64>, AnswerError> {
        let body = format!(r#"{{"access_token": "t", "expires_in": {expires_in}}}"#);
        token_of("http://a/token", body.as_bytes()).map(|answer| answer.expires_in)
    }

    #[test]
    fn the_time_of_a_token_is_a_number_or_a_text_of_one() {
        for (expires_in, seconds) in [
            ("3600", 3600),
            ("\"3600\"", 3600),
            ("\" 3600 \"", 3600),
            ("3600.0", 3600),
            ("\"59.9\"", 59),
            ("0", 0),
            ("-1", 0),
            ("\"-5\"", 0),
            ("1e300", MAX_SECONDS),
            ("18446744073709551616", MAX_SECONDS),
        ] {
            assert_eq!(answer(expires_in), Ok(Some(seconds)), "{expires_in}");
        }
        assert_eq!(answer("null"), Ok(None));
        for wrong in ["\"soon\"", "\"\"", "true", "[]", "\"NaN\""] {
            let error = answer(wrong).unwrap_err().to_string();
            assert_eq!(error, "`expires_in` in the answer of `http://a/token` is not a number of seconds");
        }
    }

    #[test]
    fn an_answer_without_a_token_says_why() {
        for (body, wanted) in [
            ("[]", "is not a JSON object"),
            ("<html>", "is not a JSON object"),
            ("{}", "has no `access_token`"),
            (r#"{"access_token": ""}"#, "has no `access_token`"),
            (r#"{"access_token": 5}"#, "`access_token` in the answer of `u` is not a text"),
            (
                r#"{"access_token": "t", "token_type": 5}"#,
                "`token_type` in the answer of `u` is not a text",
            ),
        ] {
            let error = token_of("u", body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{body}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_is_given_up() {
        let error = in_time("http://a/token", std::future::pending()).await.err().expect("an error");
        assert_eq!(error.status, 504);
        assert!(error.detail.unwrap().contains("`http://a/token` gave no token within 30s"));
    }
}
