//! The memory of JSON values.

use serde_json::Value;

/// Bytes of a node of a map, which has room for 11 entries.
const MAP_NODE_BYTES: usize = 640;
/// Entries that a node of a map has on average.
const MAP_NODE_ENTRIES: usize = 8;
/// Bytes that the allocator adds to an allocation, on average.
const ALLOCATION_BYTES: usize = 8;

/// Bytes that a value occupies, approximately and rather too many than too few: itself and all that it owns.
pub(super) fn weight(value: &Value) -> usize {
    size_of::<Value>() + owned(value)
}

fn owned(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() + ALLOCATION_BYTES,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + ALLOCATION_BYTES,
        Value::Object(entries) => {
            let nodes = entries.len().div_ceil(MAP_NODE_ENTRIES) * MAP_NODE_BYTES;
            let each = |(key, value): (&String, &Value)| key.len() + ALLOCATION_BYTES + owned(value);
            nodes + entries.iter().map(each).sum::<usize>()
        }
    }
}
