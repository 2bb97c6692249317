//! The zone of a node without a configured one: it joins the members that it reaches within 5 ms.
//!
//! A zone has *anchors*: the members on which it is configured, and the member with its name that has found no other
//! anchor near it. A node joins the zone of an anchor that is near, and no node joins one of a member that has only joined
//! itself; so nothing keeps a zone alive but its anchors, and a zone spans at most 10 ms. A node without an anchor
//! becomes one. Of two measured anchors near each other the one with the higher node id gives up. A decision is kept
//! while an anchor of the zone is near, so a node that returns joins those that stayed (lowest-id clustering with the
//! least change: Chiang, Wu, Liu, Gerla: Routing in Clustered Multihop, Mobile Wireless Networks with Fading Channel,
//! 1997).
//!
//! No clock and no socket: time comes in as milliseconds of any monotonic clock.

use std::collections::{BTreeMap, VecDeque};

use super::workers::MAX_WORKERS;

/// A member is near from this median round trip on, in microseconds.
pub const NEAR_US: u32 = 5_000;
/// A near member stays near up to this median, in microseconds.
pub const FAR_US: u32 = 8_000;
/// A node without a zone decides after this time, in milliseconds.
pub const SETTLE_MS: u64 = 10_000;
/// A node without a zone decides after this time in any case, in milliseconds.
const MAX_SETTLE_MS: u64 = 3 * SETTLE_MS;
/// A zone is left after its anchors have been farther than [`FAR_US`] for this time, in milliseconds.
pub const LEAVE_MS: u64 = 60_000;
/// A zone is left after its anchors have been away for this time, in milliseconds.
pub const AWAY_MS: u64 = 300_000;

/// Round trips of which the median is taken.
const SAMPLES: usize = 9;
/// The least number of round trips for a decision.
const MIN_SAMPLES: usize = 3;

/// Something that a node without a configured zone learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZoneEvent {
    /// The round trip of a member was measured.
    RoundTrip {
        /// The member.
        node_id: u64,
        /// The time in microseconds.
        rtt_us: u32,
    },
    /// A member is connected and has told its zone.
    Member {
        /// The member.
        node_id: u64,
        /// Its name.
        name: String,
        /// Its zone; `None` while it has not decided.
        zone: Option<MemberZone>,
    },
    /// A member is away.
    Down {
        /// The member.
        node_id: u64,
    },
    /// Time has passed; once a second.
    Tick,
}

/// The zone of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberZone {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub origin: ZoneOrigin,
}

/// Where a zone comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneOrigin {
    /// From the configuration.
    Configured,
    /// From round trips.
    Measured,
}

/// Finds the zone of a node.
#[derive(Debug, Clone)]
pub struct ZoneDetector {
    node_id: u64,
    name: String,
    members: BTreeMap<u64, Member>,
    state: State,
}

#[derive(Debug, Clone)]
struct Member {
    name: String,
    zone: Option<MemberZone>,
    connection: Connection,
    round_trips_us: VecDeque<u32>,
    distance: Distance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Up,
    Down { since_ms: u64 },
}

/// Hysteresis of a member's round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distance {
    Unknown,
    Near,
    /// It was near, and is far since this time.
    Receding {
        since_ms: u64,
    },
    Far,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Undecided {
        since_ms: u64,
    },
    /// This node is the anchor of the zone with its name.
    Anchor,
    Joined {
        zone: String,
    },
}

impl ZoneDetector {
    /// A node that has just started, without a zone.
    pub fn new(node_id: u64, name: String, now_ms: u64) -> Self {
        let state = State::Undecided { since_ms: now_ms };
        Self { node_id, name, members: BTreeMap::new(), state }
    }

    /// The zone; `None` while it is undecided.
    pub fn zone(&self) -> Option<&str> {
        match &self.state {
            State::Undecided { .. } => None,
            State::Anchor => Some(&self.name),
            State::Joined { zone } => Some(zone),
        }
    }

    /// Takes note of an event. True if [`zone`](Self::zone) has changed.
    pub fn handle(&mut self, event: ZoneEvent, now_ms: u64) -> bool {
        match event {
            ZoneEvent::RoundTrip { node_id, rtt_us } => {
                if let Some(member) = self.members.get_mut(&node_id) {
                    member.measured(rtt_us, now_ms);
                }
                // There may be a thousand of these a second; the next tick decides.
                return false;
            }
            ZoneEvent::Member { node_id, name, zone } => self.learn(node_id, name, zone),
            ZoneEvent::Down { node_id } => {
                if let Some(member) = self.members.get_mut(&node_id)
                    && member.connection == Connection::Up
                {
                    member.connection = Connection::Down { since_ms: now_ms };
                    // Its round trips after a return may be others; its distance holds until they are known.
                    member.round_trips_us.clear();
                }
            }
            ZoneEvent::Tick => {}
        }
        self.forget(now_ms);
        self.decide(now_ms)
    }

    fn learn(&mut self, node_id: u64, name: String, zone: Option<MemberZone>) {
        if node_id == self.node_id
            || (self.members.len() >= MAX_WORKERS && !self.members.contains_key(&node_id))
        {
            return;
        }
        let member = self.members.entry(node_id).or_insert_with(|| Member {
            name: String::new(),
            zone: None,
            connection: Connection::Up,
            round_trips_us: VecDeque::with_capacity(SAMPLES),
            distance: Distance::Unknown,
        });
        member.connection = Connection::Up;
        member.name = name;
        // A member that has restarted decides anew. Until then it counts as what it was.
        if zone.is_some() || !member.is_anchor() {
            member.zone = zone;
        }
    }

    fn forget(&mut self, now_ms: u64) {
        self.members.retain(|_, member| match member.connection {
            Connection::Up => true,
            Connection::Down { since_ms } => now_ms.saturating_sub(since_ms) < AWAY_MS,
        });
        for member in self.members.values_mut() {
            if let Distance::Receding { since_ms } = member.distance
                && now_ms.saturating_sub(since_ms) >= LEAVE_MS
            {
                member.distance = Distance::Far;
            }
        }
    }

    /// True if the zone has changed.
    fn decide(&mut self, now_ms: u64) -> bool {
        let next = match (&self.state, self.best_anchor()) {
            // It is kept while it is supported; a configured zone comes before measured ones.
            (State::Joined { zone }, Some((origin, _, _))) if self.is_supported(zone, origin) => {
                return false;
            }
            (State::Anchor, Some((ZoneOrigin::Measured, node_id, _))) if node_id > self.node_id => {
                return false;
            }
            (_, Some((_, _, zone))) => State::Joined { zone: zone.to_owned() },
            (State::Anchor, None) => return false,
            (State::Joined { .. }, None) => State::Undecided { since_ms: now_ms },
            (State::Undecided { since_ms }, None) => {
                let waited_ms = now_ms.saturating_sub(*since_ms);
                let is_ready = waited_ms >= SETTLE_MS && !self.has_lower_undecided();
                if !is_ready && waited_ms < MAX_SETTLE_MS {
                    return false;
                }
                State::Anchor
            }
        };
        self.state = next;
        true
    }

    /// The anchor to join: of configured ones the nearest, else the one with the lowest node id.
    fn best_anchor(&self) -> Option<(ZoneOrigin, u64, &str)> {
        let near = || self.members.iter().filter(|(_, member)| member.is_near() && member.is_anchor());
        let configured = near()
            .filter(|(_, member)| member.is_configured())
            .min_by_key(|(node_id, member)| (member.median_us().unwrap_or(u32::MAX), **node_id));
        let (node_id, member) = configured.or_else(|| near().next())?;
        let zone = member.zone.as_ref()?;
        Some((zone.origin, *node_id, zone.name.as_str()))
    }

    /// True if a near anchor of this kind supports the zone.
    fn is_supported(&self, zone: &str, origin: ZoneOrigin) -> bool {
        let supports = |member: &Member| match origin {
            ZoneOrigin::Configured => member.is_configured(),
            ZoneOrigin::Measured => member.is_anchor(),
        };
        self.members.values().any(|member| member.is_near() && supports(member) && member.is_in(zone))
    }

    /// True if a near member that will decide before this node has no zone yet.
    fn has_lower_undecided(&self) -> bool {
        self.members.range(..self.node_id).any(|(_, member)| {
            member.connection == Connection::Up && member.is_near() && member.zone.is_none()
        })
    }
}

impl Member {
    fn measured(&mut self, rtt_us: u32, now_ms: u64) {
        if self.round_trips_us.len() >= SAMPLES {
            self.round_trips_us.pop_front();
        }
        self.round_trips_us.push_back(rtt_us);
        let Some(median_us) = self.median_us() else { return };
        self.distance = match self.distance {
            _ if median_us <= NEAR_US => Distance::Near,
            Distance::Unknown | Distance::Far => Distance::Far,
            Distance::Near | Distance::Receding { .. } if median_us <= FAR_US => Distance::Near,
            Distance::Near => Distance::Receding { since_ms: now_ms },
            Distance::Receding { since_ms } => Distance::Receding { since_ms },
        };
    }

    fn median_us(&self) -> Option<u32> {
        if self.round_trips_us.len() < MIN_SAMPLES {
            return None;
        }
        let mut sorted = [0; SAMPLES];
        let count = self.round_trips_us.len().min(SAMPLES);
        let sorted = &mut sorted[..count];
        for (slot, round_trip_us) in sorted.iter_mut().zip(&self.round_trips_us) {
            *slot = *round_trip_us;
        }
        sorted.sort_unstable();
        sorted.get(count / 2).copied()
    }

    fn is_near(&self) -> bool {
        matches!(self.distance, Distance::Near | Distance::Receding { .. })
    }

    /// True if others may join its zone because of it.
    fn is_anchor(&self) -> bool {
        match &self.zone {
            Some(zone) => zone.origin == ZoneOrigin::Configured || zone.name == self.name,
            None => false,
        }
    }

    fn is_configured(&self) -> bool {
        self.zone.as_ref().is_some_and(|zone| zone.origin == ZoneOrigin::Configured)
    }

    fn is_in(&self, zone: &str) -> bool {
        self.zone.as_ref().is_some_and(|own| own.name == zone)
    }
}
