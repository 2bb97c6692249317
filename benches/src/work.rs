//! Work for a processor that takes a known time: a loop, as often as it takes.

use std::hint::black_box;
use std::time::Instant;

/// Turns that are timed, well below a millisecond.
const TURNS: u64 = 200_000;
/// The fastest of so many counts, over a second or so: in others somebody else had the processor, or its clock was slow.
const TRIES: usize = 3000;

/// Turns the loop so often.
pub fn work(turns: u64) -> u64 {
    let mut x = 1;
    for turn in 0..turns {
        x = black_box((x + turn) & 0xffff);
    }
    x
}

/// How often the loop turns in `us` microseconds on this machine.
pub fn turns_in(us: f64) -> u64 {
    let time = |_| {
        let begun = Instant::now();
        black_box(work(TURNS));
        begun.elapsed().as_secs_f64() * 1e6
    };
    let least_us = (0..TRIES).map(time).fold(f64::INFINITY, f64::min);
    (us / least_us * TURNS as f64) as u64
}
