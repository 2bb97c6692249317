//! What an instance takes in: events, and the environment that comes with each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::WorkflowError;

/// A part of an instance that runs: a task or what holds tasks. Never used twice in an instance.
pub type FrameId = u32;

/// The environment of an event: times, secrets and limits.
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

/// An event of an instance.
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
        /// Messages or invocations that wait.
        length: u64,
    },
    /// The time that [`Instance::due_ms`] named has come.
    Tick,
    /// The instance is cancelled.
    Cancel,
    /// The task that failed is tried again.
    Retry,
    /// The turn after [`Action::Continue`].
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
