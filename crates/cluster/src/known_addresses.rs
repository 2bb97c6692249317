//! Addresses of another member, by where they come from. No clock and no socket.
//!
//! First-hand addresses, at which this node has reached the member or which the member itself announced, come before hearsay of
//! other members, and hearsay never displaces them. Each teller has a share of the hearsay.

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

/// The maximum number of addresses that a member announces.
pub(crate) const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS_BYTES: usize = 64;
/// Addresses at which this node has reached the member.
const MAX_REACHED: usize = 2;
/// Hearsay about one member, and the share of one teller in it.
const MAX_HEARSAY: usize = 4;
const MAX_HEARSAY_OF_ONE: usize = 2;

/// Addresses of a member, at most 14.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownAddresses {
    /// The latest first.
    reached: Vec<Multiaddr>,
    announced: Vec<Multiaddr>,
    /// The oldest first.
    hearsay: Vec<Hearsay>,
}

/// An address of a member that another member reported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hearsay {
    teller: PeerId,
    address: Multiaddr,
}

impl KnownAddresses {
    /// True if no address is known.
    pub fn is_empty(&self) -> bool {
        self.reached.is_empty() && self.announced.is_empty() && self.hearsay.is_empty()
    }

    /// The addresses at which this node has reached the member, then those that the member announced.
    pub fn first_hand(&self) -> Vec<Multiaddr> {
        let announced = self.announced.iter().filter(|address| !self.reached.contains(address));
        self.reached.iter().chain(announced).cloned().collect()
    }

    /// The addresses that other members reported.
    pub fn hearsay(&self) -> Vec<Multiaddr> {
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for Hearsay { address, .. } in &self.hearsay {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// All addresses, in the order in which they are to be tried.
    pub fn all(&self) -> Vec<Multiaddr> {
        let mut addresses = self.first_hand();
        addresses.extend(self.hearsay());
        addresses
    }

    /// Addresses for other members: first-hand addresses, and hearsay only if there are none.
    pub(crate) fn to_tell(&self) -> Vec<Multiaddr> {
        let first_hand = self.first_hand();
        if first_hand.is_empty() { self.hearsay() } else { first_hand }
    }

    pub(crate) fn has_first_hand(&self) -> bool {
        !(self.reached.is_empty() && self.announced.is_empty())
    }

    /// The member itself announced that it listens here; true if that changed anything.
    pub(crate) fn announce(&mut self, addresses: &[Multiaddr]) -> bool {
        let addresses = usable(addresses);
        if addresses.is_empty() || self.announced == addresses {
            return false;
        }
        self.announced = addresses;
        self.forget_hearsay();
        true
    }

    /// Records that this node has reached the member at this address; true if that changed anything.
    pub(crate) fn reach(&mut self, address: &Multiaddr) -> bool {
        let mut address = address.clone();
        if let Some(Protocol::P2p(_)) = address.iter().last() {
            address.pop();
        }
        if !is_usable(&address) || self.reached.first() == Some(&address) {
            return false;
        }
        self.reached.retain(|known| *known != address);
        self.reached.insert(0, address);
        self.reached.truncate(MAX_REACHED);
        self.forget_hearsay();
        true
    }

    /// Stores the addresses of this member that `teller` reported; they replace its earlier report. True if that changed
    /// anything.
    pub(crate) fn hear(&mut self, teller: PeerId, addresses: &[Multiaddr]) -> bool {
        let mut told: Vec<Multiaddr> = usable(addresses);
        told.retain(|address| !self.reached.contains(address) && !self.announced.contains(address));
        told.truncate(MAX_HEARSAY_OF_ONE);
        let before = self.hearsay.clone();
        if before.iter().filter(|known| known.teller == teller).map(|known| &known.address).eq(&told) {
            return false;
        }
        self.hearsay.retain(|known| known.teller != teller);
        for address in told {
            if self.hearsay.len() >= MAX_HEARSAY && !self.make_room(teller) {
                break;
            }
            self.hearsay.push(Hearsay { teller, address });
        }
        self.hearsay != before
    }

    /// Drops the oldest hearsay of a teller that has more than this one would have.
    fn make_room(&mut self, teller: PeerId) -> bool {
        let count = |teller: PeerId| self.hearsay.iter().filter(|known| known.teller == teller).count();
        let own = count(teller);
        let largest = self.hearsay.iter().position(|known| count(known.teller) > own + 1);
        largest.map(|index| self.hearsay.remove(index)).is_some()
    }

    fn forget_hearsay(&mut self) {
        let Self { reached, announced, hearsay } = self;
        hearsay.retain(|known| !reached.contains(&known.address) && !announced.contains(&known.address));
    }
}

/// Encodes the first 8 addresses at most.
pub(crate) fn encode_addresses(addresses: &[Multiaddr]) -> Vec<Vec<u8>> {
    addresses.iter().take(MAX_ADDRESSES).map(Multiaddr::to_vec).collect()
}

/// The addresses that can be read and dialled; the others are left out.
pub(crate) fn decode_addresses(addresses: &[Vec<u8>]) -> Vec<Multiaddr> {
    let read = addresses
        .iter()
        .take(MAX_ADDRESSES)
        .filter(|bytes| bytes.len() <= MAX_ADDRESS_BYTES)
        .filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok())
        .collect::<Vec<_>>();
    usable(&read)
}

/// `/ip4|ip6/ADDRESS/tcp/PORT` and `/ip4|ip6/ADDRESS/udp/PORT/quic-v1`, each once, at most 8.
fn usable(addresses: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut kept: Vec<Multiaddr> = Vec::new();
    for address in addresses {
        if kept.len() < MAX_ADDRESSES && is_usable(address) && !kept.contains(address) {
            kept.push(address.clone());
        }
    }
    kept
}

fn is_usable(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let host = match parts.next() {
        Some(Protocol::Ip4(ip)) => !ip.is_unspecified() && !ip.is_multicast(),
        // A link-local address is of no use without the name of the link.
        Some(Protocol::Ip6(ip)) => {
            !ip.is_unspecified() && !ip.is_multicast() && !ip.is_unicast_link_local()
        }
        _ => false,
    };
    host && matches!(
        (parts.next(), parts.next(), parts.next()),
        (Some(Protocol::Tcp(1..)), None, _) | (Some(Protocol::Udp(1..)), Some(Protocol::QuicV1), None)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(port: u16) -> Multiaddr {
        format!("/ip4/10.0.0.1/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn what_was_seen_comes_before_hearsay() {
        let (mut known, one, two) = (KnownAddresses::default(), PeerId::random(), PeerId::random());
        assert!(known.hear(one, &[at(1), at(2), at(3)]));
        assert_eq!(known.all(), [at(1), at(2)]);
        assert_eq!(known.to_tell(), known.all());
        assert!(known.announce(&[at(4), at(2)]));
        assert!(known.reach(&at(5).with(Protocol::P2p(one))));
        assert_eq!(known.all(), [at(5), at(4), at(2), at(1)]);
        assert_eq!(known.to_tell(), [at(5), at(4), at(2)]);
        assert!(!known.hear(one, &[at(1), at(2)]), "nothing new");
        assert!(known.hear(two, &[at(7)]));
        assert_eq!(known.hearsay(), [at(1), at(7)]);
        // It moved: the address that it announces now counts, the one that was good before is kept.
        assert!(known.announce(&[at(8)]));
        assert_eq!(known.all(), [at(5), at(8), at(1), at(7)]);
        assert!(!known.announce(&[]) && !known.reach(&"/ip4/0.0.0.0/tcp/1".parse().unwrap()));
    }

    #[test]
    fn a_teller_has_a_share() {
        let mut known = KnownAddresses::default();
        let tellers: Vec<PeerId> = (0..6).map(|_| PeerId::random()).collect();
        known.hear(tellers[0], &[at(1), at(2)]);
        known.hear(tellers[1], &[at(3), at(4)]);
        // One that has less makes room for itself.
        known.hear(tellers[2], &[at(5), at(6)]);
        assert_eq!(known.hearsay(), [at(2), at(3), at(4), at(5)]);
        known.hear(tellers[3], &[at(7)]);
        assert_eq!(known.hearsay(), [at(2), at(4), at(5), at(7)]);
        // A liar that goes on telling has its share again, and no more.
        for port in 100..200 {
            known.hear(tellers[1], &[at(port), at(port + 1)]);
            assert_eq!(known.hearsay().len(), 4);
            assert!([2, 5, 7].iter().all(|port| known.hearsay().contains(&at(*port))));
        }
        assert!(!known.hear(tellers[5], &[at(50)]) && !known.hearsay().contains(&at(50)));
    }

    proptest! {
        /// For any addresses, sent any number of times.
        #[test]
        fn hearsay_displaces_nothing(told in prop::collection::vec((0_usize..20, 1_u16..60), 0..100)) {
            let mut known = KnownAddresses::default();
            let tellers: Vec<PeerId> = (0..20).map(|_| PeerId::random()).collect();
            known.announce(&(1..=8).map(at).collect::<Vec<_>>());
            known.reach(&at(9));
            let first_hand = known.first_hand();
            for (teller, port) in told {
                known.hear(tellers[teller], &(port..port + 10).map(at).collect::<Vec<_>>());
                prop_assert_eq!(&known.first_hand(), &first_hand);
                prop_assert_eq!(&known.all()[..9], &first_hand[..]);
                prop_assert!(known.all().len() <= 9 + MAX_HEARSAY);
            }
        }
    }
}
