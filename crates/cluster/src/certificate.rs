//! Node certificates, signed by the cluster key.
//!
//! A signed thing keeps the bytes that were signed, so that fields of newer versions survive being passed on.
//! Each kind has a prefix of its own under the signature, so that one never passes for the other.

use std::fmt;

use libp2p::PeerId;
use prost::Message;

use crate::revocation::MAX_REVOCATIONS;
use crate::{ClusterId, ClusterKey, ClusterPublicKey};

/// The format that this version writes and reads.
pub(crate) const FORMAT: u32 = 1;
const MAX_CERTIFICATE_BYTES: usize = 1_024;
const MAX_NAME_BYTES: usize = 63;
/// Earlier certificates that a certificate names, the latest ones.
const MAX_REPLACED: usize = 16;

const CERTIFICATE_PREFIX: &[u8] = b"edgefaas cluster certificate\0";

/// Proof that a peer is a member of a cluster, with its number and name; signed by the cluster key.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    fields: NewCertificate,
    /// Serial numbers of earlier certificates of the peer, the latest first.
    replaced: Vec<u64>,
    cluster: ClusterId,
    signed: Signed,
}

/// Fields of a new certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCertificate {
    /// The admitted peer.
    pub peer_id: PeerId,
    /// The node's number, never 0 and no other node's.
    pub node_id: u64,
    /// The node's name: 1 to 63 bytes, letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The certificate's own number.
    pub serial: u64,
    /// Time of issue by the issuer's clock, in milliseconds since the Unix epoch: for people to read, and to prefer the
    /// newer of two certificates.
    pub issued_unix_ms: u64,
}

/// A certificate or revocation list that is none, or not one of this cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The bytes end early, are too many or hold an invalid value.
    #[error("a {what} cannot be read: {reason}")]
    Malformed {
        /// `certificate`, `revocation` or `revocation list`.
        what: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// Written by a version of edgefaas that this one does not know.
    #[error("a {what} has format {found}, this version reads format {FORMAT}; update this node")]
    UnknownFormat {
        /// `certificate`, `revocation` or `revocation list`.
        what: &'static str,
        /// The format that it claims.
        found: u32,
    },
    /// Another cluster's.
    #[error("it belongs to cluster {found}, this node to {expected}; join the node to this cluster")]
    ForeignCluster {
        /// The one that it names.
        found: ClusterId,
        /// The one that was meant.
        expected: ClusterId,
    },
    /// The certificate is not signed by the cluster's key.
    #[error("it is not signed by the key of cluster {cluster}; join the node again")]
    Forged {
        /// The cluster that it names.
        cluster: ClusterId,
    },
    /// A name that no node may have.
    #[error("`{name}` is not a valid node name; use 1 to 63 letters, digits, `-`, `_` and `.`")]
    BadName {
        /// The name, escaped and cut short.
        name: String,
    },
    /// The set is full.
    #[error("{count} members are revoked, the maximum is {MAX_REVOCATIONS}; make a new cluster")]
    TooManyRevocations {
        /// The number of revocations.
        count: usize,
    },
}

impl ClusterKey {
    /// Issues the first certificate of a peer.
    pub fn issue(&self, new: NewCertificate) -> Result<Certificate, CertificateError> {
        self.issue_replacing(new, Vec::new())
    }

    /// Issues a certificate that replaces the peer's latest one and names it. Members that know the new one refuse
    /// the earlier ones.
    pub fn renew(
        &self,
        new: NewCertificate,
        latest: &Certificate,
    ) -> Result<Certificate, CertificateError> {
        let earlier = std::iter::once(latest.serial()).chain(latest.replaced.iter().copied());
        self.issue_replacing(new, earlier.take(MAX_REPLACED).collect())
    }

    fn issue_replacing(
        &self,
        new: NewCertificate,
        replaced: Vec<u64>,
    ) -> Result<Certificate, CertificateError> {
        check_name(&new.name)?;
        if new.node_id == 0 {
            return Err(malformed(CERTIFICATE, "a node's number is never 0"));
        }
        let cluster = self.public().id();
        let body = CertificateBody {
            format: FORMAT,
            cluster: cluster.as_bytes().to_vec(),
            peer_id: new.peer_id.to_bytes(),
            node_id: new.node_id,
            name: new.name.clone(),
            serial: new.serial,
            issued_unix_ms: new.issued_unix_ms,
            replaced: replaced.clone(),
        };
        let signed = self.sign(CERTIFICATE_PREFIX, body.encode_to_vec());
        Ok(Certificate { fields: new, replaced, cluster, signed })
    }
}

impl Certificate {
    /// The admitted peer.
    pub fn peer_id(&self) -> PeerId {
        self.fields.peer_id
    }

    /// The node's number.
    pub fn node_id(&self) -> u64 {
        self.fields.node_id
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.fields.name
    }

    /// The certificate's own number.
    pub fn serial(&self) -> u64 {
        self.fields.serial
    }

    /// Time of issue by the issuer's clock, in milliseconds since the Unix epoch.
    pub fn issued_unix_ms(&self) -> u64 {
        self.fields.issued_unix_ms
    }

    /// True if this certificate names `other`, of the same peer, as one that it replaces.
    pub fn replaces(&self, other: &Self) -> bool {
        self.peer_id() == other.peer_id() && self.replaced.contains(&other.serial())
    }

    /// The cluster that it names; nothing is known of it before [`Self::verify`].
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Checks that this cluster's key signed the certificate. Its bearer and revocations are checked elsewhere.
    pub fn verify(&self, cluster: &ClusterPublicKey) -> Result<(), CertificateError> {
        cluster.check(CERTIFICATE_PREFIX, self.cluster, &self.signed)
    }

    /// The signed bytes and their signature; at most 1,024 bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.signed.encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote, unchecked; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let bad = |reason| malformed(CERTIFICATE, reason);
        let signed = decode_signed(bytes, MAX_CERTIFICATE_BYTES, CERTIFICATE)?;
        let body = CertificateBody::decode(signed.body.as_slice()).map_err(|_| bad("it is damaged"))?;
        check_format(body.format, CERTIFICATE)?;
        check_name(&body.name)?;
        if body.node_id == 0 {
            return Err(bad("a node's number is never 0"));
        }
        let fields = NewCertificate {
            peer_id: PeerId::from_bytes(&body.peer_id).map_err(|_| bad("its peer id is none"))?,
            node_id: body.node_id,
            name: body.name,
            serial: body.serial,
            issued_unix_ms: body.issued_unix_ms,
        };
        let mut replaced = body.replaced;
        replaced.truncate(MAX_REPLACED);
        Ok(Self { fields, replaced, cluster: cluster_id(&body.cluster, CERTIFICATE)?, signed })
    }

    /// True if this certificate is to be kept instead of `other`, of the same peer.
    pub(crate) fn supersedes(&self, other: &Self) -> bool {
        if self.replaces(other) != other.replaces(self) {
            return self.replaces(other);
        }
        (self.issued_unix_ms(), self.serial()) > (other.issued_unix_ms(), other.serial())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fields, replaced, cluster, signed: _ } = self;
        out.debug_struct("Certificate")
            .field("cluster", cluster)
            .field("fields", fields)
            .field("replaced", replaced)
            .finish()
    }
}

/// Bytes and the cluster key's signature over a prefix and them.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Signed {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) body: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) signature: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CertificateBody {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    peer_id: Vec<u8>,
    #[prost(fixed64, tag = "4")]
    node_id: u64,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "6")]
    serial: u64,
    #[prost(uint64, tag = "7")]
    issued_unix_ms: u64,
    #[prost(fixed64, repeated, tag = "8")]
    replaced: Vec<u64>,
}

const CERTIFICATE: &str = "certificate";

pub(crate) fn decode_signed(
    bytes: &[u8],
    limit: usize,
    what: &'static str,
) -> Result<Signed, CertificateError> {
    if bytes.len() > limit {
        return Err(malformed(what, "it is too large"));
    }
    Signed::decode(bytes).map_err(|_| malformed(what, "it is damaged"))
}

pub(crate) fn check_format(found: u32, what: &'static str) -> Result<(), CertificateError> {
    if found == FORMAT { Ok(()) } else { Err(CertificateError::UnknownFormat { what, found }) }
}

pub(crate) fn cluster_id(bytes: &[u8], what: &'static str) -> Result<ClusterId, CertificateError> {
    ClusterId::from_bytes(bytes).ok_or_else(|| malformed(what, "its cluster id is none"))
}

pub(crate) fn check_name(name: &str) -> Result<(), CertificateError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(good) {
        let name = name.chars().take(MAX_NAME_BYTES).flat_map(char::escape_default).collect();
        return Err(CertificateError::BadName { name });
    }
    Ok(())
}

pub(crate) fn malformed(what: &'static str, reason: &'static str) -> CertificateError {
    CertificateError::Malformed { what, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn new(name: &str) -> NewCertificate {
        NewCertificate {
            peer_id: PeerId::random(),
            node_id: 7,
            name: name.to_owned(),
            serial: 99,
            issued_unix_ms: 1_000,
        }
    }

    #[test]
    fn a_certificate_passes_through_bytes_and_is_checked() {
        let key = ClusterKey::generate();
        let made = key.issue(new("door-1")).unwrap();
        let read = Certificate::decode(&made.encode()).unwrap();
        assert_eq!(read, made);
        assert_eq!(read.verify(&key.public()), Ok(()));

        let other = ClusterKey::generate();
        assert!(matches!(read.verify(&other.public()), Err(CertificateError::ForeignCluster { .. })));
    }

    #[test]
    fn fields_of_newer_versions_are_kept_and_signed() {
        let key = ClusterKey::generate();
        let made = key.issue(new("door-1")).unwrap();
        let mut body = made.signed.body.clone();
        // Field 99, a varint: what a newer version might add.
        body.extend_from_slice(&[0x98, 0x06, 0x05]);
        let newer = key.sign(CERTIFICATE_PREFIX, body.clone());
        let read = Certificate::decode(&newer.encode_to_vec()).unwrap();
        assert_eq!(read.verify(&key.public()), Ok(()));
        assert_eq!(Certificate::decode(&read.encode()).unwrap().signed.body, body);
    }

    #[test]
    fn a_new_certificate_names_what_it_replaces() {
        let key = ClusterKey::generate();
        let first = key.issue(new("door-1")).unwrap();
        // Issued by a holder of the key whose clock is behind.
        let again = |serial| NewCertificate {
            peer_id: first.peer_id(),
            serial,
            issued_unix_ms: 1,
            ..new("door-2")
        };
        let second = key.renew(again(100), &first).unwrap();
        let third = Certificate::decode(&key.renew(again(101), &second).unwrap().encode()).unwrap();
        assert_eq!(third.verify(&key.public()), Ok(()));
        for (newer, older) in [(&second, &first), (&third, &second), (&third, &first)] {
            assert!(newer.replaces(older) && newer.supersedes(older));
            assert!(!older.replaces(newer) && !older.supersedes(newer));
        }
        let mut latest = third;
        for serial in 200..300 {
            latest = key.renew(again(serial), &latest).unwrap();
            assert!(latest.encode().len() <= MAX_CERTIFICATE_BYTES);
        }
        assert_eq!(Certificate::decode(&latest.encode()), Ok(latest));
    }

    #[test]
    fn bad_names_and_numbers_are_refused() {
        let key = ClusterKey::generate();
        for name in ["", "a b", "ü", "a\n", &"x".repeat(64)] {
            assert!(matches!(key.issue(new(name)), Err(CertificateError::BadName { .. })), "{name:?}");
        }
        assert!(key.issue(NewCertificate { node_id: 0, ..new("a") }).is_err());
    }

    proptest! {
        #[test]
        fn no_flipped_bit_passes(position in 0_usize..400, bit in 0_u32..8) {
            let key = ClusterKey::generate();
            let made = key.issue(new("door-1")).unwrap();
            let mut bytes = made.encode();
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            let passes = Certificate::decode(&bytes)
                .is_ok_and(|read| read.verify(&key.public()).is_ok());
            prop_assert!(!passes);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Certificate::decode(&bytes);
            let signed = Signed { body: bytes, signature: vec![] };
            let _ = Certificate::decode(&signed.encode_to_vec());
        }
    }
}
