//! `.edgefaas/dev.json`: how other commands inside an app folder find the node of `edgefaas dev`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The folder inside an app that `dev` keeps its node's data in.
pub const FOLDER: &str = ".edgefaas";
const FILE: &str = "dev.json";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevNode {
    /// URL of the control API.
    pub control: String,
    /// Its admin token.
    pub token: String,
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

/// Makes the folder, which keeps itself out of version control.
pub fn prepare(app_root: &Path) -> io::Result<PathBuf> {
    let folder = app_root.canonicalize()?.join(FOLDER);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(".gitignore"), "*\n")?;
    Ok(folder)
}

/// Writes the file, readable by its owner only.
pub fn write(app_root: &Path, node: &DevNode) -> io::Result<Written> {
    let path = prepare(app_root)?.join(FILE);
    // A file that is there keeps its mode, so start from none.
    let _ = fs::remove_file(&path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(&serde_json::to_vec_pretty(node)?)?;
    Ok(Written(path))
}

/// The node of the nearest folder at or above `start` whose process still runs.
pub fn find(start: &Path) -> Option<DevNode> {
    start.ancestors().find_map(|folder| {
        let text = fs::read(folder.join(FOLDER).join(FILE)).ok()?;
        let node: DevNode = serde_json::from_slice(&text).ok()?;
        Path::new("/proc").join(node.pid.to_string()).exists().then_some(node)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn found_from_below_while_its_process_lives() {
        let app = tempfile::tempdir().unwrap();
        let below = app.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(find(&below), None);

        let mut node =
            DevNode { control: "http://127.0.0.1:1".into(), token: "t".into(), pid: std::process::id() };
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
}
