//! Files of code that is in memory, or was released and can be loaded again.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use wasmtime::Engine;

use super::Loaded;

/// The file that code in memory is mapped from.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// A file whose code is not in memory. It is held open: it has its content also if its name is removed.
#[derive(Debug)]
pub(crate) struct ReleasedCode(File);

impl LoadedFile {
    /// `file` was opened at `path`.
    pub(super) fn new(path: PathBuf, file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { path, device: metadata.dev(), inode: metadata.ino() })
    }

    /// Opens the file again, before its code is released: while that is mapped, the number of the file is not used for
    /// another one. `None` if the name is gone or belongs to another file.
    pub fn reopen(&self) -> Option<ReleasedCode> {
        let file = File::open(&self.path).ok()?;
        let metadata = file.metadata().ok()?;
        (metadata.dev() == self.device && metadata.ino() == self.inode).then_some(ReleasedCode(file))
    }
}

impl ReleasedCode {
    /// Maps the code again. Its content was authenticated when it was loaded first; the node never changes files. Blocks.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn load<T: Loaded>(&self, engine: &Engine) -> wasmtime::Result<T> {
        T::from_file(engine, &self.0)
    }
}
