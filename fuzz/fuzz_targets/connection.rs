//! What a few clients do to a broker, from any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/broker/tests/robustness/connection.rs"]
mod connection;

fuzz_target!(|input: &[u8]| connection::run(input));
