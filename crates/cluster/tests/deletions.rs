//! Deletions in clusters in virtual time: whatever happens, each node ends with what was written and not deleted by a node that had
//! seen it, and nothing is left of what was deleted.
//!
//! Every test prints its seed; `SIMULATION_SEED=SEED` repeats a run. `DELETION_RUNS` is the number of runs.

mod fields;
mod toy;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use edgefaas_cluster::replication::{Interest, NodeId, ObjectKey, Settings};
use edgefaas_cluster::simulation::{Network, Random, Simulation};
use edgefaas_crdt::{Hlc, Operation, Value};
use fields::{Store, Wall};
use toy::{all_of, policy, secs, seed};

const START_MS: u64 = 1_800_000_000_000;
const OBJECTS: u64 = 6;

/// What plain values say: each element and each amount is added once.
#[derive(Default)]
struct Model {
    added: BTreeMap<(u64, &'static str), BTreeSet<u64>>,
    removed: BTreeMap<(u64, &'static str), BTreeSet<u64>>,
    /// The last write or deletion of registers.
    registers: BTreeMap<u64, (Hlc, u64, Option<u64>)>,
    next: u64,
}

struct World {
    simulation: Simulation<Store>,
    model: Model,
    now_ms: Rc<Cell<u64>>,
    away: BTreeMap<u64, Store>,
    members: Vec<NodeId>,
}

fn object(number: u64) -> ObjectKey {
    ObjectKey::new("app", format!("object-{number}"))
}

/// The elements of a set and a list, or the bits of a counter.
fn elements(value: Option<Value>) -> BTreeSet<u64> {
    match value {
        Some(Value::Values(values) | Value::List(values)) => {
            values.iter().map(|value| std::str::from_utf8(value).unwrap().parse().unwrap()).collect()
        }
        Some(Value::Integer(sum)) => (0..62).filter(|bit| sum & (1 << bit) != 0).collect(),
        Some(other) => panic!("{other:?}"),
        None => BTreeSet::new(),
    }
}

fn interests(node: u64) -> Vec<Interest> {
    match node % 4 {
        3 => Vec::new(),
        2 => vec![Interest { app: "app".into(), pattern: "object-1*".into() }],
        _ => all_of("app"),
    }
}

impl World {
    fn new(seed: u64, random: &mut Random, network: Network) -> Self {
        let settings = Settings {
            lag_bytes: 500 + random.below(5_000) as usize,
            message_bytes: 200 + random.below(3_000) as usize,
            round_objects: 1 + random.below(10) as usize,
            stall: secs(20),
            ..Settings::default()
        };
        let nodes = 2 + random.below(4);
        let now_ms = Rc::new(Cell::new(START_MS));
        let mut simulation = Simulation::new(seed, network, settings);
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        simulation.set_members(&members);
        for node in 0..nodes {
            // Clocks differ by up to an hour.
            let wall = Wall { now_ms: now_ms.clone(), ahead_ms: random.below(3_600_000) };
            simulation.start(NodeId(node), Store::new(node, wall), interests(node));
        }
        simulation.set_members(&members);
        Self { simulation, model: Model::default(), now_ms, away: BTreeMap::new(), members }
    }

    /// Lets time go by; the nodes drop what is agreed.
    fn run_for(&mut self, time: Duration) {
        let end = self.simulation.now() + time;
        while self.simulation.now() < end {
            let step = Duration::from_millis(500).min(end - self.simulation.now());
            self.simulation.run_for(step);
            self.now_ms.set(START_MS + self.simulation.now().as_millis() as u64);
            for node in self.simulation.nodes().collect::<Vec<_>>() {
                let machine = self.simulation.machine(node).unwrap();
                let (agreed_ms, droppable_ms) = (machine.agreed_ms(), machine.droppable_ms());
                let store = self.simulation.replica_mut(node).unwrap();
                store.drop_tombstones(droppable_ms, agreed_ms);
                for from in std::mem::take(&mut store.lost_from) {
                    self.simulation.not_stored(node, from);
                }
            }
        }
    }

    fn operate(&mut self, node: u64, number: u64, name: &'static str, random: &mut Random) {
        let key = object(number);
        let element = self.model.next;
        let added = self.model.added.entry((number, name)).or_default();
        let operation = match name {
            "set" => Operation::SetAdd(element.to_string().into()),
            "list" => Operation::ListPush(element.to_string().into()),
            "counter" => {
                let bit = added.len() as u64;
                if bit >= 60 {
                    return;
                }
                Operation::CounterAdd(1 << bit)
            }
            _ => Operation::RegisterSet(element.to_string().into()),
        };
        let id = match &operation {
            Operation::CounterAdd(amount) => u64::from(amount.trailing_zeros()),
            _ => element,
        };
        let interval_ms = [0, 200, 1_000][random.below(3) as usize];
        let mut made = None;
        let replica = self.simulation.replica_mut(NodeId(node)).unwrap();
        if let Some((at, changes)) = replica.operate(&key, name, operation) {
            made = Some(at);
            replica.sync();
            self.simulation.change(NodeId(node), &key, policy(interval_ms), |_| changes);
        }
        let Some(at) = made else { return };
        self.model.next += 1;
        match name {
            "register" => self.model.write(number, at, node, Some(element)),
            _ => drop(self.model.added.entry((number, name)).or_default().insert(id)),
        }
    }

    fn delete(&mut self, node: u64, number: u64, name: &'static str) {
        let key = object(number);
        let replica = self.simulation.replica_mut(NodeId(node)).unwrap();
        let seen = replica.value(&key, name);
        let Some((at, changes)) = replica.delete(&key, name) else { return };
        replica.sync();
        self.simulation.change(NodeId(node), &key, policy(200), |_| changes);
        match name {
            "register" => self.model.write(number, at, node, None),
            _ => self.model.removed.entry((number, name)).or_default().extend(elements(seen)),
        }
    }

    fn check(&self, node: NodeId) {
        let is_interested = |number: u64| match node.0 % 4 {
            3 => false,
            2 => object(number).object.starts_with("object-1"),
            _ => true,
        };
        let store = self.simulation.replica(node).unwrap();
        if store.tombstones() > 0 {
            for node in self.simulation.nodes() {
                let machine = self.simulation.machine(node).unwrap();
                let store = self.simulation.replica(node).unwrap();
                eprintln!(
                    "{node}: agreed {} of {}, tombstones {:?}, {:?}",
                    machine.agreed_ms().saturating_sub(START_MS),
                    edgefaas_cluster::replication::Replica::clock_ms(store) - START_MS,
                    store.deleted_ms().map(|at| at - START_MS).collect::<Vec<_>>(),
                    machine.counters(),
                );
            }
        }
        assert_eq!(store.tombstones(), 0, "tombstones at {node}");
        for number in (0..OBJECTS).filter(|number| is_interested(*number)) {
            let key = object(number);
            for name in NAMES {
                let value = store.value(&key, name);
                if name == "register" {
                    let expected = self.model.registers.get(&number).and_then(|(_, _, element)| *element);
                    let expected =
                        expected.map(|element| Value::Register(Some(element.to_string().into())));
                    assert_eq!(value, expected, "{key} register at {node}");
                    continue;
                }
                let empty = BTreeSet::new();
                let added = self.model.added.get(&(number, name)).unwrap_or(&empty);
                let removed = self.model.removed.get(&(number, name)).unwrap_or(&empty);
                let expected: BTreeSet<u64> = added - removed;
                assert_eq!(elements(value), expected, "{key} {name} at {node}");
            }
        }
    }
}

impl Model {
    fn write(&mut self, number: u64, at: Hlc, node: u64, element: Option<u64>) {
        let last = self.registers.entry(number).or_default();
        if (at, node) > (last.0, last.1) {
            *last = (at, node, element);
        }
    }
}

const NAMES: [&str; 4] = ["set", "counter", "register", "list"];

#[test]
fn what_no_deletion_has_seen_stays_and_nothing_else() {
    let runs = std::env::var("DELETION_RUNS").map_or(200, |runs| runs.parse().expect("a number"));
    let seed = seed();
    for run in 0..runs {
        random_run(seed.wrapping_add(run), Network::default());
    }
}

#[test]
fn the_same_on_a_transport_that_breaks_its_promises() {
    let seed = seed();
    for run in 0..10 {
        let network = Network { lose: 0.02, duplicate: 0.05, reorder: 0.05, ..Network::default() };
        random_run(seed.wrapping_add(run), network);
    }
}

/// Nodes that write, delete, are cut off, restart, are away for long, and cannot store; then quiet.
fn random_run(seed: u64, network: Network) {
    eprintln!("run SIMULATION_SEED={seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(seed, &mut random, network);
    for _ in 0..150 {
        // Mostly a moment; sometimes long enough that tombstones are dropped.
        let pause = if random.below(12) == 0 { 60_000 } else { 400 };
        world.run_for(Duration::from_millis(random.below(pause)));
        let running: Vec<u64> = world.simulation.nodes().map(|node| node.0).collect();
        let node = running[random.below(running.len() as u64) as usize];
        let other = running[random.below(running.len() as u64) as usize];
        let (number, name) = (random.below(OBJECTS), NAMES[random.below(NAMES.len() as u64) as usize]);
        match random.below(100) {
            0..=49 => world.operate(node, number, name, &mut random),
            50..=69 => world.delete(node, number, name),
            70..=75 => world.simulation.cut(NodeId(node), NodeId(other)),
            76..=79 => world.simulation.partition(|node| (node.0 % 2) as u32),
            80..=85 => world.simulation.heal(),
            86..=88 if running.len() > 1 => {
                let store = world.simulation.stop(NodeId(node)).unwrap();
                world.away.insert(node, store.restarted());
            }
            89..=93 => {
                if let Some((node, store)) = world.away.pop_first() {
                    let members = world.members.clone();
                    world.simulation.start(NodeId(node), store, interests(node));
                    world.simulation.set_members(&members);
                }
            }
            94..=95 => {
                let store = world.simulation.replica_mut(NodeId(node)).unwrap();
                store.is_full = !store.is_full;
            }
            _ => world.simulation.set_interests(NodeId(node), interests(random.below(4))),
        }
    }
    for (node, store) in std::mem::take(&mut world.away) {
        let members = world.members.clone();
        world.simulation.start(NodeId(node), store, interests(node));
        world.simulation.set_members(&members);
    }
    for node in world.members.clone() {
        world.simulation.replica_mut(node).unwrap().is_full = false;
        world.simulation.set_interests(node, interests(node.0));
    }
    world.simulation.heal();
    world.run_for(secs(400));
    for node in world.members.clone() {
        world.check(node);
    }
}
