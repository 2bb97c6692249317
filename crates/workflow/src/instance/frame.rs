//! Frames: the running tasks of an instance, and containers of tasks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::FrameId;
use super::listen_state::Listening;
use crate::data::Data;
use crate::program::NodeId;

/// A running task, or a container of tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Frame {
    /// `None` for the workflow's own list.
    pub(super) node: Option<NodeId>,
    pub(super) parent: Option<FrameId>,
    /// Its position in the parent: in the list, among the branches, or among the iterations.
    pub(super) slot: u32,
    pub(super) started_unix_ms: u64,
    pub(super) raw: Data,
    pub(super) input: Data,
    /// The time at which it continues by itself.
    pub(super) due_ms: Option<u64>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) variables: Vec<(Arc<str>, Data)>,
    pub(super) state: State,
    /// Its part of [`Instance::bytes`].
    #[serde(skip)]
    pub(super) held_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum State {
    /// A list of tasks: the workflow's own list, `do`, an iteration, an event of a listen, or the handler of `catch`.
    List,
    Fork {
        outputs: Vec<Option<Data>>,
        left: u32,
    },
    For {
        items: Data,
        next: u32,
        running: u32,
        /// Only for a loop with parallel iterations.
        outputs: Vec<Option<Data>>,
    },
    Try(Box<Trying>),
    Wait,
    Call,
    Listen(Box<Listening>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Trying {
    pub(super) phase: Phase,
    /// Number of failed attempts.
    pub(super) failed: u32,
    pub(super) since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    Trying,
    WaitingToRetry,
    Handling,
}

impl Frame {
    pub(super) fn is_call(&self) -> bool {
        matches!(self.state, State::Call)
    }
}
