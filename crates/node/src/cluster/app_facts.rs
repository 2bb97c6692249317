//! Reports the apps of this node to the other members.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use edgefaas_cluster::status::{AppFact, AppState as ReportedState};
use edgefaas_functions::registry::{Code, LiveApp, Reach, Registry, Routes};
use edgefaas_rollout::{AppState, Progress, Rollout};
use edgefaas_state::objects::{Recoveries, own_object};
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Reports the apps now and whenever they change, until `until` fires.
pub async fn report_apps(
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    rollout: Arc<Rollout>,
    recoveries: Arc<Recoveries>,
    until: CancellationToken,
) {
    let (mut changes, mut progress) = (registry.changes(), rollout.progress());
    loop {
        let recovered = recoveries.changed();
        changes.mark_unchanged();
        let under_way = progress.borrow_and_update().clone();
        cluster.set_apps(app_facts(&registry.routes(), &under_way, &recoveries));
        tokio::select! {
            () = until.cancelled() => break,
            Ok(()) = changes.changed() => {}
            Ok(()) = progress.changed() => {}
            () = recovered => {}
            else => break,
        }
    }
}

/// The apps that were deployed to the cluster, by name: a revision that is under way or has failed, else the live one.
fn app_facts(
    routes: &Routes,
    progress: &BTreeMap<String, Progress>,
    recoveries: &Recoveries,
) -> Vec<AppFact> {
    let live = routes.apps().filter(|app| app.reach == Reach::Cluster).filter_map(|app| {
        let state = match app.code {
            Code::Here => ReportedState::Live,
            Code::Elsewhere => ReportedState::Elsewhere,
        };
        let lacks_objects = app.code == Code::Here && lacks_objects(app, recoveries);
        Some(AppFact { lacks_objects, ..fact(&app.name, &app.revision, state)? })
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

/// True while objects that functions of the app may use have not arrived from the other members.
fn lacks_objects(app: &LiveApp, recoveries: &Recoveries) -> bool {
    app.functions.iter().any(|function| {
        let own = own_object(&function.name);
        let patterns = function.spec.permissions.objects.iter().chain([&own]);
        recoveries.lacks(&app.name, patterns.map(String::as_str))
    })
}

/// `None` if the revision is no digest: the cluster cannot have decided on it.
fn fact(app: &str, revision: &str, state: ReportedState) -> Option<AppFact> {
    let digest = HEXLOWER.decode(revision.as_bytes()).ok()?;
    Some(AppFact { app: app.to_owned(), revision: digest.try_into().ok()?, state, lacks_objects: false })
}
