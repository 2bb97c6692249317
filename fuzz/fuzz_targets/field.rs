//! Any bytes as two fields: what can be read is written as it was, a merge can be written and read, and a second one changes
//! nothing. Merging is the same in either order only for states that replicas reach: these never have one dot for two values.

#![no_main]

use edgefaas_crdt::{Field, FieldDelta};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&at, rest)) = input.split_first() else { return };
    let (one, other) = rest.split_at((at as usize).min(rest.len()));
    let (Ok(one), Ok(other)) = (Field::decode(one), FieldDelta::decode(other)) else { return };
    let again = Field::decode(&one.encode()).expect("what was read can be written and read");
    assert_eq!(again.digest(), one.digest());
    let _ = (one.value(), one.latest(), one.size_bytes());
    let mut merged = one.clone();
    merged.merge(other.clone());
    let _ = (merged.value(), merged.size_bytes());
    let again = Field::decode(&merged.encode()).expect("a merged field can be written and read");
    assert_eq!(again, merged);
    merged.merge(other);
    merged.merge(one.into());
    assert_eq!(merged.digest(), again.digest());
});
