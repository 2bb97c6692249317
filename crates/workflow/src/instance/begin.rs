//! Starts a workflow instance and its tasks.

use serde_json::Value;

use super::action::NoteKind;
use super::event::FrameId;
use super::finish::Ended;
use super::frame::{Frame, Phase, State, Trying};
use super::iterate::items;
use super::run::Run;
use super::scope::text;
use super::state::Status;
use super::work::{Then, Work};
use crate::data::{Data, List};
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::Template;
use crate::program::{Channel, Kind, NodeId};

impl Run<'_> {
    pub(super) fn start(&mut self) {
        self.instance.status = Status::Running;
        let raw = self.instance.input.clone();
        self.note(NoteKind::Started, 0, None, &raw);
        let data = &self.program.data;
        if self.instance.refused {
            let error = WorkflowError::new(ErrorKind::Validation, "the input nests too deep");
            return self.fault(error.at("/input"), None);
        }
        if let Err(error) = self.may_read_as_workflow(&self.program.secrets_at_start) {
            return self.fault(error.at("/"), None);
        }
        let input = match self.incoming(None, None, data, &raw) {
            Ok(input) => input,
            Err(error) => return self.fault(error.at("/input"), None),
        };
        let timeout_ms = match self.whole_timeout(&input) {
            Ok(timeout_ms) => timeout_ms,
            Err(error) => return self.fault(error.at("/timeout"), None),
        };
        let root = self.add(Frame {
            node: None,
            parent: None,
            slot: 0,
            started_unix_ms: self.environment.unix_ms,
            raw,
            input: input.clone(),
            due_ms: None,
            timeout_ms,
            variables: Vec::new(),
            state: State::List,
            held_bytes: 0,
        });
        self.enter_list(root, 0, input);
    }

    /// The time at which the timeout of the whole workflow expires if it starts now; `None` if the workflow has no timeout.
    pub(super) fn whole_timeout(&self, input: &Data) -> Result<Option<u64>, WorkflowError> {
        let timeout = self.program.timeout.as_ref();
        let ms = timeout.map(|timeout| self.duration(timeout, None, input)).transpose()?;
        Ok(ms.map(|ms| self.environment.now_ms.saturating_add(ms)))
    }

    /// Starts the task at `position` of a list. Ends the list if no task is at this position.
    pub(super) fn enter_list(&mut self, list: FrameId, position: u32, raw: Data) {
        let tasks = self.frame(list).and_then(|frame| self.list(frame));
        match tasks.and_then(|block| block.tasks.get(position as usize)) {
            Some(node) => self.push(Work::Enter { parent: list, slot: position, node: *node, raw }),
            None => self.list_ended(list, raw),
        }
    }

    pub(super) fn enter(&mut self, parent: FrameId, slot: u32, id: NodeId, raw: Data) {
        if self.frame(parent).is_none() {
            return;
        }
        self.instance.turn.begun += 1;
        self.instance.steps += 1;
        if self.instance.steps - self.instance.steps_before > self.program.max_steps {
            let max_steps = self.program.max_steps;
            let detail = format!(
                "the instance has taken {max_steps} steps, the most it may (document.metadata.steps)"
            );
            let error = WorkflowError::new(ErrorKind::Runtime, detail).at(&self.program.node(id).path);
            return self.fault(error, Some(Work::Enter { parent, slot, node: id, raw }));
        }
        let begun = match self.instance.refusal.take() {
            Some(refusal) => Err(*refusal),
            None => self.begin(parent, slot, id, &raw),
        };
        if let Err(error) = begun {
            self.push(Work::Fail { parent, slot, node: id, raw, error });
        }
    }

    pub(super) fn begin(
        &mut self,
        parent: FrameId,
        slot: u32,
        id: NodeId,
        raw: &Data,
    ) -> Result<(), WorkflowError> {
        let program = self.program;
        let node = program.node(id);
        if let Some(condition) = &node.condition
            && !self.scope(Some(parent), Some(node), Some(raw), None).is_true(condition, raw)?
        {
            self.note(NoteKind::Skipped, parent, Some(id), raw);
            self.push(Work::Done { parent, slot, output: raw.clone(), flow: Then::Next });
            return Ok(());
        }
        self.may_read_secrets(id)?;
        let input = self.incoming(Some(parent), Some(node), &node.data, raw)?;
        self.note(NoteKind::Started, parent, Some(id), &input);
        let timeout_ms = match &node.timeout {
            None => None,
            Some(timeout) => Some(self.environment.now_ms.saturating_add(self.duration(
                timeout,
                Some(parent),
                &input,
            )?)),
        };
        let ended = Ended { started_unix_ms: self.environment.unix_ms, raw, input: &input };
        let scope = |run: &Self, template: &Template| {
            let mut scope = run.scope(Some(parent), Some(node), Some(&input), None);
            scope.raw_input = Some(raw);
            scope.template(template, &input)
        };
        let frame = |state: State| Frame {
            node: Some(id),
            parent: Some(parent),
            slot,
            started_unix_ms: self.environment.unix_ms,
            raw: raw.clone(),
            input: input.clone(),
            due_ms: None,
            timeout_ms,
            variables: Vec::new(),
            state,
            held_bytes: 0,
        };
        match &node.kind {
            Kind::Set(template) => {
                let output = scope(self, template)?;
                self.finish(parent, slot, id, ended, output, node.then.into())?;
            }
            Kind::Switch(cases) => {
                let mut taken = node.then;
                for case in cases {
                    let mut scope = self.scope(Some(parent), Some(node), Some(&input), None);
                    scope.raw_input = Some(raw);
                    if case.when.as_ref().map_or(Ok(true), |when| scope.is_true(when, &input))? {
                        taken = case.then;
                        break;
                    }
                }
                let output = input.clone();
                self.finish(parent, slot, id, ended, output, taken.into())?;
            }
            Kind::Raise(template) => {
                let value = scope(self, template)?.to_json();
                return Err(raised(&value)?);
            }
            Kind::Emit(emit) => {
                let output = self.emit(parent, id, emit, raw, &input)?;
                self.finish(parent, slot, id, ended, output, node.then.into())?;
            }
            Kind::Publish(publish) if matches!(publish.channel, Channel::Topic(_)) => {
                self.publish(parent, id, publish, None, raw, &input)?;
                let output = input.clone();
                self.finish(parent, slot, id, ended, output, node.then.into())?;
            }
            Kind::Wait(duration) => {
                let due_ms = self.environment.now_ms.saturating_add(self.duration(
                    duration,
                    Some(parent),
                    &input,
                )?);
                let frame = Frame { due_ms: Some(due_ms), ..frame(State::Wait) };
                self.add(frame);
            }
            Kind::Do(_) => {
                let frame = frame(State::List);
                let list = self.add(frame);
                self.enter_list(list, 0, input);
            }
            Kind::Function(function) => {
                let arguments = match &function.with {
                    None => input.clone(),
                    Some(with) => scope(self, with)?,
                };
                let frame = frame(State::List);
                let list = self.add(frame);
                self.enter_list(list, 0, arguments);
            }
            Kind::Fork(fork) => {
                let outputs = vec![None; fork.branches.len()];
                let frame = frame(State::Fork { outputs, left: fork.branches.len() as u32 });
                let parent = self.add(frame);
                for (slot, branch) in fork.branches.iter().enumerate().rev() {
                    let raw = input.clone();
                    self.push(Work::Enter { parent, slot: slot as u32, node: *branch, raw });
                }
            }
            Kind::For(each) => {
                let mut scope = self.scope(Some(parent), Some(node), Some(&input), None);
                scope.raw_input = Some(raw);
                let items = items(scope.expression(&each.items, &input)?)?;
                let len = items.items().map_or(0, List::len);
                let outputs = if each.parallel.is_some() { vec![None; len] } else { Vec::new() };
                let state = State::For { items, next: 0, running: 0, outputs };
                let frame = frame(state);
                let id = self.add(frame);
                self.iterate(id, each, input);
            }
            Kind::Try(tried) => {
                let trying = Trying { phase: Phase::Trying, failed: 0, since_ms: self.environment.now_ms };
                let frame = frame(State::Try(Box::new(trying)));
                let id = self.add(frame);
                self.attempt(id, tried).inspect_err(|_| drop(self.instance.take_frame(id)))?;
            }
            Kind::Listen(listen) if listen.operation.is_none() => {
                let frame = frame(State::Listen(Box::default()));
                let id = self.add(frame);
                self.begin_listening(id, None).inspect_err(|_| drop(self.instance.take_frame(id)))?;
            }
            Kind::Call(_)
            | Kind::Http(_)
            | Kind::OpenApi(_)
            | Kind::RunScript(_)
            | Kind::RunWorkflow(_)
            | Kind::Publish(_)
            | Kind::Listen(_) => {
                let frame = frame(State::Call);
                let id = self.add(frame);
                if let Err(error) = self.start_call(id) {
                    self.instance.take_frame(id);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

fn raised(value: &Value) -> Result<WorkflowError, WorkflowError> {
    let bad = |what: &str| WorkflowError::new(ErrorKind::Expression, format!("the error's {what}"));
    let field =
        |name: &str| value.get(name).filter(|field| !field.is_null()).map(|field| text(field.clone()));
    let status = value.get("status").cloned().unwrap_or_default();
    let status = status.as_u64().or_else(|| status.as_str().and_then(|text| text.parse().ok()));
    let status =
        status.and_then(|status| u16::try_from(status).ok()).filter(|status| (100..=599).contains(status));
    Ok(WorkflowError {
        kind: field("type").ok_or_else(|| bad("type is missing"))?,
        status: status.ok_or_else(|| bad("status is not a number from 100 to 599"))?,
        title: field("title"),
        detail: field("detail"),
        instance: field("instance"),
    })
}
