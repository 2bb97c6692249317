//! Fetches the parts of a revision that the node lacks, and stores them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, Candidate, Role};
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::status::{NextRevision, NextState, Runs};
use edgefaas_functions::registry::{Content, Deployment, StageError};
use tokio::sync::watch;

use crate::members::{Member, Members, Presence};
use crate::rollout::{Rollout, digest};
use crate::transfer::FetchBlobError;

/// The progress of a fetch is reported in steps of so many thousandths: each report goes to all members.
const PROGRESS_STEP: u16 = 50;

/// Parts of a revision that the node lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MissingParts {
    /// The record of the revision, with its manifest.
    Revision(Content),
    /// Sources and assets.
    Contents(BTreeSet<Content>),
}

/// A part of a revision is not in the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchPartError {
    /// It could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchBlobError),
    /// It could not be stored.
    #[error(transparent)]
    Stage(#[from] StageError),
}

impl Rollout {
    /// Fetches parts one after another. Cancel-safe: what has arrived is kept.
    pub(crate) async fn fetch_parts(
        &self,
        app: &str,
        deployment: &Deployment,
        missing: MissingParts,
    ) -> Result<(), FetchPartError> {
        let (parts, kind) = match missing {
            MissingParts::Revision(part) => (vec![part], Kind::Revision),
            MissingParts::Contents(parts) => (parts.into_iter().collect(), Kind::Content),
        };
        let count = parts.len();
        for (at, part) in parts.iter().enumerate() {
            let progress = |permille: u16| {
                let permille = (at * 1000 + usize::from(permille.min(1000))) / count;
                self.report_progress(app, deployment, permille as u16);
            };
            self.fetch_part(app, deployment, part, kind, progress).await?;
        }
        Ok(())
    }

    async fn fetch_part(
        &self,
        app: &str,
        deployment: &Deployment,
        part: &Content,
        kind: Kind,
        report: impl Fn(u16),
    ) -> Result<(), FetchPartError> {
        if part.hash == *blake3::hash(b"").as_bytes() {
            return Ok(self.stage(part, kind, Bytes::new()).await?);
        }
        let (artefacts, blob) = (&self.parts.artefacts, BlobDigest(part.hash));
        let mut members = self.watch_members();
        let mut known = candidates(app, deployment, kind, &members.borrow_and_update());
        let (progress, mut arrived) = watch::channel(0);
        let mut fetch = std::pin::pin!(artefacts.fetch(blob, known.clone(), progress));
        let fetched = loop {
            tokio::select! {
                fetched = &mut fetch => break fetched?,
                Ok(()) = arrived.changed() => report(*arrived.borrow_and_update()),
                Ok(()) = members.changed() => {
                    let next = candidates(app, deployment, kind, &members.borrow_and_update());
                    if next != known {
                        known.clone_from(&next);
                        artefacts.set_candidates(blob, next).await;
                    }
                }
            }
        };
        let staged = self.stage(part, kind, fetched.bytes).await;
        if staged.is_err() {
            // The store needs the room, or refuses the bytes.
            artefacts.forget(blob).await;
        }
        Ok(staged?)
    }

    async fn stage(&self, part: &Content, kind: Kind, bytes: Bytes) -> Result<(), StageError> {
        match kind {
            Kind::Revision => self.parts.registry.stage_revision(&part.key, bytes).await,
            Kind::Content => self.parts.registry.stage_content(part, bytes).await,
        }
    }

    fn report_progress(&self, app: &str, deployment: &Deployment, permille: u16) {
        let state = NextState::Fetching { permille: permille / PROGRESS_STEP * PROGRESS_STEP };
        let next = NextRevision { revision: deployment.revision.as_deref().and_then(digest), state };
        self.progress.send_if_modified(|before| {
            let is_changed = before.get(app) != Some(&next);
            if is_changed {
                Arc::make_mut(before).insert(app.to_owned(), next);
            }
            is_changed
        });
    }
}

/// The kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The record of a revision. Nodes that do not run the app have it too.
    Revision,
    /// A source or an asset.
    Content,
}

/// The connected members that have a part of a revision, or are fetching it. If none is known to have it, all others may: a
/// revision stays on a node for some time after the next one.
fn candidates(app: &str, deployment: &Deployment, kind: Kind, members: &Members) -> Vec<Candidate> {
    let connected = || members.others.iter().filter(|other| other.presence == Presence::Connected);
    let candidate = |other: &Member, role: Role| Candidate {
        node: NodeId(other.node_id),
        zone: other.zone.as_str().into(),
        role,
    };
    let mut known: Vec<Candidate> = connected()
        .filter_map(|other| Some(candidate(other, role_of(app, deployment, kind, other)?)))
        .collect();
    if !known.iter().any(|known| known.role == Role::Holds) {
        let others = connected().filter(|other| role_of(app, deployment, kind, other).is_none());
        known.extend(others.map(|other| candidate(other, Role::Holds)));
    }
    known
}

fn role_of(app: &str, deployment: &Deployment, kind: Kind, member: &Member) -> Option<Role> {
    // The node of the deploy has stored the revision before the other nodes hear of it.
    let source = (member.name == deployment.node).then_some(Role::Holds);
    let Some(wanted) = deployment.revision.as_deref().and_then(digest) else { return source };
    let Some(reported) = member.apps.get(app) else { return source };
    let live = reported.live.filter(|live| live.revision == wanted);
    let next = reported.next.as_ref().filter(|next| next.revision == Some(wanted));
    match (live.map(|live| live.runs), next.map(|next| &next.state)) {
        (Some(Runs::Here | Runs::HereAlone), _) => Some(Role::Holds),
        (Some(Runs::Elsewhere), _) if kind == Kind::Revision => Some(Role::Holds),
        (_, Some(NextState::Fetching { .. })) => Some(Role::Fetches),
        (Some(Runs::Elsewhere) | None, Some(NextState::Failed { .. }) | None) => source,
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_cluster::status::{AppFact, LiveRevision};

    use super::*;

    const WANTED: [u8; 32] = [0xab; 32];

    fn member(node_id: u64, live: Option<([u8; 32], Runs)>, next: Option<NextState>) -> Member {
        let live = live.map(|(revision, runs)| LiveRevision { revision, runs, number: 1 });
        let next = next.map(|state| NextRevision { revision: Some(WANTED), state });
        let fact = AppFact { app: "a".into(), live, next, lacks_objects: false, schedules: Vec::new() };
        let apps = (live.is_some() || fact.next.is_some()).then(|| ("a".to_owned(), fact));
        let (name, zone) = (format!("n{node_id}"), format!("z{}", node_id % 2));
        Member { node_id, name, zone, apps: apps.into_iter().collect(), ..Member::default() }
    }

    fn roles(kind: Kind, others: Vec<Member>) -> Vec<(u64, Role)> {
        let deployment = Deployment {
            number: 2,
            revision: Some("ab".repeat(32)),
            node: "n9".into(),
            deployed_unix_ms: 0,
            format: 1,
        };
        let members = Members { me: member(1, None, None), others };
        let found = candidates("a", &deployment, kind, &members);
        assert!(found.iter().all(|found| *found.zone == format!("z{}", found.node.0 % 2)));
        found.into_iter().map(|found| (found.node.0, found.role)).collect()
    }

    #[test]
    fn members_that_report_the_revision_are_candidates_and_all_others_if_none_has_it() {
        let (here, elsewhere) = (Some((WANTED, Runs::Here)), Some((WANTED, Runs::Elsewhere)));
        let older = Some(([0xff; 32], Runs::Here));
        let failed = NextState::Failed { reason: "the disk is full".into() };
        let mut away = member(8, here, None);
        away.presence = Presence::Away;
        let others = vec![
            member(2, here, None),
            member(3, older, Some(NextState::Fetching { permille: 100 })),
            member(4, older, None),
            member(5, elsewhere, None),
            member(6, older, Some(failed)),
            member(7, None, None),
            away,
            member(9, None, None),
        ];
        let known = [(2, Role::Holds), (3, Role::Fetches), (9, Role::Holds)];
        assert_eq!(roles(Kind::Content, others.clone()), known);
        let with_record = [(2, Role::Holds), (3, Role::Fetches), (5, Role::Holds), (9, Role::Holds)];
        assert_eq!(roles(Kind::Revision, others.clone()), with_record);
        let unknown = others.into_iter().filter(|other| ![2, 9].contains(&other.node_id)).collect();
        let all = [3, 4, 5, 6, 7].map(|node| (node, if node == 3 { Role::Fetches } else { Role::Holds }));
        assert_eq!(roles(Kind::Content, unknown), all);
    }
}
