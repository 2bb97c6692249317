//! Registry of functions: apps are deployed as immutable revisions, and looked up in an immutable table of routes.

mod admission;
mod app_records;
mod definition;
mod dry_run;
mod interests;
mod live;
mod reply_size;
mod routes;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use app_records::{AppRecord, Revision};
use arc_swap::ArcSwap;
use bytes::Bytes;
use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_isolates::{FunctionSource, Isolates, PrepareError};
use edgefaas_manifest::{FILE_NAME, Manifest, ManifestError, SourceKind, is_asset_name};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use tokio::sync::{Mutex, watch};

pub use admission::{Admission, Full, Permit, QueueSlot, Ticket};
pub use definition::{LiveWorkflow, WorkflowError, has_rule};
pub use dry_run::{DRY_RUN_STACK_BYTES, DryRunError, dry_run_memory_bytes, dry_run_workflows};
pub use interests::{Interest, Interests, SharedInterests, Waiter};
pub use live::{LiveApp, LiveFunction, ProgramError};
pub use reply_size::{Expected, Probe, ReplySize, SMALL_REPLY_BYTES};
pub use routes::{HttpRoute, MqttRoute, ObjectRoute, RouteConflict, Routes, ScheduleRoute};

use crate::logs::Logs;
use crate::metrics::FunctionFamilies;
use crate::secrets::SecretName;

/// Maximum number of earlier revisions that an app keeps for a rollback.
const MAX_PREVIOUS_REVISIONS: usize = 10;
/// Maximum number of programs that stay in memory after a deploy: more would take memory before their first call.
const MAX_READY_PROGRAMS: usize = 128;
/// Maximum length of the name of an app or a function, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// Minimum similarity of a name that is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// Errors of a deploy, removal or rollback. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The manifest is not valid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The deploy has no source for a function.
    #[error("the source of function `{function}` is missing from the deploy")]
    MissingSource {
        /// The function.
        function: String,
    },
    /// The deploy has a source without a function in the manifest.
    #[error("the deploy has a source for `{function}`, which the manifest does not name")]
    UnknownSource {
        /// The name of the source.
        function: String,
    },
    /// An asset matches no pattern of the manifest, or its name is not a valid path.
    #[error("the deploy has an asset `{}` that no pattern in `assets` of the manifest covers", name.escape_debug())]
    UnknownAsset {
        /// Its name.
        name: String,
    },
    /// The kind of the source does not match `main`.
    #[error("`main = \"{main}\"` of function `{function}` does not match its source, which is a {kind}")]
    WrongKind {
        /// The function.
        function: String,
        /// Its `main`.
        main: String,
        /// The kind of the source.
        kind: &'static str,
    },
    /// The name belongs to another app.
    #[error(
        "function `{function}` belongs to app `{app}` already; choose another name, or remove that app"
    )]
    NameTaken {
        /// The function.
        function: String,
        /// The app with that name.
        app: String,
    },
    /// A workflow is invalid.
    #[error(transparent)]
    Workflow(#[from] WorkflowError),
    /// The workflows cannot be compiled within the limits.
    #[error(transparent)]
    DryRun(#[from] DryRunError),
    /// A workflow file matches no pattern of the manifest.
    #[error("the deploy has a workflow `{}` that no pattern in `workflows` of the manifest covers", file.escape_debug())]
    UnknownWorkflow {
        /// Its file.
        file: String,
    },
    /// Workflows have calls that are not permitted, or (in a strict deploy) calls of unknown functions.
    #[error("{}", problems.join("\n"))]
    Calls {
        /// One line for each call.
        problems: Vec<String>,
    },
    /// Triggers are in conflict.
    #[error(transparent)]
    Route(#[from] RouteConflict),
    /// The memory limit of a function is over that of the node.
    #[error(
        "limits.memory of function `{function}` and the assets of its app are {requested_bytes} bytes; this node allows at \
         most {max_bytes} (isolates.max_memory)"
    )]
    TooMuchMemory {
        /// The function.
        function: String,
        /// The limit of the function plus the size of the assets.
        requested_bytes: usize,
        /// The limit of the node.
        max_bytes: usize,
    },
    /// The source could not be compiled or evaluated.
    #[error("function `{function}`: {reason}")]
    Prepare {
        /// The function.
        function: String,
        /// The cause.
        reason: Box<PrepareError>,
    },
    /// No app has this name.
    #[error("there is no app `{name}`{hint}")]
    UnknownApp {
        /// The unknown name.
        name: String,
        /// A suggestion.
        hint: String,
    },
    /// The app has no earlier revision.
    #[error("app `{app}` has no earlier revision")]
    NoEarlierRevision {
        /// The app.
        app: String,
    },
    /// No earlier revision, or more than one, has a digest that starts like this.
    #[error("app `{app}` has no revision `{revision}`, or more than one starts like this; it has {kept}")]
    UnknownRevision {
        /// The app.
        app: String,
        /// The beginning of the digest.
        revision: String,
        /// The earlier revisions.
        kept: String,
    },
    /// The store could not write the change.
    #[error("app `{app}` could not be stored: {error}")]
    Commit {
        /// The app.
        app: String,
        /// The cause.
        error: CommitError,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
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

/// Compiles the workflows of a deploy on a thread for blocking work.
async fn compile_workflows(
    manifest: Manifest,
    texts: Workflows,
) -> Result<(Manifest, Workflows, Vec<Arc<LiveWorkflow>>), DeployError> {
    let compile = move || {
        let workflows = definition::compile_all(&manifest, &texts)?;
        Ok((manifest, texts, workflows))
    };
    match tokio::task::spawn_blocking(compile).await {
        Ok(compiled) => compiled,
        Err(error) => Err(DryRunError::Ended(error.to_string()).into()),
    }
}

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
}

/// Limits for the linear memory of one function.
#[derive(Debug, Clone, Copy)]
pub struct FunctionMemoryLimits {
    /// `isolates.max_memory`: a function whose limit plus assets is larger is refused.
    pub max_bytes: usize,
    /// Maximum that fits into the memory of all functions: a larger limit is lowered to it.
    pub largest_bytes: usize,
}

impl FunctionMemoryLimits {
    /// Lowers limits that do not fit into the node's memory. Returns a warning for each.
    fn lower(self, manifest: &mut Manifest) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, function) in &mut manifest.functions {
            let limit = &mut function.limits.memory_bytes;
            if *limit > self.largest_bytes {
                warnings.push(format!(
                    "limits.memory of function `{name}` is {} MiB; this node has room for {} MiB in one function, which is \
                     its limit here (`edgefaas status` shows the memory of the node)",
                    *limit >> 20,
                    self.largest_bytes >> 20
                ));
                *limit = self.largest_bytes;
            }
        }
        warnings
    }
}

/// All functions of a node.
pub struct Registry {
    store: Arc<Store>,
    isolates: Arc<Isolates>,
    logs: Arc<Logs>,
    metrics: Arc<FunctionFamilies>,
    clock: Clock,
    memory_limits: FunctionMemoryLimits,
    /// The child process for dry runs.
    dry_run: Option<ChildCompiler>,
    routes: ArcSwap<Routes>,
    changes: watch::Sender<u64>,
    // Held during a deploy or removal: one at a time.
    changing: Mutex<()>,
}

impl Registry {
    /// Loads the live apps from the store. Programs are prepared at the first call, or by [`warm`](Self::warm).
    pub fn open(
        store: Arc<Store>,
        isolates: Arc<Isolates>,
        logs: Arc<Logs>,
        metrics: Arc<FunctionFamilies>,
        clock: Clock,
        memory_limits: FunctionMemoryLimits,
        dry_run: Option<ChildCompiler>,
    ) -> Result<Self, StoreError> {
        let mut apps = BTreeMap::new();
        for entry in store.spaces().apps.iter() {
            let (name, record) = entry.into_inner()?;
            let name = String::from_utf8_lossy(&name).into_owned();
            // A damaged app must not prevent the start of the node.
            match load_app(&store, &metrics, memory_limits, &name, &record) {
                Ok(app) => drop(apps.insert(name, app)),
                Err(error) => tracing::error!(app = name, %error, "an app could not be loaded"),
            }
        }
        let routes = build_routes(apps);
        store.objects().set_classes(routes.object_classes());
        let (changes, _) = watch::channel(0);
        let routes = ArcSwap::from_pointee(routes);
        let changing = Mutex::new(());
        Ok(Self {
            store,
            isolates,
            logs,
            metrics,
            clock,
            memory_limits,
            dry_run,
            routes,
            changes,
            changing,
        })
    }

    /// The current routes.
    pub fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// A receiver that is notified of every change of the routes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Frees memory: releases the least recently called half of the programs that were not called within `in_use`. Returns how
    /// many were released. The next call prepares a program again.
    pub fn relieve(&self, in_use: Duration) -> usize {
        let idle = self.idle(in_use);
        let half = idle.len().div_ceil(2);
        idle.iter().take(half).for_each(|function| function.drop_program());
        half
    }

    /// Limits the number of programs in memory to `max_programs`: releases the least recently called ones, but none that was
    /// called within `in_use`.
    pub fn keep_programs(&self, max_programs: usize, in_use: Duration) {
        let loaded = self.routes().functions().filter(|function| function.program_used().is_some()).count();
        let excess = loaded.saturating_sub(max_programs);
        if excess > 0 {
            self.idle(in_use).iter().take(excess).for_each(|function| function.drop_program());
        }
    }

    /// Functions with a program that were not called within `in_use`, the least recently called first.
    fn idle(&self, in_use: Duration) -> Vec<Arc<LiveFunction>> {
        let now = Instant::now();
        let routes = self.routes();
        let mut idle: Vec<_> = routes
            .functions()
            .filter_map(|function| Some((function.program_used()?, function)))
            .filter(|(used, _)| now.saturating_duration_since(*used) >= in_use)
            .collect();
        idle.sort_by_key(|(used, _)| *used);
        idle.into_iter().map(|(_, function)| function.clone()).collect()
    }

    /// The secrets that deployed apps name, sorted.
    pub fn named_secrets(&self) -> Vec<SecretName> {
        let routes = self.routes();
        let named = routes.apps().flat_map(|app| {
            let of_functions = app.functions.iter().flat_map(|function| &function.spec.secrets);
            let of_workflows = app.workflows.iter().flat_map(|workflow| &workflow.program.secrets);
            let named = of_functions.chain(of_workflows);
            named.map(move |name| SecretName { app: Some(app.name.to_string()), name: name.clone() })
        });
        let mut named: Vec<SecretName> = named.collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// Prepares the programs of up to `max_programs` functions, one after another.
    pub async fn warm(&self, max_programs: usize) {
        let functions: Vec<_> = self.routes().functions().take(max_programs).cloned().collect();
        for function in functions {
            // Only logged: each call of the function returns the error.
            if let Err(error) = function.program(&self.isolates, &self.store).await {
                tracing::error!(function = %function.name, %error, "a function cannot run");
            }
        }
    }

    /// Deploys an app, or replaces it.
    ///
    /// The app is checked, compiled and stored on disk before it goes live in one step. On an error nothing has changed.
    /// Running invocations finish on the revision on which they started.
    // Boxed: the crate that polls a future compiles it, and this one contains the whole deploy.
    pub fn deploy(
        &self,
        deploy: Deploy,
    ) -> Pin<Box<dyn Future<Output = Result<Deployed, DeployError>> + Send + '_>> {
        Box::pin(self.replace_app(deploy))
    }

    async fn replace_app(&self, deploy: Deploy) -> Result<Deployed, DeployError> {
        let Deploy { manifest: manifest_text, sources, assets, workflows, strict } = deploy;
        let manifest = Manifest::parse(&manifest_text, FILE_NAME)?;
        check_sources(&manifest, &sources)?;
        check_assets(&manifest, &assets)?;
        check_workflow_files(&manifest, &workflows)?;
        dry_run::compile_in_child(self.dry_run.as_ref(), &workflows).await?;
        let (mut manifest, workflows, live_workflows) = compile_workflows(manifest, workflows).await?;
        let asset_bytes: usize = assets.values().map(Bytes::len).sum();
        for (name, function) in &manifest.functions {
            let requested_bytes = function.limits.memory_bytes.saturating_add(asset_bytes);
            let max_bytes = self.memory_limits.max_bytes;
            if requested_bytes > max_bytes {
                return Err(DeployError::TooMuchMemory {
                    function: name.clone(),
                    requested_bytes,
                    max_bytes,
                });
            }
        }

        let lowered = self.memory_limits.lower(&mut manifest);

        let _changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        for name in manifest.functions.keys() {
            if let Some(other) = routes.function(name).filter(|other| *other.app != manifest.app) {
                let app = other.app.to_string();
                return Err(DeployError::NameTaken { function: name.clone(), app });
            }
        }
        let new_names = live_workflows.iter().map(|workflow| &*workflow.name);
        for name in manifest.functions.keys().map(String::as_str).chain(new_names) {
            if let Some(other) = routes.workflow(name).filter(|other| *other.app != manifest.app) {
                let app = other.app.to_string();
                return Err(DeployError::NameTaken { function: name.to_owned(), app });
            }
        }
        if let Some((workflow, other)) = live_workflows.iter().find_map(|workflow| {
            let other = routes.function(&workflow.name).filter(|other| *other.app != manifest.app)?;
            Some((workflow, other))
        }) {
            let (function, app) = (workflow.name.to_string(), other.app.to_string());
            return Err(DeployError::NameTaken { function, app });
        }
        let (refused, mut warnings) = check_calls(&manifest, &live_workflows, &routes);
        let refused: Vec<String> = match strict {
            true => refused.into_iter().chain(warnings.drain(..)).collect(),
            false => refused,
        };
        if !refused.is_empty() {
            return Err(DeployError::Calls { problems: refused });
        }
        warnings.extend(
            live_workflows.iter().filter_map(|workflow| Some(workflow.warnings.as_ref()?.to_string())),
        );
        // A lowered limit is not a mistake of the app, so that it is not an error in a strict deploy.
        warnings.extend(lowered);
        let revision = Revision::new(manifest_text, &sources, &assets, workflows);
        let digest = revision.digest();
        let live = routes.app(&manifest.app);
        if let Some(app) = live.filter(|app| app.revision == digest) {
            return Ok(Deployed { app: app.clone(), unchanged: true, warnings });
        }

        let record = AppRecord {
            format: app_records::FORMAT,
            previous: live.map(|app| previous_of(app, &digest)).unwrap_or_default(),
            live: digest,
            deployed_unix_ms: self.clock.now_unix_ms(),
        };
        // Checked before the functions are compiled, because the compiler writes its cache to the disk.
        let committer = self.store.committer();
        if committer.space().is_full {
            let error = committer.disk_full();
            return Err(DeployError::Commit { app: manifest.app, error });
        }
        let app = Arc::new(LiveApp::new(&manifest, &revision, &record, live_workflows, &self.metrics));
        let mut prepare_lines = Vec::new();
        let in_place = LiveFunction::deployed_assets(&assets);
        for (number, function) in app.functions.iter().enumerate() {
            let source = &sources[&*function.name];
            let prepared = function.prepare(&self.isolates, source, &in_place, true).await;
            let program = prepared.map_err(|reason| DeployError::Prepare {
                function: function.name.to_string(),
                reason: Box::new(reason),
            })?;
            prepare_lines
                .extend(program.prepare_log().iter().map(|line| (function.name.clone(), line.clone())));
            if number < MAX_READY_PROGRAMS {
                function.set_program(program);
            }
        }
        let next = routes.with_app(app.clone())?;

        let mut batch = Batch::default();
        app_records::put_contents(&mut batch, &self.store, &sources, &assets);
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

    /// Removes an app. Returns the names of its functions. Its objects stay.
    pub async fn remove(&self, name: &str) -> Result<Vec<String>, DeployError> {
        let _changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        let app = find_app(&routes, name)?;
        let mut batch = Batch::default();
        batch.delete(&self.store.spaces().apps, app.name.as_bytes());
        self.commit(&app.name, batch).await?;
        self.go_live(routes.without_app(&app.name));
        self.forget(app.functions.iter());
        self.collect_garbage().await;
        Ok(app.functions.iter().map(|function| function.name.to_string()).collect())
    }

    /// Deploys an earlier revision again: the one whose digest starts with `revision`, or the previous one if that is empty.
    /// The live revision becomes an earlier one.
    pub async fn rollback(&self, name: &str, revision: &str) -> Result<Arc<LiveApp>, DeployError> {
        let changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        let app = find_app(&routes, name)?;
        let target = pick_revision(app, revision)?;
        let stored = app_records::get_revision(&self.store, &target)?;
        let mut sources = BTreeMap::new();
        for (function, source) in &stored.functions {
            sources.insert(function.clone(), app_records::get_source(&self.store, &source.digest)?);
        }
        let mut assets = BTreeMap::new();
        for (name, asset) in &stored.assets {
            assets.insert(name.clone(), app_records::get_asset(&self.store, asset)?);
        }
        drop(changing);
        // A full deploy, because other apps may have taken names and paths since.
        let Revision { manifest, workflows, .. } = stored;
        Ok(self.deploy(Deploy { manifest, sources, assets, workflows, strict: false }).await?.app)
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

    /// Deletes unused revisions and sources. If that fails, the next deploy tries again.
    async fn collect_garbage(&self) {
        let collected = app_records::garbage(&self.store);
        match collected {
            Ok(batch) if batch.is_empty() => {}
            Ok(batch) => {
                if let Err(error) = self.store.committer().commit(batch, Durability::Written).await {
                    tracing::warn!(%error, "old revisions could not be deleted");
                }
            }
            Err(error) => tracing::warn!(%error, "old revisions could not be found"),
        }
    }
}

/// The routes of all loaded apps. If two apps are in conflict, which only damage can cause, the later one is skipped.
fn build_routes(apps: BTreeMap<String, Arc<LiveApp>>) -> Routes {
    let mut routes = Routes::default();
    for (name, app) in apps {
        let taken = app.functions.iter().find_map(|function| routes.function(&function.name));
        if let Some(other) = taken {
            tracing::error!(app = name, other = %other.app, "skipped an app: another app has functions of the same name");
            continue;
        }
        match routes.with_app(app) {
            Ok(next) => routes = next,
            Err(error) => tracing::error!(app = name, %error, "skipped an app"),
        }
    }
    routes
}

fn load_app(
    store: &Store,
    metrics: &FunctionFamilies,
    memory_limits: FunctionMemoryLimits,
    name: &str,
    record: &[u8],
) -> Result<Arc<LiveApp>, StoreError> {
    let record = AppRecord::decode(name, record)?;
    let revision = app_records::get_revision(store, &record.live)?;
    let mut manifest = Manifest::parse(&revision.manifest, FILE_NAME).map_err(|error| {
        StoreError::Damaged { what: format!("the manifest of app `{name}`"), reason: error.to_string() }
    })?;
    memory_limits.lower(&mut manifest).iter().for_each(|warning| tracing::warn!(app = name, "{warning}"));
    let workflows = definition::compile_all(&manifest, &revision.workflows).map_err(|error| {
        StoreError::Damaged { what: format!("a workflow of app `{name}`"), reason: error.to_string() }
    })?;
    Ok(Arc::new(LiveApp::new(&manifest, &revision, &record, workflows, metrics)))
}

fn check_sources(
    manifest: &Manifest,
    sources: &BTreeMap<String, FunctionSource>,
) -> Result<(), DeployError> {
    if let Some(function) = sources.keys().find(|name| !manifest.functions.contains_key(*name)) {
        return Err(DeployError::UnknownSource { function: function.clone() });
    }
    for (name, function) in &manifest.functions {
        let source =
            sources.get(name).ok_or_else(|| DeployError::MissingSource { function: name.clone() })?;
        let is_script = matches!(source, FunctionSource::JavaScript(_));
        if is_script != (function.source_kind() == SourceKind::Script) {
            return Err(DeployError::WrongKind {
                function: name.clone(),
                main: function.main.clone(),
                kind: source.kind(),
            });
        }
    }
    Ok(())
}

fn check_assets(manifest: &Manifest, assets: &BTreeMap<String, Bytes>) -> Result<(), DeployError> {
    let patterns: Vec<_> =
        manifest.assets.iter().filter_map(|text| glob::Pattern::new(text).ok()).collect();
    for name in assets.keys() {
        if !is_asset_name(name) || !patterns.iter().any(|pattern| pattern.matches(name)) {
            return Err(DeployError::UnknownAsset { name: name.clone() });
        }
    }
    Ok(())
}

fn check_workflow_files(manifest: &Manifest, texts: &BTreeMap<String, String>) -> Result<(), DeployError> {
    let patterns: Vec<_> =
        manifest.workflows.files.iter().filter_map(|text| glob::Pattern::new(text).ok()).collect();
    let stray = texts
        .keys()
        .find(|file| !is_asset_name(file) || !patterns.iter().any(|pattern| pattern.matches(file)));
    stray.map_or(Ok(()), |file| Err(DeployError::UnknownWorkflow { file: file.clone() }))
}

/// Checks the calls of workflows. Returns errors for calls that are not permitted, and warnings for calls of unknown functions.
fn check_calls(
    manifest: &Manifest,
    workflows: &[Arc<LiveWorkflow>],
    routes: &Routes,
) -> (Vec<String>, Vec<String>) {
    let (mut refused, mut missing) = (Vec::new(), Vec::new());
    let is_own = |name: &str| {
        manifest.functions.contains_key(name) || workflows.iter().any(|workflow| *workflow.name == *name)
    };
    for workflow in workflows {
        let (calls, runs) = (workflow.program.functions(), workflow.program.workflows());
        for name in calls.iter().chain(&runs) {
            let exists = routes.function(name).is_some() || routes.workflow(name).is_some();
            if is_own(name) {
                continue;
            }
            if !workflow.permissions.allows_call(name) && exists {
                refused.push(format!(
                    "workflow `{}` calls `{name}` of another app, which its permissions do not name: \
                     [workflows.{}.permissions] call = [\"{name}\"], or --allow call={name} for a single file",
                    workflow.name, workflow.name
                ));
            } else if !exists {
                let names = routes.functions().map(|function| &*function.name);
                let names = names.chain(manifest.functions.keys().map(String::as_str));
                let near = match near(name, names).as_slice() {
                    [] => String::new(),
                    near => format!("; did you mean `{}`?", near.join("` or `")),
                };
                missing.push(format!(
                    "workflow `{}` calls `{name}`, which is not deployed{near}",
                    workflow.name
                ));
            }
        }
    }
    (refused, missing)
}

/// The earlier revisions to keep after a deploy, newest first.
fn previous_of(app: &LiveApp, new: &str) -> Vec<String> {
    let mut previous = vec![app.revision.clone()];
    previous.extend(app.previous.iter().filter(|digest| *digest != new).cloned());
    previous.truncate(MAX_PREVIOUS_REVISIONS);
    previous
}

fn find_app<'a>(routes: &'a Routes, name: &str) -> Result<&'a Arc<LiveApp>, DeployError> {
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

/// Up to three names of `known` that are similar to `name`, the most similar first.
pub fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    // No known name is that long, so a comparison would waste time.
    if name.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    let mut similar: Vec<(f64, &str)> = known
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    similar.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}
