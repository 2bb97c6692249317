//! Outcomes on the network.

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::calls::{Answer, MAX_SPANS_BYTES, OutcomeHead};
use edgefaas_isolates::{HttpResponse, Reply};
use prost::Message;

use super::error_message::ErrorMessage;
use crate::invocation::{InvocationError, Timing};
use crate::trace::{Export, Role, SpanKind, SpanStatus, TraceSpan, trace_id};

/// The part of an answer that this node cannot decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the outcome cannot be decoded; update edgefaas on all nodes")]
pub struct UndecodableOutcome;

/// The kind of a reply, or an error.
#[derive(Clone, PartialEq, Message)]
struct ResultMessage {
    #[prost(enumeration = "ReplyKind", tag = "1")]
    reply: i32,
    #[prost(uint32, tag = "2")]
    http_status: u32,
    #[prost(message, repeated, tag = "3")]
    http_headers: Vec<Header>,
    #[prost(message, optional, tag = "4")]
    error: Option<ErrorMessage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum ReplyKind {
    Unknown = 0,
    None = 1,
    Json = 2,
    Text = 3,
    Bytes = 4,
    Http = 5,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Spans {
    #[prost(message, repeated, tag = "1")]
    spans: Vec<Span>,
}

/// A span. Its start is relative to the arrival of the call: clocks of nodes differ.
#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, optional, tag = "2")]
    parent: Option<String>,
    /// 0 function, 1 workflow, 2 task, 3 request, 4 message.
    #[prost(uint32, tag = "3")]
    kind: u32,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(uint64, tag = "5")]
    offset_us: u64,
    #[prost(uint64, tag = "6")]
    duration_us: u64,
    #[prost(uint64, repeated, tag = "7")]
    phases_us: Vec<u64>,
    #[prost(string, tag = "8")]
    input: String,
    #[prost(string, tag = "9")]
    output: String,
    #[prost(string, optional, tag = "10")]
    error: Option<String>,
    /// The node that recorded it, if that is a third one.
    #[prost(string, optional, tag = "11")]
    node: Option<String>,
    /// See [`Role::number`]; 0 from a node of an earlier version.
    #[prost(uint32, tag = "12")]
    role: u32,
    /// True if the node that sends the span exports it.
    #[prost(bool, tag = "13")]
    is_exported: bool,
}

/// The form of an outcome.
pub fn encode(result: Result<Reply, InvocationError>, timing: Timing) -> (OutcomeHead, Bytes) {
    let mut message = ResultMessage::default();
    let (kind, body) = match result {
        Ok(Reply::None) => (ReplyKind::None, Bytes::new()),
        Ok(Reply::Json(text)) => (ReplyKind::Json, text.into()),
        Ok(Reply::Text(text)) => (ReplyKind::Text, text.into()),
        Ok(Reply::Bytes(bytes)) => (ReplyKind::Bytes, bytes),
        Ok(Reply::Http(response)) => {
            message.http_status = response.status.into();
            let header = |(name, value)| Header { name, value };
            message.http_headers = response.headers.into_iter().map(header).collect();
            (ReplyKind::Http, response.body)
        }
        Err(error) => {
            message.error = Some((&error).into());
            (ReplyKind::Unknown, Bytes::new())
        }
    };
    message.reply = kind.into();
    let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let head = OutcomeHead {
        result: message.encode_to_vec().into(),
        queue_us: us(timing.queue),
        start_us: us(timing.start),
        execution_us: us(timing.execution),
        ..OutcomeHead::default()
    };
    (head, body)
}

/// The outcome of a call of which nothing was started.
pub fn refusal(error: &InvocationError) -> OutcomeHead {
    let (head, _) = encode(Err(error.clone()), Timing::default());
    OutcomeHead { is_refused: true, ..head }
}

/// The reply or the error in an answer, and the times on the executing node.
///
/// # Errors
/// The executing node has sent something else than an outcome.
pub fn decode(answer: Answer) -> Result<(Result<Reply, InvocationError>, Timing), UndecodableOutcome> {
    let Answer { head, body } = answer;
    let message = ResultMessage::decode(head.result).map_err(|_| UndecodableOutcome)?;
    let timing = Timing {
        queue: Duration::from_micros(head.queue_us),
        start: Duration::from_micros(head.start_us),
        execution: Duration::from_micros(head.execution_us),
    };
    if let Some(error) = message.error {
        return Ok((Err(error.into_error()), timing));
    }
    let text = |body: Bytes| String::from_utf8(body.into()).map_err(|_| UndecodableOutcome);
    let reply = match ReplyKind::try_from(message.reply).unwrap_or(ReplyKind::Unknown) {
        ReplyKind::Unknown => return Err(UndecodableOutcome),
        ReplyKind::None => Reply::None,
        ReplyKind::Json => Reply::Json(text(body)?),
        ReplyKind::Text => Reply::Text(text(body)?),
        ReplyKind::Bytes => Reply::Bytes(body),
        ReplyKind::Http => Reply::Http(HttpResponse {
            status: u16::try_from(message.http_status)
                .ok()
                .filter(|status| (200..=599).contains(status))
                .ok_or(UndecodableOutcome)?,
            headers: message.http_headers.into_iter().map(|Header { name, value }| (name, value)).collect(),
            body,
        }),
    };
    Ok((Ok(reply), timing))
}

/// The spans of a call that arrived at `arrived_unix_us`; as many as fit. `is_exporting` is true if this node exports those of
/// sampled traces.
pub fn encode_spans(spans: Vec<TraceSpan>, arrived_unix_us: u64, is_exporting: bool) -> Bytes {
    let mut message = Spans::default();
    let mut bytes = 0;
    for span in spans {
        let span = Span {
            id: span.id,
            parent: span.parent,
            kind: span.kind as u32,
            name: span.name,
            offset_us: span.started_unix_us.saturating_sub(arrived_unix_us),
            duration_us: span.duration_us,
            phases_us: span.phases_us.to_vec(),
            input: span.input,
            output: span.output,
            error: span.error,
            node: span.node.map(|node| node.to_string()),
            role: span.role.number().into(),
            is_exported: match span.export {
                Export::Wanted => is_exporting,
                Export::NotSampled => false,
                Export::Elsewhere => true,
            },
        };
        // With its tag and its length.
        bytes += span.encoded_len() + 8;
        if bytes > MAX_SPANS_BYTES {
            break;
        }
        message.spans.push(span);
    }
    message.encode_to_vec().into()
}

/// The spans of an answer from `node`, in the trace of `trace_parent`. Their call arrived there at about `arrived_unix_us`. None
/// if `trace_parent` is not valid.
pub fn decode_spans(
    bytes: Bytes,
    trace_parent: &str,
    node: &std::sync::Arc<str>,
    arrived_unix_us: u64,
) -> Vec<TraceSpan> {
    let Some(trace) = trace_id(trace_parent) else { return Vec::new() };
    // Without its spans the outcome is as good.
    let message = Spans::decode(bytes).unwrap_or_default();
    let span = |span: Span| TraceSpan {
        trace: trace.to_owned(),
        id: span.id,
        parent: span.parent,
        kind: match span.kind {
            1 => SpanKind::Workflow,
            2 => SpanKind::Task,
            3 => SpanKind::Request,
            4 => SpanKind::Publish,
            _ => SpanKind::Function,
        },
        role: Role::from_number(span.role),
        export: if span.is_exported { Export::Elsewhere } else { Export::of(trace_parent) },
        name: span.name,
        started_unix_us: arrived_unix_us.saturating_add(span.offset_us),
        duration_us: span.duration_us,
        status: SpanStatus::Ended,
        phases_us: span.phases_us.try_into().unwrap_or_default(),
        input: span.input,
        output: span.output,
        error: span.error,
        attributes: Vec::new(),
        node: Some(span.node.map_or_else(|| node.clone(), Into::into)),
    };
    message.spans.into_iter().map(span).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(
        result: Result<Reply, InvocationError>,
        timing: Timing,
    ) -> (Result<Reply, InvocationError>, Timing) {
        let (head, body) = encode(result, timing);
        assert!(!head.is_refused);
        decode(Answer { head, body }).unwrap()
    }

    #[test]
    fn replies_and_times_arrive_unchanged() {
        let timing = Timing {
            queue: Duration::from_micros(5),
            start: Duration::from_millis(3),
            execution: Duration::from_secs(2),
        };
        let headers =
            vec![("set-cookie".to_owned(), "a=1".to_owned()), ("set-cookie".into(), "b=2".into())];
        let replies = [
            Reply::None,
            Reply::Json("{\"a\":1}".into()),
            Reply::Text("häuser".into()),
            Reply::Bytes(Bytes::from_static(&[0, 255])),
            Reply::Http(HttpResponse { status: 418, headers, body: Bytes::from_static(b"tea") }),
        ];
        for reply in replies {
            let (received, times) = sent(Ok(reply.clone()), timing);
            assert_eq!((received.unwrap(), times), (reply, timing));
        }
        let full = InvocationError::QueueFull { function: "f".into(), capacity: 3 };
        assert_eq!(sent(Err(full.clone()), timing).0.unwrap_err().to_string(), full.to_string());
        let refused = refusal(&full);
        assert!(refused.is_refused);
        assert!(decode(Answer { head: refused, body: Bytes::new() }).unwrap().0.is_err());
    }

    #[test]
    fn other_answers_are_an_error() {
        let message = |reply: i32, http_status: u32| {
            let message = ResultMessage { reply, http_status, ..ResultMessage::default() };
            OutcomeHead { result: message.encode_to_vec().into(), ..OutcomeHead::default() }
        };
        let undecodable = [
            (message(0, 0), &b""[..]),
            (message(77, 0), b""),
            (message(ReplyKind::Json.into(), 0), &[0xff]),
            (message(ReplyKind::Http.into(), 100), b""),
            (message(ReplyKind::Http.into(), 66_000), b""),
            (OutcomeHead { result: Bytes::from_static(&[0xff]), ..OutcomeHead::default() }, b""),
        ];
        for (head, body) in undecodable {
            let answer = Answer { head, body: Bytes::from_static(body) };
            assert_eq!(decode(answer).err(), Some(UndecodableOutcome));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_outcome_or_an_error(result in prop::collection::vec(any::<u8>(), 0..200), body in prop::collection::vec(any::<u8>(), 0..50)) {
            let head = OutcomeHead { result: result.clone().into(), ..OutcomeHead::default() };
            let _ = decode(Answer { head, body: body.into() });
            let trace_parent = crate::trace::new_trace_parent();
            decode_spans(result.into(), &trace_parent, &"hall".into(), 0);
        }
    }
}
