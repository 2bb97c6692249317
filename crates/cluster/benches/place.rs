//! What a decision costs, by kind of policy, with 100 workers in four zones; and what one of a node's table costs, with the
//! look-up of the function and the counts of the calls in flight, in one thread and in two at the same time.
//!
//! `cargo bench -p edgefaas-cluster --bench place [-- --json]`. The figures are medians over the rounds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use edgefaas_cluster::calls::CallLoad;
use edgefaas_cluster::placement::{
    Call, Compiled, Decision, FunctionFacts, Health, Load, Loads, Policy, Request, Table, View, Worker,
    WorkerSet, Workers, place,
};
use serde_json::{Value, json};

/// Rounds per case; odd, so that the median is one of them.
const ROUNDS: usize = 1_001;
/// Decisions per round: so few that most rounds end within one time slice of the scheduler.
const DECISIONS: u64 = 200;
const WORKERS: u64 = 100;
const MIB: u64 = 1024 * 1024;

/// A name and the blocks of the tag.
const CASES: [(&str, &str); 11] = [
    ("no policy", ""),
    ("best-first", "{workers: \"*\", strategy: best-first}"),
    ("random", "{workers: \"*\", strategy: random}"),
    ("platform", "{workers: \"*\"}"),
    ("least-loaded", "{workers: \"*\", strategy: least-loaded}"),
    ("nearest", "{workers: [{set: zone3}], strategy: nearest}"),
    ("data", "{workers: \"*\", strategy: data}"),
    ("sticky", "{workers: \"*\", sticky: true}"),
    (
        "limits, affinity and preferences",
        "{workers: \"*\", strategy: least-loaded, invalidate: [{capacity_used: 90}, {max_concurrent_invocations: 50}], \
         affinity: [\"!other\"], prefer: [gpu]}",
    ),
    (
        "a controller and sets with strategies",
        "{controller: node7, workers: [{set: zone1, strategy: random}, {set: zone2, strategy: nearest}, {set: gpu}], \
         strategy: least-loaded}",
    ),
    (
        "three blocks without a usable worker, then one",
        "{workers: \"*\", invalidate: [{capacity_used: 1}]}, {workers: [{set: gpu}], affinity: [other]}, \
         {controller: away, topology_tolerance: none, workers: \"*\"}, {workers: \"*\", strategy: random}",
    ),
];

struct Cluster {
    workers: Arc<Workers>,
    view: View,
}

impl Cluster {
    fn new() -> Self {
        let worker = |index: u64| Worker {
            node_id: index,
            name: format!("node{index}"),
            zone: Some(format!("zone{}", index % 4)),
            labels: if index.is_multiple_of(5) { vec!["gpu".into()] } else { Vec::new() },
        };
        let workers = Arc::new(Workers::new(worker(0), (1..WORKERS).map(worker)));
        let load = |worker: &Worker| Load {
            health: Health::Up,
            memory_free_bytes: (40 + worker.node_id % 50) * MIB,
            memory_total_bytes: 100 * MIB,
            permits_free: 8,
            permits_total: 64,
            running: (worker.node_id % 13) as u32,
            rtt_us: if worker.node_id == 0 { 0 } else { 300 + worker.node_id as u32 * 100 },
            ..Load::default()
        };
        let view = View {
            loads: workers.as_slice().iter().map(load).collect(),
            running: vec![WorkerSet::default()],
            ..View::default()
        };
        Self { workers, view }
    }
}

/// Nanoseconds of one decision, over one round.
fn round(policy: &Compiled, request: &Request<'_>, view: &View, first: u64) -> f64 {
    let started = Instant::now();
    for random in first..first + DECISIONS {
        black_box(place(black_box(policy), black_box(request), black_box(view), 1_000, random));
    }
    started.elapsed().as_nanos() as f64 / DECISIONS as f64
}

impl Cluster {
    /// The table of a node whose functions have the tag `t`.
    fn table(&self, policy: &Policy) -> Table {
        let everywhere = self.workers.select(|_| true);
        let facts = (0..64).map(|number| FunctionFacts {
            name: format!("function-{number}").into(),
            tag: Some("t".to_owned()),
            alone: WorkerSet::default(),
            code: everywhere,
            data: everywhere,
            running: Arc::default(),
        });
        let calls = |node_id: u64| (node_id != 0).then(CallLoad::default);
        let table = Table::new(policy, self.workers.clone(), facts, calls, None);
        let running = vec![WorkerSet::default(); table.affinity_functions().len()];
        table.with_loads(Loads { loads: self.view.loads.clone(), running })
    }
}

/// Nanoseconds of one decision of a table that may be replaced, over one round.
fn round_of_table(table: &ArcSwap<Table>, first: u64) -> f64 {
    let call = Call { function: "function-7", memory_bytes: 16 * MIB, key: None };
    let started = Instant::now();
    for random in first..first + DECISIONS {
        black_box(table.load().place(black_box(&call), [], 1_000, random));
    }
    started.elapsed().as_nanos() as f64 / DECISIONS as f64
}

/// Median of the rounds in each of some threads.
fn median_of_table(table: &ArcSwap<Table>, threads: usize) -> f64 {
    let rounds = || (0..ROUNDS as u64).map(|at| round_of_table(table, at * DECISIONS)).collect::<Vec<_>>();
    let mut ns: Vec<f64> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(rounds)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    ns.sort_by(f64::total_cmp);
    ns[ns.len() / 2]
}

fn main() {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let cluster = Cluster::new();
    let mut figures = Vec::new();
    for (name, blocks) in CASES {
        let text =
            if blocks.is_empty() { "other: [workers: \"*\"]".to_owned() } else { format!("t: [{blocks}]") };
        let policy = Policy::parse(&text).unwrap_or_else(|error| panic!("{}", error.report("case", &text)));
        let policy = Compiled::new(&policy, cluster.workers.clone());
        let everywhere = cluster.workers.select(|_| true);
        let holders = cluster.workers.select(|worker| worker.node_id % 10 == 3);
        let function =
            policy.function("measure", Some("t"), everywhere).with_data(&cluster.workers, holders);
        let request = Request {
            function: &function,
            memory_bytes: 16 * MIB,
            key: Some(42),
            refused_by: WorkerSet::default(),
        };
        let decision = place(&policy, &request, &cluster.view, 1_000, 1);
        assert!(!matches!(decision, Decision::Refused(_)), "{name}: {decision:?}");
        let rounds = 0..ROUNDS as u64;
        let mut ns: Vec<f64> =
            rounds.map(|at| round(&policy, &request, &cluster.view, at * DECISIONS)).collect();
        ns.sort_by(f64::total_cmp);
        let median = ns[ROUNDS / 2];
        if !as_json {
            println!("{median:>8.0} ns  {name}");
        }
        figures.push(json!({"case": name, "workers": WORKERS, "ns": median}));
    }
    let policy = Policy::parse("t: [{workers: \"*\", strategy: least-loaded}]").expect("a policy");
    let table = ArcSwap::from_pointee(cluster.table(&policy));
    for threads in [1, 2] {
        let (ns, case) =
            (median_of_table(&table, threads), format!("table, least-loaded, {threads} thread(s)"));
        if !as_json {
            println!("{ns:>8.0} ns  {case}");
        }
        figures.push(json!({"case": case, "workers": WORKERS, "ns": ns}));
    }
    if as_json {
        println!("{:#}", Value::Array(figures));
    }
}
