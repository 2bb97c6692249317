//! The shared engine, and functions prepared to run on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_js_abi::{self as abi, Load, Loaded, Source, Thrown, ThrownKind};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use wasmtime::{Engine, Extern, Instance, InstancePre, Linker, Module, ModuleExport, Store, TypedFunc};

use super::calls::{self, Stage, State};
use super::nesting::on_large_stack;
use super::runtime;
use super::snapshot::{self, PAGE_BYTES, PassedOn, SplitError};
use super::stack::Files;
use super::transpile::{SyntaxError, transpile};
use crate::assets::{self, Asset, AssetTable};
use crate::busy::{Busy, Counted, TimeUsed};
use crate::code_cache::CodeCache;
use crate::compile::Compiler;
use crate::deadline::{self, DeadlinePassed};
use crate::engine::PoolConfig;
use crate::{LogLevel, ModuleGraph};

// A static: a constant would be put into the binary once for every unit that uses it.
pub(super) static ENGINE_WASM: &[u8] = include_bytes!("../../js-engine/engine.wasm");

/// How much processor time top-level code may use at deploy.
const PREPARE_CPU: Duration = Duration::from_secs(5);

/// How long that may take while others have their turns on the same thread.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// How much memory it may use.
const PREPARE_MEMORY_BYTES: usize = 128 << 20;

/// The wasm that [`JsEngine::new`] wants compiled: the engine without its memory.
pub fn engine_code_wasm() -> Result<Vec<u8>, JsEngineError> {
    Ok(snapshot::split(ENGINE_WASM)?.code)
}

/// The shared engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JsEngineError {
    /// The committed wasm is not what its recipe makes.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The compiled code is not that of the committed wasm.
    #[error("the compiled JavaScript engine does not fit: {0}; remove it from the cache")]
    Code(String),
}

/// A function cannot be deployed.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A module does not parse.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The entry module is not among the modules.
    #[error("{entry}: there is no such module among those deployed")]
    NoEntry {
        /// Its path.
        entry: String,
    },
    /// Top-level code threw.
    #[error("top-level code threw{}: {message}", location.as_ref().map(|at| format!(" at {at}")).unwrap_or_default())]
    Threw {
        /// The error's name and message.
        message: String,
        /// The first frame in the user's files as FILE:LINE:COL.
        location: Option<String>,
        /// The whole stack.
        stack: Option<String>,
    },
    /// There is no handler.
    #[error("{entry}: {}", describe_missing_handler(exports, default.as_deref()))]
    NoHandler {
        /// The entry module.
        entry: String,
        /// What it exports.
        exports: Vec<String>,
        /// The type of its default export.
        default: Option<String>,
    },
    /// A top-level `await` waits for what cannot come at deploy.
    #[error(
        "{entry}: a top-level await never settles; nothing can be awaited while a function is deployed"
    )]
    NeverSettles {
        /// The entry module.
        entry: String,
    },
    /// Top-level code computed too long.
    #[error(
        "{entry}: top-level code used more than {limit:?} of processor time; move the work into the handler"
    )]
    CpuTimeUsed {
        /// The entry module.
        entry: String,
        /// The limit it hit.
        limit: Duration,
    },
    /// Top-level code did not get that far, since others computed as well.
    #[error(
        "{entry}: top-level code was not through after {limit:?}; deploy it when the node has less to do"
    )]
    TimedOut {
        /// The entry module.
        entry: String,
        /// The limit it hit.
        limit: Duration,
    },
    /// Top-level code used more memory than there is at deploy.
    #[error(
        "{entry}: top-level code used more than {limit_bytes} bytes of memory, {limit}; \
         move the work into the handler"
    )]
    OutOfMemory {
        /// The entry module.
        entry: String,
        /// The limit it hit.
        limit_bytes: usize,
        /// Which limit that is, in words.
        limit: &'static str,
    },
    /// The function's own limit has no room for what it starts with.
    #[error(
        "{entry}: every invocation starts with {needed_bytes} bytes of memory after the top-level code, but \
         limits.memory allows {allowed_bytes}; raise it or keep less at the top level"
    )]
    OverMemoryLimit {
        /// The entry module.
        entry: String,
        /// Linear memory after the top-level code, in bytes.
        needed_bytes: usize,
        /// `limits.memory` in bytes.
        allowed_bytes: usize,
    },
    /// The function's own limit has no room for the JavaScript engine.
    #[error(
        "{entry}: limits.memory allows {allowed_bytes} bytes; a JavaScript function needs {least_bytes} at \
         the very least, and its own data besides"
    )]
    LimitBelowEngine {
        /// The entry module.
        entry: String,
        /// What the engine itself takes, in bytes.
        least_bytes: usize,
        /// `limits.memory` in bytes.
        allowed_bytes: usize,
    },
    /// The app's assets can't be put into its memory.
    #[error("{reason}")]
    Assets {
        /// Why.
        reason: String,
    },
    /// Top-level code overflowed its stack.
    #[error("{entry}: top-level code overflowed its stack")]
    StackOverflow {
        /// The entry module.
        entry: String,
    },
    /// The node is at fault.
    #[error("internal error: {0}")]
    Internal(String),
}

fn describe_missing_handler(exports: &[String], default: Option<&str>) -> String {
    let remedy = "write `export default async function handler(event, context) { … }` or \
                  `export default { fetch(request, env, ctx) { … } }`";
    match default {
        Some(kind) => format!(
            "the default export is no handler (it is of type {kind}, without fetch, message or scheduled); {remedy}"
        ),
        None if exports.is_empty() => format!("it exports nothing; {remedy}"),
        None => format!("it has no default export, only {}; {remedy}", exports.join(", ")),
    }
}

/// The engine that all JavaScript functions of a node share.
pub struct JsEngine {
    pub(super) engine: Engine,
    pub(super) code: Module,
    pub(super) exports: Exports,
    pub(super) pool: PoolConfig,
    linker: Linker<State>,
    /// What the engine imports, in its order; none is the memory.
    imports: Vec<Option<PassedOn>>,
    stack_top: usize,
    base: OnceCell<Picture>,
    /// Where pictures are kept.
    kept: Arc<CodeCache>,
    /// Digest of [`ENGINE_WASM`], which pictures depend on.
    digest: blake3::Hash,
}

/// A function ready to run: the memory after its top-level code, and its files for stacks.
pub struct JsProgram {
    pub(super) picture: Picture,
    pub(super) files: Arc<Files>,
    pub(super) assets: Arc<AssetTable>,
    lines: Vec<(LogLevel, String)>,
}

/// A function that is to be prepared.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// Whose it is: what is kept of one is not for another.
    pub owner: &'a str,
    /// Its modules.
    pub graph: &'a ModuleGraph,
    /// What it may read in place.
    pub assets: &'a [Asset],
    /// Its limit, assets not counted.
    pub memory_bytes: usize,
    /// Evaluate it even if that was done before and the result is kept.
    pub anew: bool,
}

/// The version of [`About`] and of how modules are transpiled, with which pictures are kept.
const KEPT_FORMAT: (&str, u32) = (env!("CARGO_PKG_VERSION"), 1);

/// What is kept with a picture.
#[derive(Serialize, Deserialize)]
struct About {
    input: u32,
    memory_bytes: usize,
    filled_bytes: usize,
    lines: Vec<(LogLevel, String)>,
    files: Files,
    assets: AssetTable,
}

impl JsProgram {
    /// What top-level code logged at deploy.
    pub fn deploy_log(&self) -> &[(LogLevel, String)] {
        &self.lines
    }

    /// Linear memory that an invocation starts with, in bytes; what is not touched costs nothing.
    pub fn memory_bytes(&self) -> usize {
        self.picture.memory_bytes
    }

    /// The part of [`JsProgram::memory_bytes`] that holds something, in pages of 4 KiB: what the function
    /// keeps in memory while it is deployed.
    pub fn filled_bytes(&self) -> usize {
        self.picture.filled_bytes
    }
}

/// A memory image as a module, linked and ready to be instantiated.
pub(super) struct Picture {
    pub data: InstancePre<State>,
    pub memory: ModuleExport,
    /// What to hand to the engine, in the order of its imports.
    pub imports: Vec<ModuleExport>,
    /// Where small invocations are written.
    pub input: u32,
    pub memory_bytes: usize,
    pub filled_bytes: usize,
}

/// Exports of the engine.
pub(super) struct Exports {
    pub alloc: ModuleExport,
    pub invoke: ModuleExport,
    pub resolve: ModuleExport,
    pub run_jobs: ModuleExport,
    pub reset: ModuleExport,
}

impl JsEngine {
    /// Takes the compiled form of [`engine_code_wasm`]. The engine's epoch clock must run whenever
    /// [`JsEngine::prepare`] or [`JsEngine::run`] does.
    pub fn new(engine: &Engine, code: Module, pool: PoolConfig) -> Result<Self, JsEngineError> {
        let unfit = |error: wasmtime::Error| JsEngineError::Code(format!("{error:#}"));
        let stack_top = snapshot::split(ENGINE_WASM)?.stack_top;
        let mut linker = Linker::new(engine);
        calls::define(&mut linker).map_err(unfit)?;
        let export = |name: &str| {
            code.get_export_index(name)
                .ok_or_else(|| JsEngineError::Code(format!("it has no export {name}")))
        };
        let exports = Exports {
            alloc: export("alloc")?,
            invoke: export("invoke")?,
            resolve: export("resolve")?,
            run_jobs: export("run_jobs")?,
            reset: export("reset")?,
        };
        let imports = code.imports().map(|import| {
            let wasmtime::ExternType::Func(ty) = import.ty() else { return Ok(None) };
            let types = |types: &mut dyn Iterator<Item = wasmtime::ValType>| {
                types.map(|ty| value_type(&ty)).collect::<Result<Vec<_>, _>>()
            };
            Ok(Some(PassedOn {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
                params: types(&mut ty.params())?,
                results: types(&mut ty.results())?,
            }))
        });
        let imports = imports.collect::<Result<Vec<_>, JsEngineError>>()?;
        Ok(Self {
            engine: engine.clone(),
            exports,
            pool,
            linker,
            imports,
            stack_top,
            base: OnceCell::new(),
            kept: Arc::new(CodeCache::new(Compiler::InProcess, None)),
            digest: blake3::hash(ENGINE_WASM),
            code,
        })
    }

    /// The same engine, which keeps what it evaluates where `kept` keeps native code.
    pub(crate) fn keeping(self, kept: Arc<CodeCache>) -> Self {
        Self { kept, ..self }
    }

    /// Evaluates the modules of a function, for any number of runs; see [`JsEngine::prepare_script`].
    pub async fn prepare(
        &self,
        graph: &ModuleGraph,
        memory_bytes: usize,
    ) -> Result<JsProgram, PrepareError> {
        self.prepare_script(Script { owner: "", graph, assets: &[], memory_bytes, anew: true }).await
    }

    /// Evaluates the modules of a function and keeps the result, for any number of runs.
    ///
    /// Takes a few milliseconds of computing, more if top-level code does, up to a limit of 5 seconds of processor time, 60
    /// seconds on the clock and 128 MiB or the pool's `max_memory_bytes`, if that is less. What it leaves must fit into
    /// `memory_bytes`, the function's own limit. Dropping the future abandons it.
    pub async fn prepare_script(&self, script: Script<'_>) -> Result<JsProgram, PrepareError> {
        let Script { graph, memory_bytes, .. } = script;
        let key = Arc::new(self.key(script)?);
        if !script.anew
            && let Some(program) = self.load(&graph.entry, memory_bytes, key.clone()).await?
        {
            return Ok(program);
        }
        let (files, codes) = transpile_all(graph.clone()).await?;
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
        let base = self.base.get_or_try_init(|| self.make_base()).await.map_err(internal)?;
        if base.memory_bytes > memory_bytes {
            return Err(PrepareError::LimitBelowEngine {
                entry: graph.entry.clone(),
                least_bytes: base.memory_bytes,
                allowed_bytes: memory_bytes,
            });
        }
        let (deadline, busy) = (Instant::now() + PREPARE_TIMEOUT, Busy::new(PREPARE_CPU, Arc::default()));
        let mut store = self.deploy_store(files.clone());
        deadline::arm(&mut store, deadline, busy.clone());
        let run = Counted { busy, run: Box::pin(evaluate(self, base, &mut store, &load)) };
        let evaluated = deadline::limit(deadline, run).await.unwrap_or_else(|passed| Err(passed.into()));
        let loaded = evaluated.map_err(|error| self.prepare_error(&error, &store, &graph.entry))?;
        self.accept(loaded, &files, &graph.entry)?;

        let needed_bytes = store.data().memory.map_or(0, |memory| memory.data_size(&store));
        fits(&graph.entry, needed_bytes, memory_bytes)?;
        let image = self.image(&store).map_err(internal)?;
        let Stage::Deploy(lines) =
            std::mem::replace(&mut store.data_mut().stage, Stage::Deploy(Vec::new()))
        else {
            return Err(PrepareError::Internal("the stage changed".to_owned()));
        };
        drop(store);
        let files = Arc::into_inner(files).unwrap_or_default();
        let assets = if mentions_assets(graph) { script.assets.to_vec() } else { Vec::new() };
        self.keep(
            key,
            image,
            About {
                input: base.input,
                memory_bytes: 0,
                filled_bytes: 0,
                lines,
                files,
                assets: AssetTable::default(),
            },
            assets,
        )
        .await
    }

    /// What a picture depends on.
    fn key(&self, script: Script<'_>) -> Result<Vec<u8>, PrepareError> {
        let failed = |error: postcard::Error| PrepareError::Internal(error.to_string());
        let mut key = postcard::to_allocvec(&(KEPT_FORMAT, script.owner, script.graph)).map_err(failed)?;
        key.extend(assets::identity(script.assets));
        key.extend(self.digest.as_bytes());
        Ok(key)
    }

    /// A program whose picture was kept.
    async fn load(
        &self,
        entry: &str,
        memory_bytes: usize,
        key: Arc<Vec<u8>>,
    ) -> Result<Option<JsProgram>, PrepareError> {
        let (engine, kept) = (self.engine.clone(), self.kept.clone());
        let picture = blocking(move || Ok(kept.kept_picture(&engine, &[&key]))).await?;
        let Some((module, about)) = picture else { return Ok(None) };
        let about: About = match postcard::from_bytes(&about) {
            Ok(about) => about,
            Err(error) => {
                tracing::warn!(entry, %error, "what was kept of a function is not understood; evaluating it anew");
                return Ok(None);
            }
        };
        fits(entry, about.memory_bytes, memory_bytes)?;
        self.program(module, about).map(Some).map_err(internal)
    }

    /// A program of the memory after its top-level code, kept if there is a place for it.
    async fn keep(
        &self,
        key: Arc<Vec<u8>>,
        image: Vec<u8>,
        about: About,
        wanted: Vec<Asset>,
    ) -> Result<JsProgram, PrepareError> {
        let (engine, kept, functions) = (self.engine.clone(), self.kept.clone(), self.passed_on());
        let (module, about) = blocking(move || {
            let pages = image.len().div_ceil(PAGE_BYTES) as u64;
            let (assets, contents) = assets::place(pages, &wanted)
                .map_err(|error| PrepareError::Assets { reason: error.to_string() })?;
            let wasm = snapshot::data_module(&image, &functions, &contents, assets.memory_bytes);
            let (memory_bytes, filled_bytes) = (image.len(), snapshot::filled_bytes(&image));
            drop((image, contents));
            let about = About { memory_bytes, filled_bytes, assets, ..about };
            let text =
                postcard::to_allocvec(&about).map_err(|error| PrepareError::Internal(error.to_string()))?;
            let (module, text) = kept.keep_picture(&engine, &[&key], &wasm, text).map_err(internal)?;
            // The file's own, which may be another's that was written meanwhile.
            let about =
                postcard::from_bytes(&text).map_err(|error| PrepareError::Internal(error.to_string()))?;
            Ok((module, about))
        })
        .await?;
        self.program(module, about).map_err(internal)
    }

    fn program(&self, module: Module, about: About) -> wasmtime::Result<JsProgram> {
        let About { input, memory_bytes, filled_bytes, lines, files, assets } = about;
        let picture = self.link(&module, input, memory_bytes, filled_bytes)?;
        Ok(JsProgram { picture, files: Arc::new(files), assets: Arc::new(assets), lines })
    }

    /// A store for one isolate.
    pub(super) fn store(
        &self,
        stage: Stage,
        memory_bytes: usize,
        files: Arc<Files>,
        assets: Arc<AssetTable>,
    ) -> Store<State> {
        let mut store = Store::new(&self.engine, State::new(stage, memory_bytes, files, assets));
        store.limiter(|state| &mut state.limit);
        store
    }

    /// One for top-level code.
    fn deploy_store(&self, files: Arc<Files>) -> Store<State> {
        self.store(Stage::Deploy(Vec::new()), self.deploy_memory_bytes(), files, Arc::default())
    }

    /// The engine with its prelude and no user code.
    async fn make_base(&self) -> wasmtime::Result<Picture> {
        let parts = snapshot::split(ENGINE_WASM)?;
        let raw = self.picture(&parts.memory, 0).await?;
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
        Ok(self.picture(&self.image(&store)?, input).await?)
    }

    /// A store's memory as other isolates may start with it.
    fn image(&self, store: &Store<State>) -> wasmtime::Result<Vec<u8>> {
        let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
        let mut image = memory.data(store).to_vec();
        // Nothing on the stack is alive between calls.
        image[..self.stack_top].fill(0);
        Ok(image)
    }

    /// A picture of the engine itself.
    async fn picture(&self, image: &[u8], input: u32) -> Result<Picture, PrepareError> {
        let wasm = snapshot::data_module(image, &self.passed_on(), &[], 0);
        let (engine, kept) = (self.engine.clone(), self.kept.clone());
        let module = blocking(move || {
            kept.module(&engine, &wasm).map_err(|error| PrepareError::Internal(error.to_string()))
        })
        .await?;
        self.link(&module, input, image.len(), snapshot::filled_bytes(image)).map_err(internal)
    }

    fn passed_on(&self) -> Vec<PassedOn> {
        self.imports.iter().flatten().cloned().collect()
    }

    fn link(
        &self,
        module: &Module,
        input: u32,
        memory_bytes: usize,
        filled_bytes: usize,
    ) -> wasmtime::Result<Picture> {
        let export = |name: &str| {
            module.get_export_index(name).ok_or_else(|| wasmtime::format_err!("the snapshot lacks {name}"))
        };
        let names =
            self.imports.iter().map(|import| import.as_ref().map_or("memory", |import| &import.name));
        let imports = names.map(export).collect::<wasmtime::Result<Vec<_>>>()?;
        let memory = export("memory")?;
        let data = self.linker.instantiate_pre(module)?;
        Ok(Picture { data, memory, imports, input, memory_bytes, filled_bytes })
    }

    /// How much memory top-level code may use.
    fn deploy_memory_bytes(&self) -> usize {
        PREPARE_MEMORY_BYTES.min(self.pool.max_memory_bytes)
    }

    fn out_of_memory(&self, entry: String) -> PrepareError {
        let limit_bytes = self.deploy_memory_bytes();
        let limit = if limit_bytes < PREPARE_MEMORY_BYTES {
            "the node's isolates.max_memory"
        } else {
            "the limit while a function is deployed"
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

/// Held against the function's own limit.
fn fits(entry: &str, needed_bytes: usize, allowed_bytes: usize) -> Result<(), PrepareError> {
    if needed_bytes <= allowed_bytes {
        return Ok(());
    }
    Err(PrepareError::OverMemoryLimit { entry: entry.to_owned(), needed_bytes, allowed_bytes })
}

/// Whether a function may ask for an asset: one that never says the word is spared them.
fn mentions_assets(graph: &ModuleGraph) -> bool {
    graph.modules.iter().any(|module| module.source.contains("asset"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| PrepareError::Internal(format!("a task ended early: {error}")))?
}

/// The files for stacks, and the code of each module. Parsed on a large stack while a blocking thread waits,
/// so that the runtime's threads are free.
async fn transpile_all(graph: ModuleGraph) -> Result<(Files, Vec<String>), PrepareError> {
    let parse = move || {
        let mut files = Files::default();
        let mut codes = Vec::with_capacity(graph.modules.len());
        for module in &graph.modules {
            let transpiled = transpile(&module.path, &module.source)?;
            files.insert(module.path.clone(), transpiled.map);
            codes.push(transpiled.code);
        }
        Ok((files, codes))
    };
    let parsed = tokio::task::spawn_blocking(|| on_large_stack(parse)).await;
    let failed = |reason: String| PrepareError::Internal(format!("the parser could not be run: {reason}"));
    parsed.map_err(|error| failed(error.to_string()))?.map_err(failed)?
}

fn value_type(ty: &wasmtime::ValType) -> Result<wasm_encoder::ValType, JsEngineError> {
    match ty {
        wasmtime::ValType::I32 => Ok(wasm_encoder::ValType::I32),
        wasmtime::ValType::I64 => Ok(wasm_encoder::ValType::I64),
        wasmtime::ValType::F64 => Ok(wasm_encoder::ValType::F64),
        other => Err(JsEngineError::Code(format!("an import uses {other}"))),
    }
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

fn internal(error: wasmtime::Error) -> PrepareError {
    PrepareError::Internal(format!("{error:#}"))
}

/// The engine's imports out of a snapshot's instance.
pub(super) fn externs(
    picture: &Picture,
    data: Instance,
    store: &mut Store<State>,
) -> wasmtime::Result<Vec<Extern>> {
    let found = picture.imports.iter().map(|export| data.get_module_export(&mut *store, export));
    found.collect::<Option<Vec<_>>>().ok_or_else(|| wasmtime::format_err!("the snapshot lacks an export"))
}
