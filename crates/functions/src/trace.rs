//! Where the time of invocations and workflows went: the last spans, in memory.
//!
//! Every invocation that nobody else made begins a trace (W3C Trace Context) unless its caller has begun one; what it
//! calls belongs to it. Under load only some are recorded: [`Traces::sample`] lets so many begin each second.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::invocation::{Invocation, Outcome};

/// Bytes of the texts of all spans that are kept, for each of them on average.
const SPAN_BYTES: usize = 512;
const MIN_BYTES: usize = 64 << 10;
/// Characters of an input or output that are kept.
pub const DATA_CHARS: usize = 300;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct TraceLimits {
    /// Spans that are kept, fewer where their texts are long; none are recorded if it is 0. One instance has an eighth of them for its
    /// tasks, and at least 64.
    pub spans: usize,
    /// Traces that begin in a second, at most.
    pub per_second: u64,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self { spans: 4096, per_second: 100 }
    }
}

/// What a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SpanKind {
    Function,
    Workflow,
    Task,
}

impl SpanKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Workflow => "workflow",
            Self::Task => "task",
        }
    }
}

/// A stretch of time.
#[derive(Debug, Clone)]
pub struct TraceSpan {
    /// The trace, 32 hex digits.
    pub trace: String,
    /// Its own id: that of the invocation or instance, or `INSTANCE/TASK/NUMBER`.
    pub id: String,
    /// The span it is in.
    pub parent: Option<String>,
    /// What it is about.
    pub kind: SpanKind,
    /// The name of that.
    pub name: String,
    /// When it began, in microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// How long it took.
    pub duration_us: u64,
    /// Of a function: waiting, starting, running, committing.
    pub parts_us: [u64; 4],
    /// What went in, cut short.
    pub input: String,
    /// What came out, cut short.
    pub output: String,
    /// Why it failed.
    pub error: Option<String>,
}

/// The last spans.
#[derive(Default)]
pub struct Traces {
    limits: TraceLimits,
    kept: Mutex<Kept>,
    /// The second in which traces are counted now, and how many began in it.
    second: AtomicU64,
    begun: AtomicU64,
    /// Spans that nobody has exported yet.
    unexported: AtomicUsize,
    exporting: bool,
    added: Notify,
}

#[derive(Default)]
struct Kept {
    spans: VecDeque<TraceSpan>,
    /// Of their texts.
    bytes: usize,
}

impl TraceSpan {
    fn text_bytes(&self) -> usize {
        let texts = [&self.trace, &self.id, &self.name, &self.input, &self.output];
        let optional = [&self.parent, &self.error];
        texts.into_iter().chain(optional.into_iter().flatten()).map(String::capacity).sum()
    }
}

impl Traces {
    /// Nothing is recorded yet.
    pub fn new(limits: TraceLimits, exporting: bool) -> Self {
        Self { limits, exporting, ..Self::default() }
    }

    /// Spans are recorded.
    pub fn is_on(&self) -> bool {
        self.limits.spans > 0
    }

    /// Spans that are kept at most.
    pub fn max_spans(&self) -> usize {
        self.limits.spans
    }

    /// Completes when a span is added that is to be exported.
    pub async fn added(&self) {
        self.added.notified().await;
    }

    /// Whether a trace that begins now is recorded.
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

    /// Keeps a span; `mask` takes secrets out of its data.
    pub fn add(&self, mut span: TraceSpan, mask: impl Fn(String) -> String) {
        span.input = mask(std::mem::take(&mut span.input));
        span.output = mask(std::mem::take(&mut span.output));
        span.error = span.error.map(&mask);
        let mut kept = self.kept.lock();
        kept.bytes += span.text_bytes();
        kept.spans.push_back(span);
        let most = self.limits.spans;
        while kept.spans.len() > most || kept.bytes > most.saturating_mul(SPAN_BYTES).max(MIN_BYTES) {
            let Some(oldest) = kept.spans.pop_front() else { break };
            kept.bytes -= oldest.text_bytes();
        }
        let spans = &kept.spans;
        if self.exporting {
            let unexported = self.unexported.load(Ordering::Relaxed);
            self.unexported.store((unexported + 1).min(spans.len()), Ordering::Relaxed);
            self.added.notify_one();
        }
    }

    /// All spans of the trace that something is part of, by the id of an invocation, an instance or a trace; parents
    /// before their children.
    pub fn find(&self, id: &str) -> Vec<TraceSpan> {
        let kept = self.kept.lock();
        let spans = &kept.spans;
        let Some(trace) =
            spans.iter().rev().find(|span| span.id == id || span.trace == id).map(|span| &span.trace)
        else {
            return Vec::new();
        };
        let mut found: Vec<TraceSpan> = spans.iter().filter(|span| span.trace == *trace).cloned().collect();
        found.sort_by_key(|span| (span.started_unix_us, std::cmp::Reverse(span.duration_us)));
        found
    }

    /// The spans that were added since the last call.
    pub fn take_unexported(&self) -> Vec<TraceSpan> {
        let kept = self.kept.lock();
        let spans = &kept.spans;
        let count = self.unexported.swap(0, Ordering::Relaxed).min(spans.len());
        spans.iter().skip(spans.len() - count).cloned().collect()
    }
}

/// A trace that begins here, in the form of W3C Trace Context, section 3.2.
pub fn new_trace_parent() -> String {
    let (trace, span): (u128, u64) = (rand::random(), rand::random());
    format!("00-{trace:032x}-{span:016x}-01")
}

/// The trace's id in a `traceparent`.
pub fn trace_id(trace_parent: &str) -> Option<&str> {
    let mut parts = trace_parent.split('-');
    let trace = parts.nth(1).filter(|trace| trace.len() == 32)?;
    trace.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(trace)
}

/// The span of an invocation.
pub fn of_invocation(
    invocation: &Invocation,
    outcome: &Outcome,
    started_unix_us: u64,
    state_us: u64,
) -> Option<TraceSpan> {
    let trace = trace_id(invocation.trace_parent.as_deref()?)?.to_owned();
    let timing = outcome.timing;
    let parts_us = [
        timing.queue.as_micros() as u64,
        timing.start.as_micros() as u64,
        timing.execution.as_micros() as u64,
        state_us,
    ];
    // A step's id is `INSTANCE.FRAME`.
    let parent = invocation.parent.clone().or_else(|| Some(invocation.id.split_once('.')?.0.to_owned()));
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
        duration_us: parts_us.iter().sum(),
        parts_us,
        input: cut(&String::from_utf8_lossy(&invocation.event.body)),
        output: output.unwrap_or_default(),
        error: outcome.result.as_ref().err().map(ToString::to_string),
    })
}

/// The first [`DATA_CHARS`] characters of a text.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(DATA_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
