//! Ends of tasks: input and output data, and the next step.

use std::sync::Arc;

use super::action::NoteKind;
use super::authorization::credentials;
use super::depth::bounded;
use super::event::FrameId;
use super::frame::{Frame, Phase, State};
use super::iterate::all;
use super::run::Run;
use super::state::Status;
use super::work::{Then, Work};
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::Template;
use crate::program::{DataFlow, Kind, Node, NodeId};
use crate::schema::Schema;

/// The start of a task that has ended.
#[derive(Clone, Copy)]
pub(super) struct Ended<'d> {
    pub(super) started_unix_ms: u64,
    /// Its input before `input.from`.
    pub(super) raw: &'d Data,
    pub(super) input: &'d Data,
}

impl Run<'_> {
    /// Validates and transforms the input of a task, or of the workflow.
    pub(super) fn incoming(
        &self,
        parent: Option<FrameId>,
        node: Option<&Node>,
        data: &DataFlow,
        raw: &Data,
    ) -> Result<Data, WorkflowError> {
        check(data.input_schema.as_ref(), raw, "the input")?;
        match &data.from {
            None => Ok(raw.clone()),
            Some(from) => self.scope(parent, node, Some(raw), None).template(from, raw),
        }
    }

    /// A task without a frame of its own has ended.
    pub(super) fn finish(
        &mut self,
        parent: FrameId,
        slot: u32,
        id: NodeId,
        ended: Ended<'_>,
        output: Data,
        flow: Then,
    ) -> Result<(), WorkflowError> {
        let output = self.outgoing(parent, id, ended, output)?;
        self.note(NoteKind::Completed, parent, Some(id), &output);
        self.push(Work::Done { parent, slot, output, flow });
        Ok(())
    }

    /// A task with a frame has ended. Without `flow`, the next step is the one in the definition.
    pub(super) fn finish_frame(&mut self, id: FrameId, output: Data, flow: Option<Then>) {
        let Some(frame) = self.instance.take_frame(id) else { return };
        self.instance.synthesizers.remove(&id);
        let Frame { parent: Some(parent), node: Some(node), slot, raw, input, started_unix_ms, .. } =
            *frame
        else {
            return;
        };
        let flow = flow.unwrap_or_else(|| self.program.node(node).then.into());
        let ended = Ended { started_unix_ms, raw: &raw, input: &input };
        if let Err(error) = self.finish(parent, slot, node, ended, output, flow) {
            self.push(Work::Fail { parent, slot, node, raw, error });
        }
    }

    /// A task has ended whose output is composed of the outputs of several tasks.
    pub(super) fn finish_composed(&mut self, id: FrameId, output: Data) {
        match bounded(output) {
            Ok(output) => self.finish_frame(id, output, None),
            Err(error) => self.rethrow(id, error),
        }
    }

    fn outgoing(
        &mut self,
        parent: FrameId,
        id: NodeId,
        ended: Ended<'_>,
        raw: Data,
    ) -> Result<Data, WorkflowError> {
        let program = self.program;
        let node = program.node(id);
        let Ended { started_unix_ms, raw: raw_input, input } = ended;
        let shows = node.data.output.is_some() || node.data.export.is_some();
        let authorization = match node.kind.authentication().filter(|_| shows) {
            Some(authentication) => {
                let scope = self.scope(Some(parent), Some(node), Some(input), None);
                Some(credentials(authentication, &scope, input)?.descriptor())
            }
            None => None,
        };
        let scope = |run: &Self, output: &Data, template: &Template| {
            let mut scope = run.scope(Some(parent), Some(node), Some(input), Some(output));
            scope.started_unix_ms = started_unix_ms;
            scope.raw_input = Some(raw_input);
            scope.raw_output = Some(&raw);
            scope.authorization = authorization.as_ref();
            scope.template(template, output)
        };
        let output = match &node.data.output {
            None => raw.clone(),
            Some(template) => scope(self, &raw, template)?,
        };
        check(node.data.output_schema.as_ref(), &output, "the output")?;
        if let Some(template) = &node.data.export {
            let context = scope(self, &output, template)?;
            check(node.data.export_schema.as_ref(), &context, "the export")?;
            self.instance.context = context;
        }
        Ok(output)
    }

    /// A task of `parent` has ended.
    pub(super) fn done(&mut self, parent: FrameId, slot: u32, output: Data, flow: Then) {
        if let Then::End = flow {
            return self.complete(output);
        }
        let program = self.program;
        if matches!(self.frame(parent), Some(Frame { state: State::Fork { .. }, .. })) {
            self.instance.hold(parent, output.bytes());
        }
        let Some(frame) = self.frame_mut(parent) else { return };
        match &mut frame.state {
            State::Fork { outputs, left } => {
                if let Some(place) = outputs.get_mut(slot as usize) {
                    *place = Some(output.clone());
                }
                *left = left.saturating_sub(1);
                let compete = frame.node.is_some_and(
                    |node| matches!(&program.node(node).kind, Kind::Fork(fork) if fork.compete),
                );
                match (compete, *left) {
                    (true, _) => {
                        self.cancel_below(Some(parent));
                        self.finish_frame(parent, output, None);
                    }
                    (false, 0) => {
                        let all = all(outputs);
                        self.finish_composed(parent, all);
                    }
                    (false, _) => {}
                }
            }
            _ => match flow {
                Then::Next => self.enter_list(parent, slot + 1, output),
                Then::Goto(position) => self.enter_list(parent, position, output),
                Then::Exit | Then::End => self.list_ended(parent, output),
            },
        }
    }

    /// The last task of a list has ended.
    pub(super) fn list_ended(&mut self, list: FrameId, output: Data) {
        let Some(frame) = self.frame(list) else { return };
        let (parent, slot) = (frame.parent, frame.slot);
        let Some(node) = frame.node else { return self.complete(output) };
        let program = self.program;
        match (&program.node(node).kind, &frame.state, parent) {
            (Kind::For(each), State::List, Some(parent)) => {
                self.instance.take_frame(list);
                if let Some(Frame { state: State::For { running, outputs, .. }, .. }) =
                    self.frame_mut(parent)
                {
                    *running = running.saturating_sub(1);
                    if let Some(place) = outputs.get_mut(slot as usize) {
                        *place = Some(output.clone());
                    }
                }
                if each.parallel.is_some() {
                    self.instance.hold(parent, output.bytes());
                }
                self.iterate(parent, each, output);
            }
            (Kind::Listen(_), State::List, Some(parent)) => {
                let event = frame.input.clone();
                self.instance.take_frame(list);
                self.event_done(parent, slot, event, output);
            }
            _ => self.finish_frame(list, output, None),
        }
    }

    /// The workflow has ended with `output`.
    fn complete(&mut self, raw: Data) {
        let program = self.program;
        let may_read = self.may_read_as_workflow(&program.secrets_at_end);
        let output = may_read.and_then(|()| match &program.data.output {
            None => Ok(raw.clone()),
            Some(template) => {
                let input = self.root().map_or(&self.instance.input, |(_, root)| &root.input);
                self.scope(None, None, Some(input), Some(&raw)).template(template, &raw)
            }
        });
        let output = output.and_then(|output| {
            check(program.data.output_schema.as_ref(), &output, "the output").map(|()| output)
        });
        self.cancel_below(self.root().map(|(id, _)| id));
        match output {
            Ok(output) => {
                self.note(NoteKind::Completed, 0, None, &output);
                self.end(Status::Completed, Some(Ok(Arc::new(output.to_json()))));
            }
            Err(error) => {
                let again = Work::Done { parent: 0, slot: 0, output: raw, flow: Then::End };
                self.fault(error.at("/output"), Some(again));
            }
        }
    }

    /// A task of `parent` has failed: the innermost `try` that catches the error goes on, or the instance ends.
    pub(super) fn fail(
        &mut self,
        parent: FrameId,
        slot: u32,
        node: NodeId,
        raw: Data,
        error: WorkflowError,
    ) {
        if self.frame(parent).is_none() {
            return;
        }
        let error = error.at(&self.program.node(node).path);
        if self.environment.observed {
            let value = error.to_data();
            self.note(NoteKind::Faulted, parent, Some(node), &value);
        }
        // The tasks around it, which fail with it.
        let mut failed = Vec::new();
        let mut at = Some(parent);
        while let Some(id) = at {
            let Some(frame) = self.frame(id) else { break };
            at = frame.parent;
            failed.push(id);
            let tried = frame.node.map(|node| &self.program.node(node).kind);
            let (Some(Kind::Try(tried)), State::Try(trying)) = (tried, &frame.state) else { continue };
            if trying.phase != Phase::Trying {
                continue;
            }
            match self.catches(id, tried, &error) {
                Ok(true) => {
                    self.end_attempt(id, &failed, &error);
                    return match self.caught(id, tried, &error) {
                        Ok(()) => {}
                        // No retry is left, or an expression of the retry policy failed.
                        Err(error) => self.rethrow(id, error),
                    };
                }
                Ok(false) => {}
                Err(error) => {
                    self.end_attempt(id, &failed, &error);
                    return self.rethrow(id, error);
                }
            }
        }
        self.fault(error, Some(Work::Enter { parent, slot, node, raw }));
    }

    /// A task with a frame and without child frames fails.
    pub(super) fn rethrow(&mut self, id: FrameId, error: WorkflowError) {
        let Some(frame) = self.instance.take_frame(id) else { return };
        let Frame { parent: Some(parent), node: Some(node), slot, raw, .. } = *frame else { return };
        self.push(Work::Fail { parent, slot, node, raw, error });
    }
}

fn check(schema: Option<&Schema>, value: &Data, what: &str) -> Result<(), WorkflowError> {
    let Some(schema) = schema else { return Ok(()) };
    schema.check(&value.to_json()).map_err(|misfits| {
        WorkflowError::new(ErrorKind::Validation, format!("{what} does not fit its schema: {misfits}"))
    })
}
