//! A cluster for tests: members with their loads, seen from the node `local`.

use std::sync::Arc;

use crate::placement::{
    Compiled, Decision, Explanation, Health, Load, Policy, Request, View, Worker, WorkerSet, Workers,
    explain, place,
};

pub(super) const MIB: u64 = 1024 * 1024;

/// A member.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) zone: Option<String>,
    pub(super) labels: Vec<String>,
    pub(super) load: Load,
    pub(super) has_code: bool,
    pub(super) has_data: bool,
    pub(super) has_refused: bool,
    /// Functions that run there.
    pub(super) runs: Vec<String>,
}

impl Member {
    /// An idle worker.
    pub(super) fn new(name: &str, zone: &str) -> Self {
        Self {
            name: name.into(),
            zone: (!zone.is_empty()).then(|| zone.into()),
            labels: Vec::new(),
            load: Load {
                health: Health::Up,
                memory_free_bytes: 100 * MIB,
                memory_total_bytes: 100 * MIB,
                permits_free: 10,
                permits_total: 10,
                ..Load::default()
            },
            has_code: true,
            has_data: false,
            has_refused: false,
            runs: Vec::new(),
        }
    }

    pub(super) fn labels(mut self, labels: &[&str]) -> Self {
        self.labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self
    }

    pub(super) fn load(mut self, change: impl FnOnce(&mut Load)) -> Self {
        change(&mut self.load);
        self
    }
}

/// A cluster and a call.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) policy: Policy,
    /// The first one is this node.
    pub(super) members: Vec<Member>,
    pub(super) function: String,
    pub(super) tag: Option<String>,
    pub(super) key: Option<u64>,
    pub(super) memory_bytes: u64,
    pub(super) now_ms: u64,
}

impl World {
    pub(super) fn new(policy: &str, tag: &str, members: Vec<Member>) -> Self {
        Self {
            policy: Policy::parse(policy)
                .unwrap_or_else(|error| panic!("{}", error.report("test", policy))),
            members,
            function: "measure".into(),
            tag: (!tag.is_empty()).then(|| tag.into()),
            key: None,
            memory_bytes: MIB,
            now_ms: 1_000,
        }
    }

    /// The node id of a member is its position, from 1.
    pub(super) fn prepare(&self) -> Prepared {
        let mut workers = self.members.iter().enumerate().map(|(index, member)| Worker {
            node_id: index as u64 + 1,
            name: member.name.clone(),
            zone: member.zone.clone(),
            labels: member.labels.clone(),
        });
        let local = workers.next().expect("this node");
        let workers = Arc::new(Workers::new(local, workers));
        let compiled = Compiled::new(&self.policy, workers.clone());
        let member = |worker: &Worker| &self.members[worker.node_id as usize - 1];
        let view = View {
            loads: workers.as_slice().iter().map(|worker| member(worker).load).collect(),
            running: compiled
                .affinity_functions()
                .iter()
                .map(|function| workers.select(|worker| member(worker).runs.contains(function)))
                .collect(),
            ..View::default()
        };
        let code = workers.select(|worker| member(worker).has_code);
        let data = workers.select(|worker| member(worker).has_data);
        let function =
            compiled.function(&self.function, self.tag.as_deref(), code).with_data(&workers, data);
        let refused_by = workers.select(|worker| member(worker).has_refused);
        Prepared { compiled, view, function, refused_by }
    }

    /// The name of the worker that is chosen whatever the random number is.
    pub(super) fn always(&self) -> Option<String> {
        let prepared = self.prepare();
        let first = prepared.place(self, 0);
        for random in 1..50 {
            assert_eq!(prepared.place(self, random), first, "with {random}");
        }
        first
    }

    /// All names that some random number leads to, in order.
    pub(super) fn sometimes(&self, draws: u64) -> Vec<String> {
        let prepared = self.prepare();
        let found: std::collections::BTreeSet<String> =
            (0..draws).filter_map(|random| prepared.place(self, random)).collect();
        found.into_iter().collect()
    }

    pub(super) fn explain(&self, random: u64) -> Explanation {
        let prepared = self.prepare();
        explain(&prepared.compiled, &prepared.request(self), &prepared.view, self.now_ms, random)
    }
}

pub(super) struct Prepared {
    pub(super) compiled: Compiled,
    pub(super) view: View,
    pub(super) function: crate::placement::FunctionPlacement,
    pub(super) refused_by: WorkerSet,
}

impl Prepared {
    pub(super) fn request(&self, world: &World) -> Request<'_> {
        Request {
            function: &self.function,
            memory_bytes: world.memory_bytes,
            key: world.key,
            refused_by: self.refused_by,
        }
    }

    pub(super) fn decide(&self, world: &World, random: u64) -> Decision {
        place(&self.compiled, &self.request(world), &self.view, world.now_ms, random)
    }

    pub(super) fn place(&self, world: &World, random: u64) -> Option<String> {
        match self.decide(world, random) {
            Decision::Local => Some(world.members[0].name.clone()),
            Decision::Worker { node_id, .. } => {
                assert_ne!(node_id, 1, "this node is `Local`");
                Some(world.members[node_id as usize - 1].name.clone())
            }
            Decision::Refused(_) => None,
        }
    }
}
