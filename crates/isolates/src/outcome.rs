//! The end of an invocation, and the limits that may have ended it.

use std::time::Duration;

use crate::event::Reply;

/// The facts of one invocation that its function may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvocationMeta {
    /// The invocation's id.
    pub id: String,
    /// The function's name.
    pub function: String,
    /// Deadline of the run, in milliseconds since the Unix epoch.
    pub deadline_unix_ms: u64,
}

/// Limits of one invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of the isolate in bytes.
    pub memory_bytes: usize,
    /// Wall-clock time from start to answer.
    pub timeout: Duration,
    /// Processor time, within `timeout`.
    pub cpu: Duration,
    /// Size of the answer in bytes.
    pub reply_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            cpu: Duration::MAX,
            reply_bytes: 8 << 20,
        }
    }
}

/// A finished run: its result and its times.
#[derive(Debug)]
pub struct Completion {
    /// The answer, or why there is none.
    pub result: Result<Reply, RunError>,
    /// Time from the call to the first instruction of the function: instance, snapshot, store.
    pub start: Duration,
    /// Time in the function, host calls included.
    pub execution: Duration,
    /// Processor time of `start` and `execution`.
    pub cpu: Duration,
    /// Linear memory at the end, in bytes.
    pub memory_bytes: usize,
    /// True if the invocation ran in a warm instance.
    pub warm: bool,
}

impl Completion {
    /// An invocation that did not begin, after it had `waited`.
    pub(crate) fn refused(error: RunError, waited: Duration) -> Self {
        let none = Duration::ZERO;
        let (start, execution, cpu) = (waited, none, none);
        Self { result: Err(error), start, execution, cpu, memory_bytes: 0, warm: false }
    }
}

/// An invocation without a reply. Messages name the user's files, not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The function returned an error or threw.
    #[error("{message}")]
    Failed {
        /// The error's name and message.
        message: String,
        /// The first frame in the user's own files as FILE:LINE:COL, if there is one.
        location: Option<String>,
        /// The whole stack, for the log.
        stack: Option<String>,
    },
    /// The invocation ran past its deadline.
    #[error("timed out after {limit:?}; raise limits.timeout or do less")]
    TimedOut {
        /// The limit it hit.
        limit: Duration,
    },
    /// The invocation exceeded its processor time.
    #[error("used more than {limit:?} of processor time; raise limits.cpu or compute less")]
    CpuTimeUsed {
        /// The limit it hit.
        limit: Duration,
    },
    /// The invocation exceeded its memory limit.
    #[error("out of memory: over its limit of {limit_bytes} bytes; raise limits.memory or use less")]
    OutOfMemory {
        /// The limit it hit.
        limit_bytes: usize,
    },
    /// The node has no memory left for it.
    #[error(
        "the node has no memory left for it: all functions together may have {max_bytes} bytes; try again later"
    )]
    NodeOutOfMemory {
        /// The budget of all functions.
        max_bytes: u64,
    },
    /// The function overflowed its stack.
    #[error("stack overflow{}", location.as_ref().map(|at| format!(" at {at}")).unwrap_or_default())]
    StackOverflow {
        /// The first frame in the user's own files, if known.
        location: Option<String>,
    },
    /// The function trapped: unreachable code, a panic, an access out of bounds, a division by zero.
    #[error("trapped: {message}")]
    Trapped {
        /// The trap.
        message: String,
        /// The first frame in the user's own files, if known.
        location: Option<String>,
        /// The whole backtrace, for the log.
        stack: Option<String>,
    },
    /// A promise is pending that nothing can settle any more.
    #[error("the handler's promise never settles: nothing it waits for is under way")]
    NeverSettles,
    /// The answer is larger than it may be.
    #[error("the reply has {actual_bytes} bytes; the limit is {limit_bytes}")]
    ReplyTooLarge {
        /// Size of the reply, in bytes.
        actual_bytes: usize,
        /// The limit it hit.
        limit_bytes: usize,
    },
    /// The answer is not something that can be sent.
    #[error("the reply cannot be sent: {reason}")]
    InvalidReply {
        /// The fault of the reply.
        reason: String,
    },
    /// The node has no room for a further isolate.
    #[error("the node has no free isolate ({limit} in use); try again later or raise isolates.max")]
    NoCapacity {
        /// Maximum of isolates in the pool.
        limit: u32,
    },
    /// The node is at fault.
    #[error("internal error: {0}")]
    Internal(#[from] InternalError),
}

/// A fault of the node during a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InternalError {
    /// The WebAssembly engine failed, for another reason than a trap or a limit.
    #[error("{detail}")]
    Engine {
        /// The engine's message, with its causes.
        detail: String,
    },
    /// The event cannot be represented as an HTTP request.
    #[error("{detail}")]
    Request {
        /// The message of the HTTP library.
        detail: String,
    },
}
