//! The language read literally: slow, without sets, positions and a compiled form. It answers with all workers that a
//! call may go to; where the language draws at random, these are several.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::world::{Member, World};
use crate::placement::{
    AffinityRule, Block, BlockOrder, Distribution, Followup, Health, Limits, Strategy, Tag, Target,
    Tolerance, WorkerList,
};
use crate::replication::mix;

type Names = BTreeSet<String>;

/// The names of all workers that the call may go to; empty if it is refused.
pub(super) fn allowed(world: &World) -> Names {
    let own = world.tag.as_deref().and_then(|tag| world.policy.tag(tag));
    match own.or_else(|| world.policy.tag("default")) {
        Some(tag) => by_tag(world, tag),
        None => without_policy(world),
    }
}

fn by_tag(world: &World, tag: &Tag) -> Names {
    let by_block: Vec<Names> =
        tag.blocks.iter().map(|block| by_block(world, block)).filter(|names| !names.is_empty()).collect();
    let found: Names = match tag.order {
        BlockOrder::BestFirst => by_block.into_iter().next().unwrap_or_default(),
        // Any block may come first.
        BlockOrder::Random => by_block.into_iter().flatten().collect(),
    };
    match (found.is_empty(), tag.followup) {
        (false, _) => found,
        (true, Followup::Fail) => Names::new(),
        (true, Followup::Default) if tag.name == "default" => without_policy(world),
        (true, Followup::Default) => match world.policy.tag("default") {
            Some(default) => by_tag(world, default),
            None => without_policy(world),
        },
    }
}

fn without_policy(world: &World) -> Names {
    let this = &world.members[0];
    if this.has_code && takes_work(world, this) {
        return one(this);
    }
    let able = |member: &&Member| member.has_code && takes_work(world, member) && !is_closed(world, member);
    let able: Vec<&Member> = sorted(world).into_iter().filter(able).collect();
    let not_full: Vec<&Member> = able.iter().copied().filter(|member| !is_full(world, member)).collect();
    nearest(world, if not_full.is_empty() { &able } else { &not_full })
}

/// A worker of a block, with the limits that hold for it.
#[derive(Clone)]
struct Candidate<'a> {
    member: &'a Member,
    limits: Limits,
    strategy: Strategy,
}

/// An entry of the list of workers.
#[derive(Clone)]
enum Item<'a> {
    One(Candidate<'a>),
    Set(Strategy, Vec<Candidate<'a>>),
}

impl<'a> Item<'a> {
    fn candidates(&self) -> Vec<Candidate<'a>> {
        match self {
            Item::One(one) => vec![one.clone()],
            Item::Set(_, all) => all.clone(),
        }
    }
}

fn by_block(world: &World, block: &Block) -> Names {
    let this = &world.members[0];
    // The controller.
    let mut zone_first: Option<String> = None;
    let mut zone_only: Option<Option<String>> = None;
    if let Some(controller) = &block.controller {
        let named = world.members.iter().find(|member| member.name == controller.name.text);
        let its_zone = named.and_then(|member| member.zone.clone());
        let is_there =
            named.is_some_and(|member| member.name == this.name || member.load.health != Health::Away);
        match controller.tolerance {
            _ if is_there => zone_first = its_zone,
            Tolerance::All => zone_first = this.zone.clone(),
            Tolerance::Same => zone_only = Some(its_zone),
            Tolerance::None => return Names::new(),
        }
    }
    let names_none = match &block.workers {
        WorkerList::All => true,
        WorkerList::Listed(entries) => {
            entries.len() == 1
                && matches!(&entries[0].target, Target::Set { labels, .. } if labels.is_empty())
        }
    };
    if !names_none {
        zone_first = None;
    }

    let items = items(world, block);
    let all: Vec<Candidate<'_>> = items.iter().flat_map(Item::candidates).collect();
    let may_run = |candidate: &Candidate<'_>| {
        let member = candidate.member;
        member.has_code
            && takes_work(world, member)
            && !is_closed(world, member)
            && zone_only.as_ref().is_none_or(|zone| zone.is_some() && member.zone == *zone)
            && block.affinity.iter().all(|affinity| {
                let runs = member.runs.contains(&affinity.function.text);
                runs == (affinity.rule == AffinityRule::Runs)
            })
    };
    let is_within_limits = |candidate: &Candidate<'_>| {
        let load = candidate.member.load;
        let used = load.memory_total_bytes - load.memory_free_bytes;
        let limit = candidate.limits.capacity_used_percent;
        let invocations = (load.running + load.queued).max(load.in_flight);
        limit.is_none_or(|percent| used * 100 < u64::from(percent) * load.memory_total_bytes)
            && candidate.limits.max_concurrent_invocations.is_none_or(|max| invocations < max)
    };
    let able: Vec<Candidate<'_>> = all.into_iter().filter(may_run).filter(is_within_limits).collect();
    let mut rest: Vec<&Candidate<'_>> =
        able.iter().filter(|candidate| !is_full(world, candidate.member)).collect();
    let is_overflow = rest.is_empty();
    if is_overflow {
        let platform = |candidate: &&Candidate<'_>| {
            candidate.strategy == Strategy::Platform && candidate.limits == Limits::default()
        };
        rest = able.iter().filter(platform).collect();
    }

    // Workers that come first.
    if let Some(zone) = &zone_first {
        let near: Vec<_> =
            rest.iter().copied().filter(|one| one.member.zone.as_ref() == Some(zone)).collect();
        if !near.is_empty() {
            rest = near;
        }
    }
    for label in &block.prefer {
        let preferred: Vec<_> = rest.iter().copied().filter(|one| has(one.member, &label.text)).collect();
        if !preferred.is_empty() {
            rest = preferred;
            break;
        }
    }

    let names: Names = rest.iter().map(|candidate| candidate.member.name.clone()).collect();
    if let Some(key) = world.key.filter(|_| block.sticky) {
        let weight = |member: &&Member| {
            let position = world.members.iter().position(|other| other.name == member.name).unwrap();
            let product = u128::from(mix(key)) * u128::from(mix(position as u64 + 1));
            (product >> 64) as u64 ^ product as u64
        };
        let chosen = world.members.iter().filter(|member| names.contains(&member.name)).max_by_key(weight);
        return chosen.map(one).unwrap_or_default();
    }
    if is_overflow {
        return names;
    }
    by_strategy(world, block.strategy, &items, &names)
}

/// The entries with their workers, each worker at its first place only.
fn items<'a>(world: &'a World, block: &Block) -> Vec<Item<'a>> {
    let by_name = sorted(world);
    let entries = match &block.workers {
        WorkerList::All => {
            let all = by_name.into_iter();
            return all
                .map(|member| {
                    Item::One(Candidate { member, limits: block.limits, strategy: block.strategy })
                })
                .collect();
        }
        WorkerList::Listed(entries) => entries,
    };
    // The entry that names the worker itself is the nearest to it.
    let own_limits = |member: &Member| {
        entries.iter().find_map(|entry| match &entry.target {
            Target::Worker(name) if name.text == member.name => Some(entry.limits),
            _ => None,
        })
    };
    let mut taken: Vec<&str> = Vec::new();
    let mut items = Vec::new();
    for entry in entries {
        let (members, own_strategy): (Vec<&Member>, _) = match &entry.target {
            Target::Worker(name) => {
                (by_name.iter().copied().filter(|member| member.name == name.text).collect(), None)
            }
            Target::Set { labels, strategy } => {
                let has_all = |member: &&Member| labels.iter().all(|label| has(member, &label.text));
                (by_name.iter().copied().filter(has_all).collect(), *strategy)
            }
        };
        let members: Vec<&Member> =
            members.into_iter().filter(|member| !taken.contains(&member.name.as_str())).collect();
        taken.extend(members.iter().map(|member| member.name.as_str()));
        let strategy = own_strategy.unwrap_or(block.strategy);
        let candidates = members.into_iter().map(|member| {
            let nearest = own_limits(member).unwrap_or(entry.limits);
            let limits = Limits {
                capacity_used_percent: nearest.capacity_used_percent.or(block.limits.capacity_used_percent),
                max_concurrent_invocations: nearest
                    .max_concurrent_invocations
                    .or(block.limits.max_concurrent_invocations),
                overload: nearest.overload || block.limits.overload,
            };
            Candidate { member, limits, strategy }
        });
        match own_strategy {
            Some(strategy) => items.push(Item::Set(strategy, candidates.collect())),
            None => items.extend(candidates.map(Item::One)),
        }
    }
    // A set without workers is no entry.
    items.retain(|item| !item.candidates().is_empty());
    items
}

/// The workers that a strategy may choose among those named.
fn by_strategy(world: &World, strategy: Strategy, items: &[Item<'_>], usable: &Names) -> Names {
    // For each entry the workers that may stand for it.
    let of_item = |item: &Item<'_>| -> Names {
        let usable: Names = item
            .candidates()
            .iter()
            .map(|one| one.member.name.clone())
            .filter(|name| usable.contains(name))
            .collect();
        match item {
            Item::One(_) => usable,
            Item::Set(strategy, candidates) => {
                let singles: Vec<Item<'_>> = candidates.iter().cloned().map(Item::One).collect();
                by_strategy(world, *strategy, &singles, &usable)
            }
        }
    };
    let by_item: Vec<Names> = items.iter().map(of_item).collect();
    match strategy {
        Strategy::BestFirst => by_item.into_iter().find(|names| !names.is_empty()).unwrap_or_default(),
        Strategy::Random => by_item.into_iter().flatten().collect(),
        Strategy::Platform | Strategy::NextCoprime => {
            let length = items.len() as u64;
            if length == 0 {
                return Names::new();
            }
            let hash = xxh3_64(world.function.as_bytes());
            let steps = coprime_steps(length);
            let step = steps[((hash / length) % steps.len() as u64) as usize];
            let walk = (0..length).map(|turn| ((hash % length + turn * step) % length) as usize);
            walk.map(|at| by_item[at].clone()).find(|names| !names.is_empty()).unwrap_or_default()
        }
        // Each entry takes part with one worker; all combinations are possible.
        Strategy::LeastLoaded => combinations(world, &by_item, less_loaded),
        Strategy::Nearest => combinations(world, &by_item, nearest),
        Strategy::Data => combinations(world, &by_item, nearest_to_data),
    }
}

fn combinations(world: &World, by_item: &[Names], choose: fn(&World, &[&Member]) -> Names) -> Names {
    let mut combinations: Vec<Vec<&Member>> = vec![Vec::new()];
    for names in by_item.iter().filter(|names| !names.is_empty()) {
        let members: Vec<&Member> =
            world.members.iter().filter(|member| names.contains(&member.name)).collect();
        combinations = combinations
            .iter()
            .flat_map(|before| members.iter().map(move |member| [before.as_slice(), &[*member]].concat()))
            .collect();
    }
    combinations.iter().flat_map(|members| choose(world, members)).collect()
}

/// The less loaded of any two: a worker can win if another one is not better.
fn less_loaded(world: &World, members: &[&Member]) -> Names {
    let key = |member: &Member| (permille(member), member.name != world.members[0].name);
    let can_win = |member: &&&Member| {
        members.len() == 1
            || members.iter().any(|other| other.name != member.name && key(other) >= key(member))
    };
    members.iter().filter(can_win).map(|member| member.name.clone()).collect()
}

fn nearest(world: &World, members: &[&Member]) -> Names {
    if let Some(this) = members.iter().find(|member| member.name == world.members[0].name) {
        return one(this);
    }
    let Some(least) = members.iter().map(|member| member.load.rtt_us).min() else { return Names::new() };
    let near = |member: &&&Member| member.load.rtt_us <= least + (least / 4).max(1_000);
    let near: Vec<&Member> = members.iter().filter(near).copied().collect();
    less_loaded(world, &near)
}

fn nearest_to_data(world: &World, members: &[&Member]) -> Names {
    let holders: Vec<&Member> = members.iter().copied().filter(|member| member.has_data).collect();
    if !holders.is_empty() {
        return nearest(world, &holders);
    }
    let beside = |member: &&Member| {
        member.zone.is_some()
            && world.members.iter().any(|other| other.has_data && other.zone == member.zone)
    };
    let beside: Vec<&Member> = members.iter().copied().filter(beside).collect();
    nearest(world, if beside.is_empty() { members } else { &beside })
}

/// The greatest of three shares.
fn permille(member: &Member) -> u64 {
    let load = member.load;
    let invocations = u64::from((load.running + load.queued).max(load.in_flight));
    let busy = invocations * 1_000 / u64::from(load.permits_total);
    let memory = (load.memory_total_bytes - load.memory_free_bytes) * 1_000 / load.memory_total_bytes;
    busy.max(u64::from(load.pressure_permille)).max(memory)
}

fn coprime_steps(length: u64) -> Vec<u64> {
    fn are_coprime(a: u64, b: u64) -> bool {
        (2..=a.min(b)).all(|divisor| !a.is_multiple_of(divisor) || !b.is_multiple_of(divisor))
    }
    let mut steps: Vec<u64> = Vec::new();
    for step in 1..=length {
        if are_coprime(step, length) && steps.iter().all(|other| are_coprime(step, *other)) {
            steps.push(step);
        }
    }
    steps
}

fn takes_work(world: &World, member: &Member) -> bool {
    member.load.health == Health::Up && member.load.back_off_until_ms <= world.now_ms && !member.has_refused
}

fn is_full(world: &World, member: &Member) -> bool {
    member.load.permits_free == 0 || member.load.memory_free_bytes < world.memory_bytes
}

fn is_closed(world: &World, member: &Member) -> bool {
    let this = &world.members[0];
    world.policy.distribution == Distribution::Isolated
        && member.name != this.name
        && member.zone.is_some()
        && member.zone != this.zone
}

fn has(member: &Member, label: &str) -> bool {
    member.zone.as_deref() == Some(label) || member.labels.iter().any(|own| own == label)
}

fn sorted(world: &World) -> Vec<&Member> {
    let mut members: Vec<&Member> = world.members.iter().collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    members
}

fn one(member: &Member) -> Names {
    Names::from([member.name.clone()])
}
