//! The entry points of `fuzz/` with what it has found and kept, and with random bytes: for seconds, without a fuzzer.

mod connection;
mod stored;

use std::path::Path;

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.next() % most;
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Everything that was kept for a target; there is something.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(folder).expect("the seeds");
    let kept: Vec<Vec<u8>> =
        files.map(|file| std::fs::read(file.expect("a file").path()).expect("readable")).collect();
    assert!(!kept.is_empty(), "no seeds for {target}");
    kept
}

/// Runs the entry point with all that was kept, with that changed here and there, and with random bytes.
fn try_all(target: &str, random_inputs: u64, run: impl Fn(&[u8])) {
    let kept = kept(target);
    kept.iter().for_each(|input| run(input));
    let seed = std::env::var("EDGEFAAS_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    for number in 0..random_inputs {
        let mut input = random.bytes(400);
        if number % 2 == 0 {
            input.splice(..0, kept[random.next() as usize % kept.len()].iter().copied());
            for _ in 0..random.next() % 8 {
                let at = random.next() as usize % input.len().max(1);
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
        }
        run(&input);
    }
}

#[test]
fn no_clients_make_a_broker_panic_hang_or_talk_nonsense() {
    try_all("connection", 10_000, connection::run);
}

#[test]
fn no_damage_to_what_is_stored_keeps_a_broker_from_opening_and_serving() {
    try_all("stored", 5_000, stored::run);
}
