//! Spans.

use std::sync::Arc;

use edgefaas_isolates::Reply;

use super::context::{is_sampled, parent_of, trace_id};
use super::conventions::{Attributes, Role};
use crate::invocation::{Invocation, Outcome};

/// Maximum length of the recorded input or output of a span, in characters.
pub const DATA_CHARS: usize = 300;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SpanKind {
    Function,
    Workflow,
    Task,
    /// A request of a function to another server, or a call of another node.
    Request,
    /// A message that a function publishes.
    Publish,
}

impl SpanKind {
    /// The kind as text, for exports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Workflow => "workflow",
            Self::Task => "task",
            Self::Request => "request",
            Self::Publish => "publish",
        }
    }
}

/// Whether a span has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SpanStatus {
    Ended,
    Running,
    Waiting,
}

/// Whether a span is exported, by a node that exports spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// It is exported.
    Wanted,
    /// It is not: its caller has not sampled the trace.
    NotSampled,
    /// It is not: the node that recorded it exports it.
    Elsewhere,
}

impl Export {
    /// The export of spans with this `traceparent`.
    pub fn of(trace_parent: &str) -> Self {
        if is_sampled(trace_parent) { Self::Wanted } else { Self::NotSampled }
    }
}

/// The recorded times of one invocation, workflow instance or task, or of what an invocation sends.
#[derive(Debug, Clone)]
pub struct TraceSpan {
    /// The id of the trace, 32 hex digits.
    pub trace: String,
    /// The id of the invocation or instance; of a task `INSTANCE/TASK#NUMBER`, of what an invocation sends
    /// `INVOCATION/KIND#NUMBER`.
    pub id: String,
    /// The id of the parent span: the id of an invocation, an instance or a task, or a [`span_id`].
    pub parent: Option<String>,
    /// The kind of the span.
    pub kind: SpanKind,
    /// Its part in the exchange with other programs.
    pub role: Role,
    /// Whether it is exported.
    pub export: Export,
    /// The name of the function, workflow or task, the server of a request or the topic of a message.
    pub name: String,
    /// Start, in microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// Duration in microseconds; until now for a span that has not ended.
    pub duration_us: u64,
    /// Recorded spans have ended.
    pub status: SpanStatus,
    /// Microseconds of each phase of an invocation: waiting in the queue, starting, running, committing. Zeros for other
    /// kinds.
    pub phases_us: [u64; 4],
    /// The input, at most [`DATA_CHARS`] characters of it.
    pub input: String,
    /// The output, at most [`DATA_CHARS`] characters of it.
    pub output: String,
    /// The error, if it failed.
    pub error: Option<String>,
    /// Attributes for the export, see [`conventions`](super::conventions); empty if it is not exported.
    pub attributes: Attributes,
    /// The name of the node that recorded it; `None` for this one.
    pub node: Option<Arc<str>>,
}

impl TraceSpan {
    /// The span with its secrets replaced by `mask`.
    #[must_use]
    pub fn masked(mut self, mask: impl Fn(String) -> String) -> Self {
        self.name = mask(self.name);
        self.input = mask(self.input);
        self.output = mask(self.output);
        self.error = self.error.map(&mask);
        self.attributes =
            self.attributes.into_iter().map(|(name, value)| (name, value.masked(&mask))).collect();
        self
    }

    /// Size of its texts, in bytes.
    pub fn text_bytes(&self) -> usize {
        let texts = [&self.trace, &self.id, &self.name, &self.input, &self.output];
        let optional = [&self.parent, &self.error];
        let bytes: usize =
            texts.into_iter().chain(optional.into_iter().flatten()).map(String::capacity).sum();
        bytes + self.attributes.iter().map(|(_, value)| value.bytes()).sum::<usize>()
    }
}

/// The span of an invocation; `None` if the invocation has no valid `traceparent`. `state_us` is the time of the commit.
pub fn of_invocation(
    invocation: &Invocation,
    outcome: &Outcome,
    started_unix_us: u64,
    state_us: u64,
) -> Option<TraceSpan> {
    let trace_parent = invocation.trace_parent.as_deref()?;
    let trace = trace_id(trace_parent)?.to_owned();
    let timing = outcome.timing;
    let phases_us = [
        timing.queue.as_micros() as u64,
        timing.start.as_micros() as u64,
        timing.execution.as_micros() as u64,
        state_us,
    ];
    let caller = || parent_of(trace_parent).map(str::to_owned);
    // The node that placed the invocation here has a span of the call, which the `traceparent` names.
    let parent = match invocation.placed_by {
        Some(_) => caller().or_else(|| invocation.parent.clone()),
        None => invocation.parent.clone().or_else(caller),
    };
    let output = outcome.result.as_ref().map(|reply| match reply {
        Reply::Json(text) | Reply::Text(text) => cut(text),
        Reply::Bytes(bytes) => format!("{} bytes", bytes.len()),
        Reply::Http(response) => format!("HTTP {}", response.status),
        Reply::None => String::new(),
    });
    Some(TraceSpan {
        trace,
        id: invocation.id.clone(),
        parent,
        kind: SpanKind::Function,
        role: Role::of(invocation),
        export: Export::of(trace_parent),
        name: invocation.function.clone(),
        started_unix_us,
        duration_us: phases_us.iter().sum(),
        status: SpanStatus::Ended,
        phases_us,
        input: cut(&String::from_utf8_lossy(&invocation.event.body)),
        output: output.unwrap_or_default(),
        error: outcome.result.as_ref().err().map(ToString::to_string),
        attributes: Attributes::new(),
        node: outcome.node.clone(),
    })
}

/// The first [`DATA_CHARS`] characters of a text.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(DATA_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
