//! Passes members and revocations on to the connected members.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libp2p::PeerId;
use parking_lot::Mutex;

use super::admission::Admission;
use super::counters::Cells;
use super::dial_signal::DialSignal;
use super::event::DownReason;
use super::peer::Peer;
use super::peer_table::PeerTable;
use crate::handshake::{Hello, Refusal};
use crate::membership::{Member, MemberWire, encode_members};
use crate::network::frame::Kind;
use crate::revocation::{RevocationFrame, encode_revocation};
use crate::{CertificateError, Membership, Revocation, RevocationList};

/// Members in one frame.
const MEMBERS_PER_FRAME: usize = 64;

/// The membership of a running transport and everything that it tells other members of it.
pub(crate) struct Gossip {
    pub(crate) membership: Arc<Mutex<Membership>>,
    peers: Arc<PeerTable>,
    admission: Arc<Admission>,
    counters: Arc<Cells>,
    dial_signal: DialSignal,
    /// The membership has changed before a channel was open, and the node was not notified.
    is_unreported: AtomicBool,
}

/// Result of a received frame of revocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RevocationsTaken {
    /// True if at least one revocation was new.
    pub(crate) is_changed: bool,
    /// All of them were signed by the cluster key.
    pub(crate) is_signed: bool,
}

impl Gossip {
    pub(crate) fn new(
        membership: Arc<Mutex<Membership>>,
        peers: Arc<PeerTable>,
        admission: Arc<Admission>,
        counters: Arc<Cells>,
        dial_signal: DialSignal,
    ) -> Self {
        let is_unreported = AtomicBool::new(false);
        Self { membership, peers, admission, counters, dial_signal, is_unreported }
    }

    /// Puts the first control frames into a new channel's outbox: members and revocations, if the peer knows other ones.
    pub(crate) fn introduce(&self, peer: &Peer, hello: &Hello) {
        // A thousand members take some 250 kB, and each node has a thousand channels.
        let has_same_members = hello
            .members_digest
            .is_some_and(|digest| digest == self.membership.lock().digest_for(&peer.peer_id()));
        if !has_same_members {
            for body in self.members_frames(peer.peer_id()) {
                peer.outbox.control(Kind::Members, body);
            }
        }
        let membership = self.membership.lock();
        let revocations = membership.revocations();
        match hello.revocations_digest {
            Some(digest) if digest == revocations.digest() => {}
            Some(_) => {
                for body in revocations.frames() {
                    peer.outbox.control(Kind::RevocationSet, body);
                }
            }
            // A version up to 0.1 reads nothing else, and keeps the list with the highest number.
            None => {
                for list in revocations.lists() {
                    peer.outbox.control(Kind::Revocations, list.encode());
                }
            }
        }
    }

    /// Sends a member's data to all members but that one.
    pub(crate) fn announce(&self, member: MemberWire, except: u64) {
        self.peers.broadcast_except(except, Kind::Members, &encode_members(&[member]));
    }

    /// Revokes a peer, as a holder of the cluster key. False if the peer was revoked before.
    ///
    /// # Errors
    /// The key of another cluster, or too many revocations.
    pub(crate) fn revoke(&self, revocation: Revocation) -> Result<bool, CertificateError> {
        let body = encode_revocation(&revocation);
        let added = self.membership.lock().revoke(revocation)?;
        if added {
            // The revoked member first: the frame is for all that remain.
            self.disconnect_revoked();
            self.peers.broadcast(Kind::RevocationSet, &body);
        }
        Ok(added)
    }

    /// Adds the revocations that a member sent, and passes on those that are new here.
    pub(crate) fn take_revocations(&self, frame: RevocationFrame, sender: u64) -> RevocationsTaken {
        let mut new = Vec::new();
        let mut is_signed = true;
        {
            let mut membership = self.membership.lock();
            for revocation in frame.peers {
                match membership.learn_revocation(revocation.clone()) {
                    Ok(true) => new.push((Kind::RevocationSet, encode_revocation(&revocation))),
                    Ok(false) => {}
                    Err(_) => is_signed = false,
                }
            }
            for list in frame.lists {
                let body = list.encode();
                match membership.learn_revocation_list(list) {
                    Ok(true) => new.push((Kind::Revocations, body)),
                    Ok(false) => {}
                    Err(_) => is_signed = false,
                }
            }
        }
        for (kind, body) in &new {
            self.peers.broadcast_except(sender, *kind, body);
        }
        if !new.is_empty() {
            self.disconnect_revoked();
        }
        RevocationsTaken { is_changed: !new.is_empty(), is_signed }
    }

    /// Takes a revocation list that came before a channel was open, enforces it, and passes it on to all members. Its
    /// sender may be the revoked peer, and no other peer may bring it again.
    pub(crate) fn take_early_list(&self, body: &[u8]) -> Result<(), CertificateError> {
        let list = RevocationList::decode(body)?;
        if self.membership.lock().learn_revocation_list(list)? {
            self.pass_on(Kind::Revocations, body);
        }
        Ok(())
    }

    /// Takes revocations of peers that came before a channel was open, enforces them, and passes them on to all members.
    pub(crate) fn take_early_revocations(&self, body: &[u8]) -> Result<(), CertificateError> {
        for revocation in RevocationFrame::decode(body)?.peers {
            let body = encode_revocation(&revocation);
            if self.membership.lock().learn_revocation(revocation)? {
                self.pass_on(Kind::RevocationSet, &body);
            }
        }
        Ok(())
    }

    /// The signed revocation of a peer, as a frame. It is sent to that peer, which then works alone.
    pub(crate) fn proof_of_revocation(&self, peer_id: &PeerId) -> Option<(Kind, Vec<u8>)> {
        let membership = self.membership.lock();
        let revocations = membership.revocations();
        if let Some(revocation) = revocations.of_peer(peer_id) {
            return Some((Kind::RevocationSet, encode_revocation(revocation)));
        }
        // Revoked by its serial number then. The longest list is the likeliest.
        revocations.lists().next().map(|list| (Kind::Revocations, list.encode()))
    }

    /// True if the membership has changed before a channel was open; clears the flag.
    pub(crate) fn take_unreported(&self) -> bool {
        self.is_unreported.swap(false, Ordering::AcqRel)
    }

    fn pass_on(&self, kind: Kind, body: &[u8]) {
        self.is_unreported.store(true, Ordering::Release);
        self.disconnect_revoked();
        self.peers.broadcast(kind, body);
        self.dial_signal.notify();
    }

    fn disconnect_revoked(&self) {
        for peer in self.peers.all() {
            if self.membership.lock().is_revoked(&peer.certificate) {
                self.admission.penalise(peer.peer_id());
                self.counters.refuse(Refusal::Revoked);
                peer.close(DownReason::Refused(Refusal::Revoked));
            }
        }
    }

    /// All known members but one, as bodies of frames.
    fn members_frames(&self, except: PeerId) -> Vec<Vec<u8>> {
        let membership = self.membership.lock();
        let members: Vec<MemberWire> = membership
            .members()
            .filter(|member| member.certificate.peer_id() != except)
            .map(Member::to_wire)
            .collect();
        members.chunks(MEMBERS_PER_FRAME).map(encode_members).collect()
    }
}
