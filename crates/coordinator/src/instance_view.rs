//! Views of instances: lists, details and ended instances.

use std::collections::{BTreeMap, VecDeque};

use edgefaas_workflow::Status;
use ulid::Ulid;

use super::event_queue::Turns;
use super::instance::Running;
use super::run_state::{RunState, WorkflowResult};

/// Maximum number of remembered ended instances.
const MAX_ENDED: usize = 256;
/// Maximum size of a remembered output, in bytes.
const OUTPUT_BYTES: usize = 4096;

/// Maximum number of listed tasks; a definition may have thousands.
const MAX_LISTED_TASKS: usize = 32;

/// An instance.
#[derive(Debug, Clone)]
pub struct InstanceView {
    /// Id of the instance.
    pub id: Ulid,
    /// Name of the instance's workflow.
    pub workflow: String,
    /// `document.version` of its definition.
    pub version: String,
    /// Status of the instance.
    pub status: Status,
    /// Start time.
    pub started_unix_ms: u64,
    /// Time of the end; 0 for an instance that has not ended.
    pub ended_unix_ms: u64,
    /// The idempotency key or REQUEST-ID of its call.
    pub key: Option<String>,
    /// Running and waiting tasks: their path in the definition, and their number if several have the same path.
    pub tasks: Vec<String>,
    /// Number of tasks that it has begun.
    pub steps: u64,
    /// True if it survives a crash.
    pub durable: bool,
    /// Input as JSON, secrets masked; empty in lists.
    pub input: String,
    /// Context as JSON, secrets masked; empty in lists.
    pub context: String,
    /// Output as JSON, secrets masked; empty in lists and before the end.
    pub output: String,
    /// The error as JSON; empty without an error.
    pub error: String,
}

/// The last instances that ended.
#[derive(Default)]
pub(crate) struct EndedInstances {
    views: VecDeque<InstanceView>,
}

impl EndedInstances {
    /// Adds the view of an ended instance.
    pub fn add(&mut self, view: InstanceView) {
        if self.views.len() >= MAX_ENDED {
            self.views.pop_front();
        }
        self.views.retain(|known| known.id != view.id);
        self.views.push_back(view);
    }

    /// A failed instance has been cancelled.
    pub(crate) fn cancelled(&mut self, id: Ulid) {
        if let Some(view) = self.views.iter_mut().find(|view| view.id == id) {
            view.status = Status::Cancelled;
        }
    }

    pub(crate) fn find(&self, id: Ulid) -> Option<InstanceView> {
        self.views.iter().find(|view| view.id == id).cloned()
    }
}

impl Running {
    /// View of the ended instance, secrets masked.
    pub(crate) fn ended_view(
        &self,
        result: &WorkflowResult,
        mask: impl Fn(String) -> String,
    ) -> InstanceView {
        self.ended_view_of(&self.state.lock(), result, mask)
    }

    /// See [`Self::ended_view`].
    pub(crate) fn ended_view_of(
        &self,
        state: &RunState,
        result: &WorkflowResult,
        mask: impl Fn(String) -> String,
    ) -> InstanceView {
        let mut view = self.view_of(state, false);
        match result {
            Ok(output) => {
                let text = output.to_string();
                view.output =
                    if text.len() <= OUTPUT_BYTES { text } else { format!("\"{} bytes\"", text.len()) };
            }
            Err(error) => view.error = error.shortened(OUTPUT_BYTES).to_json().to_string(),
        }
        view.output = mask(std::mem::take(&mut view.output));
        view.error = mask(std::mem::take(&mut view.error));
        view
    }

    /// Current view, with or without its data. During a turn the instance runs: what the turn has led to holds when it is stored, and
    /// an instance that waits hears its events from then on.
    pub(crate) fn view(&self, whole: bool) -> InstanceView {
        let state = self.state.lock();
        let mut view = self.view_of(&state, whole);
        if matches!(state.turns, Turns::Busy { .. }) && view.status != Status::Pending {
            view.status = Status::Running;
        }
        view
    }

    fn view_of(&self, state: &RunState, whole: bool) -> InstanceView {
        let instance = &state.instance;
        let program = &self.workflow.program;
        let mut view = InstanceView {
            id: self.id,
            workflow: self.workflow.name.to_string(),
            version: program.version.clone(),
            status: instance.status(),
            started_unix_ms: instance.started_unix_ms(),
            ended_unix_ms: state.ended_unix_ms,
            key: self.kept_call.as_ref().and_then(|call| call.key.clone()),
            tasks: task_lines(&instance.current(program)),
            steps: instance.steps(),
            durable: self.is_durable(),
            input: String::new(),
            context: String::new(),
            output: String::new(),
            error: String::new(),
        };
        if whole {
            view.input = instance.input().to_json().to_string();
            view.context = instance.context().to_json().to_string();
        }
        match instance.result() {
            Some(Ok(output)) if whole => view.output = output.to_string(),
            Some(Err(error)) if whole => view.error = error.to_json().to_string(),
            Some(Err(error)) => view.error = error.shortened(OUTPUT_BYTES).to_json().to_string(),
            _ => {}
        }
        view
    }

    /// The input as text.
    pub(crate) fn input_text(&self) -> String {
        self.state.lock().instance.input().to_json().to_string()
    }
}

/// Task paths with their numbers of tasks, for display.
fn task_lines(current: &BTreeMap<&str, usize>) -> Vec<String> {
    let line = |(path, count): (&&str, &usize)| match count {
        1 => (*path).to_owned(),
        count => format!("{path} ({count} tasks)"),
    };
    let mut lines: Vec<_> = current.iter().take(MAX_LISTED_TASKS).map(line).collect();
    if current.len() > MAX_LISTED_TASKS {
        lines.push(format!("and {} other tasks", current.len() - MAX_LISTED_TASKS));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_tasks_take_a_few_lines() {
        let paths: Vec<_> = (0..100).map(|number| format!("/do/{number:03}")).collect();
        let mut current: BTreeMap<&str, usize> = paths.iter().map(|path| (path.as_str(), 1)).collect();
        current.insert("/do/000/w", 10_000);
        let listed = task_lines(&current);
        assert_eq!(listed.len(), MAX_LISTED_TASKS + 1);
        assert_eq!(listed[..2], ["/do/000", "/do/000/w (10000 tasks)"]);
        assert_eq!(listed[MAX_LISTED_TASKS], "and 69 other tasks");
    }
}
