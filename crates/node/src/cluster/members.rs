//! The members of the cluster for rollouts, from the view.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_rollout::{Member, Members, Presence};
use tokio::sync::watch;

use super::view::{self, ClusterView, MemberView};

/// An absent member keeps its place among the nodes that run an app for this time.
const KEEPS_PLACE: Duration = Duration::from_secs(30);

/// Publishes the members when they change.
pub(super) struct MemberWatch {
    members: watch::Sender<Arc<Members>>,
}

impl MemberWatch {
    pub fn new(members: watch::Sender<Arc<Members>>) -> Self {
        Self { members }
    }

    /// Publishes that this node is in no cluster.
    pub fn leave(&self) {
        self.members.send_replace(Arc::default());
    }

    /// Publishes the members of the view.
    pub fn update(&self, view: &ClusterView, now: Instant) {
        let mut others: Vec<Member> = view.others.iter().map(|other| member(other, now)).collect();
        others.sort_by_key(|other| other.node_id);
        let next = Members { me: member(&view.me, now), others };
        self.members.send_if_modified(|before| {
            let is_changed = **before != next;
            if is_changed {
                *before = Arc::new(next);
            }
            is_changed
        });
    }
}

fn member(view: &MemberView, now: Instant) -> Member {
    let presence = match view.presence {
        view::Presence::Connected => Presence::Connected,
        view::Presence::Away { since: Some(since) } if now.duration_since(since) < KEEPS_PLACE => {
            Presence::Missing
        }
        view::Presence::Away { .. } => Presence::Away,
    };
    Member {
        node_id: view.node_id,
        name: view.name.clone(),
        zone: view.facts.zone.as_ref().map(|zone| zone.name.clone()).unwrap_or_default(),
        labels: view.facts.labels.clone(),
        has_reported: view.has_reported(),
        presence,
        apps: view.facts.apps.iter().map(|app| (app.app.clone(), app.clone())).collect(),
        policy: view.facts.policy.clone(),
    }
}
