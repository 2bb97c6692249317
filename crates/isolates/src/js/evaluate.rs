//! Modules of a function evaluated: transpiled, run to the end of their top level, and the memory made into a module.
//!
//! In a node all of it happens in a [child process](crate::compile).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_js_abi::{self as abi, Load, Loaded, Source, Thrown, ThrownKind};
use serde::{Deserialize, Serialize};
use wasmtime::{Engine, Module, Store, TypedFunc};

use super::calls::{self, Stage, State};
use super::error::{DeployMemory, PrepareError};
use super::program::{About, ENGINE_WASM, JsEngine, Picture, blocking, fits, internal};
use super::runtime;
use super::snapshot::{self, PAGE_BYTES};
use super::stack::Files;
use super::transpile::transpile;
use crate::ModuleGraph;
use crate::assets::{self, AssetTable, PlainAsset};
use crate::busy::{Busy, Counted, TimeUsed};
use crate::code_cache::{CacheFolder, CodeCache};
use crate::compile::{self, ChildError, CodeKind, Compiler, Parsing};
use crate::deadline::{self, DeadlinePassed};
use crate::engine::{EpochClock, PoolConfig};

/// How much processor time top-level code may use at deploy.
const PREPARE_CPU: Duration = Duration::from_secs(5);

/// How long that may take while others compute as well.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// How much memory it may use.
const PREPARE_MEMORY_BYTES: usize = 128 << 20;

/// What a child process needs to evaluate a function.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScriptTask<'a> {
    pub graph: Cow<'a, ModuleGraph>,
    pub assets: Vec<PlainAsset>,
    /// The function's own limit of memory.
    pub memory_bytes: usize,
    /// Where the compiled engine is.
    pub cache: Option<CacheFolder>,
}

/// A function's memory after its top-level code.
#[derive(Serialize, Deserialize)]
pub(crate) struct EvaluatedScript {
    /// A compiled module without functions.
    pub native: Bytes,
    /// [`About`], encoded.
    pub about: Bytes,
}

/// The engine with its prelude and no user code.
pub(super) struct Base {
    picture: Picture,
    /// Where the stack begins in its memory.
    stack_top: usize,
}

/// What is kept with it.
#[derive(Serialize, Deserialize)]
struct AboutBase {
    input: u32,
    memory_bytes: usize,
    filled_bytes: usize,
    stack_top: usize,
}

/// Evaluates a function in this process, which is a child that may use `process_memory_bytes`.
///
/// The outer error is the process's own.
pub(crate) fn run_task(
    task: ScriptTask<'_>,
    engine: &Engine,
    pool: PoolConfig,
    process_memory_bytes: u64,
) -> Result<Result<EvaluatedScript, PrepareError>, ChildError> {
    let ScriptTask { graph, assets, memory_bytes, cache } = task;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let clock = EpochClock::start(engine.clone())?;
    let code = Arc::new(CodeCache::new(Compiler::InProcess, cache));
    let javascript = JsEngine::load(engine, code, pool)?;
    let _running = clock.running();
    let parsing = Parsing::in_child(process_memory_bytes);
    Ok(runtime.block_on(javascript.evaluate(&graph, assets, memory_bytes, parsing)))
}

impl JsEngine {
    /// Evaluates modules in this process, which ends if their text overflows the parser's stack.
    pub(super) async fn evaluate(
        &self,
        graph: &ModuleGraph,
        assets: Vec<PlainAsset>,
        memory_bytes: usize,
        parsing: Parsing,
    ) -> Result<EvaluatedScript, PrepareError> {
        let (files, codes) = transpile_all(graph.clone(), parsing).await?;
        if !graph.modules.iter().any(|module| module.path == graph.entry) {
            return Err(PrepareError::NoEntry { entry: graph.entry.clone() });
        }
        let modules = graph.modules.iter().zip(&codes).map(|(module, code)| Source {
            path: &module.path,
            code,
            imports: module.imports.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect(),
        });
        let load = Load { entry: &graph.entry, modules: modules.collect(), seed: rand::random() };
        let load = abi::encode(&load).map_err(|error| PrepareError::Internal(error.to_string()))?;

        let files = Arc::new(files);
        let base = self.base.get_or_try_init(|| self.make_base()).await?;
        if base.picture.memory_bytes > memory_bytes {
            return Err(PrepareError::LimitBelowEngine {
                entry: graph.entry.clone(),
                least_bytes: base.picture.memory_bytes,
                allowed_bytes: memory_bytes,
            });
        }
        let (deadline, busy) = (Instant::now() + PREPARE_TIMEOUT, Busy::new(PREPARE_CPU, Arc::default()));
        let mut store = self.deploy_store(files.clone());
        deadline::arm(&mut store, deadline, busy.clone());
        let run = Counted::new(busy, Box::pin(evaluate(self, &base.picture, &mut store, &load)));
        let evaluated = deadline::limit(deadline, run).await.unwrap_or_else(|passed| Err(passed.into()));
        let loaded = evaluated.map_err(|error| self.prepare_error(&error, &store, &graph.entry))?;
        drop(load);
        self.accept(loaded, &files, &graph.entry)?;

        let needed_bytes = store.data().memory.map_or(0, |memory| memory.data_size(&store));
        fits(&graph.entry, needed_bytes, memory_bytes)?;
        let image = image(&store, base.stack_top).map_err(internal)?;
        let Stage::Deploy(lines) =
            std::mem::replace(&mut store.data_mut().stage, Stage::Deploy(Vec::new()))
        else {
            return Err(PrepareError::Internal("the stage changed".to_owned()));
        };
        drop(store);
        let about = About {
            input: base.picture.input,
            memory_bytes: image.len(),
            filled_bytes: snapshot::filled_bytes(&image),
            lines,
            files: Arc::into_inner(files).unwrap_or_default(),
            assets: AssetTable::default(),
        };
        let (engine, functions) = (self.engine.clone(), self.passed_on());
        blocking(move || {
            let pages = image.len().div_ceil(PAGE_BYTES) as u64;
            let (assets, contents) = assets::place(pages, &assets)
                .map_err(|error| PrepareError::Assets { reason: error.to_string() })?;
            let wasm = snapshot::data_module(&image, &functions, &contents, assets.memory_bytes);
            drop((image, contents));
            let about = postcard::to_allocvec(&About { assets, ..about });
            let about = about.map_err(|error| PrepareError::Internal(error.to_string()))?.into();
            let native = compile::compile(&engine, CodeKind::Module, &wasm)
                .map_err(|error| PrepareError::Internal(error.to_string()))?;
            Ok(EvaluatedScript { native: native.into(), about })
        })
        .await
    }

    /// One for top-level code.
    fn deploy_store(&self, files: Arc<Files>) -> Store<State> {
        let (stage, reservation) = (Stage::Deploy(Vec::new()), self.no_reservation());
        self.store(stage, self.deploy_memory_bytes(), files, Arc::default(), reservation)
    }

    /// The engine with its prelude, as it was kept or made now.
    async fn make_base(&self) -> Result<Base, PrepareError> {
        let (engine, kept, [kind, key]) = (self.engine.clone(), self.kept.clone(), self.base_key());
        let picture = blocking(move || Ok(kept.kept::<Module>(&engine, &[&kind, &key]))).await?;
        if let Some((module, about)) = picture
            && let Ok(about) = postcard::from_bytes::<AboutBase>(&about)
        {
            let AboutBase { input, memory_bytes, filled_bytes, stack_top } = about;
            let picture = self.link(&module, input, memory_bytes, filled_bytes).map_err(internal)?;
            return Ok(Base { picture, stack_top });
        }
        self.init_base().await.map_err(internal)
    }

    async fn init_base(&self) -> wasmtime::Result<Base> {
        let parts = snapshot::split(ENGINE_WASM)?;
        let wasm = snapshot::data_module(&parts.memory, &self.passed_on(), &[], 0);
        let raw = self.link(&Module::new(&self.engine, &wasm)?, 0, parts.memory.len(), 0)?;
        let mut store = self.deploy_store(Arc::default());
        let busy = Busy::new(Duration::MAX, Arc::default());
        deadline::arm(&mut store, Instant::now() + PREPARE_TIMEOUT, busy);
        let instance = runtime::start(self, &raw, &mut store).await?;
        let version: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "abi_version")?;
        let version = version.call_async(&mut store, ()).await?;
        if version != abi::VERSION {
            wasmtime::bail!("engine.wasm is of version {version}, wanted {}: rebuild it", abi::VERSION);
        }
        let init: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "engine_init")?;
        init.call_async(&mut store, ()).await?;
        let input: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "input")?;
        let input = input.call_async(&mut store, ()).await?;

        let stack_top = parts.stack_top;
        let image = image(&store, stack_top)?;
        let (memory_bytes, filled_bytes) = (image.len(), snapshot::filled_bytes(&image));
        let about = postcard::to_allocvec(&AboutBase { input, memory_bytes, filled_bytes, stack_top })?;
        let wasm = snapshot::data_module(&image, &self.passed_on(), &[], 0);
        let native = compile::compile(&self.engine, CodeKind::Module, &wasm)?;
        let [kind, key] = self.base_key();
        let (module, _) = self.kept.keep::<Module>(&self.engine, &[&kind, &key], &native, about)?;
        Ok(Base { picture: self.link(&module, input, memory_bytes, filled_bytes)?, stack_top })
    }

    /// How much memory top-level code may use.
    fn deploy_memory_bytes(&self) -> usize {
        PREPARE_MEMORY_BYTES.min(self.pool.max_memory_bytes)
    }

    fn out_of_memory(&self, entry: String) -> PrepareError {
        let limit_bytes = self.deploy_memory_bytes();
        let limit = match limit_bytes < PREPARE_MEMORY_BYTES {
            true => DeployMemory::Node,
            false => DeployMemory::Deploy,
        };
        PrepareError::OutOfMemory { entry, limit_bytes, limit }
    }

    fn accept(&self, loaded: Loaded, files: &Files, entry: &str) -> Result<(), PrepareError> {
        let entry = entry.to_owned();
        match loaded {
            Loaded::Ready => Ok(()),
            Loaded::NeverSettles => Err(PrepareError::NeverSettles { entry }),
            Loaded::NoHandler { exports, default } => {
                Err(PrepareError::NoHandler { entry, exports, default })
            }
            Loaded::Failed(Thrown { kind, message, stack }) => Err(match kind {
                ThrownKind::OutOfMemory => self.out_of_memory(entry),
                ThrownKind::StackOverflow => PrepareError::StackOverflow { entry },
                ThrownKind::Error => {
                    let shown = files.show(&stack);
                    PrepareError::Threw { message, location: shown.location, stack: shown.stack }
                }
            }),
        }
    }

    fn prepare_error(&self, error: &wasmtime::Error, store: &Store<State>, entry: &str) -> PrepareError {
        let entry = entry.to_owned();
        if error.downcast_ref::<DeadlinePassed>().is_some() {
            PrepareError::TimedOut { entry, limit: PREPARE_TIMEOUT }
        } else if error.downcast_ref::<TimeUsed>().is_some() {
            PrepareError::CpuTimeUsed { entry, limit: PREPARE_CPU }
        } else if store.data().limit.exceeded {
            self.out_of_memory(entry)
        } else if error.downcast_ref() == Some(&wasmtime::Trap::StackOverflow) {
            PrepareError::StackOverflow { entry }
        } else {
            PrepareError::Internal(format!("{error:#}"))
        }
    }
}

/// A store's memory as other isolates may start with it. Nothing on the stack, which lies below `stack_top`, is alive between
/// calls.
fn image(store: &Store<State>, stack_top: usize) -> wasmtime::Result<Vec<u8>> {
    let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
    let mut image = memory.data(store).to_vec();
    image[..stack_top].fill(0);
    Ok(image)
}

/// The files for stacks, and the code of each module. Parsed on a large stack while a blocking thread waits,
/// so that the runtime's threads are free.
async fn transpile_all(graph: ModuleGraph, parsing: Parsing) -> Result<(Files, Vec<String>), PrepareError> {
    let parse = move || {
        let mut files = Files::default();
        let mut codes = Vec::with_capacity(graph.modules.len());
        for module in &graph.modules {
            (parsing.report)(&module.path);
            let transpiled = transpile(&module.path, &module.source)?;
            files.insert(module.path.clone(), transpiled.map);
            codes.push(transpiled.code);
        }
        Ok((files, codes))
    };
    blocking(move || {
        let parsed = parsing.run(parse);
        parsed.map_err(|reason| PrepareError::Internal(format!("the parser could not be run: {reason}")))?
    })
    .await
}

async fn evaluate(
    engine: &JsEngine,
    base: &Picture,
    store: &mut Store<State>,
    load: &[u8],
) -> wasmtime::Result<Loaded> {
    let instance = runtime::start(engine, base, store).await?;
    let alloc: TypedFunc<u32, u32> = instance.get_typed_func(&mut *store, "alloc")?;
    let at = alloc.call_async(&mut *store, load.len() as u32).await?;
    let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
    memory.write(&mut *store, at as usize, load)?;
    let run: TypedFunc<(u32, u32), u64> = instance.get_typed_func(&mut *store, "load")?;
    let packed = run.call_async(&mut *store, (at, load.len() as u32)).await?;
    let loaded = calls::message(memory.data(&store), (packed >> 32) as u32, packed as u32)?;
    Ok(abi::decode(loaded)?)
}
