//! Files with keys and tokens: only the node's own user may read them.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files with keys that other users can read or change.
#[derive(Debug, thiserror::Error)]
pub struct ExposedFiles(Vec<ExposedFile>);

#[derive(Debug)]
struct ExposedFile {
    path: PathBuf,
    mode: u32,
    /// The mode with which only the node can read it.
    needed: u32,
}

impl fmt::Display for ExposedFiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, file) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(out, "{comma}{} (mode {:o})", file.path.display(), file.mode)?;
        }
        let what = if self.0.len() == 1 { "has a key or token" } else { "have keys or tokens" };
        write!(out, " {what} and can be read or changed by other users; run `")?;
        for (number, file) in self.0.iter().enumerate() {
            let and = if number > 0 { " && " } else { "" };
            write!(out, "{and}chmod {:o} {}", file.needed, file.path.display())?;
        }
        write!(out, "`")
    }
}

/// Refuses files that other users can read or change, all in one error. As with PostgreSQL's key, the group may
/// read a file of another owner (root:ssl-cert, mode 0640). Missing files are skipped. Blocks.
///
/// # Errors
/// The files that other users can read or change, with the commands to run.
pub fn check<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<(), ExposedFiles> {
    let user = rustix::process::geteuid().as_raw();
    let exposed = |path: P| {
        let metadata = std::fs::metadata(&path).ok()?;
        let mode = metadata.mode() & 0o777;
        let (others, needed) = if metadata.uid() == user { (0o077, 0o600) } else { (0o037, 0o640) };
        (mode & others != 0).then(|| ExposedFile { path: path.as_ref().to_owned(), mode, needed })
    };
    match paths.into_iter().filter_map(exposed).collect::<Vec<_>>() {
        files if files.is_empty() => Ok(()),
        files => Err(ExposedFiles(files)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn exposed_files_are_named_with_the_command_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["closed", "read-only", "of-the-group", "of-all"].map(|name| folder.path().join(name));
        for (path, mode) in files.iter().zip([0o600, 0o400, 0o640, 0o644]) {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let missing = folder.path().join("missing");
        assert!(check(files[..2].iter().chain([&missing])).is_ok());
        let error = check(&files).unwrap_err().to_string();
        let (group, all) = (files[2].display(), files[3].display());
        let expected = format!(
            "{group} (mode 640), {all} (mode 644) have keys or tokens and can be read or changed by other users; run `chmod 600 \
             {group} && chmod 600 {all}`"
        );
        assert_eq!(error, expected);
    }
}
