//! Deploys, removals and rollbacks of apps: to this node, to the cluster, and as the cluster has decided.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_isolates::{FunctionSource, LogLevel};
use edgefaas_manifest::{FILE_NAME, Manifest, NodeSelection, is_name};
use edgefaas_state::store::{Batch, Durability};

use super::app_records::{self, AppRecord, Code, FORMAT, Reach, Revision};
use super::cluster_apps::{self, ClusterApp, Deployment};
use super::deploy_checks::{check_assets, check_calls, check_sources, check_topics, check_workflow_files};
use super::deploy_error::DeployError;
use super::dry_run::{self, DryRunError};
use super::matching_nodes::{MatchingNodes, check_nodes};
use super::{LiveApp, LiveFunction, LiveWorkflow, Registry, Routes, definition, near};

/// Maximum number of earlier revisions that an app keeps for a rollback.
const MAX_PREVIOUS_REVISIONS: usize = 10;
/// Maximum number of programs that stay in memory after a deploy: more would take memory before their first call.
const MAX_READY_PROGRAMS: usize = 128;

/// The contents of a deploy.
#[derive(Default)]
pub struct Deploy {
    /// The text of the manifest.
    pub manifest: String,
    /// The sources of its functions.
    pub sources: BTreeMap<String, FunctionSource>,
    /// The contents of its assets.
    pub assets: BTreeMap<String, Bytes>,
    /// The texts of its workflows, by file.
    pub workflows: BTreeMap<String, String>,
    /// True if calls of unknown functions are errors, not warnings.
    pub strict: bool,
    /// The nodes that get it.
    pub scope: Scope,
}

/// The nodes that a command about an app applies to.
#[derive(Clone, Default)]
pub enum Scope {
    /// This node alone.
    #[default]
    ThisNode,
    /// All nodes of the cluster.
    Cluster(ClusterScope),
}

/// This node as a member of a cluster, for a command to all members.
#[derive(Clone)]
pub struct ClusterScope {
    /// Its name.
    pub node: String,
    /// Whether it runs an app with this name and selection of nodes.
    pub selects: Selects,
    /// The members that match a selection of nodes.
    pub matches: MatchNodes,
}

/// Whether a node runs an app with this name and selection of nodes.
pub type Selects = Arc<dyn Fn(&str, &NodeSelection) -> bool + Send + Sync>;

/// The members that match a selection of nodes.
pub type MatchNodes = Arc<dyn Fn(&NodeSelection) -> MatchingNodes + Send + Sync>;

impl fmt::Debug for ClusterScope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClusterScope").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The result of a deploy.
pub struct Deployed {
    /// The live app.
    pub app: Arc<LiveApp>,
    /// True if the same revision was live already.
    pub unchanged: bool,
    /// Probable mistakes that do not prevent the deploy.
    pub warnings: Vec<String>,
}

type Workflows = BTreeMap<String, String>;

/// A checked revision that goes live.
struct Incoming {
    manifest: Manifest,
    revision: Revision,
    sources: Sources,
    /// True if calls of unknown functions are errors.
    strict: bool,
    aim: Aim,
}

/// The sources and assets of a revision.
enum Sources {
    /// Not in the store yet.
    New(BTreeMap<String, FunctionSource>, BTreeMap<String, Bytes>),
    /// In the store.
    Stored(BTreeMap<String, FunctionSource>, BTreeMap<String, Bytes>),
    /// Not needed, since other nodes run the functions.
    None,
}

/// The purpose of an install.
enum Aim {
    ThisNode,
    /// A new deployment of the cluster.
    Cluster(ClusterScope),
    /// A deployment that this or another node has made.
    Adopt(Deployment, Code),
}

impl Registry {
    /// Deploys an app, or replaces it.
    ///
    /// The app is checked, compiled and stored on disk before it goes live in one step. On an error nothing has changed.
    /// Running invocations finish on the revision on which they started. With [`Scope::Cluster`] the decision for all nodes is
    /// stored in the same step.
    // Boxed: the crate that polls a future compiles it, and this one contains the whole deploy.
    pub fn deploy(
        &self,
        deploy: Deploy,
    ) -> Pin<Box<dyn Future<Output = Result<Deployed, DeployError>> + Send + '_>> {
        Box::pin(self.replace_app(deploy))
    }

    async fn replace_app(&self, deploy: Deploy) -> Result<Deployed, DeployError> {
        let Deploy { manifest: manifest_text, sources, assets, workflows, strict, scope } = deploy;
        let manifest = Manifest::parse(&manifest_text, FILE_NAME)?;
        check_sources(&manifest, &sources)?;
        check_assets(&manifest, &assets)?;
        check_workflow_files(&manifest, &workflows)?;
        let revision = Revision::new(manifest_text, &sources, &assets, workflows);
        let aim = match scope {
            Scope::ThisNode => Aim::ThisNode,
            Scope::Cluster(scope) => Aim::Cluster(scope),
        };
        let sources = Sources::New(sources, assets);
        self.install(Incoming { manifest, revision, sources, strict, aim }).await
    }

    /// Makes the revision of a deployment of the cluster live here. The revision is in the store, with its sources if
    /// `code` is [`Code::Here`].
    ///
    /// # Errors
    /// Those of a deploy; `Superseded` if the deployment is no longer the decision of the cluster. Nothing has changed then.
    // Boxed, as `deploy`.
    pub fn adopt<'a>(
        &'a self,
        app: &'a str,
        deployment: Deployment,
        code: Code,
    ) -> Pin<Box<dyn Future<Output = Result<Deployed, DeployError>> + Send + 'a>> {
        Box::pin(self.adopt_deployment(app, deployment, code))
    }

    async fn adopt_deployment(
        &self,
        app: &str,
        deployment: Deployment,
        code: Code,
    ) -> Result<Deployed, DeployError> {
        let digest = deployment.revision.clone().unwrap_or_default();
        let revision = app_records::get_revision(&self.store, &digest)?;
        let manifest = Manifest::parse(&revision.manifest, FILE_NAME)?;
        if manifest.app != app {
            return Err(DeployError::OtherApp { app: app.to_owned(), other: manifest.app });
        }
        let sources = match code {
            Code::Elsewhere => Sources::None,
            Code::Here => {
                let (sources, assets) = self.stored_sources(&revision)?;
                check_sources(&manifest, &sources)?;
                Sources::Stored(sources, assets)
            }
        };
        let aim = Aim::Adopt(deployment, code);
        self.install(Incoming { manifest, revision, sources, strict: false, aim }).await
    }

    async fn install(&self, incoming: Incoming) -> Result<Deployed, DeployError> {
        let Incoming { manifest, mut revision, sources, strict, aim } = incoming;
        dry_run::compile_in_child(self.dry_run.as_ref(), &revision.workflows).await?;
        let workflows = std::mem::take(&mut revision.workflows);
        let (mut manifest, workflows, mut live_workflows) = compile_workflows(manifest, workflows).await?;
        revision.workflows = workflows;
        self.check_memory(&manifest, &revision)?;
        let lowered = self.memory_limits.lower(&mut manifest);

        let _changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        check_names(&manifest, &live_workflows, &routes)?;
        for workflow in live_workflows.iter_mut().filter_map(Arc::get_mut) {
            let before = routes.workflow(&workflow.name).cloned();
            workflow.keep_figures(before.as_deref());
        }
        let (mut refused, mut warnings) = check_calls(&manifest, &live_workflows, &routes);
        refused.extend(check_topics(&live_workflows));
        match &aim {
            // The node that got the deploy has checked it. What it calls may arrive here later.
            Aim::Adopt(..) => warnings.append(&mut refused),
            _ if strict => refused.append(&mut warnings),
            _ => {}
        }
        if !refused.is_empty() {
            return Err(DeployError::Calls { problems: refused });
        }
        warnings.extend(
            live_workflows.iter().filter_map(|workflow| Some(workflow.warnings.as_ref()?.to_string())),
        );
        if let Aim::Cluster(scope) = &aim {
            warnings.extend(check_nodes(&manifest.app, &manifest.nodes, (scope.matches)(&manifest.nodes))?);
        }
        // A lowered limit is not a mistake of the app, so that it is not an error in a strict deploy.
        warnings.extend(lowered);
        let digest = revision.digest();
        let live = routes.app(&manifest.app);
        let known = cluster_apps::cluster_app(self.store.objects(), &manifest.app)?;
        check_decided(&aim, &manifest.app, live, known.as_ref())?;
        if let Some(app) = live.filter(|app| app.revision == digest && is_done(&aim, app, known.as_ref())) {
            return Ok(Deployed { app: app.clone(), unchanged: true, warnings });
        }

        let mut batch = Batch::default();
        let mut record = self.record(&manifest, digest, live, known.as_ref(), &aim);
        // Checked before the functions are compiled, because the compiler writes its cache to the disk.
        let committer = self.store.committer();
        if committer.space().is_full {
            let error = committer.disk_full();
            return Err(DeployError::Commit { app: manifest.app, error });
        }
        let mut app = LiveApp::new(&manifest, &revision, &record, live_workflows, &self.metrics);
        let prepare_lines = self.prepare_all(&app, &sources).await?;
        // Other nodes may have decided while the functions were compiled.
        let known = cluster_apps::cluster_app(self.store.objects(), &manifest.app)?;
        check_decided(&aim, &manifest.app, live, known.as_ref())?;
        if let Aim::Cluster(scope) = &aim {
            let deployment = self.next_deployment(known.as_ref(), Some(record.live.clone()), scope);
            cluster_apps::put_deployment(&mut batch, &manifest.app, &deployment);
            record.deployment = Some(deployment.id());
            app.deployment.clone_from(&record.deployment);
        }
        let app = Arc::new(app);
        let next = routes.with_app(app.clone())?;

        if let Sources::New(sources, assets) = &sources {
            app_records::put_contents(&mut batch, &self.store, sources, assets);
        }
        app_records::put_revision(&mut batch, &self.store, &revision);
        app_records::put_app(&mut batch, &self.store, &app.name, &record);
        self.commit(&app.name, batch).await?;
        self.go_live(next);
        if let Some(before) = live {
            self.forget(
                before
                    .functions
                    .iter()
                    .filter(|function| !app.functions.iter().any(|kept| kept.name == function.name)),
            );
        }
        for (function, (level, message)) in prepare_lines {
            self.logs.add(&function, "", level, message);
        }
        self.collect_garbage().await;
        Ok(Deployed { app, unchanged: false, warnings })
    }

    fn check_memory(&self, manifest: &Manifest, revision: &Revision) -> Result<(), DeployError> {
        let asset_bytes: u64 = revision.assets.values().map(|asset| asset.bytes).sum();
        for (name, function) in &manifest.functions {
            let requested_bytes = function.limits.memory_bytes.saturating_add(asset_bytes as usize);
            let max_bytes = self.memory_limits.max_bytes;
            if requested_bytes > max_bytes {
                return Err(DeployError::TooMuchMemory {
                    function: name.clone(),
                    requested_bytes,
                    max_bytes,
                });
            }
        }
        Ok(())
    }

    /// A deployment that replaces those that the node knows.
    fn next_deployment(
        &self,
        known: Option<&ClusterApp>,
        revision: Option<String>,
        scope: &ClusterScope,
    ) -> Deployment {
        Deployment {
            number: cluster_apps::next_number(known),
            revision,
            node: scope.node.clone(),
            deployed_unix_ms: self.clock.now_unix_ms(),
            format: FORMAT,
        }
    }

    /// The record of an app that goes live. That of a new deployment of the cluster does not name it yet.
    fn record(
        &self,
        manifest: &Manifest,
        digest: String,
        live: Option<&Arc<LiveApp>>,
        known: Option<&ClusterApp>,
        aim: &Aim,
    ) -> AppRecord {
        let mut record = AppRecord {
            format: FORMAT,
            previous: live.map(|app| previous_of(app, &digest)).unwrap_or_default(),
            live: digest,
            deployed_unix_ms: self.clock.now_unix_ms(),
            deployment: known.map(|known| known.winner.id()),
            reach: Reach::ThisNode,
            code: Code::Here,
        };
        match aim {
            Aim::ThisNode => {}
            Aim::Cluster(ClusterScope { selects, .. }) => {
                record.reach = Reach::Cluster;
                if !selects(&manifest.app, &manifest.nodes) {
                    record.code = Code::Elsewhere;
                }
            }
            Aim::Adopt(deployment, code) => {
                record.reach = Reach::Cluster;
                record.deployment = Some(deployment.id());
                record.deployed_unix_ms = deployment.deployed_unix_ms;
                record.code = *code;
            }
        }
        record
    }

    /// Compiles the functions of an app, also if other nodes run them: a mistake fails the deploy. Returns the lines that they
    /// have logged.
    async fn prepare_all(
        &self,
        app: &LiveApp,
        sources: &Sources,
    ) -> Result<Vec<(Arc<str>, (LogLevel, String))>, DeployError> {
        let mut lines = Vec::new();
        let (Sources::New(sources, assets) | Sources::Stored(sources, assets)) = sources else {
            return Ok(lines);
        };
        let in_place = LiveFunction::deployed_assets(assets);
        let with_source =
            app.functions.iter().filter_map(|function| Some((function, sources.get(&*function.name)?)));
        let functions: Vec<_> = with_source.collect();
        let preparing: Vec<_> = functions
            .iter()
            .map(|(function, source)| function.preparing(source, &in_place, true))
            .collect();
        let max_loaded = if app.code == Code::Here { MAX_READY_PROGRAMS } else { 0 };
        let prepared = self.isolates.prepare_all(&preparing, max_loaded).await;
        let prepared = prepared.map_err(|(failed, reason)| DeployError::Prepare {
            function: functions[failed].0.name.to_string(),
            reason: Box::new(reason),
        })?;
        for ((function, _), prepared) in functions.iter().zip(prepared) {
            function.note_prepared(prepared.took);
            lines.extend(prepared.log.into_iter().map(|line| (function.name.clone(), line)));
            if let Some(program) = prepared.program {
                function.set_program(program);
            }
        }
        Ok(lines)
    }

    /// Removes an app. Returns the names of its functions. Its objects stay.
    ///
    /// # Errors
    /// `UnknownApp`; `DeployedToCluster` if the app is the cluster's and the scope this node.
    pub async fn remove(&self, name: &str, scope: &Scope) -> Result<Vec<String>, DeployError> {
        let _changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        // No app has another name; the store could not look for it.
        if !is_name(name) {
            find_app(&routes, name)?;
        }
        let known = cluster_apps::cluster_app(self.store.objects(), name)?;
        let known = known.filter(|known| known.winner.revision.is_some());
        let mut batch = Batch::default();
        let app = match (routes.app(name), &known, scope) {
            (Some(app), Some(_), Scope::ThisNode) if app.reach == Reach::Cluster => {
                return Err(DeployError::DeployedToCluster { app: app.name.to_string() });
            }
            (None, Some(_), Scope::Cluster(_)) => None,
            _ => Some(find_app(&routes, name)?),
        };
        if let (Some(known), Scope::Cluster(scope)) = (&known, scope) {
            let deployment = self.next_deployment(Some(known), None, scope);
            cluster_apps::put_deployment(&mut batch, name, &deployment);
        }
        self.take_down(name, app, &routes, batch).await
    }

    /// Removes a live app from this node because the cluster has decided so: `decision` names an app, this one or another that
    /// takes its names, and its deployment.
    ///
    /// # Errors
    /// `Superseded` if the deployment is no longer the decision of the cluster or the app was deployed again: a removal
    /// that was decided before must not take down what came after it. The store cannot write. Nothing has changed then.
    pub async fn adopt_removal(
        &self,
        app: &Arc<LiveApp>,
        decision: (&str, &Deployment),
    ) -> Result<(), DeployError> {
        let _changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        let (decided_app, deployment) = decision;
        let known = cluster_apps::cluster_app(self.store.objects(), decided_app)?;
        let is_same_app = routes.app(&app.name).is_some_and(|live| Arc::ptr_eq(live, app));
        if !is_same_app || known.is_none_or(|known| known.winner != *deployment) {
            return Err(DeployError::Superseded { app: app.name.to_string() });
        }
        self.take_down(&app.name, Some(app), &routes, Batch::default()).await.map(drop)
    }

    async fn take_down(
        &self,
        name: &str,
        app: Option<&Arc<LiveApp>>,
        routes: &Routes,
        mut batch: Batch,
    ) -> Result<Vec<String>, DeployError> {
        batch.delete(&self.store.spaces().apps, name.as_bytes());
        self.commit(name, batch).await?;
        let Some(app) = app else { return Ok(Vec::new()) };
        self.go_live(routes.without_app(name));
        self.forget(app.functions.iter());
        self.collect_garbage().await;
        Ok(app.functions.iter().map(|function| function.name.to_string()).collect())
    }

    /// Deploys an earlier revision again: the one whose digest starts with `revision`, or the previous one if that is empty.
    /// The live revision becomes an earlier one.
    pub async fn rollback(
        &self,
        name: &str,
        revision: &str,
        scope: Scope,
    ) -> Result<Arc<LiveApp>, DeployError> {
        let changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        let app = find_app(&routes, name)?;
        let target = pick_revision(app, revision)?;
        let stored = app_records::get_revision(&self.store, &target)?;
        if !self.missing_contents(&stored)?.is_empty() {
            return Err(DeployError::NotOnThisNode { app: name.to_owned(), revision: target });
        }
        let (sources, assets) = self.stored_sources(&stored)?;
        drop(changing);
        // A full deploy, because other apps may have taken names and paths since.
        let Revision { manifest, workflows, .. } = stored;
        Ok(self.deploy(Deploy { manifest, sources, assets, workflows, strict: false, scope }).await?.app)
    }

    async fn commit(&self, app: &str, batch: Batch) -> Result<(), DeployError> {
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| DeployError::Commit { app: app.to_owned(), error })
    }

    /// Removes the logs and metrics of functions that are no longer deployed.
    fn forget<'a>(&self, functions: impl Iterator<Item = &'a Arc<LiveFunction>>) {
        for function in functions {
            self.logs.forget(&function.name);
            self.metrics.forget(&function.name);
        }
    }

    fn go_live(&self, routes: Routes) {
        self.store.objects().set_classes(routes.object_classes());
        self.routes.store(Arc::new(routes));
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Checks that an adopted deployment is still the decision of the cluster, and that no deploy to this node alone has
/// overridden it: it was chosen before the change began.
fn check_decided(
    aim: &Aim,
    app: &str,
    live: Option<&Arc<LiveApp>>,
    known: Option<&ClusterApp>,
) -> Result<(), DeployError> {
    let Aim::Adopt(deployment, _) = aim else { return Ok(()) };
    let is_overridden = live.is_some_and(|live| {
        live.reach == Reach::ThisNode && live.deployment.as_ref() == Some(&deployment.id())
    });
    match known {
        Some(known) if known.winner == *deployment && !is_overridden => Ok(()),
        _ => Err(DeployError::Superseded { app: app.to_owned() }),
    }
}

/// True if nothing is left to do for the revision that is live.
fn is_done(aim: &Aim, live: &LiveApp, known: Option<&ClusterApp>) -> bool {
    match aim {
        Aim::ThisNode => live.reach == Reach::ThisNode,
        Aim::Cluster(_) => {
            let is_decided = |known: &ClusterApp| {
                known.winner.revision.as_ref() == Some(&live.revision) && known.lost.is_empty()
            };
            live.reach == Reach::Cluster && known.is_some_and(is_decided)
        }
        Aim::Adopt(deployment, code) => {
            let is_same = live.deployment.as_ref() == Some(&deployment.id());
            is_same && live.code == *code && live.reach == Reach::Cluster
        }
    }
}

/// Compiles the workflows of a deploy on a thread for blocking work.
async fn compile_workflows(
    manifest: Manifest,
    texts: Workflows,
) -> Result<(Manifest, Workflows, Vec<Arc<LiveWorkflow>>), DeployError> {
    let compile = move || {
        let workflows = definition::compile_all(&manifest, &texts)?;
        if let Some(refusal) = workflows.iter().find_map(|workflow| workflow.refusal.clone()) {
            return Err(definition::WorkflowError::from(refusal).into());
        }
        workflows.iter().try_for_each(|workflow| workflow.check_documents())?;
        Ok((manifest, texts, workflows))
    };
    match tokio::task::spawn_blocking(compile).await {
        Ok(compiled) => compiled,
        Err(error) => Err(DryRunError::Ended(error.to_string()).into()),
    }
}

/// Checks that no function and no workflow has the name of one of another app.
fn check_names(
    manifest: &Manifest,
    workflows: &[Arc<LiveWorkflow>],
    routes: &Routes,
) -> Result<(), DeployError> {
    let functions = manifest.functions.keys().map(String::as_str);
    for name in functions.chain(workflows.iter().map(|workflow| &*workflow.name)) {
        let of_function = routes.function(name).map(|function| &function.app);
        let of_workflow = routes.workflow(name).map(|workflow| &workflow.app);
        if let Some(app) = of_function.or(of_workflow).filter(|app| ***app != manifest.app) {
            return Err(DeployError::NameTaken { function: name.to_owned(), app: app.to_string() });
        }
    }
    Ok(())
}

/// The earlier revisions to keep after a deploy, newest first.
fn previous_of(app: &LiveApp, new: &str) -> Vec<String> {
    let mut previous = vec![app.revision.clone()];
    previous.extend(app.previous.iter().filter(|digest| *digest != new).cloned());
    previous.truncate(MAX_PREVIOUS_REVISIONS);
    previous
}

pub(super) fn find_app<'a>(routes: &'a Routes, name: &str) -> Result<&'a Arc<LiveApp>, DeployError> {
    routes.app(name).ok_or_else(|| {
        let hint = match routes.function(name) {
            Some(function) => {
                format!("; `{name}` is a function of app `{}`: name the app instead", function.app)
            }
            None => match near(name, routes.apps().map(|app| &*app.name)).as_slice() {
                [] => "; `edgefaas list` shows all apps".to_owned(),
                names => format!("; did you mean `{}`?", names.join("` or `")),
            },
        };
        DeployError::UnknownApp { name: name.to_owned(), hint }
    })
}

fn pick_revision(app: &LiveApp, prefix: &str) -> Result<String, DeployError> {
    if prefix.is_empty() {
        let before = app.previous.first().cloned();
        return before.ok_or_else(|| DeployError::NoEarlierRevision { app: app.name.to_string() });
    }
    if app.revision.starts_with(prefix) && !app.previous.iter().any(|digest| digest.starts_with(prefix)) {
        let (app, revision) = (app.name.to_string(), app.revision.clone());
        return Err(DeployError::AlreadyLive { app, revision });
    }
    let mut matching = app.previous.iter().filter(|digest| digest.starts_with(prefix));
    match (matching.next(), matching.next()) {
        (Some(digest), None) => Ok(digest.clone()),
        _ => Err(DeployError::UnknownRevision {
            app: app.name.to_string(),
            revision: prefix.to_owned(),
            kept: match app.previous.as_slice() {
                [] => "none".to_owned(),
                kept => kept.iter().map(|digest| &digest[..12]).collect::<Vec<_>>().join(", "),
            },
        }),
    }
}

#[cfg(test)]
mod tests;
