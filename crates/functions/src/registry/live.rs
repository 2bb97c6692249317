//! Apps and functions as they run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use edgefaas_isolates::{
    Asset, FunctionSource, Isolates, Isolation, PrepareError, Preparing, Program, ReadAsset,
};
use edgefaas_manifest::{self as manifest, Manifest, ObjectClass};
use edgefaas_state::store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::admission::Admission;
use super::definition::LiveWorkflow;
use super::records::{self, AppRecord, AssetRecord, Revision};
use super::reply_size::ReplySize;
use crate::metrics::{FunctionFamilies, FunctionMetrics};
use crate::outgoing::Caller;

/// An app that is live.
pub struct LiveApp {
    /// Its name.
    pub name: Arc<str>,
    /// The digest of its revision.
    pub revision: String,
    /// When it went live, in milliseconds since the Unix epoch.
    pub deployed_unix_ms: u64,
    /// Its functions, by name.
    pub functions: Vec<Arc<LiveFunction>>,
    /// Its workflows, by name.
    pub workflows: Vec<Arc<LiveWorkflow>>,
    /// How its objects are kept, by patterns of their names.
    pub objects: BTreeMap<String, ObjectClass>,
    /// Earlier revisions, newest first.
    pub previous: Vec<String>,
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
                    caller: Caller::new(format!("function `{function}`"), spec.permissions.http.clone()),
                    kind: source.kind.clone(),
                    source_bytes: source.bytes,
                    owner: format!("{} {function}", record.live),
                    source_digest: source.digest.clone(),
                    assets: revision.assets.clone(),
                    prepared_us: AtomicU64::new(0),
                    admission: Admission::new(&spec.limits),
                    reply_size: ReplySize::default(),
                    metrics: metrics.function(function),
                    program: ArcSwap::default(),
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
        }
    }
}

/// A function of one revision, with its queue and its program.
pub struct LiveFunction {
    /// Its name.
    pub name: Arc<str>,
    /// The app it belongs to.
    pub app: Arc<str>,
    /// What the manifest says.
    pub spec: manifest::Function,
    /// Its requests to other servers.
    pub caller: Caller,
    /// `component` or `javascript`.
    pub kind: String,
    /// The size of its source.
    pub source_bytes: u64,
    /// Who runs, waits and is turned away.
    pub admission: Arc<Admission>,
    /// How large its replies over HTTP are.
    pub reply_size: ReplySize,
    /// Its figures.
    pub metrics: FunctionMetrics,
    /// Its own among all functions and revisions.
    owner: String,
    source_digest: String,
    assets: BTreeMap<String, AssetRecord>,
    /// How long it took to make the program, in microseconds.
    prepared_us: AtomicU64,
    /// Taken out where memory is short, and made again at the next call.
    program: ArcSwap<OnceCell<Program>>,
    /// When it was used last, in milliseconds since `since`.
    used_ms: AtomicU64,
    since: Instant,
    failure: Mutex<Option<Failure>>,
}

/// The program of a function cannot be made. Callers that wait for the same program share the error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProgramError {
    /// The store does not have the function's source, or it is damaged.
    #[error(transparent)]
    Source(Arc<StoreError>),
    /// The source does not compile, or its top-level code failed.
    #[error(transparent)]
    Prepare(Arc<PrepareError>),
}

/// The program could not be made.
#[derive(Clone)]
struct Failure {
    error: ProgramError,
    /// It is not tried again before.
    until: Instant,
    wait: Duration,
}

/// Making a program takes a core for some time: what failed is tried again after so long, then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl LiveFunction {
    /// The program, made now if there is none yet.
    ///
    /// # Errors
    /// It cannot be made. A failure is returned again without a new attempt for 1 s, then for twice as long each time, 60 s at
    /// most.
    pub async fn program(&self, isolates: &Isolates, store: &Arc<Store>) -> Result<Program, ProgramError> {
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
                let source = records::get_source(store, &self.source_digest)
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
                        let wait = before.map_or(FIRST_WAIT, |before| (before.wait * 2).min(LONGEST_WAIT));
                        Failure { error: error.clone(), until: now + wait, wait }
                    }
                });
            }
        }
        made.cloned()
    }

    /// Makes a program of its source; `anew` evaluates JavaScript again whose memory is kept.
    pub(super) async fn prepare(
        &self,
        isolates: &Isolates,
        source: &FunctionSource,
        assets: &[Asset],
        anew: bool,
    ) -> Result<Program, PrepareError> {
        let (memory_bytes, isolation) = (self.spec.limits.memory_bytes, isolation(&self.spec));
        let wanted = Preparing {
            name: &self.name,
            owner: &self.owner,
            source,
            assets,
            memory_bytes,
            isolation,
            anew,
        };
        let program = isolates.prepare(wanted).await?;
        self.prepared_us.store(program.prepare_time().as_micros() as u64, Relaxed);
        Ok(program)
    }

    /// What it may read in place, out of the store.
    fn assets(&self, store: &Arc<Store>) -> Vec<Asset> {
        let asset = |(name, record): (&String, &AssetRecord)| {
            let (store, record) = (store.clone(), record.clone());
            let bytes = record.bytes;
            let digest = *blake3::hash(record.digest.as_bytes()).as_bytes();
            let read: ReadAsset = Arc::new(move || records::get_asset(&store, &record).map_err(Into::into));
            Asset { name: name.clone(), digest, bytes, read }
        };
        self.assets.iter().map(asset).collect()
    }

    /// The same of a deploy, whose contents are at hand.
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

    /// How long it took to make the program the last time: to compile or evaluate it, or to load what was kept of that.
    /// Zero while there was none.
    pub fn prepared(&self) -> Duration {
        Duration::from_micros(self.prepared_us.load(Relaxed))
    }

    /// When it was called last, if its program is there.
    pub(super) fn program_used(&self) -> Option<Instant> {
        self.program.load().get()?;
        Some(self.since + Duration::from_millis(self.used_ms.load(Relaxed)))
    }

    /// Lets go of the program; invocations that run keep it until they end.
    pub(super) fn drop_program(&self) {
        self.program.store(Arc::default());
    }

    /// Why the program could not be made, if the last attempt failed.
    pub fn failure(&self) -> Option<ProgramError> {
        self.failure.lock().as_ref().map(|failure| failure.error.clone())
    }

    pub(super) fn set_program(&self, program: Program) {
        // Only a new function is given its program, so that there is none yet.
        let _ = self.program.load().set(program);
    }
}

/// How instances of a function follow one another.
fn isolation(spec: &manifest::Function) -> Isolation {
    match spec.reuse {
        true => Isolation::Reuse { max: spec.limits.instances as usize },
        false => Isolation::Fresh,
    }
}
