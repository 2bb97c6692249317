//! Any bytes as deployed code: JavaScript, TypeScript, JSON or a component.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/isolates/tests/deployed/any.rs"]
mod any;

fuzz_target!(|input: &[u8]| {
    any::run(input);
});
