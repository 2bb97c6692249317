//! The newest spans of invocations and workflows, in memory.
//!
//! An invocation without a parent begins a trace (W3C Trace Context) if its caller did not send a `traceparent`. The
//! invocations that it starts belong to the same trace. [`Traces::sample`] limits how many traces are recorded per second.
//! What an invocation or a task sends carries the context of its own span, see [`Traces::context`]. So the spans of one trace
//! connect, here and at a collector. The caller decides by the flag `sampled` whether the spans of its trace are exported; they
//! are recorded here in both cases.

mod context;
pub mod conventions;
mod span;
mod summary;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::context::{
    TRACE_PARENT, context_of, is_sampled, new_trace_parent, parent_of, parent_span_id, span_id, trace_id,
    with_context,
};
pub use self::conventions::{Entry, Role};
pub use self::span::{DATA_CHARS, Export, SpanKind, SpanStatus, TraceSpan, cut, of_invocation};
pub use self::summary::{TraceFilter, TraceSummary};

/// Average size of the texts of a span, in bytes. `spans × SPAN_BYTES` is the limit for the texts of all spans.
const SPAN_BYTES: usize = 512;
/// Minimum of the limit for the texts of all spans, in bytes.
const MIN_BYTES: usize = 64 << 10;
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

/// The newest spans.
#[derive(Default)]
pub struct Traces {
    limits: TraceLimits,
    recorded: Mutex<Recorded>,
    /// The current second of the rate limit, and the number of traces that began in it.
    second: AtomicU64,
    begun: AtomicU64,
    /// Number of the newest spans among which are all that were not exported yet.
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

impl Traces {
    /// Without spans. `exporting` is true if [`take_unexported`](Self::take_unexported) will be called.
    pub fn new(limits: TraceLimits, exporting: bool) -> Self {
        Self { limits, exporting, ..Self::default() }
    }

    /// True if spans are recorded.
    pub fn is_on(&self) -> bool {
        self.limits.spans > 0
    }

    /// True if spans of a trace with this `traceparent` are exported. Otherwise nothing is recorded that only a collector gets.
    pub fn exports(&self, trace_parent: &str) -> bool {
        self.exporting && self.is_on() && is_sampled(trace_parent)
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
        let is_new = self.exporting && span.export == Export::Wanted;
        let mut recorded = self.recorded.lock();
        recorded.text_bytes += span.text_bytes();
        recorded.spans.push_back(span);
        let (max_spans, max_bytes) = (self.limits.spans, self.max_bytes());
        while recorded.spans.len() > max_spans || recorded.text_bytes > max_bytes {
            let Some(oldest) = recorded.spans.pop_front() else { break };
            recorded.text_bytes -= oldest.text_bytes();
        }
        let spans = &recorded.spans;
        let unexported = self.unexported.load(Ordering::Relaxed);
        // Spans that are not exported are among those that are, so they count as soon as one of those waits.
        if is_new || unexported > 0 {
            self.unexported.store((unexported + 1).min(spans.len()), Ordering::Relaxed);
        }
        if is_new {
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

    /// The spans for the export that were added since the last call.
    pub fn take_unexported(&self) -> Vec<TraceSpan> {
        let recorded = self.recorded.lock();
        let spans = &recorded.spans;
        let count = self.unexported.swap(0, Ordering::Relaxed).min(spans.len());
        let newest = spans.iter().skip(spans.len() - count);
        newest.filter(|span| span.export == Export::Wanted).cloned().collect()
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
