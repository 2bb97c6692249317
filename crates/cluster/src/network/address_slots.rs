//! Connection slots, shared fairly between addresses. No clock and no socket.
//!
//! An address is an IPv4 address or an IPv6 /64, the least that one machine or attacker has. Addresses of known members
//! have slots of their own. While all slots are taken, the address with the most slots loses its oldest, so that idle
//! connections are closed first.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// The machine or network that a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; 8]),
}

/// Places of one kind of connections.
#[derive(Debug)]
pub(crate) struct AddressSlots<Id> {
    limits: SlotLimits,
    members: HashSet<Origin>,
    /// The oldest first.
    slots: VecDeque<Slot<Id>>,
}

/// Numbers of slots of an [`AddressSlots`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLimits {
    /// Slots of all other addresses together.
    pub(crate) others: usize,
    /// Slots of all addresses of known members together.
    pub(crate) members: usize,
    /// Slots of each address.
    pub(crate) per_origin: usize,
}

#[derive(Debug)]
struct Slot<Id> {
    id: Id,
    origin: Origin,
    is_member: bool,
}

/// The decision about a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotGrant<Id> {
    /// The connection has a free slot.
    Free,
    /// The connection has the slot of another one, which the caller closes.
    Replaces(Id),
    /// No slot is available.
    Full,
}

impl From<IpAddr> for Origin {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, ..] = ip.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl<Id: Copy + PartialEq> AddressSlots<Id> {
    pub(crate) fn new(limits: SlotLimits) -> Self {
        Self { limits, members: HashSet::new(), slots: VecDeque::new() }
    }

    /// Replaces the addresses of known members. Connections that have a slot keep it.
    pub(crate) fn set_members(&mut self, members: HashSet<Origin>) {
        self.members = members;
    }

    /// Gives a new connection a slot, if necessary the slot of an older connection.
    pub(crate) fn acquire(&mut self, id: Id, origin: Origin) -> SlotGrant<Id> {
        let is_member = self.members.contains(&origin);
        let limit = if is_member { self.limits.members } else { self.limits.others };
        let of_origin = self.count(|slot| slot.origin == origin && slot.is_member == is_member);
        let all = self.count(|slot| slot.is_member == is_member);
        let grant = if of_origin >= self.limits.per_origin {
            self.release_oldest(origin, is_member)
        } else if all >= limit {
            match self.largest(is_member) {
                Some((largest, slots)) if slots > of_origin + 1 => self.release_oldest(largest, is_member),
                _ => SlotGrant::Full,
            }
        } else {
            SlotGrant::Free
        };
        if grant != SlotGrant::Full {
            self.slots.push_back(Slot { id, origin, is_member });
        }
        grant
    }

    /// Gives a new connection a slot if one is free. Never takes the slot of another connection.
    pub(crate) fn try_acquire(&mut self, id: Id, origin: Origin) -> bool {
        let is_member = self.members.contains(&origin);
        let limit = if is_member { self.limits.members } else { self.limits.others };
        let has_slot = self.count(|slot| slot.is_member == is_member) < limit
            && self.count(|slot| slot.origin == origin) < self.limits.per_origin;
        if has_slot {
            self.slots.push_back(Slot { id, origin, is_member });
        }
        has_slot
    }

    /// Frees the slot of a connection that is closed, or has proved that it belongs to the cluster.
    pub(crate) fn release(&mut self, id: Id) {
        self.slots.retain(|slot| slot.id != id);
    }

    fn count(&self, matching: impl Fn(&Slot<Id>) -> bool) -> usize {
        self.slots.iter().filter(|slot| matching(slot)).count()
    }

    /// The address with the most slots, and their number; of several addresses the one with the oldest slot.
    fn largest(&self, is_member: bool) -> Option<(Origin, usize)> {
        let mut counts: Vec<(Origin, usize)> = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.is_member == is_member) {
            match counts.iter_mut().find(|(origin, _)| *origin == slot.origin) {
                Some((_, slots)) => *slots += 1,
                None => counts.push((slot.origin, 1)),
            }
        }
        counts.into_iter().rev().max_by_key(|(_, slots)| *slots)
    }

    fn release_oldest(&mut self, origin: Origin, is_member: bool) -> SlotGrant<Id> {
        let oldest =
            self.slots.iter().position(|slot| slot.origin == origin && slot.is_member == is_member);
        match oldest.and_then(|index| self.slots.remove(index)) {
            Some(slot) => SlotGrant::Replaces(slot.id),
            None => SlotGrant::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: SlotLimits = SlotLimits { others: 8, members: 6, per_origin: 4 };

    fn origin(number: u8) -> Origin {
        Origin::from(IpAddr::from([10, 0, 0, number]))
    }

    #[test]
    fn an_address_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_eq!(of("fd00::1"), of("fd00::ffff:1"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
    }

    #[test]
    fn one_address_has_at_most_its_share() {
        let mut slots = AddressSlots::new(LIMITS);
        for id in 0..4 {
            assert_eq!(slots.acquire(id, origin(1)), SlotGrant::Free);
        }
        for id in 4..100 {
            assert_eq!(slots.acquire(id, origin(1)), SlotGrant::Replaces(id - 4), "the oldest is replaced");
        }
        assert_eq!(slots.acquire(200, origin(2)), SlotGrant::Free);
    }

    #[test]
    fn the_largest_address_loses_a_slot_and_members_have_slots_of_their_own() {
        let mut slots = AddressSlots::new(LIMITS);
        slots.set_members(HashSet::from([origin(9)]));
        for id in 0..4 {
            slots.acquire(id, origin(1));
            slots.acquire(id + 10, origin(2));
        }
        assert!(matches!(slots.acquire(20, origin(3)), SlotGrant::Replaces(0 | 10)));
        for number in 10..46 {
            slots.acquire(100 + u32::from(number), origin(number));
        }
        // Now each of eight strangers has one.
        assert_eq!(slots.acquire(300, origin(200)), SlotGrant::Full);
        for id in 400..404 {
            assert_eq!(slots.acquire(id, origin(9)), SlotGrant::Free);
        }
        assert_eq!(slots.acquire(404, origin(9)), SlotGrant::Replaces(400));
        slots.release(401);
        assert_eq!(slots.acquire(405, origin(9)), SlotGrant::Free);
    }

    #[test]
    fn try_acquire_closes_no_connection() {
        let mut slots = AddressSlots::new(LIMITS);
        assert_eq!((0..10).filter(|id| slots.try_acquire(*id, origin(1))).count(), 4);
        assert_eq!((10..20).filter(|id| slots.try_acquire(*id, origin(2))).count(), 4);
        assert!(!slots.try_acquire(20, origin(3)));
        slots.release(0);
        assert!(slots.try_acquire(21, origin(3)));
    }

    proptest! {
        #[test]
        fn the_limits_hold(steps in prop::collection::vec((0_u8..12, any::<bool>()), 0..200)) {
            let mut slots = AddressSlots::new(LIMITS);
            slots.set_members((0..3).map(origin).collect());
            let mut open: Vec<usize> = Vec::new();
            for (id, (number, leaves)) in steps.into_iter().enumerate() {
                match slots.acquire(id, origin(number)) {
                    SlotGrant::Free => open.push(id),
                    SlotGrant::Replaces(other) => {
                        prop_assert!(open.contains(&other));
                        open.retain(|known| *known != other);
                        open.push(id);
                    }
                    SlotGrant::Full => {}
                }
                if leaves && let Some(first) = open.first().copied() {
                    open.remove(0);
                    slots.release(first);
                }
                prop_assert_eq!(slots.slots.len(), open.len());
                prop_assert!(open.len() <= LIMITS.others + LIMITS.members);
            }
        }
    }
}
