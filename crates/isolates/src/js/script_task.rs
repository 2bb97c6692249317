//! Evaluating functions in child processes, many in one.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_platform::Clock;
use serde::{Deserialize, Serialize};
use wasmtime::{Engine, Module};

use super::engine::{JsEngine, JsEngineError};
use super::error::{PrepareError, PrepareFault};
use super::program::{Key, Script};
use super::snapshot::FUNCTION_KEY;
use crate::ModuleGraph;
use crate::assets::PlainAsset;
use crate::code_cache::{CacheFolder, CodeCache};
use crate::compile::{ChildCompiler, Compiler, ParseThread, TIME_LIMIT, Task};
use crate::engine::{EpochClock, PoolConfig};

/// A child process begins with no further function after this time, or with results of this size together.
const BATCH_TIME: Duration = Duration::from_secs(10);
const BATCH_RESULT_BYTES: usize = 8 << 20;
/// The time limit of a child process with several functions. The function that takes longer has one of its own then.
const BATCH_LIMIT: Duration = Duration::from_secs(30);
/// The maximum of functions for one child process, and of their texts together, unless one function has more.
const MAX_BATCH: usize = 64;
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Guest memory of the node for each child process that runs beside others.
const CHILD_BYTES: u64 = 512 << 20;

/// The task of a child process that evaluates functions, one after another.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScriptsTask<'a> {
    pub scripts: Vec<ScriptTask<'a>>,
    /// The folder with the compiled engine.
    pub cache: Option<CacheFolder>,
}

/// A function to evaluate.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScriptTask<'a> {
    /// The cache key of its snapshot.
    pub key: Key,
    pub graph: Cow<'a, ModuleGraph>,
    pub assets: Vec<PlainAsset>,
    /// The function's memory limit in bytes.
    pub memory_bytes: usize,
    /// True if its snapshot goes to the cache, false if it is part of the result.
    pub is_cached: bool,
}

/// The snapshot of an evaluated function.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScriptResult {
    /// A compiled module without functions. `None` if the child has cached it.
    pub native: Option<Bytes>,
    /// `SnapshotMetadata`, encoded.
    pub metadata: Bytes,
    /// The time that it took.
    pub took: Duration,
}

/// The results of the first functions of a task: up to one that fails.
pub(crate) type ScriptResults = Vec<Result<ScriptResult, PrepareError>>;

/// The child process cannot evaluate anything.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    /// The system refuses a thread or the runtime's files.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The engine cannot be loaded.
    #[error(transparent)]
    Engine(#[from] JsEngineError),
}

/// Evaluates functions in this process, which is a child that may use `process_memory_bytes`, and caches their snapshots. Ends
/// earlier if that has taken long.
///
/// The outer error is that of the process.
pub(crate) fn run_task(
    task: ScriptsTask<'_>,
    engine: &Engine,
    pool: PoolConfig,
    process_memory_bytes: u64,
    clock: Clock,
) -> Result<ScriptResults, TaskError> {
    let ScriptsTask { scripts, cache } = task;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let epoch = EpochClock::start(engine.clone())?;
    let code = Arc::new(CodeCache::new(Compiler::InProcess, cache, clock.clone()));
    let javascript = JsEngine::load(engine, code, pool, clock)?;
    let _running = epoch.running();
    let began = Instant::now();
    let (mut results, mut bytes) = (Vec::with_capacity(scripts.len()), 0);
    for script in scripts {
        if !results.is_empty() && (began.elapsed() > BATCH_TIME || bytes > BATCH_RESULT_BYTES) {
            break;
        }
        let thread = ParseThread::in_child(process_memory_bytes);
        let result = runtime.block_on(javascript.evaluate_task(script, thread));
        bytes += result.as_ref().map_or(0, |result| result.native.as_ref().map_or(0, Bytes::len));
        let is_failed = result.is_err();
        results.push(result);
        if is_failed {
            break;
        }
    }
    Ok(results)
}

impl JsEngine {
    /// Evaluates a function in this process, and caches its snapshot.
    pub(super) async fn evaluate_task(
        &self,
        script: ScriptTask<'_>,
        thread: ParseThread,
    ) -> Result<ScriptResult, PrepareError> {
        let began = Instant::now();
        let ScriptTask { key, graph, assets, memory_bytes, is_cached } = script;
        let evaluated = self.evaluate(&graph, assets, memory_bytes, thread).await?;
        let metadata = evaluated.metadata.encode()?;
        let key: [&[u8]; 2] = [FUNCTION_KEY, &key];
        let is_cached =
            is_cached && self.cache.store::<Module>(&self.engine, &key, &evaluated.native, &metadata);
        let native = (!is_cached).then(|| evaluated.native.into());
        Ok(ScriptResult { native, metadata: metadata.into(), took: began.elapsed() })
    }
}

/// Divides functions among child processes. Each has less to do than it may, and those with assets, which may be large, are
/// alone. All have about the same number of functions, so that they end at about the same time.
pub(crate) fn batches<'a, 'b>(
    scripts: &'b [(usize, Script<'a>)],
    pool: PoolConfig,
) -> impl Iterator<Item = &'b [(usize, Script<'a>)]> {
    let max = scripts.len().div_ceil(parallel_children(pool)).clamp(1, MAX_BATCH);
    let mut rest = scripts;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take(max).take_while(|(_, script)| {
            bytes += script.graph.modules.iter().map(|module| module.source.len()).sum::<usize>();
            bytes <= MAX_BATCH_BYTES && script.assets.is_empty()
        });
        let count = fits.count().max(1);
        let (batch, others) = rest.split_at_checked(count)?;
        rest = others;
        Some(batch)
    })
}

/// The number of child processes at the same time: one a core, as far as the memory of the machine allows.
pub(crate) fn parallel_children(pool: PoolConfig) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fit = usize::try_from(pool.guest_bytes / CHILD_BYTES).unwrap_or(usize::MAX);
    cores.min(fit).max(1)
}

impl ScriptsTask<'_> {
    /// Evaluates the functions in children, as many in one as it takes. Blocks.
    pub fn run(mut self, child: &ChildCompiler) -> ScriptResults {
        let mut results = Vec::with_capacity(self.scripts.len());
        // After the death of a child each function has one of its own, so that the error is that of the right function.
        let mut is_alone = false;
        while let Some(first) = self.scripts.first() {
            let entry = first.graph.entry.clone();
            let rest = if is_alone { self.scripts.split_off(1) } else { Vec::new() };
            let limit = if self.scripts.len() > 1 { BATCH_LIMIT } else { TIME_LIMIT };
            let answer: Result<ScriptResults, _> = child.exchange_within(Task::Script, &self, limit);
            match answer {
                Ok(answers) if !answers.is_empty() => {
                    self.scripts.drain(..answers.len().min(self.scripts.len()));
                    results.extend(answers);
                    if results.last().is_some_and(Result::is_err) {
                        return results;
                    }
                }
                Err(_) if self.scripts.len() > 1 => is_alone = true,
                Ok(_) => {
                    results.push(Err(PrepareFault::NoResult.into()));
                    return results;
                }
                Err(reason) => {
                    results.push(Err(PrepareError::Process { entry, reason }));
                    return results;
                }
            }
            self.scripts.extend(rest);
        }
        results
    }
}
