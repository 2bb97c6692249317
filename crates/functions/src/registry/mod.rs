//! Registry of functions: apps are deployed as immutable revisions, and looked up in an immutable table of routes.

mod admission;
mod app_records;
mod cluster_apps;
mod compare;
mod definition;
mod deploy;
mod deploy_checks;
mod deploy_error;
mod dry_run;
mod interests;
mod live;
mod matching_nodes;
mod reply_size;
mod routes;
mod staged;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use app_records::AppRecord;
use arc_swap::ArcSwap;
use edgefaas_isolates::Isolates;
use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_manifest::{FILE_NAME, Manifest, SourceKind};
use edgefaas_platform::Clock;
use edgefaas_state::store::{Store, StoreError};
use tokio::sync::{Mutex, oneshot, watch};

pub use admission::{Admission, Full, Permit, QueueSlot, Ticket};
pub use app_records::{Code, Content, Reach};
pub use cluster_apps::{ClusterApp, Deployment, app_of_object, cluster_app, cluster_apps, winner_of};
pub use compare::{FileChange, FileContent};
pub use definition::{Documents, LiveOrder, LiveWorkflow, WorkflowError, has_rule};
pub use deploy::{ClusterScope, Deploy, Deployed, MatchNodes, Scope, Selects};
pub use deploy_error::DeployError;
pub use dry_run::{DRY_RUN_STACK_BYTES, DryRunError, dry_run_memory_bytes, dry_run_workflows};
pub use interests::{Interest, Interests, SharedInterests, Waiter};
#[cfg(test)]
pub(crate) use live::function_of;
pub use live::{LiveApp, LiveFunction, ProgramError};
pub use matching_nodes::{AbsentWord, MatchingNodes};
pub use reply_size::{Expected, Probe, ReplySize, SMALL_REPLY_BYTES};
pub use routes::{HttpRoute, MqttRoute, NoWorkflow, ObjectRoute, RouteConflict, Routes, ScheduleRoute};
pub use staged::StageError;

use crate::logs::Logs;
use crate::metrics::FunctionFamilies;
use crate::secrets::SecretName;

/// Maximum length of the name of an app or a function, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// Minimum similarity of a name that is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

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
                if function.source_kind() == SourceKind::Script
                    && function.limits.response_bytes > self.largest_bytes as u64
                {
                    warnings.push(format!(
                        "limits.response of function `{name}` is more than its memory on this node: a larger answer fails"
                    ));
                }
            }
        }
        warnings
    }
}

/// Whether this node of a cluster fires an occurrence of a schedule: its app, and an identification of the schedule in it (see
/// [`Routes::schedule_ids`]).
pub type FiresHere = Arc<dyn Fn(&LiveApp, &str, Occurrence) -> Firing + Send + Sync>;

/// An occurrence of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occurrence {
    /// Due at this time, in milliseconds since the Unix epoch: the same on all nodes.
    At(u64),
    /// The end of an interval, which each node has begun at a time of its own.
    OfInterval,
}

/// The node that fires an occurrence of a schedule.
#[derive(Debug)]
pub enum Firing {
    /// This one.
    Here,
    /// Another one.
    Elsewhere,
    /// Another one, and this one if that is lost before it has fired: then a message arrives, within about 10 s. Otherwise the
    /// sender is dropped.
    IfOthersFail(oneshot::Receiver<()>),
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
    /// Decides which node of a cluster fires an occurrence of a schedule; this node without it.
    fires_here: std::sync::OnceLock<FiresHere>,
    /// Revisions that are fetched from other nodes and not live yet; `None` until that is known.
    staged: parking_lot::Mutex<Option<BTreeSet<String>>>,
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
            fires_here: std::sync::OnceLock::new(),
            staged: parking_lot::Mutex::default(),
        })
    }

    /// Sets the decision which node of a cluster fires an occurrence of a schedule. Only the first call has an effect.
    pub fn set_fires_here(&self, fires_here: FiresHere) {
        let _ = self.fires_here.set(fires_here);
    }

    /// Whether this node fires an occurrence of a schedule of an app. `schedule` identifies it in the app.
    pub fn fires_here(&self, app: &str, schedule: &str, occurrence: Occurrence) -> Firing {
        let routes = self.routes();
        let Some(app) = routes.app(app) else { return Firing::Elsewhere };
        match (app.code, self.fires_here.get()) {
            (Code::Elsewhere, _) => Firing::Elsewhere,
            (Code::Here, Some(fires_here)) => fires_here(app, schedule, occurrence),
            (Code::Here, None) => Firing::Here,
        }
    }

    /// The wall clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
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
            match function.program(&self.isolates, &self.store).await {
                Ok(_) | Err(ProgramError::Elsewhere { .. }) => {}
                // Only logged: each call of the function returns the error.
                Err(error) => {
                    tracing::error!(function = %function.name, %error, "a function cannot run");
                }
            }
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
