//! Members to exchange a blob with: pure functions that all nodes evaluate alike.

use std::cmp::Reverse;

use super::{BlobDigest, Candidate, Role};
use crate::replication::{NodeId, mix};

/// Fetchers of the own zone that a fetcher opens.
const FETCHERS: usize = 8;
/// Holders that a fetcher opens, of the own zone or, if it may, of others.
const HOLDERS: usize = 3;
/// Fetchers of other zones that a node opens, if it may.
const FAR_FETCHERS: usize = 2;
/// Fetchers of a zone that fetch from other zones.
pub(super) const GATEWAYS: usize = 2;
/// Fetchers of a zone that fetch from one holder directly.
const DIRECT: usize = 48;

/// The place of this node among the fetchers of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of fetchers of the zone, and of those that are about to fetch, with a greater rendezvous weight.
    pub(super) rank: usize,
    /// Number of fetchers of the zone that fetch from other zones.
    pub(super) gateways: usize,
}

/// The place of `me` (Thaler, Ravishankar: Using Name-Based Mappings to Increase Hit Rates, 1998).
pub(super) fn place(blob: &BlobDigest, me: NodeId, zone: &str, candidates: &[Candidate]) -> Place {
    let mine = (weight(blob, me, 0), me);
    let (mut rank, mut fetchers) = (0, 1);
    let is_counted =
        |other: &&Candidate| other.role != Role::Holds && other.node != me && *other.zone == *zone;
    for other in candidates.iter().filter(is_counted) {
        fetchers += 1;
        rank += usize::from((weight(blob, other.node, 0), other.node) > mine);
    }
    Place { rank, gateways: fetchers.min(GATEWAYS) }
}

/// How far a fetcher reaches now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reach {
    /// It may fetch from other zones.
    pub(super) crosses: bool,
    /// It has made no progress for some time: it opens holders whatever its place.
    pub(super) is_stalled: bool,
}

/// The members to open, the nearest first.
pub(super) fn choose(
    blob: &BlobDigest,
    me: NodeId,
    zone: &str,
    candidates: &[&Candidate],
    reach: Reach,
) -> Vec<NodeId> {
    let select = |is_wanted: &dyn Fn(&Candidate) -> bool, count: usize| {
        let mut found: Vec<_> = candidates
            .iter()
            .filter(|other| other.node != me && is_wanted(other))
            .map(|other| (Reverse(weight(blob, me, pair(other.node))), other.node))
            .collect();
        found.sort_unstable();
        found.truncate(count);
        found.into_iter().map(|(_, node)| node).collect::<Vec<_>>()
    };
    let serves_directly = |holder: &Candidate| {
        reach.is_stalled || {
            let mine = (weight(blob, me, pair(holder.node)), me);
            let before = candidates.iter().filter(|other| {
                is_near_fetcher(other, me, zone)
                    && (weight(blob, other.node, pair(holder.node)), other.node) > mine
            });
            before.take(DIRECT).count() < DIRECT
        }
    };
    let is_near = |other: &Candidate| *other.zone == *zone;
    let mut chosen = select(&|other| is_near_fetcher(other, me, zone), FETCHERS);
    chosen.extend(select(
        &|other| other.role == Role::Holds && is_near(other) && serves_directly(other),
        HOLDERS,
    ));
    if reach.crosses {
        chosen.extend(select(&|other| other.role == Role::Holds && !is_near(other), HOLDERS));
        chosen.extend(select(&|other| other.role == Role::Fetches && !is_near(other), FAR_FETCHERS));
    }
    chosen
}

fn is_near_fetcher(other: &Candidate, me: NodeId, zone: &str) -> bool {
    other.role == Role::Fetches && other.node != me && *other.zone == *zone
}

fn pair(node: NodeId) -> u64 {
    mix(node.0 ^ 0x6a09_e667_f3bc_c909)
}

fn weight(blob: &BlobDigest, node: NodeId, salt: u64) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = blob.0;
    mix(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ mix(node.0 ^ salt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(count: u64) -> Vec<Candidate> {
        (0..count)
            .map(|node| Candidate {
                node: NodeId(node),
                zone: if node % 2 == 0 { "a" } else { "b" }.into(),
                role: if node < 2 { Role::Holds } else { Role::Fetches },
            })
            .collect()
    }

    #[test]
    fn two_of_a_zone_cross_and_few_open_a_holder() {
        let all = candidates(1000);
        let known: Vec<&Candidate> = all.iter().collect();
        let blob = BlobDigest([7; 32]);
        let reach = Reach { crosses: false, is_stalled: false };
        let fetchers = || all.iter().filter(|one| one.role == Role::Fetches);
        for zone in ["a", "b"] {
            let of_zone = || fetchers().filter(|one| *one.zone == *zone);
            let places = of_zone().map(|one| place(&blob, one.node, zone, &all));
            assert_eq!(places.filter(|place| place.rank < place.gateways).count(), 2);
            let opened: Vec<_> =
                of_zone().map(|one| choose(&blob, one.node, zone, &known, reach)).collect();
            assert!(opened.iter().all(|opened| opened.len() <= FETCHERS + HOLDERS));
            let holder = NodeId(u64::from(zone == "b"));
            assert_eq!(opened.iter().filter(|opened| opened.contains(&holder)).count(), DIRECT);
            let far = NodeId(u64::from(zone == "a"));
            assert!(opened.iter().all(|opened| !opened.contains(&far)));
            let mut times = std::collections::BTreeMap::<NodeId, usize>::new();
            opened.iter().flatten().for_each(|node| *times.entry(*node).or_default() += 1);
            assert!(times.values().all(|times| *times <= DIRECT), "{:?}", times.values().max());
        }
    }
}
