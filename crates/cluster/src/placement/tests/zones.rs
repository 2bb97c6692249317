//! Zones from round trips: single nodes by hand, and many that decide at the same time.

use proptest::prelude::*;

use crate::placement::zone::{
    AWAY_MS, LEAVE_MS, MemberZone, SETTLE_MS, ZoneDetector, ZoneEvent, ZoneOrigin,
};
use crate::replication::mix;

struct One {
    detector: ZoneDetector,
    now_ms: u64,
}

impl One {
    fn new(node_id: u64) -> Self {
        Self { detector: ZoneDetector::new(node_id, format!("n{node_id}"), 0), now_ms: 0 }
    }

    fn sees(&mut self, node_id: u64, zone: Option<(&str, ZoneOrigin)>) {
        let zone = zone.map(|(name, origin)| MemberZone { name: name.into(), origin });
        self.detector.handle(ZoneEvent::Member { node_id, name: format!("n{node_id}"), zone }, self.now_ms);
    }

    fn measures(&mut self, node_id: u64, rtt_us: u32) {
        for _ in 0..9 {
            self.detector.handle(ZoneEvent::RoundTrip { node_id, rtt_us }, self.now_ms);
        }
        self.detector.handle(ZoneEvent::Tick, self.now_ms);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.detector.handle(ZoneEvent::Tick, self.now_ms);
    }

    fn zone(&self) -> Option<&str> {
        self.detector.zone()
    }
}

#[test]
fn a_node_alone_gives_the_zone_its_name() {
    let mut one = One::new(5);
    assert_eq!(one.zone(), None);
    one.wait(SETTLE_MS - 1);
    assert_eq!(one.zone(), None);
    one.wait(1);
    assert_eq!(one.zone(), Some("n5"));
}

#[test]
fn the_lowest_of_those_that_are_undecided_decides_first() {
    let mut one = One::new(5);
    one.sees(3, None);
    one.measures(3, 400);
    one.wait(SETTLE_MS);
    assert_eq!(one.zone(), None, "3 decides first");
    one.sees(3, Some(("n3", ZoneOrigin::Measured)));
    assert_eq!(one.zone(), Some("n3"));
    let mut far = One::new(5);
    far.sees(3, None);
    far.measures(3, 5_001);
    far.wait(SETTLE_MS);
    assert_eq!(far.zone(), Some("n5"));
}

#[test]
fn a_member_that_has_only_joined_is_no_anchor() {
    let mut one = One::new(5);
    one.sees(3, Some(("n1", ZoneOrigin::Measured)));
    one.measures(3, 400);
    one.wait(SETTLE_MS);
    assert_eq!(one.zone(), Some("n5"));
}

#[test]
fn a_configured_zone_comes_first() {
    let mut one = One::new(5);
    one.sees(3, Some(("n3", ZoneOrigin::Measured)));
    one.measures(3, 100);
    assert_eq!(one.zone(), Some("n3"));
    one.sees(9, Some(("hall", ZoneOrigin::Configured)));
    one.measures(9, 4_000);
    assert_eq!(one.zone(), Some("hall"));
    one.sees(8, Some(("yard", ZoneOrigin::Configured)));
    one.measures(8, 100);
    assert_eq!(one.zone(), Some("hall"), "it is kept while it is near");
}

#[test]
fn of_two_anchors_the_higher_gives_up() {
    let mut one = One::new(5);
    one.wait(SETTLE_MS);
    one.sees(7, Some(("n7", ZoneOrigin::Measured)));
    one.measures(7, 100);
    assert_eq!(one.zone(), Some("n5"));
    one.sees(3, Some(("n3", ZoneOrigin::Measured)));
    one.measures(3, 100);
    assert_eq!(one.zone(), Some("n3"));
    one.sees(2, Some(("n2", ZoneOrigin::Measured)));
    one.measures(2, 100);
    assert_eq!(one.zone(), Some("n3"), "the least change");
}

#[test]
fn a_zone_is_left_only_after_a_while() {
    let joined = || {
        let mut one = One::new(5);
        one.sees(3, Some(("n3", ZoneOrigin::Measured)));
        one.measures(3, 4_900);
        assert_eq!(one.zone(), Some("n3"));
        one
    };
    let mut between = joined();
    between.measures(3, 8_000);
    between.wait(10 * LEAVE_MS);
    assert_eq!(between.zone(), Some("n3"));
    let mut far = joined();
    far.measures(3, 8_001);
    far.wait(LEAVE_MS - 1);
    assert_eq!(far.zone(), Some("n3"));
    far.wait(1);
    assert_eq!(far.zone(), None);
    far.wait(SETTLE_MS);
    assert_eq!(far.zone(), Some("n5"));
    let mut spikes = joined();
    for _ in 0..100 {
        spikes.measures(3, 20_000);
        spikes.wait(LEAVE_MS / 2);
        spikes.measures(3, 7_000);
    }
    assert_eq!(spikes.zone(), Some("n3"));
}

#[test]
fn an_anchor_that_restarts_keeps_its_zone() {
    let mut one = One::new(5);
    one.sees(3, Some(("n3", ZoneOrigin::Measured)));
    one.measures(3, 500);
    one.detector.handle(ZoneEvent::Down { node_id: 3 }, one.now_ms);
    one.wait(AWAY_MS - 1);
    assert_eq!(one.zone(), Some("n3"));
    one.sees(3, None);
    one.wait(SETTLE_MS);
    one.sees(3, Some(("n3", ZoneOrigin::Measured)));
    assert_eq!(one.zone(), Some("n3"));
    one.detector.handle(ZoneEvent::Down { node_id: 3 }, one.now_ms);
    one.wait(AWAY_MS);
    assert_eq!(one.zone(), None);
    one.wait(SETTLE_MS);
    assert_eq!(one.zone(), Some("n5"));
    one.sees(3, None);
    one.measures(3, 500);
    assert_eq!(one.zone(), Some("n5"), "the one that returns joins");
}

/// Many nodes on a line: the round trip of two is their distance with up to 5 % of noise. Each learns the zones of
/// the others a second later.
struct Line {
    seed: u64,
    places_us: Vec<u32>,
    configured: Vec<Option<String>>,
    nodes: Vec<Option<ZoneDetector>>,
    now_ms: u64,
    changes: usize,
}

impl Line {
    fn new(seed: u64, places_us: Vec<u32>, configured: Vec<Option<String>>) -> Self {
        let nodes = places_us.iter().map(|_| None).collect();
        let mut line = Self { seed, places_us, configured, nodes, now_ms: 0, changes: 0 };
        (0..line.nodes.len()).for_each(|node| line.start(node));
        line
    }

    fn start(&mut self, node: usize) {
        self.nodes[node] = Some(ZoneDetector::new(node as u64, format!("n{node}"), self.now_ms));
    }

    fn stop(&mut self, node: usize) {
        self.nodes[node] = None;
        for other in self.nodes.iter_mut().flatten() {
            other.handle(ZoneEvent::Down { node_id: node as u64 }, self.now_ms);
        }
    }

    fn zone(&self, node: usize) -> Option<MemberZone> {
        let detector = self.nodes[node].as_ref()?;
        match &self.configured[node] {
            Some(name) => Some(MemberZone { name: name.clone(), origin: ZoneOrigin::Configured }),
            None => Some(MemberZone { name: detector.zone()?.to_owned(), origin: ZoneOrigin::Measured }),
        }
    }

    fn second(&mut self) {
        self.now_ms += 1_000;
        let zones: Vec<Option<MemberZone>> = (0..self.nodes.len()).map(|node| self.zone(node)).collect();
        let up: Vec<bool> = self.nodes.iter().map(Option::is_some).collect();
        for node in 0..self.nodes.len() {
            let Some(detector) = &mut self.nodes[node] else { continue };
            let before = detector.zone().map(str::to_owned);
            for other in (0..zones.len()).filter(|other| *other != node && up[*other]) {
                let name = format!("n{other}");
                let event = ZoneEvent::Member { node_id: other as u64, name, zone: zones[other].clone() };
                detector.handle(event, self.now_ms);
                let distance_us = self.places_us[node].abs_diff(self.places_us[other]) + 100;
                self.seed = mix(self.seed);
                let noise_us = (self.seed % 5) as u32 * distance_us / 100;
                let event = ZoneEvent::RoundTrip { node_id: other as u64, rtt_us: distance_us + noise_us };
                detector.handle(event, self.now_ms);
            }
            detector.handle(ZoneEvent::Tick, self.now_ms);
            self.changes +=
                usize::from(self.configured[node].is_none() && detector.zone() != before.as_deref());
        }
    }

    fn run(&mut self, seconds: usize) {
        (0..seconds).for_each(|_| self.second());
    }

    fn names(&self) -> Vec<Option<String>> {
        (0..self.nodes.len()).map(|node| self.zone(node).map(|zone| zone.name)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn members_of_a_site_agree_and_do_not_change(
        seed: u64,
        sites in proptest::collection::vec((0..4_u32, 0..3_000_u32), 1..12),
    ) {
        // Sites are 40 ms apart and 3 ms wide.
        let places = sites.iter().map(|(site, within)| site * 40_000 + within).collect();
        let mut line = Line::new(seed, places, vec![None; sites.len()]);
        line.run(60);
        let names = line.names();
        for (node, (site, _)) in sites.iter().enumerate() {
            let lowest = sites.iter().position(|(other, _)| other == site).unwrap();
            prop_assert_eq!(names[node].clone(), Some(format!("n{lowest}")));
        }
        prop_assert_eq!(line.changes, sites.len(), "each has decided once");
        // A restart of any node for a minute changes no zone of another.
        let restarted = (seed % sites.len() as u64) as usize;
        line.stop(restarted);
        line.run(60);
        line.start(restarted);
        line.run(60);
        prop_assert_eq!(line.names(), names);
        prop_assert_eq!(line.changes, sites.len() + 1);
    }

    #[test]
    fn nodes_anywhere_come_to_rest_beside_their_anchor(
        seed: u64,
        nodes in proptest::collection::vec((0..25_u32, prop::bool::weighted(0.15)), 1..12),
    ) {
        // Distances are whole milliseconds, so that the noise takes no pair over the limit after minutes.
        let places: Vec<u32> = nodes.iter().map(|(place, _)| *place * 1_000).collect();
        let configured: Vec<Option<String>> =
            nodes.iter().enumerate().map(|(node, (_, is))| is.then(|| format!("zone{}", node % 2))).collect();
        let mut line = Line::new(seed, places.clone(), configured.clone());
        line.run(200);
        let (names, changes) = (line.names(), line.changes);
        line.run(200);
        prop_assert_eq!(line.changes, changes, "no change after that");
        prop_assert_eq!(line.names(), names.clone());
        for node in 0..nodes.len() {
            let zone = names[node].clone().expect("it has decided");
            let supports = |other: usize| {
                let is_anchor = match &configured[other] {
                    Some(name) => *name == zone,
                    None => names[other].as_ref() == Some(&zone) && zone == format!("n{other}"),
                };
                // 8 ms by the median, of which noise and the constant part are taken off.
                is_anchor && (other == node || places[node].abs_diff(places[other]) <= 8_000)
            };
            prop_assert!((0..nodes.len()).any(supports), "{node} in {zone}: {names:?}");
        }
    }
}
