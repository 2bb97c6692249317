//! Members that die and return around occurrences, with the delays of the real cluster.

use proptest::prelude::*;

use super::*;

/// Time between two updates of a member's view.
const UPDATE_MS: u64 = 100;
/// A load is sent at most each second.
const LOAD_MS: u64 = 1_000;
const DUE_MS: u64 = 20_000;
const END_MS: u64 = DUE_MS + 15_000;

/// A member of the simulation.
struct Node {
    occurrences: Occurrences,
    /// It is dead from the first to the second time; started anew at the second.
    dead: Option<(u64, u64)>,
    /// Its clock is ahead by this time.
    ahead_ms: u64,
    /// Its announcements that it has sent.
    sent: Vec<u64>,
    sent_at_ms: u64,
    is_done: bool,
    fired: usize,
}

impl Node {
    fn is_dead(&self, now_ms: u64) -> bool {
        self.dead.is_some_and(|(from, to)| (from..to).contains(&now_ms))
    }

    /// Members learn of a start after the node has planned its schedules.
    fn incarnation(&self, now_ms: u64) -> u32 {
        self.dead.map_or(1, |(_, to)| if now_ms >= to + 2 * UPDATE_MS { 2 } else { 1 })
    }
}

/// The number of times that an occurrence fires, on members that are alive.
fn run(deaths: &[Option<(u64, u64)>], ahead_ms: &[u64], detection_ms: u64) -> usize {
    let mut nodes: Vec<Node> = deaths
        .iter()
        .zip(ahead_ms)
        .map(|(dead, ahead_ms)| Node {
            occurrences: Occurrences::default(),
            dead: *dead,
            ahead_ms: *ahead_ms,
            sent: Vec::new(),
            sent_at_ms: 0,
            is_done: false,
            fired: 0,
        })
        .collect();
    for now_ms in (0..END_MS).step_by(UPDATE_MS as usize) {
        for node in &mut nodes {
            if node.dead.is_some_and(|(_, to)| to <= now_ms && now_ms < to + UPDATE_MS) {
                // What is due before the start is not fired by it.
                node.is_done = now_ms + node.ahead_ms >= DUE_MS;
                node.occurrences = Occurrences::default();
                node.sent.clear();
            }
            if !node.is_dead(now_ms) && now_ms >= node.sent_at_ms + LOAD_MS {
                (node.sent, node.sent_at_ms) = (node.occurrences.announced(), now_ms);
            }
        }
        let shown: Vec<(bool, u32, Vec<u64>)> = nodes
            .iter()
            .map(|node| {
                // A dead member is seen as it was until its silence is noticed.
                let is_noticed = node
                    .dead
                    .is_some_and(|(from, to)| (from + detection_ms..to + 2 * UPDATE_MS).contains(&now_ms));
                (!is_noticed, node.incarnation(now_ms), node.sent.clone())
            })
            .collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            if node.is_dead(now_ms) {
                continue;
            }
            let seen = shown.iter().enumerate().filter(|(other, _)| *other != at).map(
                |(other, (fires, incarnation, announced))| Seen {
                    node_id: other as u64,
                    incarnation: *incarnation,
                    fires: *fires,
                    announced,
                },
            );
            node.fired += node.occurrences.see(seen, now_ms).fire.len();
            if !node.is_done && now_ms + node.ahead_ms >= DUE_MS {
                node.is_done = true;
                let due = node.occurrences.due(OccurrenceId(1), 0..at as u64, 0, now_ms);
                node.fired += usize::from(due == Due::Fire);
            }
        }
    }
    nodes.iter().map(|node| node.fired).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn it_fires_once_if_all_live_around_it(
        ahead_ms in prop::collection::vec(0..5_000_u64, 1..8), detection_ms in 0..4_100_u64,
    ) {
        prop_assert_eq!(run(&vec![None; ahead_ms.len()], &ahead_ms, detection_ms), 1);
    }

    #[test]
    fn it_fires_if_one_lives(
        deaths in prop::collection::vec(
            prop::option::of((DUE_MS - 6_000..DUE_MS + 3_000, 500..20_000_u64)), 0..7,
        ),
        survivor in any::<prop::sample::Index>(), detection_ms in 0..4_100_u64,
    ) {
        let mut deaths: Vec<_> =
            deaths.into_iter().map(|death| death.map(|(from, time)| (from, from + time))).collect();
        deaths.insert(survivor.index(deaths.len() + 1), None);
        let fired = run(&deaths, &vec![0; deaths.len()], detection_ms);
        let dead = deaths.iter().flatten().count();
        prop_assert!(fired >= 1, "{deaths:?}");
        prop_assert!(fired <= 1 + dead, "{deaths:?}: {fired} times");
    }

    #[test]
    fn a_death_well_before_or_after_it_changes_nothing(
        before in 0..DUE_MS - 5_000, after in DUE_MS + 2_000..DUE_MS + 9_000, nodes in 3..8_usize,
        first in any::<prop::sample::Index>(), second in any::<prop::sample::Index>(),
    ) {
        let mut deaths = vec![None; nodes];
        deaths[first.index(nodes)] = Some((before, END_MS));
        deaths[second.index(nodes)] = Some((after, END_MS));
        prop_assert_eq!(run(&deaths, &vec![0; nodes], 4_000), 1, "{:?}", deaths);
    }
}
