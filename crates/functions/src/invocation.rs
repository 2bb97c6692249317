//! One run of a function: what is asked for, and how it ended.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_isolates::{Event, Reply, RunError};
use edgefaas_state::store::CommitError;
use edgefaas_workflow::WorkflowError;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::registry::ProgramError;

/// How deep functions may call or trigger one another.
pub const MAX_DEPTH: u8 = 16;

/// A run that somebody asks for.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// A ULID: sorts by time.
    pub id: String,
    /// The function's name.
    pub function: String,
    /// On whose behalf.
    pub principal: Principal,
    /// The invocation that made this one, if one did.
    pub parent: Option<String>,
    /// W3C trace context (`traceparent`), if the caller sent one.
    pub trace_parent: Option<String>,
    /// 1 for the first try.
    pub attempt: u32,
    /// How many functions have called or triggered one another before this one.
    pub depth: u8,
    /// The workflow instance that this is a step of, directly or through other functions.
    pub lineage: Option<Lineage>,
    /// What it is to handle.
    pub event: Event,
}

impl Invocation {
    /// A first try that nobody else made.
    pub fn new(function: String, principal: Principal, event: Event) -> Self {
        Self {
            id: Ulid::generate().to_string(),
            function,
            principal,
            parent: None,
            trace_parent: None,
            attempt: 1,
            depth: 0,
            lineage: None,
            event,
        }
    }
}

/// The workflow instance that an invocation descends from. Functions pass it on unchanged to what they call; only what runs
/// workflows looks into it.
#[derive(Clone)]
pub struct Lineage(Arc<dyn Any + Send + Sync>);

impl Lineage {
    /// Of this ancestor.
    pub fn new<T: Any + Send + Sync>(ancestor: Arc<T>) -> Self {
        Self(ancestor)
    }

    /// The ancestor, if it is of this type.
    pub fn ancestor<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Lineage")
    }
}

/// On whose behalf a function runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Principal {
    /// Whoever holds the control API's token.
    Operator,
    /// A client of the HTTP gateway.
    Http,
    /// An MQTT client, by its id.
    Mqtt {
        /// The client id.
        client_id: String,
    },
    /// Another function.
    Function {
        /// Its name.
        name: String,
    },
    /// The node's clock.
    Schedule,
    /// A change of an object.
    Object,
}

/// How an invocation ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The invocation's id.
    pub id: String,
    /// The answer, or why there is none.
    pub result: Result<Reply, InvocationError>,
    /// Where the time went.
    pub timing: Timing,
}

/// Where an invocation's time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Waiting for its turn.
    pub queue: Duration,
    /// Making the isolate.
    pub start: Duration,
    /// In the function.
    pub execution: Duration,
}

/// A budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// The root has its live descendants.
    #[error(
        "root instance {root} has {max} live sub-workflows, the maximum (workflows.descendants); start fewer at a time"
    )]
    Descendants {
        /// The root.
        root: Ulid,
        /// The limit.
        max: usize,
    },
    /// The root and its descendants have their bytes.
    #[error(
        "root instance {root} and its sub-workflows may hold {max_bytes} bytes of data (workflows.root_memory), and this \
         needs more"
    )]
    RootBytes {
        /// The root.
        root: Ulid,
        /// The limit.
        max_bytes: usize,
    },
    /// All instances of the node have their bytes.
    #[error(
        "the workflow instances of this node hold {max_bytes} bytes (workflows.memory); try again later"
    )]
    NodeBytes {
        /// The limit.
        max_bytes: usize,
    },
}

/// Why an invocation has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InvocationError {
    /// There is no such function.
    #[error("there is no function `{name}`{}", near_names(near))]
    UnknownFunction {
        /// The name asked for.
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// The payload is over the function's limit.
    #[error("the payload for `{function}` has {actual_bytes} bytes; limits.payload is {limit_bytes}")]
    PayloadTooLarge {
        /// The function.
        function: String,
        /// The payload's size; at least, where its end was not awaited.
        actual_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The function's queue is full.
    #[error("the queue of `{function}` is full ({capacity} are waiting); try again later")]
    QueueFull {
        /// The function.
        function: String,
        /// How many wait.
        capacity: u32,
    },
    /// It waited, and made room for a newer one.
    #[error("the queue of `{function}` is full and this invocation was the oldest in it")]
    DroppedFromQueue {
        /// The function.
        function: String,
    },
    /// The time ran out before it was its turn.
    #[error("`{function}` did not get its turn within {limit:?}")]
    QueueTimeout {
        /// The function.
        function: String,
        /// The function's limit.
        limit: Duration,
    },
    /// Functions call or trigger one another without end.
    #[error(
        "`{function}` is {depth} calls deep, at most {MAX_DEPTH} are allowed: \
         functions call or trigger one another in a circle"
    )]
    TooDeep {
        /// The function.
        function: String,
        /// How deep.
        depth: u8,
    },
    /// No isolate is free for a nested call.
    #[error("no isolate is free for `{function}` (isolates.max = {max}); try again later")]
    NoIsolate {
        /// The function.
        function: String,
        /// How many there are.
        max: u32,
    },
    /// The events under way take all the memory there is for them.
    #[error("the events under way take {max_bytes} bytes, all there is for them; try again later")]
    NoMemory {
        /// How much there is.
        max_bytes: usize,
    },
    /// There was no memory for an isolate in time.
    #[error(
        "no memory was free for `{function}` within {waited:?} (all functions together may have {max_bytes} bytes); try \
         again later"
    )]
    NoGuestMemory {
        /// The function.
        function: String,
        /// How long it waited.
        waited: Duration,
        /// The budget of all functions.
        max_bytes: u64,
    },
    /// Its caller went away before it had answered.
    #[error("the caller of `{function}` went away before it had answered")]
    Cancelled {
        /// The function.
        function: String,
    },
    /// The budget of workflow instances has no room for one more.
    #[error("`{workflow}` is not started: {error}")]
    OverBudget {
        /// The workflow.
        workflow: String,
        /// Which budget.
        error: OverBudget,
    },
    /// The node is stopping.
    #[error("the node is stopping; try again on another or later")]
    Draining,
    /// The function's source can't be run.
    #[error("`{function}` cannot run: {error}")]
    NotRunnable {
        /// The function.
        function: String,
        /// Why its program cannot be made.
        error: ProgramError,
    },
    /// The function ran and failed.
    #[error("{error}")]
    Run {
        /// The function.
        function: String,
        /// How.
        error: RunError,
    },
    /// A workflow ended with an error.
    #[error("{error}")]
    Workflow {
        /// The workflow.
        workflow: String,
        /// The error as the DSL has it.
        error: Box<WorkflowError>,
    },
    /// It ran, but what it changed could not be kept; nothing of it was.
    #[error("`{function}` ran but its changes could not be committed: {error}")]
    Commit {
        /// The function.
        function: String,
        /// Why.
        error: CommitError,
    },
    /// A durable invocation could not be stored; the function has not run.
    #[error("the invocation of `{function}` is not accepted, and does not run: {error}")]
    NotStored {
        /// The function.
        function: String,
        /// Why.
        error: CommitError,
    },
}

impl InvocationError {
    /// The HTTP status code that says it.
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownFunction { .. } => 404,
            Self::PayloadTooLarge { .. } => 413,
            Self::QueueFull { .. }
            | Self::DroppedFromQueue { .. }
            | Self::NoIsolate { .. }
            | Self::NoMemory { .. }
            | Self::OverBudget { .. } => 429,
            Self::QueueTimeout { .. } => 504,
            // For the trace: nobody is there to be answered.
            Self::Cancelled { .. } => 499,
            Self::TooDeep { .. } => 508,
            Self::Draining
            | Self::NoGuestMemory { .. }
            | Self::Run { error: RunError::NodeOutOfMemory { .. }, .. } => 503,
            Self::NotRunnable { .. } => 500,
            Self::Run { error: RunError::TimedOut { .. } | RunError::CpuTimeUsed { .. }, .. } => 504,
            Self::Run { error: RunError::NoCapacity { .. }, .. } => 429,
            Self::Run { .. } => 500,
            Self::Workflow { error, .. } if (400..=599).contains(&error.status) => error.status,
            Self::Workflow { .. } => 500,
            Self::Commit { error: CommitError::DiskFull { .. }, .. }
            | Self::NotStored { error: CommitError::DiskFull { .. }, .. } => 507,
            Self::Commit { .. } | Self::NotStored { .. } => 500,
        }
    }

    /// A few words for the kind of error; the same for every error of the kind.
    pub fn title(&self) -> &'static str {
        match self {
            Self::UnknownFunction { .. } => "Unknown function",
            Self::PayloadTooLarge { .. } => "Payload too large",
            Self::QueueFull { .. } | Self::DroppedFromQueue { .. } => "Queue full",
            Self::NoIsolate { .. } => "No isolate free",
            Self::NoMemory { .. } => "No memory for events",
            Self::NoGuestMemory { .. } => "No memory for functions",
            Self::OverBudget { .. } => "Too many workflow instances",
            Self::QueueTimeout { .. } => "Timed out in the queue",
            Self::TooDeep { .. } => "Too many nested calls",
            Self::Cancelled { .. } => "Cancelled",
            Self::Draining => "Node is stopping",
            Self::NotRunnable { .. } => "Function cannot run",
            Self::Run { error, .. } => match error {
                RunError::Failed { .. } => "Function failed",
                RunError::TimedOut { .. } => "Function timed out",
                RunError::CpuTimeUsed { .. } => "Function used its processor time",
                RunError::OutOfMemory { .. } => "Function ran out of memory",
                RunError::NodeOutOfMemory { .. } => "No memory for functions",
                RunError::StackOverflow { .. } => "Function overflowed its stack",
                RunError::Trapped { .. } => "Function trapped",
                RunError::NeverSettles => "Function never settles",
                RunError::ReplyTooLarge { .. } => "Reply too large",
                RunError::InvalidReply { .. } => "Reply cannot be sent",
                RunError::NoCapacity { .. } => "No isolate free",
                RunError::Internal(_) => "Internal error",
            },
            Self::Workflow { .. } => "Workflow faulted",
            Self::Commit { error: CommitError::DiskFull { .. }, .. }
            | Self::NotStored { error: CommitError::DiskFull { .. }, .. } => "Disk full",
            Self::Commit { .. } => "Commit failed",
            Self::NotStored { .. } => "Not accepted",
        }
    }

    /// The message and, where it is known, the user's own place in the code.
    pub fn detail(&self) -> String {
        let location = match self {
            Self::Run {
                error: RunError::Failed { location, .. } | RunError::Trapped { location, .. },
                ..
            } => location.as_deref(),
            _ => None,
        };
        match location {
            Some(location) => format!("{self} at {location}"),
            None => self.to_string(),
        }
    }

    /// The stack for the log, if there is one.
    pub fn stack(&self) -> Option<&str> {
        match self {
            Self::Run {
                error: RunError::Failed { stack, .. } | RunError::Trapped { stack, .. }, ..
            } => stack.as_deref(),
            _ => None,
        }
    }

    /// The outcome's label in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Run { error: RunError::TimedOut { .. }, .. } | Self::QueueTimeout { .. } => "timeout",
            Self::Run { error: RunError::CpuTimeUsed { .. }, .. } => "cpu_time",
            Self::Run { error: RunError::OutOfMemory { .. }, .. } => "out_of_memory",
            Self::Run { error: RunError::StackOverflow { .. }, .. } => "stack_overflow",
            Self::Run { error: RunError::Trapped { .. }, .. } => "trap",
            Self::Commit { .. } | Self::NotStored { .. } => "commit",
            Self::Cancelled { .. } => "cancelled",
            Self::QueueFull { .. }
            | Self::DroppedFromQueue { .. }
            | Self::NoIsolate { .. }
            | Self::NoMemory { .. }
            | Self::NoGuestMemory { .. }
            | Self::OverBudget { .. }
            | Self::Run { error: RunError::NoCapacity { .. } | RunError::NodeOutOfMemory { .. }, .. } => {
                "rejected"
            }
            _ => "error",
        }
    }
}

fn near_names(near: &[String]) -> String {
    match near {
        [] => "; `edgefaas list` shows those there are".to_owned(),
        names => format!(
            "; did you mean {}?",
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" or ")
        ),
    }
}
