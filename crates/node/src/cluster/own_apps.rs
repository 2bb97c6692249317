//! The apps of this node, as the members are told.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use edgefaas_cluster::status::{AppFact, AppState as ReportedState};
use edgefaas_functions::registry::{Code, Reach, Registry};
use edgefaas_rollout::{AppState, Rollout};
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Tells the members about the apps of this node until `cancel` fires.
pub async fn report_apps(
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    rollout: Arc<Rollout>,
    cancel: CancellationToken,
) {
    let (mut changes, mut progress) = (registry.changes(), rollout.progress());
    loop {
        changes.borrow_and_update();
        progress.borrow_and_update();
        cluster.set_apps(own_apps(&registry, &rollout));
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            changed = progress.changed() => if changed.is_err() { return },
        }
    }
}

/// The apps of the cluster on this node: their live revisions, and the ones that are to become live.
fn own_apps(registry: &Registry, rollout: &Rollout) -> Vec<AppFact> {
    let progress = rollout.progress().borrow().clone();
    let routes = registry.routes();
    let live =
        routes.apps().filter(|app| app.reach == Reach::Cluster && !progress.contains_key(&*app.name));
    let live = live.filter_map(|app| {
        let state = match app.code {
            Code::Here => ReportedState::Live,
            Code::Elsewhere => ReportedState::Elsewhere,
        };
        Some(AppFact { app: app.name.to_string(), revision: digest(&app.revision)?, state })
    });
    let changing = progress.iter().filter_map(|(app, progress)| {
        let state = match &progress.state {
            AppState::Live => ReportedState::Live,
            AppState::Elsewhere => ReportedState::Elsewhere,
            AppState::Fetching { permille } => ReportedState::Fetching { permille: *permille },
            AppState::Failed { reason } => ReportedState::Failed { reason: reason.clone() },
        };
        Some(AppFact { app: app.clone(), revision: digest(&progress.revision)?, state })
    });
    // What differs comes first: facts that are too long lose their end.
    changing.chain(live).collect()
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()
}
