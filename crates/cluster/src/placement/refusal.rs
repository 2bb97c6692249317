//! Reasons why workers are not used, and why a call is refused.

use std::fmt;

use super::observer::{Note, Observer};
use super::policy::{AffinityRule, Tolerance};
use super::workers::WorkerSet;

/// Why a worker is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// It does not have the function's code.
    NoCode,
    /// It has refused this call.
    HasRefused,
    /// It has no open channel.
    Away,
    /// It finishes its work before a stop.
    Draining,
    /// It reports that it cannot run functions.
    Failing,
    /// It has refused calls, and gets none until this time.
    BackingOff {
        /// The time, in milliseconds of the caller's clock.
        until_ms: u64,
    },
    /// It has refused calls of this function; it gets some until this time only if all others are full.
    Refuses {
        /// The time, in milliseconds of the caller's clock.
        until_ms: u64,
    },
    /// It is in another zone, and `distribution` is `isolated`.
    Isolated,
    /// It is not in the zone of the controller that is away (`topology_tolerance: same`).
    OutsideZone,
    /// A function must run there and does not, or must not and does.
    Affinity {
        /// Position in [`Compiled::affinity_functions`].
        function: u16,
        /// The rule that does not hold.
        rule: AffinityRule,
    },
    /// Its memory is used beyond `capacity_used`.
    CapacityUsed {
        /// Used memory in permille.
        used_permille: u32,
        /// The limit in percent.
        limit_percent: u8,
    },
    /// It has as many invocations as `max_concurrent_invocations`.
    Concurrent {
        /// Running and queued invocations.
        invocations: u32,
        /// The limit.
        limit: u32,
    },
    /// It has no free permit, or not enough free memory.
    Full,
}

impl Skip {
    const KINDS: usize = 13;

    fn kind(self) -> usize {
        match self {
            Self::NoCode => 0,
            Self::HasRefused => 1,
            Self::Away => 2,
            Self::Draining => 3,
            Self::Failing => 4,
            Self::BackingOff { .. } => 5,
            Self::Isolated => 6,
            Self::OutsideZone => 7,
            Self::Affinity { .. } => 8,
            Self::CapacityUsed { .. } => 9,
            Self::Concurrent { .. } => 10,
            Self::Full => 11,
            Self::Refuses { .. } => 12,
        }
    }
}

/// Texts of the kinds of [`Skip`], in the order of their numbers.
const KIND_TEXTS: [&str; Skip::KINDS] = [
    "without the code",
    "refused the call",
    "away",
    "draining",
    "failing",
    "backing off",
    "in another zone (`distribution: isolated`)",
    "outside the controller's zone (`topology_tolerance: same`)",
    "excluded by `affinity`",
    "over `capacity_used`",
    "at `max_concurrent_invocations`",
    "full",
    "refusing calls of the function",
];

/// Why no worker was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Workers by kind of reason. A worker that several blocks name may count for several reasons.
    workers: [u16; Skip::KINDS],
    /// Blocks whose controller is away.
    blocks_without_controller: u16,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self
            .workers
            .iter()
            .zip(KIND_TEXTS)
            .filter(|(count, _)| **count > 0)
            .map(|(count, text)| format!("{count} {text}"))
            .collect::<Vec<_>>();
        if self.blocks_without_controller > 0 {
            parts.push(format!("controller away in {} block(s)", self.blocks_without_controller));
        }
        match parts.is_empty() {
            true => write!(out, "the policy names no member of the cluster"),
            false => write!(out, "no usable worker: {}", parts.join(", ")),
        }
    }
}

/// Counts the reasons of a refusal.
#[derive(Default)]
pub(crate) struct CountReasons {
    workers: [WorkerSet; Skip::KINDS],
    blocks_without_controller: u16,
}

impl CountReasons {
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal {
            workers: self.workers.each_ref().map(|workers| workers.len() as u16),
            blocks_without_controller: self.blocks_without_controller,
        }
    }
}

impl Observer for CountReasons {
    const LISTENS: bool = true;
    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::Skipped { worker, reason } => self.workers[reason.kind()].insert(worker),
            Note::ControllerAway { tolerance: Tolerance::None, .. } => self.blocks_without_controller += 1,
            _ => {}
        }
    }
}
