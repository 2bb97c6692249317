//! The memory of JSON values.

use serde_json::Value;

/// Bytes that the allocator adds to an allocation, on average.
const ALLOCATION_BYTES: usize = 8;
/// Bytes of an entry of an object: hash, key and value. Objects keep the order of their keys (`preserve_order`), so that
/// the entries are a list, and a table has their places.
const ENTRY_BYTES: usize = size_of::<(u64, String, Value)>();
/// Bytes of a place in the table: the number of the entry, and its control byte.
const PLACE_BYTES: usize = size_of::<usize>() + 1;
/// Bytes behind the table.
const TABLE_END_BYTES: usize = 16;

/// Bytes that a value occupies, approximately and rather too many than too few: itself and all that it owns. Depends on
/// nothing but the content, so that a copy weighs the same. Counts the room for more that lists and objects have that were
/// read from JSON.
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

/// A list that grew item by item to so many.
fn list_bytes(items: usize) -> usize {
    match items {
        0 => 0,
        items => items.next_power_of_two().max(4) * size_of::<Value>() + ALLOCATION_BYTES,
    }
}

/// An object that grew entry by entry to so many: a table with an empty place at least in 8, and a list with room for as
/// many entries.
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
