//! The entry node: invocations that run elsewhere.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_cluster::calls::{Answer, CallError, Calls, MayHaveRun};
use edgefaas_isolates::{Reply, RunError};

use super::envelope::{self, Repeat};
use super::outcome;
use super::{NoNode, NodeFailure, Placement, Placer, RemoteNode};
use crate::invocation::{Invocation, InvocationError, Timing};
use crate::registry::{Code, LiveFunction};
use crate::trace::TraceSpan;

/// Maximum number of nodes that are tried for one invocation.
const MAX_TRIED: usize = 8;

/// The other nodes, as the invoker sees them.
pub struct Elsewhere {
    /// Decides where invocations run.
    pub placer: Arc<dyn Placer>,
    /// Calls to other members.
    pub calls: Calls,
}

/// The end of an invocation that was placed on another node.
pub(crate) enum Ended {
    /// It ran there, or may have run there.
    There {
        /// The reply or the error.
        result: Result<Reply, InvocationError>,
        /// Times of the invocation, as its caller sees them.
        timing: Timing,
        /// The name of the node.
        node: Arc<str>,
        /// Spans that the node has recorded.
        spans: Vec<TraceSpan>,
    },
    /// No other node has started it, and it is placed on this one.
    Here,
    /// No node has started it.
    Nowhere(InvocationError),
}

impl Elsewhere {
    /// The place of an invocation; `None` for this node.
    ///
    /// # Errors
    /// No node may run it.
    pub(crate) fn place(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
        tried: &[NodeFailure],
    ) -> Result<Option<RemoteNode>, NoNode> {
        match self.placer.place(function, invocation, tried) {
            Placement::Here if function.code == Code::Elsewhere => Err(NoNode::NotHere),
            Placement::Here => Ok(None),
            Placement::On(node) => Ok(Some(node)),
            Placement::Refused(reason) => Err(reason),
        }
    }

    /// Runs an invocation on `node`, or on other nodes as long as none has started it. Ends at `deadline`. Dropping the
    /// future cancels the invocation, unless it is repeated: then it may go on.
    pub(crate) async fn call(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
        mut node: RemoteNode,
        repeat: Repeat,
        deadline: Instant,
        arrival: Arrival,
    ) -> Ended {
        let head = envelope::head(function, invocation, repeat, self.placer.this_node().as_deref());
        let mut tried = Vec::new();
        loop {
            let sent = Instant::now();
            let (head, body) = (head.clone(), invocation.event.body.clone());
            let placed = self.placer.begin(function, node.id);
            let error = match self.calls.call(node.id, head, body, deadline.into()).await {
                Ok(answer) if answer.head.is_refused => match refused(function, &node, answer) {
                    Refusal::Final(error) => return Ended::Nowhere(error),
                    Refusal::OfNode(error) => {
                        placed.refused(self.placer.now_ms());
                        error
                    }
                },
                Ok(answer) => {
                    placed.accepted();
                    return ended(function, invocation, node, answer, (sent, arrival));
                }
                Err(CallError::MayHaveRun(error)) => {
                    let result = Err(lost(function, &node, error));
                    let timing =
                        Timing { queue: sent - arrival.at, execution: sent.elapsed(), ..Timing::default() };
                    return Ended::There { result, timing, node: node.name, spans: Vec::new() };
                }
                Err(CallError::NotStarted(error)) => {
                    tracing::debug!(function = &*function.name, node = &*node.name, %error, "placed elsewhere");
                    Refused::Call(error)
                }
            };
            let last = match error {
                Refused::Call(error) => {
                    tried.push(NodeFailure { node, error });
                    None
                }
                Refused::Invocation(error) => {
                    let not_started = edgefaas_cluster::calls::NotStarted::Refused;
                    tried.push(NodeFailure { node, error: not_started });
                    Some(error)
                }
            };
            let all_tried = |tried: Vec<NodeFailure>| {
                let (function, reason) = (function.name.to_string(), NoNode::AllTried { failures: tried });
                Ended::Nowhere(last.clone().unwrap_or(InvocationError::NoNode { function, reason }))
            };
            if tried.len() >= MAX_TRIED || Instant::now() >= deadline {
                return all_tried(tried);
            }
            match self.place(function, invocation, &tried) {
                Ok(None) => return Ended::Here,
                Ok(Some(next)) if tried.iter().all(|failure| failure.node != next) => node = next,
                Ok(Some(_)) | Err(_) => return all_tried(tried),
            }
        }
    }
}

/// The arrival of an invocation, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub at: Instant,
    pub unix_us: u64,
}

/// A node that did not start an invocation.
enum Refused {
    /// The call did not reach it.
    Call(edgefaas_cluster::calls::NotStarted),
    /// It answered with this error.
    Invocation(InvocationError),
}

enum Refusal {
    /// No node would start it.
    Final(InvocationError),
    /// Another node may start it.
    OfNode(Refused),
}

fn refused(function: &LiveFunction, node: &RemoteNode, answer: Answer) -> Refusal {
    let error = match outcome::decode(answer) {
        Ok((Err(error), _)) => error,
        Ok((Ok(_), _)) | Err(_) => lost(function, node, MayHaveRun::GivenUp),
    };
    match error {
        InvocationError::PayloadTooLarge { .. } | InvocationError::TooDeep { .. } => Refusal::Final(error),
        error => Refusal::OfNode(Refused::Invocation(error)),
    }
}

fn ended(
    function: &LiveFunction,
    invocation: &Invocation,
    node: RemoteNode,
    mut answer: Answer,
    (sent, arrival): (Instant, Arrival),
) -> Ended {
    let taken = sent.elapsed();
    let spans = std::mem::take(&mut answer.head.spans);
    let (result, there) = match outcome::decode(answer) {
        Ok(decoded) => decoded,
        Err(_) => (Err(lost(function, &node, MayHaveRun::GivenUp)), Timing::default()),
    };
    // The way there and back counts as waiting.
    let on_the_way = taken.saturating_sub(there.queue + there.start + there.execution);
    let timing = Timing { queue: (sent - arrival.at) + on_the_way + there.queue, ..there };
    let spans = match invocation.trace_parent.as_deref() {
        Some(trace_parent) if !spans.is_empty() => {
            let arrived = (sent - arrival.at) + on_the_way / 2;
            let arrived_unix_us = arrival.unix_us + arrived.as_micros() as u64;
            outcome::decode_spans(spans, trace_parent, &node.name, arrived_unix_us)
        }
        _ => Vec::new(),
    };
    Ended::There { result, timing, node: node.name, spans }
}

/// The error of an invocation that may have run. A passed deadline is shown as if the invocation had been here.
fn lost(function: &LiveFunction, node: &RemoteNode, error: MayHaveRun) -> InvocationError {
    let name = function.name.to_string();
    let limit = function.spec.limits.timeout;
    match error {
        MayHaveRun::TimedOut { started: true } => {
            InvocationError::Run { function: name, error: RunError::TimedOut { limit } }
        }
        MayHaveRun::TimedOut { started: false } => InvocationError::QueueTimeout { function: name, limit },
        error => InvocationError::NodeLost { function: name, node: node.name.clone(), error },
    }
}
