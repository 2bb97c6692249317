//! What the Rust functions compute. Both give text that is the same wherever they run.

use resize::Pixel::RGB8;
use resize::Type::Lanczos3;
use rgb::{FromSlice, RGB8 as Rgb};
use sha2::{Digest, Sha256};

/// 1 MiB.
static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/file"));
/// 1280 by 720 pixels of three bytes.
static FRAME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/frame"));
const FROM: (usize, usize) = (1280, 720);
const TO: (usize, usize) = (320, 180);

/// SHA-256 of a file of 1 MiB.
pub fn hash() -> String {
    digest(FILE)
}

/// Scales a frame of 1280 by 720 pixels to 320 by 180 (Lanczos), and gives SHA-256 of the result.
pub fn scale() -> Result<String, resize::Error> {
    let mut small = vec![Rgb::default(); TO.0 * TO.1];
    let mut resizer = resize::new(FROM.0, FROM.1, TO.0, TO.1, RGB8, Lanczos3)?;
    resizer.resize(FRAME.as_rgb(), &mut small)?;
    let bytes: Vec<u8> = small.iter().flat_map(|pixel| [pixel.r, pixel.g, pixel.b]).collect();
    Ok(digest(&bytes))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
