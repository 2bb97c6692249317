//! The network of zones: delay, jitter, loss, and rates of nodes and zones.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::simulation::Random;

/// Time after which a lost packet is sent again, beside the round trip: the minimum of TCP on Linux.
const RESEND_US: u64 = 200_000;

/// Properties of the simulated zones. Rates hold in each direction.
#[derive(Debug, Clone)]
pub struct ZoneNetwork {
    /// Round trip in a zone.
    pub near: Duration,
    /// Round trip between zones.
    pub far: Duration,
    /// The share of the delay by which a packet may be late.
    pub jitter: f64,
    /// The share of packets that are lost. The transport sends them again, and holds up those behind them.
    pub loss: f64,
    /// Rate of a node's link, in bytes per second.
    pub node_bytes_per_second: u64,
    /// Rate of a zone's link to the others, in bytes per second.
    pub zone_bytes_per_second: u64,
}

impl Default for ZoneNetwork {
    fn default() -> Self {
        Self {
            near: Duration::from_millis(1),
            far: Duration::from_millis(80),
            jitter: 0.1,
            loss: 0.001,
            node_bytes_per_second: 12_500_000,
            zone_bytes_per_second: 125_000_000,
        }
    }
}

/// Links of nodes and zones, and which zones are cut off.
#[derive(Debug)]
pub(super) struct Zones {
    network: ZoneNetwork,
    /// The zone of each node.
    of_node: Vec<usize>,
    up: Vec<Link>,
    down: Vec<Link>,
    zone_up: Vec<Link>,
    zone_down: Vec<Link>,
    cut: BTreeSet<usize>,
}

/// One direction of a link.
#[derive(Debug, Default, Clone, Copy)]
struct Link {
    free_at_us: u64,
    bytes: u64,
}

impl Link {
    /// The time at which the last byte has passed.
    fn pass(&mut self, bytes: usize, rate: u64, now_us: u64) -> u64 {
        self.bytes += bytes as u64;
        self.free_at_us = self.free_at_us.max(now_us) + bytes as u64 * 1_000_000 / rate.max(1);
        self.free_at_us
    }
}

impl Zones {
    pub(super) fn new(network: ZoneNetwork, of_node: Vec<usize>) -> Self {
        let (nodes, zones) = (of_node.len(), of_node.iter().max().map_or(0, |last| last + 1));
        let links = |count| vec![Link::default(); count];
        let (up, down, zone_up, zone_down) = (links(nodes), links(nodes), links(zones), links(zones));
        Self { network, of_node, up, down, zone_up, zone_down, cut: BTreeSet::new() }
    }

    pub(super) fn zone(&self, node: usize) -> usize {
        self.of_node[node]
    }

    pub(super) fn cut(&mut self, zone: usize) {
        self.cut.insert(zone);
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(super) fn is_reachable(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.zone(a), self.zone(b));
        a == b || !(self.cut.contains(&a) || self.cut.contains(&b))
    }

    /// Round trip of two nodes without jitter, in microseconds.
    pub(super) fn round_trip_us(&self, a: usize, b: usize) -> u64 {
        let trip = if self.zone(a) == self.zone(b) { self.network.near } else { self.network.far };
        trip.as_micros() as u64
    }

    /// Sends a packet. Gives the time at which it has left the node, and the time at which it reaches the link of the
    /// receiver.
    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        bytes: usize,
        now_us: u64,
        random: &mut Random,
    ) -> (u64, u64) {
        let left_us = self.up[from].pass(bytes, self.network.node_bytes_per_second, now_us);
        let (from_zone, to_zone) = (self.zone(from), self.zone(to));
        let mut at_us = left_us;
        if from_zone != to_zone {
            let rate = self.network.zone_bytes_per_second;
            at_us = self.zone_up[from_zone].pass(bytes, rate, at_us);
            at_us = self.zone_down[to_zone].pass(bytes, rate, at_us);
        }
        let round_trip_us = self.round_trip_us(from, to);
        let late_us = (round_trip_us as f64 / 2.0 * self.network.jitter) as u64;
        at_us += round_trip_us / 2 + random.below(late_us + 1);
        while random.chance(self.network.loss) {
            at_us += RESEND_US + round_trip_us;
        }
        (left_us, at_us)
    }

    /// The time at which the receiver has the packet that has reached its link.
    pub(super) fn receive(&mut self, to: usize, bytes: usize, now_us: u64) -> u64 {
        self.down[to].pass(bytes, self.network.node_bytes_per_second, now_us)
    }

    /// Bytes that a zone has sent to the others, and received from them.
    pub(super) fn zone_bytes(&self, zone: usize) -> (u64, u64) {
        (self.zone_up[zone].bytes, self.zone_down[zone].bytes)
    }
}
