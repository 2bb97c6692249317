//! OTLP in JSON.

use edgefaas_functions::trace::{TraceSpan, parent_span_id, span_id};
use serde_json::{Value, json};

use super::answer::{Message, PartialSuccess};
use super::attributes::{Attribute, End, RESOURCE, attributes};

/// Body of a request (`ExportTraceServiceRequest`).
pub(super) fn document(spans: &[TraceSpan]) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": RESOURCE.into_iter().map(attribute).collect::<Vec<_>>()},
        "scopeSpans": [{"scope": {"name": "edgefaas"}, "spans": spans.iter().map(span).collect::<Vec<_>>()}],
    }]})
}

fn attribute((key, value): (&str, Attribute<'_>)) -> Value {
    match value {
        Attribute::Text(text) => json!({"key": key, "value": {"stringValue": text}}),
        Attribute::Number(number) => json!({"key": key, "value": {"intValue": number.to_string()}}),
    }
}

fn span(span: &TraceSpan) -> Value {
    let (end, ended_unix_us) = (End::of(span), span.started_unix_us + span.duration_us);
    json!({
        "traceId": span.trace,
        "spanId": span_id(&span.id),
        "parentSpanId": span.parent.as_deref().map(parent_span_id).unwrap_or_default(),
        "name": span.name,
        "kind": span.role.number(),
        "startTimeUnixNano": (span.started_unix_us * 1000).to_string(),
        "endTimeUnixNano": (ended_unix_us * 1000).to_string(),
        "attributes": attributes(span).map(attribute).collect::<Vec<_>>(),
        "status": {"code": end.code(), "message": end.message()},
    })
}

/// The spans that an answer (`ExportTraceServiceResponse`) rejects. Numbers of 64 bits are strings in this form; a plain number
/// is accepted too.
pub(super) fn partial_success(body: &[u8]) -> PartialSuccess {
    // The collector has accepted the spans, whatever its body is.
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let rejected = &partial["rejectedSpans"];
    PartialSuccess {
        rejected_spans: rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0),
        message: Message::new(partial["errorMessage"].as_str().unwrap_or_default()),
    }
}

/// The reason in the body of an error (`google.rpc.Status`).
pub(super) fn error_message(body: &[u8]) -> Message {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    Message::new(status["message"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_or_empty() {
        let partial =
            |rejected_spans, message| PartialSuccess { rejected_spans, message: Message::new(message) };
        assert_eq!(
            partial_success(br#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}"#),
            partial(3, "no")
        );
        assert_eq!(partial_success(br#"{"partialSuccess":{"rejectedSpans":3}}"#), partial(3, ""));
        for other in [
            "",
            "{}",
            "[]",
            "null",
            "{\"partialSuccess\":[]}",
            "{\"partialSuccess\":{\"rejectedSpans\":-1}}",
        ] {
            assert_eq!(partial_success(other.as_bytes()), partial(0, ""), "{other}");
        }
        assert_eq!(error_message(br#"{"code":3,"message":"bad"}"#), Message::new("bad"));
        assert_eq!(error_message(b"<html>"), Message::default());
    }
}
