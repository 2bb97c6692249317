//! Functions prepared to run on the shared engine.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::Module;

use super::blocking::{blocking, internal};
use super::clean::{Audit, CleanInstances};
use super::engine::JsEngine;
use super::error::{PrepareError, PrepareFault};
use super::evaluate::check_limit;
use super::loaded_snapshots::FunctionSnapshot;
use super::script_task::{ScriptResult, ScriptResults, ScriptTask, ScriptsTask};
use super::snapshot::{FORMAT, FUNCTION_KEY, MemoryFacts, SnapshotMetadata};
use super::stack::Files;
use crate::assets::{self, Asset, AssetTable};
use crate::code_cache::{Cached, LoadedFile};
use crate::compile::{Compiler, ParseThread};
use crate::{LogLevel, ModuleGraph};

/// A function ready to run: its snapshot, and its files for stacks.
pub struct JsProgram {
    pub(super) snapshot: Arc<FunctionSnapshot>,
    pub(super) files: Arc<Files>,
    pub(super) assets: Arc<AssetTable>,
    /// Its idle instances that were reset.
    pub(super) clean: CleanInstances,
    lines: Vec<(LogLevel, String)>,
}

/// The cache key of a snapshot: a digest of all that it depends on.
pub(super) type Key = [u8; 32];

/// A function that was evaluated.
pub(crate) struct PreparedScript {
    /// Its program, if it was to be loaded.
    pub program: Option<JsProgram>,
    /// Log lines of the top-level code.
    pub lines: Vec<(LogLevel, String)>,
    /// The time that it took.
    pub took: Duration,
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

    /// Compares the instances that were reset for the next invocations with the snapshot, byte by byte. Takes milliseconds.
    pub fn audit(&self) -> Audit {
        self.clean.audit()
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
        if !script.anew
            && let Some(program) = self.cached_program(script).await?
        {
            return Ok(program);
        }
        let prepared = self.prepare_scripts(&[script], 1).await.pop();
        let program = prepared.map(|prepared| prepared.map(|prepared| prepared.program)).transpose()?;
        program.flatten().ok_or_else(|| PrepareFault::NoResult.into())
    }

    /// Evaluates functions, many in one child process, and caches their snapshots. The first `max_loaded` functions have a
    /// program afterwards. Results are those of the first functions: up to one that fails.
    pub(crate) async fn prepare_scripts(
        &self,
        scripts: &[Script<'_>],
        max_loaded: usize,
    ) -> Vec<Result<PreparedScript, PrepareError>> {
        let results = match self.evaluate_all(scripts, true).await {
            Ok(results) => results,
            Err(error) => vec![Err(error)],
        };
        let mut prepared = Vec::with_capacity(results.len());
        for (number, (script, result)) in scripts.iter().zip(results).enumerate() {
            prepared.push(match result {
                Ok(result) => self.prepared(*script, result, number < max_loaded).await,
                Err(error) => Err(error),
            });
        }
        prepared
    }

    /// Evaluates functions. The results have the native code that the child process has not cached: all of it unless
    /// `is_cached`.
    async fn evaluate_all(
        &self,
        scripts: &[Script<'_>],
        is_cached: bool,
    ) -> Result<ScriptResults, PrepareError> {
        let mut tasks = Vec::with_capacity(scripts.len());
        for script in scripts {
            let Script { graph, memory_bytes, .. } = *script;
            let assets = if mentions_assets(graph) { script.assets.to_vec() } else { Vec::new() };
            let assets = match assets.is_empty() {
                true => Vec::new(),
                false => blocking(move || Ok(assets::read_all(&assets)?)).await?,
            };
            let (key, graph) = (self.key(*script)?, Cow::Owned(graph.clone()));
            tasks.push(ScriptTask { key, graph, assets, memory_bytes, is_cached });
        }
        match self.cache.compiler() {
            Compiler::InProcess => {
                let mut results = Vec::with_capacity(tasks.len());
                for task in tasks {
                    results.push(self.evaluate_task(task, ParseThread::in_process()).await);
                }
                Ok(results)
            }
            Compiler::Child(child) => {
                let (task, child) =
                    (ScriptsTask { scripts: tasks, cache: self.cache.folder().cloned() }, child.clone());
                blocking(move || Ok(task.run(&child))).await
            }
        }
    }

    /// A function that was evaluated, with its program if it `is_loaded`.
    async fn prepared(
        &self,
        script: Script<'_>,
        result: ScriptResult,
        is_loaded: bool,
    ) -> Result<PreparedScript, PrepareError> {
        let took = result.took;
        if !is_loaded && result.native.is_none() {
            let metadata: SnapshotMetadata =
                postcard::from_bytes(&result.metadata).map_err(PrepareFault::codec)?;
            return Ok(PreparedScript { program: None, lines: metadata.lines, took });
        }
        let program = match result.native {
            None => match self.cached_program(script).await? {
                Some(program) => program,
                // Another process has removed it from a full cache.
                None => match self.evaluate_all(&[script], false).await?.pop().transpose()? {
                    Some(result) => self.store_snapshot(self.key(script)?, result).await?,
                    None => return Err(PrepareFault::NoResult.into()),
                },
            },
            Some(_) => self.store_snapshot(self.key(script)?, result).await?,
        };
        let lines = program.lines.clone();
        Ok(PreparedScript { program: is_loaded.then_some(program), lines, took })
    }

    /// The cache key of a snapshot, of all that it depends on.
    fn key(&self, script: Script<'_>) -> Result<Key, PrepareError> {
        let mut key =
            postcard::to_allocvec(&(FORMAT, script.owner, script.graph)).map_err(PrepareFault::codec)?;
        key.extend(assets::identity(script.assets));
        key.extend(self.digest.as_bytes());
        Ok(*blake3::hash(&key).as_bytes())
    }

    /// A program from the cache.
    async fn cached_program(&self, script: Script<'_>) -> Result<Option<JsProgram>, PrepareError> {
        let (entry, key) = (&script.graph.entry, self.key(script)?);
        let (engine, cache, snapshots) = (self.engine.clone(), self.cache.clone(), self.snapshots.clone());
        let get = move || {
            snapshots.make_room(0);
            Ok(cache.get::<Module>(&engine, &[FUNCTION_KEY, &key]))
        };
        let Some(Cached { code, metadata, file }) = blocking(get).await? else { return Ok(None) };
        let metadata: SnapshotMetadata = match postcard::from_bytes(&metadata) {
            Ok(metadata) => metadata,
            Err(error) => {
                tracing::warn!(entry, %error, "the metadata of a cached snapshot is invalid; evaluating the function again");
                return Ok(None);
            }
        };
        check_limit(entry, metadata.memory_bytes, script.memory_bytes)?;
        self.program(code, metadata, file).map(Some).map_err(internal)
    }

    /// A program of a snapshot, which is cached if there is a folder for it.
    async fn store_snapshot(&self, key: Key, result: ScriptResult) -> Result<JsProgram, PrepareError> {
        let (engine, cache, snapshots) = (self.engine.clone(), self.cache.clone(), self.snapshots.clone());
        let (module, metadata, file) = blocking(move || {
            snapshots.make_room(0);
            let ScriptResult { native, metadata, .. } = result;
            let native = native.ok_or(PrepareFault::NoResult)?;
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
        let clean = CleanInstances::new(&self.clean);
        Ok(JsProgram { snapshot, files: Arc::new(files), assets: Arc::new(assets), clean, lines })
    }
}

/// True if a function may read assets. A function without the word in its text is prepared without them.
fn mentions_assets(graph: &ModuleGraph) -> bool {
    graph.modules.iter().any(|module| module.source.contains("asset"))
}
