//! The key that makes a cluster, its public half, and the cluster's id.

use std::fmt;

use libp2p::identity::ed25519;

use crate::CertificateError;
use crate::certificate::Signed;

/// The key of a cluster: its holder admits and revokes members. Created by `cluster init`.
#[derive(Clone)]
pub struct ClusterKey {
    keypair: ed25519::Keypair,
}

/// The public half of a [`ClusterKey`], which every member knows: an ed25519 point.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterPublicKey {
    key: ed25519::PublicKey,
}

/// Id of a cluster: the BLAKE3 hash of its public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId([u8; 32]);

/// Bytes that are not a cluster key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cluster key cannot be read: 32 bytes of an ed25519 key are needed; restore it from a backup")]
pub struct ClusterKeyError;

impl ClusterKey {
    /// A new cluster, from the system's randomness.
    pub fn generate() -> Self {
        Self { keypair: ed25519::Keypair::generate() }
    }

    /// The 32 secret bytes to keep.
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(self.keypair.secret().as_ref()) {
            *to = *from;
        }
        bytes
    }

    /// Reads what [`Self::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ClusterKeyError> {
        let secret = ed25519::SecretKey::try_from_bytes(bytes.to_vec()).map_err(|_| ClusterKeyError)?;
        Ok(Self { keypair: secret.into() })
    }

    /// The half that members check signatures with.
    pub fn public(&self) -> ClusterPublicKey {
        ClusterPublicKey { key: self.keypair.public() }
    }

    /// Signs a body under the prefix of its kind.
    pub(crate) fn sign(&self, prefix: &[u8], body: Vec<u8>) -> Signed {
        let signature = self.keypair.sign(&[prefix, &body].concat());
        Signed { body, signature }
    }
}

impl ClusterPublicKey {
    /// The cluster that this is the key of.
    pub fn id(&self) -> ClusterId {
        ClusterId(*blake3::hash(&self.key.to_bytes()).as_bytes())
    }

    /// The 32 bytes of the key.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    /// Reads what [`Self::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ClusterKeyError> {
        let key = ed25519::PublicKey::try_from_bytes(bytes).map_err(|_| ClusterKeyError)?;
        Ok(Self { key })
    }

    /// Checks that this key signed `signed`, and that `cluster` is the cluster of this key.
    pub(crate) fn check(
        &self,
        prefix: &[u8],
        cluster: ClusterId,
        signed: &Signed,
    ) -> Result<(), CertificateError> {
        let expected = self.id();
        if cluster != expected {
            return Err(CertificateError::ForeignCluster { found: cluster, expected });
        }
        if !self.key.verify(&[prefix, &signed.body].concat(), &signed.signature) {
            return Err(CertificateError::Forged { cluster });
        }
        Ok(())
    }
}

impl ClusterId {
    /// The hash itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A cluster id of 32 bytes; none if there are more or fewer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// The first 8 bytes in hexadecimal: enough to tell clusters apart.
impl fmt::Display for ClusterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ClusterId({self})")
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClusterKey").field("cluster", &self.public().id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClusterPublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClusterPublicKey").field("cluster", &self.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_key_is_kept_as_bytes_and_never_shown() {
        let key = ClusterKey::generate();
        let again = ClusterKey::from_bytes(&key.to_bytes()).unwrap();
        assert_eq!(again.public(), key.public());
        assert!(ClusterKey::from_bytes(&[1; 31]).is_err());
        assert!(ClusterPublicKey::from_bytes(&[1; 3]).is_err());
        assert!(!format!("{key:?}").contains("secret"));
    }
}
