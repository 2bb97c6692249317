//! This node as it presents itself to others.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;

use super::clock::TransportClock;
use super::status::LocalStatus;
use crate::Membership;
use crate::handshake::Hello;
use crate::network::address::{self, TransportKind};

/// The options that hold while the transport runs.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_frame_bytes: usize,
    pub(crate) outbox_bytes: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) versions: RangeInclusive<u32>,
}

/// The local node from one start to the next.
pub(crate) struct LocalNode {
    pub(crate) peer_id: PeerId,
    pub(crate) limits: Limits,
    pub(crate) clock: TransportClock,
    pub(crate) status: Arc<LocalStatus>,
    /// Random number of the start.
    instance: u64,
    incarnation: u32,
    software: String,
    membership: Arc<Mutex<Membership>>,
    listening: Mutex<Vec<Multiaddr>>,
}

impl LocalNode {
    pub(crate) fn new(
        peer_id: PeerId,
        limits: Limits,
        clock: TransportClock,
        incarnation: u32,
        software: String,
        membership: Arc<Mutex<Membership>>,
    ) -> Self {
        let (instance, listening, status) = (rand::random(), Mutex::default(), Arc::default());
        Self { peer_id, limits, clock, status, instance, incarnation, software, membership, listening }
    }

    /// A listener has a new address.
    pub(crate) fn listens_on(&self, address: Multiaddr) {
        self.listening.lock().push(address);
    }

    /// A listener has lost an address.
    pub(crate) fn listens_no_more_on(&self, address: &Multiaddr) {
        self.listening.lock().retain(|known| known != address);
    }

    /// True if a listener has an address of this transport.
    pub(crate) fn listens_by(&self, kind: TransportKind) -> bool {
        self.listening.lock().iter().any(|known| address::kind(known) == Some(kind))
    }

    /// The addresses of the listeners; loopback comes last.
    pub(crate) fn addresses(&self) -> Vec<Multiaddr> {
        let mut addresses = self.listening.lock().clone();
        addresses.sort_by_key(address::is_loopback);
        addresses
    }

    /// This node's Hello to a peer.
    pub(crate) fn hello(&self, peer: &PeerId) -> Hello {
        let addresses = self.addresses();
        let membership = self.membership.lock();
        Hello {
            versions: self.limits.versions.clone(),
            software: self.software.clone(),
            certificate: membership.own().encode(),
            revocations_digest: Some(membership.revocations().digest()),
            members_digest: Some(membership.digest_for(peer)),
            unix_ms: self.clock.unix_ms(),
            incarnation: self.incarnation,
            instance: Some(self.instance),
            addresses,
        }
    }
}
