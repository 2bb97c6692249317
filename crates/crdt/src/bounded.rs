//! A counter that never goes below zero, by escrow: the value is divided into shares, and each node may subtract only
//! from its own share (Balegas et al.: Extending Eventually Consistent Cloud Databases for Enforcing Numeric
//! Invariants, 2015).

use std::collections::BTreeMap;

use postcard::Error;

use crate::wire::{Reader, Wire};

/// Shares and withdrawals by node. The key is the node without its incarnation, because a share survives a restart.
/// Therefore a node must store each of its operations before another node receives the delta.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoundedCounter {
    /// The total that the first node granted to the second. The total that a node granted to itself is the amount
    /// that it added.
    rights: BTreeMap<(u64, u64), u64>,
    /// The total that a node has subtracted.
    used: BTreeMap<u64, u64>,
    /// The share that a node requests from others.
    wanted: BTreeMap<u64, Want>,
    /// A deletion begins a higher generation, which replaces all shares of lower ones.
    generation: u64,
}

/// The request with the higher sequence is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    sequence: u64,
    /// The requested share; 0 for no request.
    share: u64,
}

/// The reason why a bounded counter refuses an operation. The counter is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoundedCounterError {
    /// The node's share is too small. Other nodes may grant more.
    #[error(
        "taking {amount} from a bounded counter of {value} needs a share of as much, and this node has {share}"
    )]
    BelowFloor {
        /// The value of the counter, as far as this node knows.
        value: i64,
        /// The amount that this node may subtract now.
        share: u64,
        /// The amount to be subtracted.
        amount: u64,
    },
    /// The value would leave `i64`.
    #[error("adding {amount} to a bounded counter of {value} leaves the range of a 64-bit integer")]
    Overflow {
        /// The value of the counter.
        value: i64,
        /// The amount to be added.
        amount: i64,
    },
}

impl BoundedCounter {
    /// The value: all additions less all subtractions. If a subtraction arrived before the additions that allowed it,
    /// the value is 0 instead of negative.
    pub fn value(&self) -> i64 {
        let added: i128 =
            self.rights.iter().filter(|((from, to), _)| from == to).map(|(_, n)| i128::from(*n)).sum();
        let used: i128 = self.used.values().map(|n| i128::from(*n)).sum();
        (added - used).clamp(0, i64::MAX.into()) as i64
    }

    /// The amount that a node may subtract now without a grant.
    pub fn share(&self, node: u64) -> u64 {
        let mut share: i128 = 0;
        for (&(from, to), &amount) in &self.rights {
            if to == node {
                share += i128::from(amount);
            } else if from == node {
                share -= i128::from(amount);
            }
        }
        share -= self.used.get(&node).map_or(0, |n| i128::from(*n));
        share.clamp(0, u64::MAX.into()) as u64
    }

    /// True if another node requests a share that this node could [`grant`](Self::grant).
    pub fn needs_grant(&self, node: u64) -> bool {
        self.share(node) / 2 > 0 && self.wishes(node).next().is_some()
    }

    /// Adds `amount`, or subtracts it from the node's share if it is negative, and returns the delta.
    pub fn add(&mut self, amount: i64, node: u64) -> Result<Self, BoundedCounterError> {
        let value = self.value();
        let overflow = BoundedCounterError::Overflow { value, amount };
        if amount < 0 {
            let (share, amount) = (self.share(node), amount.unsigned_abs());
            if share < amount {
                return Err(BoundedCounterError::BelowFloor { value, share, amount });
            }
            let used = self.used.entry(node).or_default();
            *used = used.checked_add(amount).ok_or(overflow)?;
            // The request is fulfilled: other nodes should not grant more.
            self.wish(node, 0);
        } else {
            value.checked_add(amount).ok_or(overflow)?;
            let created = self.rights.get(&(node, node)).copied().unwrap_or_default();
            let created = created.checked_add(amount.unsigned_abs()).ok_or(overflow)?;
            self.rights.insert((node, node), created);
        }
        Ok(self.row(node))
    }

    /// Requests `amount` beyond the node's share from other nodes; 0 withdraws the request.
    pub fn want(&mut self, amount: u64, node: u64) -> Self {
        let share = if amount == 0 { 0 } else { self.share(node).saturating_add(amount) };
        if self.wish(node, share) { self.row(node) } else { Self::default() }
    }

    /// Grants each requesting node at most half of this node's remaining share, and at most the requested amount. No
    /// effect if no node requests a share or none is left.
    pub fn grant(&mut self, node: u64) -> Self {
        let wishes: Vec<(u64, u64)> = self.wishes(node).collect();
        let mut granted = false;
        for (other, lacking) in wishes {
            let gift = lacking.min(self.share(node) / 2);
            let right = self.rights.get(&(node, other)).copied().unwrap_or_default();
            if let (1.., Some(total)) = (gift, right.checked_add(gift)) {
                self.rights.insert((node, other), total);
                granted = true;
            }
        }
        if granted { self.row(node) } else { Self::default() }
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: &Self) -> bool {
        if other.generation != self.generation {
            let is_later = other.generation > self.generation;
            if is_later {
                self.clone_from(other);
            }
            return is_later;
        }
        let rights = join(&mut self.rights, &other.rights);
        let used = join(&mut self.used, &other.used);
        let wanted = join(&mut self.wanted, &other.wanted);
        rights | used | wanted
    }

    /// True if it has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.rights.is_empty() && self.used.is_empty() && self.wanted.is_empty()
    }

    /// An empty counter of this generation. Merged into a counter of a lower one, it deletes that.
    pub(crate) fn of_generation(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.rights.len() * 24 + self.used.len() * 16 + self.wanted.len() * 24
    }

    /// The other nodes that request more than they have, with the missing amount.
    fn wishes(&self, node: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.wanted.iter().filter(move |(other, _)| **other != node).filter_map(|(other, want)| {
            let lacking = want.share.saturating_sub(self.share(*other));
            (lacking > 0).then_some((*other, lacking))
        })
    }

    pub(crate) fn read_of_generation(generation: u64, from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { generation, ..Self::read(from)? })
    }

    fn wish(&mut self, node: u64, share: u64) -> bool {
        let want = self.wanted.get(&node).copied().unwrap_or_default();
        match want.sequence.checked_add(1) {
            Some(sequence) if want.share != share => {
                self.wanted.insert(node, Want { sequence, share });
                true
            }
            _ => false,
        }
    }

    /// All entries that only this node writes. Grants and withdrawals are sent together, so that no replica counts a
    /// share twice.
    fn row(&self, node: u64) -> Self {
        let rights = self.rights.range((node, 0)..=(node, u64::MAX));
        Self {
            rights: rights.map(|(key, amount)| (*key, *amount)).collect(),
            used: self.used.get(&node).map(|used| (node, *used)).into_iter().collect(),
            wanted: self.wanted.get(&node).map(|want| (node, *want)).into_iter().collect(),
            generation: self.generation,
        }
    }
}

fn join<K: Ord + Copy, V: Ord + Copy>(ours: &mut BTreeMap<K, V>, theirs: &BTreeMap<K, V>) -> bool {
    let mut changed = false;
    for (key, theirs) in theirs {
        match ours.get_mut(key) {
            Some(ours) if *ours >= *theirs => {}
            Some(ours) => {
                *ours = *theirs;
                changed = true;
            }
            None => {
                ours.insert(*key, *theirs);
                changed = true;
            }
        }
    }
    changed
}

/// Without the generation, which has a form of its own.
impl Wire for BoundedCounter {
    fn write(&self, out: &mut Vec<u8>) {
        self.rights.write(out);
        self.used.write(out);
        self.wanted.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            rights: BTreeMap::read(from)?,
            used: BTreeMap::read(from)?,
            wanted: BTreeMap::read(from)?,
            generation: 0,
        })
    }
}

impl Wire for Want {
    fn write(&self, out: &mut Vec<u8>) {
        self.sequence.write(out);
        self.share.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { sequence: u64::read(from)?, share: u64::read(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_can_be_asked_for_and_granted() {
        let mut a = BoundedCounter::default();
        a.add(10, 1).unwrap();
        let mut b = a.clone();
        let error = b.add(-4, 2).unwrap_err();
        assert_eq!(error, BoundedCounterError::BelowFloor { value: 10, share: 0, amount: 4 });
        a.merge(&b.want(4, 2));
        assert!(a.needs_grant(1) && !b.needs_grant(2));
        b.merge(&a.grant(1));
        assert!(!a.needs_grant(1) && a.grant(1).is_empty());
        assert_eq!((b.share(1), b.share(2)), (6, 4));
        let taken = b.add(-4, 2).unwrap();
        assert!(a.merge(&taken) && !a.needs_grant(1));
        assert_eq!(a, b);
        assert_eq!((a.value(), a.share(2)), (6, 0));
    }

    #[test]
    fn a_grant_is_at_most_half_of_what_is_left() {
        let mut counter = BoundedCounter::default();
        counter.add(9, 1).unwrap();
        counter.want(100, 2);
        counter.want(1, 3);
        counter.grant(1);
        assert_eq!((counter.share(1), counter.share(2), counter.share(3)), (4, 4, 1));
    }
}
