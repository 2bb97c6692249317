//! Apps and functions as they run.

use std::sync::Arc;

use edgefaas_isolates::{Isolates, Program};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::records::{self, AppRecord, Revision};
use crate::dispatch::Admission;
use crate::manifest::{self, Manifest};
use crate::metrics::{FunctionMetrics, Metrics};
use crate::store::Store;

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
    /// Earlier revisions, newest first.
    pub previous: Vec<String>,
}

impl LiveApp {
    pub(super) fn new(
        manifest: &Manifest,
        revision: &Revision,
        record: &AppRecord,
        metrics: &Metrics,
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
                    kind: source.kind.clone(),
                    source_bytes: source.bytes,
                    source_digest: source.digest.clone(),
                    admission: Admission::new(&spec.limits),
                    metrics: metrics.function(function),
                    program: OnceCell::new(),
                    failure: Mutex::default(),
                }))
            })
            .collect();
        Self {
            name,
            revision: record.live.clone(),
            deployed_unix_ms: record.deployed_unix_ms,
            functions,
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
    /// `component` or `javascript`.
    pub kind: String,
    /// The size of its source.
    pub source_bytes: u64,
    /// Who runs, waits and is turned away.
    pub admission: Arc<Admission>,
    /// Its figures.
    pub metrics: FunctionMetrics,
    source_digest: String,
    program: OnceCell<Program>,
    failure: Mutex<Option<String>>,
}

impl LiveFunction {
    /// The program, made now if it is not there yet; or why it can't be.
    pub async fn program(&self, isolates: &Isolates, store: &Store) -> Result<&Program, String> {
        if let Some(program) = self.program.get() {
            return Ok(program);
        }
        let made = self
            .program
            .get_or_try_init(|| async {
                let source =
                    records::get_source(store, &self.source_digest).map_err(|error| error.to_string())?;
                let memory_bytes = self.spec.limits.memory_bytes;
                let made = isolates.prepare(&self.name, &source, memory_bytes).await;
                made.map_err(|error| error.to_string())
            })
            .await;
        *self.failure.lock() = made.as_ref().err().cloned();
        made
    }

    /// Why the program could not be made, if that was tried and failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(super) fn set_program(&self, program: Program) {
        // Only a new function is given its program, so that there is none yet.
        let _ = self.program.set(program);
    }
}
