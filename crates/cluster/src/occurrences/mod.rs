//! Occurrences of schedules: which member fires one if the member that should has died.
//!
//! Each member ranks the connected members for an occurrence when it is due. The first fires, and announces it with its load.
//! The others note the occurrence for [`GRACE_MS`]: one fires it late if it sees that each member before it is lost (away,
//! started anew, or draining) and none has announced it. There is no quorum and no clock in common:
//!
//! - Members that see the same members fire an occurrence once.
//! - If members die around an occurrence, one that is left fires it, as soon as it sees that. It fires twice if a member dies after
//!   it has fired, but before its announcement arrives; that takes up to a second.
//! - On both sides of a network partition it fires at least once.
//! - A member that stood still when an occurrence was due comes late: others may have counted it as lost and fired. It listens to
//!   their announcements for [`LISTEN_MS`] before it fires.

#[cfg(test)]
mod simulation;

use std::collections::{HashMap, HashSet, VecDeque};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Time for which an occurrence is noted: a member that is silent counts as away after 4 s.
pub const GRACE_MS: u64 = 10_000;
/// A member that comes to an occurrence so much later than it was due has stood still.
pub const LATE_MS: u64 = 1_000;
/// Time for which a late member listens: connections return within a second or two, and announcements come each second.
pub const LISTEN_MS: u64 = 4_000;
/// Maximum number of occurrences that a load announces: the last ones.
pub const MAX_ANNOUNCED: usize = 16;
/// Maximum number of noted occurrences. Beyond it the oldest is forgotten.
const MAX_NOTED: usize = 1_024;
/// Maximum number of remembered announcements of other members.
///
/// More than all members of a cluster announce at a time.
const MAX_HEARD: usize = 32_768;

/// An occurrence of a schedule: a hash of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OccurrenceId(pub u64);

impl OccurrenceId {
    /// The occurrence of a schedule at a due time in milliseconds since the Unix epoch. `schedule` identifies it in the cluster.
    pub fn new(schedule: &str, due_unix_ms: u64) -> Self {
        Self(xxh3_64_with_seed(schedule.as_bytes(), due_unix_ms))
    }
}

/// A short digest of the identification of a schedule within its app, for [`AppFact::schedules`](crate::status::AppFact).
pub fn schedule_digest(schedule: &str) -> u32 {
    // The lower half.
    xxh3_64(schedule.as_bytes()) as u32
}

/// A member, as this node sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Its number.
    pub node_id: u64,
    /// The number of its start.
    pub incarnation: u32,
    /// It is connected, and does not drain.
    pub fires: bool,
    /// The occurrences that it announces.
    pub announced: &'a [u64],
}

/// What is to be done with an occurrence that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// This node fires it now.
    Fire,
    /// Another one does; [`Occurrences::see`] says so if this node has to after all.
    Noted,
    /// Another one has fired it.
    Fired,
}

/// The occurrences that this node has fired or noted. Time is in milliseconds of a monotonic clock.
#[derive(Debug, Default)]
pub struct Occurrences {
    /// Members that were seen last.
    members: HashMap<u64, Start>,
    fired: VecDeque<OccurrenceId>,
    heard: Heard,
    noted: VecDeque<Noted>,
    /// There have been other members since the start of this node.
    has_met_others: bool,
}

/// The last announcements of other members.
#[derive(Debug, Default)]
struct Heard {
    ids: HashSet<OccurrenceId>,
    order: VecDeque<OccurrenceId>,
}

impl Heard {
    fn contains(&self, id: &OccurrenceId) -> bool {
        self.ids.contains(id)
    }

    fn add(&mut self, id: OccurrenceId) {
        if !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_HEARD
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

/// A start of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    incarnation: u32,
    fires: bool,
}

#[derive(Debug)]
struct Noted {
    id: OccurrenceId,
    /// The members that come before this node, with their start.
    before: Vec<(u64, u32)>,
    /// This node does not fire it before this time.
    listens_until_ms: u64,
    until_ms: u64,
}

impl Occurrences {
    /// True if a member takes part: it is connected and does not drain.
    pub fn takes_part(&self, node_id: u64) -> bool {
        self.members.get(&node_id).is_some_and(|start| start.fires)
    }

    /// An occurrence is due, since `late_ms`. `before` are the members that rank before this node; those that do not take part are
    /// skipped.
    pub fn due(
        &mut self,
        id: OccurrenceId,
        before: impl IntoIterator<Item = u64>,
        late_ms: u64,
        now_ms: u64,
    ) -> Due {
        if self.heard.contains(&id) || self.fired.contains(&id) {
            return Due::Fired;
        }
        let start = |node_id: u64| {
            let start = self.members.get(&node_id).filter(|start| start.fires)?;
            Some((node_id, start.incarnation))
        };
        let before: Vec<_> = before.into_iter().filter_map(start).collect();
        let is_late = late_ms >= LATE_MS && self.has_met_others;
        if before.is_empty() && !is_late {
            self.fire(id);
            return Due::Fire;
        }
        let listens_until_ms = if is_late { now_ms.saturating_add(LISTEN_MS) } else { now_ms };
        if self.noted.len() >= MAX_NOTED {
            self.noted.pop_front();
        }
        self.noted.push_back(Noted {
            id,
            before,
            listens_until_ms,
            until_ms: now_ms.saturating_add(GRACE_MS),
        });
        Due::Noted
    }

    /// Takes the members as they are now. Returns the noted occurrences that this node fires now, and those that it does not
    /// follow any more, because they were fired or their time is over.
    pub fn see<'a>(&mut self, members: impl IntoIterator<Item = Seen<'a>>, now_ms: u64) -> Changes {
        self.members.clear();
        for member in members {
            let Seen { node_id, incarnation, fires, announced } = member;
            self.members.insert(node_id, Start { incarnation, fires });
            self.has_met_others = true;
            for id in announced.iter().copied().map(OccurrenceId) {
                self.heard.add(id);
            }
        }
        let mut changes = Changes::default();
        let noted = std::mem::take(&mut self.noted);
        for occurrence in noted {
            let is_there = |(node_id, incarnation): &(u64, u32)| {
                self.members.get(node_id) == Some(&Start { incarnation: *incarnation, fires: true })
            };
            if self.heard.contains(&occurrence.id) {
                changes.ended.push(occurrence.id);
            } else if now_ms >= occurrence.listens_until_ms && !occurrence.before.iter().any(is_there) {
                self.fire(occurrence.id);
                changes.fire.push(occurrence.id);
            } else if now_ms >= occurrence.until_ms {
                changes.ended.push(occurrence.id);
            } else {
                self.noted.push_back(occurrence);
            }
        }
        changes
    }

    /// The occurrences to announce.
    pub fn announced(&self) -> Vec<u64> {
        self.fired.iter().map(|id| id.0).collect()
    }

    fn fire(&mut self, id: OccurrenceId) {
        if self.fired.len() >= MAX_ANNOUNCED {
            self.fired.pop_front();
        }
        self.fired.push_back(id);
    }
}

/// What follows from the members that were seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Noted occurrences that this node fires now.
    pub fire: Vec<OccurrenceId>,
    /// Noted occurrences that this node does not fire.
    pub ended: Vec<OccurrenceId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(node_id: u64, incarnation: u32, announced: &[u64]) -> Seen<'_> {
        Seen { node_id, incarnation, fires: true, announced }
    }

    const ID: OccurrenceId = OccurrenceId(7);

    /// Occurrences of a node that has noted one, which members 1 and 2 come before.
    fn noted() -> Occurrences {
        let mut occurrences = Occurrences::default();
        occurrences.see([seen(1, 1, &[]), seen(2, 1, &[])], 0);
        assert_eq!(occurrences.due(ID, [1, 2], 0, 0), Due::Noted);
        occurrences
    }

    #[test]
    fn the_first_fires_and_announces() {
        let mut occurrences = Occurrences::default();
        assert_eq!(occurrences.due(ID, [], 0, 0), Due::Fire);
        assert_eq!(occurrences.announced(), [7]);
        assert_eq!(occurrences.due(ID, [], 0, 0), Due::Fired);
        // A member that is away or drains does not take part.
        occurrences.see([Seen { fires: false, ..seen(1, 1, &[]) }], 0);
        assert_eq!(occurrences.due(OccurrenceId(8), [1, 2], 0, 0), Due::Fire);
        for id in 100..200 {
            occurrences.due(OccurrenceId(id), [], 0, 0);
        }
        assert_eq!(occurrences.announced(), (184..200).collect::<Vec<_>>());
    }

    #[test]
    fn an_announced_occurrence_does_not_fire_again() {
        let mut occurrences = noted();
        let changes = occurrences.see([seen(1, 1, &[3, 7]), seen(2, 1, &[])], 100);
        assert_eq!(changes, Changes { fire: vec![], ended: vec![ID] });
        assert_eq!(occurrences.see([], 200), Changes::default());
        // A clock that is ahead announces it before it is due here.
        assert_eq!(occurrences.due(OccurrenceId(3), [1], 0, 300), Due::Fired);
    }

    #[test]
    fn it_fires_here_once_all_before_are_lost() {
        let fired = Changes { fire: vec![ID], ended: vec![] };
        let mut occurrences = noted();
        assert_eq!(occurrences.see([seen(2, 1, &[])], 100), Changes::default());
        assert_eq!(occurrences.see([], 200), fired);
        assert_eq!(occurrences.see([], 300), Changes::default());
        // A member that has started anew has not fired it, and will not.
        assert_eq!(noted().see([seen(1, 2, &[]), seen(2, 2, &[])], 100), fired);
        let draining = |node_id| Seen { fires: false, ..seen(node_id, 1, &[]) };
        assert_eq!(noted().see([draining(1), draining(2)], 100), fired);
    }

    #[test]
    fn members_that_stay_are_trusted() {
        let mut occurrences = noted();
        let there = || [seen(1, 1, &[]), seen(2, 1, &[])];
        assert_eq!(occurrences.see(there(), GRACE_MS - 1), Changes::default());
        assert_eq!(occurrences.see(there(), GRACE_MS), Changes { fire: vec![], ended: vec![ID] });
        assert_eq!(occurrences.see([], GRACE_MS + 1), Changes::default());
    }

    #[test]
    fn a_member_that_stood_still_listens_before_it_fires() {
        let late = || {
            let mut occurrences = Occurrences::default();
            occurrences.see([seen(1, 1, &[])], 0);
            // Its connections were lost meanwhile.
            occurrences.see([], 9_000);
            assert_eq!(occurrences.due(ID, [1], 7_000, 9_000), Due::Noted);
            assert_eq!(occurrences.see([], 9_000 + LISTEN_MS - 1), Changes::default());
            occurrences
        };
        let changes = late().see([seen(1, 1, &[7])], 9_000 + LISTEN_MS);
        assert_eq!(changes, Changes { fire: vec![], ended: vec![ID] }, "another one has fired it");
        let changes = late().see([seen(1, 1, &[])], 9_000 + LISTEN_MS);
        assert_eq!(changes, Changes { fire: vec![ID], ended: vec![] }, "all stood still");
        // A node that is alone has nobody to listen to, and a short delay is none.
        assert_eq!(Occurrences::default().due(ID, [], 7_000, 9_000), Due::Fire);
        let mut occurrences = Occurrences::default();
        occurrences.see([seen(1, 1, &[])], 0);
        assert_eq!(occurrences.due(ID, [], LATE_MS - 1, 9_000), Due::Fire);
    }
}
