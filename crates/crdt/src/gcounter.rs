//! A counter that only goes up (G-counter).

use postcard::Error;

use crate::ReplicaId;
use crate::replica_totals::{ReplicaTotals, Total};
use crate::wire::{Reader, Wire};

/// The total additions of each replica.
///
/// Overflow: a local [`add`](Self::add) whose result does not fit a `u64` is refused; concurrent ones that go beyond
/// make [`value`](Self::value) stop at its end, while the state keeps the true totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GCounter {
    pub(crate) tally: ReplicaTotals<Sum>,
}

/// Both amounts only grow, so the larger one is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) added: u64,
    /// The part that deletions of the field have removed.
    pub(crate) removed: u64,
}

/// An addition would leave what a G-counter can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("adding {amount} to a g-counter of {value} leaves the range of an unsigned 64-bit integer")]
pub struct GCounterOverflow {
    /// The value of the counter.
    pub value: u64,
    /// The amount to be added.
    pub amount: u64,
}

impl GCounter {
    /// The sum over all replicas, within `u64`.
    pub fn value(&self) -> u64 {
        self.tally.totals().fold(0, |sum, total| sum.saturating_add(total.value()))
    }

    /// Adds `amount` on behalf of `replica` and gives the replica's new total as a delta. Refused, without a change,
    /// if the value would overflow.
    pub fn add(&mut self, amount: u64, replica: ReplicaId) -> Result<Self, GCounterOverflow> {
        let value = self.value();
        let overflow = GCounterOverflow { value, amount };
        value.checked_add(amount).ok_or(overflow)?;
        let total = self.tally.get(replica).plus(amount).ok_or(overflow)?;
        Ok(Self { tally: self.tally.set(replica, total) })
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: &Self) -> bool {
        self.tally.merge(&other.tally)
    }
}

impl Sum {
    fn value(self) -> u64 {
        self.added.saturating_sub(self.removed)
    }

    /// The sum after an addition of `amount`; `None` on overflow.
    pub(crate) fn plus(self, amount: u64) -> Option<Self> {
        Some(Self { added: self.added.checked_add(amount)?, ..self })
    }
}

impl Total for Sum {
    fn join(self, other: Self) -> Self {
        Self { added: self.added.max(other.added), removed: self.removed.max(other.removed) }
    }

    fn checked_plus(self, other: Self) -> Option<Self> {
        Some(Self {
            added: self.added.checked_add(other.added)?,
            removed: self.removed.checked_add(other.removed)?,
        })
    }

    fn without_all(self) -> Self {
        Self { removed: self.added, ..self }
    }

    fn with_removed_of(self, other: Self) -> Self {
        Self { removed: self.removed.max(other.removed.min(self.added)), ..self }
    }

    fn reserved(up_to: u64) -> Self {
        Self { added: up_to, removed: up_to }
    }

    fn highest(self) -> u64 {
        self.added
    }

    fn has_removed(self) -> bool {
        self.removed > 0
    }

    fn write_removed(self, out: &mut Vec<u8>) {
        self.removed.write(out);
    }

    fn read_removed(self, from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { removed: u64::read(from)?, ..self })
    }
}

/// Without the removed part, which has a form of its own.
impl Wire for Sum {
    fn write(&self, out: &mut Vec<u8>) {
        self.added.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { added: u64::read(from)?, removed: 0 })
    }
}
