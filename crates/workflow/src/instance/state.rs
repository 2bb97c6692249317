//! The state of one run of a workflow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::depth::taken_in;
use super::event::FrameId;
use super::frame::Frame;
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
    pub(super) id: Arc<str>,
    pub(super) status: Status,
    pub(super) input: Data,
    /// The input could not be kept.
    pub(super) refused: bool,
    pub(super) context: Data,
    pub(super) started_unix_ms: u64,
    pub(super) frames: BTreeMap<FrameId, Box<Frame>>,
    pub(super) last_frame: FrameId,
    pub(super) steps: u64,
    /// The steps there were when it was last retried: the limit counts from there.
    pub(super) steps_before: u64,
    /// [`Action::Continue`] was given and [`Event::Continue`] has not come.
    pub(super) wants_turn: bool,
    /// The next task that would begin fails with this error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<Box<WorkflowError>>,
    pub(super) seed: u64,
    pub(super) work: Vec<Work>,
    pub(super) result: Option<Result<Arc<Value>, WorkflowError>>,
    pub(super) fault: Option<Box<Fault>>,
    /// Of listens with a rule; stored apart from the instance, see [`Instance::to_bytes`].
    #[serde(skip)]
    pub(super) synthesizers: BTreeMap<FrameId, Synthesizer>,
    #[serde(skip)]
    pub(super) turn: Turn,
    /// Memory of frames and what they hold alone, the events of their rules included, in bytes.
    #[serde(skip)]
    pub(super) held_bytes: u64,
    /// Frames that wait for a call.
    #[serde(skip)]
    pub(super) calls: u32,
}

/// Progress of a turn: the work that is done between [`Action::Continue`] and [`Event::Continue`]. It ends by counts, or as [`Cut`] says, so
/// that it ends at the same task whenever it is done again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    /// The rest is done by [`Instance::resume`].
    pub(super) is_paused: bool,
    /// Tasks that were begun.
    pub(super) begun: u32,
    /// Pieces of work that were done, of which a task has several.
    pub(super) works: u32,
    /// It ended for the memory that the instance holds.
    pub(super) is_cut_for_memory: bool,
    /// Steps of expressions.
    pub(super) steps: u64,
    /// Of the messages that are to be sent.
    pub(super) message_bytes: u64,
}

/// The failure of an instance, and the work to retry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Fault {
    /// What is to be done again, and what was not begun.
    pub(super) work: Vec<Work>,
    pub(super) at_ms: u64,
    /// Of listens with a rule, as they were.
    pub(super) rules: BTreeMap<FrameId, synthesizer::State>,
}

impl Instance {
    /// An instance that has not started. `seed` decides what is left to chance. An input that nests more than 100 levels
    /// deep is let go, and the instance fails when it starts.
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

    /// When it was started, by the wall clock.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Tasks it has begun.
    pub fn steps(&self) -> u64 {
        self.steps
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

    /// The output or the error, once the instance has ended.
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
}
