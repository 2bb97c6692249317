//! The certificates that a cluster has taken back.

use std::collections::BTreeSet;
use std::fmt;

use prost::Message;

use crate::certificate::{FORMAT, Signed, check_format, cluster_id, decode_signed, malformed};
use crate::{CertificateError, ClusterId, ClusterKey, ClusterPublicKey};

/// The most certificates that a cluster can take back.
pub(crate) const MAX_REVOCATIONS: usize = 4_096;
const MAX_REVOCATION_LIST_BYTES: usize = 48 * 1_024;
const REVOCATIONS_PREFIX: &[u8] = b"edgefaas cluster revocations\0";
const REVOCATIONS: &str = "revocation list";

/// Certificates that the cluster has taken back; of two lists the one with the higher version holds.
#[derive(Clone, PartialEq, Eq)]
pub struct RevocationList {
    cluster: ClusterId,
    version: u64,
    serials: BTreeSet<u64>,
    signed: Signed,
}

impl ClusterKey {
    /// Takes certificates back. `version` is one more than that of the list before, whose serials have to be
    /// in the new one too.
    pub fn revoke(
        &self,
        version: u64,
        serials: impl IntoIterator<Item = u64>,
    ) -> Result<RevocationList, CertificateError> {
        let serials: BTreeSet<u64> = serials.into_iter().collect();
        if serials.len() > MAX_REVOCATIONS {
            return Err(CertificateError::TooManyRevocations { count: serials.len() });
        }
        let cluster = self.public().id();
        let body = RevocationsBody {
            format: FORMAT,
            cluster: cluster.as_bytes().to_vec(),
            version,
            serials: serials.iter().copied().collect(),
        };
        let signed = self.sign(REVOCATIONS_PREFIX, body.encode_to_vec());
        Ok(RevocationList { cluster, version, serials, signed })
    }
}

impl RevocationList {
    /// Which list this is; it counts up.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The certificates that were taken back, in ascending order.
    pub fn serials(&self) -> impl Iterator<Item = u64> + '_ {
        self.serials.iter().copied()
    }

    /// Whether a certificate was taken back.
    pub fn revokes(&self, serial: u64) -> bool {
        self.serials.contains(&serial)
    }

    /// Whether this cluster's key signed it.
    pub fn verify(&self, cluster: &ClusterPublicKey) -> Result<(), CertificateError> {
        cluster.check(REVOCATIONS_PREFIX, self.cluster, &self.signed)
    }

    /// The signed bytes and their signature; at most 48 KiB.
    pub fn encode(&self) -> Vec<u8> {
        self.signed.encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote, unchecked; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let signed = decode_signed(bytes, MAX_REVOCATION_LIST_BYTES, REVOCATIONS)?;
        let body = RevocationsBody::decode(signed.body.as_slice())
            .map_err(|_| malformed(REVOCATIONS, "it is damaged"))?;
        check_format(body.format, REVOCATIONS)?;
        if body.serials.len() > MAX_REVOCATIONS {
            return Err(CertificateError::TooManyRevocations { count: body.serials.len() });
        }
        Ok(Self {
            cluster: cluster_id(&body.cluster, REVOCATIONS)?,
            version: body.version,
            serials: body.serials.into_iter().collect(),
            signed,
        })
    }
}

impl fmt::Debug for RevocationList {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, version, serials, signed: _ } = self;
        out.debug_struct("RevocationList")
            .field("cluster", cluster)
            .field("version", version)
            .field("serials", serials)
            .finish()
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct RevocationsBody {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(uint64, tag = "3")]
    version: u64,
    #[prost(fixed64, repeated, tag = "4")]
    serials: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_passes_through_bytes_and_is_checked() {
        let key = ClusterKey::generate();
        let list = key.revoke(3, [1, 2, 2]).unwrap();
        let read = RevocationList::decode(&list.encode()).unwrap();
        assert_eq!((read.version(), read.serials().collect::<Vec<_>>()), (3, vec![1, 2]));
        assert_eq!(read.verify(&key.public()), Ok(()));
        let other = ClusterKey::generate().public();
        assert!(matches!(read.verify(&other), Err(CertificateError::ForeignCluster { .. })));
    }

    #[test]
    fn a_signature_is_good_for_its_kind_only() {
        let key = ClusterKey::generate();
        let list = key.revoke(3, [1]).unwrap();
        let signed = key.sign(b"edgefaas cluster certificate\0", list.signed.body.clone());
        let crossed = RevocationList { signed, ..list };
        assert!(matches!(crossed.verify(&key.public()), Err(CertificateError::Forged { .. })));
    }

    #[test]
    fn a_list_has_an_end() {
        let key = ClusterKey::generate();
        let too_many = key.revoke(1, 0..5_000);
        assert!(matches!(too_many, Err(CertificateError::TooManyRevocations { count: 5_000 })));
        let largest = key.revoke(1, 0..4_096).unwrap();
        assert_eq!(RevocationList::decode(&largest.encode()).unwrap(), largest);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = RevocationList::decode(&bytes);
            let signed = Signed { body: bytes, signature: vec![] };
            let _ = RevocationList::decode(&signed.encode_to_vec());
        }
    }
}
