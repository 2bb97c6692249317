//! Any bytes as a placement policy, and decisions by it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cluster/tests/policy/any.rs"]
mod any;

fuzz_target!(|input: &[u8]| any::run(input));
