//! The issuer's decision about a joining node. No clock and no socket.

use libp2p::{Multiaddr, PeerId};
use prost::Message;

use super::issuer::TokenIssuer;
use super::protocol::{JoinRefusal, JoinReply, RequestWire};
use crate::known_addresses::encode_addresses;
use crate::membership::{Member, MemberWire};
use crate::{Certificate, Membership, NewCertificate, Revocation, RevocationList};

/// A joining node's request and the moment of it.
pub(crate) struct Application<'a> {
    /// The peer id that the joining node has proved.
    pub(crate) peer: PeerId,
    /// The encoded request.
    pub(crate) body: &'a [u8],
    /// Monotonic clock of the issuer.
    pub(crate) now_ms: u64,
    /// Wall clock of the issuer.
    pub(crate) unix_ms: u64,
}

/// Admits a joining node: uses its token up, adds it to the membership, and gives the reply with its certificate.
/// `listening` are the issuer's own addresses.
///
/// # Errors
/// A refusal leaves the token and the membership as they are.
pub(crate) fn admit(
    issuer: &mut TokenIssuer,
    membership: &mut Membership,
    listening: &[Multiaddr],
    application: &Application<'_>,
) -> Result<JoinReply, JoinRefusal> {
    let Application { peer, body, now_ms, unix_ms } = *application;
    let request = RequestWire::decode(body).map_err(|_| JoinRefusal::Malformed)?;
    let key = issuer.check(&request.secret, now_ms)?;
    if membership.revocations().revokes_peer(&peer) {
        return Err(JoinRefusal::Revoked);
    }
    let node_id = free_identity(membership, peer, &request)?;
    // A newer certificate is the one that counts, whatever the clock was set to meanwhile.
    let latest = membership.member(&peer).map(|member| member.certificate.clone());
    let before_ms = latest.as_ref().map_or(0, Certificate::issued_unix_ms);
    let issued_unix_ms = unix_ms.max(before_ms.saturating_add(1));
    let new = NewCertificate {
        peer_id: peer,
        node_id,
        name: request.name,
        serial: rand::random(),
        issued_unix_ms,
    };
    let issued = match &latest {
        Some(latest) => {
            let (name, serial) = (latest.name(), format!("{:016x}", latest.serial()));
            tracing::info!(%peer, name, serial, "the new certificate of this member replaces an earlier one");
            key.renew(new, latest)
        }
        None => key.issue(new),
    };
    let certificate = issued.map_err(|_| JoinRefusal::Malformed)?;
    membership.learn(certificate.clone()).map_err(|_| JoinRefusal::Malformed)?;
    let own = MemberWire {
        certificate: membership.own().encode(),
        addresses: encode_addresses(listening),
        is_hearsay: false,
    };
    let others = membership.members().filter(|member| member.certificate.peer_id() != peer);
    let reply = JoinReply {
        code: 0,
        certificate: certificate.encode(),
        cluster: membership.cluster().to_bytes().to_vec(),
        members: std::iter::once(own).chain(others.map(Member::to_wire)).collect(),
        revocation_lists: membership.revocations().lists().map(RevocationList::encode).collect(),
        revocations: membership.revocations().peers().map(Revocation::encode).collect(),
    };
    issuer.use_up(&request.secret);
    Ok(reply)
}

/// The node number of the joining node, if its name and number are free.
fn free_identity(membership: &Membership, peer: PeerId, request: &RequestWire) -> Result<u64, JoinRefusal> {
    let is_taken = |is_same: &dyn Fn(&Certificate) -> bool| {
        let mut others = membership.members().map(|member| &member.certificate);
        is_same(membership.own()) || others.any(|other| is_same(other) && other.peer_id() != peer)
    };
    if is_taken(&|other| other.name() == request.name) {
        return Err(JoinRefusal::NameTaken);
    }
    let is_number_taken = |number| is_taken(&|other| other.node_id() == number);
    match request.node_id {
        0 => Ok(random_node_id(is_number_taken)),
        number if is_number_taken(number) => Err(JoinRefusal::NodeIdTaken),
        number => Ok(number),
    }
}

fn random_node_id(is_taken: impl Fn(u64) -> bool) -> u64 {
    loop {
        let number = rand::random();
        if number != 0 && !is_taken(number) {
            return number;
        }
    }
}
