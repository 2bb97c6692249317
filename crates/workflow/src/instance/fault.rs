//! Ends that come before the last task: errors and cancellations, and the retry after an error.

use std::mem;
use std::sync::Arc;

use serde_json::Value;

use super::action::{Action, NoteKind};
use super::event::FrameId;
use super::frame::{Frame, State};
use super::run::Run;
use super::state::{Fault, Status};
use super::work::Work;
use crate::error::WorkflowError;

impl Run<'_> {
    /// Starts the open calls and listens again, after a restart or a retry.
    pub(super) fn restart_open_tasks(&mut self) {
        let frames: Vec<FrameId> = self.instance.frames.keys().copied().collect();
        for id in frames {
            let Some(frame) = self.frame(id) else { continue };
            let (Some(parent), Some(node)) = (frame.parent, frame.node) else { continue };
            let (slot, raw) = (frame.slot, frame.raw.clone());
            let started = match &frame.state {
                State::Call => self.start_call(id),
                State::Listen(_) => self.listen_again(id),
                _ => Ok(()),
            };
            if let Err(error) = started {
                self.instance.take_frame(id);
                self.push(Work::Fail { parent, slot, node, raw, error });
            }
        }
    }

    pub(super) fn retry_fault(&mut self) {
        let Some(fault) = self.instance.fault.take().filter(|_| self.instance.status == Status::Faulted)
        else {
            return;
        };
        self.instance.status = Status::Running;
        self.instance.result = None;
        self.instance.steps_before = self.instance.steps;
        self.instance.wants_turn = false;
        // The time between the failure and the retry does not count.
        let pause_ms = self.environment.now_ms.saturating_sub(fault.at_ms);
        for frame in self.instance.frames.values_mut() {
            for due in [&mut frame.due_ms, &mut frame.timeout_ms].into_iter().flatten() {
                *due = due.saturating_add(pause_ms);
            }
        }
        if fault.work.is_empty() && self.instance.frames.is_empty() {
            return self.start();
        }
        if fault.work.is_empty() {
            self.renew_timeout();
        }
        self.renew_calls();
        self.restore_rules(fault.rules);
        self.instance.work = fault.work;
        self.restart_open_tasks();
    }

    /// Resets the timeouts of open calls, which start again.
    fn renew_calls(&mut self) {
        let frames: Vec<FrameId> = self.instance.frames.keys().copied().collect();
        for id in frames {
            let Some(frame) = self.frame(id).filter(|frame| matches!(frame.state, State::Call)) else {
                continue;
            };
            let timeout = frame.node.and_then(|node| self.program.node(node).timeout.as_ref());
            let Some(Ok(ms)) = timeout.map(|timeout| self.duration(timeout, frame.parent, &frame.input))
            else {
                continue;
            };
            let timeout_ms = Some(self.environment.now_ms.saturating_add(ms));
            if let Some(frame) = self.frame_mut(id) {
                frame.timeout_ms = timeout_ms;
            }
        }
    }

    /// Resets the timeout of the workflow.
    fn renew_timeout(&mut self) {
        let Some((root, input)) = self.root().map(|(id, root)| (id, root.input.clone())) else { return };
        let Ok(timeout_ms) = self.whole_timeout(&input) else { return };
        if let Some(root) = self.frame_mut(root) {
            root.timeout_ms = timeout_ms;
        }
    }

    /// Ends the instance with an error. Its frames stay, so that it can be retried from `work`.
    pub(super) fn fault(&mut self, error: WorkflowError, work: Option<Work>) {
        let frames: Vec<FrameId> = self.instance.frames.keys().copied().collect();
        frames.into_iter().for_each(|id| self.call_off(id));
        self.note(NoteKind::Faulted, 0, None, &error.to_data());
        // The work that was not begun comes after the failed work.
        let mut open = mem::take(&mut self.instance.work);
        // Due timers are looked up again after a retry.
        open.retain(|work| !matches!(work, Work::Due { .. } | Work::Rules));
        open.extend(work);
        let now_ms = self.environment.now_ms;
        let rules = mem::take(&mut self.instance.synthesizers);
        let rules = rules.into_iter().map(|(id, rule)| (id, rule.state(now_ms))).collect();
        self.instance.fault = Some(Box::new(Fault { work: open, at_ms: now_ms, rules }));
        self.end(Status::Faulted, Some(Err(error)));
    }

    pub(super) fn end(&mut self, status: Status, result: Option<Result<Arc<Value>, WorkflowError>>) {
        self.instance.status = status;
        self.instance.result = result;
        self.instance.work.clear();
        if status != Status::Faulted {
            self.instance.frames.clear();
            (self.instance.held_bytes, self.instance.calls) = (0, 0);
            self.instance.synthesizers.clear();
        }
    }

    /// Cancels the call or the subscription of a frame.
    fn call_off(&mut self, id: FrameId) {
        match self.frame(id).map(|frame| &frame.state) {
            Some(State::Call) => self.actions.push(Action::Cancel { frame: id }),
            Some(State::Listen(_)) => self.actions.push(Action::Unlisten { frame: id }),
            _ => {}
        }
    }

    /// Ends a frame without notifying its parent.
    pub(super) fn cancel(&mut self, id: FrameId) {
        self.call_off(id);
        if let Some(frame) = self.instance.take_frame(id)
            && self.environment.observed
            && matches!(frame.state, State::Call | State::Wait | State::Listen(_))
        {
            self.note(NoteKind::Cancelled, id, frame.node, &frame.input);
        }
        self.instance.synthesizers.remove(&id);
    }

    /// Ends all frames below a `try` whose attempt has failed with `error`. The tasks in `failed`, which are around the failed one,
    /// fail with it; others are cancelled.
    pub(super) fn end_attempt(&mut self, tried: FrameId, failed: &[FrameId], error: &WorkflowError) {
        let error = error.to_data();
        let below = self.below(Some(tried));
        // The innermost first.
        for id in below.iter().rev() {
            self.call_off(*id);
            self.instance.synthesizers.remove(id);
            let Some(frame) = self.instance.take_frame(*id) else { continue };
            let Frame { parent: Some(parent), node, input, .. } = *frame else { continue };
            // The lists of iterations are no tasks: they have the node of their loop.
            if node.is_none() || self.frame(parent).is_none_or(|parent| parent.node == node) {
                continue;
            }
            match failed.contains(id) {
                true => self.note(NoteKind::Faulted, parent, node, &error),
                false => self.note(NoteKind::Cancelled, *id, node, &input),
            }
        }
        self.drop_work(Some(tried), &below);
    }

    /// Ends all frames below `top`, or all frames.
    pub(super) fn cancel_below(&mut self, top: Option<FrameId>) {
        let below = self.below(top);
        below.iter().rev().for_each(|id| self.cancel(*id));
        self.drop_work(top, &below);
    }

    /// Drops the work of frames that have ended, and of those that `top` was to begin.
    fn drop_work(&mut self, top: Option<FrameId>, ended: &[FrameId]) {
        let open = mem::take(&mut self.instance.work);
        let is_open = |work: &Work| match work {
            Work::Enter { parent, .. } | Work::Done { parent, .. } | Work::Fail { parent, .. } => {
                ended.binary_search(parent).is_err() && top != Some(*parent)
            }
            Work::Due { .. } | Work::Rules => true,
        };
        self.instance.work = open.into_iter().filter(is_open).collect();
    }

    /// The frames below `top`, or all frames, by their ids.
    fn below(&self, top: Option<FrameId>) -> Vec<FrameId> {
        let mut below: Vec<FrameId> = Vec::new();
        // Ids grow: a parent's is smaller than its children's.
        for (id, frame) in &self.instance.frames {
            let is_below = match (top, frame.parent) {
                (None, _) => true,
                (Some(top), Some(parent)) => parent == top || below.binary_search(&parent).is_ok(),
                (Some(_), None) => false,
            };
            if is_below {
                below.push(*id);
            }
        }
        below
    }
}
