//! Estimated memory of JSON values.

use serde_json::Value;

/// Average overhead of an allocation, in bytes.
const ALLOCATION_BYTES: usize = 8;
/// Bytes of an entry of an object: hash, key and value. Objects keep the order of their keys (`preserve_order`): the
/// entries are a list, and a hash table contains their indices.
const ENTRY_BYTES: usize = size_of::<(u64, String, Value)>();
/// Bytes of a slot of the hash table: the index of the entry, and a control byte.
const PLACE_BYTES: usize = size_of::<usize>() + 1;
/// Bytes that the hash table has after its last slot.
const TABLE_END_BYTES: usize = 16;

/// Estimated size of a value with everything that it owns, in bytes. The estimate tends to be too high. It depends only on
/// the content, so that a copy has the same weight. It includes the spare capacity that lists and objects have after they
/// were parsed from JSON.
pub fn weight(value: &Value) -> usize {
    size_of::<Value>() + owned(value)
}

fn owned(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text_bytes(text),
        Value::Array(items) => list_bytes(items.len()) + items.iter().map(owned).sum::<usize>(),
        Value::Object(entries) => {
            let each = |(key, value): (&String, &Value)| text_bytes(key) + owned(value);
            map_bytes(entries.len()) + entries.iter().map(each).sum::<usize>()
        }
    }
}

fn text_bytes(text: &str) -> usize {
    if text.is_empty() { 0 } else { text.len() + ALLOCATION_BYTES }
}

/// Size of a list to which `items` items were appended one by one, in bytes.
fn list_bytes(items: usize) -> usize {
    match items {
        0 => 0,
        items => items.next_power_of_two().max(4) * size_of::<Value>() + ALLOCATION_BYTES,
    }
}

/// Size of an object to which `entries` entries were added one by one, in bytes: a hash table of which at most 7/8 of the
/// slots are used, and a list with capacity for as many entries.
fn map_bytes(entries: usize) -> usize {
    let (places, room) = match entries {
        0 => return 0,
        1..=3 => (4, 3),
        4..=7 => (8, 7),
        8..=14 => (16, 14),
        entries => {
            let places = (entries.saturating_mul(8) / 7).next_power_of_two();
            (places, places / 8 * 7)
        }
    };
    places * PLACE_BYTES + TABLE_END_BYTES + room * ENTRY_BYTES + 2 * ALLOCATION_BYTES
}
