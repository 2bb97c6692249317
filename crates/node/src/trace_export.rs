//! Export of spans to an OpenTelemetry collector: OTLP over HTTP in its JSON form (OTLP 1.x, section "OTLP/HTTP").

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::outgoing::{self, Caller, HttpClient, ResponseLimit};
use edgefaas_functions::trace::{TraceSpan, Traces, parent_span_id, span_id};
use edgefaas_isolates::{OutgoingRequest, Redirect};
use edgefaas_manifest::HttpPattern;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Time for which spans are collected before they are sent together.
const COLLECT: Duration = Duration::from_millis(500);

/// Sends new spans to the collector until `cancel` fires. Spans that it does not accept are not sent again; the node keeps
/// its own copy of them.
pub(crate) async fn run(
    traces: Arc<Traces>,
    http: Arc<HttpClient>,
    collector: String,
    cancel: CancellationToken,
) {
    let url = format!("{}/v1/traces", collector.trim_end_matches('/'));
    let Some(host) = url::Url::parse(&url).ok().and_then(|url| pattern_of(&url)) else {
        tracing::error!(collector, "traces.otlp is not an http or https URL; spans are not exported");
        return;
    };
    let caller = Caller::new("the export of traces", Arc::from(vec![host]), ResponseLimit::Fixed);
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
        let request = OutgoingRequest {
            method: "POST".to_owned(),
            url: url.clone(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Bytes::from(document(&spans).to_string()),
            redirect: Redirect::Error,
        };
        let sent = match outgoing::check(request, &caller, None) {
            Ok(checked) => http.fetch(&caller, checked).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let problem = match sent {
            Ok(answer) if answer.status < 300 => None,
            Ok(answer) => Some(format!("it answered {}", answer.status)),
            Err(reason) => Some(reason),
        };
        // Logged once, until an export succeeds again.
        if let Some(reason) = problem.as_deref().filter(|_| !failing) {
            tracing::warn!(collector, reason, "spans could not be exported");
        }
        failing = problem.is_some();
    }
}

fn pattern_of(url: &url::Url) -> Option<HttpPattern> {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str()?).parse().ok()
}

/// Body of the request (`ExportTraceServiceRequest`).
fn document(spans: &[TraceSpan]) -> Value {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let number = |key: &str, value: u64| json!({"key": key, "value": {"intValue": value.to_string()}});
    let span = |span: &TraceSpan| {
        let [queue, start, execution, state] = span.phases_us;
        let mut attributes = vec![
            text("edgefaas.kind", span.kind.word()),
            text("edgefaas.id", &span.id),
            text("edgefaas.input", &span.input),
            text("edgefaas.output", &span.output),
        ];
        for (key, us) in [("queue", queue), ("start", start), ("execution", execution), ("state", state)] {
            attributes.push(number(&format!("edgefaas.{key}_us"), us));
        }
        let end = span.started_unix_us + span.duration_us;
        json!({
            "traceId": span.trace,
            "spanId": span_id(&span.id),
            "parentSpanId": span.parent.as_deref().map(parent_span_id).unwrap_or_default(),
            "name": span.name,
            "kind": 1,
            "startTimeUnixNano": (span.started_unix_us * 1000).to_string(),
            "endTimeUnixNano": (end * 1000).to_string(),
            "attributes": attributes,
            "status": match &span.error {
                Some(error) => json!({"code": 2, "message": error}),
                None => json!({"code": 1}),
            },
        })
    };
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "edgefaas"), text("service.version", env!("CARGO_PKG_VERSION"))]},
        "scopeSpans": [{"scope": {"name": "edgefaas"}, "spans": spans.iter().map(span).collect::<Vec<_>>()}],
    }]})
}
