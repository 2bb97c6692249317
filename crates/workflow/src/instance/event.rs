//! The input of an instance: events, and the environment that comes with each event.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::permits::Permits;
use crate::error::WorkflowError;

/// The id of a frame: a running task, or a container of tasks. An instance never uses an id twice.
pub type FrameId = u32;

/// The environment of an event: times, secrets and limits.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    /// A monotonic clock, in milliseconds. Waits and timeouts use it.
    pub now_ms: u64,
    /// The wall clock, in milliseconds since the Unix epoch. Expressions and events see it.
    pub unix_ms: u64,
    /// `$secrets`: an object.
    pub secrets: &'a Value,
    /// `$runtime`: an object.
    pub runtime: &'a Value,
    /// True if the instance must emit notes about every task.
    pub observed: bool,
    /// The maximum memory that an expression may allocate for its values, and the maximum memory that the instance
    /// may hold when it begins another task in the same turn, in bytes. The same for all events of an instance.
    pub memory_bytes: u64,
    /// The rule by which the turn of the event ends because of the instance's memory.
    pub cut: Cut,
    /// The rule by which effects of tasks are refused.
    pub permits: Permits<'a>,
}

/// The reason why a turn ends before its work is done, in addition to the counts of tasks, steps and messages. The
/// memory of an instance is an estimate, which differs after the instance was read from storage. Therefore a repeated
/// turn ends where the recorded turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The turn ends if the instance holds more than [`Environment::memory_bytes`].
    Memory,
    /// A recorded turn is repeated. It ended because of memory after this number of pieces of work
    /// ([`Instance::cut_after`]); `None` if it did not end because of memory.
    Recorded(Option<u32>),
}

/// An event of an instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The instance starts.
    Start,
    /// A call, request, script or workflow has ended.
    Ended {
        /// The frame of the [`Action`].
        frame: FrameId,
        /// Its output, or its error.
        result: Result<Arc<Value>, WorkflowError>,
    },
    /// An event that it listens to, as a CloudEvent.
    Message {
        /// The frame of [`Action::Listen`].
        frame: FrameId,
        /// The index of the matching filter. The filters of `until` come after those of the listen.
        source: u32,
        /// The event.
        event: Arc<Value>,
    },
    /// The length of the queue that a listen's rule watches.
    QueueLength {
        /// The frame of [`Action::Listen`].
        frame: FrameId,
        /// Number of waiting messages or invocations.
        length: u64,
    },
    /// The time [`Instance::due_ms`] has been reached.
    Tick,
    /// The instance is cancelled.
    Cancel,
    /// The failed task is retried.
    Retry,
    /// The turn after [`Action::Continue`].
    Continue,
    /// A budget is used up. The next task that would begin fails with this error.
    Refuse {
        /// The error of the task; see [`WorkflowError::over_budget`].
        error: WorkflowError,
    },
}

impl Event {
    /// True if processing the event's value takes long; see [`is_large`](crate::event::is_large).
    pub fn is_large(&self) -> bool {
        match self {
            Self::Ended { result: Ok(value), .. } | Self::Message { event: value, .. } => {
                // A scalar is small. The check, which allocates, is skipped.
                (value.is_array() || value.is_object() || value.is_string())
                    && crate::event::is_large(value)
            }
            _ => false,
        }
    }
}
