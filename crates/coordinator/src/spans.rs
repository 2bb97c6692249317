//! Spans of instances and their tasks.

use std::cmp::Reverse;
use std::sync::Arc;

use edgefaas_functions::trace::conventions::{self, Attributes};
use edgefaas_functions::trace::{
    DATA_CHARS, Export, Role, SpanKind, SpanStatus, TraceSpan, Traces, connect, cut, parent_of, trace_id,
};
use edgefaas_workflow::Status;
use edgefaas_workflow::instance::{Action, Note, NoteKind};
use edgefaas_workflow::program::{Kind, Node};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::instance::Running;

/// The tasks of one instance take at most one in this many of the kept spans, so that a loop does not evict all others.
const INSTANCE_SHARE: usize = 8;
const MIN_TASKS: usize = 64;

/// Running tasks of one instance.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct OpenSpans {
    open: Vec<OpenSpan>,
    count: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct OpenSpan {
    node: Option<u32>,
    /// The task's path in the definition; empty for the workflow.
    path: String,
    id: String,
    parent: Option<String>,
    started_unix_us: u64,
    input: String,
}

/// The end of an instance.
struct End {
    unix_us: u64,
    /// What it failed with, as JSON.
    error: Option<String>,
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

impl Coordinator {
    /// The spans of a trace, also of instances and tasks that have not ended; sorted by start. `id` is the id of the trace, of
    /// an instance or of an ended span.
    pub fn trace(&self, id: &str) -> Vec<TraceSpan> {
        let mut spans = self.traces.find(id);
        let of_instance = || {
            let running = self.find(Ulid::from_string(id).ok()?)?;
            trace_id(running.trace_parent.as_deref()?).map(str::to_owned)
        };
        let trace = spans.first().map(|span| span.trace.clone()).or_else(of_instance);
        let trace = trace.unwrap_or_else(|| id.to_owned());
        if spans.is_empty() {
            spans = self.traces.find(&trace);
        }
        let is_of_it =
            |running: &&Arc<Running>| running.trace_parent.as_deref().and_then(trace_id) == Some(&trace);
        let instances: Vec<_> = self.instances.lock().values().filter(is_of_it).cloned().collect();
        for running in instances {
            if spans.len() >= self.traces.max_spans() {
                break;
            }
            spans.extend(self.not_ended(&running, &trace));
        }
        connect(&mut spans);
        spans
    }

    /// The spans of the newest instances that run or wait and are recorded, and of their tasks: about `max` spans.
    pub fn open_spans(&self, max: usize) -> Vec<TraceSpan> {
        let is_recorded = |running: &&Arc<Running>| running.trace_parent.is_some();
        let mut instances: Vec<_> = self.instances.lock().values().filter(is_recorded).cloned().collect();
        instances.sort_unstable_by_key(|running| Reverse(running.id));
        let mut spans = Vec::new();
        for running in instances {
            if spans.len() >= max {
                break;
            }
            // A failed one has its spans among those that have ended, until they are dropped.
            if let Some(trace) = running.trace_parent.as_deref().and_then(trace_id)
                && !running.state.lock().instance.status().is_ended()
            {
                spans.extend(self.not_ended(&running, trace));
            }
        }
        spans
    }

    /// The spans of an instance and its tasks that have not ended.
    fn not_ended(&self, running: &Running, trace: &str) -> Vec<TraceSpan> {
        let open = {
            let state = running.state.lock();
            let end = state.instance.status().is_ended().then(|| End {
                unix_us: state.ended_unix_ms * 1000,
                error: match state.instance.result() {
                    Some(Err(error)) => Some(cut(&error.to_json().to_string())),
                    _ => None,
                },
            });
            let now_unix_us = self.clock.now_unix_us();
            state.spans.not_ended(running, trace, state.instance.status(), end, now_unix_us)
        };
        open.into_iter().map(|span| span.masked(|text| self.mask(running, text))).collect()
    }
}

fn kind_and_name(running: &Running, node: Option<&Node>) -> (SpanKind, String) {
    match node {
        None => (SpanKind::Workflow, running.workflow.name.to_string()),
        Some(node) => (SpanKind::Task, format!("{} {}", node.kind.word(), node.name)),
    }
}

fn role(running: &Running, node: Option<&Node>) -> Role {
    match node.map(|node| &node.kind) {
        None => running.entry.role(),
        Some(Kind::Http(_) | Kind::OpenApi(_)) => Role::Client,
        Some(Kind::Emit(_) | Kind::Publish(_)) => Role::Producer,
        Some(_) => Role::Internal,
    }
}

/// The attributes of an exported span.
fn attributes(running: &Running, node: Option<&Node>) -> Attributes {
    match node.map(|node| &node.kind) {
        None => running.entry.of_workflow(&running.id.to_string()),
        Some(Kind::Http(http)) => conventions::method(&http.method.to_ascii_uppercase()).collect(),
        Some(Kind::Emit(_) | Kind::Publish(_)) => conventions::of_sending_task(),
        Some(_) => Attributes::new(),
    }
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

    /// Handles the notes of a turn. Returns the spans that have ended.
    pub fn turn(
        &mut self,
        traces: &Traces,
        running: &Running,
        actions: &[Action],
        unix_us: u64,
    ) -> Vec<TraceSpan> {
        let program = &running.workflow.program;
        let ended = |action: &Action| match action {
            Action::Note(note) => {
                let node = note.node.map(|node| program.node(node));
                self.note(traces, running, note, node, unix_us)
            }
            _ => None,
        };
        actions.iter().filter_map(ended).collect()
    }

    /// The spans of the tasks that have not ended, and of the instance. With the end of the instance, of those whose end a
    /// crash has lost: they have ended with it.
    fn not_ended(
        &self,
        running: &Running,
        trace: &str,
        status: Status,
        end: Option<End>,
        now_unix_us: u64,
    ) -> Vec<TraceSpan> {
        let until_unix_us = end.as_ref().map_or(now_unix_us, |end| end.unix_us);
        let span = |open: &OpenSpan| {
            let node = open.node.map(|node| running.workflow.program.node(node));
            let (kind, name) = kind_and_name(running, node);
            let waits = match node {
                None => status == Status::Waiting,
                Some(node) => matches!(node.kind, Kind::Wait(_) | Kind::Listen(_)),
            };
            TraceSpan {
                trace: trace.to_owned(),
                id: open.id.clone(),
                parent: open.parent.clone(),
                kind,
                role: role(running, node),
                export: running.trace_parent.as_deref().map_or(Export::NotSampled, Export::of),
                name,
                started_unix_us: open.started_unix_us,
                duration_us: until_unix_us.saturating_sub(open.started_unix_us),
                status: match (&end, waits) {
                    (Some(_), _) => SpanStatus::Ended,
                    (None, true) => SpanStatus::Waiting,
                    (None, false) => SpanStatus::Running,
                },
                phases_us: [0; 4],
                input: open.input.clone(),
                output: String::new(),
                error: end.as_ref().and_then(|end| end.error.clone()),
                attributes: Attributes::new(),
                node: None,
            }
        };
        self.open.iter().map(span).collect()
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
        let trace_parent = running.trace_parent.as_deref()?;
        let trace = trace_id(trace_parent)?;
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
        let (kind, name) = kind_and_name(running, node);
        Some(TraceSpan {
            trace: trace.to_owned(),
            id,
            parent,
            kind,
            role: role(running, node),
            export: Export::of(trace_parent),
            name,
            started_unix_us,
            duration_us: unix_us.saturating_sub(started_unix_us),
            status: SpanStatus::Ended,
            phases_us: [0; 4],
            input,
            output: if failed { String::new() } else { data() },
            error: failed.then(|| match note.kind {
                NoteKind::Cancelled => "cancelled".to_owned(),
                _ => data(),
            }),
            attributes: match traces.exports(trace_parent) {
                true => attributes(running, node),
                false => Attributes::new(),
            },
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
