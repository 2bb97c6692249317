//! What a member keeps on its disk: `cluster/` in the data directory, readable by its owner only.

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
    /// It cannot be read or written.
    #[error("{path} cannot be used: {reason}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The node's key is no good.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The list of members is no good.
    #[error("{path}: {reason}")]
    Membership {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: MembershipError,
    },
    /// The cluster's key is no good.
    #[error("{path} holds no key of a cluster; restore it from a backup")]
    Key {
        /// Which file.
        path: PathBuf,
    },
}

impl ClusterFiles {
    /// In this data directory.
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("cluster") }
    }

    /// Who this node is; drawn at the first time.
    pub fn identity(&self) -> Result<Identity, FilesError> {
        self.make_folder()?;
        Ok(Identity::load_or_create(&self.identity_path())?)
    }

    /// What the node knows of its cluster; none if it is in none.
    pub fn membership(&self) -> Result<Option<Membership>, FilesError> {
        let path = self.members_path();
        let Some(bytes) = self.read(&path)? else { return Ok(None) };
        Membership::decode(&bytes).map(Some).map_err(|reason| FilesError::Membership { path, reason })
    }

    /// Keeps it.
    pub fn keep_membership(&self, membership: &Membership) -> Result<(), FilesError> {
        self.write(self.members_path(), &membership.encode())
    }

    /// The key of the cluster, where this node made it.
    pub fn cluster_key(&self) -> Result<Option<ClusterKey>, FilesError> {
        let path = self.key_path();
        let Some(bytes) = self.read(&path)? else { return Ok(None) };
        ClusterKey::from_bytes(&bytes).map(Some).map_err(|_| FilesError::Key { path })
    }

    /// Keeps it.
    pub fn keep_cluster_key(&self, key: &ClusterKey) -> Result<(), FilesError> {
        self.write(self.key_path(), &key.to_bytes())
    }

    /// Where the key of the cluster is: whoever has it says who belongs to the cluster.
    fn key_path(&self) -> PathBuf {
        self.folder.join("cluster.key")
    }

    fn identity_path(&self) -> PathBuf {
        self.folder.join("node.key")
    }

    /// The files with keys: of the node, and of the cluster where it made one.
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
