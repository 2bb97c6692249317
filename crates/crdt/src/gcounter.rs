//! A counter that only goes up (G-counter).

use crate::ReplicaId;
use crate::replica_totals::{ReplicaTotals, Total};

/// The total additions of each replica.
///
/// Overflow: a local [`add`](Self::add) whose result does not fit a `u64` is refused; concurrent ones that go beyond
/// make [`value`](Self::value) stop at its end, while the state keeps the true totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GCounter {
    pub(crate) tally: ReplicaTotals<u64>,
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
        self.tally.totals().fold(0, u64::saturating_add)
    }

    /// Adds `amount` on behalf of `replica` and gives the replica's new total as a delta. Refused, without a change,
    /// if the value would overflow.
    pub fn add(&mut self, amount: u64, replica: ReplicaId) -> Result<Self, GCounterOverflow> {
        let value = self.value();
        let overflow = GCounterOverflow { value, amount };
        value.checked_add(amount).ok_or(overflow)?;
        let total = self.tally.get(replica).checked_add(amount).ok_or(overflow)?;
        Ok(Self { tally: self.tally.set(replica, total) })
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: &Self) -> bool {
        self.tally.merge(&other.tally)
    }
}

impl Total for u64 {
    fn join(self, other: Self) -> Self {
        self.max(other)
    }

    fn checked_plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }
}
