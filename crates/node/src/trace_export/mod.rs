//! Export of spans to an OpenTelemetry collector: OTLP over HTTP, in JSON or protobuf (OTLP 1.x, section "OTLP/HTTP").

mod json;
mod protobuf;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::outgoing::{self, Caller, FetchError, HttpClient, ResponseLimit};
use edgefaas_functions::trace::{TraceSpan, Traces};
use edgefaas_isolates::{IncomingResponse, OutgoingRequest, Redirect};
use edgefaas_manifest::HttpPattern;
use tokio_util::sync::CancellationToken;

use crate::config::OtlpProtocol;

/// Time for which spans are collected before they are sent together.
const COLLECT: Duration = Duration::from_millis(500);
/// Maximum number of times that the same spans are sent.
const ATTEMPTS: u32 = 6;
/// Time before the second attempt; it doubles before each further one.
const BACKOFF: Duration = Duration::from_millis(500);
/// Maximum time that a collector can ask for with `Retry-After`.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Sends new spans to the collector until `cancel` fires. If it is overloaded or cannot be reached, they are sent again, up to
/// [`ATTEMPTS`] times. Meanwhile new spans wait among those that the node keeps, so the newest `traces.spans` of them wait at
/// most, and no call waits.
pub(crate) async fn run(
    traces: Arc<Traces>,
    http: Arc<HttpClient>,
    (collector, protocol): (String, OtlpProtocol),
    cancel: CancellationToken,
) {
    let url = format!("{}/v1/traces", collector.trim_end_matches('/'));
    let Some(host) = url::Url::parse(&url).ok().and_then(|url| pattern_of(&url)) else {
        tracing::error!(collector, "traces.otlp is not an http or https URL; spans are not exported");
        return;
    };
    let caller = Caller::new("the export of traces", Arc::from(vec![host]), ResponseLimit::Fixed);
    let exporter = Exporter { http, caller, url, protocol };
    let mut failing = false;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = traces.added() => {}
        }
        let _ = tokio::time::timeout(COLLECT, cancel.cancelled()).await;
        let spans = traces.take_unexported();
        if spans.is_empty() {
            continue;
        }
        let problem = exporter.export(&spans, &cancel).await.err();
        // Logged once, until an export succeeds again.
        if let Some(error) = problem.as_ref().filter(|_| !failing) {
            tracing::warn!(collector, %error, spans = spans.len(), "spans could not be exported");
        }
        failing = problem.is_some();
    }
}

/// Spans that could not be exported.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    /// The collector cannot be reached.
    #[error(transparent)]
    NotSent(#[from] FetchError),
    /// It does not accept the spans.
    #[error("the collector answered {status}")]
    Refused { status: u16 },
}

struct Exporter {
    http: Arc<HttpClient>,
    caller: Caller,
    url: String,
    protocol: OtlpProtocol,
}

impl Exporter {
    async fn export(&self, spans: &[TraceSpan], cancel: &CancellationToken) -> Result<(), ExportError> {
        let (content_type, body) = match self.protocol {
            OtlpProtocol::HttpJson => ("application/json", Bytes::from(json::document(spans).to_string())),
            OtlpProtocol::HttpProtobuf => ("application/x-protobuf", protobuf::document(spans)),
        };
        let mut wait = BACKOFF;
        for attempt in 1.. {
            let (error, asked) = match self.send(content_type, body.clone()).await {
                Ok(answer) if answer.status < 300 => return Ok(()),
                // The statuses of OTLP after which a client tries again.
                Ok(answer) if matches!(answer.status, 429 | 502 | 503 | 504) => {
                    (ExportError::Refused { status: answer.status }, retry_after(&answer))
                }
                Ok(answer) => return Err(ExportError::Refused { status: answer.status }),
                Err(error) => (error.into(), None),
            };
            if attempt == ATTEMPTS || cancel.is_cancelled() {
                return Err(error);
            }
            // When the node stops, the last attempt follows immediately.
            let _ = tokio::time::timeout(asked.unwrap_or(wait).min(MAX_BACKOFF), cancel.cancelled()).await;
            wait *= 2;
        }
        Ok(())
    }

    async fn send(&self, content_type: &str, body: Bytes) -> Result<IncomingResponse, FetchError> {
        let request = OutgoingRequest {
            method: "POST".to_owned(),
            url: self.url.clone(),
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body,
            redirect: Redirect::Error,
        };
        self.http.fetch(&self.caller, outgoing::check(request, &self.caller, None)?).await
    }
}

/// The seconds in `Retry-After`; its form with a date is not used by collectors.
fn retry_after(answer: &IncomingResponse) -> Option<Duration> {
    let (_, value) = answer.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?;
    value.trim().parse().ok().map(Duration::from_secs)
}

fn pattern_of(url: &url::Url) -> Option<HttpPattern> {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str()?).parse().ok()
}

/// A value of an attribute.
enum Attribute<'a> {
    Text(&'a str),
    Number(u64),
}

/// The attributes of a span, by name.
fn attributes(span: &TraceSpan) -> [(&'static str, Attribute<'_>); 8] {
    let [queue, start, execution, state] = span.phases_us;
    [
        ("edgefaas.kind", Attribute::Text(span.kind.word())),
        ("edgefaas.id", Attribute::Text(&span.id)),
        ("edgefaas.input", Attribute::Text(&span.input)),
        ("edgefaas.output", Attribute::Text(&span.output)),
        ("edgefaas.queue_us", Attribute::Number(queue)),
        ("edgefaas.start_us", Attribute::Number(start)),
        ("edgefaas.execution_us", Attribute::Number(execution)),
        ("edgefaas.state_us", Attribute::Number(state)),
    ]
}

/// The attributes of the node.
const RESOURCE: [(&str, Attribute<'_>); 2] = [
    ("service.name", Attribute::Text("edgefaas")),
    ("service.version", Attribute::Text(env!("CARGO_PKG_VERSION"))),
];
