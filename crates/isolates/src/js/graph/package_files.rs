//! The files that the resolver reads: each `package.json`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgefaas_platform::regular_file::{self, NotRegular};
use oxc_resolver::{FileMetadata, FileSystem, FileSystemOs, ResolveError};
use parking_lot::Mutex;

use super::SourceFileError;
use crate::js::transpile::MAX_SOURCE_BYTES;

/// The first `package.json` that cannot be read although it exists: the resolver would go on as if it did not.
pub(super) type Unreadable = Arc<Mutex<Option<SourceFileError>>>;

/// The file system, of which only regular files of a limited size are read.
#[derive(Default)]
pub(super) struct PackageFiles {
    /// The app folder, without links.
    root: PathBuf,
    unreadable: Unreadable,
}

impl PackageFiles {
    pub fn new(root: &Path) -> (Self, Unreadable) {
        let unreadable = Unreadable::default();
        (Self { root: root.to_owned(), unreadable: unreadable.clone() }, unreadable)
    }
}

impl FileSystem for PackageFiles {
    fn new() -> Self {
        Self::default()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        regular_file::read(path, MAX_SOURCE_BYTES as u64).inspect_err(|error| {
            let is_other = error.get_ref().is_some_and(|error| error.is::<NotRegular>()) && !path.is_dir();
            let is_large = error.kind() == io::ErrorKind::FileTooLarge;
            // Those above the app folder belong to others.
            if (is_other || is_large) && path.starts_with(&self.root) {
                let detail = format!("{}: cannot be read: {error}", path.display());
                self.unreadable.lock().get_or_insert(SourceFileError::AppFile { detail });
            }
        })
    }

    fn read_to_string(&self, path: &Path) -> io::Result<String> {
        FileSystemOs::validate_string(self.read(path)?)
    }

    fn metadata(&self, path: &Path) -> io::Result<FileMetadata> {
        FileSystemOs::metadata(path).map(found)
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<FileMetadata> {
        FileSystemOs::symlink_metadata(path).map(found)
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf, ResolveError> {
        FileSystemOs::read_link(path)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        FileSystemOs::canonicalize(path)
    }
}

/// A pipe as if it were a file: the error of reading it is clearer than that there is no file.
fn found(metadata: FileMetadata) -> FileMetadata {
    let is_file = !metadata.is_dir() && !metadata.is_symlink();
    FileMetadata::new(is_file, metadata.is_dir(), metadata.is_symlink())
}
