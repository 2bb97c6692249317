//! Warnings about a valid policy: names that no member has, and parts that can never apply.

use std::collections::BTreeMap;

use super::policy::{
    Block, BlockOrder, DEFAULT_TAG, Entry, Followup, Limits, Name, Place, Policy, Strategy, Tag, Target,
    Tolerance, WorkerList, nearest, report,
};
use super::workers::{Worker, Workers};

/// What the cluster has. Without it only the text is checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// The members, with their zones and labels.
    pub workers: Option<&'a Workers>,
    /// The deployed functions.
    pub functions: Option<&'a [KnownFunction]>,
}

/// A deployed function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its name.
    pub name: String,
    /// The tag of its manifest.
    pub tag: Option<String>,
}

/// A part of a policy that has no effect, or not the expected one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {kind}")]
pub struct Warning {
    /// The place in the text; [`Place::default`] for a warning about something that the text lacks.
    pub place: Place,
    /// The kind.
    pub kind: WarningKind,
}

/// The kinds of a [`Warning`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WarningKind {
    /// No member has the name.
    #[error("no member has the name `{name}`{}", Near(.nearest))]
    UnknownNode {
        /// The name.
        name: String,
        /// The nearest name of a member.
        nearest: Option<String>,
    },
    /// No member has the label, and none is in the zone.
    #[error("no member has the label or the zone `{label}`{}", Near(.nearest))]
    UnknownLabel {
        /// The label.
        label: String,
        /// The nearest label or zone.
        nearest: Option<String>,
    },
    /// No app has the function.
    #[error("no app has the function `{function}`{}", Near(.nearest))]
    UnknownFunction {
        /// The function.
        function: String,
        /// The nearest function.
        nearest: Option<String>,
    },
    /// No deployed function has the tag.
    #[error("no deployed function has `placement = \"{tag}\"`{}", Near(.nearest))]
    UnusedTag {
        /// The tag.
        tag: String,
        /// The nearest tag of a function.
        nearest: Option<String>,
    },
    /// Functions have a tag that the policy does not have, and it has no tag `default`.
    #[error(
        "the policy has no tag `{tag}` and no tag `default`: calls of {} run as without a policy{}",
        Functions(.functions), Near(.nearest)
    )]
    MissingTag {
        /// The tag.
        tag: String,
        /// The functions.
        functions: Vec<String>,
        /// The nearest tag of the policy.
        nearest: Option<String>,
    },
    /// An earlier block is used whenever this one could be.
    #[error(
        "block {number} of tag `{tag}` is never used: the block in line {by_line} can use its workers whenever it can"
    )]
    UnreachableBlock {
        /// The tag.
        tag: String,
        /// The number of the block, from 1.
        number: usize,
        /// The line of the earlier block.
        by_line: u32,
    },
    /// An earlier entry of the block has all workers of this one.
    #[error("this entry has no effect: the entry in line {by_line} has its workers already")]
    UnreachableEntry {
        /// The line of the earlier entry.
        by_line: u32,
    },
    /// The strategy uses full workers before the next block is tried.
    #[error(
        "block {number} of tag `{tag}` uses full workers before the next block is tried; write `invalidate: overload` to try that first"
    )]
    FullWorkersFirst {
        /// The tag.
        tag: String,
        /// The number of the block, from 1.
        number: usize,
    },
    /// No member can ever be chosen by the block.
    #[error("block {number} of tag `{tag}` fits no member of the cluster")]
    BlockFitsNobody {
        /// The tag.
        tag: String,
        /// The number of the block, from 1.
        number: usize,
    },
    /// No member can ever be chosen by the tag.
    #[error("tag `{tag}` fits no member of the cluster: calls of its functions are refused")]
    TagFitsNobody {
        /// The tag.
        tag: String,
    },
}

struct Near<'a>(&'a Option<String>);

impl std::fmt::Display for Near<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map_or(Ok(()), |nearest| write!(out, "; did you mean `{nearest}`?"))
    }
}

/// Number of functions that a warning names. It only counts further ones.
const MAX_NAMED: usize = 4;

struct Functions<'a>(&'a [String]);

impl std::fmt::Display for Functions<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, function) in self.0.iter().take(MAX_NAMED).enumerate() {
            write!(out, "{}`{function}`", if index > 0 { ", " } else { "" })?;
        }
        match self.0.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(out, " and {more} more"),
        }
    }
}

/// The warnings about a policy: first those about tags that it lacks, then the others in the order of its text.
pub fn check(policy: &Policy, known: &Known<'_>) -> Vec<Warning> {
    let mut checker = Checker { known, warnings: Vec::new() };
    checker.missing_tags(policy);
    for tag in &policy.tags {
        checker.used(tag);
        for (index, block) in tag.blocks.iter().enumerate() {
            checker.names(block);
            checker.entries(block);
            checker.reachable(tag, index);
            if known.workers.is_some_and(|workers| fits_nobody(block, workers)) {
                let kind = WarningKind::BlockFitsNobody { tag: tag.name.clone(), number: index + 1 };
                checker.add(block.place, kind);
            }
        }
        if known.workers.is_some_and(|workers| is_always_refused(policy, tag, workers)) {
            checker.add(tag.place, WarningKind::TagFitsNobody { tag: tag.name.clone() });
        }
    }
    checker.warnings.sort_by_key(|warning| warning.place);
    checker.warnings
}

/// All warnings with their lines of the text, for a terminal. `file` is the name that the user knows.
pub fn report_warnings(warnings: &[Warning], file: &str, text: &str) -> String {
    report_messages(file, text, warnings.iter().map(|warning| (warning.place, warning.kind.to_string())))
}

/// The same for warnings of another node, which are texts.
pub fn report_messages(
    file: &str,
    text: &str,
    warnings: impl ExactSizeIterator<Item = (Place, String)>,
) -> String {
    report(file, text, warnings.map(|(place, warning)| (place, format!("warning: {warning}"))))
}

struct Checker<'a> {
    known: &'a Known<'a>,
    warnings: Vec<Warning>,
}

impl Checker<'_> {
    fn add(&mut self, place: Place, kind: WarningKind) {
        self.warnings.push(Warning { place, kind });
    }

    fn used(&mut self, tag: &Tag) {
        let Some(functions) = self.known.functions else { return };
        let mut tags = functions.iter().filter_map(|function| function.tag.as_deref());
        if tag.name != DEFAULT_TAG && tags.clone().all(|used| used != tag.name) {
            let nearest = nearest(&tag.name, &mut tags).map(str::to_owned);
            self.add(tag.place, WarningKind::UnusedTag { tag: tag.name.clone(), nearest });
        }
    }

    fn missing_tags(&mut self, policy: &Policy) {
        let Some(functions) = self.known.functions else { return };
        if policy.tags.is_empty() || policy.tag(DEFAULT_TAG).is_some() {
            return;
        }
        let mut missing = BTreeMap::<&str, Vec<String>>::new();
        for function in functions {
            if let Some(tag) = function.tag.as_deref().filter(|tag| policy.tag(tag).is_none()) {
                missing.entry(tag).or_default().push(function.name.clone());
            }
        }
        for (tag, mut functions) in missing {
            functions.sort();
            let nearest = policy.nearest_tag(tag).map(str::to_owned);
            self.add(Place::default(), WarningKind::MissingTag { tag: tag.to_owned(), functions, nearest });
        }
    }

    fn names(&mut self, block: &Block) {
        if let Some(controller) = &block.controller {
            self.node(&controller.name);
        }
        for entry in entries(block) {
            match &entry.target {
                Target::Worker(name) => self.node(name),
                Target::Set { labels, .. } => labels.iter().for_each(|label| self.label(label)),
            }
        }
        block.prefer.iter().for_each(|label| self.label(label));
        for affinity in &block.affinity {
            self.function(&affinity.function);
        }
    }

    fn node(&mut self, name: &Name) {
        let Some(workers) = self.known.workers else { return };
        let mut names = workers.as_slice().iter().map(|worker| worker.name.as_str());
        if names.clone().all(|known| known != name.text) {
            let nearest = nearest(&name.text, &mut names).map(str::to_owned);
            self.add(name.place, WarningKind::UnknownNode { name: name.text.clone(), nearest });
        }
    }

    fn label(&mut self, label: &Name) {
        let Some(workers) = self.known.workers else { return };
        if workers.as_slice().iter().any(|worker| worker.has_label(&label.text)) {
            return;
        }
        let all = workers.as_slice().iter().flat_map(|worker| worker.labels.iter().chain(&worker.zone));
        let nearest = nearest(&label.text, all.map(String::as_str)).map(str::to_owned);
        self.add(label.place, WarningKind::UnknownLabel { label: label.text.clone(), nearest });
    }

    fn function(&mut self, function: &Name) {
        let Some(functions) = self.known.functions else { return };
        let mut names = functions.iter().map(|function| function.name.as_str());
        if names.clone().all(|name| name != function.text) {
            let nearest = nearest(&function.text, &mut names).map(str::to_owned);
            self.add(
                function.place,
                WarningKind::UnknownFunction { function: function.text.clone(), nearest },
            );
        }
    }

    fn entries(&mut self, block: &Block) {
        for (index, entry) in entries(block).iter().enumerate() {
            let is_repeated = |earlier: &&Entry| match (&earlier.target, &entry.target) {
                (Target::Worker(_), _) => has_workers_of(&earlier.target, &entry.target),
                // A worker of a set gets its own limits by an entry of its own, also after it.
                (Target::Set { .. }, Target::Worker(_)) if entry.limits.is_explicit() => false,
                (Target::Set { .. }, _) => has_workers_of(&earlier.target, &entry.target),
            };
            if let Some(earlier) = entries(block)[..index].iter().find(is_repeated) {
                let by_line = earlier.place.line;
                self.add(entry.place, WarningKind::UnreachableEntry { by_line });
            }
        }
    }

    fn reachable(&mut self, tag: &Tag, index: usize) {
        if tag.order == BlockOrder::Random {
            return;
        }
        let Some((block, number)) = tag.blocks.get(index).zip(Some(index + 1)) else { return };
        if let Some(earlier) = tag.blocks[..index].iter().find(|earlier| covers(earlier, block)) {
            let by_line = earlier.place.line;
            self.add(block.place, WarningKind::UnreachableBlock { tag: tag.name.clone(), number, by_line });
        }
        // The only node of a block queues the calls, as its author expects; of several the free ones are used first.
        if number < tag.blocks.len()
            && !has_one_node(block)
            && choices(block).iter().any(Choice::is_usable_if_full)
        {
            self.add(block.place, WarningKind::FullWorkersFirst { tag: tag.name.clone(), number });
        }
    }
}

fn has_one_node(block: &Block) -> bool {
    matches!(entries(block), [Entry { target: Target::Worker(_), .. }])
}

fn entries(block: &Block) -> &[Entry] {
    match &block.workers {
        WorkerList::All => &[],
        WorkerList::Listed(entries) => entries,
    }
}

/// An entry with what holds for its workers.
struct Choice<'a> {
    /// `None` for all workers.
    target: Option<&'a Target>,
    limits: Limits,
    strategy: Strategy,
}

impl Choice<'_> {
    fn is_usable_if_full(&self) -> bool {
        self.strategy == Strategy::Platform && !self.limits.is_explicit()
    }
}

fn choices(block: &Block) -> Vec<Choice<'_>> {
    match &block.workers {
        WorkerList::All => vec![Choice { target: None, limits: block.limits, strategy: block.strategy }],
        WorkerList::Listed(entries) => entries
            .iter()
            .map(|entry| Choice {
                target: Some(&entry.target),
                limits: entry.limits.within(block.limits),
                strategy: match &entry.target {
                    Target::Set { strategy: Some(own), .. } => *own,
                    _ => block.strategy,
                },
            })
            .collect(),
    }
}

/// True if the earlier block has a usable worker whenever the later one has one, whatever the cluster is.
fn covers(earlier: &Block, later: &Block) -> bool {
    let is_open = match (&earlier.controller, &later.controller) {
        (None, _) => true,
        (Some(controller), _) if controller.tolerance == Tolerance::All => true,
        (Some(controller), Some(other)) => {
            controller.name.text == other.name.text
                && (other.tolerance == Tolerance::None || other.tolerance == controller.tolerance)
        }
        (Some(_), None) => false,
    };
    let is_required = |affinity: &super::policy::Affinity| {
        later
            .affinity
            .iter()
            .any(|other| other.function.text == affinity.function.text && other.rule == affinity.rule)
    };
    let first = choices(earlier);
    let is_covered = |choice: &Choice<'_>| {
        let is_in = |first: &Choice<'_>| match (first.target, choice.target) {
            (None, _) => true,
            (Some(first), Some(target)) => has_workers_of(first, target),
            (Some(Target::Set { labels, .. }), None) => labels.is_empty(),
            (Some(_), None) => false,
        };
        // Any entry of the earlier block may be the one whose limits hold for a worker.
        first.iter().any(is_in) && first.iter().all(|first| is_as_loose(first, choice))
    };
    is_open && earlier.affinity.iter().all(is_required) && choices(later).iter().all(is_covered)
}

/// True if all workers of `other` are among those of `target`, whatever the cluster is.
fn has_workers_of(target: &Target, other: &Target) -> bool {
    match (target, other) {
        (Target::Worker(name), Target::Worker(other)) => name.text == other.text,
        (Target::Set { labels, .. }, Target::Set { labels: others, .. }) => {
            labels.iter().all(|label| others.iter().any(|other| other.text == label.text))
        }
        (Target::Set { labels, .. }, Target::Worker(_)) => labels.is_empty(),
        (Target::Worker(_), Target::Set { .. }) => false,
    }
}

/// True if `first` can use each worker that `other` can use.
fn is_as_loose(first: &Choice<'_>, other: &Choice<'_>) -> bool {
    fn is_at_least<T: Ord>(first: Option<T>, other: Option<T>) -> bool {
        first.is_none_or(|first| other.is_some_and(|other| first >= other))
    }
    is_at_least(first.limits.capacity_used_percent, other.limits.capacity_used_percent)
        && is_at_least(first.limits.max_concurrent_invocations, other.limits.max_concurrent_invocations)
        && (first.is_usable_if_full() || !other.is_usable_if_full())
}

fn is_always_refused(policy: &Policy, tag: &Tag, workers: &Workers) -> bool {
    if !tag.blocks.iter().all(|block| fits_nobody(block, workers)) {
        return false;
    }
    match tag.followup {
        Followup::Fail => true,
        // The rule without a policy uses any member with the code.
        Followup::Default if tag.name == DEFAULT_TAG => false,
        Followup::Default => {
            policy.tag(DEFAULT_TAG).is_some_and(|default| is_always_refused(policy, default, workers))
        }
    }
}

fn fits_nobody(block: &Block, workers: &Workers) -> bool {
    let all = workers.as_slice();
    if let Some(controller) = &block.controller {
        let is_unknown = all.iter().all(|worker| worker.name != controller.name.text);
        if is_unknown && controller.tolerance != Tolerance::All {
            return true;
        }
    }
    let is_in = |worker: &Worker, target: &Target| match target {
        Target::Worker(name) => worker.name == name.text,
        Target::Set { labels, .. } => labels.iter().all(|label| worker.has_label(&label.text)),
    };
    match &block.workers {
        WorkerList::All => false,
        WorkerList::Listed(entries) => {
            !entries.iter().any(|entry| all.iter().any(|worker| is_in(worker, &entry.target)))
        }
    }
}
