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

/// All totals only grow, so the larger one is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) added: u64,
    pub(crate) subtracted: u64,
    /// The amounts of both that deletions of the field have removed.
    pub(crate) removed: Removed,
}

/// The parts of [`Totals`] that do not count any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Removed {
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
        let Removed { added, subtracted } = self.removed;
        (i128::from(self.added) - i128::from(added))
            - (i128::from(self.subtracted) - i128::from(subtracted))
    }

    /// The totals after an addition of `amount`; `None` on overflow.
    pub(crate) fn plus(self, amount: i64) -> Option<Self> {
        if amount < 0 {
            Some(Self { subtracted: self.subtracted.checked_add(amount.unsigned_abs())?, ..self })
        } else {
            Some(Self { added: self.added.checked_add(amount.unsigned_abs())?, ..self })
        }
    }
}

impl Total for Totals {
    fn join(self, other: Self) -> Self {
        Self {
            added: self.added.max(other.added),
            subtracted: self.subtracted.max(other.subtracted),
            removed: Removed {
                added: self.removed.added.max(other.removed.added),
                subtracted: self.removed.subtracted.max(other.removed.subtracted),
            },
        }
    }

    fn checked_plus(self, other: Self) -> Option<Self> {
        Some(Self {
            added: self.added.checked_add(other.added)?,
            subtracted: self.subtracted.checked_add(other.subtracted)?,
            removed: Removed {
                added: self.removed.added.checked_add(other.removed.added)?,
                subtracted: self.removed.subtracted.checked_add(other.removed.subtracted)?,
            },
        })
    }

    fn without_all(self) -> Self {
        Self { removed: Removed { added: self.added, subtracted: self.subtracted }, ..self }
    }

    fn with_removed_of(self, other: Self) -> Self {
        let Removed { added, subtracted } = other.removed;
        let removed = Removed {
            added: self.removed.added.max(added.min(self.added)),
            subtracted: self.removed.subtracted.max(subtracted.min(self.subtracted)),
        };
        Self { removed, ..self }
    }

    fn reserved(up_to: u64) -> Self {
        Self { added: up_to, subtracted: up_to, removed: Removed { added: up_to, subtracted: up_to } }
    }

    fn highest(self) -> u64 {
        self.added.max(self.subtracted)
    }

    fn has_removed(self) -> bool {
        self.removed != Removed::default()
    }

    fn write_removed(self, out: &mut Vec<u8>) {
        self.removed.added.write(out);
        self.removed.subtracted.write(out);
    }

    fn read_removed(self, from: &mut Reader<'_>) -> Result<Self, Error> {
        let removed = Removed { added: u64::read(from)?, subtracted: u64::read(from)? };
        Ok(Self { removed, ..self })
    }
}

/// Without [`Removed`], which has a form of its own: amounts in maps never have any.
impl Wire for Totals {
    fn write(&self, out: &mut Vec<u8>) {
        self.added.write(out);
        self.subtracted.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { added: u64::read(from)?, subtracted: u64::read(from)?, removed: Removed::default() })
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
