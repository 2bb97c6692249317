//! One run of a workflow: [`Instance::advance`] takes what happened and says what is to be done.
//!
//! An instance is plain data. It knows no clock, no thread and no function: the time comes with every event, and what
//! is to be done comes back as [`Action`]s. The same events at the same times give the same state again, so that an
//! instance can be rebuilt from a journal of its events.

mod advance;
mod fault;
mod finish;
mod listen;
mod request;
mod retry;
mod scope;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::Data;
use crate::error::WorkflowError;
use crate::program::{HttpOutput, NodeId, Program};
use crate::synthesizer::Synthesizer;
pub use advance::NextTask;
pub use listen::{ActiveFilter, accepts, firing_value, has_attributes_of, schedule_rule, start_filter};
pub use request::{RequestParts, read_answer};

/// A part of an instance that runs: a task or what holds tasks. Never used twice in an instance.
pub type FrameId = u32;

/// What an instance is told beside the event.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    /// A clock that does not go back and does not jump, in milliseconds: waits and timeouts are by it.
    pub now_ms: u64,
    /// The wall clock, in milliseconds since the Unix epoch: what expressions and events see.
    pub unix_ms: u64,
    /// `$secrets`: an object.
    pub secrets: &'a Value,
    /// `$runtime`: an object.
    pub runtime: &'a Value,
    /// Notes about every task are wanted.
    pub observed: bool,
    /// What an expression may make, in bytes, and what the instance may hold when it begins another task in the same turn. The same
    /// for all events of an instance.
    pub memory_bytes: u64,
    /// Whether the turn of the event may end for the memory that the instance holds.
    pub cut: Cut,
}

/// Why a turn ends before its work is done, beside the counts of tasks, steps and messages. What an instance holds is an estimate,
/// which is another one after it was read back: so a turn that is repeated ends where the record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It holds more than [`Environment::memory_bytes`].
    Memory,
    /// A turn of before is repeated: it ended for its memory after so many pieces of work ([`Instance::cut_after`]), or not for that.
    Recorded(Option<u32>),
}

/// What happens to an instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// It starts.
    Start,
    /// A call, request, script or workflow has ended.
    Ended {
        /// What [`Action`] named.
        frame: FrameId,
        /// Its output, or how it failed.
        result: Result<Arc<Value>, WorkflowError>,
    },
    /// An event that it listens to, as a CloudEvent.
    Message {
        /// What [`Action::Listen`] named.
        frame: FrameId,
        /// The index of the filter that found it; those of `until` come after those of the listen.
        source: u32,
        /// The event.
        event: Arc<Value>,
    },
    /// The length of the queue that a listen's rule watches.
    QueueLength {
        /// What [`Action::Listen`] named.
        frame: FrameId,
        /// How many wait.
        length: u64,
    },
    /// The time that [`Instance::due_ms`] named has come.
    Tick,
    /// Somebody ends it.
    Cancel,
    /// Somebody wants the task that failed to be tried again.
    Retry,
    /// Goes on after [`Action::Continue`].
    Continue,
    /// A budget is used up: the next task that would begin fails with this error instead.
    Refuse {
        /// What the task fails with; see [`WorkflowError::over_budget`].
        error: WorkflowError,
    },
}

impl Event {
    /// Whether it takes a while to take in what it brings; see [`is_large`](crate::event::is_large).
    pub fn is_large(&self) -> bool {
        match self {
            Self::Ended { result: Ok(value), .. } | Self::Message { event: value, .. } => {
                // A scalar needs no list of what is left.
                (value.is_array() || value.is_object() || value.is_string())
                    && crate::event::is_large(value)
            }
            _ => false,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum Action {
    /// Call a function; [`Event::Ended`] is awaited.
    Call {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The function.
        function: Arc<str>,
        /// What it gets.
        body: Arc<Value>,
    },
    /// Send an HTTP request; [`Event::Ended`] with what [`read_answer`] makes of it is awaited.
    Request {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// What to send.
        request: Box<RequestParts>,
        /// What is read of the answer.
        output: HttpOutput,
    },
    /// Run a script; [`Event::Ended`] is awaited if `wait` says so.
    Script {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// Its text.
        code: Arc<str>,
        /// What it sees: `{arguments, environment}`.
        input: Arc<Value>,
        /// Its end is awaited.
        wait: bool,
    },
    /// Run a workflow; [`Event::Ended`] is awaited if `wait` says so.
    Workflow {
        /// Names it.
        frame: FrameId,
        /// The task.
        node: NodeId,
        /// The workflow.
        name: Arc<str>,
        /// Its input.
        input: Arc<Value>,
        /// Its end is awaited.
        wait: bool,
    },
    /// Publish a message. Nothing is awaited.
    Publish(Outgoing),
    /// From now on, [`Event::Message`] is awaited for events that these filters may take.
    Listen {
        /// Names it.
        frame: FrameId,
        /// The filters; their index is the event's `source`.
        filters: Vec<ActiveFilter>,
        /// The length of this queue is wanted, as [`Event::QueueLength`].
        queue: Option<crate::synthesizer::Queue>,
    },
    /// No longer.
    Unlisten {
        /// What [`Action::Listen`] named.
        frame: FrameId,
    },
    /// What was asked for by this frame is not wanted any more.
    Cancel {
        /// Names it.
        frame: FrameId,
    },
    /// Send [`Event::Continue`] when others had their turn.
    Continue,
    /// What happened to a task, where [`Environment::observed`] asks for it.
    Note(Note),
}

/// A message that a workflow sends.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The task.
    pub node: NodeId,
    /// The topic; none for an event that names none.
    pub topic: Option<String>,
    /// A CloudEvent, or the payload.
    pub content: Content,
    /// 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// User properties.
    pub headers: Vec<(String, String)>,
}

/// What a message consists of.
#[derive(Debug, Clone)]
pub enum Content {
    /// A CloudEvent in its JSON form.
    CloudEvent(Arc<Value>),
    /// Any payload: text as it is, everything else as JSON.
    Payload(Value),
}

/// What happened to a task.
#[derive(Debug, Clone)]
pub struct Note {
    /// What.
    pub kind: NoteKind,
    /// The frame that the task has, or that of the list it is in.
    pub frame: FrameId,
    /// The task; none for the workflow as a whole.
    pub node: Option<NodeId>,
    /// Input, output or error.
    pub value: Data,
}

/// The kinds of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NoteKind {
    Started,
    Completed,
    Faulted,
    Skipped,
    Retried,
    Cancelled,
}

impl NoteKind {
    /// The word in the type of a lifecycle event (specification, section "Lifecycle Events").
    pub fn word(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed => "completed",
            Self::Faulted => "faulted",
            Self::Skipped => "skipped",
            Self::Retried => "retried",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far an instance is (specification, section "Status Phases").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Status {
    Pending,
    Running,
    Waiting,
    Completed,
    Faulted,
    Cancelled,
}

impl Status {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Faulted => "faulted",
            Self::Cancelled => "cancelled",
        }
    }

    /// Nothing more happens by itself.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Faulted | Self::Cancelled)
    }
}

/// A run of a workflow.
#[derive(Debug, Serialize, Deserialize)]
pub struct Instance {
    id: Arc<str>,
    status: Status,
    input: Data,
    /// The input could not be kept.
    refused: bool,
    context: Data,
    started_unix_ms: u64,
    frames: BTreeMap<FrameId, Box<Frame>>,
    last_frame: FrameId,
    steps: u64,
    /// The steps there were when it was last retried: the limit counts from there.
    steps_before: u64,
    /// [`Action::Continue`] was given and [`Event::Continue`] has not come.
    wants_turn: bool,
    /// The next task that would begin fails with this error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<Box<WorkflowError>>,
    seed: u64,
    work: Vec<Work>,
    result: Option<Result<Arc<Value>, WorkflowError>>,
    fault: Option<Box<Fault>>,
    /// Of listens with a rule; kept apart from the journal's form, see [`Instance::to_bytes`].
    #[serde(skip)]
    synthesizers: BTreeMap<FrameId, Synthesizer>,
    #[serde(skip)]
    turn: Turn,
    /// Memory of frames and what they hold alone, the events of their rules included, in bytes.
    #[serde(skip)]
    held_bytes: u64,
    /// Frames that wait for a call.
    #[serde(skip)]
    calls: u32,
}

/// How far a turn is: what is done between [`Action::Continue`] and [`Event::Continue`]. It ends by counts, or as [`Cut`] says, so
/// that it ends at the same task whenever it is done again.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    /// The rest is done by [`Instance::resume`].
    is_paused: bool,
    /// Tasks that were begun.
    begun: u32,
    /// Pieces of work that were done, of which a task has several.
    works: u32,
    /// It ended for the memory that the instance holds.
    is_cut_for_memory: bool,
    /// Steps of expressions.
    steps: u64,
    /// Of the messages that are to be sent.
    message_bytes: u64,
}

fn outputs_bytes(outputs: &[Option<Data>]) -> u64 {
    let held: u64 = outputs.iter().flatten().map(Data::bytes).sum();
    size_of_val(outputs) as u64 + held
}

/// Where an instance failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Fault {
    /// What is to be done again, and what was not begun.
    work: Vec<Work>,
    at_ms: u64,
    /// Of listens with a rule, as they were.
    rules: BTreeMap<FrameId, crate::synthesizer::State>,
}

/// A task that runs, or what holds tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Frame {
    /// None for the workflow's own list.
    node: Option<NodeId>,
    parent: Option<FrameId>,
    /// Its place in the parent: in the list, among the branches, among the iterations.
    slot: u32,
    started_unix_ms: u64,
    raw: Data,
    input: Data,
    /// When it goes on by itself.
    due_ms: Option<u64>,
    timeout_ms: Option<u64>,
    variables: Vec<(Arc<str>, Data)>,
    state: State,
    /// Its part of [`Instance::bytes`].
    #[serde(skip)]
    held_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum State {
    /// A list of tasks: the workflow's own, `do`, an iteration, an event of a listen, or what `catch` does.
    List,
    Fork {
        outputs: Vec<Option<Data>>,
        left: u32,
    },
    For {
        items: Data,
        next: u32,
        running: u32,
        /// Of a loop with iterations at the same time.
        outputs: Vec<Option<Data>>,
    },
    Try(Box<Trying>),
    Wait,
    Call,
    Listen(Box<listen::Listening>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Trying {
    phase: Phase,
    /// Attempts that failed.
    failed: u32,
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Trying,
    WaitingToRetry,
    Handling,
}

/// A piece of what is to be done within the instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Work {
    /// Begin a task.
    Enter { parent: FrameId, slot: u32, node: NodeId, raw: Data },
    /// A task of `parent` has ended.
    Done { parent: FrameId, slot: u32, output: Data, flow: Then },
    /// A task of `parent` has failed.
    Fail { parent: FrameId, slot: u32, node: NodeId, raw: Data, error: WorkflowError },
    /// Go on with a frame whose time has come.
    Due { frame: FrameId },
    /// Go on with the rules whose time has come.
    Rules,
}

/// What comes next, once it is decided.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Then {
    Next,
    Exit,
    End,
    Goto(u32),
}

impl Work {
    /// The data that it goes on with, and the frame that it belongs to.
    fn data(&self) -> Option<(FrameId, &Data)> {
        match self {
            Self::Enter { parent, raw: data, .. }
            | Self::Done { parent, output: data, .. }
            | Self::Fail { parent, raw: data, .. } => Some((*parent, data)),
            Self::Due { .. } | Self::Rules => None,
        }
    }
}

impl Frame {
    fn is_call(&self) -> bool {
        matches!(self.state, State::Call)
    }
}

impl Instance {
    fn add_frame(&mut self, frame: Frame) -> FrameId {
        self.last_frame += 1;
        let bytes = self.bytes_of(&frame);
        self.calls += u32::from(frame.is_call());
        self.frames.insert(self.last_frame, Box::new(frame));
        self.hold(self.last_frame, bytes);
        self.last_frame
    }

    fn take_frame(&mut self, id: FrameId) -> Option<Box<Frame>> {
        let frame = self.frames.remove(&id)?;
        self.calls -= u32::from(frame.is_call());
        self.held_bytes = self.held_bytes.saturating_sub(frame.held_bytes);
        Some(frame)
    }

    /// What frames have in common is shared again, as it was before it was written.
    fn share_data(&mut self) {
        let ids: Vec<FrameId> = self.frames.keys().copied().collect();
        for id in ids {
            let parent = self.frames.get(&id).and_then(|frame| self.frames.get(&frame.parent?));
            let around =
                parent.map_or([Data::Null, Data::Null], |frame| [frame.input.clone(), frame.raw.clone()]);
            let Some(frame) = self.frames.get_mut(&id) else { continue };
            let all = [&around[0], &around[1], &self.input, &self.context];
            for value in [&mut frame.raw, &mut frame.input] {
                if let Some(same) = all.into_iter().find(|known| known.is_same(value)) {
                    *value = same.clone();
                }
            }
            if frame.input.is_same(&frame.raw) {
                frame.input = frame.raw.clone();
            }
        }
    }

    /// A frame holds more than before.
    fn hold(&mut self, id: FrameId, bytes: u64) {
        if let Some(frame) = self.frames.get_mut(&id) {
            frame.held_bytes += bytes;
            self.held_bytes += bytes;
        }
    }

    /// A frame holds less than before.
    fn release(&mut self, id: FrameId, bytes: u64) {
        if let Some(frame) = self.frames.get_mut(&id) {
            let bytes = bytes.min(frame.held_bytes);
            frame.held_bytes -= bytes;
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
        }
    }

    /// What a frame takes that the one around it does not have.
    fn bytes_of(&self, frame: &Frame) -> u64 {
        /// Its place among the frames.
        const PLACE_BYTES: usize = 24;
        let around = frame.parent.and_then(|parent| self.frames.get(&parent));
        let is_known = |value: &Data| {
            let known = around.iter().flat_map(|around| [&around.input, &around.raw]);
            known.chain([&self.input, &self.context]).any(|known| value.is_shared_with(known))
        };
        let mut bytes = (size_of::<Frame>() + PLACE_BYTES + 64 * frame.variables.len()) as u64;
        if !is_known(&frame.raw) {
            bytes += frame.raw.bytes();
        }
        if !is_known(&frame.input) && !frame.input.is_shared_with(&frame.raw) {
            bytes += frame.input.bytes();
        }
        bytes
            + match &frame.state {
                State::Fork { outputs, .. } => outputs_bytes(outputs),
                State::For { items, outputs, .. } => items.bytes() + outputs_bytes(outputs),
                State::Try(_) => size_of::<Trying>() as u64,
                State::Listen(listening) => size_of::<listen::Listening>() as u64 + listening.bytes(),
                _ => 0,
            }
    }

    /// What a piece of work has beside what the frame around it has.
    fn bytes_of_work(&self, work: &Work) -> u64 {
        let Some((parent, data)) = work.data() else { return 0 };
        let frame = self.frames.get(&parent);
        let known = frame.iter().flat_map(|frame| [&frame.input, &frame.raw]);
        let mut known = known.chain([&self.input, &self.context]);
        if known.any(|known| data.is_shared_with(known)) { 0 } else { data.bytes() }
    }

    /// An instance that has not started. `seed` decides what is left to chance. An input that nests more than 100 levels
    /// deep is let go, and the instance fails when it starts.
    pub fn new(id: Arc<str>, input: Arc<Value>, seed: u64, unix_ms: u64) -> Self {
        let taken_in = scope::taken_in(&input);
        let refused = taken_in.is_err();
        let input = taken_in.unwrap_or_default();
        Self {
            id,
            status: Status::Pending,
            input,
            refused,
            context: Data::Null,
            started_unix_ms: unix_ms,
            frames: BTreeMap::new(),
            last_frame: 0,
            steps: 0,
            steps_before: 0,
            wants_turn: false,
            refusal: None,
            seed,
            work: Vec::new(),
            result: None,
            fault: None,
            synthesizers: BTreeMap::new(),
            turn: Turn::default(),
            held_bytes: 0,
            calls: 0,
        }
    }

    /// Its id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What it was started with.
    pub fn input(&self) -> &Data {
        &self.input
    }

    /// `$context`.
    pub fn context(&self) -> &Data {
        &self.context
    }

    /// When it was started, by the wall clock.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Tasks it has begun.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Memory that it holds, in bytes: an estimate that costs no walk over its data. What a task shares with the one
    /// around it counts once. Events that a rule of a `listen` keeps count, as often as rules keep them.
    pub fn bytes(&self) -> usize {
        let own = size_of::<Self>() + size_of::<Work>() * self.work.capacity();
        // What is further down goes on with what frames hold.
        let next = self.work.last().or_else(|| self.fault.as_ref()?.work.last());
        let next_bytes = next.map_or(0, |work| self.bytes_of_work(work));
        own + (self.input.bytes() + self.context.bytes() + self.held_bytes + next_bytes) as usize
    }

    /// After how many pieces of work the last turn ended for the memory that the instance holds, if it did.
    pub fn cut_after(&self) -> Option<u32> {
        self.turn.is_cut_for_memory.then_some(self.turn.works)
    }

    /// True between two slices of a turn: [`Instance::resume`] is to be called, and nothing else.
    pub fn is_paused(&self) -> bool {
        self.turn.is_paused
    }

    /// What others see while the instance itself is elsewhere: it runs.
    pub fn stand_in(&self) -> Self {
        Self {
            id: self.id.clone(),
            status: Status::Running,
            input: self.input.clone(),
            refused: self.refused,
            context: self.context.clone(),
            started_unix_ms: self.started_unix_ms,
            frames: BTreeMap::new(),
            last_frame: self.last_frame,
            steps: self.steps,
            steps_before: self.steps_before,
            wants_turn: false,
            refusal: None,
            seed: self.seed,
            work: Vec::new(),
            result: None,
            fault: None,
            synthesizers: BTreeMap::new(),
            turn: Turn::default(),
            held_bytes: self.held_bytes,
            calls: 0,
        }
    }

    /// What came of it.
    pub fn result(&self) -> Option<&Result<Arc<Value>, WorkflowError>> {
        self.result.as_ref()
    }

    /// When [`Event::Tick`] is due next, by [`Environment::now_ms`].
    pub fn due_ms(&self) -> Option<u64> {
        if self.status.is_ended() {
            return None;
        }
        let frames = self.frames.values().flat_map(|frame| [frame.due_ms, frame.timeout_ms]).flatten();
        frames.chain(self.synthesizers.values().filter_map(Synthesizer::due_ms)).min()
    }

    /// The places in the definition of the tasks that run now, or that wait for something, in the order of their text: each with the
    /// number of tasks there.
    pub fn current<'p>(&self, program: &'p Program) -> BTreeMap<&'p str, usize> {
        let parents: BTreeSet<FrameId> = self.frames.values().filter_map(|frame| frame.parent).collect();
        let leaves = self.frames.iter().filter(|(id, _)| !parents.contains(id));
        let mut places = BTreeMap::new();
        for (_, frame) in leaves {
            if let Some(node) = frame.node {
                *places.entry(program.node(node).path.as_str()).or_default() += 1;
            }
        }
        places
    }

    /// What the journal keeps, at the time `now_ms`.
    ///
    /// # Errors
    /// If the data has no JSON form, which it has by construction.
    pub fn to_bytes(&self, now_ms: u64) -> Result<Vec<u8>, serde_json::Error> {
        let rules: BTreeMap<FrameId, crate::synthesizer::State> = self
            .synthesizers
            .iter()
            .map(|(frame, synthesizer)| (*frame, synthesizer.state(now_ms)))
            .collect();
        serde_json::to_vec(&(self, rules))
    }

    /// About how much [`to_bytes`](Self::to_bytes) writes: what parts of it share is written for each of them.
    pub fn written_bytes(&self) -> u64 {
        let of_frame = |frame: &Frame| {
            let variables: u64 = frame.variables.iter().map(|(_, value)| value.bytes()).sum();
            let state = match &frame.state {
                State::Fork { outputs, .. } => outputs_bytes(outputs),
                State::For { items, outputs, .. } => items.bytes() + outputs_bytes(outputs),
                State::Listen(listening) => listening.bytes(),
                _ => 0,
            };
            frame.raw.bytes() + frame.input.bytes() + variables + state
        };
        let open = self.work.iter().chain(self.fault.iter().flat_map(|fault| &fault.work));
        let work: u64 = open.filter_map(Work::data).map(|(_, data)| data.bytes()).sum();
        let rules: usize = self.synthesizers.values().map(Synthesizer::bytes).sum();
        let failed = self.fault.iter().flat_map(|fault| fault.rules.values());
        let failed: usize = failed.map(crate::synthesizer::State::bytes).sum();
        self.input.bytes()
            + self.context.bytes()
            + work
            + (rules + failed) as u64
            + self.frames.values().map(|frame| of_frame(frame)).sum::<u64>()
    }

    /// Back from [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// What is wrong with the bytes, or that they are of another definition.
    pub fn from_bytes(bytes: &[u8], program: &Program, now_ms: u64) -> Result<Self, String> {
        let parsed: Result<(Self, BTreeMap<FrameId, crate::synthesizer::State>), _> =
            serde_json::from_slice(bytes);
        let (mut instance, rules) = parsed.map_err(|error| error.to_string())?;
        let known = |node: Option<NodeId>| node.is_none_or(|node| (node as usize) < program.nodes.len());
        let open = instance.work.iter().chain(instance.fault.iter().flat_map(|fault| &fault.work));
        let works = |work: &Work| match work {
            Work::Enter { node, .. } | Work::Fail { node, .. } => known(Some(*node)),
            Work::Done { .. } | Work::Due { .. } | Work::Rules => true,
        };
        if !instance.frames.values().all(|frame| known(frame.node)) || !open.clone().all(works) {
            return Err("it is of another definition".to_owned());
        }
        instance.calls = instance.frames.values().filter(|frame| frame.is_call()).count() as u32;
        instance.share_data();
        let held: Vec<(FrameId, u64)> =
            instance.frames.iter().map(|(id, frame)| (*id, instance.bytes_of(frame))).collect();
        for (id, bytes) in held {
            instance.hold(id, bytes);
        }
        for (frame, state) in rules {
            let Some(rule) = instance.rule_of(frame, program) else { continue };
            instance.add_rule(frame, Synthesizer::restore(rule, state, now_ms));
        }
        let failed = instance.fault.iter().flat_map(|fault| &fault.rules);
        let failed: Vec<(FrameId, usize)> = failed.map(|(id, state)| (*id, state.bytes())).collect();
        failed.into_iter().for_each(|(id, bytes)| instance.hold_rule(id, bytes));
        Ok(instance)
    }
}
