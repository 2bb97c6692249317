//! Lifecycle events of workflows and tasks (specification, section "Lifecycle Events"). They cost nothing without subscribers.

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Message, Properties};
use edgefaas_functions::topics::{EVENTS_LEVEL, LIFECYCLE_EVENTS, NODE_LEVEL};
use edgefaas_workflow::event::lifecycle;
use edgefaas_workflow::instance::{Note, NoteKind};
use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::instance::Running;
use super::outgoing_messages::CLOUD_EVENT;

/// The last levels of the topics of all events about a workflow.
const LAST_LEVELS: [&str; 15] = [
    "workflow/started",
    "workflow/completed",
    "workflow/faulted",
    "workflow/cancelled",
    "workflow/status-changed",
    "workflow/correlation-started",
    "workflow/correlation-completed",
    "task/created",
    "task/started",
    "task/completed",
    "task/faulted",
    "task/retried",
    "task/cancelled",
    "task/skipped",
    "task/status-changed",
];

/// What an event is about, as its type and its topic name it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Workflow,
    Task,
}

impl Subject {
    fn of(note: &Note) -> Self {
        match (note.kind, note.node) {
            (NoteKind::CorrelationStarted | NoteKind::CorrelationCompleted, _) | (_, None) => {
                Self::Workflow
            }
            (_, Some(_)) => Self::Task,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Task => "task",
        }
    }
}

/// The status phase that a change leads to; `None` if it changes nothing.
fn status(kind: NoteKind) -> Option<&'static str> {
    match kind {
        NoteKind::Started => Some("running"),
        NoteKind::Completed | NoteKind::Faulted | NoteKind::Cancelled => Some(kind.word()),
        NoteKind::Skipped
        | NoteKind::Retried
        | NoteKind::CorrelationStarted
        | NoteKind::CorrelationCompleted => None,
    }
}

/// The name of the field with the time of an event.
fn time_field(kind: NoteKind) -> &'static str {
    match kind {
        NoteKind::Started | NoteKind::CorrelationStarted => "startedAt",
        NoteKind::Completed | NoteKind::CorrelationCompleted => "completedAt",
        NoteKind::Faulted => "faultedAt",
        NoteKind::Skipped => "skippedAt",
        NoteKind::Retried => "retriedAt",
        NoteKind::Cancelled => "cancelledAt",
    }
}

/// The data of all events about a workflow or a task.
fn common(running: &Running, note: &Note, subject: Subject) -> Map<String, Value> {
    let program = &running.workflow.program;
    let name = format!("{}-{}.{}", program.name, running.id, program.namespace);
    let mut data = Map::new();
    match (subject, note.node) {
        (Subject::Task, Some(node)) => {
            data.insert("workflow".to_owned(), Value::from(name));
            data.insert("task".to_owned(), Value::from(program.node(node).path.as_str()));
        }
        _ => drop(data.insert("name".to_owned(), Value::from(name))),
    }
    // Not of the specification: the id that the commands of `edgefaas workflow` take.
    data.insert("instance".to_owned(), Value::from(running.id.to_string()));
    data
}

/// The data of the event about a note itself.
fn data_of(running: &Running, note: &Note, subject: Subject, time: &str) -> Map<String, Value> {
    let mut data = common(running, note, subject);
    data.insert(time_field(note.kind).to_owned(), Value::from(time));
    if (subject, note.kind) == (Subject::Workflow, NoteKind::Started) {
        let program = &running.workflow.program;
        let definition =
            json!({"name": program.name, "namespace": program.namespace, "version": program.version});
        data.insert("definition".to_owned(), definition);
    }
    let part = match note.kind {
        NoteKind::Started => Some("input"),
        NoteKind::Completed => Some("output"),
        NoteKind::Faulted | NoteKind::Retried => Some("error"),
        NoteKind::CorrelationCompleted => Some("correlationKeys"),
        NoteKind::Skipped | NoteKind::Cancelled | NoteKind::CorrelationStarted => None,
    };
    if let Some(part) = part {
        data.insert(part.to_owned(), note.value.to_json());
    }
    data
}

impl Coordinator {
    /// True if a client subscribes to lifecycle events of a workflow.
    pub(super) fn has_lifecycle_subscriber(&self, workflow: &str) -> bool {
        self.broker.has_subscribers_below(NODE_LEVEL, EVENTS_LEVEL)
            && LAST_LEVELS
                .into_iter()
                .any(|last| self.broker.has_subscribers(&format!("{LIFECYCLE_EVENTS}{workflow}/{last}")))
    }

    /// Publishes the events of a change that have subscribers.
    pub(super) fn publish_lifecycle(&self, running: &Running, note: &Note) {
        let subject = Subject::of(note);
        let time =
            DateTime::<Utc>::from_timestamp_millis(self.clock.now_unix_ms() as i64).unwrap_or_default();
        let time = time.to_rfc3339_opts(SecondsFormat::Millis, true);
        let with = |field: &str, value: &str, extra: &[(&str, &str)]| {
            let mut data = common(running, note, subject);
            data.insert(field.to_owned(), Value::from(value));
            data.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))));
            data
        };
        if (subject, note.kind) == (Subject::Task, NoteKind::Started) {
            self.publish_event(running, subject, "created", &time, || with("createdAt", &time, &[]));
        }
        self.publish_event(running, subject, note.kind.word(), &time, || {
            data_of(running, note, subject, &time)
        });
        if let Some(status) = status(note.kind) {
            self.publish_event(running, subject, "status-changed", &time, || {
                with("updatedAt", &time, &[("status", status)])
            });
        }
    }

    fn publish_event(
        &self,
        running: &Running,
        subject: Subject,
        word: &str,
        time: &str,
        data: impl FnOnce() -> Map<String, Value>,
    ) {
        let (name, subject) = (&running.workflow.name, subject.word());
        let topic = format!("{LIFECYCLE_EVENTS}{name}/{subject}/{word}");
        if !self.broker.has_subscribers(&topic) {
            return;
        }
        let data = self.secrets.mask_json(&running.workflow.app, Value::Object(data()));
        let event =
            lifecycle(&Ulid::generate().to_string(), &format!("{subject}.{word}"), name, time, data);
        let Ok(topic) = TopicName::new(topic) else { return };
        let properties = Properties { content_type: Some(CLOUD_EVENT.into()), ..Properties::default() };
        let message = Message::new(topic, Bytes::from(event.to_string())).with_properties(properties);
        self.publisher.publish(name, running.depth.saturating_add(1), message);
    }
}
