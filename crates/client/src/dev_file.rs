//! `.edgefaas/dev.json`: other commands inside an app folder find the node of `edgefaas dev` there.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::connection::is_loopback;

/// The folder inside an app with the node's data of `dev`.
pub const FOLDER: &str = ".edgefaas";
const FILE: &str = "dev.json";
/// Limit of the file's size.
const MAX_BYTES: u64 = 64 << 10;
/// The permissions of everyone but the owner.
const OTHERS: u32 = 0o077;

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevNode {
    /// URL of the control API.
    pub control: String,
    /// Admin token of the node.
    pub token: String,
    /// SHA-256 of its certificate, if it speaks TLS.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// The process that runs the node.
    pub pid: u32,
}

/// Removes the file when `dev` ends.
pub struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The URL of a node's control API for this machine.
pub fn control_url(mut address: SocketAddr, tls: bool) -> String {
    // A node that listens everywhere listens on the loopback interface too.
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("{}://{address}", if tls { "https" } else { "http" })
}

/// Makes the folder, which only its owner can read and which excludes itself from version control.
///
/// # Errors
/// The folder cannot be made, or its path is not a folder of this user.
pub fn prepare(app_root: &Path) -> io::Result<PathBuf> {
    let folder = app_root.canonicalize()?.join(FOLDER);
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => tighten(&folder)?,
        made => made?,
    }
    // A downloaded app may contain a link of this name, which must not be followed.
    let ignore = fs::OpenOptions::new().write(true).create_new(true).open(folder.join(".gitignore"));
    match ignore {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made?.write_all(b"*\n")?,
    }
    Ok(folder)
}

fn tighten(folder: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, "not a folder"));
    }
    if metadata.mode() & OTHERS != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Writes the file, readable by its owner only.
pub fn write(app_root: &Path, node: &DevNode) -> io::Result<Written> {
    let path = prepare(app_root)?.join(FILE);
    // An existing file would keep its mode.
    let _ = fs::remove_file(&path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(&serde_json::to_vec_pretty(node)?)?;
    Ok(Written(path))
}

/// A file that does not count, with the reason.
#[derive(Debug, thiserror::Error)]
pub enum NotCounted {
    /// The system does not give it, or it is a link.
    #[error("{} does not count: {error}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("{} does not count: it is no plain file", path.display())]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another user owns it.
    #[error("{} does not count: it belongs to the user {uid}, and not to you", path.display())]
    OtherOwner {
        /// Path of the file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Other users have access to it.
    #[error("{} does not count: other users have access to it (mode {mode:o}); run `chmod 600` on it", path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is not JSON of the known form.
    #[error("{} does not count: it cannot be read: {error}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// Its node may be on another machine.
    #[error("{} does not count: {control} is no address of this machine's loopback; name the node with --node", path.display())]
    Elsewhere {
        /// Path of the file.
        path: PathBuf,
        /// The URL in it.
        control: String,
    },
    /// Its process has ended without removing it.
    #[error("{} does not count: its `edgefaas dev` (process {pid}) has ended; start it again", path.display())]
    Ended {
        /// Path of the file.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
}

/// The node of the nearest folder at or above `start` that counts, and the nearer files that do not.
///
/// Folders above may belong to other users. A file counts only if this user owns it, no other user can read it, and it names a process
/// that runs and an address of the loopback interface. Its token is sent only to a node that proves to hold it.
pub fn find(start: &Path) -> (Option<DevNode>, Vec<NotCounted>) {
    let mut not_counted = Vec::new();
    for folder in start.ancestors() {
        match read(folder.join(FOLDER).join(FILE)) {
            Ok(Some(node)) => return (Some(node), not_counted),
            Ok(None) => {}
            Err(reason) => not_counted.push(reason),
        }
    }
    (None, not_counted)
}

/// The node in a plain file that this user owns and no other user has access to; `None` without a file.
fn read(path: PathBuf) -> Result<Option<DevNode>, NotCounted> {
    // Do not follow a link, do not wait for a pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        // Folders that others have closed have no file for this user.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(NotCounted::Unreadable { path, error }),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Err(NotCounted::Unreadable { path, error }),
    };
    if !metadata.is_file() {
        return Err(NotCounted::NotAFile { path });
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(NotCounted::OtherOwner { path, uid: metadata.uid() });
    }
    if metadata.mode() & OTHERS != 0 {
        return Err(NotCounted::Exposed { path, mode: metadata.mode() & 0o777 });
    }
    let mut text = Vec::new();
    if let Err(error) = file.take(MAX_BYTES).read_to_end(&mut text) {
        return Err(NotCounted::Unreadable { path, error });
    }
    let node: DevNode = match serde_json::from_slice(&text) {
        Ok(node) => node,
        Err(error) => return Err(NotCounted::Malformed { path, error }),
    };
    if !is_loopback(&node.control) {
        return Err(NotCounted::Elsewhere { path, control: node.control });
    }
    if !Path::new("/proc").join(node.pid.to_string()).exists() {
        return Err(NotCounted::Ended { path, pid: node.pid });
    }
    Ok(Some(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(start: &Path) -> Option<DevNode> {
        find(start).0
    }

    fn reason(start: &Path) -> String {
        let (node, reasons) = find(start);
        assert_eq!(node, None);
        reasons[0].to_string()
    }

    #[test]
    fn found_from_below_while_its_process_lives() {
        let app = tempfile::tempdir().unwrap();
        let below = app.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(found(&below), None);

        let mut node = DevNode {
            control: "http://127.0.0.1:1".into(),
            token: "t".into(),
            fingerprint: None,
            pid: std::process::id(),
        };
        let written = write(app.path(), &node).unwrap();
        let mode = fs::metadata(&written.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(found(&below), Some(node.clone()));
        drop(written);
        assert_eq!(found(&below), None, "removed at the end");

        // Process ids end well below this.
        node.pid = u32::MAX;
        let _stale = write(app.path(), &node).unwrap();
        assert!(reason(&below).contains("has ended"), "left behind by a process that was killed");
    }

    fn own_node() -> DevNode {
        DevNode {
            control: "http://127.0.0.1:1".into(),
            token: "t".into(),
            fingerprint: None,
            pid: std::process::id(),
        }
    }

    #[test]
    fn a_planted_file_is_not_believed() {
        let app = tempfile::tempdir().unwrap();
        let node = own_node();
        let written = write(app.path(), &node).unwrap();
        assert_eq!(found(app.path()), Some(node.clone()), "as written, it counts");

        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&written.0, fs::Permissions::from_mode(mode)).unwrap();
            assert!(reason(app.path()).contains(&format!("mode {mode:o}")), "mode {mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&written.0, fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&written.0, Some(65_534), None).unwrap();
            assert!(reason(app.path()).contains("belongs to the user 65534"));
        }

        let elsewhere = DevNode { control: "http://192.0.2.1:7070".into(), ..node.clone() };
        let _elsewhere = write(app.path(), &elsewhere).unwrap();
        assert!(reason(app.path()).contains("http://192.0.2.1:7070 is no address"));

        let written = write(app.path(), &node).unwrap();
        let moved = app.path().join("moved.json");
        fs::rename(&written.0, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &written.0).unwrap();
        assert!(reason(app.path()).contains("does not count"), "a link");
    }

    #[test]
    fn only_its_owner_can_read_the_folder() {
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let app = tempfile::tempdir().unwrap();
        let folder = prepare(app.path()).unwrap();
        assert_eq!(mode(&folder), 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(app.path()).unwrap();
        assert_eq!(mode(&folder), 0o700, "tightened");
        assert_eq!(fs::read(folder.join(".gitignore")).unwrap(), b"*\n");

        let (app, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(victim.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(victim.path(), app.path().join(FOLDER)).unwrap();
        assert_eq!(prepare(app.path()).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert_eq!(mode(victim.path()), 0o755, "the target of a link is unchanged");
        assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_node_that_listens_everywhere_is_reached_by_loopback() {
        for (address, url) in [
            ("0.0.0.0:7070", "http://127.0.0.1:7070"),
            ("[::]:7070", "http://[::1]:7070"),
            ("127.0.0.1:1", "http://127.0.0.1:1"),
            ("192.0.2.1:1", "http://192.0.2.1:1"),
        ] {
            assert_eq!(control_url(address.parse().unwrap(), false), url);
        }
    }
}
