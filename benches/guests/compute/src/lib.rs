//! Computes what its payload names, and answers anything else with it; compute.js has the works of JavaScript.

use edgefaas::prelude::*;
use sha2::{Digest, Sha256};

#[edgefaas::function]
fn compute(event: Event) -> Reply {
    match event.bytes() {
        b"sha256" => Reply::Bytes(Sha256::digest(vec![b'x'; 64 << 10]).to_vec()),
        b"sort" => Reply::Bytes(sorted(100_000).to_le_bytes().to_vec()),
        _ => Reply::Bytes(event.into_bytes()),
    }
}

/// The median of `count` pseudorandom numbers, which are sorted for it.
fn sorted(count: usize) -> u32 {
    // Numerical Recipes' generator.
    let next = |last: &u32| Some(last.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let mut numbers: Vec<u32> = std::iter::successors(Some(1), next).take(count).collect();
    numbers.sort_unstable();
    numbers[count / 2]
}
