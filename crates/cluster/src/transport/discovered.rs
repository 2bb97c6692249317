//! Peers that multicast DNS has found on the local link. Nobody vouches for them, so they are used for dialling only.

use std::collections::HashMap;

use libp2p::{Multiaddr, PeerId, mdns};

use crate::network::address;

/// Peers that are remembered; anybody on the link can announce any number.
const MAX_PEERS: usize = 256;
/// Addresses of one peer that are remembered.
const MAX_ADDRESSES: usize = 8;

/// Peers on the local link and their addresses.
#[derive(Debug, Default)]
pub(crate) struct DiscoveredPeers {
    peers: HashMap<PeerId, Vec<Multiaddr>>,
}

impl DiscoveredPeers {
    /// Takes an event of multicast DNS; `own` is left out.
    pub(crate) fn take(&mut self, event: mdns::Event, own: PeerId) {
        match event {
            mdns::Event::Discovered(found) => {
                for (peer, address) in found {
                    if peer != own && address::kind(&address).is_some() {
                        self.add(peer, address);
                    }
                }
            }
            mdns::Event::Expired(expired) => {
                for (peer, address) in expired {
                    self.remove(&peer, &address);
                }
            }
        }
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    pub(crate) fn addresses(&self, peer: &PeerId) -> &[Multiaddr] {
        self.peers.get(peer).map(Vec::as_slice).unwrap_or_default()
    }

    fn add(&mut self, peer: PeerId, address: Multiaddr) {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            return;
        }
        let addresses = self.peers.entry(peer).or_default();
        if !addresses.contains(&address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }

    fn remove(&mut self, peer: &PeerId, address: &Multiaddr) {
        if let Some(addresses) = self.peers.get_mut(peer) {
            addresses.retain(|known| known != address);
            if addresses.is_empty() {
                self.peers.remove(peer);
            }
        }
    }
}
