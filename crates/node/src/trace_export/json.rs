//! OTLP in JSON.

use edgefaas_functions::trace::{TraceSpan, parent_span_id, span_id};
use serde_json::{Value, json};

use super::{Attribute, RESOURCE, attributes};

/// Body of a request (`ExportTraceServiceRequest`).
pub(super) fn document(spans: &[TraceSpan]) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": RESOURCE.iter().map(attribute).collect::<Vec<_>>()},
        "scopeSpans": [{"scope": {"name": "edgefaas"}, "spans": spans.iter().map(span).collect::<Vec<_>>()}],
    }]})
}

fn attribute((key, value): &(&str, Attribute<'_>)) -> Value {
    match value {
        Attribute::Text(text) => json!({"key": key, "value": {"stringValue": text}}),
        Attribute::Number(number) => json!({"key": key, "value": {"intValue": number.to_string()}}),
    }
}

fn span(span: &TraceSpan) -> Value {
    let end = span.started_unix_us + span.duration_us;
    json!({
        "traceId": span.trace,
        "spanId": span_id(&span.id),
        "parentSpanId": span.parent.as_deref().map(parent_span_id).unwrap_or_default(),
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": (span.started_unix_us * 1000).to_string(),
        "endTimeUnixNano": (end * 1000).to_string(),
        "attributes": attributes(span).iter().map(attribute).collect::<Vec<_>>(),
        "status": match &span.error {
            Some(error) => json!({"code": 2, "message": error}),
            None => json!({"code": 1}),
        },
    })
}
