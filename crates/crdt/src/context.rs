//! The causal context: the dots that a replica has seen, for the types with removals.

use std::collections::BTreeMap;

use crate::ReplicaId;
use crate::replica_totals::incarnations;

/// One event: the replica's update number `number`, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Dot {
    pub(crate) replica: ReplicaId,
    pub(crate) number: u64,
}

/// A set of dots. Each replica has ranges of seen numbers: a range that starts at 1 is the replica's entry in the
/// version vector, the others are the dot cloud. For a folded node, all incarnations up to one are seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Context {
    folded: BTreeMap<u64, u32>,
    seen: BTreeMap<ReplicaId, Ranges>,
}

/// Sorted ranges with inclusive ends. Ranges never touch, so equal sets have equal ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Context {
    pub(crate) fn is_empty(&self) -> bool {
        self.folded.is_empty() && self.seen.is_empty()
    }

    pub(crate) fn contains(&self, dot: Dot) -> bool {
        self.is_folded(dot.replica)
            || self.seen.get(&dot.replica).is_some_and(|seen| seen.contains(dot.number))
    }

    /// The replica's next dot; `None` if it has used all of its numbers.
    pub(crate) fn next(&self, replica: ReplicaId) -> Option<Dot> {
        self.last(replica).checked_add(1).map(|number| Dot { replica, number })
    }

    /// The number of the replica's last seen dot; 0 without any.
    pub(crate) fn last(&self, replica: ReplicaId) -> u64 {
        self.seen.get(&replica).map_or(0, Ranges::last)
    }

    /// Adds a dot; true if it is new.
    pub(crate) fn insert(&mut self, dot: Dot) -> bool {
        self.insert_range(dot.replica, dot.number, dot.number)
    }

    /// Adds the dots of a replica with the numbers from `first` to `last`; true if any is new.
    pub(crate) fn insert_range(&mut self, replica: ReplicaId, first: u64, last: u64) -> bool {
        !self.is_folded(replica)
            && first <= last
            && self.seen.entry(replica).or_default().insert(first, last)
    }

    /// The numbers from `first` to `last` of a replica that were not seen, as ranges with inclusive ends.
    pub(crate) fn missing(&self, replica: ReplicaId, first: u64, last: u64) -> Vec<(u64, u64)> {
        if self.is_folded(replica) {
            return Vec::new();
        }
        let mut missing = Vec::new();
        let mut next = Some(first);
        for (start, end) in self.seen.get(&replica).into_iter().flat_map(|seen| seen.from(first)) {
            let Some(from) = next.filter(|_| start <= last) else { break };
            if from < start {
                missing.push((from, start - 1));
            }
            next = end.checked_add(1);
        }
        missing.extend(next.filter(|next| *next <= last).map(|next| (next, last)));
        missing
    }

    /// Adds all dots of another context; true if any is new.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (&node, &up_to) in &other.folded {
            changed |= self.take_folded(node, up_to);
        }
        for (&replica, theirs) in &other.seen {
            if self.is_folded(replica) {
                continue;
            }
            match self.seen.get_mut(&replica) {
                Some(ours) => changed |= ours.merge(theirs),
                None => {
                    self.seen.insert(replica, theirs.clone());
                    changed = true;
                }
            }
        }
        changed
    }

    pub(crate) fn folded_up_to(&self, node: u64) -> Option<u32> {
        self.folded.get(&node).copied()
    }

    /// Folds the seen incarnations of a node; no effect if none was seen.
    pub(crate) fn fold(&mut self, node: u64, up_to: u32) -> bool {
        let known =
            self.folded.contains_key(&node) || self.seen.range(incarnations(node, up_to)).next().is_some();
        known && self.take_folded(node, up_to)
    }

    /// Marks all incarnations of a node up to `up_to` as seen; true if this changed anything.
    pub(crate) fn take_folded(&mut self, node: u64, up_to: u32) -> bool {
        if self.folded.get(&node).is_some_and(|folded| *folded >= up_to) {
            return false;
        }
        self.folded.insert(node, up_to);
        while let Some((&replica, _)) = self.seen.range(incarnations(node, up_to)).next() {
            self.seen.remove(&replica);
        }
        true
    }

    pub(crate) fn folded(&self) -> &BTreeMap<u64, u32> {
        &self.folded
    }

    pub(crate) fn seen(&self) -> &BTreeMap<ReplicaId, Ranges> {
        &self.seen
    }

    /// The ranges of dots, as first and last dot. Ranges of folded nodes span incarnations.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Dot, Dot)> + '_ {
        let folded = self.folded.iter().map(|(&node, &up_to)| {
            let first = Dot { replica: ReplicaId::new(node, 0), number: 0 };
            (first, Dot { replica: ReplicaId::new(node, up_to), number: u64::MAX })
        });
        let seen = self.seen.iter().flat_map(|(&replica, ranges)| {
            ranges
                .iter()
                .map(move |(first, last)| (Dot { replica, number: first }, Dot { replica, number: last }))
        });
        folded.chain(seen)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let ranges: usize = self.seen.values().map(|ranges| 40 + ranges.0.len() * 16).sum();
        self.folded.len() * 12 + ranges
    }

    fn is_folded(&self, replica: ReplicaId) -> bool {
        self.folded.get(&replica.node).is_some_and(|up_to| replica.incarnation <= *up_to)
    }
}

impl Ranges {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// The ranges that end at `number` or later.
    fn from(&self, number: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0[self.0.partition_point(|(_, last)| *last < number)..].iter().copied()
    }

    fn last(&self) -> u64 {
        self.0.last().map_or(0, |(_, last)| *last)
    }

    fn contains(&self, number: u64) -> bool {
        let place = self.0.partition_point(|(_, last)| *last < number);
        self.0.get(place).is_some_and(|(first, _)| *first <= number)
    }

    /// Adds a range; true if any of it is new.
    fn insert(&mut self, first: u64, last: u64) -> bool {
        // Ranges that overlap or touch it are merged with it.
        let from = self.0.partition_point(|(_, end)| end.saturating_add(1) < first);
        let to = self.0.partition_point(|(start, _)| *start <= last.saturating_add(1));
        match self.0.get(from..to).unwrap_or_default() {
            [] => {
                self.0.insert(from, (first, last));
                true
            }
            [(start, end)] if *start <= first && last <= *end => false,
            [(start, _), ..] => {
                let joined = (first.min(*start), last.max(self.0[to - 1].1));
                self.0.splice(from..to, [joined]);
                true
            }
        }
    }

    fn merge(&mut self, other: &Self) -> bool {
        // Few ranges are inserted one by one. Inserting many this way would move the rest each time.
        if other.0.len() <= 8 || self.0.len() <= 8 {
            let mut changed = false;
            for (first, last) in other.iter() {
                changed |= self.insert(first, last);
            }
            return changed;
        }
        let before = std::mem::take(&mut self.0);
        let mut all: Vec<_> = before.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        for (first, last) in all {
            match self.0.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => self.0.push((first, last)),
            }
        }
        self.0 != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1, 0);

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Ranges::default();
        for number in [5, 1, 3, 9, 2] {
            assert!(ranges.insert(number, number));
        }
        assert_eq!(ranges.0, [(1, 3), (5, 5), (9, 9)]);
        assert!(!ranges.insert(2, 3));
        assert!(ranges.insert(2, 8));
        assert_eq!(ranges.0, [(1, 9)]);
        assert!(ranges.insert(u64::MAX, u64::MAX));
        assert!(ranges.contains(u64::MAX) && !ranges.contains(10));
    }

    #[test]
    fn many_ranges_merge_as_few_do() {
        let numbers = |step: usize| (1..200u64).step_by(step);
        let (mut many, mut few, mut other) = (Ranges::default(), Ranges::default(), Ranges::default());
        for n in numbers(3) {
            many.insert(n, n);
        }
        few.0.clone_from(&many.0);
        for n in numbers(4) {
            other.insert(n, n);
        }
        assert!(many.merge(&other));
        for (first, last) in other.iter() {
            few.insert(first, last);
        }
        assert_eq!(many, few);
        assert!(!many.merge(&other));
    }

    #[test]
    fn missing_numbers_are_those_between_the_ranges() {
        let mut context = Context::default();
        for (first, last) in [(3, 4), (6, 8), (u64::MAX, u64::MAX)] {
            context.insert_range(A, first, last);
        }
        assert_eq!(context.missing(A, 1, 10), [(1, 2), (5, 5), (9, 10)]);
        assert_eq!(context.missing(A, 4, 6), [(5, 5)]);
        assert_eq!(context.missing(A, 7, 8), []);
        assert_eq!(context.missing(A, 9, u64::MAX), [(9, u64::MAX - 1)]);
        assert_eq!(context.missing(ReplicaId::new(2, 0), 1, 2), [(1, 2)]);
        context.fold(1, 0);
        assert_eq!(context.missing(A, 1, 10), []);
    }

    #[test]
    fn what_is_folded_is_seen() {
        let mut context = Context::default();
        context.insert(Dot { replica: A, number: 4 });
        assert!(context.fold(1, 0) && !context.fold(1, 0) && !context.fold(2, 0));
        assert!(context.contains(Dot { replica: A, number: 5 }));
        assert!(context.seen.is_empty() && !context.insert(Dot { replica: A, number: 9 }));
        assert!(!context.contains(Dot { replica: ReplicaId::new(1, 1), number: 1 }));
    }
}
