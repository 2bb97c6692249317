//! What the fuzzer has found worth keeping, run without a fuzzer.

mod any;

use std::path::Path;

#[test]
fn seeds_of_the_fuzzer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/deployed");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let valid = any::run(&std::fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(valid, name.starts_with("valid"), "{name}");
        seeds += 1;
    }
    assert!(seeds > 0);
}

#[test]
fn parts_of_seeds_are_no_surprise() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/deployed");
    for entry in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        for at in 0..seed.len().min(200) {
            any::run(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] = changed[at].wrapping_mul(31).wrapping_add(at as u8 | 1);
            any::run(&changed);
        }
    }
}
