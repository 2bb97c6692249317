//! Any text as a document that describes a service: read, and its operations used with any arguments.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/workflow/tests/definitions/any_document.rs"]
mod any_document;

fuzz_target!(|input: &[u8]| any_document::run(input));
