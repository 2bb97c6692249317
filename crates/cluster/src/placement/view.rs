//! What a node knows about its workers at the time of a decision, and what it is asked for.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::refusals::Refusals;
use super::workers::{WorkerIndex, WorkerSet, Workers};
use crate::calls::CallLoad;

/// Can a worker be given work?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Health {
    /// It has an open channel, or is this node, and takes work.
    Up,
    /// It has an open channel and answers, but finishes its work before a stop.
    Draining,
    /// It has an open channel and reports that it cannot run functions.
    Failing,
    /// It has no open channel.
    #[default]
    Away,
}

/// Load of one worker, from its last heartbeat and from the counts of this node. Times are in milliseconds of the
/// monotonic clock of `now_ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Can it be given work?
    pub health: Health,
    /// Function memory in bytes that is not used.
    pub memory_free_bytes: u64,
    /// All function memory in bytes.
    pub memory_total_bytes: u64,
    /// Isolates that it can start now.
    pub permits_free: u32,
    /// Isolates that it can run at the same time.
    pub permits_total: u32,
    /// Running invocations, by its last heartbeat.
    pub running: u32,
    /// Queued invocations, by its last heartbeat.
    pub queued: u32,
    /// Invocations that this node has in flight there.
    pub in_flight: u32,
    /// Processor pressure in permille.
    pub pressure_permille: u16,
    /// Round trip in microseconds; 0 for this node.
    pub rtt_us: u32,
    /// Until this time it gets no work, since it refused some.
    pub back_off_until_ms: u64,
}

impl Load {
    /// Running and queued invocations. A heartbeat may be older than calls that this node has sent since.
    pub(crate) fn invocations(&self) -> u32 {
        self.running.saturating_add(self.queued).max(self.in_flight)
    }

    /// True if the worker cannot start one more invocation that needs this memory.
    pub(crate) fn is_full(&self, memory_bytes: u64) -> bool {
        self.permits_free == 0 || self.memory_free_bytes < memory_bytes
    }

    /// Used function memory in permille; all of it if nothing is known.
    pub(crate) fn memory_used_permille(&self) -> u32 {
        let used = self.memory_total_bytes.saturating_sub(self.memory_free_bytes);
        match self.memory_total_bytes {
            0 => 1_000,
            total => (u128::from(used) * 1_000 / u128::from(total)) as u32,
        }
    }

    /// Use of the scarcest resource in permille: invocations per permit, processor, memory. It exceeds 1,000 when
    /// invocations wait. No resource makes up for another, so there are no weights to choose.
    pub fn permille(&self) -> u32 {
        let invocations = u64::from(self.invocations()) * 1_000;
        let busy = invocations.checked_div(u64::from(self.permits_total)).unwrap_or(invocations.max(1_000));
        (busy.min(u64::from(u32::MAX)) as u32)
            .max(u32::from(self.pressure_permille))
            .max(self.memory_used_permille())
    }
}

/// A worker of which nothing is known.
const AWAY: Load = Load {
    health: Health::Away,
    memory_free_bytes: 0,
    memory_total_bytes: 0,
    permits_free: 0,
    permits_total: 0,
    running: 0,
    queued: 0,
    in_flight: 0,
    pressure_permille: 0,
    rtt_us: 0,
    back_off_until_ms: 0,
};

/// The state of all workers. It changes with each heartbeat; a compiled policy does not.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Loads in the order of [`Workers`]. A worker without one is away.
    pub loads: Vec<Load>,
    /// The calls of this node to each worker, in the order of [`Workers`]; they replace `in_flight` and `back_off_until_ms` of
    /// its load. May be shorter.
    pub calls: Vec<Option<CallLoad>>,
    /// For each function of [`Compiled::affinity_functions`](super::Compiled::affinity_functions), in that order: the
    /// workers that report that they run it.
    pub running: Vec<WorkerSet>,
    /// For the same functions, in the order of [`Workers`]: invocations that this node knows of by itself. May be shorter.
    pub counted: Vec<Vec<Arc<AtomicU32>>>,
}

impl View {
    pub(crate) fn load(&self, worker: WorkerIndex) -> Load {
        let index = usize::from(worker);
        let load = self.loads.get(index).copied().unwrap_or(AWAY);
        match self.calls.get(index) {
            Some(Some(calls)) => Load {
                in_flight: u32::try_from(calls.in_flight()).unwrap_or(u32::MAX),
                back_off_until_ms: calls.back_off_until_ms(),
                ..load
            },
            _ => load,
        }
    }

    /// Round trip in microseconds.
    pub(crate) fn rtt_us(&self, worker: WorkerIndex) -> u32 {
        self.loads.get(usize::from(worker)).map_or(AWAY.rtt_us, |load| load.rtt_us)
    }

    /// The workers that run a function of [`Compiled::affinity_functions`](super::Compiled::affinity_functions).
    pub(crate) fn runs(&self, function: u16) -> WorkerSet {
        let function = usize::from(function);
        let mut workers = self.running.get(function).copied().unwrap_or_default();
        for (index, count) in self.counted.get(function).into_iter().flatten().enumerate() {
            if count.load(Relaxed) > 0 {
                workers.insert(index as WorkerIndex);
            }
        }
        workers
    }
}

/// A function as policies see it. The caller keeps one per function, and makes it anew when the compiled policy, the
/// members, or the places of its code and objects change.
#[derive(Debug, Clone, Default)]
pub struct FunctionPlacement {
    /// The position of the tag in the compiled policy; `None`: no policy applies.
    pub(crate) tag: Option<u16>,
    /// Hash of the function's name.
    pub(crate) hash: u64,
    /// Workers with the function's code.
    pub(crate) code: WorkerSet,
    /// Workers with a revision of its app that was deployed to them alone; for explanations.
    pub(crate) alone: WorkerSet,
    /// Workers that hold the objects that the function may use.
    pub(crate) data: WorkerSet,
    /// Workers in the zones of those.
    pub(crate) near_data: WorkerSet,
    /// Workers that have refused calls of the function.
    pub(crate) refusals: Arc<Refusals>,
}

impl FunctionPlacement {
    /// True if a policy applies. Otherwise [`place`](super::place) answers "here" where this node has the code.
    pub fn has_policy(&self) -> bool {
        self.tag.is_some()
    }

    /// Sets the workers that have a revision of the app of their own, for explanations.
    #[must_use]
    pub fn with_alone(self, alone: WorkerSet) -> Self {
        Self { alone, ..self }
    }

    /// Sets the workers that hold the objects that the function may use.
    #[must_use]
    pub fn with_data(mut self, workers: &Workers, data: WorkerSet) -> Self {
        let zones: HashSet<&str> =
            data.iter().filter_map(|index| workers.get(index)?.zone.as_deref()).collect();
        self.data = data;
        self.near_data =
            workers.select(|worker| worker.zone.as_deref().is_some_and(|zone| zones.contains(zone)));
        self
    }
}

/// One call that needs a worker.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The function.
    pub function: &'a FunctionPlacement,
    /// Memory in bytes that one invocation needs to start.
    pub memory_bytes: u64,
    /// Hash of the key of `order_by`, if the call has one.
    pub key: Option<u64>,
    /// Workers that have refused this call already.
    pub refused_by: WorkerSet,
}
