//! Hono, the web framework that both a node and workerd run, from the packages of npm. Installed when it is first wanted.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::npm::{Scripts, installed};

/// The version that is measured.
pub const VERSION: &str = "4.13.19";

/// The folder of the package.
///
/// # Errors
/// It is not there, and npm cannot install it.
pub(super) fn hono() -> anyhow::Result<PathBuf> {
    installed("hono", VERSION, Scripts::Ignored, "hono")
}

/// Copies the package, as far as `import "hono"` needs it, to `node_modules` of an app.
///
/// # Errors
/// The package is not there and npm cannot install it, or the app cannot be written.
pub fn copy_hono(app: &Path) -> anyhow::Result<()> {
    let (from, to) = (hono()?, app.join("node_modules/hono"));
    let modules = modules(&from)?.into_iter().map(|module| format!("dist/{module}"));
    for file in modules.chain(["package.json".to_owned()]) {
        let copy = to.join(&file);
        std::fs::create_dir_all(copy.parent().context("it is in a folder")?)?;
        std::fs::copy(from.join(&file), copy)?;
    }
    Ok(())
}

/// The modules that `import "hono"` loads, as paths below `dist`; the first is its entry.
pub(super) fn modules(package: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = vec!["index.js".to_owned()];
    let mut next = 0;
    while let Some(module) = found.get(next).cloned() {
        next += 1;
        let text = std::fs::read_to_string(package.join("dist").join(&module))
            .with_context(|| format!("{module} of hono"))?;
        let imports =
            text.lines().filter(|line| line.starts_with("import ") || line.starts_with("export "));
        for import in imports.filter_map(|line| line.split('"').nth(1)).filter(|name| name.starts_with('.'))
        {
            let mut path: Vec<&str> = module.split('/').collect();
            path.pop();
            for part in import.split('/') {
                match part {
                    "." => {}
                    ".." => drop(path.pop()),
                    part => path.push(part),
                }
            }
            let path = path.join("/");
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    Ok(found)
}
