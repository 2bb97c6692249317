//! The sources of the SDK in this binary, for apps that are made without a checkout.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::Context;
use flate2::read::GzDecoder;

/// Written by `build.rs`.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sdk.json.gz"));

/// A part of the SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The crate `edgefaas-sdk` with its macros.
    Rust,
    /// The package `@edgefaas/sdk`.
    Js,
    /// The WIT world of functions.
    Wit,
}

impl Part {
    fn folder(self) -> &'static str {
        match self {
            Self::Rust => "rust/",
            Self::Js => "js/",
            Self::Wit => "wit/",
        }
    }
}

/// The files of a part: path with `/` and text.
///
/// # Errors
/// This binary is damaged.
pub fn files(part: Part) -> anyhow::Result<Vec<(String, String)>> {
    let mut text = Vec::new();
    GzDecoder::new(PACKED).read_to_end(&mut text).context("the SDK in this program is damaged")?;
    let all: BTreeMap<String, String> =
        serde_json::from_slice(&text).context("the SDK in this program is damaged")?;
    let of_part =
        |(path, text): (String, String)| Some((path.strip_prefix(part.folder())?.to_owned(), text));
    Ok(all.into_iter().filter_map(of_part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_complete() {
        for (part, expected) in [
            (
                Part::Rust,
                &["Cargo.toml", "README.md", "src/lib.rs", "src/host/bindings.rs", "macros/Cargo.toml"][..],
            ),
            (Part::Js, &["package.json", "index.js", "index.d.ts", "test.d.ts", "tsconfig.json"]),
            (Part::Wit, &["function.wit", "deps/io/poll.wit"]),
        ] {
            let files = files(part).unwrap();
            for name in expected {
                assert!(
                    files.iter().any(|(path, text)| path == name && !text.is_empty()),
                    "{part:?}: {name}"
                );
            }
        }
    }
}
