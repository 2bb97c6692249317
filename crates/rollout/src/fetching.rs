//! Fetches the parts of a revision that the node lacks, and stores them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use edgefaas_cluster::artefacts::{BlobDigest, Candidate, Role};
use edgefaas_cluster::replication::NodeId;
use edgefaas_cluster::status::{NextRevision, NextState, Runs};
use edgefaas_functions::registry::{Content, Deployment, StageError};
use edgefaas_manifest::NodeSelection;
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::members::{Member, Members, Presence};
use crate::rollout::{MAX_FETCHES, Rollout, digest};
use crate::selection::selected;
use crate::transfer::FetchBlobError;

/// The progress of a fetch is reported in steps of so many thousandths: each report goes to all members.
const PROGRESS_STEP: u16 = 50;
/// Parts of a revision that are fetched at the same time. With those of all apps that are fetched at the same time not more
/// than [`edgefaas_cluster::artefacts::MAX_FETCHES`].
const PARTS: usize = 16;
const _: () = assert!(PARTS * MAX_FETCHES <= edgefaas_cluster::artefacts::MAX_FETCHES);

/// Parts of a revision that the node lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MissingParts {
    /// The record of the revision, with its manifest.
    Revision(Content),
    /// Sources and assets.
    Contents {
        /// The sources and assets.
        parts: BTreeSet<Content>,
        /// The nodes that run the revision: they fetch the parts too.
        nodes: NodeSelection,
    },
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
    /// Fetches parts, several at a time. After a failure those that are being fetched are still ended and stored, so that the
    /// next attempt has less to do. Cancel-safe: what has arrived is kept.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) async fn fetch_parts(
        &self,
        app: &str,
        deployment: &Deployment,
        missing: MissingParts,
    ) -> Result<(), FetchPartError> {
        let (parts, kind): (Vec<Content>, Kind) = match missing {
            MissingParts::Revision(part) => (vec![part], Kind::Revision),
            MissingParts::Contents { parts, nodes } => (parts.into_iter().collect(), Kind::Content(nodes)),
        };
        let mut members = self.watch_members();
        let known = watch::channel(candidates(app, deployment, &kind, &members.borrow_and_update())).0;
        let progress = Progress::of(parts.len());
        let report = |at, permille| self.report_progress(app, deployment, progress.set(at, permille));
        let has_failed = AtomicBool::new(false);
        let (kind_of_all, failed) = (&kind, &has_failed);
        let fetches = parts.into_iter().enumerate().map(|(at, part)| {
            let known = known.subscribe();
            async move {
                if failed.load(Relaxed) {
                    return Ok(());
                }
                self.fetch_part(&part, kind_of_all, known, move |done| report(at, done)).await
            }
        });
        let mut fetches = std::pin::pin!(futures_util::stream::iter(fetches).buffer_unordered(PARTS));
        let mut failure = None;
        loop {
            tokio::select! {
                ended = fetches.next() => match ended {
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        has_failed.store(true, Relaxed);
                        failure = failure.or(Some(error));
                    }
                    None => return failure.map_or(Ok(()), Err),
                },
                Ok(()) = members.changed() => {
                    let next = candidates(app, deployment, &kind, &members.borrow_and_update());
                    known.send_if_modified(|known| *known != next && { *known = next; true });
                }
            }
        }
    }

    async fn fetch_part(
        &self,
        part: &Content,
        kind: &Kind,
        mut candidates: watch::Receiver<Vec<Candidate>>,
        report: impl Fn(u16),
    ) -> Result<(), FetchPartError> {
        if part.hash == *blake3::hash(b"").as_bytes() {
            return Ok(self.stage(part, kind, Bytes::new()).await?);
        }
        let (artefacts, blob) = (&self.parts.artefacts, BlobDigest(part.hash));
        let known = candidates.borrow_and_update().clone();
        let (progress, mut arrived) = watch::channel(0);
        let mut fetch = std::pin::pin!(artefacts.fetch(blob, known, progress));
        let fetched = loop {
            tokio::select! {
                // The fetch begins before its candidates are replaced: those of no fetch are lost.
                biased;
                fetched = &mut fetch => break fetched?,
                Ok(()) = arrived.changed() => report(*arrived.borrow_and_update()),
                Ok(()) = candidates.changed() => {
                    let next = candidates.borrow_and_update().clone();
                    artefacts.set_candidates(blob, next).await;
                }
            }
        };
        let staged = self.stage(part, kind, fetched.bytes).await;
        if staged.is_err() {
            // The store needs the room, or refuses the bytes.
            artefacts.forget(blob).await;
        }
        report(1000);
        Ok(staged?)
    }

    async fn stage(&self, part: &Content, kind: &Kind, bytes: Bytes) -> Result<(), StageError> {
        match kind {
            Kind::Revision => self.parts.registry.stage_revision(&part.key, bytes).await,
            Kind::Content(_) => self.parts.registry.stage_content(part, bytes).await,
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

/// The progress of parts that are fetched at the same time, in thousandths of each.
struct Progress {
    parts: Vec<AtomicU16>,
    /// Their sum.
    sum: AtomicU64,
}

impl Progress {
    fn of(parts: usize) -> Self {
        Self { parts: (0..parts).map(|_| AtomicU16::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Sets the progress of a part. Gives that of all.
    fn set(&self, at: usize, permille: u16) -> u16 {
        let permille = permille.min(1000);
        let before = self.parts[at].swap(permille, Relaxed);
        let added = u64::from(permille).wrapping_sub(u64::from(before));
        let sum = self.sum.fetch_add(added, Relaxed).wrapping_add(added);
        (sum / self.parts.len() as u64) as u16
    }
}

/// The kinds of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The record of a revision. Nodes that do not run the app have it too.
    Revision,
    /// A source or an asset, for the nodes that run the app.
    Content(NodeSelection),
}

/// The connected members that have a part of a revision or are fetching it, and those of the zone that will. If none is known
/// to have it, all others may: a revision stays on a node for some time after the next one.
fn candidates(app: &str, deployment: &Deployment, kind: &Kind, members: &Members) -> Vec<Candidate> {
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
        return known;
    }
    let chosen = match kind {
        Kind::Revision => None,
        Kind::Content(nodes) => Some(selected(app, nodes, members)),
    };
    let is_expected = |other: &&Member| {
        other.zone == members.me.zone
            && role_of(app, deployment, kind, other).is_none()
            && chosen.as_ref().is_none_or(|chosen| chosen.contains(&other.node_id))
            && !has_failed(app, deployment, other)
    };
    known.extend(connected().filter(is_expected).map(|other| candidate(other, Role::Expected)));
    known
}

fn has_failed(app: &str, deployment: &Deployment, member: &Member) -> bool {
    let wanted = deployment.revision.as_deref().and_then(digest);
    let next = member.apps.get(app).and_then(|reported| reported.next.as_ref());
    next.is_some_and(|next| next.revision == wanted && matches!(next.state, NextState::Failed { .. }))
}

fn role_of(app: &str, deployment: &Deployment, kind: &Kind, member: &Member) -> Option<Role> {
    // The node of the deploy has stored the revision before the other nodes hear of it.
    let source = (member.name == deployment.node).then_some(Role::Holds);
    let Some(wanted) = deployment.revision.as_deref().and_then(digest) else { return source };
    let Some(reported) = member.apps.get(app) else { return source };
    let live = reported.live.filter(|live| live.revision == wanted);
    let next = reported.next.as_ref().filter(|next| next.revision == Some(wanted));
    match (live.map(|live| live.runs), next.map(|next| &next.state)) {
        (Some(Runs::Here | Runs::HereAlone), _) => Some(Role::Holds),
        (Some(Runs::Elsewhere), _) if *kind == Kind::Revision => Some(Role::Holds),
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

    fn roles(kind: &Kind, others: Vec<Member>) -> Vec<(u64, Role)> {
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
    fn the_progress_of_all_parts_is_their_mean() {
        let progress = Progress::of(4);
        assert_eq!(progress.set(0, 500), 125);
        assert_eq!(progress.set(3, 2_000), 375);
        assert_eq!(progress.set(0, 100), 275, "a part that begins anew");
        assert_eq!(
            [(0, 1000), (1, 1000), (2, 1000)].map(|(at, done)| progress.set(at, done)),
            [500, 750, 1000]
        );
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
        // Of the zone of this node, 7 will fetch it.
        let content = &Kind::Content(NodeSelection::default());
        let known = [
            (2, Role::Holds),
            (3, Role::Fetches),
            (9, Role::Holds),
            (5, Role::Expected),
            (7, Role::Expected),
        ];
        assert_eq!(roles(content, others.clone()), known);
        let elsewhere = NodeSelection { zones: vec!["z0".into()], ..NodeSelection::default() };
        assert_eq!(roles(&Kind::Content(elsewhere), others.clone()), known[..3]);
        let with_record =
            [(2, Role::Holds), (3, Role::Fetches), (5, Role::Holds), (9, Role::Holds), (7, Role::Expected)];
        assert_eq!(roles(&Kind::Revision, others.clone()), with_record);
        let unknown = others.into_iter().filter(|other| ![2, 9].contains(&other.node_id)).collect();
        let all = [3, 4, 5, 6, 7].map(|node| (node, if node == 3 { Role::Fetches } else { Role::Holds }));
        assert_eq!(roles(content, unknown), all);
    }
}
