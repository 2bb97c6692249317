//! Timers that are due: waits, retries and timeouts.

use super::event::FrameId;
use super::frame::{Frame, State};
use super::run::Run;
use super::work::Work;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::Kind;

impl Run<'_> {
    pub(super) fn tick(&mut self) {
        let now_ms = self.environment.now_ms;
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_ms);
        let due = |frame: &Frame| is_due(frame.due_ms) || is_due(frame.timeout_ms);
        let mut frames: Vec<(u64, FrameId)> = Vec::new();
        for (id, frame) in &self.instance.frames {
            if due(frame) {
                let first = frame.due_ms.unwrap_or(u64::MAX).min(frame.timeout_ms.unwrap_or(u64::MAX));
                frames.push((first, *id));
            }
        }
        // In order of time: a wait that ends before the timeout of its parent continues. The last item pushed is
        // processed first.
        frames.sort_unstable();
        if !self.instance.synthesizers.is_empty() {
            self.push(Work::Rules);
        }
        frames.into_iter().rev().for_each(|(_, frame)| self.push(Work::Due { frame }));
    }

    /// The timer of a frame is due, unless an earlier timer has ended the frame.
    pub(super) fn frame_due(&mut self, id: FrameId) {
        let now_ms = self.environment.now_ms;
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_ms);
        let Some(frame) = self.frame(id) else { return };
        if is_due(frame.timeout_ms) && frame.timeout_ms <= frame.due_ms.or(frame.timeout_ms) {
            self.timed_out(id);
        } else if is_due(frame.due_ms) {
            self.due(id);
        }
    }

    pub(super) fn timed_out(&mut self, id: FrameId) {
        let Some(frame) = self.frame(id) else { return };
        let (parent, slot, node, raw) = (frame.parent, frame.slot, frame.node, frame.raw.clone());
        let error = |path: &str| WorkflowError::new(ErrorKind::Timeout, "the time ran out").at(path);
        match (parent, node) {
            (Some(parent), Some(node)) => {
                self.cancel_below(Some(id));
                self.cancel(id);
                let error = error(&self.program.node(node).path);
                self.push(Work::Fail { parent, slot, node, raw, error });
            }
            _ => self.fault(error("/"), None),
        }
    }

    pub(super) fn due(&mut self, id: FrameId) {
        let program = self.program;
        let Some(frame) = self.frame_mut(id) else { return };
        frame.due_ms = None;
        let (Some(node), input) = (frame.node, frame.input.clone()) else { return };
        match (&frame.state, &program.node(node).kind) {
            (State::Wait, _) => self.finish_frame(id, input, None),
            (State::Try(_), Kind::Try(tried)) => self.retry_due(id, tried),
            (State::Listen(_), Kind::Listen(_)) => self.consumed(id),
            _ => {}
        }
    }
}
