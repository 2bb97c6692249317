//! The memory of values: bytes of the parts that they consist of, on a machine with 64 bits. Constants, and by the number
//! of items and not by the room there is for more, so that limits are the same wherever and however a value was made.

/// What work on an item costs, and about what its place takes.
pub(crate) const ITEM_BYTES: u64 = 32;
/// Bytes that the allocator adds to an allocation, on average.
const ALLOCATION_BYTES: u64 = 8;
/// The counts in front of what is shared.
const SHARED_BYTES: u64 = 16;

/// A string beside its text.
pub(crate) const STRING_BYTES: u64 = SHARED_BYTES + ALLOCATION_BYTES;
/// An array beside its items: [`Array`](super::Array), and the allocation of the last items.
pub(crate) const ARRAY_BYTES: u64 = SHARED_BYTES + 64 + 2 * ALLOCATION_BYTES;
/// The place of an item, with its part of the tree of chunks.
pub(super) const LIST_ITEM_BYTES: u64 = ITEM_BYTES + 2;
/// An object beside its fields: [`Object`](super::Object), and their allocation.
pub(crate) const OBJECT_BYTES: u64 = SHARED_BYTES + 48 + 2 * ALLOCATION_BYTES;
/// A key beside its text, and the place of it and its value.
pub(super) const FIELD_BYTES: u64 = STRING_BYTES + 16 + ITEM_BYTES;
/// The place of a key in the index of a large object. The table is between 7 in 8 and 7 in 16 full.
pub(super) const INDEX_BYTES: u64 = 56;

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod tests {
    use std::sync::Arc;

    use super::super::{Array, Data, Object};
    use super::*;

    #[test]
    fn the_parts_have_their_sizes() {
        assert_eq!(size_of::<Data>() as u64, ITEM_BYTES);
        assert_eq!(size_of::<Array>() as u64 + SHARED_BYTES + 2 * ALLOCATION_BYTES, ARRAY_BYTES);
        assert_eq!(size_of::<Object>() as u64 + SHARED_BYTES + 2 * ALLOCATION_BYTES, OBJECT_BYTES);
        assert_eq!(size_of::<(Arc<str>, Data)>() as u64 + STRING_BYTES, FIELD_BYTES);
    }
}
