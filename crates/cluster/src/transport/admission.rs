//! Decides which connections may reach the handshake: penalties, and a bounded number of peers that are not known members.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;

use super::clock::TransportClock;
use super::dial_signal::DialSignal;
use crate::Membership;
use crate::network::address;
use crate::network::address_slots::{AddressSlots, Origin, SlotLimits};
use crate::network::unencrypted::UnencryptedConnections;
use crate::penalties::Penalties;

/// Encrypted connections whose peers are not known members and have not shown a certificate yet.
const UNPROVEN: SlotLimits = SlotLimits { others: 64, members: 64, per_origin: 16 };

/// Decides which connections may reach the handshake.
pub(crate) struct Admission {
    membership: Arc<Mutex<Membership>>,
    clock: TransportClock,
    dial_signal: DialSignal,
    unencrypted: Arc<UnencryptedConnections>,
    penalties: Mutex<Penalties<PeerId>>,
    unproven: Mutex<AddressSlots<ConnectionId>>,
    /// Origins of members' connections, which may differ from the addresses that they listen on.
    origins: Mutex<HashMap<PeerId, Origin>>,
}

impl Admission {
    pub(crate) fn new(
        membership: Arc<Mutex<Membership>>,
        clock: TransportClock,
        dial_signal: DialSignal,
        unencrypted: Arc<UnencryptedConnections>,
    ) -> Self {
        Self {
            membership,
            clock,
            dial_signal,
            unencrypted,
            penalties: Mutex::default(),
            unproven: Mutex::new(AddressSlots::new(UNPROVEN)),
            origins: Mutex::default(),
        }
    }

    /// Starts or prolongs the pause of a peer.
    pub(crate) fn penalise(&self, peer: PeerId) {
        self.penalties.lock().refuse(peer, self.clock.now_ms(), rand::random());
    }

    /// Removes the penalty of a peer.
    pub(crate) fn forgive(&self, peer: &PeerId) {
        self.penalties.lock().forgive(peer);
    }

    /// The end of a peer's pause; `None` if it has none at `now_ms`.
    pub(crate) fn penalised_until_ms(&self, peer: &PeerId, now_ms: u64) -> Option<u64> {
        self.penalties.lock().waits_until(peer, now_ms)
    }

    /// True if a peer has to wait now.
    pub(crate) fn is_penalised(&self, peer: &PeerId) -> bool {
        self.penalised_until_ms(peer, self.clock.now_ms()).is_some()
    }

    /// True if the connection may stay until its peer has shown a certificate. Connections of known members always may:
    /// they have proved their peer id.
    pub(crate) fn may_greet(&self, connection: ConnectionId, peer: &PeerId, remote: &Multiaddr) -> bool {
        if self.membership.lock().member(peer).is_some() {
            return true;
        }
        origin(remote).is_some_and(|origin| self.unproven.lock().try_acquire(connection, origin))
    }

    /// The connection is closed, or its peer has shown its certificate: frees its slot.
    pub(crate) fn release(&self, connection: ConnectionId) {
        self.unproven.lock().release(connection);
    }

    /// A member has connected from this address.
    pub(crate) fn member_connected(&self, peer: PeerId, remote: &Multiaddr) {
        let Some(origin) = origin(remote) else { return };
        if self.origins.lock().insert(peer, origin) != Some(origin) {
            self.dial_signal.notify();
        }
    }

    /// Reserves slots for the current members' addresses.
    pub(crate) fn reserve_slots(&self) {
        let mut reserved: HashSet<Origin> = HashSet::new();
        {
            let mut origins = self.origins.lock();
            let membership = self.membership.lock();
            origins.retain(|peer, _| membership.member(peer).is_some());
            let addresses = membership.members().flat_map(|member| member.addresses.first_hand());
            reserved.extend(addresses.filter_map(|address| origin(&address)));
            reserved.extend(origins.values());
        }
        self.unencrypted.set_members(&reserved);
        self.unproven.lock().set_members(reserved);
    }

    /// Connections that were refused before they were encrypted.
    pub(crate) fn refused_unencrypted(&self) -> u64 {
        self.unencrypted.refused()
    }
}

fn origin(address: &Multiaddr) -> Option<Origin> {
    address::socket(address).map(|socket| Origin::from(socket.ip()))
}
