//! Which functions there are: deployed as apps, kept as immutable revisions, looked up in a snapshot.

mod admission;
mod definition;
mod dry_run;
mod interests;
mod live;
mod records;
mod reply_size;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_isolates::{FunctionSource, Isolates, PrepareError};
use edgefaas_manifest::{FILE_NAME, Manifest, ManifestError, SourceKind, is_asset_name};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use records::{AppRecord, Revision};
use tokio::sync::{Mutex, watch};

pub use admission::{Admission, Full, Permit, Place, Ticket};
pub use definition::{LiveWorkflow, WorkflowError, has_rule};
pub use dry_run::{DRY_RUN_STACK_BYTES, DryRunError, dry_run_memory_bytes, dry_run_workflows};
pub use interests::{Interest, Interests, SharedInterests, Waiter};
pub use live::{LiveApp, LiveFunction, ProgramError};
pub use reply_size::{Expected, Probe, ReplySize, SMALL_REPLY_BYTES};
pub use routes::{HttpRoute, MqttRoute, ObjectRoute, RouteConflict, Routes, ScheduleRoute};

use crate::logs::Logs;
use crate::metrics::FunctionFamilies;
use crate::secrets::SecretName;

/// Earlier revisions that are kept for a rollback.
const KEPT_REVISIONS: usize = 10;
/// Programs of one deploy that are kept ready: those of more functions would take memory before anybody calls them.
const READY_PROGRAMS: usize = 128;
/// No name of an app or a function is longer.
const MAX_NAME_BYTES: usize = 63;
/// How alike a name must be to be offered instead of an unknown one.
const NEAR_SIMILARITY: f64 = 0.7;

/// A deploy, removal or rollback that changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The manifest is not valid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A function came without its source.
    #[error("the source of function `{function}` is missing from the deploy")]
    MissingSource {
        /// The function.
        function: String,
    },
    /// A source came without its function.
    #[error("the deploy has a source for `{function}`, which the manifest does not name")]
    UnknownSource {
        /// The source's name.
        function: String,
    },
    /// An asset that the manifest does not name, or whose name is no path.
    #[error("the deploy has an asset `{}` that no pattern in `assets` of the manifest covers", name.escape_debug())]
    UnknownAsset {
        /// Its name.
        name: String,
    },
    /// The source is of another kind than `main` says.
    #[error("`main = \"{main}\"` of function `{function}` does not fit its source, which is a {kind}")]
    WrongKind {
        /// The function.
        function: String,
        /// Its `main`.
        main: String,
        /// What came.
        kind: &'static str,
    },
    /// The name belongs to another app.
    #[error(
        "function `{function}` belongs to app `{app}` already; choose another name, or remove that app"
    )]
    NameTaken {
        /// The function.
        function: String,
        /// Whose it is.
        app: String,
    },
    /// A workflow is no good.
    #[error(transparent)]
    Workflow(#[from] WorkflowError),
    /// A workflow would use up the node.
    #[error(transparent)]
    DryRun(#[from] DryRunError),
    /// A file of a workflow that the manifest does not name.
    #[error("the deploy has a workflow `{}` that no pattern in `workflows` of the manifest covers", file.escape_debug())]
    UnknownWorkflow {
        /// Its file.
        file: String,
    },
    /// A workflow may not do what it is to do, or calls what is not there.
    #[error("{}", problems.join("\n"))]
    Calls {
        /// One line each.
        problems: Vec<String>,
    },
    /// Two functions want the same path.
    #[error(transparent)]
    Route(#[from] RouteConflict),
    /// The function may have more memory than the node gives any isolate.
    #[error(
        "limits.memory of function `{function}` and the assets of its app are {wanted_bytes} bytes; this node gives at \
         most {max_bytes} (isolates.max_memory)"
    )]
    TooMuchMemory {
        /// The function.
        function: String,
        /// What it wants, assets included.
        wanted_bytes: usize,
        /// What there is.
        max_bytes: usize,
    },
    /// The source can't be a function.
    #[error("function `{function}`: {reason}")]
    Prepare {
        /// The function.
        function: String,
        /// Why.
        reason: Box<PrepareError>,
    },
    /// There is no such app.
    #[error("there is no app `{name}`{hint}")]
    UnknownApp {
        /// The name asked for.
        name: String,
        /// What else it may have been.
        hint: String,
    },
    /// There is nothing to go back to.
    #[error("app `{app}` has no earlier revision")]
    NoEarlierRevision {
        /// The app.
        app: String,
    },
    /// No kept revision has that digest.
    #[error("app `{app}` has no revision `{revision}`, or more than one starts like this; it has {kept}")]
    UnknownRevision {
        /// The app.
        app: String,
        /// What was asked for.
        revision: String,
        /// What there is.
        kept: String,
    },
    /// It could not be written.
    #[error("app `{app}` could not be stored: {error}")]
    Commit {
        /// The app.
        app: String,
        /// Why.
        error: CommitError,
    },
    /// It could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a deploy did.
pub struct Deployed {
    /// The app as it is live now.
    pub app: Arc<LiveApp>,
    /// It was live already.
    pub unchanged: bool,
    /// What works but is perhaps not meant.
    pub warnings: Vec<String>,
}

type Workflows = BTreeMap<String, String>;

/// Compiles the workflows of a deploy where that holds up nobody.
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

/// What is deployed.
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
    /// A workflow that calls what is not there is an error, not a warning.
    pub strict: bool,
}

/// How much linear memory a node gives a function.
#[derive(Debug, Clone, Copy)]
pub struct FunctionMemoryLimits {
    /// `isolates.max_memory`: what asks for more is refused, its assets included.
    pub max_bytes: usize,
    /// What fits into the memory of all functions: a larger limit is lowered to it.
    pub largest_bytes: usize,
}

impl FunctionMemoryLimits {
    /// Lowers limits that do not fit into the node's memory; gives a warning for each.
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
    /// Where workflows are compiled first.
    dry_run: Option<ChildCompiler>,
    routes: ArcSwap<Routes>,
    changes: watch::Sender<u64>,
    // Deploys happen one after another.
    changing: Mutex<()>,
}

impl Registry {
    /// Reads back what was live. Programs are made when they are first needed, or by
    /// [`warm`](Self::warm).
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
            // One damaged app must not keep the node from the others.
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

    /// The snapshot of now.
    pub fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// Told at every change of the routes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Memory is short: lets go of the half of the programs that was not called for longest, none that was called within
    /// `in_use`; says how many went. They are made again when they are called.
    pub fn relieve(&self, in_use: Duration) -> usize {
        let idle = self.idle(in_use);
        let half = idle.len().div_ceil(2);
        idle.iter().take(half).for_each(|function| function.drop_program());
        half
    }

    /// Lets go of the programs above `most` that were not called for longest, none that was called within `in_use`.
    pub fn keep_programs(&self, most: usize, in_use: Duration) {
        let loaded = self.routes().functions().filter(|function| function.program_used().is_some()).count();
        let too_many = loaded.saturating_sub(most);
        if too_many > 0 {
            self.idle(in_use).iter().take(too_many).for_each(|function| function.drop_program());
        }
    }

    /// Functions with a program that were not called within `in_use`, the one that was not called for longest first.
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

    /// Makes programs that are not there yet, one after another, `most` of them at most.
    pub async fn warm(&self, most: usize) {
        let functions: Vec<_> = self.routes().functions().take(most).cloned().collect();
        for function in functions {
            // Whoever calls the function is told; here it is only early.
            if let Err(error) = function.program(&self.isolates, &self.store).await {
                tracing::error!(function = %function.name, %error, "a function cannot run");
            }
        }
    }

    /// Replaces an app as a whole.
    ///
    /// Everything is checked, compiled and stored on disk before the app goes live in one step; on an
    /// error nothing has changed. Invocations that run finish on the revision they started on.
    pub async fn deploy(&self, deploy: Deploy) -> Result<Deployed, DeployError> {
        let Deploy { manifest: manifest_text, sources, assets, workflows, strict } = deploy;
        let manifest = Manifest::parse(&manifest_text, FILE_NAME)?;
        check_sources(&manifest, &sources)?;
        check_assets(&manifest, &assets)?;
        check_workflow_files(&manifest, &workflows)?;
        dry_run::look(self.dry_run.as_ref(), &workflows).await?;
        let (mut manifest, workflows, live_workflows) = compile_workflows(manifest, workflows).await?;
        let asset_bytes: usize = assets.values().map(Bytes::len).sum();
        for (name, function) in &manifest.functions {
            let wanted_bytes = function.limits.memory_bytes.saturating_add(asset_bytes);
            let max_bytes = self.memory_limits.max_bytes;
            if wanted_bytes > max_bytes {
                return Err(DeployError::TooMuchMemory { function: name.clone(), wanted_bytes, max_bytes });
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
        // Not a mistake of the app, so that a strict deploy takes it as well.
        warnings.extend(lowered);
        let revision = Revision::new(manifest_text, &sources, &assets, workflows);
        let digest = revision.digest();
        let live = routes.app(&manifest.app);
        if let Some(app) = live.filter(|app| app.revision == digest) {
            return Ok(Deployed { app: app.clone(), unchanged: true, warnings });
        }

        let record = AppRecord {
            format: records::FORMAT,
            previous: live.map(|app| previous_of(app, &digest)).unwrap_or_default(),
            live: digest,
            deployed_unix_ms: self.clock.now_unix_ms(),
        };
        // What is compiled is kept on the disk: nothing is, of a deploy that is refused.
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
            if number < READY_PROGRAMS {
                function.set_program(program);
            }
        }
        let next = routes.with_app(app.clone())?;

        let mut batch = Batch::default();
        records::put_contents(&mut batch, &self.store, &sources, &assets);
        records::put_revision(&mut batch, &self.store, &revision);
        records::put_app(&mut batch, &self.store, &app.name, &record);
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

    /// Takes an app away; gives the names of its functions. Its objects stay.
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

    /// Makes an earlier revision live again: the one whose digest starts with `revision`, or the one
    /// before the live one. The one that was live becomes an earlier one.
    pub async fn rollback(&self, name: &str, revision: &str) -> Result<Arc<LiveApp>, DeployError> {
        let changing = self.changing.lock().await;
        let routes = self.routes.load_full();
        let app = find_app(&routes, name)?;
        let target = pick_revision(app, revision)?;
        let stored = records::get_revision(&self.store, &target)?;
        let mut sources = BTreeMap::new();
        for (function, source) in &stored.functions {
            sources.insert(function.clone(), records::get_source(&self.store, &source.digest)?);
        }
        let mut assets = BTreeMap::new();
        for (name, asset) in &stored.assets {
            assets.insert(name.clone(), records::get_asset(&self.store, asset)?);
        }
        drop(changing);
        // The same way as any deploy: names and paths may have gone to other apps since.
        let Revision { manifest, workflows, .. } = stored;
        Ok(self.deploy(Deploy { manifest, sources, assets, workflows, strict: false }).await?.app)
    }

    async fn commit(&self, app: &str, batch: Batch) -> Result<(), DeployError> {
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| DeployError::Commit { app: app.to_owned(), error })
    }

    /// Logs and figures of functions that are gone.
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

    /// Deletes revisions and sources that nothing refers to any more. What fails is tried again after
    /// the next deploy.
    async fn collect_garbage(&self) {
        let collected = records::garbage(&self.store);
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

/// The routes of all apps that were live. Two that can't be side by side, which only damage can bring
/// about, cost the later one and not the node.
fn build_routes(apps: BTreeMap<String, Arc<LiveApp>>) -> Routes {
    let mut routes = Routes::default();
    for (name, app) in apps {
        let taken = app.functions.iter().find_map(|function| routes.function(&function.name));
        if let Some(other) = taken {
            tracing::error!(app = name, other = %other.app, "an app is left out: its names are taken");
            continue;
        }
        match routes.with_app(app) {
            Ok(next) => routes = next,
            Err(error) => tracing::error!(app = name, %error, "an app is left out"),
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
    let revision = records::get_revision(store, &record.live)?;
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

/// What workflows call that they may not, and what is not there.
fn check_calls(
    manifest: &Manifest,
    workflows: &[Arc<LiveWorkflow>],
    routes: &Routes,
) -> (Vec<String>, Vec<String>) {
    let (mut refused, mut missing) = (Vec::new(), Vec::new());
    let own = |name: &str| {
        manifest.functions.contains_key(name) || workflows.iter().any(|workflow| *workflow.name == *name)
    };
    for workflow in workflows {
        let (calls, runs) = (workflow.program.functions(), workflow.program.workflows());
        for name in calls.iter().chain(&runs) {
            let there = routes.function(name).is_some() || routes.workflow(name).is_some();
            if own(name) {
                continue;
            }
            if !workflow.permissions.allows_call(name) && there {
                refused.push(format!(
                    "workflow `{}` calls `{name}` of another app, which its permissions do not name: \
                     [workflows.{}.permissions] call = [\"{name}\"], or --allow call={name} for a single file",
                    workflow.name, workflow.name
                ));
            } else if !there {
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

/// The revisions to keep beside the new one, newest first.
fn previous_of(app: &LiveApp, new: &str) -> Vec<String> {
    let mut previous = vec![app.revision.clone()];
    previous.extend(app.previous.iter().filter(|digest| *digest != new).cloned());
    previous.truncate(KEPT_REVISIONS);
    previous
}

fn find_app<'a>(routes: &'a Routes, name: &str) -> Result<&'a Arc<LiveApp>, DeployError> {
    routes.app(name).ok_or_else(|| {
        let hint = match routes.function(name) {
            Some(function) => {
                format!("; `{name}` is a function of app `{}`: name the app instead", function.app)
            }
            None => match near(name, routes.apps().map(|app| &*app.name)).as_slice() {
                [] => "; `edgefaas list` shows those there are".to_owned(),
                names => format!("; did you mean `{}`?", names.join("` or `")),
            },
        };
        DeployError::UnknownApp { name: name.to_owned(), hint }
    })
}

fn pick_revision(app: &LiveApp, wanted: &str) -> Result<String, DeployError> {
    if wanted.is_empty() {
        let before = app.previous.first().cloned();
        return before.ok_or_else(|| DeployError::NoEarlierRevision { app: app.name.to_string() });
    }
    let mut matching = app.previous.iter().filter(|digest| digest.starts_with(wanted));
    match (matching.next(), matching.next()) {
        (Some(digest), None) => Ok(digest.clone()),
        _ => Err(DeployError::UnknownRevision {
            app: app.name.to_string(),
            revision: wanted.to_owned(),
            kept: match app.previous.as_slice() {
                [] => "none".to_owned(),
                kept => kept.iter().map(|digest| &digest[..12]).collect::<Vec<_>>().join(", "),
            },
        }),
    }
}

/// Names among `known` that are like `name`, the most alike first; at most three.
pub fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    // Longer than any name: comparing it would only cost time.
    if name.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    let mut alike: Vec<(f64, &str)> = known
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(similarity, _)| *similarity >= NEAR_SIMILARITY)
        .collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    alike.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}
