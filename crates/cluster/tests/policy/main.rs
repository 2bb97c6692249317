//! The entry point of `fuzz/` for policies with its seeds, and with small changes of them.

mod any;

use std::path::Path;

use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/policy");
    let files = std::fs::read_dir(folder).expect("the seeds");
    files.map(|file| std::fs::read(file.expect("a file").path()).expect("a seed")).collect()
}

#[test]
fn seeds_of_the_fuzzer() {
    let seeds = seeds();
    assert!(!seeds.is_empty());
    for seed in seeds {
        any::run(&seed);
        let text = std::str::from_utf8(&seed[8..]).expect("text");
        for random in 0..200_u64 {
            assert!(any::policy(text, random.wrapping_mul(0x9e37_79b9_7f4a_7c15)), "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn seeds_with_changes(which: prop::sample::Index, at: prop::sample::Index, cut in 0..4_usize, put in "[ -~\n]{0,4}") {
        let seeds = seeds();
        let mut input = which.get(&seeds).clone();
        let from = at.index(input.len());
        let to = input.len().min(from + cut);
        input.splice(from..to, put.into_bytes());
        any::run(&input);
    }
}
