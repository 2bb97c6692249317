//! The first messages of two nodes on `/edgefaas/cluster/1`, and the reasons for a refusal. No sockets.
//!
//! Both send a Hello immediately. Each checks the other's and answers with a verdict; the side with the lower
//! peer id answers last, and it alone decides which of several connections to the same peer is kept. So the
//! two never disagree about that.

use std::ops::RangeInclusive;

use libp2p::{Multiaddr, PeerId};
use prost::Message;

use crate::known_addresses::{decode_addresses, encode_addresses};
use crate::{Certificate, CertificateError, Membership};

/// The versions of the protocol inside the channel that this edgefaas speaks.
pub const PROTOCOL_VERSIONS: RangeInclusive<u32> = 1..=1;

/// Limit of a Hello and of a verdict.
pub(crate) const MAX_HELLO_BYTES: usize = 4 * 1_024;
const MAX_TEXT_BYTES: usize = 200;

/// The reason why a peer is refused. Refused peers are counted by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Refusal {
    /// The two nodes have no common version of the protocol.
    NoCommonVersion,
    /// The peer's certificate is of another cluster.
    ForeignCluster,
    /// The peer's certificate is not signed by the cluster's key.
    Forged,
    /// The peer's certificate is another peer's.
    WrongPeer,
    /// The peer's certificate was revoked.
    Revoked,
    /// The peer sent an invalid Hello, certificate or frame.
    Malformed,
    /// The peer sent a frame over the limit.
    TooLarge,
    /// The peer connected and sent no Hello in time.
    Silent,
    /// The peer is already connected.
    Duplicate,
    /// Another peer is connected with the same node number.
    NodeIdTaken,
    /// The peer was refused a short while ago and came back too soon.
    BackingOff,
    /// The peer's certificate was replaced by a newer one.
    Superseded,
    /// The peer's address has too many connections without a verified certificate.
    Crowded,
    /// Another node with its identity is running, or its data directory is an older copy.
    Cloned,
    /// A reason of a newer version.
    Other,
}

/// A refusal and its details, as text for the peer and the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct Refused {
    pub(crate) reason: Refusal,
    pub(crate) detail: String,
}

/// The first message of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hello {
    pub(crate) versions: RangeInclusive<u32>,
    pub(crate) software: String,
    pub(crate) certificate: Vec<u8>,
    /// Digest of the revocations that the node knows; `None` from versions up to 0.1.
    pub(crate) revocations_digest: Option<u64>,
    /// Digest of what the node would tell the peer of the other members; `None` from versions up to 0.1.
    pub(crate) members_digest: Option<u64>,
    pub(crate) unix_ms: u64,
    pub(crate) incarnation: u32,
    /// Random number of the start; `None` from versions up to 0.1.
    pub(crate) instance: Option<u64>,
    pub(crate) addresses: Vec<Multiaddr>,
}

/// A peer that may be served.
#[derive(Debug, Clone)]
pub(crate) struct Greeted {
    pub(crate) certificate: Certificate,
    pub(crate) protocol_version: u32,
    pub(crate) skew_ms: i64,
}

/// The answer to a Hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    Refused(Refused),
}

impl Refusal {
    /// Every reason, in the order of their codes.
    pub const ALL: [Self; 15] = [
        Self::NoCommonVersion,
        Self::ForeignCluster,
        Self::Forged,
        Self::WrongPeer,
        Self::Revoked,
        Self::Malformed,
        Self::TooLarge,
        Self::Silent,
        Self::Duplicate,
        Self::NodeIdTaken,
        Self::BackingOff,
        Self::Superseded,
        Self::Crowded,
        Self::Cloned,
        Self::Other,
    ];

    /// A short name for metrics: lower case, words joined by `_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoCommonVersion => "no_common_version",
            Self::ForeignCluster => "foreign_cluster",
            Self::Forged => "forged",
            Self::WrongPeer => "wrong_peer",
            Self::Revoked => "revoked",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::Silent => "silent",
            Self::Duplicate => "duplicate",
            Self::NodeIdTaken => "node_id_taken",
            Self::BackingOff => "backing_off",
            Self::Superseded => "superseded",
            Self::Crowded => "crowded",
            Self::Cloned => "cloned",
            Self::Other => "other",
        }
    }

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|reason| *reason == self).unwrap_or(Self::ALL.len() - 1)
    }

    /// Codes on the wire begin with 1; 0 is acceptance.
    fn code(self) -> u32 {
        if self == Self::Other { u32::MAX } else { self.index() as u32 + 1 }
    }

    fn from_code(code: u32) -> Self {
        let index = (code as usize).wrapping_sub(1);
        Self::ALL.get(index).copied().unwrap_or(Self::Other)
    }

    /// True if a peer that is refused for this reason must pause before it may come again. A copy need not: the pause
    /// would be that of the node whose identity it has.
    pub(crate) fn is_penalised(self) -> bool {
        !matches!(self, Self::Duplicate | Self::BackingOff | Self::Crowded | Self::Cloned)
    }

    pub(crate) fn with(self, detail: impl Into<String>) -> Refused {
        Refused { reason: self, detail: detail.into() }
    }
}

impl Hello {
    /// The binary form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        HelloWire {
            version_min: *self.versions.start(),
            version_max: *self.versions.end(),
            software: shown(&self.software),
            certificate: self.certificate.clone(),
            // So that versions up to 0.1 send their list, whatever its number.
            revocations_version: 0,
            unix_ms: self.unix_ms,
            incarnation: self.incarnation,
            addresses: encode_addresses(&self.addresses),
            revocations_digest: self.revocations_digest,
            members_digest: self.members_digest,
            instance: self.instance,
        }
        .encode_to_vec()
    }

    /// Reads the binary form; never panics.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let wire = HelloWire::decode(bytes)
            .map_err(|error| Refusal::Malformed.with(format!("its Hello cannot be read: {error}")))?;
        Ok(Self {
            versions: wire.version_min..=wire.version_max,
            software: shown(&wire.software),
            certificate: wire.certificate,
            revocations_digest: wire.revocations_digest,
            members_digest: wire.members_digest,
            unix_ms: wire.unix_ms,
            incarnation: wire.incarnation,
            instance: wire.instance,
            addresses: decode_addresses(&wire.addresses),
        })
    }

    /// Decides whether a peer may be served. `remote` is the peer id that it has proved, `now_unix_ms` this node's clock.
    pub(crate) fn check(
        &self,
        remote: PeerId,
        membership: &Membership,
        versions: &RangeInclusive<u32>,
        now_unix_ms: u64,
    ) -> Result<Greeted, Refused> {
        // First of all: everything after this may look otherwise in another version.
        let protocol_version = common_version(versions, &self.versions)?;
        let certificate = Certificate::decode(&self.certificate).map_err(refused_certificate)?;
        certificate.verify(membership.cluster()).map_err(refused_certificate)?;
        if certificate.peer_id() != remote {
            return Err(Refusal::WrongPeer.with(format!(
                "its certificate is that of {}, and it is {remote}; join it with an identity of its own",
                certificate.peer_id()
            )));
        }
        if membership.is_revoked(&certificate) {
            return Err(Refusal::Revoked.with(format!(
                "`{}` was revoked; move `cluster/` out of its data directory and join it again",
                certificate.name()
            )));
        }
        if let Some(latest) = membership.replacement(&certificate) {
            return Err(Refusal::Superseded.with(format!(
                "the certificate of `{}` was replaced by the one that it got as `{}`; restore the newer \
                 `cluster/members` or join it again",
                certificate.name(),
                latest.name()
            )));
        }
        if certificate.node_id() == membership.own().node_id() {
            return Err(Refusal::NodeIdTaken.with(format!(
                "`{}` has the same node number as `{}`; join one of them again",
                certificate.name(),
                membership.own().name()
            )));
        }
        Ok(Greeted { certificate, protocol_version, skew_ms: skew_ms(self.unix_ms, now_unix_ms) })
    }
}

impl Verdict {
    /// The binary form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let wire = match self {
            Self::Accepted => VerdictWire::default(),
            Self::Refused(refused) => {
                VerdictWire { code: refused.reason.code(), text: shown(&refused.detail) }
            }
        };
        wire.encode_to_vec()
    }

    /// Reads the binary form; never panics.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let wire = VerdictWire::decode(bytes)
            .map_err(|error| Refusal::Malformed.with(format!("its answer cannot be read: {error}")))?;
        Ok(match wire.code {
            0 => Self::Accepted,
            code => Self::Refused(Refusal::from_code(code).with(shown(&wire.text))),
        })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloWire {
    #[prost(uint32, tag = "1")]
    version_min: u32,
    #[prost(uint32, tag = "2")]
    version_max: u32,
    #[prost(string, tag = "3")]
    software: String,
    #[prost(bytes = "vec", tag = "4")]
    certificate: Vec<u8>,
    #[prost(uint64, tag = "5")]
    revocations_version: u64,
    #[prost(uint64, tag = "6")]
    unix_ms: u64,
    #[prost(uint32, tag = "7")]
    incarnation: u32,
    #[prost(bytes = "vec", repeated, tag = "8")]
    addresses: Vec<Vec<u8>>,
    #[prost(fixed64, optional, tag = "9")]
    revocations_digest: Option<u64>,
    #[prost(fixed64, optional, tag = "10")]
    instance: Option<u64>,
    #[prost(fixed64, optional, tag = "11")]
    members_digest: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct VerdictWire {
    #[prost(uint32, tag = "1")]
    code: u32,
    #[prost(string, tag = "2")]
    text: String,
}

/// The highest version that both have.
fn common_version(ours: &RangeInclusive<u32>, theirs: &RangeInclusive<u32>) -> Result<u32, Refused> {
    let highest = *ours.end().min(theirs.end());
    if highest >= *ours.start() && highest >= *theirs.start() && !theirs.is_empty() {
        return Ok(highest);
    }
    Err(Refusal::NoCommonVersion.with(format!(
        "no common protocol version: one speaks {} to {}, the other {} to {}; update the older one",
        ours.start(),
        ours.end(),
        theirs.start(),
        theirs.end()
    )))
}

fn refused_certificate(error: CertificateError) -> Refused {
    let reason = match &error {
        CertificateError::ForeignCluster { .. } => Refusal::ForeignCluster,
        CertificateError::Forged { .. } => Refusal::Forged,
        _ => Refusal::Malformed,
    };
    reason.with(error.to_string())
}

/// Difference of the clocks in milliseconds; positive if the peer's clock is ahead.
fn skew_ms(theirs_unix_ms: u64, ours_unix_ms: u64) -> i64 {
    let skew = i128::from(theirs_unix_ms) - i128::from(ours_unix_ms);
    i64::try_from(skew).unwrap_or(if skew < 0 { i64::MIN } else { i64::MAX })
}

/// A peer's text, fit for a log: short, and without control characters.
fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if out.len() + c.len_utf8() > MAX_TEXT_BYTES {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ClusterKey, NewCertificate};

    fn new(peer_id: PeerId, node_id: u64) -> NewCertificate {
        NewCertificate { peer_id, node_id, name: format!("n{node_id}"), serial: node_id, issued_unix_ms: 5 }
    }

    fn hello(certificate: Vec<u8>) -> Hello {
        Hello {
            versions: 1..=1,
            software: "0.1.0".into(),
            certificate,
            revocations_digest: Some(9),
            members_digest: Some(10),
            unix_ms: 5_000,
            incarnation: 3,
            instance: Some(8),
            addresses: vec!["/ip4/10.0.0.1/tcp/7071".parse().unwrap()],
        }
    }

    #[test]
    fn a_hello_passes_through_bytes() {
        let key = ClusterKey::generate();
        let certificate = key.issue(new(PeerId::random(), 2)).unwrap().encode();
        let said = hello(certificate);
        assert_eq!(Hello::decode(&said.encode()), Ok(said));
    }

    #[test]
    fn who_is_served_and_who_is_not() {
        let key = ClusterKey::generate();
        let mut membership = Membership::found(&key, new(PeerId::random(), 1)).unwrap();
        let [peer, other, twice, out] = [(); 4].map(|()| PeerId::random());
        membership.learn_revocation_list(key.revoke_serials(1, [3])).unwrap();
        membership.revoke(key.revoke(out)).unwrap();
        let first = key.issue(new(twice, 4)).unwrap();
        let second = key.renew(new(twice, 5), &first).unwrap();
        membership.learn(second.clone()).unwrap();
        let issued = |new| key.issue(new).unwrap().encode();
        let check = |hello: &Hello, remote| {
            hello.check(remote, &membership, &(1..=1), 2_000).map_err(|refused| refused.reason)
        };

        let good = hello(issued(new(peer, 2)));
        let greeted = check(&good, peer).unwrap();
        assert_eq!((greeted.protocol_version, greeted.skew_ms), (1, 3_000));

        assert_eq!(check(&good, other).unwrap_err(), Refusal::WrongPeer);
        assert_eq!(check(&hello(issued(new(peer, 3))), peer).unwrap_err(), Refusal::Revoked);
        for serial in [2, 7] {
            assert_eq!(check(&hello(issued(new(out, serial))), out).unwrap_err(), Refusal::Revoked);
        }
        assert_eq!(check(&hello(first.encode()), twice).unwrap_err(), Refusal::Superseded);
        assert!(check(&hello(second.encode()), twice).is_ok());
        assert_eq!(check(&hello(issued(new(peer, 1))), peer).unwrap_err(), Refusal::NodeIdTaken);
        let foreign = ClusterKey::generate().issue(new(peer, 2)).unwrap();
        assert_eq!(check(&hello(foreign.encode()), peer).unwrap_err(), Refusal::ForeignCluster);
        let mut forged = issued(new(peer, 2));
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(check(&hello(forged), peer).unwrap_err(), Refusal::Forged);
        assert_eq!(check(&hello(vec![1, 2]), peer).unwrap_err(), Refusal::Malformed);
        let older = Hello { versions: 0..=0, ..good };
        assert_eq!(check(&older, peer).unwrap_err(), Refusal::NoCommonVersion);
    }

    #[test]
    fn the_highest_common_version_is_spoken() {
        assert_eq!(common_version(&(1..=3), &(2..=9)), Ok(3));
        assert_eq!(common_version(&(2..=9), &(1..=3)), Ok(3));
        assert!(common_version(&(1..=3), &(4..=9)).is_err());
        assert!(common_version(&(4..=9), &(1..=3)).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "what a peer may send")]
        let backwards = 3..=1;
        assert!(common_version(&(1..=3), &backwards).is_err());
    }

    #[test]
    fn a_verdict_passes_through_bytes_and_text_is_made_harmless() {
        for reason in Refusal::ALL {
            let verdict = Verdict::Refused(reason.with("why"));
            assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
        }
        assert_eq!(Verdict::decode(&Verdict::Accepted.encode()), Ok(Verdict::Accepted));
        let nasty = VerdictWire { code: 77, text: format!("\x1b[31m{}", "é".repeat(500)) };
        let Ok(Verdict::Refused(read)) = Verdict::decode(&nasty.encode_to_vec()) else { panic!() };
        assert_eq!(read.reason, Refusal::Other);
        assert!(read.detail.starts_with("[31mé") && read.detail.len() <= MAX_TEXT_BYTES);
    }

    #[test]
    fn skew_of_any_size_is_a_number() {
        assert_eq!(skew_ms(1_000, 3_000), -2_000);
        assert_eq!(skew_ms(u64::MAX, 0), i64::MAX);
        assert_eq!(skew_ms(0, u64::MAX), i64::MIN);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Verdict::decode(&bytes);
            let key = ClusterKey::generate();
            let membership = Membership::found(&key, new(PeerId::random(), 1)).unwrap();
            if let Ok(read) = Hello::decode(&bytes) {
                prop_assert!(read.check(PeerId::random(), &membership, &(0..=9), 0).is_err());
            }
        }
    }
}
