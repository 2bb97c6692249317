//! A table of a node over time: keys, affinity, calls in flight, and workers that lie.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::world::MIB;
use crate::calls::CallLoad;
use crate::placement::{
    Call, Decision, FunctionFacts, Health, Load, Loads, Policy, Table, Worker, WorkerSet, Workers,
};

const HERE: u64 = 1;

/// A node with four workers, itself among them.
struct Node {
    policy: Policy,
    workers: Arc<Workers>,
    calls: BTreeMap<u64, CallLoad>,
    running: Arc<AtomicU32>,
    table: Table,
}

impl Node {
    fn new(policy: &str) -> Self {
        let policy = Policy::parse(policy).unwrap();
        let worker = |node_id: u64| Worker {
            node_id,
            name: format!("n{node_id}"),
            zone: Some(if node_id <= 2 { "north".into() } else { "south".into() }),
            labels: Vec::new(),
        };
        let workers = Arc::new(Workers::new(worker(HERE), (2..=4).map(worker)));
        let calls: BTreeMap<u64, CallLoad> =
            (2..=4).map(|node_id| (node_id, CallLoad::default())).collect();
        let running = Arc::<AtomicU32>::default();
        let table = table(&policy, &workers, &calls, &running, WorkerSet::default(), None);
        Self { policy, workers, calls, running, table }
    }

    /// The next table, where only these workers hold the objects of the functions.
    fn next(&mut self, holders: &[u64]) {
        let data = self.workers.select(|worker| holders.contains(&worker.node_id));
        let Self { policy, workers, calls, running, table: before } = self;
        self.table = table(policy, workers, calls, running, data, Some(before));
    }

    fn with_loads(&mut self, change: impl Fn(u64, &mut Load), runs_heavy: &[u64]) {
        self.table = self.table.with_loads(loads(&self.workers, &self.table, change, runs_heavy));
    }

    fn place(&self, key: Option<u64>, now_ms: u64, random: u64) -> Option<u64> {
        self.place_after(key, &[], now_ms, random)
    }

    fn place_after(&self, key: Option<u64>, tried: &[u64], now_ms: u64, random: u64) -> Option<u64> {
        let call = Call { function: "f", memory_bytes: MIB, key };
        match self.table.place(&call, tried.iter().copied(), now_ms, random) {
            Decision::Local => Some(HERE),
            Decision::Worker { node_id, .. } => Some(node_id),
            Decision::Refused(_) => None,
        }
    }

    fn places(&self) -> BTreeSet<u64> {
        (0..100).filter_map(|random| self.place(None, 0, random)).collect()
    }
}

fn table(
    policy: &Policy,
    workers: &Arc<Workers>,
    calls: &BTreeMap<u64, CallLoad>,
    running: &Arc<AtomicU32>,
    data: WorkerSet,
    before: Option<&Table>,
) -> Table {
    let facts = |name: &str| FunctionFacts {
        name: name.into(),
        tag: Some("t".into()),
        alone: WorkerSet::default(),
        code: workers.select(|_| true),
        data,
        running: running.clone(),
    };
    let calls = |node_id: u64| calls.get(&node_id).cloned();
    let table = Table::new(policy, workers.clone(), ["f", "heavy"].map(facts), calls, before);
    let loads = loads(workers, &table, |_, _| {}, &[]);
    table.with_loads(loads)
}

fn loads(workers: &Workers, table: &Table, change: impl Fn(u64, &mut Load), runs_heavy: &[u64]) -> Loads {
    let load = |worker: &Worker| {
        let mut load = Load {
            health: Health::Up,
            memory_free_bytes: 100 * MIB,
            memory_total_bytes: 100 * MIB,
            permits_free: 10,
            permits_total: 10,
            rtt_us: if worker.node_id == HERE { 0 } else { 500 },
            ..Load::default()
        };
        change(worker.node_id, &mut load);
        load
    };
    let running = |_: &String| workers.select(|worker| runs_heavy.contains(&worker.node_id));
    Loads {
        loads: workers.as_slice().iter().map(load).collect(),
        running: table.affinity_functions().iter().map(running).collect(),
    }
}

#[test]
fn calls_with_a_key_stay_on_one_worker_and_only_those_of_a_lost_one_move() {
    let mut node = Node::new("t: [{workers: [n2, n3, n4], sticky: true}]");
    let homes = |node: &Node| -> Vec<u64> {
        let home = |key: u64| {
            let home = node.place(Some(key), 0, 0).unwrap();
            assert!((1..20).all(|random| node.place(Some(key), 0, random) == Some(home)));
            home
        };
        (0..300).map(home).collect()
    };
    let before = homes(&node);
    for worker in 2..=4 {
        let count = before.iter().filter(|home| **home == worker).count();
        assert!((70..130).contains(&count), "{count} of 300 on {worker}");
    }
    node.with_loads(
        |node_id, load| {
            if node_id == 3 {
                load.health = Health::Away;
            }
        },
        &[],
    );
    let after = homes(&node);
    for (before, after) in before.iter().zip(&after) {
        assert!(*after != 3 && (before == after || *before == 3), "{before} moved to {after}");
    }
    node.with_loads(|_, _| {}, &[]);
    assert_eq!(homes(&node), before, "they return");
    // Without a key the strategy decides.
    assert_eq!(Node::new("t: [{workers: \"*\", sticky: true, strategy: nearest}]").places(), [1].into());
}

#[test]
fn data_is_where_the_objects_have_arrived() {
    let mut node = Node::new("t: [{workers: \"*\", strategy: data}]");
    assert_eq!(node.places(), [HERE].into(), "no worker holds them: the nearest");
    node.next(&[3]);
    assert_eq!(node.places(), [3].into());
    node.with_loads(|node_id, load| load.permits_free = u32::from(node_id != 3), &[]);
    assert_eq!(node.places(), [4].into(), "beside it, in its zone");
    node.next(&[1, 2, 3, 4]);
    assert_eq!(node.places(), [HERE].into());
}

#[test]
fn affinity_is_by_what_runs_here_by_reports_and_by_calls_in_flight() {
    let mut apart =
        Node::new("t: [{workers: \"*\", affinity: [\"!heavy\"], strategy: random}, followup: fail]");
    assert_eq!(apart.places(), [1, 2, 3, 4].into());
    apart.running.store(1, Relaxed);
    assert_eq!(apart.places(), [2, 3, 4].into(), "it runs here");
    apart.with_loads(|_, _| {}, &[2]);
    assert_eq!(apart.places(), [3, 4].into(), "the worker reports it");
    let call = apart.table.begin("heavy", 3);
    assert_eq!(apart.places(), [4].into(), "a call that no report shows yet");
    apart.next(&[]);
    assert_eq!(apart.places(), [2, 4].into(), "it is still in flight in the next table");
    drop(call);
    assert_eq!(apart.places(), [2, 3, 4].into());
    drop(apart.table.begin("f", 4));
    apart.running.store(0, Relaxed);

    let mut beside =
        Node::new("t: [{workers: \"*\", affinity: [heavy], strategy: random}, followup: fail]");
    assert_eq!(beside.places(), [].into());
    beside.with_loads(|_, _| {}, &[2]);
    assert_eq!(beside.places(), [2].into());
    let _call = beside.table.begin("heavy", 4);
    assert_eq!(beside.places(), [2, 4].into());
}

#[test]
fn calls_in_flight_and_a_pause_count_in_the_decisions_that_follow() {
    let node = Node::new(
        "t: [{workers: [n2, n3], strategy: best-first, invalidate: [{max_concurrent_invocations: 2}]}, followup: fail]",
    );
    assert_eq!(node.place(None, 0, 0), Some(2));
    node.calls[&2].begin();
    node.calls[&2].begin();
    assert_eq!(node.place(None, 0, 0), Some(3));
    node.calls[&2].end();
    assert_eq!(node.place(None, 0, 0), Some(2));
    node.calls[&2].set_back_off_until_ms(500);
    assert_eq!((node.place(None, 499, 0), node.place(None, 500, 0)), (Some(3), Some(2)));
    assert_eq!(node.place_after(None, &[2, 3], 500, 0), None);
}

/// The calls that reach each worker, if `liar` reports that it is idle and refuses all of them.
fn calls_with_liar(node: &Node, liar: u64, calls: u64, interval_ms: u64) -> BTreeMap<u64, u64> {
    let mut reached = BTreeMap::new();
    for number in 0..calls {
        let now_ms = number * interval_ms;
        let mut tried = Vec::new();
        while let Some(worker) = node.place_after(None, &tried, now_ms, number) {
            *reached.entry(worker).or_insert(0) += 1;
            let call = node.table.begin("f", worker);
            if worker != liar {
                call.accepted();
                break;
            }
            call.refused(now_ms);
            tried.push(worker);
        }
    }
    reached
}

#[test]
fn a_worker_that_lies_gets_few_calls() {
    for strategy in ["best-first", "random", "least-loaded", "platform"] {
        let node =
            Node::new(&format!("t: [{{workers: [n2, n3, n4], strategy: {strategy}}}, followup: fail]"));
        // 10 minutes, 100 calls a second: it would get 60,000 by `best-first`.
        let reached = calls_with_liar(&node, 2, 60_000, 10);
        let liar = reached.get(&2).copied().unwrap_or_default();
        assert!(liar <= 3 + 6 + 600 / 5 + 1, "{strategy}: {liar} of 60,000");
        let others: u64 = reached.iter().filter(|(worker, _)| **worker != 2).map(|(_, count)| count).sum();
        assert_eq!(others, 60_000, "{strategy}: each call runs");
    }
}

#[test]
fn a_worker_that_accepts_again_is_used_again() {
    let node = Node::new("t: [{workers: [n2, n3], strategy: best-first}, followup: fail]");
    for _ in 0..2 {
        node.table.begin("f", 2).refused(0);
    }
    assert_eq!(node.place(None, 0, 0), Some(2), "a queue may be full for a moment");
    node.table.begin("f", 2).refused(0);
    assert_eq!((node.place(None, 99, 0), node.place(None, 100, 0)), (Some(3), Some(2)));
    node.table.begin("f", 2).refused(100);
    assert_eq!((node.place(None, 299, 0), node.place(None, 300, 0)), (Some(3), Some(2)));
    node.table.begin("f", 2).accepted();
    node.table.begin("f", 2).refused(400);
    assert_eq!(node.place(None, 400, 0), Some(2), "the count begins anew");
    // Another function is not affected, and a worker that only refuses is used by `platform` if there is no other.
    let only = Node::new("t: [workers: [n2]]");
    for _ in 0..3 {
        only.table.begin("f", 2).refused(0);
    }
    assert_eq!(only.place(None, 50, 0), Some(2));
    let call = Call { function: "heavy", memory_bytes: MIB, key: None };
    let node = Node::new("t: [{workers: [n2, n3], strategy: best-first}, followup: fail]");
    for _ in 0..3 {
        node.table.begin("f", 2).refused(0);
    }
    let decision = node.table.place(&call, [], 50, 0);
    assert!(matches!(decision, Decision::Worker { node_id: 2, .. }), "{decision:?}");
}
