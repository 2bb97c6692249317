//! Turns of an instance: from an event to actions, in slices.

use std::mem;

use super::action::{Action, NoteKind};
use super::event::{Cut, Environment, Event};
use super::run::{NextTask, Run};
use super::state::{Instance, Status, Turn};
use super::work::Work;
use crate::data::Data;
use crate::expression::{LINEAR_BYTES, spent};
use crate::program::Program;

/// Maximum size of the messages of a turn, in bytes. They are in memory until the turn has ended.
const TURN_MESSAGE_BYTES: u64 = 1 << 20;
/// Maximum number of tasks that begin in a turn. Events that arrived meanwhile are processed before the next turn.
const TURN_TASKS: u32 = 2_000;
/// Number of expression steps after which a turn ends.
const TURN_STEPS: u64 = 125_000;

impl Instance {
    /// Processes an event and returns the actions to carry out. An instance that has ended ignores all events except
    /// [`Event::Retry`]. An event for a frame that has ended is ignored.
    pub fn advance(
        &mut self,
        program: &Program,
        event: Event,
        environment: &Environment<'_>,
    ) -> Vec<Action> {
        self.begin(program, event, environment, &mut |_| true)
    }

    /// Like [`advance`](Self::advance), in slices. `goes_on` is called before each task. If it returns false, the
    /// instance [is paused](Self::is_paused), and [`resume`](Self::resume) does the rest. The slices do not change
    /// the result of the turn.
    pub fn begin(
        &mut self,
        program: &Program,
        event: Event,
        environment: &Environment<'_>,
        goes_on: &mut dyn FnMut(NextTask) -> bool,
    ) -> Vec<Action> {
        if matches!(event, Event::Continue) {
            self.wants_turn = false;
        }
        self.turn = Turn::default();
        self.refused_effects.clear();
        let mut run = Run { program, instance: self, environment, actions: Vec::new(), goes_on };
        run.event(event);
        run.work();
        run.actions
    }

    /// The next slice of a turn, with the environment that the turn began with.
    pub fn resume(
        &mut self,
        program: &Program,
        environment: &Environment<'_>,
        goes_on: &mut dyn FnMut(NextTask) -> bool,
    ) -> Vec<Action> {
        let mut run = Run { program, instance: self, environment, actions: Vec::new(), goes_on };
        run.instance.turn.is_paused = false;
        run.work();
        run.actions
    }

    /// The actions of open tasks, to be carried out again after a restart.
    pub fn outstanding(&mut self, program: &Program, environment: &Environment<'_>) -> Vec<Action> {
        let goes_on = &mut |_| true;
        let mut run = Run { program, instance: self, environment, actions: Vec::new(), goes_on };
        run.instance.wants_turn = false;
        if !run.instance.status.is_ended() {
            run.restart_open_tasks();
            // An event starts this work, so that the event log records it.
            if !run.instance.work.is_empty() {
                run.instance.wants_turn = true;
                run.actions.push(Action::Continue);
            }
        }
        run.actions
    }
}

impl Run<'_> {
    fn event(&mut self, event: Event) {
        match event {
            Event::Retry => self.retry_fault(),
            _ if self.instance.status.is_ended() => {}
            Event::Start => {
                if self.instance.status == Status::Pending {
                    self.start();
                }
            }
            Event::Ended { frame, result } => self.ended(frame, result),
            Event::Message { frame, source, event } => self.message(frame, source, event),
            Event::QueueLength { frame, length } => self.queue_length(frame, length),
            Event::Tick => self.tick(),
            Event::Cancel => {
                self.cancel_below(None);
                self.note(NoteKind::Cancelled, 0, None, &Data::Null);
                self.end(Status::Cancelled, None);
            }
            Event::Continue => {}
            Event::Refuse { error } => self.instance.refusal = Some(Box::new(error)),
        }
    }

    /// Does the open work, until the end of the turn or of the slice.
    fn work(&mut self) {
        while let Some(work) = self.instance.work.pop() {
            let turn = &self.instance.turn;
            let bytes = self.instance.bytes() + self.instance.bytes_of_work(&work) as usize;
            // Whether it may have so much is for the host to say.
            let is_large = match self.environment.cut {
                Cut::Memory => turn.begun > 0 && bytes as u64 > self.environment.memory_bytes,
                Cut::Recorded(works) => works == Some(turn.works),
            };
            let is_long = turn.begun >= TURN_TASKS
                || turn.steps >= TURN_STEPS
                || turn.message_bytes >= TURN_MESSAGE_BYTES;
            if is_long || is_large {
                self.instance.turn.is_cut_for_memory = !is_long;
                self.instance.work.push(work);
                self.instance.status = Status::Running;
                if !mem::replace(&mut self.instance.wants_turn, true) {
                    self.actions.push(Action::Continue);
                }
                return;
            }
            let is_quick = bytes as u64 <= self.quick_bytes(&work);
            if !(self.goes_on)(NextTask { is_quick, bytes }) {
                self.instance.work.push(work);
                self.instance.turn.is_paused = true;
                return;
            }
            self.instance.turn.works += 1;
            let before = spent();
            match work {
                Work::Enter { parent, slot, node, raw } => self.enter(parent, slot, node, raw),
                Work::Done { parent, slot, output, flow } => self.done(parent, slot, output, flow),
                Work::Fail { parent, slot, node, raw, error } => self.fail(parent, slot, node, raw, error),
                Work::Due { frame } => self.frame_due(frame),
                Work::Rules => self.tick_rules(),
            }
            self.instance.turn.steps += spent().wrapping_sub(before);
        }
        if matches!(self.instance.status, Status::Running | Status::Waiting) {
            let running = self.instance.calls > 0;
            self.instance.status = if running { Status::Running } else { Status::Waiting };
        }
    }

    /// The size of data, in bytes, with which a piece of work takes at most about a millisecond.
    fn quick_bytes(&self, work: &Work) -> u64 {
        match work {
            Work::Enter { node, .. } => self.program.node(*node).quick_bytes,
            Work::Done { parent: frame, .. } | Work::Fail { parent: frame, .. } | Work::Due { frame } => {
                self.frame(*frame)
                    .and_then(|frame| frame.node)
                    .map_or(LINEAR_BYTES, |node| self.program.node(node).quick_bytes)
            }
            Work::Rules => LINEAR_BYTES,
        }
    }
}
