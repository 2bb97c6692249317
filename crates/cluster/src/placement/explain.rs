//! The steps of a decision in words.

use super::compiled::Compiled;
use super::decision::{Decision, decide, located, place};
use super::observer::{By, Note, Observer};
use super::policy::{AffinityRule, Followup, Tolerance};
use super::refusal::{Refusal, Skip};
use super::view::{Request, View};
use super::workers::{WorkerIndex, WorkerSet};

/// Number of names that a step lists. It only counts further ones.
const MAX_NAMES: usize = 8;

/// For a call without a key in a block with `sticky`.
const STICKY: &str = "  the block is `sticky`: a call with a key (the topic of a trigger with `order_by`) goes to the usable \
                      worker that a hash of the key selects; this call has no key";

/// Why a call runs where it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The decision, the one of [`place`] for the same arguments.
    pub decision: Decision,
    /// The steps to it, a line each. Steps inside a block are indented.
    pub steps: Vec<String>,
}

/// The decision of [`place`] for these arguments, with its steps.
pub fn explain(
    policy: &Compiled,
    request: &Request<'_>,
    view: &View,
    now_ms: u64,
    random: u64,
) -> Explanation {
    let mut words = Words { policy, request, now_ms, is_sticky: false, steps: Vec::new() };
    let found = decide(policy, request, view, now_ms, random, &mut words);
    let decision = match found {
        Some(index) => located(policy, index),
        None => place(policy, request, view, now_ms, random),
    };
    let mut steps = words.steps;
    if let Decision::Refused(refusal) = &decision {
        steps.push(refused(refusal));
    }
    Explanation { decision, steps }
}

fn refused(refusal: &Refusal) -> String {
    format!("refused: {refusal}")
}

struct Words<'a> {
    policy: &'a Compiled,
    request: &'a Request<'a>,
    now_ms: u64,
    /// True if the current block is `sticky`.
    is_sticky: bool,
    steps: Vec<String>,
}

impl Words<'_> {
    fn name(&self, worker: WorkerIndex) -> &str {
        self.policy.workers.get(worker).map_or("?", |worker| worker.name.as_str())
    }

    fn names(&self, workers: &WorkerSet) -> String {
        let total = workers.len();
        let mut names: Vec<&str> = workers.iter().take(MAX_NAMES).map(|worker| self.name(worker)).collect();
        let more = format!("{} more", total.saturating_sub(MAX_NAMES));
        if total > MAX_NAMES {
            names.push(&more);
        }
        names.join(", ")
    }

    fn reason(&self, worker: WorkerIndex, reason: Skip) -> String {
        match reason {
            Skip::NoCode if self.request.function.alone.contains(worker) => {
                "runs a revision of its own (`deploy --this-node`)".into()
            }
            Skip::NoCode => "does not have the function's code".into(),
            Skip::HasRefused => "has refused this call".into(),
            Skip::Away => "is away".into(),
            Skip::Draining => "is draining".into(),
            Skip::Failing => "reports that it cannot run functions".into(),
            Skip::BackingOff { until_ms } => {
                let left_ms = until_ms.saturating_sub(self.now_ms);
                format!("has refused calls and gets none for {left_ms} ms")
            }
            Skip::Refuses { until_ms } => {
                let left_ms = until_ms.saturating_sub(self.now_ms);
                format!("has refused calls of the function, and counts as full for {left_ms} ms")
            }
            Skip::Isolated => "is in another zone, which `distribution: isolated` closes".into(),
            Skip::OutsideZone => "is outside the zone of the controller".into(),
            Skip::Affinity { function, rule } => {
                let function =
                    self.policy.affinity_functions().get(usize::from(function)).map_or("?", String::as_str);
                match rule {
                    AffinityRule::Runs => format!("does not run `{function}`, which `affinity` requires"),
                    AffinityRule::RunsNot => format!("runs `{function}`, which `affinity` excludes"),
                }
            }
            Skip::CapacityUsed { used_permille, limit_percent } => {
                let (percent, tenth) = (used_permille / 10, used_permille % 10);
                format!("uses {percent}.{tenth} % of its memory, `capacity_used` is {limit_percent}")
            }
            Skip::Concurrent { invocations, limit } => {
                format!("has {invocations} invocations, `max_concurrent_invocations` is {limit}")
            }
            Skip::Full => "has no free permit, or too little free memory".into(),
        }
    }
}

impl Observer for Words<'_> {
    const LISTENS: bool = true;

    fn note(&mut self, note: Note<'_>) {
        let step = match note {
            Note::WithoutPolicy => {
                "without a policy a call runs on this node if it has the code, else on the nearest node with it".into()
            }
            Note::Tag(tag) => format!("tag `{}` (line {})", tag.name, tag.place.line),
            Note::Block { tag, number, block } => {
                self.is_sticky = block.is_sticky;
                let (tag, line) = (&tag.name, block.place.line);
                format!("block {number} of tag `{tag}` (line {line})")
            }
            Note::ControllerAway { name, tolerance, is_member } => {
                let state = if is_member { "is away" } else { "is not a member of the cluster" };
                let effect = match tolerance {
                    Tolerance::All => "this node takes its place",
                    Tolerance::Same => "only workers in its zone may be used",
                    Tolerance::None => "the block is refused",
                };
                let word = tolerance.word();
                format!("  controller `{name}` {state}: {effect} (`topology_tolerance: {word}`)")
            }
            Note::Skipped { worker, reason } => {
                format!("  {} is skipped: it {}", self.name(worker), self.reason(worker, reason))
            }
            Note::Usable(workers) => format!("  usable: {}", self.names(workers)),
            Note::OnlyFull(workers) => {
                format!("  all are full; strategy `platform` uses a full one of: {}", self.names(workers))
            }
            Note::InZone(workers) => format!("  in the controller's zone, which comes first: {}", self.names(workers)),
            Note::Preferred { label, workers } => {
                format!("  preferred for the label `{label}`: {}", self.names(workers))
            }
            Note::Chosen { worker, by } => {
                let how = match by {
                    By::Strategy(strategy) => format!("by strategy `{}`", strategy.word()),
                    By::Key => "by the hash of the call's key (`sticky`)".into(),
                    By::Overflow => "at random among full ones".into(),
                    By::Here => "as this node".into(),
                    By::NearestWithCode => "as the nearest with the code".into(),
                };
                format!("  {} is chosen {how}", self.name(worker))
            }
            Note::BlockFailed => "  no worker of the block is usable".into(),
            Note::FollowedBy(Followup::Fail) => "no block is left, and `followup` is `fail`".into(),
            Note::FollowedBy(Followup::Default) => "no block is left, and `followup` is `default`".into(),
        };
        if let Note::Chosen { by: By::Strategy(_) | By::Overflow, .. } = note
            && self.is_sticky
        {
            self.steps.push(STICKY.into());
        }
        self.steps.push(step);
    }
}
