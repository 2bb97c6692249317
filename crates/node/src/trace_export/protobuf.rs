//! OTLP in protobuf: the messages of `opentelemetry/proto/collector/trace/v1/trace_service.proto`, with the fields that the node
//! fills.

use bytes::Bytes;
use edgefaas_functions::trace::{TraceSpan, parent_span_id, span_id};
use prost::{Message, Oneof};

use super::answer::{Message as Reason, PartialSuccess};
use super::attributes::{Attribute, End, RESOURCE, attributes};

#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    /// See [`Role::number`](edgefaas_functions::trace::Role::number).
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    /// 1: ok, 2: error.
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// `google.rpc.Status`, the body of an error over HTTP.
#[derive(Clone, PartialEq, Message)]
struct ErrorStatus {
    #[prost(string, tag = "2")]
    message: String,
}

impl From<ExportTraceServiceResponse> for PartialSuccess {
    fn from(answer: ExportTraceServiceResponse) -> Self {
        let partial = answer.partial_success.unwrap_or_default();
        Self {
            rejected_spans: u64::try_from(partial.rejected_spans).unwrap_or(0),
            message: Reason::new(&partial.error_message),
        }
    }
}

/// The spans that the body of an answer rejects.
pub(super) fn partial_success(body: &[u8]) -> PartialSuccess {
    // The collector has accepted the spans, whatever its body is.
    ExportTraceServiceResponse::decode(body).unwrap_or_default().into()
}

/// The reason in the body of an error.
pub(super) fn error_message(body: &[u8]) -> Reason {
    Reason::new(&ErrorStatus::decode(body).unwrap_or_default().message)
}

/// A request.
pub(super) fn document(spans: &[TraceSpan]) -> Bytes {
    let scope_spans = ScopeSpans {
        scope: Some(InstrumentationScope { name: "edgefaas".to_owned() }),
        spans: spans.iter().map(span).collect(),
    };
    let resource_spans = ResourceSpans {
        resource: Some(Resource { attributes: RESOURCE.into_iter().map(attribute).collect() }),
        scope_spans: vec![scope_spans],
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec().into()
}

fn attribute((key, value): (&str, Attribute<'_>)) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => Value::Text(text.to_owned()),
        Attribute::Number(number) => Value::Number(i64::try_from(number).unwrap_or(i64::MAX)),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn span(span: &TraceSpan) -> Span {
    let end = End::of(span);
    Span {
        trace_id: bytes_of(&span.trace),
        span_id: bytes_of(&span_id(&span.id)),
        parent_span_id: span
            .parent
            .as_deref()
            .map(parent_span_id)
            .as_deref()
            .map(bytes_of)
            .unwrap_or_default(),
        name: span.name.clone(),
        kind: span.role.number().into(),
        start_time_unix_nano: span.started_unix_us * 1000,
        end_time_unix_nano: (span.started_unix_us + span.duration_us) * 1000,
        attributes: attributes(span).map(attribute).collect(),
        status: Some(Status { message: end.message().to_owned(), code: end.code().into() }),
    }
}

/// The bytes of an id in hex; the ids of traces and spans are valid hex.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    digits.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}
