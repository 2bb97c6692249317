//! The identity of a node: an ed25519 key pair, and the peer id that follows from it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use libp2p::identity::{Keypair, ed25519};

/// First bytes of an identity: a mark and the version of the format.
const HEADER: [u8; 5] = *b"efid\x01";
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

/// The key pair of a node.
#[derive(Clone)]
pub struct Identity {
    keypair: ed25519::Keypair,
}

/// An identity that cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The bytes are not an identity.
    #[error("they are not an identity of edgefaas: {reason}")]
    Malformed {
        /// The reason.
        reason: &'static str,
    },
    /// The file exists and does not hold a valid identity.
    #[error(
        "the node's identity {path} is damaged ({reason}); restore it from a backup, or remove it and join \
         the cluster again as a new node"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The file cannot be read or written.
    #[error("the node's identity {path} cannot be {action}: {source}; check the folder's rights and space")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation: `read` or `written`.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl Identity {
    /// A new identity from the system's randomness.
    pub fn generate() -> Self {
        Self { keypair: ed25519::Keypair::generate() }
    }

    /// The peer id: a hash of the public key, as libp2p makes it.
    pub fn peer_id(&self) -> PeerId {
        self.libp2p_keypair().public().to_peer_id()
    }

    /// The bytes to keep, secret included: mark, version, 32 secret bytes, checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        bytes.extend_from_slice(self.keypair.secret().as_ref());
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote; never panics.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, IdentityError> {
        read(bytes).map_err(|reason| IdentityError::Malformed { reason })
    }

    /// Reads the identity from a file, or makes one and writes it there: whole or not at all, readable by
    /// the owner only. Two processes that do so at the same time get the same identity. The caller checks that no other user can
    /// read a file that is there already.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        if let Some(identity) = load(path)? {
            return Ok(identity);
        }
        let identity = Self::generate();
        match create(path, &identity.to_bytes()) {
            Ok(()) => Ok(identity),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                load(path)?.ok_or_else(|| io_error(path, "read", io::ErrorKind::NotFound.into()))
            }
            Err(error) => Err(io_error(path, "written", error)),
        }
    }

    pub(crate) fn libp2p_keypair(&self) -> Keypair {
        self.keypair.clone().into()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Identity").field("peer_id", &self.peer_id()).finish_non_exhaustive()
    }
}

fn load(path: &Path) -> Result<Option<Identity>, IdentityError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(path, "read", error)),
    };
    read(&bytes).map(Some).map_err(|reason| IdentityError::Damaged { path: path.to_owned(), reason })
}

/// Writes a new file; the temporary one beside it has mode 0600 from its creation.
fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    // The name has to survive a power cut too.
    std::fs::File::open(folder)?.sync_all()
}

fn read(bytes: &[u8]) -> Result<Identity, &'static str> {
    let body = bytes.strip_prefix(HEADER.as_slice()).ok_or("it begins with something else")?;
    let (secret, sum) = body.split_at_checked(SECRET_BYTES).ok_or("it ends early")?;
    if sum.len() != CHECKSUM_BYTES {
        return Err("it has the wrong length");
    }
    let signed = bytes.get(..HEADER.len() + SECRET_BYTES).ok_or("it ends early")?;
    if checksum(signed) != sum {
        return Err("its checksum is wrong");
    }
    let secret =
        ed25519::SecretKey::try_from_bytes(secret.to_vec()).map_err(|_| "it holds no ed25519 key")?;
    Ok(Identity { keypair: secret.into() })
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = *blake3::hash(bytes).as_bytes();
    [a, b, c, d]
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> IdentityError {
    IdentityError::Io { path: path.to_owned(), action, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_is_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        let made = Identity::load_or_create(&path).unwrap();
        let again = Identity::load_or_create(&path).unwrap();
        assert_eq!(made.peer_id(), again.peer_id());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_that_start_at_once_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        let peers: Vec<PeerId> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Identity::load_or_create(&path).unwrap().peer_id()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(peers.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_damaged_or_exposed_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        Identity::load_or_create(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[10] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = Identity::load_or_create(&path).unwrap_err();
        assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);

        let missing = folder.path().join("no/such/folder");
        assert!(matches!(
            Identity::load_or_create(&missing),
            Err(IdentityError::Io { action: "written", .. })
        ));
    }

    proptest! {
        #[test]
        fn any_damage_is_noticed(position in 0_usize..41, flip in 1_u8..) {
            let mut bytes = Identity::generate().to_bytes();
            prop_assert_eq!(bytes.len(), 41);
            bytes[position] ^= flip;
            prop_assert!(Identity::from_bytes(&bytes).is_err());
            prop_assert!(Identity::from_bytes(&bytes[..position]).is_err());
        }
    }
}
