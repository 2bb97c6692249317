//! The steps of a decision, for explanations and for the reasons of a refusal.

use super::compiled::{CompiledBlock, CompiledTag};
use super::policy::{Followup, Strategy, Tolerance};
use super::refusal::Skip;
use super::workers::{WorkerIndex, WorkerSet};

/// Watches a decision; what it does has no influence on it.
pub(crate) trait Observer {
    /// False if nothing is noted; then no work is done for it.
    const LISTENS: bool;
    /// A step of the decision.
    fn note(&mut self, note: Note<'_>);
}

/// A step of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note<'a> {
    /// No tag applies, or the tag `default` had no usable worker.
    WithoutPolicy,
    /// The blocks of a tag are tried.
    Tag(&'a CompiledTag),
    /// A block is tried; `number` counts from 1.
    Block { tag: &'a CompiledTag, number: usize, block: &'a CompiledBlock },
    /// The block names a controller that is away.
    ControllerAway { name: &'a str, tolerance: Tolerance, is_member: bool },
    /// A worker of the block is not used.
    Skipped { worker: WorkerIndex, reason: Skip },
    /// The workers that remain.
    Usable(&'a WorkerSet),
    /// Only full workers remain, and the strategy may use them.
    OnlyFull(&'a WorkerSet),
    /// Workers of the zone come first.
    InZone(&'a WorkerSet),
    /// Workers with this label come first.
    Preferred { label: &'a str, workers: &'a WorkerSet },
    /// The choice.
    Chosen { worker: WorkerIndex, by: By },
    /// No worker of the block is usable.
    BlockFailed,
    /// No block of the tag had a usable worker.
    FollowedBy(Followup),
}

/// How a worker was chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    /// By the strategy of the block.
    Strategy(Strategy),
    /// By the key of the call.
    Key,
    /// At random among full ones.
    Overflow,
    /// It is this node.
    Here,
    /// It is the nearest one with the code.
    NearestWithCode,
}

/// Notes nothing.
pub(crate) struct NoObserver;

impl Observer for NoObserver {
    const LISTENS: bool = false;
    fn note(&mut self, _: Note<'_>) {}
}
