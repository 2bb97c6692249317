//! Comparing what two nodes have: plain data and pure functions.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use crate::replication::{ObjectKey, Part};
use crate::wire::{BUCKETS, Buckets, ROUND_OBJECTS};

/// Digests of one side's copies of the objects that both sides share, one for each bucket of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) digests: Vec<u64>,
    pub(crate) objects: Vec<u32>,
}

/// An object at the time of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) digest: u64,
    pub(crate) key: ObjectKey,
    /// The part that is compared.
    pub(crate) part: Part,
}

/// Difference at one hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Only this side has objects with this hash.
    OnlyOurs(u64),
    /// Only the other side has objects with this hash.
    OnlyTheirs(u64),
    /// Both have, with different states.
    Differs(u64),
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { digests: vec![0; BUCKETS], objects: vec![0; BUCKETS] }
    }

    pub(crate) fn add(&mut self, hash: u64, digest: u64) {
        let bucket = bucket(hash);
        if let (Some(sum), Some(objects)) = (self.digests.get_mut(bucket), self.objects.get_mut(bucket)) {
            *sum = sum.wrapping_add(blend(hash, digest));
            *objects = objects.saturating_add(1);
        }
    }

    /// The digest and the number of objects of a bucket.
    pub(crate) fn bucket(&self, bucket: usize) -> (u64, u32) {
        let digest = self.digests.get(bucket).copied().unwrap_or_default();
        (digest, self.objects.get(bucket).copied().unwrap_or_default())
    }

    pub(crate) fn set(&mut self, bucket: usize, digest: u64, objects: u32) {
        if let (Some(sum), Some(count)) = (self.digests.get_mut(bucket), self.objects.get_mut(bucket)) {
            (*sum, *count) = (digest, objects);
        }
    }

    /// Digest of all buckets: the sum of their digests.
    pub(crate) fn root(&self) -> u64 {
        self.digests.iter().fold(0, |sum, digest| sum.wrapping_add(*digest))
    }

    /// The buckets from `first` on to compare object by object, ascending: as many as have
    /// `most` objects on either side, and at least one. With the first one left for later, if any.
    pub(crate) fn differing(
        &self,
        theirs: &Buckets,
        first: usize,
        most: usize,
    ) -> (Vec<usize>, Option<usize>) {
        let most = most.min(ROUND_OBJECTS) as u64;
        let mut chosen = Vec::new();
        let (mut our_objects, mut their_objects) = (0_u64, 0_u64);
        for bucket in first..BUCKETS {
            if self.digests.get(bucket) == theirs.digests.get(bucket) {
                continue;
            }
            our_objects += u64::from(self.objects.get(bucket).copied().unwrap_or_default());
            their_objects += u64::from(theirs.objects.get(bucket).copied().unwrap_or_default());
            if our_objects.max(their_objects) > most && !chosen.is_empty() {
                return (chosen, Some(bucket));
            }
            chosen.push(bucket);
        }
        (chosen, None)
    }
}

/// The bucket of a key.
pub(crate) fn bucket(hash: u64) -> usize {
    (hash >> 56) as usize
}

/// The first and the last hash of a bucket.
pub(crate) fn bucket_range(bucket: usize) -> (u64, u64) {
    let first = (bucket as u64) << 56;
    (first, first | (u64::MAX >> 8))
}

/// True if a hash lies in one of the ranges, which ascend.
pub(crate) fn in_ranges(from: &[u64], to: &[u64], hash: u64) -> bool {
    let range = from.partition_point(|first| *first <= hash);
    range.checked_sub(1).and_then(|range| to.get(range)).is_some_and(|last| hash <= *last)
}

/// The hashes and digests of sorted entries. Objects that happen to have the same hash are one line.
pub(crate) fn lines(entries: &[Entry]) -> (Vec<u64>, Vec<u64>) {
    let (mut hashes, mut digests) = (Vec::<u64>::new(), Vec::<u64>::new());
    for entry in entries {
        let digest = blend(entry.hash, entry.digest);
        match (hashes.last(), digests.last_mut()) {
            (Some(hash), Some(sum)) if *hash == entry.hash => *sum = sum.wrapping_add(digest),
            _ => {
                hashes.push(entry.hash);
                digests.push(digest);
            }
        }
    }
    (hashes, digests)
}

/// The differences between two lists of [`lines`].
pub(crate) fn differences(ours: (&[u64], &[u64]), theirs: (&[u64], &[u64])) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut ours = ours.0.iter().copied().zip(ours.1).peekable();
    let mut theirs = theirs.0.iter().copied().zip(theirs.1).peekable();
    loop {
        let order = match (ours.peek(), theirs.peek()) {
            (Some((our, _)), Some((their, _))) => our.cmp(their),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return found,
        };
        match order {
            Ordering::Less => found.extend(ours.next().map(|(hash, _)| Difference::OnlyOurs(hash))),
            Ordering::Greater => found.extend(theirs.next().map(|(hash, _)| Difference::OnlyTheirs(hash))),
            Ordering::Equal => {
                if let (Some((hash, our)), Some((_, their))) = (ours.next(), theirs.next())
                    && our != their
                {
                    found.push(Difference::Differs(hash));
                }
            }
        }
    }
}

/// The entries with this hash among sorted ones.
pub(crate) fn with_hash(entries: &[Entry], hash: u64) -> impl Iterator<Item = &Entry> {
    let first = entries.partition_point(|entry| entry.hash < hash);
    entries.iter().skip(first).take_while(move |entry| entry.hash == hash)
}

/// Sums of these are equal only if the objects are, but for one case in 2^64.
fn blend(hash: u64, digest: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash.to_le_bytes());
    bytes[8..].copy_from_slice(&digest.to_le_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(objects: &[(u8, u64)]) -> Vec<Entry> {
        // Few hashes, so that keys share them.
        let entry = |(name, digest): &(u8, u64)| Entry {
            hash: u64::from(name % 5),
            digest: *digest,
            key: ObjectKey::new("app", format!("{name}")),
            part: Part::Whole,
        };
        let mut entries: Vec<Entry> = objects.iter().map(entry).collect();
        entries.sort_unstable_by(|a, b| (a.hash, &a.key).cmp(&(b.hash, &b.key)));
        entries
    }

    proptest! {
        #[test]
        fn differences_are_those_of_the_groups(
            ours in prop::collection::btree_map(0_u8..12, 0_u64..3, 0..12),
            theirs in prop::collection::btree_map(0_u8..12, 0_u64..3, 0..12),
        ) {
            let ours = entries(&ours.into_iter().collect::<Vec<_>>());
            let theirs = entries(&theirs.into_iter().collect::<Vec<_>>());
            let (our, their) = (lines(&ours), lines(&theirs));
            let found = differences((&our.0, &our.1), (&their.0, &their.1));
            let expected: Vec<Difference> = (0..5)
                .filter_map(|hash| {
                    let our: Vec<&Entry> = with_hash(&ours, hash).collect();
                    let their: Vec<&Entry> = with_hash(&theirs, hash).collect();
                    let digests = |entries: &[&Entry]| {
                        let mut digests: Vec<u64> = entries.iter().map(|entry| entry.digest).collect();
                        digests.sort_unstable();
                        digests
                    };
                    match (our.is_empty(), their.is_empty()) {
                        (true, true) => None,
                        (false, true) => Some(Difference::OnlyOurs(hash)),
                        (true, false) => Some(Difference::OnlyTheirs(hash)),
                        (false, false) => {
                            (digests(&our) != digests(&their)).then_some(Difference::Differs(hash))
                        }
                    }
                })
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn ranges_hold_their_ends(hash in any::<u64>()) {
            let (first, last) = bucket_range(bucket(hash));
            prop_assert!(in_ranges(&[first], &[last], hash));
            prop_assert!(in_ranges(&[first], &[hash], hash) && in_ranges(&[hash], &[last], hash));
            prop_assert!(!in_ranges(&[], &[], hash));
            if hash > first {
                prop_assert!(!in_ranges(&[first], &[hash - 1], hash));
            }
        }
    }

    #[test]
    fn a_round_takes_as_many_buckets_as_it_may_and_goes_on_after_them() {
        let (mut ours, theirs) = (Tally::new(), Tally::new());
        for bucket in [3, 5, 7] {
            (0..10).for_each(|i| ours.add(bucket_range(bucket).0 + i, i));
        }
        let theirs =
            Buckets { round: 1, digests: theirs.digests, objects: theirs.objects, ..Buckets::default() };
        assert_eq!(ours.differing(&theirs, 0, 100), (vec![3, 5, 7], None));
        assert_eq!(ours.differing(&theirs, 0, 25), (vec![3, 5], Some(7)));
        assert_eq!(ours.differing(&theirs, 7, 25), (vec![7], None));
        assert_eq!(ours.differing(&theirs, 0, 1), (vec![3], Some(5)), "at least one");
    }
}
