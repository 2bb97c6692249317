//! The app of all cases, with the files that are made for it.

use std::path::Path;

use anyhow::Context;
use edgefaas_benches::functions::Guest;
use edgefaas_benches::repository;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// What `coldstart` has of dependencies, in so many files.
const DEPENDENCY_BYTES: usize = 42_800_000;
const FILES: usize = 4;

/// Makes a folder with the app.
pub fn make() -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for entry in std::fs::read_dir(repository().join("benches/apps/placement"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "js" || extension == "toml") {
            std::fs::copy(&path, folder.path().join(path.file_name().context("a name")?))?;
        }
    }
    std::fs::copy(Guest::Document.build()?, folder.path().join("document.wasm"))?;
    std::fs::create_dir(folder.path().join("cold"))?;
    revise(folder.path(), 0)?;
    Ok(folder)
}

/// Gives the app other dependencies, bytes that do not compress, and lets `revision` answer with this number.
pub fn revise(folder: &Path, revision: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(revision);
    for number in 0..FILES {
        let mut bytes = vec![0; DEPENDENCY_BYTES / FILES];
        random.fill_bytes(&mut bytes);
        std::fs::write(folder.join(format!("cold/dependencies-{number}.bin")), bytes)?;
    }
    std::fs::write(folder.join("revision.js"), format!("export default () => \"{revision}\";\n"))?;
    Ok(())
}
