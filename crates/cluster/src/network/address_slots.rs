//! Shares of a bounded number of places, by the address of a connection. No clock and no socket.
//!
//! An address is an IPv4 address or an IPv6 /64, which is what one machine or attacker has at least. Addresses
//! of known members have places of their own. Where all places are taken, the address with the most of them
//! loses its oldest, so that idle connections are closed first.

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
pub(crate) struct Crowd<Id> {
    limits: CrowdLimits,
    members: HashSet<Origin>,
    /// The oldest first.
    places: VecDeque<Place<Id>>,
}

/// How many places a [`Crowd`] has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CrowdLimits {
    /// For all addresses of unknown machines.
    pub(crate) strangers: usize,
    /// For all addresses of known members.
    pub(crate) members: usize,
    /// For one address of either.
    pub(crate) per_origin: usize,
}

#[derive(Debug)]
struct Place<Id> {
    id: Id,
    origin: Origin,
    is_member: bool,
}

/// The decision about a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry<Id> {
    /// It has a place.
    Free,
    /// It has the place of another connection, which is to be closed.
    Instead(Id),
    /// There is no place for it.
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

impl<Id: Copy + PartialEq> Crowd<Id> {
    pub(crate) fn new(limits: CrowdLimits) -> Self {
        Self { limits, members: HashSet::new(), places: VecDeque::new() }
    }

    /// Replaces the addresses of known members. Connections that have a place keep it.
    pub(crate) fn set_members(&mut self, members: HashSet<Origin>) {
        self.members = members;
    }

    /// Gives a new connection a place, if need be the one of an older connection.
    pub(crate) fn enter(&mut self, id: Id, origin: Origin) -> Entry<Id> {
        let is_member = self.members.contains(&origin);
        let limit = if is_member { self.limits.members } else { self.limits.strangers };
        let of_origin = self.count(|place| place.origin == origin && place.is_member == is_member);
        let all = self.count(|place| place.is_member == is_member);
        let entry = if of_origin >= self.limits.per_origin {
            self.leave_oldest(origin, is_member)
        } else if all >= limit {
            match self.largest(is_member) {
                Some((largest, places)) if places > of_origin + 1 => self.leave_oldest(largest, is_member),
                _ => Entry::Full,
            }
        } else {
            Entry::Free
        };
        if entry != Entry::Full {
            self.places.push_back(Place { id, origin, is_member });
        }
        entry
    }

    /// Gives a new connection a place if one is free; closes none for it.
    pub(crate) fn try_enter(&mut self, id: Id, origin: Origin) -> bool {
        let is_member = self.members.contains(&origin);
        let limit = if is_member { self.limits.members } else { self.limits.strangers };
        let has_place = self.count(|place| place.is_member == is_member) < limit
            && self.count(|place| place.origin == origin) < self.limits.per_origin;
        if has_place {
            self.places.push_back(Place { id, origin, is_member });
        }
        has_place
    }

    /// A connection is closed, or has shown that it belongs to the cluster.
    pub(crate) fn leave(&mut self, id: Id) {
        self.places.retain(|place| place.id != id);
    }

    fn count(&self, matching: impl Fn(&Place<Id>) -> bool) -> usize {
        self.places.iter().filter(|place| matching(place)).count()
    }

    /// The address with the most places and how many it has; of several the one with the oldest place.
    fn largest(&self, is_member: bool) -> Option<(Origin, usize)> {
        let mut counts: Vec<(Origin, usize)> = Vec::new();
        for place in self.places.iter().filter(|place| place.is_member == is_member) {
            match counts.iter_mut().find(|(origin, _)| *origin == place.origin) {
                Some((_, places)) => *places += 1,
                None => counts.push((place.origin, 1)),
            }
        }
        counts.into_iter().rev().max_by_key(|(_, places)| *places)
    }

    fn leave_oldest(&mut self, origin: Origin, is_member: bool) -> Entry<Id> {
        let oldest =
            self.places.iter().position(|place| place.origin == origin && place.is_member == is_member);
        match oldest.and_then(|index| self.places.remove(index)) {
            Some(place) => Entry::Instead(place.id),
            None => Entry::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: CrowdLimits = CrowdLimits { strangers: 8, members: 6, per_origin: 4 };

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
    fn one_address_takes_its_share_and_no_more() {
        let mut crowd = Crowd::new(LIMITS);
        for id in 0..4 {
            assert_eq!(crowd.enter(id, origin(1)), Entry::Free);
        }
        for id in 4..100 {
            assert_eq!(crowd.enter(id, origin(1)), Entry::Instead(id - 4), "the oldest goes");
        }
        assert_eq!(crowd.enter(200, origin(2)), Entry::Free);
    }

    #[test]
    fn the_largest_gives_way_and_members_have_places_of_their_own() {
        let mut crowd = Crowd::new(LIMITS);
        crowd.set_members(HashSet::from([origin(9)]));
        for id in 0..4 {
            crowd.enter(id, origin(1));
            crowd.enter(id + 10, origin(2));
        }
        assert!(matches!(crowd.enter(20, origin(3)), Entry::Instead(0 | 10)));
        for number in 10..46 {
            crowd.enter(100 + u32::from(number), origin(number));
        }
        // Now each of eight strangers has one.
        assert_eq!(crowd.enter(300, origin(200)), Entry::Full);
        for id in 400..404 {
            assert_eq!(crowd.enter(id, origin(9)), Entry::Free);
        }
        assert_eq!(crowd.enter(404, origin(9)), Entry::Instead(400));
        crowd.leave(401);
        assert_eq!(crowd.enter(405, origin(9)), Entry::Free);
    }

    #[test]
    fn where_nobody_is_closed_the_share_is_the_limit() {
        let mut crowd = Crowd::new(LIMITS);
        assert_eq!((0..10).filter(|id| crowd.try_enter(*id, origin(1))).count(), 4);
        assert_eq!((10..20).filter(|id| crowd.try_enter(*id, origin(2))).count(), 4);
        assert!(!crowd.try_enter(20, origin(3)));
        crowd.leave(0);
        assert!(crowd.try_enter(21, origin(3)));
    }

    proptest! {
        #[test]
        fn the_limits_hold(steps in prop::collection::vec((0_u8..12, any::<bool>()), 0..200)) {
            let mut crowd = Crowd::new(LIMITS);
            crowd.set_members((0..3).map(origin).collect());
            let mut open: Vec<usize> = Vec::new();
            for (id, (number, leaves)) in steps.into_iter().enumerate() {
                match crowd.enter(id, origin(number)) {
                    Entry::Free => open.push(id),
                    Entry::Instead(other) => {
                        prop_assert!(open.contains(&other));
                        open.retain(|known| *known != other);
                        open.push(id);
                    }
                    Entry::Full => {}
                }
                if leaves && let Some(first) = open.first().copied() {
                    open.remove(0);
                    crowd.leave(first);
                }
                prop_assert_eq!(crowd.places.len(), open.len());
                prop_assert!(open.len() <= LIMITS.strangers + LIMITS.members);
            }
        }
    }
}
