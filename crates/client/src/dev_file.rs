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

/// The node of the nearest folder at or above `start` whose process still runs.
///
/// Folders above may belong to other users. A file counts only if this user owns it, no other user can read
/// it, and it names a process of the same program that listens on the loopback interface.
pub fn find(start: &Path) -> Option<DevNode> {
    start.ancestors().find_map(|folder| {
        let text = read_own(&folder.join(FOLDER).join(FILE)).ok()??;
        let node: DevNode = serde_json::from_slice(&text).ok()?;
        (is_loopback(&node.control) && runs_this_program(node.pid)).then_some(node)
    })
}

/// The content of a plain file that this user owns and no other user has access to.
fn read_own(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Do not follow a link, do not wait for a pipe.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & OTHERS == 0;
    if !own || !metadata.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Works for processes of this user (for root: all).
fn runs_this_program(pid: u32) -> bool {
    let exe = |process: &str| Path::new("/proc").join(process).join("exe");
    let (theirs, ours) = (exe(&pid.to_string()), exe("self"));
    let file = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    if file(&theirs).is_some_and(|theirs| file(&ours) == Some(theirs)) {
        return true;
    }
    match (fs::read_link(theirs), fs::read_link(ours)) {
        (Ok(theirs), Ok(ours)) => same_path(&theirs, &ours),
        _ => false,
    }
}

/// Also true if a rebuild replaced the file after one of the two started.
fn same_path(a: &Path, b: &Path) -> bool {
    let path = |path: &Path| {
        let bytes = path.as_os_str().as_encoded_bytes();
        bytes.strip_suffix(b" (deleted)").unwrap_or(bytes).to_vec()
    };
    path(a) == path(b)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn found_from_below_while_its_process_lives() {
        let app = tempfile::tempdir().unwrap();
        let below = app.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(find(&below), None);

        let mut node = DevNode {
            control: "http://127.0.0.1:1".into(),
            token: "t".into(),
            fingerprint: None,
            pid: std::process::id(),
        };
        let written = write(app.path(), &node).unwrap();
        let mode = fs::metadata(&written.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(find(&below), Some(node.clone()));
        drop(written);
        assert_eq!(find(&below), None, "removed at the end");

        // Process ids end well below this.
        node.pid = u32::MAX;
        let _stale = write(app.path(), &node).unwrap();
        assert_eq!(find(&below), None, "left behind by a process that was killed");
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
        assert_eq!(find(app.path()), Some(node.clone()), "as written, it counts");

        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&written.0, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(find(app.path()), None, "mode {mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&written.0, fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&written.0, Some(65_534), None).unwrap();
            assert_eq!(find(app.path()), None, "another user's");
        }

        let elsewhere = DevNode { control: "http://192.0.2.1:7070".into(), ..node.clone() };
        let _elsewhere = write(app.path(), &elsewhere).unwrap();
        assert_eq!(find(app.path()), None, "another machine");

        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let _other = write(app.path(), &DevNode { pid: other.id(), ..node.clone() }).unwrap();
        assert_eq!(find(app.path()), None, "another program");
        drop(other.stdin.take());
        other.wait().unwrap();

        let written = write(app.path(), &node).unwrap();
        let moved = app.path().join("moved.json");
        fs::rename(&written.0, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &written.0).unwrap();
        assert_eq!(find(app.path()), None, "a link");
    }

    #[test]
    fn a_program_is_itself_after_a_rebuild() {
        let (old, new) = (Path::new("/bin/edgefaas (deleted)"), Path::new("/bin/edgefaas"));
        assert!(same_path(old, new) && same_path(new, old) && same_path(new, new));
        assert!(!same_path(old, Path::new("/tmp/edgefaas")));
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
