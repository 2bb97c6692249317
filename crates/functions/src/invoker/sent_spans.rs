//! Spans of what an invocation sends: requests, calls of other nodes and messages. They exist only if they are exported.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_isolates::FetchError;

use super::Invoker;
use crate::invocation::{Invocation, InvocationError};
use crate::registry::LiveFunction;
use crate::trace::conventions::{self, Attributes, Value};
use crate::trace::{Export, Role, SpanKind, SpanStatus, TraceSpan, context_of, parent_of, trace_id};

/// Maximum number of these spans of one invocation, so that a loop does not evict all others. What is sent after them carries
/// the context of the invocation.
const MAX_SPANS: u32 = 64;

/// The spans of one invocation.
#[derive(Default)]
pub(super) struct SentSpans {
    count: u32,
}

/// The id of a span that may begin.
pub(super) struct NextSpan {
    id: String,
    parent: String,
    /// The `traceparent` of what is sent.
    pub context: String,
}

impl SentSpans {
    /// The next span of an invocation, by the `traceparent` that it passes on; `None` if it is not exported.
    pub fn next(
        &mut self,
        invoker: &Invoker,
        invocation: &str,
        trace_parent: Option<&str>,
        kind: SpanKind,
    ) -> Option<NextSpan> {
        let trace_parent = trace_parent.filter(|parent| invoker.traces.exports(parent))?;
        if self.count >= MAX_SPANS {
            return None;
        }
        self.count += 1;
        let id = format!("{invocation}/{}#{}", kind.word(), self.count);
        let context = context_of(trace_parent, &id)?;
        Some(NextSpan { id, parent: invocation.to_owned(), context })
    }
}

impl NextSpan {
    /// The span that begins now.
    fn begin(
        self,
        invoker: &Invoker,
        (kind, role): (SpanKind, Role),
        name: String,
        attributes: Attributes,
    ) -> TraceSpan {
        TraceSpan {
            trace: trace_id(&self.context).unwrap_or_default().to_owned(),
            id: self.id,
            parent: Some(self.parent).filter(|parent| !parent.is_empty()),
            kind,
            role,
            export: Export::Wanted,
            name,
            started_unix_us: invoker.clock.now_unix_us(),
            duration_us: 0,
            status: SpanStatus::Ended,
            phases_us: [0; 4],
            input: String::new(),
            output: String::new(),
            error: None,
            attributes,
            node: None,
        }
    }

    /// Records a message that is published by the function. It leaves when the invocation commits.
    pub fn publish(self, invoker: &Invoker, function: &LiveFunction, topic: &str, body_bytes: usize) {
        let attributes = conventions::of_publish(topic, body_bytes);
        let name = crate::trace::cut(topic);
        let span = self.begin(invoker, (SpanKind::Publish, Role::Producer), name, attributes);
        invoker.record(span, function);
    }

    /// Begins a request to another server.
    pub fn request(
        self,
        invoker: &Arc<Invoker>,
        function: &Arc<LiveFunction>,
        (method, url): (&http::Method, &url::Url),
    ) -> OpenSpan {
        let server = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let (name, attributes) = (format!("{method} {server}"), conventions::of_request(method, url));
        let span = self.begin(invoker, (SpanKind::Request, Role::Client), name, attributes);
        OpenSpan::new(invoker, function, span)
    }
}

/// A span that has begun. If it is dropped, its caller has stopped waiting.
pub(super) struct OpenSpan {
    invoker: Arc<Invoker>,
    function: Arc<LiveFunction>,
    since: Instant,
    /// Taken at the end.
    span: Option<TraceSpan>,
}

impl OpenSpan {
    fn new(invoker: &Arc<Invoker>, function: &Arc<LiveFunction>, span: TraceSpan) -> Self {
        let (invoker, function) = (invoker.clone(), function.clone());
        Self { invoker, function, since: Instant::now(), span: Some(span) }
    }

    /// Begins a call of another node for an invocation, which becomes its child; `None` if it is not exported.
    pub fn of_remote_call(
        invoker: &Arc<Invoker>,
        function: &Arc<LiveFunction>,
        invocation: &mut Invocation,
        node: &str,
    ) -> Option<Self> {
        let trace_parent = invocation.trace_parent.as_deref()?;
        let mut next =
            SentSpans::default().next(invoker, &invocation.id, Some(trace_parent), SpanKind::Request)?;
        let caller = invocation.parent.clone().or_else(|| parent_of(trace_parent).map(str::to_owned));
        next.parent = caller.unwrap_or_default();
        invocation.trace_parent = Some(next.context.clone());
        let (kind, name) = ((SpanKind::Request, Role::Client), format!("{} on {node}", function.name));
        let span = next.begin(invoker, kind, name, conventions::of_remote_call(&function.name, node));
        Some(Self::new(invoker, function, span))
    }

    /// The id of the span.
    pub fn id(&self) -> Option<&str> {
        self.span.as_ref().map(|span| &*span.id)
    }

    /// The server has answered with this status, or the request has failed.
    pub fn answered<T>(self, answer: &Result<T, FetchError>, status: impl Fn(&T) -> u16) {
        match answer {
            Ok(answer) => {
                let status = status(answer);
                let mut attributes = vec![("http.response.status_code", Value::Number(status.into()))];
                if status >= 400 {
                    attributes.push(("error.type", Value::Text(status.to_string())));
                }
                self.end(format!("HTTP {status}"), None, attributes);
            }
            Err(error) => {
                let kind = ("error.type", Value::Word(conventions::error_type(error.cause)));
                self.end(String::new(), Some(error.error.to_string()), vec![kind]);
            }
        }
    }

    /// The call of another node has ended.
    pub fn ended(self, error: Option<&InvocationError>) {
        let attributes = error.map(|error| ("error.type", Value::Text(error.status().to_string())));
        self.end(String::new(), error.map(ToString::to_string), attributes.into_iter().collect());
    }

    fn end(mut self, output: String, error: Option<String>, attributes: Attributes) {
        self.record(output, error, attributes);
    }

    fn record(&mut self, output: String, error: Option<String>, attributes: Attributes) {
        let Some(mut span) = self.span.take() else { return };
        span.duration_us = self.since.elapsed().as_micros() as u64;
        (span.output, span.error) = (output, error);
        span.attributes.extend(attributes);
        self.invoker.record(span, &self.function);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let attributes = vec![("error.type", Value::Word("cancelled"))];
        self.record(String::new(), Some("cancelled".to_owned()), attributes);
    }
}
