//! The decision where a call runs.

use super::compiled::{Compiled, CompiledBlock, CompiledTag};
use super::observer::{By, NoObserver, Note, Observer};
use super::policy::{AffinityRule, BlockOrder, Followup, Limits, MAX_BLOCKS_OF_TAG, Tolerance};
use super::refusal::{CountReasons, Refusal, Skip};
use super::strategy::{Choice, Draws};
use super::view::{Health, Load, Request, View};
use super::workers::{WorkerIndex, WorkerSet};

/// Where a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// On this node.
    Local,
    /// On another one.
    Worker {
        /// Its node.
        node_id: u64,
        /// Its position among the workers.
        index: WorkerIndex,
    },
    /// Nowhere.
    Refused(Refusal),
}

/// Decides where a call runs.
///
/// A worker that is away, draining or failing, that has refused the call or is backing off, or that does not have the
/// function's code is never chosen. Equal arguments give equal decisions; `random` is any random number. Without a
/// refusal nothing is allocated. Time: O(workers) per block that is tried.
pub fn place(policy: &Compiled, request: &Request<'_>, view: &View, now_ms: u64, random: u64) -> Decision {
    match decide(policy, request, view, now_ms, random, &mut NoObserver) {
        Some(index) => located(policy, index),
        None => {
            let mut count = CountReasons::default();
            decide(policy, request, view, now_ms, random, &mut count);
            Decision::Refused(count.refusal())
        }
    }
}

pub(crate) fn located(policy: &Compiled, index: WorkerIndex) -> Decision {
    match policy.workers.get(index) {
        Some(worker) if index != policy.workers.local() => {
            Decision::Worker { node_id: worker.node_id, index }
        }
        _ => Decision::Local,
    }
}

/// The chosen worker; `None` if the call is refused.
pub(crate) fn decide<O: Observer>(
    policy: &Compiled,
    request: &Request<'_>,
    view: &View,
    now_ms: u64,
    random: u64,
    observer: &mut O,
) -> Option<WorkerIndex> {
    let mut run = Run {
        policy,
        request,
        view,
        now_ms,
        draws: Draws::new(random),
        choice: Choice { compiled: policy, request, view },
        observer,
    };
    let mut next = request.function.tag;
    while let Some(index) = next {
        let Some(tag) = policy.tags.get(usize::from(index)) else { break };
        if let Some(found) = run.tag(tag) {
            return Some(found);
        }
        run.observer.note(Note::FollowedBy(tag.followup));
        next = match tag.followup {
            Followup::Fail => return None,
            // The tag `default` is followed by the rule without a policy.
            Followup::Default => policy.default_tag.filter(|default| *default != index),
        };
    }
    run.without_policy()
}

struct Run<'a, O> {
    policy: &'a Compiled,
    request: &'a Request<'a>,
    view: &'a View,
    now_ms: u64,
    draws: Draws,
    choice: Choice<'a>,
    observer: &'a mut O,
}

impl<O: Observer> Run<'_, O> {
    fn tag(&mut self, tag: &CompiledTag) -> Option<WorkerIndex> {
        self.observer.note(Note::Tag(tag));
        let count = tag.blocks.len().min(MAX_BLOCKS_OF_TAG);
        let mut order: [u8; MAX_BLOCKS_OF_TAG] = std::array::from_fn(|index| index as u8);
        let order = &mut order[..count];
        if tag.order == BlockOrder::Random {
            // Fisher and Yates.
            for last in (1..count).rev() {
                order.swap(last, self.draws.below(last + 1));
            }
        }
        order.iter().find_map(|index| self.block(tag, usize::from(*index)))
    }

    fn block(&mut self, tag: &CompiledTag, index: usize) -> Option<WorkerIndex> {
        let block = tag.blocks.get(index)?;
        self.observer.note(Note::Block { tag, number: index + 1, block });
        let found = match self.scope(block) {
            Some(scope) => self.choose(block, &scope),
            None => None,
        };
        if found.is_none() {
            self.observer.note(Note::BlockFailed);
        }
        found
    }

    /// What the controller of the block means for its workers; `None` if the block is refused.
    fn scope(&mut self, block: &CompiledBlock) -> Option<Scope> {
        let first = |zone: &WorkerSet| Scope { first: block.is_zone_first.then_some(*zone), only: None };
        let Some(controller) = &block.controller else { return Some(Scope { first: None, only: None }) };
        let is_local = controller.index == Some(self.policy.workers.local());
        let is_away = |index| self.view.load(index).health == Health::Away;
        if is_local || !controller.index.is_none_or(is_away) {
            return Some(first(&controller.zone));
        }
        let (name, tolerance) = (controller.name.as_str(), controller.tolerance);
        self.observer.note(Note::ControllerAway { name, tolerance, is_member: controller.index.is_some() });
        match tolerance {
            Tolerance::All => Some(first(&self.policy.own_zone)),
            Tolerance::Same => Some(Scope { first: None, only: Some(controller.zone) }),
            Tolerance::None => None,
        }
    }

    fn choose(&mut self, block: &CompiledBlock, scope: &Scope) -> Option<WorkerIndex> {
        let Fit { usable, full } = self.fit(block, scope);
        let is_overflow = usable.is_empty();
        let mut candidates = if is_overflow { full } else { usable };
        if candidates.is_empty() {
            return None;
        }
        let note = if is_overflow { Note::OnlyFull(&candidates) } else { Note::Usable(&candidates) };
        self.observer.note(note);
        if let Some(zone) = &scope.first {
            let near = candidates.intersection(zone);
            if !near.is_empty() {
                candidates = near;
                self.observer.note(Note::InZone(&candidates));
            }
        }
        for (label, workers) in &block.prefer {
            let preferred = candidates.intersection(workers);
            if !preferred.is_empty() {
                candidates = preferred;
                self.observer.note(Note::Preferred { label, workers: &candidates });
                break;
            }
        }
        let key = self.request.key.filter(|_| block.is_sticky);
        let (found, by) = match (key, is_overflow) {
            (Some(key), _) => (self.choice.by_key(&candidates, key), By::Key),
            (None, true) => (self.choice.any(&candidates, &mut self.draws), By::Overflow),
            (None, false) => {
                let found = self.choice.by_strategy(&block.list, &candidates, &mut self.draws);
                (found, By::Strategy(block.list.strategy))
            }
        };
        if let Some(worker) = found {
            self.observer.note(Note::Chosen { worker, by });
        }
        found
    }

    /// Sorts the workers of a block into usable ones, full ones that may be used, and others.
    fn fit(&mut self, block: &CompiledBlock, scope: &Scope) -> Fit {
        let mut able = block.list.members;
        self.exclude(&mut able, &block.list.members.difference(&self.request.function.code), Skip::NoCode);
        self.exclude(&mut able, &self.request.refused_by, Skip::HasRefused);
        self.exclude(&mut able, &self.policy.closed, Skip::Isolated);
        if let Some(zone) = &scope.only {
            self.exclude(&mut able, &block.list.members.difference(zone), Skip::OutsideZone);
        }
        for &(function, rule) in &block.affinity {
            let running = self.view.runs(function);
            let excluded = match rule {
                AffinityRule::Runs => block.list.members.difference(&running),
                AffinityRule::RunsNot => running,
            };
            self.exclude(&mut able, &excluded, Skip::Affinity { function, rule });
        }
        let mut fit = Fit { usable: able, full: WorkerSet::default() };
        let refusals = self.request.function.refusals.at(self.now_ms);
        for worker in able.iter() {
            let limits =
                block.limits_of.get(usize::from(worker)).and_then(|at| block.limits.get(usize::from(*at)));
            let load = self.view.load(worker);
            let unfit = unfit(&load, limits, self.now_ms, self.request.memory_bytes);
            // Its load says that it takes calls, but it has refused those of this function.
            let refuses = || refusals?.until_ms(worker).map(|until_ms| Skip::Refuses { until_ms });
            let Some(reason) = unfit.or_else(refuses) else { continue };
            fit.usable.remove(worker);
            if matches!(reason, Skip::Full | Skip::Refuses { .. }) && block.usable_if_full.contains(worker)
            {
                fit.full.insert(worker);
            }
            self.observer.note(Note::Skipped { worker, reason });
        }
        fit
    }

    fn exclude(&mut self, able: &mut WorkerSet, excluded: &WorkerSet, reason: Skip) {
        if O::LISTENS {
            for worker in able.intersection(excluded).iter() {
                self.observer.note(Note::Skipped { worker, reason });
            }
        }
        *able = able.difference(excluded);
    }

    /// Why a worker takes no work at all.
    fn unavailable(&self, worker: WorkerIndex) -> Option<Skip> {
        unavailable(&self.view.load(worker), self.now_ms)
    }

    /// The rule without a policy: this node if it has the code, else the nearest worker that has it. Full workers are
    /// used if there are no others.
    fn without_policy(&mut self) -> Option<WorkerIndex> {
        self.observer.note(Note::WithoutPolicy);
        let local = self.policy.workers.local();
        let mut able = self.request.function.code;
        self.exclude(&mut able, &self.request.refused_by, Skip::HasRefused);
        if able.contains(local) && self.unavailable(local).is_none() {
            self.observer.note(Note::Chosen { worker: local, by: By::Here });
            return Some(local);
        }
        self.exclude(&mut able, &self.policy.closed, Skip::Isolated);
        let (mut usable, mut full) = (WorkerSet::default(), WorkerSet::default());
        let refusals = self.request.function.refusals.at(self.now_ms);
        let refuses = |worker| refusals.is_some_and(|refusals| refusals.until_ms(worker).is_some());
        for worker in able.iter() {
            match self.unavailable(worker) {
                Some(reason) => self.observer.note(Note::Skipped { worker, reason }),
                None if self.view.load(worker).is_full(self.request.memory_bytes) || refuses(worker) => {
                    full.insert(worker);
                }
                None => usable.insert(worker),
            }
        }
        let candidates = if usable.is_empty() { full } else { usable };
        let found = self.choice.nearest(&candidates, &mut self.draws);
        if let Some(worker) = found {
            self.observer.note(Note::Chosen { worker, by: By::NearestWithCode });
        }
        found
    }
}

/// Why the state of a worker excludes it from a block.
fn unfit(load: &Load, limits: Option<&Limits>, now_ms: u64, memory_bytes: u64) -> Option<Skip> {
    if let Some(reason) = unavailable(load, now_ms) {
        return Some(reason);
    }
    if let Some(limit_percent) = limits.and_then(|limits| limits.capacity_used_percent) {
        let used = load.memory_total_bytes.saturating_sub(load.memory_free_bytes);
        if u128::from(used) * 100 >= u128::from(load.memory_total_bytes) * u128::from(limit_percent) {
            return Some(Skip::CapacityUsed { used_permille: load.memory_used_permille(), limit_percent });
        }
    }
    if let Some(limit) = limits.and_then(|limits| limits.max_concurrent_invocations) {
        let invocations = load.invocations();
        if invocations >= limit {
            return Some(Skip::Concurrent { invocations, limit });
        }
    }
    load.is_full(memory_bytes).then_some(Skip::Full)
}

/// Why a worker takes no work at all.
fn unavailable(load: &Load, now_ms: u64) -> Option<Skip> {
    match load.health {
        Health::Up if load.back_off_until_ms > now_ms => {
            Some(Skip::BackingOff { until_ms: load.back_off_until_ms })
        }
        Health::Up => None,
        Health::Away => Some(Skip::Away),
        Health::Draining => Some(Skip::Draining),
        Health::Failing => Some(Skip::Failing),
    }
}

/// What a controller means for the workers of a block.
struct Scope {
    /// Workers that come first.
    first: Option<WorkerSet>,
    /// The only workers that may be used.
    only: Option<WorkerSet>,
}

/// Workers of a block.
struct Fit {
    usable: WorkerSet,
    full: WorkerSet,
}
