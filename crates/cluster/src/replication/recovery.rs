//! Recovery: the members whose objects of a new interest have not all come.
//!
//! An interest waits for each member by itself, until a whole round with that member is over. Interests that came at the
//! same time and wait for the same members are one wave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::replication::{Interest, NodeId};

/// The interests of this node, and what is missing of them.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    told: BTreeSet<Interest>,
    /// Each interest is in one wave at most; in none once everything is here.
    waves: Vec<Wave>,
}

/// What a wave knows of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// A member without a connection, which may come until this time.
    Until(Duration),
    /// A member that did not come. It counts as soon as it is connected.
    Absent,
    /// A member that is connected, or was since the interest came: its objects are missing until a round is over,
    /// however long it is away.
    Lacks,
    /// All that it had is here.
    Complete,
}

#[derive(Debug)]
struct Wave {
    since: Duration,
    /// The version of the local interests that the wave came with.
    version: u32,
    interests: BTreeSet<Interest>,
    members: BTreeMap<NodeId, Wait>,
    reported: Option<Vec<NodeId>>,
}

/// A change: interests, and the members whose objects are missing now.
pub(super) type Report = (Vec<Interest>, Vec<NodeId>);

impl Wave {
    fn lacks(&self) -> Vec<NodeId> {
        let counts =
            |(node, wait): (&NodeId, &Wait)| matches!(wait, Wait::Until(_) | Wait::Lacks).then_some(*node);
        self.members.iter().filter_map(counts).collect()
    }

    fn is_over(&self) -> bool {
        self.members.values().all(|wait| *wait == Wait::Complete)
    }
}

impl Recovery {
    /// Replaces the interests. Those that are new wait for `members`.
    pub(super) fn set_interests(
        &mut self,
        told: BTreeSet<Interest>,
        version: u32,
        now: Duration,
        members: impl FnOnce() -> BTreeMap<NodeId, Wait>,
    ) {
        for wave in &mut self.waves {
            wave.interests.retain(|interest| told.contains(interest));
        }
        let new: BTreeSet<Interest> = told.difference(&self.told).cloned().collect();
        if !new.is_empty() {
            let members = members();
            self.waves.push(Wave { since: now, version, interests: new, members, reported: None });
        }
        self.told = told;
    }

    /// A member is connected. One that was not known when an interest came counts for `grace` after it.
    pub(super) fn connected(&mut self, node: NodeId, now: Duration, grace: Duration) {
        for wave in &mut self.waves {
            let is_early = now < wave.since + grace;
            match wave.members.get_mut(&node) {
                Some(Wait::Complete) => {}
                Some(wait) => *wait = Wait::Lacks,
                None if is_early => drop(wave.members.insert(node, Wait::Lacks)),
                None => {}
            }
        }
    }

    /// Replaces the members: who left is not waited for, who is known only now may come within `grace` after an interest.
    pub(super) fn set_members(&mut self, members: &BTreeSet<NodeId>, now: Duration, grace: Duration) {
        for wave in &mut self.waves {
            wave.members.retain(|node, _| members.contains(node));
            let end = wave.since + grace;
            if now < end {
                for node in members {
                    wave.members.entry(*node).or_insert(Wait::Until(end));
                }
            }
        }
    }

    /// A whole round with a member is over, which took note of the interests of this version.
    pub(super) fn complete(&mut self, node: NodeId, version: u32) {
        for wave in self.waves.iter_mut().filter(|wave| wave.version <= version) {
            if let Some(wait) = wave.members.get_mut(&node) {
                *wait = Wait::Complete;
            }
        }
    }

    /// What a member has sent is lost: its objects are missing again, of all interests.
    pub(super) fn lost(&mut self, node: NodeId, version: u32, now: Duration) {
        let mut others = self.told.clone();
        for wave in &mut self.waves {
            wave.members.insert(node, Wait::Lacks);
            for interest in &wave.interests {
                others.remove(interest);
            }
        }
        if !others.is_empty() {
            let members = BTreeMap::from([(node, Wait::Lacks)]);
            self.waves.push(Wave { since: now, version, interests: others, members, reported: None });
        }
    }

    /// Lets time pass, and returns what has changed.
    pub(super) fn advance(&mut self, now: Duration, grace: Duration) -> Vec<Report> {
        let mut reports = Vec::new();
        if self.waves.is_empty() {
            return reports;
        }
        for wave in &mut self.waves {
            for wait in wave.members.values_mut() {
                if matches!(wait, Wait::Until(end) if now >= *end) {
                    *wait = Wait::Absent;
                }
            }
            let lacks = wave.lacks();
            if wave.reported.as_ref() != Some(&lacks) {
                reports.push((wave.interests.iter().cloned().collect(), lacks.clone()));
                wave.reported = Some(lacks);
            }
        }
        // A wave is kept a little longer: a member may become known that it has to wait for.
        self.waves.retain(|wave| {
            !(wave.interests.is_empty() || wave.is_over() && now >= wave.since.saturating_add(grace))
        });
        self.unite();
        reports
    }

    /// The next time at which [`advance`](Self::advance) has something to report without an event.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let waits = self.waves.iter().flat_map(|wave| wave.members.values());
        waits.filter_map(|wait| if let Wait::Until(end) = wait { Some(*end) } else { None }).min()
    }

    /// Makes one wave of those that wait for the same: with a member that never comes back, each deploy would leave one.
    fn unite(&mut self) {
        let mut at = 1;
        while at < self.waves.len() {
            let (before, rest) = self.waves.split_at_mut(at);
            let same = before.iter_mut().find(|wave| wave.members == rest[0].members);
            match same {
                Some(wave) => {
                    wave.interests.append(&mut rest[0].interests);
                    wave.version = wave.version.max(rest[0].version);
                    wave.since = wave.since.max(rest[0].since);
                    self.waves.remove(at);
                }
                None => at += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    fn told(patterns: &[&str]) -> BTreeSet<Interest> {
        let interest = |pattern: &&str| Interest { app: "app".into(), pattern: (*pattern).to_owned() };
        patterns.iter().map(interest).collect()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The members that each interest lacks, as the reports say.
    #[derive(Default)]
    struct Seen(BTreeMap<String, Vec<u64>>);

    impl Seen {
        fn advance(&mut self, recovery: &mut Recovery, now: Duration) -> &BTreeMap<String, Vec<u64>> {
            for (interests, lacks) in recovery.advance(now, GRACE) {
                for interest in interests {
                    self.0.insert(interest.pattern, lacks.iter().map(|node| node.0).collect());
                }
            }
            &self.0
        }
    }

    fn waits(members: &[(u64, Wait)]) -> BTreeMap<NodeId, Wait> {
        members.iter().map(|(node, wait)| (NodeId(*node), *wait)).collect()
    }

    #[test]
    fn a_member_that_drops_is_waited_for_and_one_that_never_came_is_not() {
        let (mut recovery, mut seen) = (Recovery::default(), Seen::default());
        let members = || waits(&[(2, Wait::Lacks), (3, Wait::Until(at(2)))]);
        recovery.set_interests(told(&["x"]), 1, at(0), members);
        assert_eq!(seen.advance(&mut recovery, at(0))["x"], [2, 3]);
        assert_eq!(recovery.next_deadline(), Some(at(2)));
        // The second one drops here; nothing says so to the recovery.
        assert_eq!(seen.advance(&mut recovery, at(100))["x"], [2]);
        recovery.connected(NodeId(3), at(101), GRACE);
        assert_eq!(seen.advance(&mut recovery, at(101))["x"], [2, 3]);
        recovery.complete(NodeId(3), 1);
        recovery.complete(NodeId(2), 0);
        assert_eq!(seen.advance(&mut recovery, at(102))["x"], [2]);
        recovery.complete(NodeId(2), 1);
        assert_eq!(seen.advance(&mut recovery, at(103))["x"], [0; 0]);
        assert!(recovery.waves.is_empty());
        // It was complete once: a later absence is a matter of rounds.
        recovery.connected(NodeId(2), at(104), GRACE);
        assert!(recovery.advance(at(104), GRACE).is_empty());
        recovery.lost(NodeId(2), 1, at(105));
        assert_eq!(seen.advance(&mut recovery, at(105))["x"], [2]);
    }

    #[test]
    fn members_that_become_known_a_moment_later_count_and_those_that_leave_do_not() {
        let (mut recovery, mut seen) = (Recovery::default(), Seen::default());
        recovery.set_interests(told(&["x"]), 1, at(10), || waits(&[(2, Wait::Lacks)]));
        recovery.complete(NodeId(2), 1);
        assert_eq!(seen.advance(&mut recovery, at(10))["x"], [0; 0]);
        recovery.set_members(&[NodeId(2), NodeId(3)].into(), at(11), GRACE);
        assert_eq!(seen.advance(&mut recovery, at(11))["x"], [3]);
        recovery.connected(NodeId(3), at(11), GRACE);
        recovery.set_members(&[NodeId(2), NodeId(3), NodeId(4)].into(), at(13), GRACE);
        assert_eq!(seen.advance(&mut recovery, at(13))["x"], [3]);
        recovery.set_members(&[NodeId(2)].into(), at(14), GRACE);
        assert_eq!(seen.advance(&mut recovery, at(14))["x"], [0; 0]);
    }

    #[test]
    fn deploys_beside_a_dead_member_do_not_add_up() {
        let mut recovery = Recovery::default();
        let mut patterns = Vec::new();
        for i in 0..100_u32 {
            patterns.push(format!("x{i}"));
            let all: Vec<&str> = patterns.iter().map(String::as_str).collect();
            let now = at(u64::from(i) * 10);
            let members = || waits(&[(2, Wait::Lacks), (3, Wait::Absent)]);
            recovery.set_interests(told(&all), i + 1, now, members);
            recovery.complete(NodeId(2), i + 1);
            recovery.advance(now, GRACE);
        }
        assert_eq!(recovery.waves.len(), 1);
        recovery.connected(NodeId(3), at(5000), GRACE);
        let reports = recovery.advance(at(5000), GRACE);
        assert_eq!(reports.iter().map(|(interests, _)| interests.len()).sum::<usize>(), 100);
    }
}
