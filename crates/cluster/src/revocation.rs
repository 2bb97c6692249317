//! Revocations: signed by the cluster key, one per peer id, and valid for every certificate of that peer.
//!
//! The revocations of a cluster are a set that only grows. Each is signed by itself, so the union of two sets is
//! the merge: revocations that two holders of the cluster key sign at the same time both stay, in any order of
//! arrival.
//!
//! Versions up to 0.1 signed numbered lists of serial numbers instead. Such lists are still read, kept and passed
//! on; they revoke the certificates with these serial numbers only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use libp2p::PeerId;
use prost::Message;

use crate::certificate::{FORMAT, Signed, check_format, cluster_id, decode_signed, malformed};
use crate::{Certificate, CertificateError, ClusterId, ClusterKey, ClusterPublicKey};

/// The maximum number of revocations that a cluster key adds to a set.
pub(crate) const MAX_REVOCATIONS: usize = 4_096;
/// The maximum that a member keeps: more than a key adds, since several holders may add at the same time.
const MAX_KEPT: usize = 2 * MAX_REVOCATIONS;
const MAX_REVOCATION_BYTES: usize = 512;
const REVOCATION_PREFIX: &[u8] = b"edgefaas cluster revocation\0";
const REVOCATION: &str = "revocation";

const MAX_REVOCATION_LIST_BYTES: usize = 48 * 1_024;
/// Lists of versions up to 0.1 of which none contains another.
const MAX_LISTS: usize = 16;
const LIST_PREFIX: &[u8] = b"edgefaas cluster revocations\0";
const LIST: &str = "revocation list";

/// Revocations in one frame, at most some 50 KiB.
const REVOCATIONS_PER_FRAME: usize = 256;

/// Revokes a peer id: no certificate of this peer is valid any more, whenever it was issued.
#[derive(Clone, PartialEq, Eq)]
pub struct Revocation {
    cluster: ClusterId,
    peer_id: PeerId,
    signed: Signed,
}

/// The list of revoked serial numbers that versions up to 0.1 sign.
#[derive(Clone, PartialEq, Eq)]
pub struct RevocationList {
    cluster: ClusterId,
    version: u64,
    serials: BTreeSet<u64>,
    signed: Signed,
}

/// The revocations of a cluster, their signatures checked. It only grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    peers: BTreeMap<PeerId, Revocation>,
    /// Revocation lists; no list contains another.
    lists: Vec<RevocationList>,
}

impl ClusterKey {
    /// Revokes a peer id. Every holder of the key signs the same bytes for the same peer.
    pub fn revoke(&self, peer_id: PeerId) -> Revocation {
        let cluster = self.public().id();
        let body = RevocationBody {
            format: FORMAT,
            cluster: cluster.as_bytes().to_vec(),
            peer_id: peer_id.to_bytes(),
        };
        let signed = self.sign(REVOCATION_PREFIX, body.encode_to_vec());
        Revocation { cluster, peer_id, signed }
    }

    /// As versions up to 0.1 did.
    #[cfg(test)]
    pub(crate) fn revoke_serials(
        &self,
        version: u64,
        serials: impl IntoIterator<Item = u64>,
    ) -> RevocationList {
        let serials: BTreeSet<u64> = serials.into_iter().collect();
        let cluster = self.public().id();
        let body = ListBody {
            format: FORMAT,
            cluster: cluster.as_bytes().to_vec(),
            version,
            serials: serials.iter().copied().collect(),
        };
        let signed = self.sign(LIST_PREFIX, body.encode_to_vec());
        RevocationList { cluster, version, serials, signed }
    }
}

impl Revocation {
    /// The revoked peer.
    pub fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// Checks the signature of the cluster key.
    pub fn verify(&self, cluster: &ClusterPublicKey) -> Result<(), CertificateError> {
        cluster.check(REVOCATION_PREFIX, self.cluster, &self.signed)
    }

    /// The signed bytes and their signature; at most 512 bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.signed.encode_to_vec()
    }

    /// Reads the result of [`Self::encode`], unchecked; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let bad = |reason| malformed(REVOCATION, reason);
        let signed = decode_signed(bytes, MAX_REVOCATION_BYTES, REVOCATION)?;
        let body = RevocationBody::decode(signed.body.as_slice()).map_err(|_| bad("it is damaged"))?;
        check_format(body.format, REVOCATION)?;
        let peer_id = PeerId::from_bytes(&body.peer_id).map_err(|_| bad("its peer id is invalid"))?;
        Ok(Self { cluster: cluster_id(&body.cluster, REVOCATION)?, peer_id, signed })
    }
}

impl RevocationList {
    /// The number of the list. Two lists of different content may have the same one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// True if the certificate with this serial number is revoked.
    pub fn revokes(&self, serial: u64) -> bool {
        self.serials.contains(&serial)
    }

    /// Checks the signature of the cluster key.
    pub fn verify(&self, cluster: &ClusterPublicKey) -> Result<(), CertificateError> {
        cluster.check(LIST_PREFIX, self.cluster, &self.signed)
    }

    /// The signed bytes and their signature; at most 48 KiB.
    pub fn encode(&self) -> Vec<u8> {
        self.signed.encode_to_vec()
    }

    /// Reads the result of [`Self::encode`], unchecked; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let signed = decode_signed(bytes, MAX_REVOCATION_LIST_BYTES, LIST)?;
        let body =
            ListBody::decode(signed.body.as_slice()).map_err(|_| malformed(LIST, "it is damaged"))?;
        check_format(body.format, LIST)?;
        if body.serials.len() > MAX_REVOCATIONS {
            return Err(CertificateError::TooManyRevocations { count: body.serials.len() });
        }
        Ok(Self {
            cluster: cluster_id(&body.cluster, LIST)?,
            version: body.version,
            serials: body.serials.into_iter().collect(),
            signed,
        })
    }
}

impl Revocations {
    /// The number of revoked peer ids.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// True if nothing is revoked.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.lists.is_empty()
    }

    /// True if all certificates of a peer are revoked.
    pub fn revokes_peer(&self, peer_id: &PeerId) -> bool {
        self.peers.contains_key(peer_id)
    }

    /// True if a certificate is revoked, by its peer id or by its serial number.
    pub fn revokes(&self, certificate: &Certificate) -> bool {
        self.revokes_peer(&certificate.peer_id())
            || self.lists.iter().any(|list| list.revokes(certificate.serial()))
    }

    /// Revokes one more peer; true if that changed anything.
    ///
    /// # Errors
    /// The cluster key did not sign it.
    pub fn add(
        &mut self,
        revocation: Revocation,
        cluster: &ClusterPublicKey,
    ) -> Result<bool, CertificateError> {
        let known = self.peers.get(&revocation.peer_id);
        // Newer versions may sign other bytes for the same peer: every member keeps the same ones.
        if known.is_some_and(|known| known.signed.body <= revocation.signed.body) {
            return Ok(false);
        }
        if known.is_none() && self.peers.len() >= MAX_KEPT {
            return Ok(false);
        }
        revocation.verify(cluster)?;
        self.peers.insert(revocation.peer_id, revocation);
        Ok(true)
    }

    /// Adds a list of a version up to 0.1; true if that revoked another certificate.
    ///
    /// # Errors
    /// The cluster key did not sign it.
    pub fn add_list(
        &mut self,
        list: RevocationList,
        cluster: &ClusterPublicKey,
    ) -> Result<bool, CertificateError> {
        if self.lists.iter().any(|known| known.serials.is_superset(&list.serials)) {
            return Ok(false);
        }
        list.verify(cluster)?;
        self.lists.retain(|known| !known.serials.is_subset(&list.serials));
        self.lists.push(list);
        // Every member keeps the same ones, in the same order.
        self.lists.sort_by(|one, next| {
            (next.serials.len(), &next.signed.body).cmp(&(one.serials.len(), &one.signed.body))
        });
        self.lists.truncate(MAX_LISTS);
        Ok(true)
    }

    /// The revoked peers.
    pub fn peers(&self) -> impl Iterator<Item = &Revocation> {
        self.peers.values()
    }

    /// Lists of versions up to 0.1.
    pub fn lists(&self) -> impl Iterator<Item = &RevocationList> {
        self.lists.iter()
    }

    /// The revocation of a peer, for that peer to see.
    pub(crate) fn of_peer(&self, peer_id: &PeerId) -> Option<&Revocation> {
        self.peers.get(peer_id)
    }

    /// Equal for equal sets.
    pub(crate) fn digest(&self) -> u64 {
        let bodies = self.peers.values().map(|revocation| &revocation.signed.body);
        let mut hasher = blake3::Hasher::new();
        for body in bodies.chain(self.lists.iter().map(|list| &list.signed.body)) {
            hasher.update(&(body.len() as u64).to_le_bytes()).update(body);
        }
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The whole set, in bodies of frames.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let entries: Vec<Vec<u8>> = self.peers.values().map(Revocation::encode).collect();
        let of_entries = entries
            .chunks(REVOCATIONS_PER_FRAME)
            .map(|entries| SetBody { entries: entries.to_vec(), lists: Vec::new() }.encode_to_vec());
        let of_lists = self
            .lists
            .iter()
            .map(|list| SetBody { entries: Vec::new(), lists: vec![list.encode()] }.encode_to_vec());
        of_entries.chain(of_lists).collect()
    }
}

/// One revocation as the body of a frame.
pub(crate) fn encode_revocation(revocation: &Revocation) -> Vec<u8> {
    SetBody { entries: vec![revocation.encode()], lists: Vec::new() }.encode_to_vec()
}

/// The content of a frame.
#[derive(Debug, Default)]
pub(crate) struct RevocationFrame {
    pub(crate) peers: Vec<Revocation>,
    pub(crate) lists: Vec<RevocationList>,
}

impl RevocationFrame {
    /// Reads the body of a frame, unchecked; never panics. Revocations that only newer versions can read are
    /// left out.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CertificateError> {
        let body = SetBody::decode(bytes).map_err(|_| malformed(REVOCATION, "it is damaged"))?;
        let mut read = Self::default();
        for entry in &body.entries {
            match Revocation::decode(entry) {
                Err(CertificateError::UnknownFormat { .. }) => {}
                entry => read.peers.push(entry?),
            }
        }
        for list in &body.lists {
            read.lists.push(RevocationList::decode(list)?);
        }
        Ok(read)
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, peer_id, signed: _ } = self;
        out.debug_struct("Revocation").field("cluster", cluster).field("peer_id", peer_id).finish()
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
struct RevocationBody {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    peer_id: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListBody {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(uint64, tag = "3")]
    version: u64,
    #[prost(fixed64, repeated, tag = "4")]
    serials: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SetBody {
    #[prost(bytes = "vec", repeated, tag = "1")]
    entries: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    lists: Vec<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::NewCertificate;

    fn certificate(key: &ClusterKey, peer_id: PeerId, serial: u64) -> Certificate {
        let new = NewCertificate { peer_id, node_id: 1, name: "n".into(), serial, issued_unix_ms: serial };
        key.issue(new).unwrap()
    }

    #[test]
    fn a_revocation_passes_through_bytes_and_is_checked() {
        let (key, peer) = (ClusterKey::generate(), PeerId::random());
        let read = Revocation::decode(&key.revoke(peer).encode()).unwrap();
        assert_eq!((read.peer_id(), read.verify(&key.public())), (peer, Ok(())));
        assert_eq!(read, key.revoke(peer), "every holder of the key signs the same");
        let other = ClusterKey::generate().public();
        assert!(matches!(read.verify(&other), Err(CertificateError::ForeignCluster { .. })));

        let signed = key.sign(b"edgefaas cluster certificate\0", read.signed.body.clone());
        let crossed = Revocation { signed, ..read };
        assert!(matches!(crossed.verify(&key.public()), Err(CertificateError::Forged { .. })));
    }

    #[test]
    fn every_certificate_of_a_revoked_peer_is_revoked() {
        let (key, peer) = (ClusterKey::generate(), PeerId::random());
        let mut set = Revocations::default();
        assert_eq!(set.add(key.revoke(peer), &key.public()), Ok(true));
        assert_eq!(set.add(key.revoke(peer), &key.public()), Ok(false));
        for serial in [1, 2, u64::MAX] {
            assert!(set.revokes(&certificate(&key, peer, serial)));
        }
        assert!(!set.revokes(&certificate(&key, PeerId::random(), 1)));
        let foreign = ClusterKey::generate().revoke(PeerId::random());
        assert!(set.add(foreign, &key.public()).is_err());
    }

    #[test]
    fn lists_of_old_versions_are_united() {
        let (key, peer) = (ClusterKey::generate(), PeerId::random());
        let mut set = Revocations::default();
        // Two holders have revoked at the same time: both lists have number 2.
        for (serials, changes) in [([1, 2], true), ([1, 3], true), ([3, 1], false)] {
            let list = key.revoke_serials(2, serials);
            let list = RevocationList::decode(&list.encode()).unwrap();
            assert_eq!(set.add_list(list, &key.public()), Ok(changes));
        }
        let revoked = |set: &Revocations, serial| set.revokes(&certificate(&key, peer, serial));
        assert!([1, 2, 3].into_iter().all(|serial| revoked(&set, serial)) && !revoked(&set, 4));
        assert_eq!(set.add_list(key.revoke_serials(1, [1, 2, 3]), &key.public()), Ok(true));
        assert_eq!(set.lists().count(), 1);
        assert!(set.add_list(ClusterKey::generate().revoke_serials(9, [4]), &key.public()).is_err());
        for i in 0..100 {
            set.add_list(key.revoke_serials(1, [i, 1_000]), &key.public()).unwrap();
        }
        assert_eq!(set.lists().count(), MAX_LISTS);
    }

    #[test]
    fn a_set_passes_through_frames() {
        let key = ClusterKey::generate();
        let mut set = Revocations::default();
        for _ in 0..600 {
            set.add(key.revoke(PeerId::random()), &key.public()).unwrap();
        }
        set.add_list(key.revoke_serials(1, 0..4_096), &key.public()).unwrap();
        let frames = set.frames();
        assert!(frames.iter().all(|frame| frame.len() < 100 * 1_024));
        let mut read = Revocations::default();
        for frame in frames.iter().rev() {
            let RevocationFrame { peers, lists } = RevocationFrame::decode(frame).unwrap();
            peers.into_iter().for_each(|entry| assert_eq!(read.add(entry, &key.public()), Ok(true)));
            lists.into_iter().for_each(|list| assert_eq!(read.add_list(list, &key.public()), Ok(true)));
        }
        assert_eq!((&read, read.digest()), (&set, set.digest()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Holders of the key revoke at the same time, and members hear of it in any order.
        #[test]
        fn the_order_does_not_matter(
            actions in prop::collection::vec((0_usize..4, 0_usize..6), 1..12),
            order in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let key = ClusterKey::generate();
            let peers: Vec<PeerId> = (0..6).map(|_| PeerId::random()).collect();
            let mut holders = vec![Revocations::default(); 4];
            for (holder, peer) in &actions {
                holders[*holder].add(key.revoke(peers[*peer]), &key.public()).unwrap();
            }
            let mut united = Revocations::default();
            for holder in order.into_iter().filter(|holder| *holder < 4) {
                for revocation in holders[holder].peers() {
                    united.add(revocation.clone(), &key.public()).unwrap();
                }
            }
            let expected: BTreeSet<PeerId> = actions.iter().map(|(_, peer)| peers[*peer]).collect();
            prop_assert_eq!(united.peers().map(Revocation::peer_id).collect::<BTreeSet<_>>(), expected);
            let mut straight = Revocations::default();
            for (_, peer) in &actions {
                straight.add(key.revoke(peers[*peer]), &key.public()).unwrap();
            }
            prop_assert_eq!(united.digest(), straight.digest());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Revocation::decode(&bytes), RevocationList::decode(&bytes));
            let _ = RevocationFrame::decode(&bytes);
            let signed = Signed { body: bytes, signature: vec![] };
            let _ = RevocationList::decode(&signed.encode_to_vec());
            let _ = Revocation::decode(&signed.encode_to_vec());
        }
    }
}
