//! A line for each trace that is kept.

use std::collections::HashMap;

use super::{SpanKind, SpanStatus, TraceSpan, Traces};

/// A trace in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSummary {
    /// Its id, 32 hex digits.
    pub trace: String,
    /// Kind of its root here: the span that started first.
    pub kind: SpanKind,
    /// Name of the root.
    pub name: String,
    /// Start of the root, in microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// From the start of the root to the last end, or until now if something runs, in microseconds.
    pub duration_us: u64,
    /// Number of its spans.
    pub spans: u32,
    /// The first error in it.
    pub error: Option<String>,
    /// True if something of it runs or waits.
    pub running: bool,
}

/// Which traces a list has.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceFilter<'a> {
    /// Only those with an error.
    pub failed: bool,
    /// Only those with this text in the name of the root or in the id, whatever the case; all if it is empty.
    pub search: &'a str,
    /// Maximum number.
    pub max: usize,
}

struct Found<'a> {
    root: &'a TraceSpan,
    end_unix_us: u64,
    spans: u32,
    failed: Option<&'a TraceSpan>,
    running: bool,
}

impl Traces {
    /// The traces of the spans that are kept and of those in `open`, which have not ended: the newest first, and how many were left out.
    pub fn summaries(&self, filter: TraceFilter<'_>, open: &[TraceSpan]) -> (Vec<TraceSummary>, u64) {
        let recorded = self.recorded.lock();
        let mut traces: HashMap<&str, Found<'_>> = HashMap::new();
        for span in recorded.spans.iter().chain(open) {
            let end_unix_us = span.started_unix_us.saturating_add(span.duration_us);
            let new = || Found { root: span, end_unix_us, spans: 0, failed: None, running: false };
            let found = traces.entry(&span.trace).or_insert_with(new);
            found.spans += 1;
            found.running |= span.status != SpanStatus::Ended;
            found.end_unix_us = found.end_unix_us.max(end_unix_us);
            if is_before(span, found.root) {
                found.root = span;
            }
            if span.error.is_some() && found.failed.is_none_or(|failed| is_before(span, failed)) {
                found.failed = Some(span);
            }
        }
        let search = filter.search.to_lowercase();
        let is_wanted = |found: &Found<'_>| {
            (!filter.failed || found.failed.is_some())
                && (found.root.name.to_lowercase().contains(&search) || found.root.trace.contains(&search))
        };
        let mut wanted: Vec<Found<'_>> = traces.into_values().filter(is_wanted).collect();
        wanted.sort_by_key(|found| std::cmp::Reverse(found.root.started_unix_us));
        let more = wanted.len().saturating_sub(filter.max) as u64;
        let summary = |found: &Found<'_>| TraceSummary {
            trace: found.root.trace.clone(),
            kind: found.root.kind,
            name: found.root.name.clone(),
            started_unix_us: found.root.started_unix_us,
            duration_us: found.end_unix_us.saturating_sub(found.root.started_unix_us),
            spans: found.spans,
            error: found.failed.and_then(|span| span.error.clone()),
            running: found.running,
        };
        (wanted.iter().take(filter.max).map(summary).collect(), more)
    }
}

/// True if `span` started before `other`; of two that started together the longer one is around the other.
fn is_before(span: &TraceSpan, other: &TraceSpan) -> bool {
    let key = |span: &TraceSpan| (span.started_unix_us, std::cmp::Reverse(span.duration_us));
    key(span) < key(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::conventions::Attributes;
    use crate::trace::{Export, Role, TraceLimits};

    fn span(
        trace: &str,
        name: &str,
        started_unix_us: u64,
        duration_us: u64,
        error: Option<&str>,
    ) -> TraceSpan {
        TraceSpan {
            trace: trace.to_owned(),
            id: format!("{trace}-{name}"),
            parent: None,
            kind: SpanKind::Function,
            role: Role::Server,
            export: Export::NotSampled,
            name: name.to_owned(),
            started_unix_us,
            duration_us,
            status: SpanStatus::Ended,
            phases_us: [0; 4],
            input: String::new(),
            output: String::new(),
            error: error.map(str::to_owned),
            attributes: Attributes::default(),
            node: None,
        }
    }

    #[test]
    fn a_trace_is_one_line_with_its_root_and_first_error() {
        let traces = Traces::new(TraceLimits::default(), false);
        for span in [
            // An inner span ends before the one around it and is added first.
            span("a", "inner", 110, 20, Some("late")),
            span("a", "first", 105, 2, Some("early")),
            span("a", "outer", 100, 50, None),
            span("b", "other", 200, 5, None),
        ] {
            traces.add(span, |text| text);
        }
        let all = TraceFilter { max: 10, ..TraceFilter::default() };
        let (found, more) = traces.summaries(all, &[]);
        let names: Vec<_> =
            found.iter().map(|trace| (&*trace.name, trace.spans, trace.duration_us)).collect();
        assert_eq!((names, more), (vec![("other", 1, 5), ("outer", 3, 50)], 0));
        assert_eq!(found[1].error.as_deref(), Some("early"));
        let (failed, _) = traces.summaries(TraceFilter { failed: true, ..all }, &[]);
        assert_eq!(failed, found[1..]);
        let (searched, _) = traces.summaries(TraceFilter { search: "OTH", ..all }, &[]);
        assert_eq!(searched, found[..1]);
        assert!(all_ended(&found));
        assert_eq!(traces.summaries(TraceFilter { max: 1, ..all }, &[]).1, 1);
    }

    fn all_ended(found: &[TraceSummary]) -> bool {
        found.iter().all(|trace| !trace.running)
    }

    #[test]
    fn what_runs_is_the_root_of_its_trace() {
        let traces = Traces::new(TraceLimits::default(), false);
        traces.add(span("a", "first task", 110, 5, None), |text| text);
        traces.add(span("b", "other", 120, 5, None), |text| text);
        let open = |name: &str, started_unix_us| TraceSpan {
            status: SpanStatus::Waiting,
            kind: SpanKind::Workflow,
            ..span("a", name, started_unix_us, 200 - started_unix_us, None)
        };
        let open = [open("orders", 100), open("second task", 115)];
        let all = TraceFilter { max: 10, ..TraceFilter::default() };
        let (found, _) = traces.summaries(all, &open);
        let of = |trace: &TraceSummary| (trace.name.clone(), trace.spans, trace.duration_us, trace.running);
        let found: Vec<_> = found.iter().map(of).collect();
        assert_eq!(found, [("other".to_owned(), 1, 5, false), ("orders".to_owned(), 3, 100, true)]);
        let (searched, _) = traces.summaries(TraceFilter { search: "orders", ..all }, &open);
        assert_eq!(searched.len(), 1);
    }
}
