//! Memory of values, in bytes, estimated from their parts for a 64-bit machine. The sizes are constants and use the
//! number of items, not the capacity. So limits are the same on every machine, however a value was created.

/// Cost of processing one item; also the approximate size of its slot.
pub(crate) const ITEM_BYTES: u64 = 32;
/// Bytes that the allocator adds to an allocation, on average.
const ALLOCATION_BYTES: u64 = 8;
/// The reference counts of a shared value.
const SHARED_BYTES: u64 = 16;

/// Memory of a string, without its text.
pub(crate) const STRING_BYTES: u64 = SHARED_BYTES + ALLOCATION_BYTES;
/// Memory of an array, without its items: [`Array`](super::Array), and the allocation of the last items.
pub(crate) const ARRAY_BYTES: u64 = SHARED_BYTES + 64 + 2 * ALLOCATION_BYTES;
/// The slot of an item, with its part of the tree of chunks.
pub(super) const LIST_ITEM_BYTES: u64 = ITEM_BYTES + 2;
/// Memory of an object, without its fields: [`Object`](super::Object), and the allocation of the fields.
pub(crate) const OBJECT_BYTES: u64 = SHARED_BYTES + 48 + 2 * ALLOCATION_BYTES;
/// Memory of a key without its text, and of the slots of the key and its value.
pub(super) const FIELD_BYTES: u64 = STRING_BYTES + 16 + ITEM_BYTES;
/// The entry of a key in the index of a large object. The hash table is between 7/16 and 7/8 full.
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
