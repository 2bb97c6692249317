//! Calls in virtual time: entry nodes place them by a policy, from the loads that they have got with heartbeats.
//!
//! The cluster is a [`ClusterSimulation`]; the decisions are those of [`place`]. A worker has permits and a queue, and
//! enforces the share of each entry node.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::cluster::Agenda;
use super::{ClusterSimulation, Random, SimulatedReplica};
use crate::placement::shares::{EntryNodes, Relation, Zoned, share_bytes};
use crate::placement::{
    self, Compiled, Decision, FunctionPlacement, Health, Policy, Request, View, Worker, WorkerSet, Workers,
    place,
};
use crate::replication::NodeId;
use crate::status::{Load, Readiness};

/// The minimum between two updates of a node's view, and the interval of measuring its load, as on a node.
const UPDATE_US: u64 = 100_000;
const MEASURE_US: u64 = 1_000_000;
/// Nodes that are tried for one call, as on a node.
const MAX_TRIED: u32 = 8;
/// Interval of looking at the load of all workers.
const SAMPLE_US: u64 = 100_000;

/// The calls and the nodes that serve them.
#[derive(Debug, Clone)]
pub struct CallPlan {
    /// The policies.
    pub policy: Policy,
    /// The tag of the functions.
    pub tag: String,
    /// The number of functions; how often they are called follows Zipf's law.
    pub functions: usize,
    /// All calls per second.
    pub calls_per_second: f64,
    /// Exponent of Zipf's law for the entry nodes: 0 for equal ones.
    pub skew: f64,
    /// Mean time of a call; the times are distributed exponentially.
    pub service: Duration,
    /// Isolates of a node.
    pub permits: u32,
    /// Calls that wait on a node, at most.
    pub queue: usize,
    /// Function memory of a node.
    pub memory_bytes: u64,
    /// Memory of a call.
    pub call_bytes: u64,
    /// Nodes that report no load whatever they have.
    pub liars: BTreeSet<NodeId>,
    /// What entry nodes know of their shares.
    pub shares: KnownShares,
}

/// What an entry node knows of its shares of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownShares {
    /// It learns them by refusals only.
    ByRefusals,
    /// A worker on which it has used up its share is full for it.
    Computed,
}

/// What came of the calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallOutcome {
    /// Calls that have begun in the measured time.
    pub calls: u64,
    /// Calls that no node has run.
    pub refused: u64,
    /// Refusals of single nodes; the call went on to another one.
    pub refusals: u64,
    /// Calls that had to wait for a permit.
    pub waited: u64,
    /// Mean load of each node over time: running and waiting calls by permit.
    pub mean_loads: Vec<f64>,
    /// The highest load of a node at each moment of observation.
    pub peaks: Vec<f64>,
    /// Times from the arrival to the begin of the call, in microseconds, sorted.
    pub delays_us: Vec<u64>,
}

impl CallOutcome {
    /// The load of the node that had the highest one over the whole time, by the mean of all.
    pub fn max_by_mean(&self) -> f64 {
        let mean = self.mean_loads.iter().sum::<f64>() / self.mean_loads.len() as f64;
        self.mean_loads.iter().copied().fold(0.0, f64::max) / mean
    }

    /// Mean load of all nodes.
    pub fn mean(&self) -> f64 {
        self.mean_loads.iter().sum::<f64>() / self.mean_loads.len() as f64
    }

    /// The median of the highest loads of a moment.
    pub fn peak(&self) -> f64 {
        let mut peaks = self.peaks.clone();
        peaks.sort_unstable_by(f64::total_cmp);
        peaks.get(peaks.len() / 2).copied().unwrap_or_default()
    }

    /// The delay that this share of the calls does not exceed.
    pub fn delay(&self, share: f64) -> Duration {
        let at = (self.delays_us.len().saturating_sub(1) as f64 * share) as usize;
        Duration::from_micros(self.delays_us.get(at).copied().unwrap_or_default())
    }
}

/// Calls on a cluster.
pub struct CallSimulation<R: SimulatedReplica> {
    cluster: ClusterSimulation<R>,
    plan: CallPlan,
    random: Random,
    agenda: Agenda<Happening>,
    workers: Vec<WorkerState>,
    entries: Vec<Option<Box<Entry>>>,
    /// Sums of the rates of entry nodes and of functions, to choose from.
    entry_rates: Vec<f64>,
    /// The number of nodes in each zone.
    in_zone: Vec<u32>,
    function_rates: Vec<f64>,
    calls: HashMap<u64, Call>,
    next_call: u64,
    now_us: u64,
    outcome: CallOutcome,
    is_measuring: bool,
    samples: u64,
}

/// A node that runs calls.
#[derive(Default)]
struct WorkerState {
    running: u32,
    waiting: std::collections::VecDeque<u64>,
    /// Calls of each entry node here, waiting ones among them.
    of_entry: HashMap<usize, u32>,
    /// The load of the last measurement.
    measured: Load,
}

/// A node that has got calls.
struct Entry {
    compiled: Compiled,
    view: View,
    functions: Vec<FunctionPlacement>,
    in_flight: Vec<u32>,
    /// Calls that this node may have on each worker.
    shares: Vec<u32>,
    /// Permits of each worker that were free by its last report.
    permits_free: Vec<u32>,
    updated_us: Option<u64>,
}

struct Call {
    entry: usize,
    function: usize,
    arrived_us: u64,
    worker: usize,
    tried: WorkerSet,
    attempts: u32,
}

#[derive(Debug)]
enum Happening {
    Arrival,
    Measure {
        node: usize,
    },
    /// The call reaches its worker.
    Reaches {
        call: u64,
    },
    Ends {
        call: u64,
    },
    /// The entry node has the answer, or the refusal.
    Answered {
        call: u64,
    },
    Refused {
        call: u64,
    },
    Sample,
}

impl<R: SimulatedReplica> CallSimulation<R> {
    /// Begins with the calls immediately; the cluster should be connected.
    pub fn new(seed: u64, cluster: ClusterSimulation<R>, plan: CallPlan) -> Self {
        let nodes = cluster.nodes().count();
        let mut random = Random::new(seed);
        // Any node may be the busiest one.
        let mut order: Vec<usize> = (0..nodes).collect();
        for last in (1..nodes).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut rates = vec![0.0; nodes];
        for (rank, node) in order.into_iter().enumerate() {
            rates[node] = (rank as f64 + 1.0).powf(-plan.skew);
        }
        let function_rates = (1..=plan.functions).map(|rank| 1.0 / rank as f64).collect();
        let mut in_zone = Vec::new();
        for node in cluster.nodes() {
            let zone = cluster.zone(node);
            in_zone.resize(in_zone.len().max(zone + 1), 0);
            in_zone[zone] += 1;
        }
        let now_us = cluster.now().as_micros() as u64;
        let mut simulation = Self {
            cluster,
            plan,
            in_zone,
            agenda: Agenda::new(),
            workers: (0..nodes).map(|_| WorkerState::default()).collect(),
            entries: (0..nodes).map(|_| None).collect(),
            entry_rates: sums(rates),
            function_rates: sums(function_rates),
            calls: HashMap::new(),
            next_call: 0,
            now_us,
            outcome: CallOutcome { mean_loads: vec![0.0; nodes], ..CallOutcome::default() },
            is_measuring: false,
            samples: 0,
            random,
        };
        for node in 0..nodes {
            let first_us = now_us + simulation.random.below(MEASURE_US);
            simulation.agenda.plan(first_us, Happening::Measure { node });
        }
        simulation.agenda.plan(now_us, Happening::Arrival);
        simulation.agenda.plan(now_us, Happening::Sample);
        simulation
    }

    /// Lets calls come for a while without counting them, and then counts them for `measured`.
    pub fn run(mut self, before: Duration, measured: Duration) -> CallOutcome {
        let begin_us = self.now_us + before.as_micros() as u64;
        self.run_until(begin_us);
        self.is_measuring = true;
        self.run_until(begin_us + measured.as_micros() as u64);
        let samples = self.samples.max(1) as f64;
        self.outcome.mean_loads.iter_mut().for_each(|load| *load /= samples);
        self.outcome.delays_us.sort_unstable();
        self.outcome
    }

    fn run_until(&mut self, end_us: u64) {
        while let Some((at_us, happening)) = self.agenda.next(end_us) {
            self.now_us = at_us;
            self.cluster.run_until(Duration::from_micros(at_us));
            match happening {
                Happening::Arrival => self.arrival(),
                Happening::Measure { node } => self.measure(node),
                Happening::Reaches { call } => self.reaches(call),
                Happening::Ends { call } => self.ends(call),
                Happening::Answered { call } => self.answered(call),
                Happening::Refused { call } => self.refused(call),
                Happening::Sample => self.sample(),
            }
        }
        self.now_us = end_us;
    }

    fn arrival(&mut self) {
        let next_us = exponential(&mut self.random, 1e6 / self.plan.calls_per_second);
        self.agenda.plan(self.now_us + next_us, Happening::Arrival);
        let entry = choose(&self.entry_rates, &mut self.random);
        let function = choose(&self.function_rates, &mut self.random);
        self.next_call += 1;
        let (tried, attempts) = (WorkerSet::default(), 0);
        let call = Call { entry, function, arrived_us: self.now_us, worker: entry, tried, attempts };
        self.calls.insert(self.next_call, call);
        self.outcome.calls += u64::from(self.is_measuring);
        self.place(self.next_call);
    }

    /// Sends a call to a worker, or gives it up.
    fn place(&mut self, number: u64) {
        let random = self.random.next();
        let Some(call) = self.calls.get(&number) else { return };
        let (at, function, refused_by) = (call.entry, call.function, call.tried);
        self.update(at);
        let Some(entry) = self.entries[at].as_mut() else { return };
        // A node does not count the calls that it runs itself.
        let own = entry.compiled.workers().local();
        for (index, load) in entry.view.loads.iter_mut().enumerate() {
            let in_flight = entry.in_flight[index];
            if index != usize::from(own) {
                load.in_flight = in_flight;
                let is_used_up =
                    self.plan.shares == KnownShares::Computed && in_flight >= entry.shares[index];
                load.permits_free = if is_used_up { 0 } else { entry.permits_free[index] };
            }
        }
        let memory_bytes = self.plan.call_bytes;
        let request = Request { function: &entry.functions[function], memory_bytes, key: None, refused_by };
        let decision = place(&entry.compiled, &request, &entry.view, self.now_us / 1_000, random);
        let worker = match decision {
            Decision::Local => at,
            Decision::Worker { node_id, .. } => node_id as usize - 1,
            Decision::Refused(_) => return self.give_up(number),
        };
        if let Some(index) = entry.compiled.workers().index_of(worker as u64 + 1) {
            entry.in_flight[usize::from(index)] += 1;
        }
        let trip_us = self.trip_us(at, worker);
        if let Some(call) = self.calls.get_mut(&number) {
            (call.worker, call.attempts) = (worker, call.attempts + 1);
        }
        self.agenda.plan(self.now_us + trip_us, Happening::Reaches { call: number });
    }

    fn reaches(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let (entry, at) = (call.entry, call.worker);
        let index = |entry: &Entry| entry.compiled.workers().index_of(at as u64 + 1);
        let share = match self.entries[entry].as_deref() {
            Some(known) if entry != at => {
                index(known).map_or(u32::MAX, |index| known.shares[usize::from(index)])
            }
            _ => u32::MAX,
        };
        let worker = &mut self.workers[at];
        let used = worker.of_entry.entry(entry).or_default();
        let is_full = worker.running >= self.plan.permits && worker.waiting.len() >= self.plan.queue;
        if *used >= share || is_full {
            let trip_us = self.trip_us(entry, at);
            self.outcome.refusals += u64::from(self.is_measuring);
            self.agenda.plan(self.now_us + trip_us, Happening::Refused { call: number });
            return;
        }
        *used += 1;
        if worker.running < self.plan.permits {
            self.begin(number);
        } else {
            worker.waiting.push_back(number);
            self.outcome.waited += u64::from(self.is_measuring);
        }
    }

    fn begin(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        self.workers[call.worker].running += 1;
        if self.is_measuring {
            self.outcome.delays_us.push(self.now_us - call.arrived_us);
        }
        let service_us = exponential(&mut self.random, self.plan.service.as_micros() as f64);
        self.agenda.plan(self.now_us + service_us, Happening::Ends { call: number });
    }

    fn ends(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let (entry, at) = (call.entry, call.worker);
        let worker = &mut self.workers[at];
        worker.running -= 1;
        if let Some(used) = worker.of_entry.get_mut(&entry) {
            *used -= 1;
        }
        let next = worker.waiting.pop_front();
        let trip_us = self.trip_us(entry, at);
        self.agenda.plan(self.now_us + trip_us, Happening::Answered { call: number });
        if let Some(next) = next {
            self.begin(next);
        }
    }

    fn answered(&mut self, number: u64) {
        if let Some(call) = self.calls.remove(&number) {
            self.left(call.entry, call.worker);
        }
    }

    fn refused(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let (entry, worker, attempts) = (call.entry, call.worker, call.attempts);
        self.left(entry, worker);
        let index = self.entries[entry]
            .as_ref()
            .and_then(|entry| entry.compiled.workers().index_of(worker as u64 + 1));
        if let (Some(index), Some(call)) = (index, self.calls.get_mut(&number)) {
            call.tried.insert(index);
        }
        if attempts >= MAX_TRIED { self.give_up(number) } else { self.place(number) }
    }

    fn give_up(&mut self, number: u64) {
        self.calls.remove(&number);
        self.outcome.refused += u64::from(self.is_measuring);
    }

    /// A call of an entry node is not in flight any more.
    fn left(&mut self, entry: usize, worker: usize) {
        let Some(entry) = self.entries[entry].as_mut() else { return };
        if let Some(index) = entry.compiled.workers().index_of(worker as u64 + 1) {
            entry.in_flight[usize::from(index)] -= 1;
        }
    }

    /// Brings the view of an entry node up to date.
    fn update(&mut self, at: usize) {
        if self.entries[at].is_none() {
            self.entries[at] = Some(Box::new(self.entry(at)));
        }
        let own = self.workers[at].measured.clone();
        let Some(entry) = self.entries[at].as_mut() else { return };
        if entry.updated_us.is_some_and(|updated_us| self.now_us < updated_us + UPDATE_US) {
            return;
        }
        entry.updated_us = Some(self.now_us);
        let me = NodeId(at as u64 + 1);
        for (worker, load) in entry.compiled.workers().as_slice().iter().zip(&mut entry.view.loads) {
            let id = NodeId(worker.node_id);
            let reported = if id == me { Some(own.clone()) } else { self.cluster.load_of(me, id) };
            *load = match reported {
                Some(reported) => placed(&reported, self.cluster.round_trip(me, id)),
                None => placement::Load::default(),
            };
        }
        entry.permits_free.clear();
        entry.permits_free.extend(entry.view.loads.iter().map(|load| load.permits_free));
    }

    fn entry(&self, at: usize) -> Entry {
        let worker = |id: NodeId| Worker {
            node_id: id.0,
            name: format!("node{:04}", id.0),
            zone: Some(zone_name(self.cluster.zone(id))),
            labels: Vec::new(),
        };
        let me = NodeId(at as u64 + 1);
        let others = self.cluster.nodes().filter(|id| *id != me).map(worker);
        let workers = Arc::new(Workers::new(worker(me), others));
        let compiled = Compiled::new(&self.plan.policy, workers.clone());
        let code = workers.select(|_| true);
        let function =
            |number: usize| compiled.function(&format!("function{number}"), Some(&self.plan.tag), code);
        let functions = (0..self.plan.functions).map(function).collect();
        let count = workers.as_slice().len();
        let loads = vec![placement::Load::default(); count];
        Entry {
            view: View {
                loads,
                running: vec![WorkerSet::default(); compiled.affinity_functions().len()],
                ..View::default()
            },
            compiled,
            functions,
            in_flight: vec![0; count],
            shares: workers
                .as_slice()
                .iter()
                .map(|worker| self.share(at, worker.node_id as usize - 1))
                .collect(),
            permits_free: Vec::new(),
            updated_us: None,
        }
    }

    /// Calls that an entry node may have on a worker.
    fn share(&self, entry: usize, worker: usize) -> u32 {
        let zone = |at: usize| zone_name(self.cluster.zone(NodeId(at as u64 + 1)));
        let (entry_zone, worker_zone) = (zone(entry), zone(worker));
        let zoned = |at: usize, zone| Zoned { node_id: at as u64 + 1, zone: Some(zone) };
        let (from, to) = (zoned(entry, entry_zone.as_str()), zoned(worker, worker_zone.as_str()));
        let relation = Relation::of(from, to);
        let in_zone = self.in_zone[self.cluster.zone(NodeId(worker as u64 + 1))];
        let count = EntryNodes { all: self.workers.len() as u32, in_zone };
        let CallPlan { memory_bytes, call_bytes, permits, .. } = self.plan;
        let share = share_bytes(self.plan.policy.distribution, relation, memory_bytes, count, call_bytes);
        match share {
            0 => 0,
            share => ((u64::from(permits) * share / memory_bytes.max(1)) as u32).max(1),
        }
    }

    fn measure(&mut self, node: usize) {
        self.agenda.plan(self.now_us + MEASURE_US, Happening::Measure { node });
        self.workers[node].measured = self.load(node);
        let id = NodeId(node as u64 + 1);
        let load =
            if self.plan.liars.contains(&id) { self.idle() } else { self.workers[node].measured.clone() };
        self.cluster.set_load(id, &load);
    }

    fn idle(&self) -> Load {
        let plan = &self.plan;
        Load {
            memory_free_bytes: plan.memory_bytes,
            memory_total_bytes: plan.memory_bytes,
            permits_free: plan.permits,
            permits_total: plan.permits,
            readiness: Readiness::Ready,
            ..Load::default()
        }
    }

    fn load(&self, node: usize) -> Load {
        let (worker, plan) = (&self.workers[node], &self.plan);
        let used = u64::from(worker.running) * plan.call_bytes;
        Load {
            memory_free_bytes: plan.memory_bytes.saturating_sub(used),
            permits_free: plan.permits - worker.running,
            running: worker.running,
            queued: worker.waiting.len() as u32,
            ..self.idle()
        }
    }

    fn sample(&mut self) {
        self.agenda.plan(self.now_us + SAMPLE_US, Happening::Sample);
        if !self.is_measuring {
            return;
        }
        self.samples += 1;
        let mut peak: f64 = 0.0;
        for (worker, sum) in self.workers.iter().zip(&mut self.outcome.mean_loads) {
            let load =
                f64::from(worker.running + worker.waiting.len() as u32) / f64::from(self.plan.permits);
            *sum += load;
            peak = peak.max(load);
        }
        self.outcome.peaks.push(peak);
    }

    fn trip_us(&self, a: usize, b: usize) -> u64 {
        let round_trip = self.cluster.round_trip(NodeId(a as u64 + 1), NodeId(b as u64 + 1));
        round_trip.as_micros() as u64 / 2
    }
}

fn placed(load: &Load, round_trip: Duration) -> placement::Load {
    placement::Load {
        health: Health::Up,
        memory_free_bytes: load.memory_free_bytes,
        memory_total_bytes: load.memory_total_bytes,
        permits_free: load.permits_free,
        permits_total: load.permits_total,
        running: load.running,
        queued: load.queued,
        in_flight: 0,
        pressure_permille: load.pressure_permille,
        rtt_us: round_trip.as_micros() as u32,
        back_off_until_ms: 0,
    }
}

fn zone_name(zone: usize) -> String {
    format!("zone{zone:02}")
}

/// Sums of rates up to each one.
fn sums(rates: Vec<f64>) -> Vec<f64> {
    let add = |sum: &mut f64, rate: f64| {
        *sum += rate;
        Some(*sum)
    };
    rates.into_iter().scan(0.0, add).collect()
}

fn choose(sums: &[f64], random: &mut Random) -> usize {
    let drawn = random.unit() * sums.last().copied().unwrap_or_default();
    sums.partition_point(|sum| *sum <= drawn).min(sums.len().saturating_sub(1))
}

fn exponential(random: &mut Random, mean: f64) -> u64 {
    (-(1.0 - random.unit()).ln() * mean) as u64
}
