//! Makes the file that is hashed and the frame that is scaled, the same ones everywhere.

use std::env;
use std::fs;
use std::path::PathBuf;

const FILE_BYTES: usize = 1 << 20;
const WIDTH: usize = 1280;
const HEIGHT: usize = 720;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut state = 1;
    let file: Vec<u8> = (0..FILE_BYTES).map(|_| noise(&mut state)).collect();
    fs::write(folder.join("file"), file).expect("OUT_DIR can be written");

    let mut frame = Vec::with_capacity(WIDTH * HEIGHT * 3);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            let grain = noise(&mut state) / 8;
            let colour = [x * 200 / WIDTH, y * 200 / HEIGHT, (x + y) / 16 % 200];
            frame.extend(colour.map(|value| value as u8 + grain));
        }
    }
    fs::write(folder.join("frame"), frame).expect("OUT_DIR can be written");
}

/// Xorshift.
fn noise(state: &mut u32) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    (*state >> 24) as u8
}
