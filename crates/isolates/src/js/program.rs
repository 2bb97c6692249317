//! The shared engine, and functions prepared to run on it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use wasmtime::{Engine, Extern, Instance, InstancePre, Linker, Module, ModuleExport, Store};

use super::calls::{self, Stage, State};
use super::error::PrepareError;
use super::evaluate::{Base, EvaluatedScript, ScriptTask};
use super::snapshot::{self, PassedOn, SplitError};
use super::stack::Files;
use crate::assets::{self, Asset, AssetTable};
use crate::code_cache::CodeCache;
use crate::compile::{CompileError, Compiler, Parsing, Task};
use crate::engine::PoolConfig;
use crate::guest_memory::{FunctionMemory, GuestMemory, Reservation};
use crate::{LogLevel, ModuleGraph};

// A static: a constant would be put into the binary once for every unit that uses it.
pub(super) static ENGINE_WASM: &[u8] = include_bytes!("../../js-engine/engine.wasm");

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
    /// It cannot be compiled.
    #[error("the JavaScript engine cannot be compiled: {0}")]
    Compile(#[from] CompileError),
    /// The compiled code is not that of the committed wasm.
    #[error("the compiled JavaScript engine does not fit: {0}; remove it from the cache")]
    Code(String),
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
    /// What top-level code starts from, where it is evaluated in this process.
    pub(super) base: OnceCell<Base>,
    /// Where pictures are kept.
    pub(super) kept: Arc<CodeCache>,
    /// The memory of all isolates, and what top-level code has of it.
    memory: Arc<GuestMemory>,
    deploys: Arc<FunctionMemory>,
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
const KEPT_FORMAT: (&str, u32) = (env!("CARGO_PKG_VERSION"), 2);

/// The kind of pictures in the cache, as the first part of their keys.
const PICTURE: &[u8] = b"picture";

/// What is kept with a picture.
#[derive(Serialize, Deserialize)]
pub(super) struct About {
    pub input: u32,
    pub memory_bytes: usize,
    pub filled_bytes: usize,
    pub lines: Vec<(LogLevel, String)>,
    pub files: Files,
    pub assets: AssetTable,
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
            base: OnceCell::new(),
            kept: Arc::new(CodeCache::new(Compiler::InProcess, None)),
            memory: GuestMemory::new(pool.guest_bytes, Arc::default()),
            deploys: Arc::default(),
            digest: blake3::hash(ENGINE_WASM),
            code,
        })
    }

    /// The engine in `kept`, compiled now if it is not there. It evaluates code where `kept` compiles code, and keeps the
    /// results there. Blocks for as long as compiling takes.
    pub(crate) fn load(
        engine: &Engine,
        kept: Arc<CodeCache>,
        pool: PoolConfig,
    ) -> Result<Self, JsEngineError> {
        let (format, digest) = (postcard::to_allocvec(&KEPT_FORMAT), blake3::hash(ENGINE_WASM));
        let key: &[&[u8]] = &[b"engine", &format.unwrap_or_default(), digest.as_bytes()];
        let code = kept.module(engine, key, engine_code_wasm)?;
        Ok(Self { kept, ..Self::new(engine, code, pool)? })
    }

    /// The same engine, whose isolates share a budget with others.
    pub(crate) fn sharing(self, memory: Arc<GuestMemory>) -> Self {
        Self { memory, ..self }
    }

    /// Memory for an isolate of its own, which is charged as it grows.
    pub(super) fn no_reservation(&self) -> Reservation {
        self.memory.empty(&self.deploys)
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
    /// Takes some milliseconds, more if top-level code computes, up to a limit of 5 seconds of processor time, 60
    /// seconds on the clock and 128 MiB or the pool's `max_memory_bytes`, if that is less. What it leaves must fit into
    /// `memory_bytes`, the function's own limit. Dropping the future abandons it.
    ///
    /// Runs in this process only with [`Compiler::InProcess`]: code that overflows the parser's stack ends it.
    pub async fn prepare_script(&self, script: Script<'_>) -> Result<JsProgram, PrepareError> {
        let Script { graph, memory_bytes, .. } = script;
        let key = Arc::new(self.key(script)?);
        if !script.anew
            && let Some(program) = self.kept_program(&graph.entry, memory_bytes, key.clone()).await?
        {
            return Ok(program);
        }
        let assets = if mentions_assets(graph) { script.assets.to_vec() } else { Vec::new() };
        let assets = blocking(move || {
            assets::read_all(&assets).map_err(|error| PrepareError::Assets { reason: error.to_string() })
        });
        let assets = assets.await?;
        let evaluated = match self.kept.compiler() {
            Compiler::InProcess => {
                self.evaluate(graph, assets, memory_bytes, Parsing::in_process()).await?
            }
            Compiler::Child(child) => {
                let cache = self.kept.folder().cloned();
                let task = ScriptTask { graph: Cow::Owned(graph.clone()), assets, memory_bytes, cache };
                let (child, entry) = (child.clone(), graph.entry.clone());
                blocking(move || {
                    let answer = child.exchange(Task::Script, &task);
                    answer.map_err(|reason| PrepareError::Process { entry, reason })?
                })
                .await?
            }
        };
        self.keep(key, evaluated).await
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
    async fn kept_program(
        &self,
        entry: &str,
        memory_bytes: usize,
        key: Arc<Vec<u8>>,
    ) -> Result<Option<JsProgram>, PrepareError> {
        let (engine, kept) = (self.engine.clone(), self.kept.clone());
        let picture = blocking(move || Ok(kept.kept::<Module>(&engine, &[PICTURE, &key]))).await?;
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
    async fn keep(&self, key: Arc<Vec<u8>>, evaluated: EvaluatedScript) -> Result<JsProgram, PrepareError> {
        let (engine, kept) = (self.engine.clone(), self.kept.clone());
        let (module, about) = blocking(move || {
            let EvaluatedScript { native, about } = evaluated;
            let kept = kept.keep(&engine, &[PICTURE, &key], &native, about.to_vec());
            let (module, about) = kept.map_err(|error| PrepareError::Internal(error.to_string()))?;
            // The file's own, which may be another's that was written meanwhile.
            let about =
                postcard::from_bytes(&about).map_err(|error| PrepareError::Internal(error.to_string()))?;
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
        reservation: Reservation,
    ) -> Store<State> {
        let state = State::new(stage, memory_bytes, files, assets, reservation);
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limit);
        store
    }

    /// What pictures of the engine itself are kept as.
    pub(super) fn base_key(&self) -> [Vec<u8>; 2] {
        let format = postcard::to_allocvec(&KEPT_FORMAT).unwrap_or_default();
        [[b"base".as_slice(), &format].concat(), self.digest.as_bytes().to_vec()]
    }

    pub(super) fn passed_on(&self) -> Vec<PassedOn> {
        self.imports.iter().flatten().cloned().collect()
    }

    pub(super) fn link(
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
}

/// Held against the function's own limit.
pub(super) fn fits(entry: &str, needed_bytes: usize, allowed_bytes: usize) -> Result<(), PrepareError> {
    if needed_bytes <= allowed_bytes {
        return Ok(());
    }
    Err(PrepareError::OverMemoryLimit { entry: entry.to_owned(), needed_bytes, allowed_bytes })
}

/// Whether a function may ask for an asset: one that never says the word is spared them.
fn mentions_assets(graph: &ModuleGraph) -> bool {
    graph.modules.iter().any(|module| module.source.contains("asset"))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| PrepareError::Internal(format!("a task ended early: {error}")))?
}

fn value_type(ty: &wasmtime::ValType) -> Result<wasm_encoder::ValType, JsEngineError> {
    match ty {
        wasmtime::ValType::I32 => Ok(wasm_encoder::ValType::I32),
        wasmtime::ValType::I64 => Ok(wasm_encoder::ValType::I64),
        wasmtime::ValType::F64 => Ok(wasm_encoder::ValType::F64),
        other => Err(JsEngineError::Code(format!("an import uses {other}"))),
    }
}

pub(super) fn internal(error: wasmtime::Error) -> PrepareError {
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
