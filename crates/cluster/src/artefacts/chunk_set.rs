//! A set of chunks of one blob, a bit each.

/// A set of chunk indexes below a fixed length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkSet {
    words: Vec<u64>,
    len: usize,
}

impl ChunkSet {
    /// The empty set of a blob of `chunks`.
    pub fn none(chunks: usize) -> Self {
        Self { words: vec![0; chunks.div_ceil(64)], len: chunks }
    }

    /// All chunks of a blob of `chunks`.
    pub fn all(chunks: usize) -> Self {
        let mut all = Self { words: vec![u64::MAX; chunks.div_ceil(64)], len: chunks };
        if !chunks.is_multiple_of(64)
            && let Some(last) = all.words.last_mut()
        {
            *last = (1 << (chunks % 64)) - 1;
        }
        all
    }

    /// Number of chunks of the blob.
    pub fn chunks(&self) -> usize {
        self.len
    }

    /// Adds a chunk; true if it was not in the set. An index of no chunk is ignored.
    pub fn insert(&mut self, index: usize) -> bool {
        let is_new = index < self.len && !self.contains(index);
        if is_new {
            self.words[index / 64] |= 1 << (index % 64);
        }
        is_new
    }

    /// True if the chunk is in the set.
    pub fn contains(&self, index: usize) -> bool {
        index < self.len && self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// Number of chunks in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True if the set has all chunks of the blob.
    pub fn is_full(&self) -> bool {
        self.count() == self.len
    }

    /// True if the set has no chunk.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Removes the chunks of another set.
    pub fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }

    /// Adds the chunks of another set.
    pub fn add(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// Keeps only chunks that the other set has too.
    pub fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    /// The chunks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros() as usize;
                    word &= word - 1;
                    at * 64 + bit
                })
            })
        })
    }

    /// The bits, the lowest index first, eight to a byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` if it is not for `chunks`.
    pub fn from_bytes(chunks: usize, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != chunks.div_ceil(8) {
            return None;
        }
        let words = bytes.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        });
        let set = Self { words: words.collect(), len: chunks };
        let mut beyond = set.clone();
        beyond.subtract(&Self::all(chunks));
        beyond.is_empty().then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_set_of_numbers(
            chunks in 1..200_usize,
            one in prop::collection::btree_set(0..200_usize, 0..60),
            two in prop::collection::btree_set(0..200_usize, 0..60),
        ) {
            let model = |of: &BTreeSet<usize>| of.range(..chunks).copied().collect::<BTreeSet<_>>();
            let set = |of: &BTreeSet<usize>| {
                let mut set = ChunkSet::none(chunks);
                for index in of { assert_eq!(set.insert(*index), *index < chunks); }
                set
            };
            let (a, b) = (set(&one), set(&two));
            prop_assert_eq!(a.count(), model(&one).len());
            prop_assert_eq!(a.iter().collect::<BTreeSet<_>>(), model(&one));
            prop_assert_eq!(ChunkSet::from_bytes(chunks, &a.to_bytes()), Some(a.clone()));
            let (mut minus, mut plus, mut both) = (a.clone(), a.clone(), a.clone());
            minus.subtract(&b); plus.add(&b); both.intersect(&b);
            prop_assert_eq!(minus.iter().collect::<BTreeSet<_>>(), &model(&one) - &model(&two));
            prop_assert_eq!(plus.iter().collect::<BTreeSet<_>>(), &model(&one) | &model(&two));
            prop_assert_eq!(both.iter().collect::<BTreeSet<_>>(), &model(&one) & &model(&two));
            prop_assert!(ChunkSet::all(chunks).is_full());
            prop_assert!(ChunkSet::from_bytes(chunks, &[a.to_bytes(), vec![0]].concat()).is_none());
        }
    }
}
