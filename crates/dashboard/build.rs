//! Compresses the built files of `dashboard/dist` and writes the table that `lib.rs` includes.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Maximum size of all files together, compressed.
const MAX_BYTES: usize = 150_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard/dist");
    println!("cargo:rerun-if-changed={}", folder.display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    let (mut table, mut total) = (String::from("&[\n"), 0);
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).ok_or("the name is not UTF-8")?;
        let content = fs::read(&file)?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&content)?;
        let gzip = encoder.finish()?;
        total += gzip.len();
        let compressed = out.join(format!("{name}.gz"));
        fs::write(&compressed, &gzip)?;
        let path = if name == "index.html" { "/".to_owned() } else { format!("/{name}") };
        let tag = blake3::hash(&content).to_hex();
        writeln!(
            table,
            "File {{ path: {path:?}, media_type: {:?}, etag: \"\\\"{}\\\"\", gzip: include_bytes!({compressed:?}) }},",
            media_type(name)?,
            &tag[..16],
        )?;
    }
    if total > MAX_BYTES {
        return Err(format!("the dashboard has {total} bytes, and at most {MAX_BYTES} are shipped").into());
    }
    table.push(']');
    fs::write(out.join("files.rs"), table)?;
    Ok(())
}

fn media_type(name: &str) -> Result<&'static str, String> {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        Some("txt") => Ok("text/plain; charset=utf-8"),
        _ => Err(format!("{name} has no known media type")),
    }
}
