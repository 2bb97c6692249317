//! The owner of a data directory: commands of root act as that user, so that the node can read the files that they create.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

/// This process cannot act as the owner. It is still root, and has created no file.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The owner is unknown.
    #[error("the owner of the data directory {} cannot be read: {reason}", path.display())]
    Read {
        /// The data directory.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// Somebody else leads root to a folder.
    #[error(
        "the data directory {} is a link of the user {by} to a folder of the user {owner}; name the folder itself", path.display()
    )]
    ForeignLink {
        /// The data directory.
        path: PathBuf,
        /// User id of the link's owner.
        by: u32,
        /// User id of the folder's owner.
        owner: u32,
    },
    /// The system does not permit it, as in a container without CAP_SETUID and CAP_SETGID.
    #[error(
        "the data directory {} belongs to the user {user} and the group {group}, and this process cannot act as them: {reason}; \
         run the command as that user", path.display()
    )]
    Refused {
        /// The data directory.
        path: PathBuf,
        /// Its user id.
        user: u32,
        /// Its group id.
        group: u32,
        /// The system's error.
        reason: Errno,
    },
}

/// User and group of the data directory, if this process is root and they are others. `None` without the directory.
///
/// # Errors
/// See [`OwnerError::Read`] and [`OwnerError::ForeignLink`].
pub fn other_owner(data_dir: &Path) -> Result<Option<(u32, u32)>, OwnerError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let read = |reason| OwnerError::Read { path: data_dir.to_owned(), reason };
    let folder = std::fs::metadata(data_dir);
    if let (Ok(link), Ok(folder)) = (std::fs::symlink_metadata(data_dir), &folder)
        && link.is_symlink()
        && link.uid() != 0
        && link.uid() != folder.uid()
    {
        return Err(OwnerError::ForeignLink {
            path: data_dir.to_owned(),
            by: link.uid(),
            owner: folder.uid(),
        });
    }
    match folder {
        Ok(folder) if folder.uid() == 0 && folder.gid() == 0 => Ok(None),
        Ok(folder) => Ok(Some((folder.uid(), folder.gid()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(read(reason)),
    }
}

/// Gives a process of root the user and the group of the data directory, permanently and in all threads. It does nothing as
/// another user, and without the directory.
///
/// # Errors
/// See [`OwnerError`].
pub fn act_as_owner(data_dir: &Path) -> Result<(), OwnerError> {
    let Some((user, group)) = other_owner(data_dir)? else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    // The user last: without root the groups cannot change any more.
    setgroups(&[gid])
        .and_then(|()| setresgid(gid, gid, gid))
        .and_then(|()| setresuid(uid, uid, uid))
        .map_err(|reason| OwnerError::Refused { path: data_dir.to_owned(), user, group, reason })
}
