//! A counter that goes up and down (PN-counter).

use postcard::Error;

use crate::ReplicaId;
use crate::replica_totals::{ReplicaTotals, Total};
use crate::wire::{Reader, Wire};

/// The total additions and subtractions of each replica.
///
/// Overflow: a local [`add`](Self::add) whose result does not fit an `i64` is refused. A merge cannot
/// be refused without the replicas diverging permanently, so [`value`](Self::value) stops at the ends of
/// `i64` when concurrent additions went beyond; the state keeps the true totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counter {
    pub(crate) tally: ReplicaTotals<Totals>,
}

/// Both totals only grow, so the larger one is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) added: u64,
    pub(crate) subtracted: u64,
}

/// An addition would leave what a counter can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("adding {amount} to a counter of {value} leaves the range of a 64-bit integer")]
pub struct CounterOverflow {
    /// The value of the counter.
    pub value: i64,
    /// The amount to be added.
    pub amount: i64,
}

impl Counter {
    /// The sum over all replicas, within `i64`.
    pub fn value(&self) -> i64 {
        // Sums of u64 over fewer than 2^63 replicas fit an i128.
        let sum: i128 = self.tally.totals().map(Totals::difference).sum();
        sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Adds `amount` (negative to subtract) on behalf of `replica` and gives the replica's new totals as
    /// a delta. Refused, without a change, if the value would overflow, or one of the replica's totals.
    pub fn add(&mut self, amount: i64, replica: ReplicaId) -> Result<Self, CounterOverflow> {
        let value = self.value();
        let overflow = CounterOverflow { value, amount };
        value.checked_add(amount).ok_or(overflow)?;

        let totals = self.tally.get(replica).plus(amount).ok_or(overflow)?;
        Ok(Self { tally: self.tally.set(replica, totals) })
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: &Self) -> bool {
        self.tally.merge(&other.tally)
    }
}

impl Totals {
    pub(crate) fn difference(self) -> i128 {
        i128::from(self.added) - i128::from(self.subtracted)
    }

    /// The totals after an addition of `amount`; `None` on overflow.
    pub(crate) fn plus(self, amount: i64) -> Option<Self> {
        let Self { added, subtracted } = self;
        if amount < 0 {
            Some(Self { subtracted: subtracted.checked_add(amount.unsigned_abs())?, added })
        } else {
            Some(Self { added: added.checked_add(amount.unsigned_abs())?, subtracted })
        }
    }
}

impl Total for Totals {
    fn join(self, other: Self) -> Self {
        Self { added: self.added.max(other.added), subtracted: self.subtracted.max(other.subtracted) }
    }

    fn checked_plus(self, other: Self) -> Option<Self> {
        Some(Self {
            added: self.added.checked_add(other.added)?,
            subtracted: self.subtracted.checked_add(other.subtracted)?,
        })
    }
}

impl Wire for Totals {
    fn write(&self, out: &mut Vec<u8>) {
        self.added.write(out);
        self.subtracted.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { added: u64::read(from)?, subtracted: u64::read(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1, 0);
    const B: ReplicaId = ReplicaId::new(2, 0);

    #[test]
    fn the_whole_range_is_reachable_and_its_end_is_an_error() {
        let mut counter = Counter::default();
        counter.add(i64::MIN, A).unwrap();
        assert_eq!(counter.value(), i64::MIN);
        let before = counter.clone();
        assert_eq!(counter.add(-1, B), Err(CounterOverflow { value: i64::MIN, amount: -1 }));
        assert_eq!(counter, before);
        counter.add(i64::MAX, B).unwrap();
        assert_eq!(counter.value(), -1);
    }

    #[test]
    fn a_replicas_total_that_is_full_is_an_error() {
        let mut counter = Counter::default();
        for _ in 0..2 {
            counter.add(i64::MAX, A).unwrap();
            counter.add(-i64::MAX, A).unwrap();
        }
        assert_eq!(counter.add(2, A), Err(CounterOverflow { value: 0, amount: 2 }));
        counter.add(2, B).unwrap();
        assert_eq!(counter.value(), 2);
    }

    #[test]
    fn concurrent_additions_beyond_the_range_saturate_without_loss() {
        let (mut a, mut b) = (Counter::default(), Counter::default());
        a.add(i64::MAX, A).unwrap();
        b.add(10, B).unwrap();
        a.merge(&b);
        assert_eq!(a.value(), i64::MAX);
        a.add(-4, A).unwrap();
        b.merge(&a);
        b.add(-10, B).unwrap();
        assert_eq!(b.value(), i64::MAX - 4);
    }
}
