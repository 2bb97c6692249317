//! OTLP over HTTP.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use edgefaas_functions::outgoing::{self, Caller, FetchError, HttpClient};
use edgefaas_functions::trace::TraceSpan;
use edgefaas_isolates::{IncomingResponse, OutgoingRequest, Redirect};
use edgefaas_platform::Clock;
use url::Url;

use super::answer::{Attempt, ExportError, Message, PartialSuccess, Retry};
use super::{json, protobuf};

/// The form of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/x-protobuf",
        }
    }

    fn partial_success(self, body: &Bytes) -> PartialSuccess {
        match self {
            Self::Json => json::partial_success(body),
            Self::Protobuf => protobuf::partial_success(body),
        }
    }

    fn error_message(self, body: &Bytes) -> Message {
        match self {
            Self::Json => json::error_message(body),
            Self::Protobuf => protobuf::error_message(body),
        }
    }
}

/// Sends spans by `POST /v1/traces`.
pub(super) struct HttpExporter {
    client: Arc<HttpClient>,
    caller: Caller,
    url: String,
    encoding: Encoding,
    clock: Clock,
}

impl HttpExporter {
    pub fn new(
        client: Arc<HttpClient>,
        caller: Caller,
        collector: &Url,
        encoding: Encoding,
        clock: Clock,
    ) -> Self {
        let url = format!("{}/v1/traces", collector.as_str().trim_end_matches('/'));
        Self { client, caller, url, encoding, clock }
    }

    pub fn body(&self, spans: &[TraceSpan]) -> Bytes {
        match self.encoding {
            Encoding::Json => json::document(spans).to_string().into(),
            Encoding::Protobuf => protobuf::document(spans),
        }
    }

    pub async fn send(&self, body: Bytes) -> Attempt {
        let request = OutgoingRequest {
            method: "POST".to_owned(),
            url: self.url.clone(),
            headers: vec![("content-type".to_owned(), self.encoding.content_type().to_owned())],
            body,
            redirect: Redirect::Error,
        };
        let answer =
            async { self.client.fetch(&self.caller, outgoing::check(request, &self.caller, None)?).await };
        match answer.await {
            Ok(answer) => self.attempt(&answer),
            Err(
                error @ (FetchError::Invalid(_)
                | FetchError::NotPermitted { .. }
                | FetchError::Redirected { .. }),
            ) => Attempt::Failed(error.into(), Retry::Never),
            Err(error) => Attempt::Failed(error.into(), Retry::Later),
        }
    }

    fn attempt(&self, answer: &IncomingResponse) -> Attempt {
        let status = answer.status;
        if (200..300).contains(&status) {
            return Attempt::Accepted(self.encoding.partial_success(&answer.body));
        }
        let retry = match status {
            429 | 502 | 503 | 504 => {
                retry_after(answer, self.clock.now()).map_or(Retry::Later, Retry::After)
            }
            _ => Retry::Never,
        };
        let message = self.encoding.error_message(&answer.body);
        Attempt::Failed(ExportError::Refused { status, message }, retry)
    }
}

/// The pause in `Retry-After`: seconds, or the time until a date (RFC 9110, section 10.2.3).
fn retry_after(answer: &IncomingResponse, now: SystemTime) -> Option<Duration> {
    let (_, value) = answer.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?;
    pause(value.trim(), now)
}

fn pause(retry_after: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = retry_after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(retry_after).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_seconds_or_end_at_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        for (text, seconds) in [
            ("120", Some(120)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(pause(text, now), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
