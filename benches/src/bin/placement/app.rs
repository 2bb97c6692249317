//! The app of all cases, with the files that are made for it.

use std::path::Path;

use anyhow::Context;
use edgefaas_benches::functions::Guest;
use edgefaas_benches::repository;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::policies::{Policy, TAG, TAGGED};

/// What `coldstart` has of dependencies, in so many files.
const DEPENDENCY_BYTES: usize = 42_800_000;
const FILES: usize = 4;

/// Makes a folder with the app as a policy wants it.
pub fn make(policy: Policy) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let source = repository().join("benches/apps/placement");
    for entry in std::fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "js") {
            std::fs::copy(&path, folder.path().join(path.file_name().context("a name")?))?;
        }
    }
    std::fs::copy(Guest::Document.build()?, folder.path().join("document.wasm"))?;
    make_dependencies(&folder.path().join("cold"))?;
    let mut manifest: toml::Table = std::fs::read_to_string(source.join("edgefaas.toml"))?.parse()?;
    if policy.has_tag() {
        let functions = manifest.get_mut("functions").and_then(toml::Value::as_table_mut);
        let functions = functions.context("no functions in the manifest")?;
        for name in TAGGED {
            let function = functions.get_mut(name).and_then(toml::Value::as_table_mut);
            function.with_context(|| format!("no function {name}"))?.insert("placement".into(), TAG.into());
        }
    }
    std::fs::write(folder.path().join("edgefaas.toml"), toml::to_string(&manifest)?)?;
    Ok(folder)
}

/// Bytes that do not compress; the same in each run.
fn make_dependencies(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    let mut random = StdRng::seed_from_u64(42);
    for number in 0..FILES {
        let mut bytes = vec![0; DEPENDENCY_BYTES / FILES];
        random.fill_bytes(&mut bytes);
        std::fs::write(folder.join(format!("dependencies-{number}.bin")), bytes)?;
    }
    Ok(())
}
