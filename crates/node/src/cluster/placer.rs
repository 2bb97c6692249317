//! Where invocations run: the placement policies over the view of the cluster.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use edgefaas_cluster::calls::{CallLoad, Calls};
use edgefaas_cluster::placement::shares::{EntryNodes, Relation, Zoned, share_bytes};
use edgefaas_cluster::placement::{
    Compiled, DEFAULT_TAG, Decision, Explanation, FunctionPlacement, Health, Known, Load, Policy, Request,
    View, Warning, Worker, WorkerSet, Workers, check, explain, place,
};
use edgefaas_cluster::status::{AppFact, Readiness, Runs};
use edgefaas_functions::invocation::Invocation;
use edgefaas_functions::registry::{Code, LiveFunction, Registry, Routes};
use edgefaas_functions::remote::{NoNode, NodeFailure, Placement, Placer, RemoteNode, Share, ThisNode};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::view::{ClusterView, MemberView};

/// Function memory that an invocation needs to start, at most; it may use more later, up to its limit.
const START_BYTES: u64 = 4 << 20;

/// Decides by the placement policies. Without a policy every function runs on this node, if its code is here.
pub struct PolicyPlacer {
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    policy: ArcSwap<Policy>,
    calls: OnceLock<Calls>,
    this_node: ArcSwap<Option<Arc<ThisNode>>>,
    state: Mutex<State>,
}

/// The policy against the members, as of the last decision.
struct State {
    /// The node that decides: this one, but for an explanation.
    entry: u64,
    policy: Arc<Policy>,
    cluster: Arc<ClusterView>,
    routes: Arc<Routes>,
    compiled: Compiled,
    view: View,
    /// The calls of this node to each worker, in the order of the workers.
    calls: Vec<Option<CallLoad>>,
    functions: HashMap<Arc<str>, FunctionPlacement>,
}

impl PolicyPlacer {
    /// A placer without a policy.
    pub fn new(cluster: Arc<Cluster>, registry: Arc<Registry>) -> Self {
        let policy = Arc::new(Policy::default());
        let view = cluster.view().clone();
        let routes = registry.routes().clone();
        let state = State::new(policy.clone(), view, routes, None);
        Self {
            cluster,
            registry,
            policy: ArcSwap::new(policy),
            calls: OnceLock::new(),
            this_node: ArcSwap::default(),
            state: Mutex::new(state),
        }
    }

    /// Sets the calls whose counts the decisions use.
    pub fn set_calls(&self, calls: Calls) {
        let _ = self.calls.set(calls);
    }

    /// Replaces the policy. Running invocations stay where they are.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
        self.mark_placed();
    }

    /// Why a call of a function that arrives at the member `entry` would run where; `None` for this node. The round trips of
    /// another entry node are not known here.
    pub fn explain(&self, function: &LiveFunction, entry: Option<u64>) -> (String, Vec<String>) {
        let cluster = self.cluster.view().clone();
        let entry = entry.unwrap_or(cluster.me.node_id);
        let calls = self.calls.get().filter(|_| entry == cluster.me.node_id);
        let mut state =
            State::of_entry(entry, self.policy(), cluster, self.registry.routes().clone(), calls);
        let placement = state.function(function);
        let memory_bytes = (function.spec.limits.memory_bytes as u64).min(START_BYTES);
        let request =
            Request { function: &placement, memory_bytes, key: None, refused_by: WorkerSet::default() };
        let Explanation { decision, steps } =
            explain(&state.compiled, &request, &state.view, 0, rand::random());
        let name = |node_id: u64| {
            state
                .cluster
                .member(node_id)
                .map_or_else(|| "this node".to_owned(), |member| member.name.clone())
        };
        let node = match decision {
            Decision::Local => name(entry),
            Decision::Worker { node_id, .. } => name(node_id),
            Decision::Refused(_) => String::new(),
        };
        (node, steps)
    }

    /// Warnings about a policy against the members and functions that this node knows.
    pub fn check(&self, policy: &Policy) -> Vec<Warning> {
        let cluster = self.cluster.view();
        let workers = Workers::new(worker(&cluster.me), cluster.others.iter().map(worker));
        let functions: Vec<String> =
            self.registry.routes().functions().map(|function| function.name.to_string()).collect();
        check(policy, &Known { workers: Some(&workers), functions: Some(&functions) })
    }

    /// The current policy.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Follows changes of the apps and of the cluster. Runs until `cancel` fires.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let (mut routes, mut view) = (self.registry.changes(), self.cluster.watch_view());
        loop {
            self.mark_placed();
            self.name_this_node(&view.borrow_and_update());
            tokio::select! {
                () = cancel.cancelled() => return,
                Ok(()) = routes.changed() => {}
                Ok(()) = view.changed() => {}
            }
        }
    }

    /// Marks the functions whose place the policy decides.
    fn mark_placed(&self) {
        let has_default = self.policy.load().tag(DEFAULT_TAG).is_some();
        for function in self.registry.routes().functions() {
            let is_placed =
                has_default || function.spec.placement.is_some() || function.code == Code::Elsewhere;
            function.set_placed(is_placed);
        }
    }

    fn name_this_node(&self, view: &ClusterView) {
        let MemberView { node_id, name, facts, .. } = &view.me;
        let node = (!name.is_empty()).then(|| {
            Arc::new(ThisNode {
                id: *node_id,
                name: name.as_str().into(),
                zone: facts.zone.as_ref().map(|zone| zone.name.clone()),
                labels: facts.labels.clone(),
            })
        });
        self.this_node.store(Arc::new(node));
    }
}

impl Placer for PolicyPlacer {
    fn place(&self, function: &LiveFunction, invocation: &Invocation, tried: &[NodeFailure]) -> Placement {
        let _ = invocation;
        let mut state = self.state.lock();
        state.update(&self.policy.load(), &self.cluster.view(), &self.registry.routes(), self.calls.get());
        let placement = state.function(function);
        let workers = state.compiled.workers();
        let refused_by: WorkerSet =
            tried.iter().filter_map(|failure| workers.index_of(failure.node.id)).collect();
        let memory_bytes = (function.spec.limits.memory_bytes as u64).min(START_BYTES);
        let request = Request { function: &placement, memory_bytes, key: None, refused_by };
        // `update` has set the members that are backing off.
        match place(&state.compiled, &request, &state.view, 0, rand::random()) {
            Decision::Local => Placement::Here,
            Decision::Worker { node_id, .. } => match state.cluster.member(node_id) {
                Some(member) => {
                    Placement::On(RemoteNode { id: node_id, name: member.name.as_str().into() })
                }
                None => Placement::Here,
            },
            Decision::Refused(refusal) => Placement::Refused(NoNode::Policy { refusal }),
        }
    }

    fn this_node(&self) -> Option<Arc<ThisNode>> {
        Option::clone(&self.this_node.load())
    }

    fn share(&self, node_id: u64, invocation_bytes: u64) -> Share {
        let view = self.cluster.view();
        let (me, peer) = (zoned(&view.me), view.member(node_id).map(zoned));
        let peer = peer.unwrap_or(Zoned { node_id, zone: None });
        let connected = view.others.iter().filter(|member| member.is_connected()).map(zoned);
        let entry_nodes = EntryNodes::count(me, connected);
        let load = view.me.load.unwrap_or_default();
        let distribution = self.policy.load().distribution;
        let relation = Relation::of(peer, me);
        let memory_bytes =
            share_bytes(distribution, relation, load.memory_total_bytes, entry_nodes, invocation_bytes);
        let permits = u128::from(load.permits_total) * u128::from(memory_bytes)
            / u128::from(load.memory_total_bytes.max(1));
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Share { memory_bytes, permits: if memory_bytes == 0 { 0 } else { permits.max(1) } }
    }
}

fn zoned(member: &MemberView) -> Zoned<'_> {
    Zoned { node_id: member.node_id, zone: member.facts.zone.as_ref().map(|zone| zone.name.as_str()) }
}

impl State {
    fn new(
        policy: Arc<Policy>,
        cluster: Arc<ClusterView>,
        routes: Arc<Routes>,
        calls: Option<&Calls>,
    ) -> Self {
        let entry = cluster.me.node_id;
        Self::of_entry(entry, policy, cluster, routes, calls)
    }

    /// The decisions of a member, as far as this node knows what that one knows.
    fn of_entry(
        entry: u64,
        policy: Arc<Policy>,
        cluster: Arc<ClusterView>,
        routes: Arc<Routes>,
        calls: Option<&Calls>,
    ) -> Self {
        let local = cluster.member(entry).unwrap_or(&cluster.me);
        let others = cluster.all().filter(|member| member.node_id != local.node_id);
        let workers = Workers::new(worker(local), others.map(worker));
        let compiled = Compiled::new(&policy, Arc::new(workers));
        let mut state = Self {
            entry: local.node_id,
            policy,
            cluster,
            routes,
            compiled,
            view: View::default(),
            calls: Vec::new(),
            functions: HashMap::new(),
        };
        let me = state.cluster.me.node_id;
        let of_worker = |worker: &Worker| {
            calls.filter(|_| worker.node_id != me).map(|calls| calls.load(worker.node_id))
        };
        state.calls = state.compiled.workers().as_slice().iter().map(of_worker).collect();
        state.load();
        state
    }

    /// Takes the current policy, members and apps, and the counts of this node.
    fn update(
        &mut self,
        policy: &Arc<Policy>,
        cluster: &Arc<ClusterView>,
        routes: &Arc<Routes>,
        calls: Option<&Calls>,
    ) {
        let has_calls = self.calls.iter().any(Option::is_some) || calls.is_none();
        let is_same = Arc::ptr_eq(policy, &self.policy)
            && (Arc::ptr_eq(cluster, &self.cluster) || cluster.has_same_facts(&self.cluster))
            && (has_calls || cluster.others.is_empty());
        if !is_same {
            *self = Self::new(policy.clone(), cluster.clone(), routes.clone(), calls);
        } else if !Arc::ptr_eq(cluster, &self.cluster) {
            self.cluster = cluster.clone();
            self.load();
        }
        if !Arc::ptr_eq(routes, &self.routes) {
            self.routes = routes.clone();
            self.functions.clear();
        }
        for (load, calls) in self.view.loads.iter_mut().zip(&self.calls) {
            let Some(calls) = calls else { continue };
            load.in_flight = u32::try_from(calls.in_flight()).unwrap_or(u32::MAX);
            load.back_off_until_ms = if calls.is_backing_off() { u64::MAX } else { 0 };
        }
    }

    /// Takes the loads of the members.
    fn load(&mut self) {
        let entry = self.entry;
        let of_worker = |worker: &Worker| {
            let load = match self.cluster.member(worker.node_id) {
                // In no cluster a node does not measure its load, and takes what comes to it.
                Some(me) if me.node_id == self.cluster.me.node_id && me.load.is_none() => unmeasured(),
                Some(member) => load_of(member),
                None => Load::default(),
            };
            match worker.node_id == entry {
                true => Load { rtt_us: 0, ..load },
                false => load,
            }
        };
        self.view.loads = self.compiled.workers().as_slice().iter().map(of_worker).collect();
        let running = |function: &String| match self.routes.function(function) {
            Some(function) => self.code_of(function),
            None => WorkerSet::default(),
        };
        self.view.running = self.compiled.affinity_functions().iter().map(running).collect();
    }

    fn function(&mut self, function: &LiveFunction) -> FunctionPlacement {
        if let Some(placement) = self.functions.get(&function.name) {
            return *placement;
        }
        let tag = function.spec.placement.as_deref();
        let placement = self.compiled.function(&function.name, tag, self.code_of(function));
        self.functions.insert(function.name.clone(), placement);
        placement
    }

    /// The workers with the code of a function.
    fn code_of(&self, function: &LiveFunction) -> WorkerSet {
        let me = self.cluster.me.node_id;
        let has_app = |member: &MemberView| {
            let mut apps = member.facts.apps.iter();
            let runs = |app: &AppFact| app.live.is_some_and(|live| live.runs == Runs::Here);
            apps.any(|app| *app.app == *function.app && runs(app))
        };
        self.compiled.workers().select(|worker| match worker.node_id == me {
            true => function.code == Code::Here,
            false => self.cluster.member(worker.node_id).is_some_and(has_app),
        })
    }
}

fn worker(member: &MemberView) -> Worker {
    Worker {
        node_id: member.node_id,
        name: member.name.clone(),
        zone: member.facts.zone.as_ref().map(|zone| zone.name.clone()),
        labels: member.facts.labels.clone(),
    }
}

/// The load of a node that has room for anything.
fn unmeasured() -> Load {
    let (bytes, permits) = (1 << 40, 1 << 20);
    Load {
        health: Health::Up,
        memory_free_bytes: bytes,
        memory_total_bytes: bytes,
        permits_free: permits,
        permits_total: permits,
        ..Load::default()
    }
}

fn load_of(member: &MemberView) -> Load {
    let Some(load) = member.load.filter(|_| member.is_connected()) else {
        // A connected member of an older version runs no calls of others.
        return Load::default();
    };
    Load {
        health: match load.readiness {
            Readiness::Ready => Health::Up,
            Readiness::Draining => Health::Draining,
            Readiness::Failing => Health::Failing,
        },
        memory_free_bytes: load.memory_free_bytes,
        memory_total_bytes: load.memory_total_bytes,
        permits_free: load.permits_free,
        permits_total: load.permits_total,
        running: load.running,
        queued: load.queued,
        in_flight: 0,
        pressure_permille: load.pressure_permille,
        // `State::load` sets that of this node.
        rtt_us: member.rtt.map_or(u32::MAX, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX)),
        back_off_until_ms: 0,
    }
}
