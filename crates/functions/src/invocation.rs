//! An invocation, its outcome and its errors.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_cluster::calls::MayHaveRun;
use edgefaas_isolates::{Event, Reply, RunError};
use edgefaas_state::store::CommitError;
use edgefaas_workflow::WorkflowError;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::registry::ProgramError;
use crate::remote::{NoNode, RemoteError};

/// Maximum number of functions that call or trigger one another in a chain.
pub const MAX_DEPTH: u8 = 16;

/// A request to run a function.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// A ULID, which sorts by time.
    pub id: String,
    /// The name of the function.
    pub function: String,
    /// The origin of the invocation.
    pub principal: Principal,
    /// The id of the invocation that called this one.
    pub parent: Option<String>,
    /// W3C trace context (`traceparent`), if the caller sent one or the trace is recorded.
    pub trace_parent: Option<String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Number of functions that called or triggered one another before this one.
    pub depth: u8,
    /// The workflow instance that this is a step of, directly or through other functions.
    pub lineage: Option<Lineage>,
    /// The member that placed the invocation on this node. `None` if its event arrived here.
    pub placed_by: Option<u64>,
    /// Hash of the key of `order_by`, if its trigger has one. Calls with the same key go to the same node by a `sticky` policy.
    pub order_key: Option<u64>,
    /// The event to handle.
    pub event: Event,
}

impl Invocation {
    /// The first attempt of an invocation with a new id, without a parent.
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
            placed_by: None,
            order_key: None,
            event,
        }
    }
}

/// The workflow instances that an invocation descends from. Functions pass it on unchanged to the functions and workflows that
/// they call, also to those on other nodes. Only the coordinator reads it.
#[derive(Clone)]
pub struct Lineage {
    root: Ulid,
    ancestor: Option<Arc<dyn Any + Send + Sync>>,
}

impl Lineage {
    /// The lineage of this ancestor, in the tree with the root instance `root`.
    pub fn new<T: Any + Send + Sync>(root: Ulid, ancestor: Arc<T>) -> Self {
        Self { root, ancestor: Some(ancestor) }
    }

    /// The lineage of an ancestor on another node.
    pub fn elsewhere(root: Ulid) -> Self {
        Self { root, ancestor: None }
    }

    /// The id of the root instance.
    pub fn root(&self) -> Ulid {
        self.root
    }

    /// Time since the root instance started, by the clocks of its node and of this one.
    pub fn age(&self, now_unix_ms: u64) -> Duration {
        Duration::from_millis(now_unix_ms.saturating_sub(self.root.timestamp_ms()))
    }

    /// The ancestor, if it is on this node and has this type.
    pub fn ancestor<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.ancestor.clone()?.downcast().ok()
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lineage({})", self.root)
    }
}

/// The origin of an invocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Principal {
    /// A user of the control API (admin token).
    Operator,
    /// A client of the HTTP gateway.
    Http,
    /// An MQTT client.
    Mqtt {
        /// The client id.
        client_id: String,
    },
    /// Another function.
    Function {
        /// Its name.
        name: String,
    },
    /// A cron trigger.
    Schedule,
    /// A change of an object.
    Object,
}

/// The outcome of an invocation.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The id of the invocation.
    pub id: String,
    /// The reply or the error.
    pub result: Result<Reply, InvocationError>,
    /// Times of the invocation.
    pub timing: Timing,
    /// The name of the node that ran it; `None` for this one.
    pub node: Option<Arc<str>>,
}

/// Times of an invocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Waiting in the queue, for objects, for the program, for memory and for an isolate.
    pub queue: Duration,
    /// Starting the isolate.
    pub start: Duration,
    /// Running the function.
    pub execution: Duration,
}

/// A budget of workflow instances is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// The root instance has the maximum number of live descendants.
    #[error(
        "root instance {root} has {max} live sub-workflows, the maximum (workflows.descendants); start fewer at a time"
    )]
    Descendants {
        /// The id of the root instance.
        root: Ulid,
        /// The limit.
        max: usize,
    },
    /// The root instance and its descendants would hold more bytes than they may.
    #[error(
        "root instance {root} and its sub-workflows may hold {max_bytes} bytes of data (workflows.root_memory), and this \
         needs more"
    )]
    RootBytes {
        /// The id of the root instance.
        root: Ulid,
        /// The limit.
        max_bytes: usize,
    },
    /// The node runs the maximum number of root instances, and the workflow has its share of them.
    #[error(
        "this node runs {max} workflow instances, the maximum (workflows.running), {own} of them of this workflow; \
         `edgefaas workflow list` shows them; try again later"
    )]
    Running {
        /// The limit.
        max: usize,
        /// Running instances of the workflow.
        own: u64,
    },
    /// All instances of the node together would hold more bytes than they may.
    #[error(
        "the workflow instances of this node hold {max_bytes} bytes (workflows.memory); try again later"
    )]
    NodeBytes {
        /// The limit.
        max_bytes: usize,
    },
}

/// Errors of invocations.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InvocationError {
    /// No function has this name.
    #[error("there is no function `{name}`{}", near_names(near))]
    UnknownFunction {
        /// The unknown name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// No workflow has this name.
    #[error("there is no workflow `{name}`{}", near_names(near))]
    UnknownWorkflow {
        /// The unknown name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The payload is over the function's limit.
    #[error("the payload for `{function}` has {actual_bytes} bytes; limits.payload is {limit_bytes}")]
    PayloadTooLarge {
        /// The function.
        function: String,
        /// The size of the payload, or a lower bound if the payload was not read to its end.
        actual_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The function's queue is full.
    #[error("the queue of `{function}` is full ({capacity} are waiting); try again later")]
    QueueFull {
        /// The function.
        function: String,
        /// The capacity of the queue.
        capacity: u32,
    },
    /// The invocation waited in a full queue and was dropped for a newer one.
    #[error("the queue of `{function}` is full and this invocation was the oldest in it")]
    DroppedFromQueue {
        /// The function.
        function: String,
    },
    /// An operator discarded the invocation before it ran to its end.
    #[error("an operator discarded this invocation of `{function}`")]
    Discarded {
        /// The function.
        function: String,
    },
    /// The time limit ended before the invocation could start.
    #[error("`{function}` did not start within {limit:?}")]
    QueueTimeout {
        /// The function.
        function: String,
        /// The function's limit.
        limit: Duration,
    },
    /// Objects that other members have did not arrive within the time limit, and the function waits for them
    /// (`recover = "before"`).
    #[error(
        "`{function}` did not start within {limit:?}: objects that it waits for have not come from other nodes; \
         `edgefaas nodes` shows from which"
    )]
    ObjectsMissing {
        /// The function.
        function: String,
        /// The function's limit.
        limit: Duration,
    },
    /// Too many functions call or trigger one another in a chain.
    #[error(
        "`{function}` is {depth} calls deep, at most {MAX_DEPTH} are allowed: \
         functions call or trigger one another in a loop"
    )]
    TooDeep {
        /// The function.
        function: String,
        /// The depth of the invocation.
        depth: u8,
    },
    /// No isolate is free for a nested call.
    #[error("no isolate is free for `{function}` (isolates.max = {max}); try again later")]
    NoIsolate {
        /// The function.
        function: String,
        /// The number of isolates of the node.
        max: u32,
    },
    /// The memory for events in flight is used up.
    #[error(
        "the events in flight take all {max_bytes} bytes that this node has for events; try again later"
    )]
    NoMemory {
        /// The size of that memory.
        max_bytes: usize,
    },
    /// No memory became free for an isolate in time.
    #[error(
        "no memory was free for `{function}` within {waited:?} (all functions together may have {max_bytes} bytes); try \
         again later"
    )]
    NoGuestMemory {
        /// The function.
        function: String,
        /// The time that it waited.
        waited: Duration,
        /// The budget of all functions.
        max_bytes: u64,
    },
    /// The caller stopped waiting before the invocation ended.
    #[error("the caller of `{function}` stopped waiting before the function answered")]
    Cancelled {
        /// The function.
        function: String,
    },
    /// The budget of workflow instances has no room for one more.
    #[error("`{workflow}` is not started: {error}")]
    OverBudget {
        /// The workflow.
        workflow: String,
        /// The budget.
        error: OverBudget,
    },
    /// The connection to the node that runs the invocation was lost, or the node gave it up. It may have run, and its changes
    /// may be committed.
    #[error("node `{node}` did not answer for `{function}`, which may have run there: {error}")]
    NodeLost {
        /// The function.
        function: String,
        /// The name of the node.
        node: Arc<str>,
        /// The cause.
        error: MayHaveRun,
    },
    /// No node can run the function now.
    #[error("no node can run `{function}` now: {reason}")]
    NoNode {
        /// The function.
        function: String,
        /// The cause.
        reason: NoNode,
    },
    /// The invocation failed on another node, with an error that this node knows only as text.
    #[error("{}", error.detail)]
    Remote {
        /// The function.
        function: String,
        /// The error.
        error: Box<RemoteError>,
    },
    /// The node is stopping.
    #[error("the node is stopping; try again on another or later")]
    Draining,
    /// The program of the function could not be prepared.
    #[error("`{function}` cannot run: {error}")]
    NotRunnable {
        /// The function.
        function: String,
        /// The cause.
        error: ProgramError,
    },
    /// The function ran and failed.
    #[error("{error}")]
    Run {
        /// The function.
        function: String,
        /// The cause.
        error: RunError,
    },
    /// A workflow ended with an error.
    #[error("{error}")]
    Workflow {
        /// The workflow.
        workflow: String,
        /// The error in the form of the workflow DSL.
        error: Box<WorkflowError>,
    },
    /// The function ran, but its effects could not be committed. None of them were applied.
    #[error("`{function}` ran but its changes could not be committed: {error}")]
    Commit {
        /// The function.
        function: String,
        /// The cause.
        error: CommitError,
    },
    /// A durable invocation could not be stored; the function has not run.
    #[error("the invocation of `{function}` is not accepted, and does not run: {error}")]
    NotStored {
        /// The function.
        function: String,
        /// The cause.
        error: CommitError,
    },
}

impl InvocationError {
    /// The HTTP status code.
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownFunction { .. } | Self::UnknownWorkflow { .. } => 404,
            Self::PayloadTooLarge { .. } => 413,
            Self::QueueFull { .. }
            | Self::DroppedFromQueue { .. }
            | Self::NoIsolate { .. }
            | Self::NoMemory { .. }
            | Self::OverBudget { .. } => 429,
            Self::QueueTimeout { .. } | Self::ObjectsMissing { .. } => 504,
            Self::NodeLost { .. } => 502,
            Self::NoNode { .. } => 503,
            Self::Remote { error, .. } => error.status,
            Self::Discarded { .. } => 410,
            // Only for the trace: the caller does not wait for a status.
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

    /// A short title, the same for all errors of one kind.
    pub fn title(&self) -> &'static str {
        match self {
            Self::UnknownFunction { .. } => "Unknown function",
            Self::UnknownWorkflow { .. } => "Unknown workflow",
            Self::PayloadTooLarge { .. } => "Payload too large",
            Self::QueueFull { .. } | Self::DroppedFromQueue { .. } => "Queue full",
            Self::NoIsolate { .. } => "No isolate free",
            Self::NoMemory { .. } => "No memory for events",
            Self::NoGuestMemory { .. } => "No memory for functions",
            Self::OverBudget { .. } => "Too many workflow instances",
            Self::QueueTimeout { .. } => "Timed out in the queue",
            Self::ObjectsMissing { .. } => "Objects are missing",
            Self::TooDeep { .. } => "Too many nested calls",
            Self::Cancelled { .. } => "Cancelled",
            Self::Discarded { .. } => "Discarded",
            Self::Draining => "Node is stopping",
            Self::NodeLost { .. } => "Node lost",
            Self::NoNode { .. } => "No node for the function",
            Self::Remote { error, .. } => error.kind.title(),
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

    /// The message and, if it is known, the position in the user's code.
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

    /// The stack trace, if there is one.
    pub fn stack(&self) -> Option<&str> {
        match self {
            Self::Run {
                error: RunError::Failed { stack, .. } | RunError::Trapped { stack, .. }, ..
            } => stack.as_deref(),
            _ => None,
        }
    }

    /// The label of the outcome in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Run { error: RunError::TimedOut { .. }, .. }
            | Self::QueueTimeout { .. }
            | Self::ObjectsMissing { .. } => "timeout",
            Self::Run { error: RunError::CpuTimeUsed { .. }, .. } => "cpu_time",
            Self::Run { error: RunError::OutOfMemory { .. }, .. } => "out_of_memory",
            Self::Run { error: RunError::StackOverflow { .. }, .. } => "stack_overflow",
            Self::Run { error: RunError::Trapped { .. }, .. } => "trap",
            Self::Commit { .. } | Self::NotStored { .. } => "commit",
            Self::NodeLost { .. } => "node_lost",
            Self::Remote { error, .. } => error.kind.label(),
            Self::Cancelled { .. } | Self::Discarded { .. } => "cancelled",
            Self::QueueFull { .. }
            | Self::DroppedFromQueue { .. }
            | Self::NoIsolate { .. }
            | Self::NoMemory { .. }
            | Self::NoGuestMemory { .. }
            | Self::OverBudget { .. }
            | Self::NoNode { .. }
            | Self::Run { error: RunError::NoCapacity { .. } | RunError::NodeOutOfMemory { .. }, .. } => {
                "rejected"
            }
            _ => "error",
        }
    }
}

fn near_names(near: &[String]) -> String {
    match near {
        [] => "; `edgefaas list` shows all".to_owned(),
        names => format!(
            "; did you mean {}?",
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" or ")
        ),
    }
}
