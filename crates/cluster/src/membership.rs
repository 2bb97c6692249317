//! The cluster as one node knows it: plain data that the caller keeps on disk.

use std::collections::BTreeMap;

use libp2p::{Multiaddr, PeerId};
use prost::Message;
use xxhash_rust::xxh3::Xxh3Default;

use crate::known_addresses::{KnownAddresses, decode_addresses, encode_addresses};
use crate::revocation::MAX_REVOCATIONS;
use crate::{
    Certificate, CertificateError, ClusterId, ClusterKey, ClusterPublicKey, NewCertificate, Revocation,
    RevocationList, Revocations,
};

/// Members that a node remembers.
pub(crate) const MAX_MEMBERS: usize = 1_024;
const FORMAT: u32 = 1;

/// A cluster as one of its members sees it. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    own: Certificate,
    cluster: ClusterPublicKey,
    members: BTreeMap<PeerId, Member>,
    revocations: Revocations,
}

/// Another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The member's certificate, verified.
    pub certificate: Certificate,
    /// The addresses at which it may listen.
    pub addresses: KnownAddresses,
}

/// Bytes that are not a membership.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The bytes are truncated or invalid.
    #[error("the cluster's member list is damaged; restore it from a backup or join again")]
    Malformed,
    /// Written by a version of edgefaas that this one does not know.
    #[error(
        "the cluster's member list has format {found}, this version reads format {FORMAT}; use the edgefaas that wrote it or a newer one"
    )]
    UnknownFormat {
        /// The format that it claims.
        found: u32,
    },
    /// A certificate or list in it is that of another cluster.
    #[error("the cluster's member list is wrong: {0}")]
    Certificate(#[from] CertificateError),
}

impl Membership {
    /// The first member of a new cluster.
    pub fn found(key: &ClusterKey, first: NewCertificate) -> Result<Self, CertificateError> {
        Self::new(key.issue(first)?, key.public())
    }

    /// A member that knows of no other yet.
    pub fn new(own: Certificate, cluster: ClusterPublicKey) -> Result<Self, CertificateError> {
        own.verify(&cluster)?;
        Ok(Self { own, cluster, members: BTreeMap::new(), revocations: Revocations::default() })
    }

    /// This node's certificate.
    pub fn own(&self) -> &Certificate {
        &self.own
    }

    /// The cluster's key.
    pub fn cluster(&self) -> &ClusterPublicKey {
        &self.cluster
    }

    /// The cluster.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster.id()
    }

    /// The other members, revoked ones left out, by peer id.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| !self.is_revoked(&member.certificate))
    }

    /// Another member, unless it was revoked.
    pub fn member(&self, peer_id: &PeerId) -> Option<&Member> {
        self.members.get(peer_id).filter(|member| !self.is_revoked(&member.certificate))
    }

    /// Digest of what this node would tell `peer` of the other members. Equal if both would tell each other the same.
    pub(crate) fn digest_for(&self, peer: &PeerId) -> u64 {
        let others = self.members().filter(|member| member.certificate.peer_id() != *peer);
        others.fold(0, |sum, member| sum.wrapping_add(member.digest()))
    }

    /// The revocations of the cluster.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// True if this node was revoked.
    pub fn is_own_revoked(&self) -> bool {
        self.is_revoked(&self.own)
    }

    /// True if a certificate was revoked.
    pub fn is_revoked(&self, certificate: &Certificate) -> bool {
        self.revocations.revokes(certificate)
    }

    /// The certificate that replaced this one of another member, if there is one.
    pub fn replacement(&self, certificate: &Certificate) -> Option<&Certificate> {
        let latest = &self.members.get(&certificate.peer_id())?.certificate;
        latest.replaces(certificate).then_some(latest)
    }

    /// Adds a member, or a newer certificate of one; true if that changed anything. This node itself,
    /// revoked certificates and members beyond the 1,024th are left out.
    pub fn learn(&mut self, certificate: Certificate) -> Result<bool, CertificateError> {
        if certificate.peer_id() == self.own.peer_id() {
            return Ok(false);
        }
        let known = self.members.get(&certificate.peer_id());
        // Checking a signature is the costly part.
        if known.is_some_and(|known| known.certificate == certificate) {
            return Ok(false);
        }
        certificate.verify(&self.cluster)?;
        if self.is_revoked(&certificate) {
            return Ok(false);
        }
        let full = self.members.len() >= MAX_MEMBERS;
        match self.members.get_mut(&certificate.peer_id()) {
            Some(known) => {
                let newer = certificate.supersedes(&known.certificate);
                if newer {
                    known.certificate = certificate;
                }
                Ok(newer)
            }
            None if full => Ok(false),
            None => {
                self.members.insert(
                    certificate.peer_id(),
                    Member { certificate, addresses: KnownAddresses::default() },
                );
                Ok(true)
            }
        }
    }

    /// The member itself announced that it listens here; true if that changed anything.
    pub fn announce(&mut self, peer_id: &PeerId, addresses: &[Multiaddr]) -> bool {
        self.members.get_mut(peer_id).is_some_and(|member| member.addresses.announce(addresses))
    }

    /// Records that this node has reached the member at this address; true if that changed anything.
    pub fn reach(&mut self, peer_id: &PeerId, address: &Multiaddr) -> bool {
        self.members.get_mut(peer_id).is_some_and(|member| member.addresses.reach(address))
    }

    /// Revokes a peer, as a holder of the cluster key; true if that changed anything.
    ///
    /// # Errors
    /// The key of another cluster, or more than 4,096 revocations.
    pub fn revoke(&mut self, revocation: Revocation) -> Result<bool, CertificateError> {
        let count = self.revocations.len();
        if count >= MAX_REVOCATIONS && !self.revocations.revokes_peer(&revocation.peer_id()) {
            return Err(CertificateError::TooManyRevocations { count: count + 1 });
        }
        self.learn_revocation(revocation)
    }

    /// Takes in a revocation that another member knows; true if that changed anything. The revoked member is
    /// forgotten.
    pub fn learn_revocation(&mut self, revocation: Revocation) -> Result<bool, CertificateError> {
        let peer_id = revocation.peer_id();
        let added = self.revocations.add(revocation, &self.cluster)?;
        if added {
            self.members.remove(&peer_id);
        }
        Ok(added)
    }

    /// Takes in a revocation list of a version up to 0.1; true if that changed anything.
    pub fn learn_revocation_list(&mut self, list: RevocationList) -> Result<bool, CertificateError> {
        let added = self.revocations.add_list(list, &self.cluster)?;
        if added {
            let revocations = &self.revocations;
            self.members.retain(|_, member| !revocations.revokes(&member.certificate));
        }
        Ok(added)
    }

    /// Takes in encoded revocations and lists; true if that changed anything.
    pub(crate) fn learn_revocations(
        &mut self,
        revocations: &[Vec<u8>],
        lists: &[Vec<u8>],
    ) -> Result<bool, CertificateError> {
        let mut changed = false;
        for bytes in revocations {
            changed |= self.learn_revocation(Revocation::decode(bytes)?)?;
        }
        for bytes in lists {
            changed |= self.learn_revocation_list(RevocationList::decode(bytes)?)?;
        }
        Ok(changed)
    }

    /// Adds everything from another view of the same cluster, except the own certificate; true if that
    /// changed anything.
    pub fn merge(&mut self, other: Self) -> Result<bool, CertificateError> {
        let (expected, found) = (self.cluster_id(), other.cluster_id());
        if expected != found {
            return Err(CertificateError::ForeignCluster { found, expected });
        }
        let mut changed = false;
        for revocation in other.revocations.peers() {
            changed |= self.learn_revocation(revocation.clone())?;
        }
        for list in other.revocations.lists() {
            changed |= self.learn_revocation_list(list.clone())?;
        }
        let teller = other.own.peer_id();
        changed |= self.learn(other.own)?;
        for (peer_id, member) in other.members {
            changed |= self.learn(member.certificate)?;
            if let Some(known) = self.members.get_mut(&peer_id) {
                changed |= known.addresses.hear(teller, &member.addresses.to_tell());
            }
        }
        Ok(changed)
    }

    /// The binary form.
    pub fn encode(&self) -> Vec<u8> {
        MembershipBody {
            format: FORMAT,
            own: self.own.encode(),
            cluster: self.cluster.to_bytes().to_vec(),
            members: self.members.values().map(Member::to_wire).collect(),
            revocation_lists: self.revocations.lists().map(RevocationList::encode).collect(),
            revocations: self.revocations.peers().map(Revocation::encode).collect(),
        }
        .encode_to_vec()
    }

    /// Reads the binary form and checks what is in it; never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, MembershipError> {
        let body = MembershipBody::decode(bytes).map_err(|_| MembershipError::Malformed)?;
        if body.format != FORMAT {
            return Err(MembershipError::UnknownFormat { found: body.format });
        }
        let cluster =
            ClusterPublicKey::from_bytes(&body.cluster).map_err(|_| MembershipError::Malformed)?;
        let mut read = Self::new(Certificate::decode(&body.own)?, cluster)?;
        read.learn_revocations(&body.revocations, &body.revocation_lists)?;
        for member in body.members {
            // As if each had announced its addresses, except those that are known from others only.
            let peer_id = Certificate::decode(&member.certificate)?.peer_id();
            read.take_in(peer_id, &member)?;
        }
        Ok(read)
    }

    /// Adds a member that another one sent.
    pub(crate) fn take_in(
        &mut self,
        teller: PeerId,
        member: &MemberWire,
    ) -> Result<TakenIn, CertificateError> {
        let certificate = Certificate::decode(&member.certificate)?;
        let peer_id = certificate.peer_id();
        let mut taken = TakenIn { to_keep: self.learn(certificate)?, to_dial: false };
        if let Some(known) = self.members.get_mut(&peer_id) {
            let addresses = decode_addresses(&member.addresses);
            let itself = teller == peer_id && !member.is_hearsay;
            if itself && known.addresses.announce(&addresses) {
                taken.to_keep = true;
            }
            taken.to_dial = !itself && known.addresses.hear(teller, &addresses);
        }
        Ok(taken)
    }
}

/// The change by a member that another one sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenIn {
    /// A member, its certificate or its own addresses. Hearsay about addresses is not written to disk.
    pub(crate) to_keep: bool,
    /// Hearsay about addresses.
    pub(crate) to_dial: bool,
}

impl Member {
    pub(crate) fn to_wire(&self) -> MemberWire {
        MemberWire {
            certificate: self.certificate.encode(),
            addresses: encode_addresses(&self.addresses.to_tell()),
            is_hearsay: !self.addresses.has_first_hand(),
        }
    }

    /// Digest of the certificate and of the addresses to tell, in any order.
    fn digest(&self) -> u64 {
        let mut addresses = encode_addresses(&self.addresses.to_tell());
        addresses.sort_unstable();
        let mut digest = Xxh3Default::new();
        for bytes in std::iter::once(&self.certificate.encode()).chain(&addresses) {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        digest.digest()
    }
}

/// A member on the wire and on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemberWire {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) certificate: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) addresses: Vec<Vec<u8>>,
    /// The sender has them from others.
    #[prost(bool, tag = "3")]
    pub(crate) is_hearsay: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MembershipBody {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(bytes = "vec", tag = "2")]
    own: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    cluster: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    members: Vec<MemberWire>,
    /// Revocation lists; at most one in files of versions up to 0.1.
    #[prost(bytes = "vec", repeated, tag = "5")]
    revocation_lists: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    revocations: Vec<Vec<u8>>,
}

/// Several members, in one frame.
#[derive(Clone, PartialEq, prost::Message)]
struct MembersBody {
    #[prost(message, repeated, tag = "1")]
    members: Vec<MemberWire>,
}

pub(crate) fn encode_members(members: &[MemberWire]) -> Vec<u8> {
    MembersBody { members: members.to_vec() }.encode_to_vec()
}

/// Reads what [`encode_members`] wrote; none if it is damaged. Never panics.
pub(crate) fn decode_members(bytes: &[u8]) -> Option<Vec<MemberWire>> {
    MembersBody::decode(bytes).ok().map(|body| body.members)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn certificate(key: &ClusterKey, node_id: u64, serial: u64) -> Certificate {
        let new = NewCertificate {
            peer_id: PeerId::random(),
            node_id,
            name: format!("node-{node_id}"),
            serial,
            issued_unix_ms: serial,
        };
        key.issue(new).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn what_was_learnt_passes_through_bytes() {
        let key = ClusterKey::generate();
        let mut membership = Membership::new(certificate(&key, 1, 1), key.public()).unwrap();
        let (other, out) = (certificate(&key, 2, 2), certificate(&key, 3, 3));
        assert_eq!(membership.learn(other.clone()), Ok(true));
        assert_eq!(membership.learn(other.clone()), Ok(false));
        assert_eq!(membership.learn(out.clone()), Ok(true));
        let told =
            addresses(&["/ip4/10.0.0.2/tcp/7071", "/ip4/10.0.0.2/udp/7071/quic-v1", "/ip4/0.0.0.0/tcp/1"]);
        assert!(membership.announce(&other.peer_id(), &told));
        let old = certificate(&key, 4, 44);
        assert_eq!(membership.learn(old.clone()), Ok(true));
        assert_eq!(membership.revoke(key.revoke(out.peer_id())), Ok(true));
        assert_eq!(membership.learn_revocation_list(key.revoke_serials(1, [44])), Ok(true));
        assert_eq!((membership.learn(out), membership.learn(old)), (Ok(false), Ok(false)));

        let read = Membership::decode(&membership.encode()).unwrap();
        assert_eq!(read, membership);
        assert_eq!(read.members().count(), 1);
        assert_eq!(read.member(&other.peer_id()).unwrap().addresses.all(), told[..2]);
    }

    #[test]
    fn merging_is_for_one_cluster_and_keeps_what_both_revoked() {
        let key = ClusterKey::generate();
        let mut a = Membership::new(certificate(&key, 1, 1), key.public()).unwrap();
        let mut b = Membership::new(certificate(&key, 2, 2), key.public()).unwrap();
        let out = [certificate(&key, 3, 3), certificate(&key, 4, 4)];
        a.revoke(key.revoke(out[0].peer_id())).unwrap();
        b.revoke(key.revoke(out[1].peer_id())).unwrap();
        assert_eq!(b.merge(a.clone()), Ok(true));
        assert_eq!(a.merge(b.clone()), Ok(true));
        assert_eq!((a.merge(b.clone()), b.merge(a.clone())), (Ok(false), Ok(false)));
        assert!([&a, &b].iter().all(|one| out.iter().all(|out| one.is_revoked(out))));
        assert_eq!(a.revocations(), b.revocations());

        let foreign = ClusterKey::generate();
        let other = Membership::new(certificate(&foreign, 1, 1), foreign.public()).unwrap();
        assert!(matches!(a.merge(other), Err(CertificateError::ForeignCluster { .. })));
        assert!(matches!(
            a.learn(certificate(&foreign, 5, 5)),
            Err(CertificateError::ForeignCluster { .. })
        ));
    }

    #[test]
    fn a_member_that_joined_twice_is_revoked_with_both_certificates() {
        let key = ClusterKey::generate();
        let mut membership = Membership::new(certificate(&key, 1, 1), key.public()).unwrap();
        let first = certificate(&key, 2, 20);
        let new = NewCertificate {
            peer_id: first.peer_id(),
            node_id: 2,
            name: "node-2".into(),
            serial: 3,
            issued_unix_ms: 3,
        };
        let second = key.renew(new, &first).unwrap();
        membership.learn(first.clone()).unwrap();
        assert_eq!(membership.learn(second.clone()), Ok(true));
        assert_eq!(membership.learn(first.clone()), Ok(false));
        assert_eq!(membership.replacement(&first), Some(&second));
        assert_eq!(membership.replacement(&second), None);
        membership.revoke(key.revoke(first.peer_id())).unwrap();
        assert_eq!((membership.learn(first), membership.learn(second)), (Ok(false), Ok(false)));
        assert_eq!(membership.members().count(), 0);
    }

    /// A file of version 0.1: its list is in the same field.
    #[test]
    fn a_new_certificate_of_a_peer_replaces_one_that_a_list_revoked() {
        let key = ClusterKey::generate();
        let mut membership = Membership::new(certificate(&key, 1, 1), key.public()).unwrap();
        let old = certificate(&key, 2, 20);
        let renewed = |serial| NewCertificate {
            peer_id: old.peer_id(),
            node_id: 2,
            name: "node-2".into(),
            serial,
            issued_unix_ms: serial,
        };
        membership.learn(old.clone()).unwrap();
        assert_eq!(membership.learn(key.issue(renewed(10)).unwrap()), Ok(false));
        assert_eq!(membership.learn(key.issue(renewed(21)).unwrap()), Ok(true));
        membership.learn_revocation_list(key.revoke_serials(1, [21])).unwrap();
        assert_eq!(membership.member(&old.peer_id()), None);
        assert_eq!(membership.learn(key.issue(renewed(5)).unwrap()), Ok(true));
    }

    #[test]
    fn hearsay_is_marked_as_such_where_it_is_kept_and_told() {
        let key = ClusterKey::generate();
        let mut membership = Membership::new(certificate(&key, 1, 1), key.public()).unwrap();
        let [moved, other, teller] = [2, 3, 4].map(|id| certificate(&key, id, id));
        membership.learn(moved.clone()).unwrap();
        membership.announce(&moved.peer_id(), &addresses(&["/ip4/10.0.0.2/tcp/1"]));
        let wire = |certificate: &Certificate, text: &str| MemberWire {
            certificate: certificate.encode(),
            addresses: encode_addresses(&addresses(&[text])),
            is_hearsay: false,
        };
        let told = membership.take_in(teller.peer_id(), &wire(&moved, "/ip4/10.0.0.2/tcp/2"));
        assert_eq!(told, Ok(TakenIn { to_keep: false, to_dial: true }));
        let told = membership.take_in(teller.peer_id(), &wire(&other, "/ip4/10.0.0.3/tcp/3"));
        assert_eq!(told, Ok(TakenIn { to_keep: true, to_dial: true }));
        let read = Membership::decode(&membership.encode()).unwrap();
        let kept = |peer_id| read.member(&peer_id).unwrap();
        assert_eq!(kept(moved.peer_id()).addresses.all(), addresses(&["/ip4/10.0.0.2/tcp/1"]));
        assert_eq!(kept(other.peer_id()).addresses.hearsay(), addresses(&["/ip4/10.0.0.3/tcp/3"]));
        assert!(kept(other.peer_id()).to_wire().is_hearsay);
    }

    #[test]
    fn digests_are_equal_while_two_nodes_have_nothing_to_tell_each_other() {
        let key = ClusterKey::generate();
        let [one, other, third] = [1, 2, 3].map(|id| certificate(&key, id, id));
        let view = |own: &Certificate, known: &[&Certificate]| {
            let mut view = Membership::new(own.clone(), key.public()).unwrap();
            known.iter().for_each(|known| assert_eq!(view.learn((*known).clone()), Ok(true)));
            view
        };
        let (mut a, mut b) = (view(&one, &[&other, &third]), view(&other, &[&one]));
        let digests =
            |a: &Membership, b: &Membership| (a.digest_for(&other.peer_id()), b.digest_for(&one.peer_id()));
        let (ours, theirs) = digests(&a, &b);
        assert_ne!(ours, theirs, "one does not know the third");
        b.learn(third.clone()).unwrap();
        let (ours, theirs) = digests(&a, &b);
        assert_eq!(ours, theirs);
        let told = addresses(&["/ip4/10.0.0.3/tcp/1", "/ip4/10.0.0.3/udp/1/quic-v1"]);
        a.announce(&third.peer_id(), &told);
        let (ours, theirs) = digests(&a, &b);
        assert_ne!(ours, theirs, "one does not know the addresses");
        b.reach(&third.peer_id(), &told[1]);
        b.announce(&third.peer_id(), &told);
        assert_ne!(a.members().last(), b.members().last(), "in another order");
        let (ours, theirs) = digests(&a, &b);
        assert_eq!(ours, theirs);
        a.announce(&other.peer_id(), &addresses(&["/ip4/10.0.0.2/tcp/1"]));
        assert_eq!(digests(&a, &b), (ours, theirs), "both know themselves best");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Membership::decode(&bytes);
            let _ = crate::known_addresses::decode_addresses(&[bytes]);
        }
    }
}
