//! Functions prepared to run on the shared engine.

use std::borrow::Cow;
use std::sync::Arc;

use wasmtime::Module;

use super::blocking::{blocking, internal};
use super::engine::JsEngine;
use super::error::{PrepareError, PrepareFault};
use super::evaluate::{EvaluatedScript, ScriptTask, check_limit};
use super::loaded_snapshots::FunctionSnapshot;
use super::snapshot::{FORMAT, FUNCTION_KEY, MemoryFacts, SnapshotMetadata};
use super::stack::Files;
use crate::assets::{self, Asset, AssetTable};
use crate::code_cache::{Cached, LoadedFile};
use crate::compile::{Compiler, ParseThread, Task};
use crate::{LogLevel, ModuleGraph};

/// A function ready to run: its snapshot, and its files for stacks.
pub struct JsProgram {
    pub(super) snapshot: Arc<FunctionSnapshot>,
    pub(super) files: Arc<Files>,
    pub(super) assets: Arc<AssetTable>,
    lines: Vec<(LogLevel, String)>,
}

/// A function that is to be prepared.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// Owner of the function: a cached snapshot is never used for another owner.
    pub owner: &'a str,
    /// Modules of the function.
    pub graph: &'a ModuleGraph,
    /// Assets of the app.
    pub assets: &'a [Asset],
    /// Memory limit of the function in bytes, assets not counted.
    pub memory_bytes: usize,
    /// True if the function is evaluated again although its snapshot is cached.
    pub anew: bool,
}

impl JsProgram {
    /// Log lines of the top-level code.
    pub fn deploy_log(&self) -> &[(LogLevel, String)] {
        &self.lines
    }

    /// Linear memory that an invocation starts with, in bytes; pages that are not touched cost nothing.
    pub fn memory_bytes(&self) -> usize {
        self.snapshot.memory_bytes()
    }

    /// The part of [`JsProgram::memory_bytes`] that is not zeros, in pages of 4 KiB: the memory that the deployed function
    /// takes.
    pub fn filled_bytes(&self) -> usize {
        self.snapshot.filled_bytes()
    }

    /// True if its snapshot is in memory: it is released when no calls follow, and loaded again at the next one.
    pub fn is_loaded(&self) -> bool {
        self.snapshot.is_loaded()
    }
}

impl JsEngine {
    /// Evaluates the modules of a function, for any number of runs; see [`JsEngine::prepare_script`].
    pub async fn prepare(
        &self,
        graph: &ModuleGraph,
        memory_bytes: usize,
    ) -> Result<JsProgram, PrepareError> {
        self.prepare_script(Script { owner: "", graph, assets: &[], memory_bytes, anew: true }).await
    }

    /// Evaluates the modules of a function and caches the snapshot, for any number of runs.
    ///
    /// Takes some milliseconds, more if top-level code computes, up to a limit of 5 seconds of processor time, 60
    /// seconds on the clock and 128 MiB or the pool's `max_memory_bytes`, if that is less. The memory after it must fit into
    /// `memory_bytes`, the function's own limit. Dropping the future abandons it.
    ///
    /// Runs in this process only with [`Compiler::InProcess`]: code that overflows the parser's stack ends it.
    pub async fn prepare_script(&self, script: Script<'_>) -> Result<JsProgram, PrepareError> {
        let Script { graph, memory_bytes, .. } = script;
        let key = Arc::new(self.key(script)?);
        if !script.anew
            && let Some(program) = self.cached_program(&graph.entry, memory_bytes, key.clone()).await?
        {
            return Ok(program);
        }
        let assets = if mentions_assets(graph) { script.assets.to_vec() } else { Vec::new() };
        let assets = blocking(move || Ok(assets::read_all(&assets)?));
        let assets = assets.await?;
        let evaluated = match self.cache.compiler() {
            Compiler::InProcess => {
                self.evaluate(graph, assets, memory_bytes, ParseThread::in_process()).await?
            }
            Compiler::Child(child) => {
                let cache = self.cache.folder().cloned();
                let task = ScriptTask { graph: Cow::Owned(graph.clone()), assets, memory_bytes, cache };
                let (child, entry) = (child.clone(), graph.entry.clone());
                blocking(move || {
                    let answer = child.exchange(Task::Script, &task);
                    answer.map_err(|reason| PrepareError::Process { entry, reason })?
                })
                .await?
            }
        };
        self.store_snapshot(key, evaluated).await
    }

    /// The cache key of a snapshot: all that it depends on.
    fn key(&self, script: Script<'_>) -> Result<Vec<u8>, PrepareError> {
        let mut key =
            postcard::to_allocvec(&(FORMAT, script.owner, script.graph)).map_err(PrepareFault::codec)?;
        key.extend(assets::identity(script.assets));
        key.extend(self.digest.as_bytes());
        Ok(key)
    }

    /// A program from the cache.
    async fn cached_program(
        &self,
        entry: &str,
        memory_bytes: usize,
        key: Arc<Vec<u8>>,
    ) -> Result<Option<JsProgram>, PrepareError> {
        let (engine, cache, snapshots) = (self.engine.clone(), self.cache.clone(), self.snapshots.clone());
        let get = move || {
            snapshots.make_room(0);
            Ok(cache.get::<Module>(&engine, &[FUNCTION_KEY, &key]))
        };
        let cached = blocking(get).await?;
        let Some(Cached { code: module, metadata, file }) = cached else { return Ok(None) };
        let metadata: SnapshotMetadata = match postcard::from_bytes(&metadata) {
            Ok(metadata) => metadata,
            Err(error) => {
                tracing::warn!(entry, %error, "the metadata of a cached snapshot is invalid; evaluating the function again");
                return Ok(None);
            }
        };
        check_limit(entry, metadata.memory_bytes, memory_bytes)?;
        self.program(module, metadata, file).map(Some).map_err(internal)
    }

    /// A program of a snapshot, which is cached if there is a folder for it.
    async fn store_snapshot(
        &self,
        key: Arc<Vec<u8>>,
        evaluated: EvaluatedScript,
    ) -> Result<JsProgram, PrepareError> {
        let (engine, cache, snapshots) = (self.engine.clone(), self.cache.clone(), self.snapshots.clone());
        let (module, metadata, file) = blocking(move || {
            snapshots.make_room(0);
            let EvaluatedScript { native, metadata } = evaluated;
            let stored = cache.put(&engine, &[FUNCTION_KEY, &key], &native, metadata.to_vec());
            let Cached { code, metadata, file } = stored.map_err(PrepareFault::from)?;
            // Read from the file, which another process may have written meanwhile.
            let metadata = postcard::from_bytes(&metadata).map_err(PrepareFault::codec)?;
            Ok((code, metadata, file))
        })
        .await?;
        self.program(module, metadata, file).map_err(internal)
    }

    fn program(
        &self,
        module: Module,
        metadata: SnapshotMetadata,
        file: Option<LoadedFile>,
    ) -> wasmtime::Result<JsProgram> {
        let SnapshotMetadata { input, memory_bytes, filled_bytes, lines, files, assets } = metadata;
        let facts = MemoryFacts { input, memory_bytes, filled_bytes };
        let snapshot = self.link(&module, facts)?;
        let snapshot = self.snapshots.add(snapshot, facts, filled_bytes + assets.memory_bytes, file);
        Ok(JsProgram { snapshot, files: Arc::new(files), assets: Arc::new(assets), lines })
    }
}

/// True if a function may read assets. A function without the word in its text is prepared without them.
fn mentions_assets(graph: &ModuleGraph) -> bool {
    graph.modules.iter().any(|module| module.source.contains("asset"))
}
