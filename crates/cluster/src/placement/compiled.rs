//! A policy compiled against the members: names and labels become positions and sets.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::policy::{
    AffinityRule, Block, BlockOrder, DEFAULT_TAG, Distribution, Followup, Limits, Place, Policy, Strategy,
    Target, Tolerance, WorkerList,
};
use super::view::FunctionPlacement;
use super::workers::{Worker, WorkerIndex, WorkerSet, Workers};
use crate::replication::mix;

/// A policy compiled against the members. Make it anew when the policy, the members, their zones or labels change.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub(crate) workers: Arc<Workers>,
    pub(crate) tags: Vec<CompiledTag>,
    pub(crate) default_tag: Option<u16>,
    /// Hashes of the node ids, for rendezvous hashing.
    pub(crate) node_hashes: Vec<u64>,
    /// Workers that this node may not use at all, by `distribution: isolated`.
    pub(crate) closed: WorkerSet,
    /// Workers in the zone of this node.
    pub(crate) own_zone: WorkerSet,
    /// Functions that `affinity` names, each once.
    affinity_functions: Vec<String>,
    tags_by_name: HashMap<String, u16>,
}

/// A tag.
#[derive(Debug, Clone)]
pub(crate) struct CompiledTag {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) order: BlockOrder,
    pub(crate) followup: Followup,
    pub(crate) blocks: Vec<CompiledBlock>,
}

/// A block.
#[derive(Debug, Clone)]
pub(crate) struct CompiledBlock {
    pub(crate) place: Place,
    pub(crate) controller: Option<CompiledController>,
    pub(crate) list: List,
    /// Do workers of the controller's zone come first? Only if the block names no workers.
    pub(crate) is_zone_first: bool,
    /// The distinct limits of workers.
    pub(crate) limits: Vec<Limits>,
    /// For each worker the position in `limits`.
    pub(crate) limits_of: Vec<u16>,
    /// Workers that may be used while they are full: their strategy is `platform`, and they have no limits.
    pub(crate) usable_if_full: WorkerSet,
    pub(crate) prefer: Vec<(String, WorkerSet)>,
    /// Positions in the list of affinity functions.
    pub(crate) affinity: Vec<(u16, AffinityRule)>,
    pub(crate) is_sticky: bool,
}

/// A named controller.
#[derive(Debug, Clone)]
pub(crate) struct CompiledController {
    pub(crate) name: String,
    /// `None` if no member has the name.
    pub(crate) index: Option<WorkerIndex>,
    pub(crate) tolerance: Tolerance,
    /// Workers in its zone.
    pub(crate) zone: WorkerSet,
}

/// Entries among which a strategy chooses. Each worker is in one entry.
#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) strategy: Strategy,
    pub(crate) entries: Vec<Slot>,
    pub(crate) members: WorkerSet,
    /// Sets with a strategy of their own.
    pub(crate) groups: Vec<List>,
    /// Step sizes of `platform`.
    pub(crate) steps: Arc<[u16]>,
}

/// An entry of a [`List`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    Worker(WorkerIndex),
    /// Position in `groups`.
    Group(u16),
}

impl Compiled {
    /// Compiles a policy. Names that no member has match nothing.
    pub fn new(policy: &Policy, workers: Arc<Workers>) -> Self {
        let mut compiler = Compiler { workers: &workers, functions: Vec::new(), steps: HashMap::new() };
        let tags: Vec<CompiledTag> = policy
            .tags
            .iter()
            .map(|tag| CompiledTag {
                name: tag.name.clone(),
                place: tag.place,
                order: tag.order,
                followup: tag.followup,
                blocks: tag.blocks.iter().map(|block| compiler.block(block)).collect(),
            })
            .collect();
        let affinity_functions = compiler.functions;
        let local = workers.get(workers.local());
        let own = local.and_then(|worker| worker.zone.as_deref());
        let own_zone = workers.select(|worker| own.is_some() && worker.zone.as_deref() == own);
        let closed = match policy.distribution {
            Distribution::Isolated => {
                let mut closed = workers.select(|worker| worker.zone.is_some()).difference(&own_zone);
                closed.remove(workers.local());
                closed
            }
            _ => WorkerSet::default(),
        };
        let tags_by_name: HashMap<String, u16> =
            tags.iter().enumerate().map(|(index, tag)| (tag.name.clone(), index as u16)).collect();
        Self {
            default_tag: tags_by_name.get(DEFAULT_TAG).copied(),
            tags,
            node_hashes: workers.as_slice().iter().map(|worker| mix(worker.node_id)).collect(),
            closed,
            own_zone,
            affinity_functions,
            tags_by_name,
            workers,
        }
    }

    /// The members that it was compiled against.
    pub fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// The functions whose workers [`View::running`](super::View::running) lists, in its order.
    pub fn affinity_functions(&self) -> &[String] {
        &self.affinity_functions
    }

    /// A function with the tag of its manifest. An unknown tag counts as none: the tag `default` applies, if it
    /// exists. `code` are the workers with the function's code.
    pub fn function(&self, name: &str, tag: Option<&str>, code: WorkerSet) -> FunctionPlacement {
        let own = tag.and_then(|tag| self.tags_by_name.get(tag).copied());
        FunctionPlacement {
            tag: own.or(self.default_tag),
            hash: xxh3_64(name.as_bytes()),
            code,
            ..FunctionPlacement::default()
        }
    }
}

struct Compiler<'a> {
    workers: &'a Workers,
    functions: Vec<String>,
    steps: HashMap<usize, Arc<[u16]>>,
}

impl Compiler<'_> {
    fn block(&mut self, block: &Block) -> CompiledBlock {
        let groups_of = |label: &str| self.workers.select(|worker| worker.has_label(label));
        let prefer =
            block.prefer.iter().map(|label| (label.text.clone(), groups_of(&label.text))).collect();
        let controller = block.controller.as_ref().map(|controller| {
            let name = controller.name.text.clone();
            let found = self.workers.as_slice().iter().find(|worker| worker.name == name);
            let zone = found.and_then(|worker| worker.zone.as_deref());
            CompiledController {
                index: found.and_then(|worker| self.workers.index_of(worker.node_id)),
                tolerance: controller.tolerance,
                zone: self.workers.select(|worker| zone.is_some() && worker.zone.as_deref() == zone),
                name,
            }
        });
        let mut draft = Draft::new(block, self.workers);
        match &block.workers {
            WorkerList::All => draft.set(&[], None, Limits::default()),
            WorkerList::Listed(entries) => {
                for entry in entries {
                    match &entry.target {
                        Target::Worker(name) => draft.worker(&name.text, entry.limits),
                        Target::Set { labels, strategy } => {
                            let labels: Vec<&str> =
                                labels.iter().map(|label| label.text.as_str()).collect();
                            draft.set(&labels, *strategy, entry.limits);
                        }
                    }
                }
            }
        }
        let affinity = block.affinity.iter().map(|affinity| {
            let name = &affinity.function.text;
            let known = self.functions.iter().position(|known| known == name);
            let index = known.unwrap_or_else(|| {
                self.functions.push(name.clone());
                self.functions.len() - 1
            });
            (index as u16, affinity.rule)
        });
        let affinity = affinity.collect();
        let usable_if_full = draft.usable_if_full();
        let Draft { mut list, limits, limits_of, .. } = draft;
        list.steps = self.steps(list.entries.len());
        for group in &mut list.groups {
            group.steps = self.steps(group.entries.len());
        }
        CompiledBlock {
            place: block.place,
            controller,
            is_zone_first: names_no_workers(&block.workers),
            list,
            limits,
            limits_of,
            usable_if_full,
            prefer,
            affinity,
            is_sticky: block.sticky,
        }
    }

    /// Step sizes for a list of this length: pairwise coprime, and coprime with the length, so that each visits all.
    fn steps(&mut self, length: usize) -> Arc<[u16]> {
        let made = self.steps.entry(length).or_insert_with(|| {
            let mut steps: Vec<usize> = Vec::new();
            for step in 1..=length.max(1) {
                if gcd(step, length) == 1 && steps.iter().all(|other| gcd(step, *other) == 1) {
                    steps.push(step);
                }
            }
            if steps.is_empty() {
                steps.push(1);
            }
            steps.into_iter().map(|step| step as u16).collect()
        });
        made.clone()
    }
}

fn names_no_workers(workers: &WorkerList) -> bool {
    match workers {
        WorkerList::All => true,
        WorkerList::Listed(entries) => {
            matches!(entries.as_slice(), [one] if matches!(&one.target, Target::Set { labels, .. } if labels.is_empty()))
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The list of a block while it is made.
struct Draft<'a> {
    workers: &'a Workers,
    block_limits: Limits,
    list: List,
    limits: Vec<Limits>,
    limits_of: Vec<u16>,
    /// Workers that an entry of their own has given limits.
    named: WorkerSet,
}

impl<'a> Draft<'a> {
    fn new(block: &Block, workers: &'a Workers) -> Self {
        Self {
            workers,
            block_limits: block.limits,
            list: List::new(block.strategy),
            limits: vec![block.limits],
            limits_of: vec![0; workers.as_slice().len()],
            named: WorkerSet::default(),
        }
    }

    /// A worker by its name. Its limits count more than those of a set that it is in, before or after it.
    fn worker(&mut self, name: &str, own: Limits) {
        let Some(index) = self.workers.as_slice().iter().position(|worker| worker.name == name) else {
            return;
        };
        let index = index as WorkerIndex;
        if self.named.contains(index) {
            return;
        }
        self.named.insert(index);
        let limits = self.limits(own);
        self.limits_of[usize::from(index)] = limits;
        if !self.list.members.contains(index) {
            self.list.members.insert(index);
            self.list.entries.push(Slot::Worker(index));
        }
    }

    /// The workers of a set that no entry before it has.
    fn set(&mut self, labels: &[&str], strategy: Option<Strategy>, own: Limits) {
        let has_all = |worker: &Worker| labels.iter().all(|label| worker.has_label(label));
        let new = self.workers.select(has_all).difference(&self.list.members);
        if new.is_empty() {
            return;
        }
        let limits = self.limits(own);
        for index in new.iter() {
            self.limits_of[usize::from(index)] = limits;
        }
        self.list.members = self.list.members.union(&new);
        match strategy {
            Some(strategy) => {
                let entries = new.iter().map(Slot::Worker).collect();
                self.list.entries.push(Slot::Group(self.list.groups.len() as u16));
                self.list.groups.push(List { entries, members: new, ..List::new(strategy) });
            }
            None => self.list.entries.extend(new.iter().map(Slot::Worker)),
        }
    }

    fn limits(&mut self, own: Limits) -> u16 {
        let limits = own.within(self.block_limits);
        let known = self.limits.iter().position(|known| *known == limits);
        known.unwrap_or_else(|| {
            self.limits.push(limits);
            self.limits.len() - 1
        }) as u16
    }

    fn usable_if_full(&self) -> WorkerSet {
        let mut set = WorkerSet::default();
        for index in self.list.members.iter() {
            let group = self.list.groups.iter().find(|group| group.members.contains(index));
            let strategy = group.map_or(self.list.strategy, |group| group.strategy);
            let limits = self.limits[usize::from(self.limits_of[usize::from(index)])];
            if strategy == Strategy::Platform && !limits.is_explicit() {
                set.insert(index);
            }
        }
        set
    }
}

impl List {
    fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            entries: Vec::new(),
            members: WorkerSet::default(),
            groups: Vec::new(),
            steps: Arc::from([1_u16]),
        }
    }
}
