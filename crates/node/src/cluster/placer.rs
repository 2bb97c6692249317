//! Where invocations run: the placement policies over the view of the cluster.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, OnceLock};

use arc_swap::ArcSwap;
use edgefaas_cluster::calls::Calls;
use edgefaas_cluster::placement::shares::{EntryNodes, Relation, Zoned, share_bytes};
use edgefaas_cluster::placement::{
    Call, DEFAULT_TAG, Decision, Explanation, FunctionFacts, Health, Known, KnownFunction, Load, Loads,
    PlacedCall, Policy, Table, Warning, Worker, WorkerIndex, WorkerSet, Workers, check,
};
use edgefaas_cluster::status::{AppFact, Readiness, Runs, function_digest};
use edgefaas_functions::invocation::Invocation;
use edgefaas_functions::registry::{Code, LiveApp, LiveFunction, Registry, Routes};
use edgefaas_functions::remote::{NoNode, NodeFailure, Placement, Placer, RemoteNode, Share, ThisNode};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::app_facts::live_revision;
use super::view::{ClusterView, MemberView};

/// What stands for the name of a node that has none.
pub(crate) const THIS_NODE: &str = "this node";
/// Function memory that an invocation needs to start, at most; it may use more later, up to its limit.
const START_BYTES: u64 = 4 << 20;

/// Decides by the placement policies. Without a policy, and in no cluster, every function runs on this node, if its code is
/// here.
///
/// A call takes no lock: it decides with the current table. One of the calls that find the table older than the policy, the
/// members or the apps makes the next one; the others go on with this one, but after a deploy.
pub struct PolicyPlacer {
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    policy: ArcSwap<Policy>,
    calls: OnceLock<Calls>,
    this_node: ArcSwap<Option<Arc<ThisNode>>>,
    current: ArcSwap<Current>,
    /// Held while the next table is made.
    updating: Mutex<()>,
}

/// The table of a node, with its sources.
struct Current {
    policy: Arc<Policy>,
    cluster: Arc<ClusterView>,
    routes: Arc<Routes>,
    has_calls: bool,
    table: Table,
    /// In the order of the workers.
    nodes: Arc<[RemoteNode]>,
}

impl PolicyPlacer {
    /// A placer without a policy.
    pub fn new(cluster: Arc<Cluster>, registry: Arc<Registry>) -> Self {
        let policy = Arc::new(Policy::default());
        let current =
            Current::new(policy.clone(), cluster.view().clone(), registry.routes().clone(), None, None);
        Self {
            cluster,
            registry,
            policy: ArcSwap::new(policy),
            calls: OnceLock::new(),
            this_node: ArcSwap::default(),
            current: ArcSwap::from_pointee(current),
            updating: Mutex::default(),
        }
    }

    /// Sets the calls whose counts the decisions use.
    pub fn set_calls(&self, calls: Calls) {
        let _ = self.calls.set(calls);
    }

    /// Replaces the policy. Running invocations stay where they are.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
        let updating = self.updating.lock();
        self.update();
        drop(updating);
        self.mark_placed();
    }

    /// Why a call of a function that arrives at the member `entry` would run where; `None` for this node. The round trips of
    /// another entry node are not known here, nor its calls in flight.
    pub fn explain(&self, function: &LiveFunction, entry: Option<u64>) -> (String, Vec<String>) {
        let cluster = self.cluster.view().clone();
        if cluster.is_alone() {
            return (
                THIS_NODE.to_owned(),
                vec!["this node is in no cluster: all calls run on it".to_owned()],
            );
        }
        let me = cluster.me.node_id;
        let entry = entry.unwrap_or(me);
        let (call, random) = (call_of(function, None), rand::random());
        let (cluster, explanation) = if entry == me {
            let current = self.current();
            (current.cluster.clone(), current.table.explain(&call, self.now_ms(), random))
        } else {
            let routes = self.registry.routes().clone();
            let table = table(entry, &self.policy(), &cluster, &routes, None, None);
            let loads = loads(entry, &cluster, &table);
            (cluster, table.with_loads(loads).explain(&call, 0, random))
        };
        let Explanation { decision, steps: decided } = explanation;
        let mut steps: Vec<String> = self.unknown_tag(function).into_iter().collect();
        if let Some(member) = cluster.member(entry).filter(|_| entry != me) {
            steps.push(format!(
                "decided with what node `{}` knows: not the calls in flight, refusals and round trips of `{}`, which decides for \
                 its own calls; use `--node` to ask it",
                cluster.me.name, member.name
            ));
        }
        steps.extend(decided);
        let name = |node_id: u64| {
            cluster.member(node_id).map_or_else(|| THIS_NODE.to_owned(), |member| member.name.clone())
        };
        let node = match decision {
            Decision::Local => name(entry),
            Decision::Worker { node_id, .. } => name(node_id),
            Decision::Refused(_) => String::new(),
        };
        (node, steps)
    }

    /// What holds for a function whose tag the current policy does not have; `None` if it has the tag, or there is no policy.
    pub fn unknown_tag(&self, function: &LiveFunction) -> Option<String> {
        let policy = self.policy();
        let tag = function.spec.placement.as_deref().filter(|tag| policy.tag(tag).is_none())?;
        if policy.tags.is_empty() {
            return None;
        }
        let near = policy.nearest_tag(tag).filter(|near| *near != DEFAULT_TAG);
        let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        let instead = match policy.tag(DEFAULT_TAG) {
            Some(_) => "the tag `default` applies",
            None => "it has no tag `default`, so that its calls run as without a policy",
        };
        Some(format!(
            "the tag `{tag}` of function `{}` is not in the policy{near}; {instead}",
            function.name
        ))
    }

    /// Warnings about a policy against the members and functions that this node knows.
    pub fn check(&self, policy: &Policy) -> Vec<Warning> {
        let cluster = self.cluster.view();
        let workers = Workers::new(worker(&cluster.me), cluster.others.iter().map(worker));
        let known = |function: &Arc<LiveFunction>| KnownFunction {
            name: function.name.to_string(),
            tag: function.spec.placement.clone(),
        };
        let functions: Vec<KnownFunction> = self.registry.routes().functions().map(known).collect();
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
            view.mark_unchanged();
            self.refresh();
            tokio::select! {
                () = cancel.cancelled() => return,
                Ok(()) = routes.changed() => {}
                Ok(()) = view.changed() => {}
            }
        }
    }

    /// Takes the apps and the cluster as they are now.
    pub fn refresh(&self) {
        self.mark_placed();
        self.name_this_node(&self.cluster.view());
        drop(self.current());
    }

    /// Marks the functions whose place the policy decides.
    fn mark_placed(&self) {
        let policy = self.policy.load();
        let has_default = in_force(&policy, &self.cluster.view()).tag(DEFAULT_TAG).is_some();
        for function in self.registry.routes().functions() {
            let is_placed =
                has_default || function.spec.placement.is_some() || function.code == Code::Elsewhere;
            function.set_placed(is_placed);
        }
    }

    fn name_this_node(&self, view: &ClusterView) {
        let MemberView { node_id, name, facts, .. } = &view.me;
        let node = (!view.is_alone()).then(|| {
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

impl PolicyPlacer {
    /// The current table; makes it anew if its sources have changed.
    fn current(&self) -> arc_swap::Guard<Arc<Current>> {
        let current = self.current.load();
        if self.is_current(&current) {
            return current;
        }
        let updating = match self.updating.try_lock() {
            Some(updating) => updating,
            // A function that was just deployed is not in this table.
            None if !Arc::ptr_eq(&self.registry.routes(), &current.routes) => self.updating.lock(),
            None => return current,
        };
        if !self.is_current(&self.current.load()) {
            self.update();
        }
        drop(updating);
        self.current.load()
    }

    fn is_current(&self, current: &Current) -> bool {
        Arc::ptr_eq(&self.cluster.view(), &current.cluster)
            && Arc::ptr_eq(&self.policy.load(), &current.policy)
            && Arc::ptr_eq(&self.registry.routes(), &current.routes)
            && current.has_calls == self.calls.get().is_some()
    }

    /// Makes the table anew. Called by one thread at a time.
    fn update(&self) {
        let current = self.current.load_full();
        let (policy, cluster) = (self.policy(), self.cluster.view().clone());
        let (routes, calls) = (self.registry.routes().clone(), self.calls.get());
        let is_same = Arc::ptr_eq(&policy, &current.policy)
            && Arc::ptr_eq(&routes, &current.routes)
            && current.has_calls == calls.is_some()
            && cluster.has_same_facts(&current.cluster);
        let next = match is_same {
            true => current.with_cluster(cluster),
            false => Current::new(policy, cluster, routes, calls, Some(&current.table)),
        };
        self.current.store(Arc::new(next));
    }
}

impl Placer for PolicyPlacer {
    fn place(&self, function: &LiveFunction, invocation: &Invocation, tried: &[NodeFailure]) -> Placement {
        let current = self.current();
        let call = call_of(function, invocation.order_key);
        let tried = tried.iter().map(|failure| failure.node.id);
        match current.table.place(&call, tried, self.now_ms(), rand::random()) {
            Decision::Local => Placement::Here,
            Decision::Worker { index, .. } => match current.nodes.get(usize::from(index)) {
                Some(node) => Placement::On(node.clone()),
                None => Placement::Here,
            },
            Decision::Refused(refusal) => {
                Placement::Refused(NoNode::Policy { function: function.name.clone(), refusal })
            }
        }
    }

    fn begin(&self, function: &LiveFunction, node_id: u64) -> PlacedCall {
        self.current.load().table.begin(&function.name, node_id)
    }

    fn now_ms(&self) -> u64 {
        self.calls.get().map_or(0, Calls::now_ms)
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
        let load = view.me.load.clone().unwrap_or_default();
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

fn call_of(function: &LiveFunction, key: Option<u64>) -> Call<'_> {
    let memory_bytes = (function.spec.limits.memory_bytes as u64).min(START_BYTES);
    Call { function: &function.name, memory_bytes, key }
}

impl Current {
    fn new(
        policy: Arc<Policy>,
        cluster: Arc<ClusterView>,
        routes: Arc<Routes>,
        calls: Option<&Calls>,
        before: Option<&Table>,
    ) -> Self {
        let me = cluster.me.node_id;
        let table = table(me, &policy, &cluster, &routes, calls, before);
        let node = |worker: &Worker| RemoteNode { id: worker.node_id, name: worker.name.as_str().into() };
        let nodes = table.workers().as_slice().iter().map(node).collect();
        let loads = loads(me, &cluster, &table);
        Self { policy, routes, has_calls: calls.is_some(), table: table.with_loads(loads), cluster, nodes }
    }

    /// The same with other loads.
    fn with_cluster(&self, cluster: Arc<ClusterView>) -> Self {
        let table = self.table.with_loads(loads(cluster.me.node_id, &cluster, &self.table));
        let Self { policy, routes, has_calls, nodes, .. } = self;
        let (policy, routes, nodes) = (policy.clone(), routes.clone(), nodes.clone());
        Self { policy, routes, has_calls: *has_calls, cluster, table, nodes }
    }
}

/// The policies that a node follows. In no cluster those that it has kept name no node that it knows.
fn in_force<'a>(policy: &'a Policy, cluster: &ClusterView) -> &'a Policy {
    static NONE: LazyLock<Policy> = LazyLock::new(Policy::default);
    if cluster.is_alone() { &NONE } else { policy }
}

/// The table of the member `entry`, as far as this node knows what that one knows.
fn table(
    entry: u64,
    policy: &Policy,
    cluster: &ClusterView,
    routes: &Routes,
    calls: Option<&Calls>,
    before: Option<&Table>,
) -> Table {
    let local = cluster.member(entry).unwrap_or(&cluster.me);
    let others = cluster.all().filter(|member| member.node_id != local.node_id);
    let workers = Arc::new(Workers::new(worker(local), others.map(worker)));
    let me = cluster.me.node_id;
    let apps = places_of_apps(cluster, &workers);
    let complete = complete_apps(cluster, routes);
    let facts = routes.functions().map(|function| {
        let Places { mut code, mut data, alone } = apps.get(&*function.app).copied().unwrap_or_default();
        // What runs here is known better than reported. An app that is deployed to this node alone has its objects here.
        if let Some(here) = workers.index_of(me) {
            // What was deployed to it alone, it runs for its own calls.
            let runs_here = function.code == Code::Here && (entry == me || !alone.contains(here));
            put(&mut code, here, runs_here);
            put(&mut data, here, runs_here && complete.contains(&*function.app));
        }
        FunctionFacts {
            name: function.name.clone(),
            tag: function.spec.placement.clone(),
            code,
            alone,
            data,
            // Those of another entry node are not known.
            running: if entry == me { function.admission.running().clone() } else { Arc::default() },
        }
    });
    let calls = |node_id: u64| calls.filter(|_| node_id != me).map(|calls| calls.load(node_id));
    Table::new(in_force(policy, cluster), workers.clone(), facts, calls, before)
}

/// Loads of the workers of a table, for the member `entry`.
fn loads(entry: u64, cluster: &ClusterView, table: &Table) -> Loads {
    let workers = table.workers();
    let members: HashMap<u64, &MemberView> = cluster.all().map(|member| (member.node_id, member)).collect();
    let load = |worker: &Worker| {
        let load = match members.get(&worker.node_id) {
            // In no cluster a node does not measure its load, and takes what comes to it.
            Some(me) if me.node_id == cluster.me.node_id && me.load.is_none() => unmeasured(),
            Some(member) => load_of(member),
            None => Load::default(),
        };
        match worker.node_id == entry {
            true => Load { rtt_us: 0, ..load },
            false => load,
        }
    };
    let running = |function: &String| {
        let digest = function_digest(function);
        let runs = |member: &&MemberView| {
            let load = member.load.as_ref().filter(|_| member.is_connected());
            load.is_some_and(|load| load.functions.binary_search(&digest).is_ok())
        };
        // This node counts its own invocations.
        let is_other = |node_id: u64| node_id != entry || node_id != cluster.me.node_id;
        workers.select(|worker| is_other(worker.node_id) && members.get(&worker.node_id).is_some_and(runs))
    };
    Loads {
        loads: workers.as_slice().iter().map(load).collect(),
        running: table.affinity_functions().iter().map(running).collect(),
    }
}

/// Where an app is.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    /// Workers with the code of its functions.
    code: WorkerSet,
    /// Workers with a revision of it of their own.
    alone: WorkerSet,
    /// Those with the code that are connected, and where all objects of its functions have arrived.
    data: WorkerSet,
}

/// The apps of this node whose objects are all here. One that is live since a moment ago, and not in the facts yet, may
/// lack some.
fn complete_apps<'a>(cluster: &ClusterView, routes: &'a Routes) -> HashSet<&'a str> {
    let facts: HashMap<&str, &AppFact> =
        cluster.me.facts.apps.iter().map(|fact| (fact.app.as_str(), fact)).collect();
    let is_complete = |app: &&Arc<LiveApp>| {
        let fact = facts.get(&*app.name);
        fact.is_some_and(|fact| !fact.lacks_objects && fact.live == live_revision(app))
    };
    routes.apps().filter(is_complete).map(|app| &*app.name).collect()
}

/// The places of the apps that the members report.
fn places_of_apps<'a>(cluster: &'a ClusterView, workers: &Workers) -> HashMap<&'a str, Places> {
    let index = workers.as_slice().iter().enumerate();
    let index: HashMap<u64, WorkerIndex> =
        index.map(|(index, worker)| (worker.node_id, index as WorkerIndex)).collect();
    let mut apps: HashMap<&str, Places> = HashMap::new();
    for member in cluster.all() {
        let Some(&worker) = index.get(&member.node_id) else { continue };
        for app in &member.facts.apps {
            match app.live.map(|live| live.runs) {
                Some(Runs::Here) => {
                    let places = apps.entry(&app.app).or_default();
                    places.code.insert(worker);
                    put(&mut places.data, worker, member.is_connected() && !app.lacks_objects);
                }
                Some(Runs::HereAlone) => apps.entry(&app.app).or_default().alone.insert(worker),
                Some(Runs::Elsewhere) | None => {}
            }
        }
    }
    apps
}

fn put(set: &mut WorkerSet, worker: WorkerIndex, is_in: bool) {
    match is_in {
        true => set.insert(worker),
        false => set.remove(worker),
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
    let Some(load) = member.load.as_ref().filter(|_| member.is_connected()) else {
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
        // `loads` sets that of this node.
        rtt_us: member.rtt.map_or(u32::MAX, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX)),
        back_off_until_ms: 0,
    }
}
