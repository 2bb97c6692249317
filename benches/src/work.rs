//! Work for a processor that takes a known time: a loop, as often as it takes.

use std::hint::black_box;
use std::time::Instant;

/// Turns that are timed, well below a millisecond.
const TURNS: u64 = 200_000;
/// The fastest of so many counts, over a second or so: in others somebody else had the processor, or its clock was slow.
const TRIES: usize = 3000;

/// Turns the loop so often: each turn needs the one before and no memory, whose time differs from run to run.
pub fn work(turns: u64) -> u64 {
    let mut x = 1u64;
    for turn in 0..turns {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn) ^ (x >> 29);
    }
    x & 0xffff
}

/// How often the loop turns in `us` microseconds on this machine.
pub fn turns_in(us: f64) -> u64 {
    let time = |_| {
        let begun = Instant::now();
        black_box(work(black_box(TURNS)));
        begun.elapsed().as_secs_f64() * 1e6
    };
    let least_us = (0..TRIES).map(time).fold(f64::INFINITY, f64::min);
    (us / least_us * TURNS as f64) as u64
}
