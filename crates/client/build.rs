//! Packs the sources of the SDK, so that `edgefaas new` needs no checkout: gzip over a JSON object of path and text.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

type Failure = Box<dyn std::error::Error>;

/// Path in the archive, and path below `crates/sdk`.
const PARTS: [(&str, &str); 9] = [
    ("rust/Cargo.toml", "Cargo.toml"),
    ("rust/README.md", "README.md"),
    ("rust/src", "src"),
    ("rust/macros", "macros"),
    ("wit", "wit"),
    ("js/README.md", "js/README.md"),
    ("js/package.json", "js/package.json"),
    ("js/tsconfig.json", "js/tsconfig.json"),
    ("js", "js"),
];

fn main() -> Result<(), Failure> {
    let sdk = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).with_file_name("sdk");
    let mut files = BTreeMap::new();
    for (name, part) in PARTS {
        let path = sdk.join(part);
        println!("cargo:rerun-if-changed={}", path.display());
        add(name, &path, part == "js", &mut files)?;
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("sdk.json.gz");
    let mut packed = GzEncoder::new(fs::File::create(out)?, Compression::best());
    packed.write_all(&serde_json::to_vec(&files)?)?;
    packed.finish()?.flush()?;
    Ok(())
}

/// Adds a file, or the files of a folder: of the JavaScript package only its modules and their types.
fn add(
    name: &str,
    path: &Path,
    only_modules: bool,
    files: &mut BTreeMap<String, String>,
) -> Result<(), Failure> {
    if path.is_file() {
        files.insert(name.to_owned(), fs::read_to_string(path)?);
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_module = path.is_file() && (file.ends_with(".js") || file.ends_with(".d.ts"));
        if file == "target" || (only_modules && !is_module) {
            continue;
        }
        add(&format!("{name}/{file}"), &path, only_modules, files)?;
    }
    Ok(())
}
