//! View of the cluster: this node and the other members, with their last status.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_cluster::status::{Facts, Load, StatusError};
use edgefaas_cluster::{PeerStatus, placement};

/// The cluster, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// This node.
    pub me: MemberView,
    /// The other members, by name.
    pub others: Vec<MemberView>,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Its number.
    pub node_id: u64,
    /// The name in its certificate.
    pub name: String,
    /// The connection with it.
    pub presence: Presence,
    /// Its last facts: zone, labels, software, apps. Empty while they are not known.
    pub facts: Arc<Facts>,
    /// Its load; `None` for a member that is away, and for one of an older version.
    pub load: Option<Load>,
    /// The number of its last start; 0 for this node, and before the first connection.
    pub incarnation: u32,
    /// Median of the last round trips; `None` for this node, and while it is not known.
    pub rtt: Option<Duration>,
}

/// The connection with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is connected, or it is this node.
    Connected,
    /// It is away; its facts are the last known ones.
    Away {
        /// When its channel ended; `None` if there was none since the start of this node.
        since: Option<Instant>,
    },
}

impl MemberView {
    /// This node.
    pub(super) fn own(node_id: u64, name: String, facts: Facts, load: Load) -> Self {
        let (presence, facts) = (Presence::Connected, Arc::new(facts));
        Self { node_id, name, presence, facts, load: Some(load), incarnation: 0, rtt: None }
    }

    /// A member of which only the certificate is known.
    fn unknown(node_id: u64, name: String, presence: Presence) -> Self {
        Self { node_id, name, presence, facts: Arc::default(), load: None, incarnation: 0, rtt: None }
    }

    /// Use of the node's scarcest resource, as placement sees it: above 1,000 where invocations wait. `None` if its load is
    /// not known.
    pub fn load_permille(&self) -> Option<u32> {
        let load = self.load.as_ref()?;
        let placed = placement::Load {
            memory_free_bytes: load.memory_free_bytes,
            memory_total_bytes: load.memory_total_bytes,
            permits_free: load.permits_free,
            permits_total: load.permits_total,
            running: load.running,
            queued: load.queued,
            pressure_permille: load.pressure_permille,
            ..placement::Load::default()
        };
        Some(placed.permille())
    }

    /// True if its facts are known.
    pub fn has_reported(&self) -> bool {
        *self.facts != Facts::default()
    }

    /// True if the node is connected.
    pub fn is_connected(&self) -> bool {
        self.presence == Presence::Connected
    }
}

impl ClusterView {
    /// A node in no cluster.
    pub fn alone(node_id: u64) -> Self {
        let me = MemberView::unknown(node_id, String::new(), Presence::Connected);
        Self { me, others: Vec::new() }
    }

    /// True if this node is in no cluster.
    pub fn is_alone(&self) -> bool {
        self.me.name.is_empty()
    }

    /// This node and the other members.
    pub fn all(&self) -> impl Iterator<Item = &MemberView> {
        std::iter::once(&self.me).chain(&self.others)
    }

    /// The member with this number.
    pub fn member(&self, node_id: u64) -> Option<&MemberView> {
        self.all().find(|member| member.node_id == node_id)
    }

    /// True if both differ in nothing but loads and round trips.
    pub fn has_same_facts(&self, other: &Self) -> bool {
        let is_same = |one: &MemberView, other: &MemberView| {
            (one.node_id, &one.name, one.presence, &one.facts)
                == (other.node_id, &other.name, other.presence, &other.facts)
        };
        self.others.len() == other.others.len()
            && is_same(&self.me, &other.me)
            && self.others.iter().zip(&other.others).all(|(one, other)| is_same(one, other))
    }
}

/// Name and number of a member, from its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub node_id: u64,
    pub name: String,
}

/// The other members and what they have reported.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    members: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    view: MemberView,
    /// The bytes that `view` has the content of.
    facts: Option<Bytes>,
    load: Option<Bytes>,
    heartbeats: usize,
}

/// A round trip that was not seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundTrip {
    pub node_id: u64,
    pub rtt: Duration,
}

/// What an update of the table has found.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// New round trips.
    pub round_trips: Vec<RoundTrip>,
    /// Members that have sent an invalid status.
    pub invalid: Vec<(u64, StatusError)>,
}

impl MemberTable {
    /// Takes the current members, and the status of those that are connected.
    pub fn update(&mut self, named: &[Named], statuses: Vec<PeerStatus>, now: Instant) -> Found {
        self.members.retain(|node_id, _| named.iter().any(|member| member.node_id == *node_id));
        for Named { node_id, name } in named {
            let entry = self.members.entry(*node_id).or_insert_with(|| Entry {
                view: MemberView::unknown(*node_id, name.clone(), Presence::Away { since: None }),
                facts: None,
                load: None,
                heartbeats: 0,
            });
            entry.view.name.clone_from(name);
        }
        let mut found = Found::default();
        let mut statuses: HashMap<u64, PeerStatus> =
            statuses.into_iter().map(|status| (status.node_id, status)).collect();
        for (node_id, entry) in &mut self.members {
            match statuses.remove(node_id) {
                Some(status) => entry.connected(status, &mut found),
                None => entry.away(now),
            }
        }
        found
    }

    /// The members by name.
    pub fn views(&self) -> Vec<MemberView> {
        let mut views: Vec<_> = self.members.values().map(|entry| entry.view.clone()).collect();
        views.sort_by(|one, next| (&one.name, one.node_id).cmp(&(&next.name, next.node_id)));
        views
    }
}

impl Entry {
    fn connected(&mut self, status: PeerStatus, found: &mut Found) {
        if !self.view.is_connected() || self.view.incarnation != status.incarnation {
            self.heartbeats = 0;
        }
        self.view.presence = Presence::Connected;
        self.view.incarnation = status.incarnation;
        self.view.rtt = status.rtt;
        if status.heartbeats > self.heartbeats
            && let Some(rtt) = status.last_rtt
        {
            found.round_trips.push(RoundTrip { node_id: self.view.node_id, rtt });
        }
        self.heartbeats = status.heartbeats;
        if status.facts.is_some() && status.facts != self.facts {
            let facts = status.facts.as_deref().map(Facts::decode);
            self.facts = status.facts;
            match facts {
                Some(Ok(facts)) => self.view.facts = Arc::new(facts),
                Some(Err(error)) => found.invalid.push((self.view.node_id, error)),
                None => {}
            }
        }
        let load = status.load.map(|(load, _)| load);
        if load != self.load {
            match load.as_deref().map(Load::decode).transpose() {
                Ok(load) => self.view.load = load,
                Err(error) => found.invalid.push((self.view.node_id, error)),
            }
            self.load = load;
        }
    }

    fn away(&mut self, now: Instant) {
        if self.view.is_connected() {
            self.view.presence = Presence::Away { since: Some(now) };
        }
        (self.view.load, self.load, self.view.rtt) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_cluster::status::{Zone, ZoneSource};

    use super::*;

    fn named(ids: &[u64]) -> Vec<Named> {
        ids.iter().map(|node_id| Named { node_id: *node_id, name: format!("node-{node_id}") }).collect()
    }

    fn zone(name: &str) -> Facts {
        let zone = Some(Zone { name: name.into(), source: ZoneSource::Configured });
        Facts { zone, labels: vec!["camera".into()], ..Facts::default() }
    }

    fn status(node_id: u64, heartbeats: usize, facts: Option<&Facts>) -> PeerStatus {
        let rtt = (heartbeats > 0).then_some(Duration::from_millis(heartbeats as u64));
        let load = Load { running: heartbeats as u32, ..Load::default() };
        PeerStatus {
            node_id,
            incarnation: 1,
            load: Some((load.encode(), Instant::now())),
            facts: facts.map(Facts::encode),
            rtt,
            last_rtt: rtt,
            heartbeats,
        }
    }

    #[test]
    fn members_that_leave_keep_their_facts_and_lose_their_load() {
        let (mut table, begun) = (MemberTable::default(), Instant::now());
        let found = table.update(&named(&[3, 2]), vec![status(2, 1, Some(&zone("hall")))], begun);
        let rtt = Duration::from_millis(1);
        assert_eq!(found, Found { round_trips: vec![RoundTrip { node_id: 2, rtt }], invalid: vec![] });
        let views = table.views();
        assert_eq!((views[0].name.as_str(), views[0].rtt), ("node-2", Some(rtt)));
        assert_eq!((views[0].is_connected(), views[0].load.as_ref().unwrap().running), (true, 1));
        assert_eq!(views[0].facts.labels, ["camera"]);
        assert_eq!(views[1].presence, Presence::Away { since: None });

        let later = begun + Duration::from_secs(9);
        let again = table.update(&named(&[2, 3]), vec![status(2, 1, Some(&zone("hall")))], later);
        assert_eq!(again, Found::default(), "the same heartbeat");
        table.update(&named(&[2, 3]), vec![], later);
        let views = table.views();
        assert_eq!(views[0].presence, Presence::Away { since: Some(later) });
        assert_eq!((&views[0].load, views[0].rtt), (&None, None));
        assert_eq!(views[0].facts.zone.as_ref().unwrap().name, "hall");
        table.update(&named(&[2, 3]), vec![], later + Duration::from_secs(1));
        assert_eq!(table.views()[0].presence, Presence::Away { since: Some(later) });

        // A member of an older version has no facts; those of before do not come back.
        let found = table.update(&named(&[2, 3]), vec![status(2, 1, None)], later);
        assert_eq!(found.round_trips.len(), 1, "a new channel counts anew");
        table.update(&named(&[3]), vec![], later);
        assert_eq!(table.views().len(), 1, "it is no member any more");
    }

    #[test]
    fn an_invalid_status_is_reported_once_and_changes_nothing() {
        let (mut table, now) = (MemberTable::default(), Instant::now());
        table.update(&named(&[2]), vec![status(2, 1, Some(&zone("hall")))], now);
        let wrong = PeerStatus {
            facts: Some("\u{8}".into()),
            load: Some(("\u{8}".into(), now)),
            ..status(2, 2, None)
        };
        let found = table.update(&named(&[2]), vec![wrong.clone()], now);
        assert_eq!(found.invalid.iter().map(|(node_id, _)| *node_id).collect::<Vec<_>>(), [2, 2]);
        assert!(table.update(&named(&[2]), vec![wrong], now).invalid.is_empty());
        let view = &table.views()[0];
        assert_eq!(
            (view.facts.zone.as_ref().unwrap().name.as_str(), view.load.as_ref().unwrap().running),
            ("hall", 1)
        );
    }

    #[test]
    fn loads_are_no_change_of_the_facts() {
        let view = |running: u32, zone_name: &str| {
            let mut view = ClusterView::alone(1);
            view.me.facts = Arc::new(zone(zone_name));
            view.me.load = Some(Load { running, ..Load::default() });
            view
        };
        assert!(view(1, "hall").has_same_facts(&view(2, "hall")));
        assert!(!view(1, "hall").has_same_facts(&view(1, "attic")));
        let more = ClusterView { others: vec![view(1, "hall").me], ..view(1, "hall") };
        assert!(!view(1, "hall").has_same_facts(&more));
    }
}
