//! Deployed apps and functions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use edgefaas_isolates::{
    Asset, FunctionSource, Isolates, Isolation, PrepareError, Preparing, Program, ReadAsset,
};
use edgefaas_manifest::{self as manifest, Manifest, NodeSelection, ObjectClass};
use edgefaas_state::store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::admission::Admission;
use super::app_records::{self, AppRecord, AssetRecord, Code, Reach, Revision};
use super::definition::LiveWorkflow;
use super::reply_size::ReplySize;
use crate::metrics::{FunctionFamilies, FunctionMetrics};
use crate::outgoing::{Caller, ResponseLimit};

/// A deployed app: its live revision.
pub struct LiveApp {
    /// Its name.
    pub name: Arc<str>,
    /// The digest of its revision.
    pub revision: String,
    /// The time of the deploy, in milliseconds since the Unix epoch.
    pub deployed_unix_ms: u64,
    /// Its functions, by name.
    pub functions: Vec<Arc<LiveFunction>>,
    /// Its workflows, by name.
    pub workflows: Vec<Arc<LiveWorkflow>>,
    /// The classes of its objects, by name pattern.
    pub objects: BTreeMap<String, ObjectClass>,
    /// The digests of earlier revisions, newest first.
    pub previous: Vec<String>,
    /// The nodes that the deploy applies to.
    pub reach: Reach,
    /// Whether this node runs its functions.
    pub code: Code,
    /// The id of the cluster's deployment that this is, or that it has overridden.
    pub deployment: Option<String>,
    /// The nodes that run it.
    pub nodes: NodeSelection,
}

impl LiveApp {
    pub(super) fn new(
        manifest: &Manifest,
        revision: &Revision,
        record: &AppRecord,
        workflows: Vec<Arc<LiveWorkflow>>,
        metrics: &FunctionFamilies,
    ) -> Self {
        let name: Arc<str> = manifest.app.as_str().into();
        let functions = manifest
            .functions
            .iter()
            .filter_map(|(function, spec)| {
                let source = revision.functions.get(function)?;
                Some(Arc::new(LiveFunction {
                    name: function.as_str().into(),
                    app: name.clone(),
                    spec: spec.clone(),
                    caller: Caller::new(
                        format!("function `{function}`"),
                        spec.permissions.http.clone(),
                        ResponseLimit::OfFunction { bytes: spec.limits.response_bytes },
                    ),
                    kind: source.kind.clone(),
                    code: record.code,
                    source_bytes: source.bytes,
                    owner: format!("{} {function}", record.live),
                    source_digest: source.digest.clone(),
                    assets: revision.assets.clone(),
                    prepared_us: AtomicU64::new(0),
                    admission: Admission::new(&spec.limits),
                    reply_size: ReplySize::default(),
                    metrics: metrics.function(function),
                    program: ArcSwap::default(),
                    is_placed: AtomicBool::new(spec.placement.is_some() || record.code == Code::Elsewhere),
                    used_ms: AtomicU64::new(0),
                    since: Instant::now(),
                    failure: Mutex::default(),
                }))
            })
            .collect();
        Self {
            name,
            revision: record.live.clone(),
            deployed_unix_ms: record.deployed_unix_ms,
            functions,
            workflows,
            objects: manifest.objects.clone(),
            previous: record.previous.clone(),
            reach: record.reach,
            code: record.code,
            deployment: record.deployment.clone(),
            nodes: manifest.nodes.clone(),
        }
    }
}

/// A function of one revision, with its queue and its program.
pub struct LiveFunction {
    /// Its name.
    pub name: Arc<str>,
    /// The app it belongs to.
    pub app: Arc<str>,
    /// Its settings in the manifest.
    pub spec: manifest::Function,
    /// The owner of its outgoing requests.
    pub caller: Caller,
    /// `component` or `javascript`.
    pub kind: String,
    /// Whether this node runs it.
    pub code: Code,
    /// The size of its source in bytes.
    pub source_bytes: u64,
    /// Its permits and its queue.
    pub admission: Arc<Admission>,
    /// The expected size of its replies over HTTP.
    pub reply_size: ReplySize,
    /// Its metrics.
    pub metrics: FunctionMetrics,
    /// Unique over all functions and revisions.
    owner: String,
    source_digest: String,
    assets: BTreeMap<String, AssetRecord>,
    /// The time to prepare the program, in microseconds.
    prepared_us: AtomicU64,
    /// Removed when memory is short, and prepared again at the next call.
    program: ArcSwap<OnceCell<Program>>,
    /// See [`is_placed`](Self::is_placed).
    is_placed: AtomicBool,
    /// The last use of the program, in milliseconds since `since`.
    used_ms: AtomicU64,
    since: Instant,
    failure: Mutex<Option<Failure>>,
}

/// The program of a function could not be prepared. Callers that wait for the same program share the error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProgramError {
    /// Other nodes run the function.
    #[error("its code is on other nodes only, as [nodes] in the manifest of app `{app}` says")]
    Elsewhere {
        /// The app.
        app: Arc<str>,
    },
    /// The store does not have the function's source, or it is damaged.
    #[error(transparent)]
    Source(Arc<StoreError>),
    /// The source does not compile, or its top-level code failed.
    #[error(transparent)]
    Prepare(Arc<PrepareError>),
}

/// The last failure to prepare the program.
#[derive(Clone)]
struct Failure {
    error: ProgramError,
    /// The earliest time of the next attempt.
    until: Instant,
    wait: Duration,
}

/// Backoff after a failure, because preparing a program takes much CPU time: it doubles with each failure up to [`MAX_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

impl LiveFunction {
    /// The identification of a schedule of this function, within its app.
    pub fn schedule_id(&self, schedule: &str) -> String {
        format!("{} {schedule}", self.name)
    }

    /// The program. Prepares it if there is none.
    ///
    /// # Errors
    /// It could not be prepared. The same error is returned without a new attempt for 1 s; this time doubles with each
    /// failure, up to 60 s.
    pub async fn program(&self, isolates: &Isolates, store: &Arc<Store>) -> Result<Program, ProgramError> {
        if self.code == Code::Elsewhere {
            return Err(ProgramError::Elsewhere { app: self.app.clone() });
        }
        self.used_ms.store(self.since.elapsed().as_millis() as u64, Relaxed);
        if let Some(program) = self.program.load().get() {
            return Ok(program.clone());
        }
        let cell = self.program.load_full();
        let made = cell
            .get_or_try_init(|| async {
                let before = self.failure.lock().clone();
                if let Some(failure) = before.filter(|failure| Instant::now() < failure.until) {
                    return Err(failure.error);
                }
                let source = app_records::get_source(store, &self.source_digest)
                    .map_err(|error| ProgramError::Source(Arc::new(error)))?;
                let assets = self.assets(store);
                let prepared = self.prepare(isolates, &source, &assets, false).await;
                prepared.map_err(|error| ProgramError::Prepare(Arc::new(error)))
            })
            .await;
        let mut failure = self.failure.lock();
        match &made {
            Ok(_) => *failure = None,
            Err(error) => {
                let now = Instant::now();
                let before = failure.take();
                *failure = Some(match before {
                    Some(before) if now < before.until => before,
                    before => {
                        let wait = before.map_or(FIRST_WAIT, |before| (before.wait * 2).min(MAX_WAIT));
                        Failure { error: error.clone(), until: now + wait, wait }
                    }
                });
            }
        }
        made.cloned()
    }

    /// Prepares the program from its source. `anew` evaluates JavaScript again even if its snapshot is cached.
    pub(super) async fn prepare(
        &self,
        isolates: &Isolates,
        source: &FunctionSource,
        assets: &[Asset],
        anew: bool,
    ) -> Result<Program, PrepareError> {
        let program = isolates.prepare(self.preparing(source, assets, anew)).await?;
        self.note_prepared(program.prepare_time());
        Ok(program)
    }

    /// The function as it is given to the isolates.
    pub(super) fn preparing<'a>(
        &'a self,
        source: &'a FunctionSource,
        assets: &'a [Asset],
        anew: bool,
    ) -> Preparing<'a> {
        Preparing {
            name: &self.name,
            owner: &self.owner,
            source,
            assets,
            memory_bytes: self.spec.limits.memory_bytes,
            isolation: isolation(&self.spec),
            anew,
        }
    }

    /// Notes the time of the preparation of a program.
    pub(super) fn note_prepared(&self, took: Duration) {
        self.prepared_us.store(took.as_micros() as u64, Relaxed);
    }

    /// Its assets, which are read from the store.
    fn assets(&self, store: &Arc<Store>) -> Vec<Asset> {
        let asset = |(name, record): (&String, &AssetRecord)| {
            let (store, record) = (store.clone(), record.clone());
            let bytes = record.bytes;
            let digest = *blake3::hash(record.digest.as_bytes()).as_bytes();
            let read: ReadAsset =
                Arc::new(move || app_records::get_asset(&store, &record).map_err(Into::into));
            Asset { name: name.clone(), digest, bytes, read }
        };
        self.assets.iter().map(asset).collect()
    }

    /// The assets of a deploy, whose contents are in memory.
    pub(super) fn deployed_assets(contents: &BTreeMap<String, Bytes>) -> Vec<Asset> {
        let asset = |(name, content): (&String, &Bytes)| {
            let record = AssetRecord::new(content);
            let digest = *blake3::hash(record.digest.as_bytes()).as_bytes();
            let content = content.clone();
            Asset {
                name: name.clone(),
                digest,
                bytes: record.bytes,
                read: Arc::new(move || Ok(content.clone())),
            }
        };
        contents.iter().map(asset).collect()
    }

    /// The time of the last preparation of the program: compiling, evaluating or loading it from the cache. Zero before the
    /// first one.
    pub fn prepared(&self) -> Duration {
        Duration::from_micros(self.prepared_us.load(Relaxed))
    }

    /// The time of its last call, if its program is in memory.
    pub(super) fn program_used(&self) -> Option<Instant> {
        self.program.load().get()?;
        Some(self.since + Duration::from_millis(self.used_ms.load(Relaxed)))
    }

    /// Releases the program. Running invocations keep it until they end.
    pub(super) fn drop_program(&self) {
        self.program.store(Arc::default());
    }

    /// True if the placement policies decide where its invocations run.
    pub fn is_placed(&self) -> bool {
        self.is_placed.load(Relaxed)
    }

    /// Sets whether the placement policies decide where its invocations run. It is initially true for a function with a tag,
    /// and for one whose code is on other nodes only.
    pub fn set_placed(&self, is_placed: bool) {
        self.is_placed.store(is_placed, Relaxed);
    }

    /// The error of the last preparation, if it failed.
    pub fn failure(&self) -> Option<ProgramError> {
        self.failure.lock().as_ref().map(|failure| failure.error.clone())
    }

    pub(super) fn set_program(&self, program: Program) {
        // Called for new functions only, which have no program yet.
        let _ = self.program.load().set(program);
    }
}

/// Whether invocations of a function reuse instances.
fn isolation(spec: &manifest::Function) -> Isolation {
    match spec.reuse {
        true => Isolation::Reuse { max: spec.limits.instances as usize },
        false => Isolation::Fresh,
    }
}

/// The first function of a manifest, without code.
#[cfg(test)]
pub(crate) fn function_of(manifest: &str) -> Arc<LiveFunction> {
    let manifest = Manifest::parse(manifest, "edgefaas.toml").expect("a manifest");
    let source = |name: &String| {
        let (digest, kind) = ("0".to_owned(), "javascript".to_owned());
        (name.clone(), app_records::SourceRecord { digest, kind, bytes: 1 })
    };
    let revision = Revision {
        format: 1,
        manifest: String::new(),
        functions: manifest.functions.keys().map(source).collect(),
        assets: BTreeMap::new(),
        workflows: BTreeMap::new(),
    };
    let record = AppRecord {
        format: 1,
        live: "0".to_owned(),
        deployed_unix_ms: 0,
        previous: Vec::new(),
        deployment: None,
        reach: Reach::ThisNode,
        code: Code::Here,
    };
    let app = LiveApp::new(&manifest, &revision, &record, Vec::new(), &FunctionFamilies::default());
    app.functions.first().expect("a function").clone()
}
