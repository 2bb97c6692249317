//! A counter that goes up and down (PN-counter).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ReplicaId;

/// For each replica what it added and what it subtracted in total.
///
/// Overflow: a local [`add`](Self::add) whose result does not fit an `i64` is refused. A merge cannot
/// be refused without the replicas parting for good, so [`value`](Self::value) stops at the ends of
/// `i64` when concurrent additions went beyond; the state keeps the true totals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    totals: BTreeMap<ReplicaId, Totals>,
}

/// Both only grow, so the larger one is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Totals {
    added: u64,
    subtracted: u64,
}

/// An addition would leave what a counter can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("adding {amount} to a counter of {value} leaves the range of a 64-bit integer")]
pub struct CounterOverflow {
    /// What the counter holds.
    pub value: i64,
    /// What was to be added.
    pub amount: i64,
}

impl Counter {
    /// The sum over all replicas, within `i64`.
    pub fn value(&self) -> i64 {
        // Sums of u64 over fewer than 2^63 replicas fit an i128.
        let sum: i128 = self.totals.values().map(|t| i128::from(t.added) - i128::from(t.subtracted)).sum();
        sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Adds `amount` (negative to subtract) on behalf of `replica` and gives the replica's new totals as
    /// a delta. Refused, without a change, if the value would overflow, or one of the replica's totals.
    pub fn add(&mut self, amount: i64, replica: ReplicaId) -> Result<Self, CounterOverflow> {
        let value = self.value();
        let overflow = CounterOverflow { value, amount };
        value.checked_add(amount).ok_or(overflow)?;

        let mut totals = self.totals.get(&replica).copied().unwrap_or_default();
        let total = if amount < 0 { &mut totals.subtracted } else { &mut totals.added };
        *total = total.checked_add(amount.unsigned_abs()).ok_or(overflow)?;
        self.totals.insert(replica, totals);
        Ok(Self { totals: BTreeMap::from([(replica, totals)]) })
    }

    /// Takes in another state or delta; true if that changed anything.
    pub fn merge(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (replica, theirs) in &other.totals {
            let ours = self.totals.entry(*replica).or_insert_with(|| {
                changed = true;
                Totals::default()
            });
            if theirs.added > ours.added {
                ours.added = theirs.added;
                changed = true;
            }
            if theirs.subtracted > ours.subtracted {
                ours.subtracted = theirs.subtracted;
                changed = true;
            }
        }
        changed
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
