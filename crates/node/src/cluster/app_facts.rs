//! Reports the apps of this node to the other members.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use edgefaas_cluster::status::{AppFact, AppState as ReportedState};
use edgefaas_functions::registry::{Code, Reach, Registry, Routes};
use edgefaas_rollout::{AppState, Progress, Rollout};
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Reports the apps now and whenever they change, until `until` fires.
pub async fn report_apps(
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    rollout: Arc<Rollout>,
    until: CancellationToken,
) {
    let (mut changes, mut progress) = (registry.changes(), rollout.progress());
    loop {
        changes.mark_unchanged();
        let under_way = progress.borrow_and_update().clone();
        cluster.set_apps(app_facts(&registry.routes(), &under_way));
        tokio::select! {
            () = until.cancelled() => break,
            Ok(()) = changes.changed() => {}
            Ok(()) = progress.changed() => {}
            else => break,
        }
    }
}

/// The apps that were deployed to the cluster, by name: a revision that is under way or has failed, else the live one.
fn app_facts(routes: &Routes, progress: &BTreeMap<String, Progress>) -> Vec<AppFact> {
    let live = routes.apps().filter(|app| app.reach == Reach::Cluster).filter_map(|app| {
        let state = match app.code {
            Code::Here => ReportedState::Live,
            Code::Elsewhere => ReportedState::Elsewhere,
        };
        fact(&app.name, &app.revision, state)
    });
    let under_way = progress.iter().filter_map(|(app, progress)| {
        let state = match &progress.state {
            AppState::Live => ReportedState::Live,
            AppState::Elsewhere => ReportedState::Elsewhere,
            AppState::Fetching { permille } => ReportedState::Fetching { permille: *permille },
            AppState::Failed { reason } => ReportedState::Failed { reason: reason.clone() },
        };
        fact(app, &progress.revision, state)
    });
    let mut facts: BTreeMap<String, AppFact> = live.map(|fact| (fact.app.clone(), fact)).collect();
    facts.extend(under_way.map(|fact| (fact.app.clone(), fact)));
    facts.into_values().collect()
}

/// `None` if the revision is no digest: the cluster cannot have decided on it.
fn fact(app: &str, revision: &str, state: ReportedState) -> Option<AppFact> {
    let digest = HEXLOWER.decode(revision.as_bytes()).ok()?;
    Some(AppFact { app: app.to_owned(), revision: digest.try_into().ok()?, state })
}
