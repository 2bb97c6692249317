//! Invocations that are placed on another node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_cluster::calls::NotStarted;
use edgefaas_isolates::Reply;

use super::sent_spans::OpenSpan;
use super::unfinished::Unfinished;
use super::{Attempt, Effects, Entered, Invoker, Place, PlaceInQueue};
use crate::invocation::{Invocation, InvocationError, Outcome};
use crate::registry::{Code, LiveFunction};
use crate::remote::{Arrival, Elsewhere, Ended, NoNode, NodeFailure, RemoteNode, Repeat, ThisNode};
use crate::trace::TraceSpan;
use crate::trace::conventions::{self, Answered};

/// Time for the way to another node and back, besides the limits of the function.
const WAY: Duration = Duration::from_secs(1);

/// An invocation that is placed on another node.
struct Placed {
    invocation: Invocation,
    function: Arc<LiveFunction>,
    node: RemoteNode,
    since: Instant,
}

impl Invoker {
    /// Sets the other nodes. Only the first call has an effect; before it, all invocations run on this node.
    pub fn set_elsewhere(&self, elsewhere: Elsewhere) {
        let _ = self.elsewhere.set(elsewhere);
    }

    /// This node, as a member of its cluster. `None` in no cluster.
    pub fn this_node(&self) -> Option<Arc<ThisNode>> {
        self.elsewhere.get()?.placer.this_node()
    }

    /// The name of the node that has run an invocation: `node` of its outcome, else this one. `None` if no node could run it,
    /// and in no cluster.
    pub fn ran_on(&self, node: Option<Arc<str>>, error: Option<&InvocationError>) -> Option<Arc<str>> {
        match error {
            Some(InvocationError::NoNode { .. }) => None,
            _ => node.or_else(|| self.this_node().map(|this| this.name.clone())),
        }
    }

    /// The place of an invocation that has just arrived: a permit or a slot in the queue, or another node.
    pub(super) fn place(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
    ) -> Result<Place, InvocationError> {
        if function.is_placed()
            && let Some(node) = self.node_of(function, invocation, &[])?
        {
            return Ok(Place::Elsewhere(node));
        }
        if let Ok(ticket) = function.admission.enter() {
            return Ok(Place::Here(ticket));
        }
        // The queue of this node is full. The policy may allow another one.
        if function.is_placed()
            && let Some(me) = self.this_node()
        {
            let node = RemoteNode { id: me.id, name: me.name.clone() };
            let tried = [NodeFailure { node, error: NotStarted::Refused }];
            if let Ok(Some(node)) = self.node_of(function, invocation, &tried) {
                return Ok(Place::Elsewhere(node));
            }
        }
        let capacity = function.admission.capacity();
        Err(InvocationError::QueueFull { function: function.name.to_string(), capacity })
    }

    /// The node of an invocation that the nodes of `tried` have refused; `None` for this one.
    pub(super) fn node_of(
        &self,
        function: &LiveFunction,
        invocation: &Invocation,
        tried: &[NodeFailure],
    ) -> Result<Option<RemoteNode>, InvocationError> {
        // A node that got the invocation from another one does not place it again.
        let elsewhere = self.elsewhere.get().filter(|_| invocation.placed_by.is_none());
        let placed = match elsewhere {
            Some(elsewhere) => elsewhere.place(function, invocation, tried),
            None if function.code == Code::Elsewhere => Err(NoNode::NotHere),
            None => Ok(None),
        };
        placed.map_err(|reason| InvocationError::NoNode { function: function.name.to_string(), reason })
    }

    /// Runs an invocation on another node, or here if no other node starts it and the placement allows that.
    pub(super) async fn run_elsewhere(self: &Arc<Self>, entered: Entered, node: RemoteNode) -> Outcome {
        let Entered { mut invocation, function, since, time_limit, event_bytes, _in_flight } = entered;
        let id = invocation.id.clone();
        let unix_us = self.clock.now_unix_us();
        let mut traced = self.begin_trace(&mut invocation);
        let call = OpenSpan::of_remote_call(self, &function, &mut invocation, &node.name);
        if let (Some(call), Some((traced, _))) = (&call, &mut traced) {
            traced.parent = call.id().map(str::to_owned);
        }
        let placed = Placed { invocation, function: function.clone(), node, since };
        let mut unfinished = Unfinished::new(self, &function, id, traced, since);
        let deadline = since + time_limit;
        let ended = self.call(&placed, Repeat::Never, deadline, unix_us).await;
        match ended {
            Ended::There { result, timing, node, spans } => {
                unfinished.progress.timing = timing;
                let (id, traced, timing) = unfinished.finish();
                let outcome = self.ended(&function, Outcome { id, result, timing, node: Some(node) });
                match spans.is_empty() {
                    true => self.end_trace(traced, &function, &outcome, Duration::ZERO),
                    false => self.record_spans_of_call(traced, spans, &outcome),
                }
                if let Some(call) = call {
                    call.ended(outcome.result.as_ref().err());
                }
                outcome
            }
            Ended::Nowhere(error) => {
                let (id, traced, timing) = unfinished.finish();
                function.metrics.record_rejected();
                let outcome = Outcome { id, result: Err(error), timing, node: None };
                self.end_trace(traced, &function, &outcome, Duration::ZERO);
                if let Some(call) = call {
                    call.ended(outcome.result.as_ref().err());
                }
                outcome
            }
            Ended::Here => {
                let (id, _, timing) = unfinished.finish();
                let capacity = function.admission.capacity();
                let Ok(ticket) = function.admission.enter() else {
                    function.metrics.record_rejected();
                    let error =
                        InvocationError::QueueFull { function: function.name.to_string(), capacity };
                    return Outcome { id, result: Err(error), timing, node: None };
                };
                let invocation = placed.invocation;
                let here = Entered { invocation, function, since, time_limit, event_bytes, _in_flight };
                Box::pin(self.run(here.here(ticket))).await
            }
        }
    }

    /// Records the spans that another node has recorded for an invocation. Of these the invocation's own has its attributes here:
    /// this node knows its event.
    fn record_spans_of_call(
        &self,
        traced: Option<(Invocation, u64)>,
        spans: Vec<TraceSpan>,
        outcome: &Outcome,
    ) {
        for mut span in spans {
            if let Some((invocation, _)) = traced.as_ref().filter(|(traced, _)| traced.id == span.id)
                && invocation.trace_parent.as_deref().is_some_and(|parent| self.traces.exports(parent))
            {
                span.attributes = conventions::of_invocation(invocation, outcome, Answered::ByOutcome);
            }
            self.traces.add(span, |text| text);
        }
    }

    /// Attempts a durable invocation on another node, or here. Its effects are committed where it runs.
    pub(super) async fn attempt_elsewhere(self: &Arc<Self>, entered: Entered, node: RemoteNode) -> Attempt {
        let Entered { invocation, function, since, time_limit, event_bytes, _in_flight } = entered;
        let (id, unix_us) = (invocation.id.clone(), self.clock.now_unix_us());
        let placed = Placed { invocation, function: function.clone(), node, since };
        // It may wait as long as it may run.
        let deadline = since + 2 * time_limit + WAY;
        match self.call(&placed, Repeat::UntilDone, deadline, unix_us).await {
            Ended::There { result, timing, node, spans } => {
                // The owner of the attempt records its span.
                let of_others = spans.into_iter().filter(|span| span.id != id);
                of_others.for_each(|span| self.traces.add(span, |text| text));
                let nothing = |reply: Reply| (reply, Effects::of(0, &self.effect_bytes));
                Attempt { result: result.map(nothing), timing, node: Some(node) }
            }
            Ended::Nowhere(error) => Attempt { result: Err(error), timing: Default::default(), node: None },
            Ended::Here => {
                let invocation = placed.invocation;
                let ticket = self.enter_durable(&function, &invocation, PlaceInQueue::OfChain);
                let here = Entered { invocation, function, since, time_limit, event_bytes, _in_flight };
                Box::pin(self.attempt(here.here(ticket))).await
            }
        }
    }

    async fn call(&self, placed: &Placed, repeat: Repeat, deadline: Instant, unix_us: u64) -> Ended {
        let Placed { invocation, function, node, since } = placed;
        let arrival = Arrival { at: *since, unix_us };
        match self.elsewhere.get() {
            Some(elsewhere) => {
                elsewhere.call(function, invocation, node.clone(), repeat, deadline, arrival).await
            }
            None => Ended::Here,
        }
    }
}
