//! The nodes of `edgefaas login`: certificate and token of each, in one file that only this user can read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use edgefaas_api::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure};

const FILE: &str = "nodes.json";

/// A node after a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNode {
    /// SHA-256 of its certificate.
    pub fingerprint: String,
    /// Admin token of the node.
    pub token: String,
}

impl KnownNode {
    /// The fingerprint; `None` if the file has an invalid one.
    pub fn pin(&self) -> Option<Fingerprint> {
        self.fingerprint.parse().ok()
    }
}

/// All known nodes, by URL.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KnownNodes {
    nodes: BTreeMap<String, KnownNode>,
}

impl KnownNodes {
    /// Reads the file; without a file there are no nodes.
    ///
    /// # Errors
    /// The file cannot be read, other users may read or write it, or it is invalid.
    pub fn load() -> anyhow::Result<Self> {
        match folder() {
            Some(folder) => Self::load_in(&folder),
            None => Ok(Self::default()),
        }
    }

    /// The node at a URL.
    pub fn get(&self, url: &str) -> Option<&KnownNode> {
        self.nodes.get(url)
    }

    /// Adds or replaces a node, and writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(url: &str, node: KnownNode) -> anyhow::Result<PathBuf> {
        let folder =
            folder().context("there is no folder for settings: set HOME or EDGEFAAS_CONFIG_DIR")?;
        let mut known = Self::load_in(&folder)?;
        known.nodes.insert(url.to_owned(), node);
        known
            .store_in(&folder)
            .with_context(|| format!("{} cannot be written", folder.join(FILE).display()))
    }

    fn load_in(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let shown = path.display();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("{shown} cannot be read")),
        };
        let meta = fs::metadata(&path).with_context(|| format!("{shown} cannot be read"))?;
        if meta.mode() & 0o077 != 0 {
            let message = format!(
                "other users may read or change {shown}, which has tokens; run `chmod 600 {shown}` if you \
                 trust its content, or delete it and log in again"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        serde_json::from_str(&text)
            .with_context(|| format!("{shown} is not valid; delete it and log in again"))
    }

    fn store_in(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(FILE);
        let temporary = folder.join(format!("{FILE}.{}", std::process::id()));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = serde_json::to_writer_pretty(&mut file, self).map_err(io::Error::from);
        written.and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all())?;
        fs::rename(&temporary, &path)?;
        Ok(path)
    }
}

/// `$EDGEFAAS_CONFIG_DIR`, else `$XDG_CONFIG_HOME/edgefaas`, else `~/.config/edgefaas`.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("EDGEFAAS_CONFIG_DIR")
        .or_else(|| set("XDG_CONFIG_HOME").map(|base| base.join("edgefaas")))
        .or_else(|| set("HOME").map(|home| home.join(".config/edgefaas")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn known_nodes_are_readable_by_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/edgefaas");
        assert!(KnownNodes::load_in(&folder).unwrap().get("https://pi:7070").is_none());
        let node = KnownNode { fingerprint: "AB".repeat(32), token: "t".into() };
        let mut known = KnownNodes::default();
        known.nodes.insert("https://pi:7070".into(), node.clone());
        let path = known.store_in(&folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let loaded = KnownNodes::load_in(&folder).unwrap();
        assert_eq!(loaded.get("https://pi:7070"), Some(&node));
        assert!(node.pin().is_some());

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = KnownNodes::load_in(&folder).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "{").unwrap();
        let error = KnownNodes::load_in(&folder).unwrap_err().to_string();
        assert!(error.contains("log in again"), "{error}");
    }
}
