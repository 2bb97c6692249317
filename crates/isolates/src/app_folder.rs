//! Files of an app on the user's machine: those inside of its folder, and no others.
//!
//! A link may lead from one place in the folder to another, as package managers make them, but not out of it. Otherwise a
//! foreign app could deploy keys and tokens of the user.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use edgefaas_platform::regular_file;

/// The folder of an app.
#[derive(Debug, Clone)]
pub struct AppFolder {
    /// Without links.
    root: PathBuf,
}

/// A file that is not read.
#[derive(Debug, thiserror::Error)]
pub enum AppFileError {
    /// The file is outside of the app folder.
    #[error(
        "{} leads out of the app folder, to {}; only files inside of {} are deployed: copy it there, or deploy the \
         folder that holds both",
        path.display(), target.display(), root.display()
    )]
    Outside {
        /// Path of the file or folder.
        path: PathBuf,
        /// Path without links, outside of the app folder.
        target: PathBuf,
        /// The app folder.
        root: PathBuf,
    },
    /// The file is larger than allowed.
    #[error("{} has {bytes} bytes; the limit is {limit_bytes}", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file, in bytes.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The system does not give it.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl AppFolder {
    /// The folder at `root`, which may itself be a link.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn open(root: &Path) -> Result<Self, AppFileError> {
        let unreadable = |source| AppFileError::Unreadable { path: root.to_owned(), source };
        Ok(Self { root: root.canonicalize().map_err(unreadable)? })
    }

    /// The folder without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path without links of a file or folder inside.
    ///
    /// # Errors
    /// It does not exist, or is outside.
    pub fn locate(&self, path: &Path) -> Result<PathBuf, AppFileError> {
        let unreadable = |source| AppFileError::Unreadable { path: path.to_owned(), source };
        let target = path.canonicalize().map_err(unreadable)?;
        self.check(path, target)
    }

    /// The content of a file inside. Its path is looked at once it is open, so that the file cannot be
    /// replaced by a link meanwhile.
    ///
    /// # Errors
    /// It is no regular file, cannot be read, is outside, or has more than `limit_bytes`.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, AppFileError> {
        let unreadable = |source| AppFileError::Unreadable { path: path.to_owned(), source };
        let file = regular_file::open(path).map_err(unreadable)?;
        let target =
            std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(unreadable)?;
        self.check(path, target)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mut content = Vec::new();
        file.take(limit_bytes.saturating_add(1)).read_to_end(&mut content).map_err(unreadable)?;
        if content.len() as u64 > limit_bytes {
            let bytes = metadata.len();
            return Err(AppFileError::TooLarge { path: path.to_owned(), bytes, limit_bytes });
        }
        Ok(content)
    }

    fn check(&self, path: &Path, target: PathBuf) -> Result<PathBuf, AppFileError> {
        if target.starts_with(&self.root) {
            return Ok(target);
        }
        Err(AppFileError::Outside { path: path.to_owned(), target, root: self.root.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_files_inside_are_read() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::create_dir_all(path("app/lib")).unwrap();
        // A name that begins like the folder's is not inside of it.
        std::fs::create_dir_all(path("app-secret")).unwrap();
        for file in ["app/f.js", "app/lib/g.js", "app-secret/token", "token"] {
            std::fs::write(path(file), file).unwrap();
        }
        symlink(path("app/lib"), path("app/inner")).unwrap();
        symlink(path("token"), path("app/leak")).unwrap();
        symlink(path("app-secret"), path("app/folder")).unwrap();
        symlink(path("app"), path("link")).unwrap();
        for root in ["app", "link"] {
            let folder = AppFolder::open(&path(root)).unwrap();
            let read = |name: &str| folder.read(&path(root).join(name), 100);
            assert_eq!(read("f.js").unwrap(), b"app/f.js");
            assert_eq!(read("inner/g.js").unwrap(), b"app/lib/g.js");
            assert!(folder.locate(&path(root).join("inner/g.js")).unwrap().ends_with("app/lib/g.js"));
            for name in ["leak", "folder/token", "../token", "../app-secret/token", "lib/../../token"] {
                assert!(matches!(read(name), Err(AppFileError::Outside { .. })), "{name}");
                let located = folder.locate(&path(root).join(name));
                assert!(matches!(located, Err(AppFileError::Outside { .. })), "{name}");
            }
            for name in ["lib", "none"] {
                assert!(matches!(read(name), Err(AppFileError::Unreadable { .. })), "{name}");
            }
            let error = folder.read(&path(root).join("f.js"), 3).unwrap_err();
            assert!(matches!(error, AppFileError::TooLarge { bytes: 8, .. }), "{error}");
        }
    }
}
