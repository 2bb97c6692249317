//! What a node decides with: the policy against its members and functions, ready for decisions without a lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::compiled::Compiled;
use super::decision::{Decision, place};
use super::explain::{Explanation, explain};
use super::policy::Policy;
use super::refusals::Refusals;
use super::view::{FunctionPlacement, Load, Request, View};
use super::workers::{WorkerIndex, WorkerSet, Workers};
use crate::calls::CallLoad;

/// A function of the node.
#[derive(Debug, Clone)]
pub struct FunctionFacts {
    /// Its name.
    pub name: Arc<str>,
    /// The tag of its manifest.
    pub tag: Option<String>,
    /// Workers with its code.
    pub code: WorkerSet,
    /// Workers with a revision of its app that was deployed to them alone (`--this-node`); explanations name them.
    pub alone: WorkerSet,
    /// Workers that hold the objects that it may use.
    pub data: WorkerSet,
    /// Number of its invocations that run on this node; kept by its owner.
    pub running: Arc<AtomicU32>,
}

/// What changes with each heartbeat.
#[derive(Debug, Clone)]
pub struct Loads {
    /// Loads in the order of [`Workers`].
    pub loads: Vec<Load>,
    /// For each of [`Table::affinity_functions`]: the workers that report that they run it.
    pub running: Vec<WorkerSet>,
}

/// A call that needs a worker.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The name of the function. One that the table does not know runs where the node is.
    pub function: &'a str,
    /// Memory in bytes that the invocation needs to start.
    pub memory_bytes: u64,
    /// Hash of the key of `order_by`, if the call has one.
    pub key: Option<u64>,
}

/// Decides for the calls of a node. Immutable but for counts; [`with_loads`](Self::with_loads) and [`new`](Self::new) give the
/// next one, so that a node swaps it as a whole.
#[derive(Debug, Clone)]
pub struct Table {
    fixed: Arc<Fixed>,
    view: View,
}

/// What does not change with a heartbeat.
#[derive(Debug)]
struct Fixed {
    compiled: Compiled,
    index: HashMap<u64, WorkerIndex>,
    functions: HashMap<Arc<str>, Function>,
}

#[derive(Debug)]
struct Function {
    placement: FunctionPlacement,
    /// Its invocations on each worker that this node knows of by itself; empty if no `affinity` names it.
    counted: Vec<Arc<AtomicU32>>,
}

impl Table {
    /// Compiles a policy against the members. `facts` gives the functions, for the workers in their order; `calls` the calls to
    /// a worker. Counts of calls in flight are taken over from `before`, as far as its members and functions are the same.
    pub fn new<F: Iterator<Item = FunctionFacts>>(
        policy: &Policy,
        workers: Arc<Workers>,
        facts: impl IntoIterator<Item = FunctionFacts, IntoIter = F>,
        calls: impl Fn(u64) -> Option<CallLoad>,
        before: Option<&Self>,
    ) -> Self {
        let compiled = Compiled::new(policy, workers);
        let members = compiled.workers().as_slice();
        let index: HashMap<u64, WorkerIndex> = members
            .iter()
            .enumerate()
            .map(|(index, worker)| (worker.node_id, index as WorkerIndex))
            .collect();
        let local = usize::from(compiled.workers().local());
        let mut counted: Vec<Vec<Arc<AtomicU32>>> = vec![Vec::new(); compiled.affinity_functions().len()];
        let functions = facts.into_iter().map(|facts| {
            let placement = compiled
                .function(&facts.name, facts.tag.as_deref(), facts.code)
                .with_alone(facts.alone)
                .with_data(compiled.workers(), facts.data);
            let affinity = compiled.affinity_functions().iter().position(|name| **name == *facts.name);
            let counts = affinity.map(|affinity| {
                let count = |(at, worker): (usize, &super::Worker)| match at == local {
                    true => facts.running.clone(),
                    false => before
                        .and_then(|before| before.count(&facts.name, worker.node_id))
                        .unwrap_or_default(),
                };
                let counts: Vec<_> = members.iter().enumerate().map(count).collect();
                if let Some(of_function) = counted.get_mut(affinity) {
                    of_function.clone_from(&counts);
                }
                counts
            });
            (facts.name, Function { placement, counted: counts.unwrap_or_default() })
        });
        let functions = functions.collect();
        let calls = members.iter().map(|worker| calls(worker.node_id)).collect();
        let view = View { calls, counted, ..View::default() };
        Self { fixed: Arc::new(Fixed { compiled, index, functions }), view }
    }

    /// The same with other loads.
    #[must_use]
    pub fn with_loads(&self, loads: Loads) -> Self {
        let Loads { loads, running } = loads;
        let View { calls, counted, .. } = &self.view;
        let view = View { loads, calls: calls.clone(), running, counted: counted.clone() };
        Self { fixed: self.fixed.clone(), view }
    }

    /// The members in their order.
    pub fn workers(&self) -> &Arc<Workers> {
        self.fixed.compiled.workers()
    }

    /// The functions that `affinity` names.
    pub fn affinity_functions(&self) -> &[String] {
        self.fixed.compiled.affinity_functions()
    }

    /// Decides where a call runs; `tried` are nodes that have not started it. See [`place`].
    pub fn place(
        &self,
        call: &Call<'_>,
        tried: impl IntoIterator<Item = u64>,
        now_ms: u64,
        random: u64,
    ) -> Decision {
        let Some(function) = self.fixed.functions.get(call.function) else { return Decision::Local };
        let refused_by =
            tried.into_iter().filter_map(|node_id| self.fixed.index.get(&node_id).copied()).collect();
        place(&self.fixed.compiled, &request(function, call, refused_by), &self.view, now_ms, random)
    }

    /// The decision of [`Self::place`] with its steps.
    pub fn explain(&self, call: &Call<'_>, now_ms: u64, random: u64) -> Explanation {
        match self.fixed.functions.get(call.function) {
            Some(function) => {
                let request = request(function, call, WorkerSet::default());
                explain(&self.fixed.compiled, &request, &self.view, now_ms, random)
            }
            None => Explanation { decision: Decision::Local, steps: Vec::new() },
        }
    }

    /// A call of a function begins at another node.
    pub fn begin(&self, function: &str, node_id: u64) -> PlacedCall {
        let Some(&worker) = self.fixed.index.get(&node_id) else { return PlacedCall::default() };
        let Some(function) = self.fixed.functions.get(function) else { return PlacedCall::default() };
        let count = function.counted.get(usize::from(worker)).cloned();
        if let Some(count) = &count {
            count.fetch_add(1, Relaxed);
        }
        let (refusals, workers) = (function.placement.refusals.clone(), self.workers().clone());
        PlacedCall { count, refusals: Some((refusals, workers, worker)) }
    }

    fn count(&self, function: &str, node_id: u64) -> Option<Arc<AtomicU32>> {
        let worker = usize::from(*self.fixed.index.get(&node_id)?);
        let function = self.fixed.functions.get(function)?;
        // That of this node is not counted here.
        let is_other = worker != usize::from(self.workers().local());
        function.counted.get(worker).filter(|_| is_other).cloned()
    }
}

fn request<'a>(function: &'a Function, call: &Call<'_>, refused_by: WorkerSet) -> Request<'a> {
    let Call { memory_bytes, key, .. } = *call;
    Request { function: &function.placement, memory_bytes, key, refused_by }
}

/// A call in flight at another node. It counts there for `affinity` until it is dropped.
#[derive(Debug, Default)]
pub struct PlacedCall {
    count: Option<Arc<AtomicU32>>,
    refusals: Option<(Arc<Refusals>, Arc<Workers>, WorkerIndex)>,
}

impl PlacedCall {
    /// The node has refused it.
    pub fn refused(self, now_ms: u64) {
        if let Some((refusals, workers, worker)) = &self.refusals {
            refusals.refused(workers, *worker, now_ms);
        }
    }

    /// The node has run it, or may have.
    pub fn accepted(self) {
        if let Some((refusals, _, worker)) = &self.refusals {
            refusals.accepted(*worker);
        }
    }
}

impl Drop for PlacedCall {
    fn drop(&mut self) {
        if let Some(count) = &self.count {
            count.fetch_sub(1, Relaxed);
        }
    }
}
