//! Choosing one of the usable workers of a block.

use super::compiled::{Compiled, List, Slot};
use super::policy::Strategy;
use super::view::{Request, View};
use super::workers::{WorkerIndex, WorkerSet};
use crate::replication::mix;

/// Round trips that differ by less than this from the least one are equally near, in microseconds.
pub(crate) const EQUALLY_NEAR_US: u32 = 1_000;

/// Random numbers of one decision, from one random number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    pub(crate) fn new(random: u64) -> Self {
        Self { state: random }
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // One step of splitmix64.
        let drawn = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(drawn) * bound as u128) >> 64) as usize
    }
}

/// Weight of a node for a key, of their hashes: both halves of the product, as in wyhash.
pub(crate) fn weight(key: u64, node: u64) -> u64 {
    let product = u128::from(key) * u128::from(node);
    (product >> 64) as u64 ^ product as u64
}

/// What a choice depends on.
pub(crate) struct Choice<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) request: &'a Request<'a>,
    pub(crate) view: &'a View,
}

impl Choice<'_> {
    /// One of `usable` by the strategy of the list; `None` only if none of them is in the list.
    pub(crate) fn by_strategy(
        &self,
        list: &List,
        usable: &WorkerSet,
        draws: &mut Draws,
    ) -> Option<WorkerIndex> {
        let mut usable = usable.intersection(&list.members);
        // A set with its own strategy takes part with the one that this strategy chooses.
        for group in &list.groups {
            let nominee = self.by_strategy(group, &usable, draws);
            usable = usable.difference(&group.members);
            if let Some(nominee) = nominee {
                usable.insert(nominee);
            }
        }
        let in_slot = |slot: &Slot| match *slot {
            Slot::Worker(index) => usable.contains(index).then_some(index),
            Slot::Group(group) => {
                let members = &list.groups.get(usize::from(group))?.members;
                usable.intersection(members).nth(0)
            }
        };
        match list.strategy {
            Strategy::BestFirst => list.entries.iter().find_map(in_slot),
            Strategy::Random => self.any(&usable, draws),
            Strategy::Platform | Strategy::NextCoprime => {
                let length = list.entries.len();
                let hash = self.request.function.hash;
                let (mut at, rest) = (hash.checked_rem(length as u64)? as usize, hash / length as u64);
                let step = usize::from(*list.steps.get((rest % list.steps.len().max(1) as u64) as usize)?);
                for _ in 0..length {
                    if let Some(found) = list.entries.get(at).and_then(in_slot) {
                        return Some(found);
                    }
                    at = (at + step) % length;
                }
                None
            }
            Strategy::LeastLoaded => self.less_loaded(&usable, draws),
            Strategy::Nearest => self.nearest(&usable, draws),
            Strategy::Data => {
                let function = self.request.function;
                let nearness = [&function.data, &function.near_data];
                let near =
                    nearness.iter().map(|near| usable.intersection(near)).find(|near| !near.is_empty());
                self.nearest(&near.unwrap_or(usable), draws)
            }
        }
    }

    /// Any of them, with equal probability.
    pub(crate) fn any(&self, usable: &WorkerSet, draws: &mut Draws) -> Option<WorkerIndex> {
        match usable.len() {
            0 => None,
            count => usable.nth(draws.below(count)),
        }
    }

    /// The worker with the greatest hash of its node and the key: the same one as long as it is usable (Thaler,
    /// Ravishankar: Using Name-Based Mappings to Increase Hit Rates, 1998).
    pub(crate) fn by_key(&self, usable: &WorkerSet, key: u64) -> Option<WorkerIndex> {
        let key = mix(key);
        let mut best = None;
        for index in usable.iter() {
            let node = self.compiled.node_hashes.get(usize::from(index)).copied().unwrap_or_default();
            let weight = weight(key, node);
            if best.is_none_or(|(most, _)| weight >= most) {
                best = Some((weight, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// This node, else one of the least round trip; among equally near ones the less loaded of two.
    pub(crate) fn nearest(&self, usable: &WorkerSet, draws: &mut Draws) -> Option<WorkerIndex> {
        let local = self.compiled.workers.local();
        if usable.contains(local) {
            return Some(local);
        }
        let rtt = |index: WorkerIndex| self.view.rtt_us(index);
        let least = usable.iter().map(rtt).min()?;
        let far = least.saturating_add(EQUALLY_NEAR_US.max(least / 4));
        let near: WorkerSet = usable.iter().filter(|index| rtt(*index) <= far).collect();
        self.less_loaded(&near, draws)
    }

    /// The less loaded of two that are drawn at random; of equal ones this node, else the first one drawn. With loads
    /// that are a second old, the least loaded of all would get the calls of all nodes at the same time (Mitzenmacher:
    /// The Power of Two Choices in Randomized Load Balancing, 2001).
    fn less_loaded(&self, usable: &WorkerSet, draws: &mut Draws) -> Option<WorkerIndex> {
        let count = usable.len();
        if count < 2 {
            return usable.nth(0);
        }
        let first = draws.below(count);
        let mut second = draws.below(count - 1);
        if second >= first {
            second += 1;
        }
        let (first, second) = (usable.nth(first)?, usable.nth(second)?);
        let load =
            |index: WorkerIndex| (self.view.load(index).permille(), index != self.compiled.workers.local());
        Some(if load(second) < load(first) { second } else { first })
    }
}
