//! Spans of instances and their tasks.

use edgefaas_functions::trace::{DATA_CHARS, SpanKind, TraceSpan, Traces, cut, parent_of, trace_id};
use edgefaas_workflow::instance::{Note, NoteKind};
use edgefaas_workflow::program::Node;

use super::instance::Running;

/// The tasks of one instance take at most one in this many of the kept spans, so that a loop does not evict all others.
const INSTANCE_SHARE: usize = 8;
const MIN_TASKS: usize = 64;

/// Running tasks of one instance.
#[derive(Default)]
pub(super) struct OpenSpans {
    open: Vec<OpenSpan>,
    count: u64,
}

struct OpenSpan {
    node: Option<u32>,
    /// The task's path in the definition; empty for the workflow.
    path: String,
    id: String,
    parent: Option<String>,
    started_unix_us: u64,
    input: String,
}

/// The spans that the notes of a turn will begin.
pub(super) struct SpansAhead {
    count: u64,
    /// The tasks and the numbers of their spans.
    begun: Vec<(u32, u64)>,
}

impl SpansAhead {
    /// Counts a note that is handled later.
    pub fn note(&mut self, note: &Note) {
        if let (NoteKind::Started, Some(node)) = (note.kind, note.node) {
            self.count += 1;
            self.begun.push((node, self.count));
        }
    }

    /// The span of a task that a note begins; `None` if there is none.
    pub fn of_task(&self, traces: &Traces, running: &Running, node: u32) -> Option<String> {
        let (_, number) = self.begun.iter().rev().find(|(begun, _)| *begun == node)?;
        let path = &running.workflow.program.node(node).path;
        (*number <= max_tasks(traces)).then(|| id_of_task(running, path, *number))
    }
}

/// Maximum number of recorded tasks of an instance.
fn max_tasks(traces: &Traces) -> u64 {
    (traces.max_spans() / INSTANCE_SHARE).max(MIN_TASKS) as u64
}

fn id_of_task(running: &Running, path: &str, number: u64) -> String {
    format!("{}{path}#{number}", running.id)
}

impl OpenSpans {
    /// The recorded span of a running task, or of what encloses it if the task has none.
    pub fn of_task(&self, running: &Running, node: u32) -> String {
        let path = &running.workflow.program.node(node).path;
        let of_node = self.open.iter().rev().find(|span| span.node == Some(node));
        let span = of_node.or_else(|| self.around(path));
        span.map_or_else(|| running.id.to_string(), |span| span.id.clone())
    }

    /// The innermost span around a path.
    fn around(&self, path: &str) -> Option<&OpenSpan> {
        let is_around = |span: &&OpenSpan| {
            path.strip_prefix(span.path.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        self.open.iter().filter(is_around).max_by_key(|span| span.path.len())
    }

    /// The `traceparent` of what a task sends or starts.
    pub fn context(&self, traces: &Traces, running: &Running, node: u32) -> Option<String> {
        let trace_parent = running.trace_parent.as_deref()?;
        traces.context(Some(trace_parent), &self.of_task(running, node))
    }

    /// The spans that notes will begin.
    pub fn ahead(&self) -> SpansAhead {
        SpansAhead { count: self.count, begun: Vec::new() }
    }

    /// Handles a note. Returns a span when a task or the workflow has ended.
    pub fn note(
        &mut self,
        traces: &Traces,
        running: &Running,
        note: &Note,
        node: Option<&Node>,
        unix_us: u64,
    ) -> Option<TraceSpan> {
        let trace = trace_id(running.trace_parent.as_deref()?)?;
        let data = || cut(&note.value.start_of_json(4 * DATA_CHARS));
        if note.kind == NoteKind::Started {
            if node.is_some() && self.count >= max_tasks(traces) {
                return None;
            }
            self.begin(running, note, node, unix_us, data());
            return None;
        }
        let goes_on = matches!(
            note.kind,
            NoteKind::Retried
                | NoteKind::Skipped
                | NoteKind::CorrelationStarted
                | NoteKind::CorrelationCompleted
        );
        if goes_on {
            return None;
        }
        let at = self.open.iter().rposition(|open| open.node == note.node)?;
        let OpenSpan { id, parent, started_unix_us, input, .. } = self.open.remove(at);
        let failed = note.kind != NoteKind::Completed;
        let (kind, name) = match node {
            None => (SpanKind::Workflow, running.workflow.name.to_string()),
            Some(node) => (SpanKind::Task, format!("{} {}", node.kind.word(), node.name)),
        };
        Some(TraceSpan {
            trace: trace.to_owned(),
            id,
            parent,
            kind,
            name,
            started_unix_us,
            duration_us: unix_us.saturating_sub(started_unix_us),
            phases_us: [0; 4],
            input,
            output: if failed { String::new() } else { data() },
            error: failed.then(|| match note.kind {
                NoteKind::Cancelled => "cancelled".to_owned(),
                _ => data(),
            }),
            node: None,
        })
    }

    fn begin(&mut self, running: &Running, note: &Note, node: Option<&Node>, unix_us: u64, input: String) {
        let instance = running.id.to_string();
        let path = node.map(|node| node.path.clone()).unwrap_or_default();
        let (id, parent) = match node {
            None => (instance, running.trace_parent.as_deref().and_then(parent_of).map(str::to_owned)),
            Some(_) => {
                self.count += 1;
                let parent = self.around(&path).map_or(instance, |span| span.id.clone());
                (id_of_task(running, &path, self.count), Some(parent))
            }
        };
        self.open.push(OpenSpan { node: note.node, path, id, parent, started_unix_us: unix_us, input });
    }
}
