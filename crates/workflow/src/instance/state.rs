//! The state of one run of a workflow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::depth::taken_in;
use super::event::FrameId;
use super::frame::{self, Frame};
use super::permits::Refused;
use super::work::Work;
use crate::data::Data;
use crate::error::WorkflowError;
use crate::program::Program;
use crate::synthesizer::{self, Synthesizer};

/// The status of an instance (specification, section "Status Phases").
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
    /// The name of the status.
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

    /// True if the instance does not continue by itself.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Faulted | Self::Cancelled)
    }
}

/// A run of a workflow.
#[derive(Debug, Serialize, Deserialize)]
pub struct Instance {
    pub(super) id: Arc<str>,
    pub(super) status: Status,
    pub(super) input: Data,
    /// True if the input was refused because it nests too deep.
    pub(super) refused: bool,
    pub(super) context: Data,
    pub(super) started_unix_ms: u64,
    pub(super) frames: BTreeMap<FrameId, Box<Frame>>,
    pub(super) last_frame: FrameId,
    pub(super) steps: u64,
    /// The value of `steps` at the last retry. The step limit counts from there.
    pub(super) steps_before: u64,
    /// True if [`Action::Continue`] was emitted and [`Event::Continue`] has not arrived.
    pub(super) wants_turn: bool,
    /// The next task that would begin fails with this error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<Box<WorkflowError>>,
    pub(super) seed: u64,
    pub(super) work: Vec<Work>,
    pub(super) result: Option<Result<Arc<Value>, WorkflowError>>,
    pub(super) fault: Option<Box<Fault>>,
    /// Synthesizers of listens with a rule. They are stored apart from the instance, see [`Instance::to_bytes`].
    #[serde(skip)]
    pub(super) synthesizers: BTreeMap<FrameId, Synthesizer>,
    #[serde(skip)]
    pub(super) turn: Turn,
    /// See [`Instance::refused`].
    #[serde(skip)]
    pub(super) refused_effects: Vec<Refused>,
    /// Memory of the frames and of the data that only they hold, including events of their rules, in bytes.
    #[serde(skip)]
    pub(super) held_bytes: u64,
    /// Number of frames that wait for a call.
    #[serde(skip)]
    pub(super) calls: u32,
}

/// Progress of a turn: the work between [`Action::Continue`] and [`Event::Continue`]. A turn ends by counts, or as
/// [`Cut`] defines, so that a repeated turn ends at the same task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    /// True if [`Instance::resume`] must do the rest of the turn.
    pub(super) is_paused: bool,
    /// Number of tasks that were begun.
    pub(super) begun: u32,
    /// Number of pieces of work that were done. A task consists of several pieces.
    pub(super) works: u32,
    /// True if the turn ended because of the instance's memory.
    pub(super) is_cut_for_memory: bool,
    /// Number of expression steps.
    pub(super) steps: u64,
    /// Size of the messages to be sent, in bytes.
    pub(super) message_bytes: u64,
}

/// The failure of an instance, and the work to retry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Fault {
    /// The work to repeat, and the work that was not begun.
    pub(super) work: Vec<Work>,
    pub(super) at_ms: u64,
    /// The states of listens with a rule at the failure.
    pub(super) rules: BTreeMap<FrameId, synthesizer::State>,
}

impl Instance {
    /// An instance that has not started. `seed` is the seed of all random numbers. An input that nests more than 100
    /// levels deep is dropped, and the instance fails when it starts.
    pub fn new(id: Arc<str>, input: Arc<Value>, seed: u64, unix_ms: u64) -> Self {
        let taken_in = taken_in(&input);
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
            refused_effects: Vec::new(),
            held_bytes: 0,
            calls: 0,
        }
    }

    /// Its id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Its status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The input of the workflow.
    pub fn input(&self) -> &Data {
        &self.input
    }

    /// `$context`.
    pub fn context(&self) -> &Data {
        &self.context
    }

    /// The start time, by the wall clock.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// True if the end of the call of this frame changes the instance. Otherwise the task has ended without it, and
    /// [`Event::Ended`](super::Event::Ended) is ignored.
    pub fn waits_for_call(&self, frame: FrameId) -> bool {
        let is_call = |frame: &Frame| matches!(frame.state, frame::State::Call);
        !self.status.is_ended() && self.frames.get(&frame).is_some_and(|frame| is_call(frame))
    }

    /// Number of tasks that it has begun.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of pieces of work after which the last turn ended because of memory. `None` if it ended for another
    /// reason.
    pub fn cut_after(&self) -> Option<u32> {
        self.turn.is_cut_for_memory.then_some(self.turn.works)
    }

    /// True between two slices of a turn. The caller may then call only [`Instance::resume`].
    pub fn is_paused(&self) -> bool {
        self.turn.is_paused
    }

    /// A placeholder for readers while the instance itself is in use elsewhere. Its status is running.
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
            refused_effects: Vec::new(),
            held_bytes: self.held_bytes,
            calls: 0,
        }
    }

    /// The output or the error, once the instance has ended.
    pub fn result(&self) -> Option<&Result<Arc<Value>, WorkflowError>> {
        self.result.as_ref()
    }

    /// The time of the next [`Event::Tick`], by [`Environment::now_ms`].
    pub fn due_ms(&self) -> Option<u64> {
        if self.status.is_ended() {
            return None;
        }
        let frames = self.frames.values().flat_map(|frame| [frame.due_ms, frame.timeout_ms]).flatten();
        frames.chain(self.synthesizers.values().filter_map(Synthesizer::due_ms)).min()
    }

    /// The tasks that run or wait now: their JSON pointers into the definition, sorted as text, each with the number
    /// of running tasks.
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
}
