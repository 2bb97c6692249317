//! Any text as a workflow: compiled, drawn, and run for a few steps.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/workflow/tests/definitions/any.rs"]
mod any;

fuzz_target!(|input: &[u8]| any::run(input));
