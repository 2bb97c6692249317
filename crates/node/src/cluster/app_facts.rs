//! Reports the apps of this node to the other members.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use edgefaas_cluster::occurrences::schedule_digest;
use edgefaas_cluster::status::{AppFact, LiveRevision, NextRevision, Runs};
use edgefaas_functions::registry::{Code, Deployment, LiveApp, Reach, Registry, Routes};
use edgefaas_rollout::Rollout;
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

/// The apps by name: the live revision, and the decision of the cluster that is not carried out yet.
fn app_facts(
    routes: &Routes,
    pending: &BTreeMap<String, NextRevision>,
    recoveries: &Recoveries,
) -> Vec<AppFact> {
    let mut schedules: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (app, id) in routes.schedule_ids() {
        schedules.entry(app).or_default().push(schedule_digest(&id));
    }
    let mut facts = BTreeMap::new();
    for app in routes.apps() {
        if let Some(live) = live_revision(app) {
            facts.insert(
                app.name.to_string(),
                AppFact {
                    app: app.name.to_string(),
                    live: Some(live),
                    next: None,
                    lacks_objects: app.code == Code::Here && lacks_objects(app, recoveries),
                    schedules: schedules.remove(&*app.name).unwrap_or_default(),
                },
            );
        }
    }
    for (app, next) in pending {
        let empty = || AppFact {
            app: app.clone(),
            live: None,
            next: None,
            lacks_objects: false,
            schedules: Vec::new(),
        };
        facts.entry(app.clone()).or_insert_with(empty).next = Some(next.clone());
    }
    facts.into_values().collect()
}

/// The live revision of an app.
pub fn live_revision(app: &LiveApp) -> Option<LiveRevision> {
    let runs = match (app.reach, app.code) {
        (Reach::ThisNode, _) => Runs::HereAlone,
        (Reach::Cluster, Code::Here) => Runs::Here,
        (Reach::Cluster, Code::Elsewhere) => Runs::Elsewhere,
    };
    let revision = HEXLOWER.decode(app.revision.as_bytes()).ok()?.try_into().ok()?;
    let number = app.deployment.as_deref().map_or(0, Deployment::number_of);
    Some(LiveRevision { revision, runs, number })
}

/// True while objects that functions of the app may use have not arrived from the other members.
fn lacks_objects(app: &LiveApp, recoveries: &Recoveries) -> bool {
    app.functions.iter().any(|function| {
        let own = own_object(&function.name);
        let patterns = function.spec.permissions.objects.iter().chain([&own]);
        recoveries.lacks(&app.name, patterns.map(String::as_str))
    })
}
