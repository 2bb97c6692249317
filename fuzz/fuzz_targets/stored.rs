//! Damage to what a broker has stored, from any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/broker/tests/robustness/connection.rs"]
mod connection;
#[path = "../../crates/broker/tests/robustness/stored.rs"]
mod stored;

fuzz_target!(|input: &[u8]| stored::run(input));
