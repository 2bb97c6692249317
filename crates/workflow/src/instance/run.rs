//! One slice of a turn, and the helpers that all parts of it use.

use super::action::{Action, Note, NoteKind};
use super::event::{Environment, FrameId};
use super::frame::{Frame, Phase, State};
use super::scope::Scope;
use super::state::Instance;
use super::work::Work;
use crate::data::Data;
use crate::duration;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::{Block, DurationSpec, Kind, Node, NodeId, Program};

/// A task that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextTask {
    /// True if its expressions take at most about a millisecond.
    pub is_quick: bool,
    /// The memory that the instance holds, in bytes.
    pub bytes: usize,
}

/// One slice of a turn.
pub(super) struct Run<'a> {
    pub program: &'a Program,
    pub instance: &'a mut Instance,
    pub environment: &'a Environment<'a>,
    pub actions: Vec<Action>,
    pub goes_on: &'a mut dyn FnMut(NextTask) -> bool,
}

impl<'a> Run<'a> {
    /// The frame of the workflow's own list.
    pub(super) fn root(&self) -> Option<(FrameId, &Frame)> {
        let (id, frame) = self.instance.frames.iter().find(|(_, frame)| frame.parent.is_none())?;
        Some((*id, frame))
    }

    pub(super) fn push(&mut self, work: Work) {
        self.instance.work.push(work);
    }

    pub(super) fn add(&mut self, frame: Frame) -> FrameId {
        self.instance.add_frame(frame)
    }

    pub(super) fn frame(&self, id: FrameId) -> Option<&Frame> {
        self.instance.frames.get(&id).map(|frame| &**frame)
    }

    pub(super) fn frame_mut(&mut self, id: FrameId) -> Option<&mut Frame> {
        self.instance.frames.get_mut(&id).map(|frame| &mut **frame)
    }

    pub(super) fn note(&mut self, kind: NoteKind, frame: FrameId, node: Option<NodeId>, value: &Data) {
        if self.environment.observed {
            self.actions.push(Action::Note(Note { kind, frame, node, value: value.clone() }));
        }
    }

    /// The variables of expressions of a task in the list `parent`.
    pub(super) fn scope<'s>(
        &'s self,
        parent: Option<FrameId>,
        node: Option<&'s Node>,
        input: Option<&'s Data>,
        output: Option<&'s Data>,
    ) -> Scope<'s> {
        Scope {
            program: self.program,
            instance: self.instance,
            environment: self.environment,
            frame: parent,
            node,
            started_unix_ms: self.environment.unix_ms,
            input,
            output,
            raw_input: None,
            raw_output: None,
            authorization: None,
            extra: &[],
        }
    }

    /// The variables of expressions of a task that has a frame.
    pub(super) fn frame_scope<'s>(&'s self, frame: &'s Frame) -> Scope<'s> {
        let node = frame.node.map(|node| self.program.node(node));
        let mut scope = self.scope(frame.parent, node, Some(&frame.input), None);
        scope.started_unix_ms = frame.started_unix_ms;
        scope.raw_input = Some(&frame.raw);
        scope
    }

    pub(super) fn duration(
        &self,
        spec: &DurationSpec,
        parent: Option<FrameId>,
        input: &Data,
    ) -> Result<u64, WorkflowError> {
        match spec {
            DurationSpec::Fixed(ms) => Ok(*ms),
            DurationSpec::Computed(template) => {
                let value = self.scope(parent, None, Some(input), None).json(template, input)?;
                duration::parse(&value)
                    .map_err(|error| WorkflowError::new(ErrorKind::Expression, error.to_string()))
            }
        }
    }

    /// The tasks of a frame that is a list.
    pub(super) fn list(&self, frame: &Frame) -> Option<&'a Block> {
        let Some(node) = frame.node else { return Some(&self.program.root) };
        match (&self.program.node(node).kind, &frame.state) {
            (Kind::Do(block), _) => Some(block),
            (Kind::Function(function), _) => Some(&function.block),
            (Kind::For(each), State::List) => Some(&each.block),
            (Kind::Listen(listen), State::List) => listen.foreach.as_ref().map(|foreach| &foreach.block),
            (Kind::Try(tried), State::Try(trying)) => match trying.phase {
                Phase::Handling => tried.handler.as_ref(),
                _ => Some(&tried.block),
            },
            _ => None,
        }
    }
}
