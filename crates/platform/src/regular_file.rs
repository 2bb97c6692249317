//! Regular files, opened without waiting: a pipe without a writer, a socket or a device is refused.

use std::fmt;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The kind of a path that is no regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherKind {
    /// A folder.
    Folder,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A device of characters or blocks.
    Device,
}

impl fmt::Display for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Folder => "a folder",
            Self::Pipe => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        })
    }
}

/// A path, or the target of a link, is no regular file. It comes inside of an [`io::Error`] of the kind `InvalidInput`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {0}, and only regular files are read")]
pub struct NotRegular(pub OtherKind);

fn other_kind(kind: FileType) -> Option<OtherKind> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some(OtherKind::Folder)
    } else if kind.is_fifo() {
        Some(OtherKind::Pipe)
    } else if kind.is_socket() {
        Some(OtherKind::Socket)
    } else {
        Some(OtherKind::Device)
    }
}

/// Opens the regular file at `path`, or that at the end of its links, for reading. Never waits for another process.
///
/// # Errors
/// [`NotRegular`], or the error of the system.
pub fn open(path: &Path) -> io::Result<File> {
    // Before it is opened, which is an effect on some devices and on the writer of a pipe.
    check(&std::fs::metadata(path)?)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // Another one may have taken its place meanwhile.
    check(&file.metadata()?)?;
    Ok(file)
}

/// The content of the regular file at `path`, or that at the end of its links.
///
/// # Errors
/// [`NotRegular`], the error of the system, or `FileTooLarge` for more than `limit_bytes`.
pub fn read(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit_bytes {
        let reason = format!("it has more than {limit_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(content)
}

/// Refuses what is no regular file.
///
/// # Errors
/// [`NotRegular`].
pub fn check(metadata: &Metadata) -> io::Result<()> {
    match other_kind(metadata.file_type()) {
        None => Ok(()),
        Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular(kind))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "pipe", "socket"] {
            symlink(path(name), path(&format!("link-to-{name}"))).unwrap();
        }
        symlink("/dev/zero", path("link-to-device")).unwrap();
        assert_eq!(read(&path("file"), 4).unwrap(), b"text");
        assert_eq!(read(&path("link-to-file"), 4).unwrap(), b"text");
        assert_eq!(read(&path("file"), 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for (name, kind) in [
            ("", OtherKind::Folder),
            ("pipe", OtherKind::Pipe),
            ("link-to-pipe", OtherKind::Pipe),
            ("socket", OtherKind::Socket),
            ("link-to-socket", OtherKind::Socket),
            ("link-to-device", OtherKind::Device),
        ] {
            let error = read(&path(name), 4).unwrap_err();
            let found = error.get_ref().and_then(|error| error.downcast_ref::<NotRegular>());
            assert_eq!(found, Some(&NotRegular(kind)), "{name}: {error}");
        }
    }
}
