//! The newest spans of invocations and workflows, in memory.
//!
//! An invocation without a parent begins a trace (W3C Trace Context) if its caller did not send a `traceparent`. The
//! invocations that it starts belong to the same trace. [`Traces::sample`] limits how many traces are recorded per second.
//! What an invocation or a task sends carries the context of its own span, see [`Traces::context`]. So the spans of one trace
//! connect, here and at a collector.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use edgefaas_broker::Message;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::invocation::{Invocation, Outcome};

/// Average size of the texts of a span, in bytes. `spans × SPAN_BYTES` is the limit for the texts of all spans.
const SPAN_BYTES: usize = 512;
/// Minimum of the limit for the texts of all spans, in bytes.
const MIN_BYTES: usize = 64 << 10;
/// Maximum length of the recorded input or output of a span, in characters.
pub const DATA_CHARS: usize = 300;

/// The header and user property with the trace context (W3C Trace Context, section 3.2).
pub const TRACE_PARENT: &str = "traceparent";

/// Limits of recorded spans.
#[derive(Debug, Clone, Copy)]
pub struct TraceLimits {
    /// Maximum number of spans, fewer if their texts are long. No spans are recorded if it is 0. The tasks of one workflow
    /// instance may have an eighth of it, but at least 64.
    pub spans: usize,
    /// Maximum number of traces that begin in one second.
    pub per_second: u64,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self { spans: 4096, per_second: 100 }
    }
}

/// Number of the newest spans among which [`Traces::since`] searches.
const MAX_SEARCHED_SPANS: usize = 512;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SpanKind {
    Function,
    Workflow,
    Task,
}

impl SpanKind {
    /// The kind as text, for exports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Workflow => "workflow",
            Self::Task => "task",
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

/// The recorded times of one invocation, workflow instance or task.
#[derive(Debug, Clone)]
pub struct TraceSpan {
    /// The id of the trace, 32 hex digits.
    pub trace: String,
    /// The id of the invocation or instance; of a task `INSTANCE/TASK/NUMBER`.
    pub id: String,
    /// The id of the parent span: the id of an invocation, an instance or a task, or a [`span_id`].
    pub parent: Option<String>,
    /// The kind of the span.
    pub kind: SpanKind,
    /// The name of the function, workflow or task.
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
    /// The name of the node that recorded it; `None` for this one.
    pub node: Option<Arc<str>>,
}

/// The newest spans.
#[derive(Default)]
pub struct Traces {
    limits: TraceLimits,
    recorded: Mutex<Recorded>,
    /// The current second of the rate limit, and the number of traces that began in it.
    second: AtomicU64,
    begun: AtomicU64,
    /// Number of the newest spans that were not exported yet.
    unexported: AtomicUsize,
    exporting: bool,
    added: Notify,
}

#[derive(Default)]
struct Recorded {
    spans: VecDeque<TraceSpan>,
    /// Size of the texts of all spans.
    text_bytes: usize,
}

impl TraceSpan {
    /// The span with its secrets replaced by `mask`.
    #[must_use]
    pub fn masked(mut self, mask: impl Fn(String) -> String) -> Self {
        self.input = mask(self.input);
        self.output = mask(self.output);
        self.error = self.error.map(mask);
        self
    }

    /// Size of its texts, in bytes.
    pub fn text_bytes(&self) -> usize {
        let texts = [&self.trace, &self.id, &self.name, &self.input, &self.output];
        let optional = [&self.parent, &self.error];
        texts.into_iter().chain(optional.into_iter().flatten()).map(String::capacity).sum()
    }
}

impl Traces {
    /// Without spans. `exporting` is true if [`take_unexported`](Self::take_unexported) will be called.
    pub fn new(limits: TraceLimits, exporting: bool) -> Self {
        Self { limits, exporting, ..Self::default() }
    }

    /// True if spans are recorded.
    pub fn is_on(&self) -> bool {
        self.limits.spans > 0
    }

    /// Maximum number of spans.
    pub fn max_spans(&self) -> usize {
        self.limits.spans
    }

    /// Completes when a span was added that has to be exported.
    pub async fn added(&self) {
        self.added.notified().await;
    }

    /// True if a trace that begins now is recorded. Counts the trace.
    pub fn sample(&self, unix_ms: u64) -> bool {
        if !self.is_on() {
            return false;
        }
        let second = unix_ms / 1000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.begun.store(0, Ordering::Relaxed);
        }
        self.begun.fetch_add(1, Ordering::Relaxed) < self.limits.per_second
    }

    /// The `traceparent` that span `id` passes on; `None` outside of a trace. While no spans are recorded, it is that of the
    /// caller: spans of other programs still connect.
    pub fn context(&self, trace_parent: Option<&str>, id: &str) -> Option<String> {
        let trace_parent = trace_parent?;
        match self.is_on() {
            true => context_of(trace_parent, id),
            false => parent_of(trace_parent).map(|_| trace_parent.to_owned()),
        }
    }

    /// Maximum size of the texts of all spans, in bytes.
    fn max_bytes(&self) -> usize {
        self.limits.spans.saturating_mul(SPAN_BYTES).max(MIN_BYTES)
    }

    /// Adds a span that was recorded before a restart, if there is room. It is not exported again.
    pub fn restore(&self, span: TraceSpan, mask: impl Fn(String) -> String) {
        let span = span.masked(mask);
        let mut recorded = self.recorded.lock();
        let text_bytes = recorded.text_bytes + span.text_bytes();
        if recorded.spans.len() < self.limits.spans && text_bytes <= self.max_bytes() {
            recorded.text_bytes = text_bytes;
            recorded.spans.push_front(span);
        }
    }

    /// Adds a span and removes the oldest ones if a limit is exceeded. `mask` replaces secrets in its texts.
    pub fn add(&self, span: TraceSpan, mask: impl Fn(String) -> String) {
        let span = span.masked(mask);
        let mut recorded = self.recorded.lock();
        recorded.text_bytes += span.text_bytes();
        recorded.spans.push_back(span);
        let (max_spans, max_bytes) = (self.limits.spans, self.max_bytes());
        while recorded.spans.len() > max_spans || recorded.text_bytes > max_bytes {
            let Some(oldest) = recorded.spans.pop_front() else { break };
            recorded.text_bytes -= oldest.text_bytes();
        }
        let spans = &recorded.spans;
        if self.exporting {
            let unexported = self.unexported.load(Ordering::Relaxed);
            self.unexported.store((unexported + 1).min(spans.len()), Ordering::Relaxed);
            self.added.notify_one();
        }
    }

    /// All spans of one trace, sorted by start. `id` is the id of the trace or of a span of it. Empty if no such span
    /// exists.
    pub fn find(&self, id: &str) -> Vec<TraceSpan> {
        let recorded = self.recorded.lock();
        let spans = &recorded.spans;
        let Some(trace) =
            spans.iter().rev().find(|span| span.id == id || span.trace == id).map(|span| &span.trace)
        else {
            return Vec::new();
        };
        let mut found: Vec<TraceSpan> = spans.iter().filter(|span| span.trace == *trace).cloned().collect();
        drop(recorded);
        connect(&mut found);
        found
    }

    /// The newest spans of one trace that began at `since_unix_us` or later, for the node that waits for invocation `id`. That
    /// invocation comes first, then the newest.
    pub fn since(&self, trace: &str, id: &str, since_unix_us: u64) -> Vec<TraceSpan> {
        let recorded = self.recorded.lock();
        let is_of_it = |span: &&TraceSpan| span.trace == trace && span.started_unix_us >= since_unix_us;
        let newest = recorded.spans.iter().rev().take(MAX_SEARCHED_SPANS);
        let mut found: Vec<TraceSpan> = newest.filter(is_of_it).cloned().collect();
        found.sort_by_key(|span| span.id != id);
        found
    }

    /// The spans that were added since the last call.
    pub fn take_unexported(&self) -> Vec<TraceSpan> {
        let recorded = self.recorded.lock();
        let spans = &recorded.spans;
        let count = self.unexported.swap(0, Ordering::Relaxed).min(spans.len());
        spans.iter().skip(spans.len() - count).cloned().collect()
    }
}

/// Sorts the spans of one trace by start, and replaces parents that are a [`span_id`] of one of them by its id.
pub fn connect(spans: &mut [TraceSpan]) {
    spans.sort_by_key(|span| (span.started_unix_us, std::cmp::Reverse(span.duration_us)));
    let ids: HashMap<String, String> =
        spans.iter().map(|span| (span_id(&span.id), span.id.clone())).collect();
    for span in spans {
        if let Some(id) = span.parent.as_ref().and_then(|parent| ids.get(parent)) {
            span.parent = Some(id.clone());
        }
    }
}

/// The parts of a `traceparent`: the trace id and the span id. Only a new trace has the span id 0.
fn parts(trace_parent: &str) -> Option<(&str, &str)> {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = trace_parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let fits = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    // A later version may have more parts (section 3.2.4).
    let is_version = version != "ff" && (version != "00" || parts.next().is_none());
    let is_valid = fits
        && is_version
        && [version, trace, span, flags].into_iter().all(is_hex)
        && trace.bytes().any(|byte| byte != b'0');
    is_valid.then_some((trace, span))
}

/// The `traceparent` of a new trace (W3C Trace Context, section 3.2). Its span id is 0, since no span is its parent; it never
/// leaves the node.
pub fn new_trace_parent() -> String {
    let trace: u128 = rand::random::<u128>().max(1);
    format!("00-{trace:032x}-{:016x}-01", 0)
}

/// The trace id in a `traceparent`; `None` if it is not valid.
pub fn trace_id(trace_parent: &str) -> Option<&str> {
    parts(trace_parent).map(|(trace, _)| trace)
}

/// The id of the parent span in a `traceparent`, 16 hex digits; `None` if it is not valid or begins a trace.
pub fn parent_of(trace_parent: &str) -> Option<&str> {
    let (_, span) = parts(trace_parent)?;
    span.bytes().any(|byte| byte != b'0').then_some(span)
}

/// The `traceparent` of span `id` in the trace of `trace_parent`.
pub fn context_of(trace_parent: &str, id: &str) -> Option<String> {
    trace_id(trace_parent).map(|trace| format!("00-{trace}-{}-01", span_id(id)))
}

/// A message with the trace context in its user property [`TRACE_PARENT`], unless it has one or would then be larger than
/// `max_bytes`.
pub fn with_context(message: Message, trace_parent: Option<&str>, max_bytes: usize) -> Message {
    let Some(trace_parent) = trace_parent else { return message };
    let mut properties = message.properties().cloned().unwrap_or_default();
    if properties.user.iter().any(|(name, _)| &**name == TRACE_PARENT) {
        return message;
    }
    properties.user.push((TRACE_PARENT.into(), trace_parent.into()));
    if properties.problem().is_some() {
        return message;
    }
    let traced = message.clone().with_properties(properties);
    if traced.weight() <= max_bytes { traced } else { message }
}

/// The id of a span for other programs, 16 hex digits: the first 8 bytes of the hash of its id.
pub fn span_id(id: &str) -> String {
    let mut hex = blake3::hash(id.as_bytes()).to_hex().to_string();
    hex.truncate(16);
    hex
}

/// The [`span_id`] of a span's parent.
pub fn parent_span_id(parent: &str) -> String {
    // The ids of invocations, instances and tasks are longer.
    match parent.len() {
        16 => parent.to_owned(),
        _ => span_id(parent),
    }
}

/// The span of an invocation; `None` if the invocation has no valid `traceparent`. `state_us` is the time of the commit.
pub fn of_invocation(
    invocation: &Invocation,
    outcome: &Outcome,
    started_unix_us: u64,
    state_us: u64,
) -> Option<TraceSpan> {
    let trace = trace_id(invocation.trace_parent.as_deref()?)?.to_owned();
    let timing = outcome.timing;
    let phases_us = [
        timing.queue.as_micros() as u64,
        timing.start.as_micros() as u64,
        timing.execution.as_micros() as u64,
        state_us,
    ];
    let caller = || parent_of(invocation.trace_parent.as_deref()?).map(str::to_owned);
    let parent = invocation.parent.clone().or_else(caller);
    let output = outcome.result.as_ref().map(|reply| match reply {
        edgefaas_isolates::Reply::Json(text) | edgefaas_isolates::Reply::Text(text) => cut(text),
        edgefaas_isolates::Reply::Bytes(bytes) => format!("{} bytes", bytes.len()),
        edgefaas_isolates::Reply::Http(response) => format!("HTTP {}", response.status),
        edgefaas_isolates::Reply::None => String::new(),
    });
    Some(TraceSpan {
        trace,
        id: invocation.id.clone(),
        parent,
        kind: SpanKind::Function,
        name: invocation.function.clone(),
        started_unix_us,
        duration_us: phases_us.iter().sum(),
        status: SpanStatus::Ended,
        phases_us,
        input: cut(&String::from_utf8_lossy(&invocation.event.body)),
        output: output.unwrap_or_default(),
        error: outcome.result.as_ref().err().map(ToString::to_string),
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
