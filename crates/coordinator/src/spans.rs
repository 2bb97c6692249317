//! Spans of instances and their tasks.

use edgefaas_functions::trace::{DATA_CHARS, SpanKind, TraceSpan, Traces, cut, trace_id};
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

impl OpenSpans {
    /// The span of a running task.
    pub fn of_task(&self, node: u32) -> Option<String> {
        self.open.iter().rev().find(|span| span.node == Some(node)).map(|span| span.id.clone())
    }

    /// True if tasks that begin now are recorded.
    fn has_room(&self, traces: &Traces) -> bool {
        self.count < (traces.max_spans() / INSTANCE_SHARE).max(MIN_TASKS) as u64
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
            if node.is_some() && !self.has_room(traces) {
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
            None => (instance, running.parent_span()),
            Some(_) => {
                self.count += 1;
                // The innermost enclosing task.
                let is_around = |span: &&OpenSpan| {
                    path.strip_prefix(span.path.as_str()).is_some_and(|rest| rest.starts_with('/'))
                };
                let around = self.open.iter().filter(is_around).max_by_key(|span| span.path.len());
                let parent = around.map_or(instance.clone(), |span| span.id.clone());
                (format!("{instance}{path}#{}", self.count), Some(parent))
            }
        };
        self.open.push(OpenSpan { node: note.node, path, id, parent, started_unix_us: unix_us, input });
    }
}
