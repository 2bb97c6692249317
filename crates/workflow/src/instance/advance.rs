//! From what happened to what is to be done.

use std::mem;
use std::sync::Arc;

use serde_json::Value;

use super::scope::{Scope, taken_in};
use super::{
    Action, Content, Cut, Environment, Event, Frame, FrameId, Instance, Note, NoteKind, Outgoing, Phase,
    State, Status, Then, Trying, Turn, Work,
};
use crate::data::{Data, List};
use crate::duration;
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::{LINEAR_BYTES, spent};
use crate::program::{Block, DurationSpec, Emit, Flow, For, Kind, Node, NodeId, Program, Publish};
use crate::weight::weight;

/// Bytes of messages in a turn: they are in memory until they are sent, after it.
const TURN_MESSAGE_BYTES: u64 = 1 << 20;
/// Tasks that are begun in a turn; events that came meanwhile go first then.
const TURN_TASKS: u32 = 2_000;
/// Steps of expressions after which a turn ends.
const TURN_STEPS: u64 = 125_000;
/// Items that one loop goes through at most.
const MAX_ITEMS: usize = 10_000_000;

/// What is known of a task before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextTask {
    /// Its expressions take about a millisecond at most.
    pub is_quick: bool,
    /// What the instance holds, in bytes.
    pub bytes: usize,
}

impl Instance {
    /// Takes an event and says what is to be done. Nothing happens to an instance that has ended, but for
    /// [`Event::Retry`]; an event for a frame that is gone is ignored.
    pub fn advance(
        &mut self,
        program: &Program,
        event: Event,
        environment: &Environment<'_>,
    ) -> Vec<Action> {
        self.begin(program, event, environment, &mut |_| true)
    }

    /// As [`advance`](Self::advance), in slices: `goes_on` is asked before each task. After a no, the instance [is paused](Self::is_paused), and [`resume`](Self::resume)
    /// does the rest. Where a turn is cut into slices changes nothing about what comes of it.
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

    /// What was asked for and has not ended, to be asked for again after a restart.
    pub fn outstanding(&mut self, program: &Program, environment: &Environment<'_>) -> Vec<Action> {
        let goes_on = &mut |_| true;
        let mut run = Run { program, instance: self, environment, actions: Vec::new(), goes_on };
        run.instance.wants_turn = false;
        if !run.instance.status.is_ended() {
            run.issue_all();
            // By an event, so that it is written down.
            if !run.instance.work.is_empty() {
                run.instance.wants_turn = true;
                run.actions.push(Action::Continue);
            }
        }
        run.actions
    }
}

/// One slice of a turn.
pub(super) struct Run<'a> {
    pub program: &'a Program,
    pub instance: &'a mut Instance,
    pub environment: &'a Environment<'a>,
    pub actions: Vec<Action>,
    goes_on: &'a mut dyn FnMut(NextTask) -> bool,
}

impl<'a> Run<'a> {
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

    /// Does what there is to do, up to the end of the turn or of the slice.
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

    /// Bytes of data with which a piece of work takes about a millisecond at most.
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

    pub(super) fn start(&mut self) {
        self.instance.status = Status::Running;
        let raw = self.instance.input.clone();
        self.note(NoteKind::Started, 0, None, &raw);
        let data = &self.program.data;
        if self.instance.refused {
            let error = WorkflowError::new(ErrorKind::Validation, "the input nests too deep");
            return self.fault(error.at("/input"), None);
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

    /// When the time of the whole runs out that begins now.
    pub(super) fn whole_timeout(&self, input: &Data) -> Result<Option<u64>, WorkflowError> {
        let timeout = self.program.timeout.as_ref();
        let ms = timeout.map(|timeout| self.duration(timeout, None, input)).transpose()?;
        Ok(ms.map(|ms| self.environment.now_ms.saturating_add(ms)))
    }

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

    /// What expressions of a task see whose list is `parent`.
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
            extra: &[],
        }
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
            (Kind::For(each), State::List) => Some(&each.block),
            (Kind::Listen(listen), State::List) => listen.foreach.as_ref().map(|foreach| &foreach.block),
            (Kind::Try(tried), State::Try(trying)) => match trying.phase {
                Phase::Handling => tried.handler.as_ref(),
                _ => Some(&tried.block),
            },
            _ => None,
        }
    }

    /// Begins the task at a position of a list, or ends the list.
    pub(super) fn enter_list(&mut self, list: FrameId, position: u32, raw: Data) {
        let tasks = self.frame(list).and_then(|frame| self.list(frame));
        match tasks.and_then(|block| block.tasks.get(position as usize)) {
            Some(node) => self.push(Work::Enter { parent: list, slot: position, node: *node, raw }),
            None => self.list_ended(list, raw),
        }
    }

    fn enter(&mut self, parent: FrameId, slot: u32, id: NodeId, raw: Data) {
        if self.frame(parent).is_none() {
            return;
        }
        self.instance.turn.begun += 1;
        self.instance.steps += 1;
        if self.instance.steps - self.instance.steps_before > self.program.max_steps {
            let most = self.program.max_steps;
            let detail =
                format!("the instance has taken {most} steps, the most it may (document.metadata.steps)");
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

    fn begin(&mut self, parent: FrameId, slot: u32, id: NodeId, raw: &Data) -> Result<(), WorkflowError> {
        let program = self.program;
        let node = program.node(id);
        if let Some(condition) = &node.condition
            && !self.scope(Some(parent), Some(node), Some(raw), None).is_true(condition, raw)?
        {
            self.note(NoteKind::Skipped, parent, Some(id), raw);
            self.push(Work::Done { parent, slot, output: raw.clone(), flow: Then::Next });
            return Ok(());
        }
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
        let started = self.environment.unix_ms;
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
                let output =
                    self.scope(Some(parent), Some(node), Some(&input), None).template(template, &input)?;
                self.finish(parent, slot, id, started, input, output, then(node.then))?;
            }
            Kind::Switch(cases) => {
                let mut taken = node.then;
                for case in cases {
                    let scope = self.scope(Some(parent), Some(node), Some(&input), None);
                    if case.when.as_ref().map_or(Ok(true), |when| scope.is_true(when, &input))? {
                        taken = case.then;
                        break;
                    }
                }
                let output = input.clone();
                self.finish(parent, slot, id, started, input, output, then(taken))?;
            }
            Kind::Raise(template) => {
                let value =
                    self.scope(Some(parent), Some(node), Some(&input), None).json(template, &input)?;
                return Err(raised(&value)?);
            }
            Kind::Emit(emit) => {
                let output = self.emit(parent, id, emit, &input)?;
                self.finish(parent, slot, id, started, input, output, then(node.then))?;
            }
            Kind::Publish(publish) => {
                self.publish(parent, id, publish, &input)?;
                let output = input.clone();
                self.finish(parent, slot, id, started, input, output, then(node.then))?;
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
                let scope = self.scope(Some(parent), Some(node), Some(&input), None);
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
            Kind::Listen(_) => {
                let frame = frame(State::Listen(Box::default()));
                let id = self.add(frame);
                self.begin_listening(id).inspect_err(|_| drop(self.instance.take_frame(id)))?;
            }
            Kind::Call(_) | Kind::Http(_) | Kind::RunScript(_) | Kind::RunWorkflow(_) => {
                let frame = frame(State::Call);
                let id = self.add(frame);
                if let Err(error) = self.issue(id) {
                    self.instance.take_frame(id);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Starts the next iterations of a loop, or ends it. `input` is that of the next one after another.
    pub(super) fn iterate(&mut self, id: FrameId, each: &'a For, input: Data) {
        let mut begun = Vec::new();
        loop {
            let Some(frame) = self.frame(id) else { return };
            let (parent, slot, raw, own, Some(node)) =
                (frame.parent, frame.slot, frame.raw.clone(), frame.input.clone(), frame.node)
            else {
                return;
            };
            let State::For { items, next, running, outputs } = &frame.state else { return };
            let (index, at_once) = (*next, each.parallel.unwrap_or(1));
            if *running >= at_once {
                break;
            }
            let Some(item) = items.items().and_then(|items| items.get(index as usize)).cloned() else {
                if *running == 0 {
                    let output = match each.parallel {
                        None => input,
                        Some(_) => all(outputs),
                    };
                    self.finish_composed(id, output);
                }
                break;
            };
            let input = if each.parallel.is_some() { own } else { input.clone() };
            let variables = vec![
                (Arc::from(each.each.as_str()), item),
                (Arc::from(each.at.as_str()), Data::from(index)),
            ];
            let list = self.add(Frame {
                node: Some(node),
                parent: Some(id),
                slot: index,
                started_unix_ms: self.environment.unix_ms,
                raw: input.clone(),
                input: input.clone(),
                due_ms: None,
                timeout_ms: None,
                variables,
                state: State::List,
                held_bytes: 0,
            });
            if let Some(condition) = &each.condition {
                let scope = self.scope(Some(list), Some(self.program.node(node)), Some(&input), None);
                match scope.is_true(condition, &input) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.instance.take_frame(list);
                        return self.finish_frame(id, input, None);
                    }
                    Err(error) => {
                        self.cancel_below(Some(id));
                        self.cancel(id);
                        let Some(parent) = parent else { return };
                        return self.push(Work::Fail { parent, slot, node, raw, error });
                    }
                }
            }
            if let Some(Frame { state: State::For { next, running, .. }, .. }) = self.frame_mut(id) {
                *next += 1;
                *running += 1;
            }
            begun.push((list, input));
            if each.parallel.is_none() {
                break;
            }
        }
        // What is pushed last is done first.
        for (list, input) in begun.into_iter().rev() {
            self.enter_list(list, 0, input);
        }
    }

    fn emit(
        &mut self,
        parent: FrameId,
        id: NodeId,
        emit: &Emit,
        input: &Data,
    ) -> Result<Data, WorkflowError> {
        let node = self.program.node(id);
        let scope = self.scope(Some(parent), Some(node), Some(input), None);
        let topic = emit.topic.as_ref().map(|topic| scope.json(topic, input)).transpose()?;
        let Value::Object(mut event) = scope.json(&emit.event, input)? else {
            return Err(WorkflowError::new(ErrorKind::Expression, "the event is no object"));
        };
        if !event.get("type").is_some_and(Value::is_string) {
            return Err(WorkflowError::new(ErrorKind::Expression, "the event's type is no text"));
        }
        // The same for the same step, however often it is tried after a restart.
        let unique = format!("{}-{}", self.instance.id, self.instance.steps);
        let source = format!("/workflows/{}", self.program.name);
        let time = super::scope::rfc3339(self.environment.unix_ms);
        for (key, value) in [("specversion", "1.0"), ("id", &unique), ("source", &source), ("time", &time)]
        {
            event.entry(key).or_insert_with(|| Value::from(value));
        }
        if event.contains_key("data") {
            event.entry("datacontenttype").or_insert_with(|| Value::from("application/json"));
        }
        let event = Value::Object(event);
        let output = taken_in(&event)?;
        self.instance.turn.message_bytes += weight(&event) as u64;
        self.actions.push(Action::Publish(Outgoing {
            node: id,
            topic: topic.map(text),
            content: Content::CloudEvent(Arc::new(event)),
            qos: emit.qos,
            retain: false,
            headers: Vec::new(),
        }));
        Ok(output)
    }

    fn publish(
        &mut self,
        parent: FrameId,
        id: NodeId,
        publish: &Publish,
        input: &Data,
    ) -> Result<(), WorkflowError> {
        let scope = self.scope(Some(parent), Some(self.program.node(id)), Some(input), None);
        let headers = publish.headers.as_ref().map(|headers| scope.json(headers, input)).transpose()?;
        let headers = match headers {
            Some(Value::Object(headers)) => {
                headers.into_iter().map(|(key, value)| (key, text(value))).collect()
            }
            _ => Vec::new(),
        };
        let outgoing = Outgoing {
            node: id,
            topic: Some(text(scope.json(&publish.topic, input)?)),
            content: Content::Payload(scope.json(&publish.payload, input)?),
            qos: publish.qos,
            retain: publish.retain,
            headers,
        };
        if let Content::Payload(payload) = &outgoing.content {
            self.instance.turn.message_bytes += weight(payload) as u64;
        }
        self.actions.push(Action::Publish(outgoing));
        Ok(())
    }

    /// A call has ended.
    fn ended(&mut self, id: FrameId, result: Result<Arc<Value>, WorkflowError>) {
        let Some(frame) = self.frame(id).filter(|frame| matches!(frame.state, State::Call)) else { return };
        let (Some(parent), Some(node)) = (frame.parent, frame.node) else { return };
        let (slot, raw) = (frame.slot, frame.raw.clone());
        match result.and_then(|output| taken_in(&output)) {
            Ok(output) => self.finish_frame(id, output, None),
            Err(error) => {
                self.instance.take_frame(id);
                self.push(Work::Fail { parent, slot, node, raw, error });
            }
        }
    }

    fn tick(&mut self) {
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
        // Each in its time: a wait that ends before the timeout of what it is in goes on. What is pushed last is done first.
        frames.sort_unstable();
        if !self.instance.synthesizers.is_empty() {
            self.push(Work::Rules);
        }
        frames.into_iter().rev().for_each(|(_, frame)| self.push(Work::Due { frame }));
    }

    /// The time of a frame has come, unless what came due before has ended it.
    fn frame_due(&mut self, id: FrameId) {
        let now_ms = self.environment.now_ms;
        let is_due = |due: Option<u64>| due.is_some_and(|due| due <= now_ms);
        let Some(frame) = self.frame(id) else { return };
        if is_due(frame.timeout_ms) && frame.timeout_ms <= frame.due_ms.or(frame.timeout_ms) {
            self.timed_out(id);
        } else if is_due(frame.due_ms) {
            self.due(id);
        }
    }

    fn timed_out(&mut self, id: FrameId) {
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

    fn due(&mut self, id: FrameId) {
        let program = self.program;
        let Some(frame) = self.frame_mut(id) else { return };
        frame.due_ms = None;
        let (Some(node), input) = (frame.node, frame.input.clone()) else { return };
        match (&frame.state, &program.node(node).kind) {
            (State::Wait, _) => self.finish_frame(id, input, None),
            (State::Try(_), Kind::Try(tried)) => self.retry_due(id, tried),
            _ => {}
        }
    }
}

pub(super) fn then(flow: Flow) -> Then {
    match flow {
        Flow::Continue => Then::Next,
        Flow::Exit => Then::Exit,
        Flow::End => Then::End,
        Flow::Goto(position) => Then::Goto(position),
    }
}

/// Text as it is, everything else as JSON.
pub(super) fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// The outputs of branches; null for those that have none.
pub(super) fn all(outputs: &[Option<Data>]) -> Data {
    Data::list(outputs.iter().map(|output| output.clone().unwrap_or_default()).collect())
}

fn items(value: Data) -> Result<Data, WorkflowError> {
    let kind = match &value {
        Data::Arr(items) if items.len() > MAX_ITEMS => {
            let detail = format!("the list has more than {MAX_ITEMS} items");
            return Err(WorkflowError::new(ErrorKind::Runtime, detail));
        }
        Data::Arr(_) => return Ok(value),
        Data::Null => return Ok(Data::list(Vec::new())),
        Data::Bool(_) => "a boolean",
        Data::Num(_) => "a number",
        Data::Str(_) => "a string",
        Data::Obj(_) => "an object",
    };
    let detail = format!("a loop goes through a list; `in` gave {kind}");
    Err(WorkflowError::new(ErrorKind::Expression, detail))
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
        status: status.ok_or_else(|| bad("status is no number from 100 to 599"))?,
        title: field("title"),
        detail: field("detail"),
        instance: field("instance"),
    })
}
