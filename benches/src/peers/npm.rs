//! Peers that are packages of npm, in `target/`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::target_folder;

/// Whether npm runs what a package wants to run at its install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scripts {
    /// As by default.
    Run,
    /// Not.
    Ignored,
}

/// The path of a file or folder of a package, below `node_modules`. Installs the package if the path does not exist.
///
/// # Errors
/// npm is not there, or cannot install it for this machine.
pub(super) fn installed(
    package: &str,
    version: &str,
    scripts: Scripts,
    path: &str,
) -> anyhow::Result<PathBuf> {
    let folder = target_folder().join(package).join(version);
    let wanted = folder.join("node_modules").join(path);
    if !wanted.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund"]);
        if scripts == Scripts::Ignored {
            npm.arg("--ignore-scripts");
        }
        npm.arg("--prefix").arg(&folder).arg(format!("{package}@{version}")).stdout(Stdio::null());
        let status = npm.status().context("npm cannot be started")?;
        ensure!(
            status.success() && wanted.exists(),
            "{package} could not be installed: npm ended with {status}"
        );
    }
    Ok(wanted)
}
