//! The JavaScript engine that all functions of a node share.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_platform::Clock;
use tokio::sync::OnceCell;
use wasmtime::{Engine, Linker, Module, ModuleExport, Store};

use super::clean::{CleanJs, Places};
use super::engine_wasm::{self, ENGINE_WASM, STACK_POINTER, SplitError};
use super::guest_clock::GuestClock;
use super::loaded_snapshots::LoadedSnapshots;
use super::snapshot::{Base, FORMAT, MemoryFacts, Snapshot};
use super::stack::Files;
use super::state::{Stage, State};
use super::{calls, libraries};
use crate::assets::AssetTable;
use crate::code_cache::CodeCache;
use crate::compile::{CompileError, Compiler};
use crate::engine::PoolConfig;
use crate::guest_memory::{FunctionMemory, GuestMemory, Reservation};
use crate::memory_image::PassedOn;
use crate::warm::WarmPool;

/// The wasm that [`JsEngine::new`] takes compiled: the engine without its memory.
///
/// # Errors
/// The committed wasm is not the result of its build recipe.
pub fn engine_code_wasm() -> Result<Vec<u8>, JsEngineError> {
    Ok(engine_wasm::split(ENGINE_WASM)?.code)
}

/// The shared engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JsEngineError {
    /// The committed wasm is not the result of its build recipe.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The committed wasm cannot be compiled.
    #[error("the JavaScript engine cannot be compiled: {0}")]
    Compile(#[from] CompileError),
    /// The compiled code lacks an export: it is not that of the committed wasm.
    #[error(
        "the compiled JavaScript engine does not fit: it has no export {name}; remove it from the cache"
    )]
    MissingExport {
        /// The export.
        name: &'static str,
    },
    /// An import of the compiled code has a type that the committed wasm does not use.
    #[error("the compiled JavaScript engine does not fit: an import uses {used}; remove it from the cache")]
    ImportType {
        /// The type.
        used: wasmtime::ValType,
    },
    /// The imports of the compiled code cannot be linked.
    #[error("the compiled JavaScript engine does not fit: {0:#}; remove it from the cache")]
    Link(wasmtime::Error),
}

/// The engine that all JavaScript functions of a node share.
pub struct JsEngine {
    pub(super) engine: Engine,
    pub(super) code: Module,
    pub(super) exports: Exports,
    pub(super) pool: PoolConfig,
    linker: Linker<State>,
    /// The engine's imports, in their order; none is the memory.
    imports: Vec<Option<PassedOn>>,
    /// The snapshot that top-level code starts from, if it is evaluated in this process.
    pub(super) base: OnceCell<Base>,
    /// The cache of snapshots.
    pub(super) cache: Arc<CodeCache>,
    /// The snapshots of all functions that are in memory.
    pub(super) snapshots: Arc<LoadedSnapshots>,
    /// The wall clock that functions read.
    pub(super) clock: Clock,
    /// The memory of all isolates, and the part of top-level code.
    memory: Arc<GuestMemory>,
    deploys: Arc<FunctionMemory>,
    /// Idle instances that were reset.
    pub(crate) clean: Arc<WarmPool<CleanJs>>,
    /// The images that they are reset from.
    pub(super) pristines: Arc<Places>,
    /// Digest of [`ENGINE_WASM`] and the libraries, which snapshots depend on.
    pub(super) digest: blake3::Hash,
}

/// Exports of the engine.
pub(super) struct Exports {
    pub alloc: ModuleExport,
    pub invoke: ModuleExport,
    pub resolve: ModuleExport,
    pub run_jobs: ModuleExport,
    pub reset: ModuleExport,
    pub stack_pointer: ModuleExport,
}

/// An instance that was reset is dropped after this time without an invocation.
const MAX_CLEAN_IDLE: Duration = Duration::from_secs(3);

impl JsEngine {
    /// Takes the compiled form of [`engine_code_wasm`]. The engine's epoch clock must run whenever
    /// [`JsEngine::prepare`] or [`JsEngine::run`] does.
    /// Functions read the wall clock from `clock`.
    ///
    /// # Errors
    /// `code` is not that of the committed wasm.
    pub fn new(
        engine: &Engine,
        code: Module,
        pool: PoolConfig,
        clock: Clock,
    ) -> Result<Self, JsEngineError> {
        let mut linker = Linker::new(engine);
        calls::define(&mut linker).map_err(JsEngineError::Link)?;
        let export =
            |name: &'static str| code.get_export_index(name).ok_or(JsEngineError::MissingExport { name });
        let exports = Exports {
            alloc: export("alloc")?,
            invoke: export("invoke")?,
            resolve: export("resolve")?,
            run_jobs: export("run_jobs")?,
            reset: export("reset")?,
            stack_pointer: export(STACK_POINTER)?,
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
            cache: Arc::new(CodeCache::new(Compiler::InProcess, None, clock.clone())),
            snapshots: LoadedSnapshots::new(pool),
            clock,
            memory: GuestMemory::new(pool.guest_bytes, || false),
            deploys: Arc::default(),
            clean: WarmPool::new(pool.max_clean() as usize, MAX_CLEAN_IDLE),
            pristines: Places::new(pool.max_clean() as usize),
            digest: snapshot_digest(),
            code,
        })
    }

    /// The engine from `cache`, compiled now if it is not there. It evaluates code where `cache` compiles code, and caches
    /// snapshots there. Blocks while it is compiled.
    ///
    /// # Errors
    /// It cannot be compiled, or the cached code is not that of the committed wasm.
    pub(crate) fn load(
        engine: &Engine,
        cache: Arc<CodeCache>,
        pool: PoolConfig,
        clock: Clock,
    ) -> Result<Self, JsEngineError> {
        let (format, digest) = (postcard::to_allocvec(&FORMAT), blake3::hash(ENGINE_WASM));
        let key: &[&[u8]] = &[b"engine", &format.unwrap_or_default(), digest.as_bytes()];
        let code = cache.module(engine, key, engine_code_wasm)?;
        Ok(Self { cache, ..Self::new(engine, code, pool, clock)? })
    }

    /// This engine with a memory budget that its isolates share with others.
    pub(crate) fn sharing(self, memory: Arc<GuestMemory>) -> Self {
        Self { memory, ..self }
    }

    /// True if invocations wait for memory.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.memory.is_short()
    }

    /// Releases snapshots that have had no calls for some seconds, if there are many. Returns how many were released.
    pub(crate) async fn release_snapshots(&self) -> usize {
        if !self.snapshots.has_excess() {
            return 0;
        }
        let snapshots = self.snapshots.clone();
        tokio::task::spawn_blocking(move || snapshots.release_idle()).await.unwrap_or_default()
    }

    /// An empty reservation, which is charged as its isolate grows.
    pub(super) fn no_reservation(&self) -> Reservation {
        self.memory.empty(&self.deploys)
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
        let state = State::new(stage, memory_bytes, files, assets, reservation, self.guest_clock());
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limit);
        store
    }

    /// The time of an invocation that begins now.
    pub(super) fn guest_clock(&self) -> GuestClock {
        GuestClock::begin(self.clock.now_unix_us())
    }

    /// The cache key of the engine's own snapshot.
    pub(super) fn base_key(&self) -> [Vec<u8>; 2] {
        let format = postcard::to_allocvec(&FORMAT).unwrap_or_default();
        [[b"base".as_slice(), &format].concat(), self.digest.as_bytes().to_vec()]
    }

    /// The imports that the module of a memory image passes on.
    pub(super) fn passed_on(&self) -> Vec<PassedOn> {
        self.imports.iter().flatten().cloned().collect()
    }

    /// Links the module of a memory image.
    pub(super) fn link(&self, module: &Module, facts: MemoryFacts) -> wasmtime::Result<Snapshot> {
        let export = |name: &str| {
            module.get_export_index(name).ok_or_else(|| wasmtime::format_err!("the snapshot lacks {name}"))
        };
        let names =
            self.imports.iter().map(|import| import.as_ref().map_or("memory", |import| &import.name));
        let imports = names.map(export).collect::<wasmtime::Result<Vec<_>>>()?;
        let memory = export("memory")?;
        let module = self.linker.instantiate_pre(module)?;
        let MemoryFacts { input, memory_bytes, .. } = facts;
        Ok(Snapshot { module, memory, imports, input, memory_bytes })
    }
}

fn snapshot_digest() -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(ENGINE_WASM).update(libraries::digest().as_bytes());
    hasher.finalize()
}

fn value_type(ty: &wasmtime::ValType) -> Result<wasm_encoder::ValType, JsEngineError> {
    match ty {
        wasmtime::ValType::I32 => Ok(wasm_encoder::ValType::I32),
        wasmtime::ValType::I64 => Ok(wasm_encoder::ValType::I64),
        wasmtime::ValType::F64 => Ok(wasm_encoder::ValType::F64),
        other => Err(JsEngineError::ImportType { used: other.clone() }),
    }
}
