//! The switches of all zones and the trunks between them, without I/O: packets in, packets and times out.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv4Addr;
use std::time::Instant;

use crate::link::Pipe;

/// Packets under way at a time; more are dropped.
const MAX_UNDER_WAY: usize = 1 << 18;
/// Buffers that are kept for reuse.
const MAX_SPARE: usize = 1 << 12;

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// From a host to the switch of its zone.
    Up(usize),
    /// From the switch to the host.
    Down(usize),
    /// Between the switches of two zones.
    Trunk { from: usize, to: usize },
}

/// A packet under way, ordered by its arrival and then by its entry.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    at: Instant,
    number: u64,
    way: Way,
    packet: Vec<u8>,
}

pub(crate) struct Switch {
    /// The zone of each host.
    zones: Vec<usize>,
    zone_count: usize,
    hosts: HashMap<Ipv4Addr, usize>,
    /// By `index`.
    pipes: Vec<Pipe>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    number: u64,
    spare: Vec<Vec<u8>>,
}

impl Switch {
    /// `hosts` have an address and a zone below `zone_count`.
    pub(crate) fn new(hosts: &[(Ipv4Addr, usize)], zone_count: usize, seed: u64) -> Self {
        let pipe_count = (hosts.len() * 2 + zone_count * zone_count) as u64;
        Self {
            zones: hosts.iter().map(|(_, zone)| *zone).collect(),
            zone_count,
            hosts: hosts.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect(),
            pipes: (0..pipe_count).map(|number| Pipe::new(seed.wrapping_add(number))).collect(),
            under_way: BinaryHeap::new(),
            number: 0,
            spare: Vec::new(),
        }
    }

    pub(crate) fn pipe(&mut self, way: Way) -> &mut Pipe {
        let index = match way {
            Way::Up(host) => host * 2,
            Way::Down(host) => host * 2 + 1,
            Way::Trunk { from, to } => self.zones.len() * 2 + from * self.zone_count + to,
        };
        &mut self.pipes[index]
    }

    /// A buffer of `bytes` for a packet.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }

    /// Takes an IP packet that a host sent at `now`.
    pub(crate) fn accept(&mut self, host: usize, packet: Vec<u8>, now: Instant) {
        self.enter(Way::Up(host), packet, now);
    }

    /// When `deliver` has something to do.
    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(first)| first.at)
    }

    /// Moves packets on until `now`; gives those that have reached a host, in their order.
    pub(crate) fn deliver(&mut self, now: Instant, delivered: &mut Vec<(usize, Vec<u8>)>) {
        while self.next_arrival().is_some_and(|at| at <= now)
            && let Some(Reverse(UnderWay { at, way, packet, .. })) = self.under_way.pop()
        {
            if !self.pipe(way).leave(packet.len()) {
                self.give_back(packet);
                continue;
            }
            // A packet enters its next link when it has left the last one, however late this thread is.
            match way {
                Way::Down(host) => delivered.push((host, packet)),
                Way::Up(host) => self.forward(Some(host), self.zones[host], packet, at),
                Way::Trunk { to, .. } => self.forward(None, to, packet, at),
            }
        }
    }

    /// What the switch of `zone` does with a packet; of one of its hosts, or of a trunk.
    fn forward(&mut self, sender: Option<usize>, zone: usize, packet: Vec<u8>, now: Instant) {
        let Some(to) = destination(&packet) else { return self.give_back(packet) };
        if let Some(host) = self.hosts.get(&to).copied() {
            let way = match self.zones[host] {
                own if own == zone => Way::Down(host),
                other => Way::Trunk { from: zone, to: other },
            };
            return self.enter(way, packet, now);
        }
        // Multicast and broadcast stay in their zone, as on a local network.
        if to.is_multicast() || to.is_broadcast() {
            for host in 0..self.zones.len() {
                if self.zones[host] == zone && Some(host) != sender {
                    self.enter(Way::Down(host), packet.clone(), now);
                }
            }
        }
        self.give_back(packet);
    }

    fn enter(&mut self, way: Way, packet: Vec<u8>, now: Instant) {
        let Some(at) = self.pipe(way).enter(packet.len(), now) else { return self.give_back(packet) };
        if self.under_way.len() == MAX_UNDER_WAY {
            self.pipe(way).traffic.overflowed += 1;
            return self.give_back(packet);
        }
        self.number += 1;
        self.under_way.push(Reverse(UnderWay { at, number: self.number, way, packet }));
    }
}

/// The destination in the head of an IPv4 packet.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let head: &[u8; 20] = packet.first_chunk()?;
    let [.., a, b, c, d] = *head;
    (head[0] >> 4 == 4).then_some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Conditions;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, last)
    }

    fn packet_to(to: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0; 100];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&to.octets());
        packet
    }

    /// Hosts 0 and 1 in one zone, host 2 in another.
    fn switch() -> Switch {
        Switch::new(&[(address(1), 0), (address(2), 0), (address(3), 1)], 2, 1)
    }

    fn reached(switch: &mut Switch, now: Instant) -> Vec<usize> {
        let mut delivered = Vec::new();
        switch.deliver(now, &mut delivered);
        delivered.into_iter().map(|(host, _)| host).collect()
    }

    #[test]
    fn only_what_goes_to_another_zone_takes_the_trunk() {
        let (mut switch, now) = (switch(), Instant::now());
        let delay = Duration::from_millis(41);
        switch.pipe(Way::Trunk { from: 0, to: 1 }).conditions = Conditions::delayed(delay);
        for to in [address(2), address(3), address(9)] {
            switch.accept(0, packet_to(to), now);
        }
        assert_eq!(reached(&mut switch, now), [1]);
        assert_eq!(switch.next_arrival(), Some(now + delay));
        assert_eq!(reached(&mut switch, now + delay), [2]);
        assert_eq!(switch.next_arrival(), None);
        let bytes = |switch: &mut Switch, way| switch.pipe(way).traffic.bytes;
        assert_eq!(bytes(&mut switch, Way::Up(0)), 300);
        assert_eq!(bytes(&mut switch, Way::Trunk { from: 0, to: 1 }), 100);
        assert_eq!(bytes(&mut switch, Way::Trunk { from: 1, to: 0 }), 0);
        assert_eq!(bytes(&mut switch, Way::Down(2)), 100);
    }

    #[test]
    fn multicast_stays_in_its_zone() {
        let (mut switch, now) = (switch(), Instant::now());
        switch.accept(0, packet_to(Ipv4Addr::new(224, 0, 0, 251)), now);
        assert_eq!(reached(&mut switch, now), [1]);
    }

    #[test]
    fn packets_of_one_way_keep_their_order() {
        let (mut switch, now) = (switch(), Instant::now());
        for number in 0..100 {
            let mut packet = packet_to(address(2));
            packet[99] = number;
            switch.accept(0, packet, now);
        }
        let mut delivered = Vec::new();
        switch.deliver(now, &mut delivered);
        let numbers: Vec<_> = delivered.iter().map(|(_, packet)| packet[99]).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_bad_packet_is_dropped() {
        let (mut switch, now) = (switch(), Instant::now());
        for packet in [vec![], vec![0x45; 19], vec![0x60; 100]] {
            switch.accept(0, packet, now);
        }
        assert!(reached(&mut switch, now).is_empty());
    }
}
