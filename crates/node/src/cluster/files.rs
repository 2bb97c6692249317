//! Files of a cluster member: `cluster/` in the data directory, readable by its owner only.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use edgefaas_cluster::{ClusterKey, Identity, IdentityError, Membership, MembershipError};
use edgefaas_platform::replace_file;

/// The folder of a node's cluster.
pub struct ClusterFiles {
    folder: PathBuf,
}

/// A file of the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The file cannot be read or written.
    #[error("{path} cannot be used: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The node's key is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The list of members is invalid.
    #[error("{path}: {reason}")]
    Membership {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: MembershipError,
    },
    /// The cluster's key is invalid.
    #[error("{path} does not contain a valid cluster key; restore it from a backup")]
    Key {
        /// The file.
        path: PathBuf,
    },
}

impl ClusterFiles {
    /// The files in this data directory.
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("cluster") }
    }

    /// Identity of the node, drawn at the first call.
    pub fn identity(&self) -> Result<Identity, FilesError> {
        self.make_folder()?;
        Ok(Identity::load_or_create(&self.identity_path())?)
    }

    /// Membership of the node; `None` if it is in no cluster.
    pub fn membership(&self) -> Result<Option<Membership>, FilesError> {
        let path = self.members_path();
        let Some(bytes) = self.read(&path)? else { return Ok(None) };
        Membership::decode(&bytes).map(Some).map_err(|reason| FilesError::Membership { path, reason })
    }

    /// Stores the membership.
    pub fn keep_membership(&self, membership: &Membership) -> Result<(), FilesError> {
        self.write(self.members_path(), &membership.encode())
    }

    /// Key of the cluster; `None` on nodes that did not create the cluster.
    pub fn cluster_key(&self) -> Result<Option<ClusterKey>, FilesError> {
        let path = self.key_path();
        let Some(bytes) = self.read(&path)? else { return Ok(None) };
        ClusterKey::from_bytes(&bytes).map(Some).map_err(|_| FilesError::Key { path })
    }

    /// Stores the key of the cluster.
    pub fn keep_cluster_key(&self, key: &ClusterKey) -> Result<(), FilesError> {
        self.write(self.key_path(), &key.to_bytes())
    }

    /// Path of the cluster's key. The holder of the key decides about membership.
    fn key_path(&self) -> PathBuf {
        self.folder.join("cluster.key")
    }

    fn identity_path(&self) -> PathBuf {
        self.folder.join("node.key")
    }

    /// Files with keys: of the node, and of the cluster on the node that created it.
    pub(crate) fn keys(&self) -> [PathBuf; 2] {
        [self.identity_path(), self.key_path()]
    }

    fn members_path(&self) -> PathBuf {
        self.folder.join("members")
    }

    fn make_folder(&self) -> Result<(), FilesError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|reason| FilesError::Io { path: self.folder.clone(), reason })
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, FilesError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(reason) => Err(FilesError::Io { path: path.to_owned(), reason }),
        }
    }

    fn write(&self, path: PathBuf, bytes: &[u8]) -> Result<(), FilesError> {
        self.make_folder()?;
        replace_file(&path, bytes).map_err(|reason| FilesError::Io { path, reason })
    }
}
