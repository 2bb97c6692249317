//! The members of the cluster for rollouts: from the membership, the connections and the facts that members report.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_cluster::{Handle, Membership};
use edgefaas_rollout::{Member, Members, Presence};
use parking_lot::Mutex;
use tokio::sync::watch;

/// An absent member keeps its place among the nodes that run an app for this time.
const KEEPS_PLACE: Duration = Duration::from_secs(30);

/// Publishes the members when they change.
pub(super) struct MemberWatch {
    members: watch::Sender<Arc<Members>>,
    /// The last time that each member was connected.
    seen: HashMap<u64, Instant>,
}

impl MemberWatch {
    pub(super) fn new(members: watch::Sender<Arc<Members>>) -> Self {
        Self { members, seen: HashMap::new() }
    }

    /// Publishes the members as they are now.
    pub(super) fn update(&mut self, membership: &Mutex<Membership>, handle: &Handle, now: Instant) {
        let connected: Vec<u64> = handle.peers().iter().map(|peer| peer.node_id).collect();
        self.seen.extend(connected.iter().map(|node_id| (*node_id, now)));
        let membership = membership.lock();
        let me = Member {
            node_id: membership.own().node_id(),
            name: membership.own().name().to_owned(),
            ..Member::default()
        };
        let mut others: Vec<Member> = membership
            .members()
            .map(|member| {
                let node_id = member.certificate.node_id();
                let presence = match self.seen.get(&node_id) {
                    Some(_) if connected.contains(&node_id) => Presence::Connected,
                    Some(seen) if now.duration_since(*seen) < KEEPS_PLACE => Presence::Missing,
                    _ => Presence::Away,
                };
                Member {
                    node_id,
                    name: member.certificate.name().to_owned(),
                    presence,
                    ..Member::default()
                }
            })
            .collect();
        drop(membership);
        self.seen.retain(|node_id, _| others.iter().any(|other| other.node_id == *node_id));
        others.sort_by_key(|other| other.node_id);
        let next = Members { me, others };
        self.members.send_if_modified(|before| {
            let is_changed = **before != next;
            if is_changed {
                *before = Arc::new(next);
            }
            is_changed
        });
    }
}
