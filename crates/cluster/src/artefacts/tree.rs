//! Chunks of a blob, each of which is verified by itself.
//!
//! BLAKE3 is a tree over the bytes (O'Connor, Aumasson, Neves, Wilcox-O'Hearn: BLAKE3, one function, fast everywhere, 2020). A
//! [`Tree`] is the list of the chaining values of its subtrees of [`CHUNK_BYTES`], which merge to the digest. The list alone
//! does not fix the size: an inner value in the place of a chunk's merges to the same digest. So a tree also has the last
//! leaf and its path, which bind the size to the digest.

use std::ops::Range;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

use super::BlobDigest;

/// Size of a chunk in bytes; the last one may be shorter. On a link of 1 MB/s it takes 66 ms.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of chunks of a blob. Bounds its list of chaining values to 128 KiB.
pub const MAX_CHUNKS: usize = 4096;
/// Maximum size of a blob, in bytes.
pub const MAX_BLOB_BYTES: u64 = (CHUNK_BYTES * MAX_CHUNKS) as u64;
/// Size of a leaf of BLAKE3, in bytes.
pub(super) const LEAF_BYTES: usize = blake3::CHUNK_LEN;
/// Maximum length of the path from the last leaf to its chunk.
pub(super) const MAX_PATH: usize = (CHUNK_BYTES / LEAF_BYTES).ilog2() as usize;

/// The chaining values of a blob's chunks, and a proof of its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    pub(super) size_bytes: u64,
    /// One for each chunk; empty for a blob of one chunk.
    pub(super) values: Vec<ChainingValue>,
    /// The bytes of the last leaf.
    pub(super) last_leaf: Vec<u8>,
    /// The left siblings from the last chunk's value down to its last leaf.
    pub(super) path: Vec<ChainingValue>,
}

/// A list of chaining values does not belong to the digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The size is 0 or over the limit.
    #[error("a blob of {size_bytes} bytes; 1 to {MAX_BLOB_BYTES} are allowed")]
    Size {
        /// The size in bytes.
        size_bytes: u64,
    },
    /// The number of values, the last leaf or its path do not fit the size.
    #[error("the parts of the tree do not fit a blob of {size_bytes} bytes")]
    Shape {
        /// The size in bytes.
        size_bytes: u64,
    },
    /// The values do not merge to the digest.
    #[error("the chaining values do not merge to the digest")]
    Digest,
    /// The last leaf does not prove the size.
    #[error("the last leaf does not belong to a blob of {size_bytes} bytes")]
    LastLeaf {
        /// The size in bytes.
        size_bytes: u64,
    },
}

impl Tree {
    /// The tree of a blob, with its digest. Hashes all of it.
    ///
    /// # Errors
    /// [`TreeError::Size`]
    pub fn of(blob: &[u8]) -> Result<(BlobDigest, Self), TreeError> {
        let size_bytes = blob.len() as u64;
        let chunks = chunk_count(size_bytes)?;
        let values: Vec<ChainingValue> = match chunks {
            1 => Vec::new(),
            _ => (0..chunks).map(|index| value(start(index), &blob[range(size_bytes, index)])).collect(),
        };
        let mut at = start(chunks - 1);
        let mut path = Vec::new();
        while blob.len() - at > LEAF_BYTES {
            let left = left_subtree_len((blob.len() - at) as u64) as usize;
            path.push(value(at, &blob[at..at + left]));
            at += left;
        }
        let digest = if chunks == 1 { blake3::hash(blob) } else { merge(&values) };
        Ok((BlobDigest(digest.into()), Self { size_bytes, values, last_leaf: blob[at..].to_vec(), path }))
    }

    /// Checks that the parts are those of the blob with this digest, down to its size.
    ///
    /// # Errors
    /// A part is invalid: the sender is faulty.
    pub(super) fn check(self, digest: &BlobDigest) -> Result<Self, TreeError> {
        let Self { size_bytes, values, last_leaf, path } = &self;
        let size_bytes = *size_bytes;
        let chunks = chunk_count(size_bytes)?;
        let mut at = start(chunks - 1);
        let end = size_bytes as usize;
        let mut depth = 0;
        while end - at > LEAF_BYTES {
            at += left_subtree_len((end - at) as u64) as usize;
            depth += 1;
        }
        let expected_values = if chunks == 1 { 0 } else { chunks };
        if values.len() != expected_values || path.len() != depth || last_leaf.len() != end - at {
            return Err(TreeError::Shape { size_bytes });
        }
        let wrong_leaf = TreeError::LastLeaf { size_bytes };
        let digest = blake3::Hash::from_bytes(digest.0);
        match (values.last(), path.split_first()) {
            (Some(last), _) => {
                if merge(values) != digest {
                    return Err(TreeError::Digest);
                }
                (climb(at, last_leaf, path) == *last).then_some(()).ok_or(wrong_leaf)?;
            }
            (None, Some((top, below))) => {
                let right = climb(at, last_leaf, below);
                let root = merge_subtrees_root(top, &right, Mode::Hash);
                (root == digest).then_some(()).ok_or(wrong_leaf)?;
            }
            (None, None) => (blake3::hash(last_leaf) == digest).then_some(()).ok_or(wrong_leaf)?,
        }
        Ok(self)
    }

    /// Size of the blob in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Number of chunks, from 1 to [`MAX_CHUNKS`].
    pub fn chunks(&self) -> usize {
        self.values.len().max(1)
    }

    /// The bytes of a chunk in the blob; empty if it has no such chunk.
    pub fn range(&self, index: usize) -> Range<usize> {
        range(self.size_bytes, index)
    }

    /// True if these are the bytes of the chunk.
    pub fn verify(&self, digest: &BlobDigest, index: usize, bytes: &[u8]) -> bool {
        if index >= self.chunks() || bytes.len() != self.range(index).len() {
            return false;
        }
        match self.values.get(index) {
            Some(expected) => value(start(index), bytes) == *expected,
            None => blake3::hash(bytes) == blake3::Hash::from_bytes(digest.0),
        }
    }
}

fn chunk_count(size_bytes: u64) -> Result<usize, TreeError> {
    if size_bytes == 0 || size_bytes > MAX_BLOB_BYTES {
        return Err(TreeError::Size { size_bytes });
    }
    Ok((size_bytes as usize).div_ceil(CHUNK_BYTES))
}

fn start(index: usize) -> usize {
    index.saturating_mul(CHUNK_BYTES)
}

fn range(size_bytes: u64, index: usize) -> Range<usize> {
    let end = size_bytes as usize;
    start(index).min(end)..start(index.saturating_add(1)).min(end)
}

fn value(offset: usize, bytes: &[u8]) -> ChainingValue {
    blake3::Hasher::new().set_input_offset(offset as u64).update(bytes).finalize_non_root()
}

/// The value of the subtree that ends with the last leaf.
fn climb(leaf_at: usize, leaf: &[u8], path: &[ChainingValue]) -> ChainingValue {
    path.iter()
        .rev()
        .fold(value(leaf_at, leaf), |right, left| merge_subtrees_non_root(left, &right, Mode::Hash))
}

/// Merges at least two values, layer by layer; an odd one moves up.
fn merge(values: &[ChainingValue]) -> blake3::Hash {
    let mut layer = values.to_vec();
    while layer.len() > 2 {
        layer = layer
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => merge_subtrees_non_root(left, right, Mode::Hash),
                _ => pair[0],
            })
            .collect();
    }
    merge_subtrees_root(&layer[0], &layer[1], Mode::Hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob(size: usize, seed: u8) -> Vec<u8> {
        (0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
    }

    #[test]
    fn sizes_around_the_borders_of_leaves_and_chunks() {
        for around in [1, 1024, 2048, 3072, CHUNK_BYTES, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES, 5 * CHUNK_BYTES]
        {
            for size in [around.max(2) - 1, around, around + 1] {
                let blob = blob(size, 7);
                let (digest, tree) = Tree::of(&blob).expect("a tree");
                assert_eq!(digest.0, *blake3::hash(&blob).as_bytes(), "{size}");
                let tree = tree.check(&digest).expect("valid");
                assert!((0..tree.chunks()).all(|index| tree.verify(
                    &digest,
                    index,
                    &blob[tree.range(index)]
                )));
                assert!(!tree.verify(&digest, tree.chunks(), &[]));
            }
        }
        assert_eq!(Tree::of(&[]), Err(TreeError::Size { size_bytes: 0 }));
    }

    #[test]
    fn inner_values_in_the_place_of_chunks_are_refused() {
        let blob = blob(4 * CHUNK_BYTES, 1);
        let (digest, tree) = Tree::of(&blob).expect("a tree");
        let pair = |at: usize| merge_subtrees_non_root(&tree.values[at], &tree.values[at + 1], Mode::Hash);
        for (values, chunks) in
            [(vec![pair(0), pair(2)], 2), (vec![tree.values[0], tree.values[1], pair(2)], 3)]
        {
            assert_eq!(merge(&values).as_bytes(), &digest.0, "they merge to the digest");
            let forged = Tree { size_bytes: (chunks * CHUNK_BYTES) as u64, values, ..tree.clone() };
            assert!(matches!(forged.check(&digest), Err(TreeError::LastLeaf { .. })));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_changed_bit_is_noticed(size in 1..400_000_usize, seed: u8, at: prop::sample::Index, part in 0..4_u8) {
            let blob = blob(size, seed);
            let (digest, tree) = Tree::of(&blob).expect("a tree");
            prop_assert!(tree.clone().check(&digest).is_ok());
            let mut wrong = blob.clone();
            let byte = at.index(size);
            wrong[byte] ^= 1;
            let index = byte / CHUNK_BYTES;
            prop_assert!(!tree.verify(&digest, index, &wrong[tree.range(index)]));
            let mut forged = tree.clone();
            match part {
                0 if !forged.values.is_empty() => { let i = at.index(forged.values.len()); forged.values[i][3] ^= 1 }
                1 if !forged.path.is_empty() => { let i = at.index(forged.path.len()); forged.path[i][3] ^= 1 }
                2 => { let i = at.index(forged.last_leaf.len()); forged.last_leaf[i] ^= 1 }
                _ => forged.size_bytes += 1,
            }
            prop_assert!(forged.check(&digest).is_err());
        }
    }
}
