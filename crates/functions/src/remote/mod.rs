//! Invocations on other nodes, and invocations of other nodes here.
//!
//! ```text
//! entry node                                      executing node
//!   Invoker::admit -> Placer: a node
//!   entry: envelope ---- cluster::calls ------->   Executor: checks, Invoker::admit (never placed again)
//!          outcome  <---------------------------   run, commit, outcome
//! ```
//!
//! [`Placer`] decides where an invocation runs. [`envelope`] and [`outcome`] are the forms of invocations and outcomes on
//! the network. A durable invocation may be repeated by its entry node: [`remembered`] keeps outcomes of them, so that a
//! repetition has no second effect.

mod entry;
mod envelope;
mod error_message;
mod executor;
mod outcome;
mod placer;
mod remembered;
mod shares;
#[cfg(test)]
mod tests;

pub use entry::Elsewhere;
pub(crate) use entry::{Arrival, Ended};
pub(crate) use envelope::Repeat;
pub use error_message::{RemoteError, RemoteErrorKind};
pub use executor::{Executor, ExecutorParts, RemoveCredentials};
pub use placer::{NoNode, NodeFailure, Placement, Placer, RemoteNode, Share, ThisNode};
pub use remembered::{RememberLimits, Remembered};

/// Maximum number of nodes that an invocation passes: the executing node does not place it again.
pub const MAX_HOPS: u32 = 1;
