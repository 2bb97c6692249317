//! All isolates of a node: one engine, one pool, one clock, two languages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::assets::{self, Asset, AssetTable};
use crate::busy::Busy;
use crate::code_cache::{CacheFolder, CodeCache};
use crate::compile::{CompileError, CompiledComponent, Compiler, ComponentTask};
use crate::component::{ComponentError, ComponentProgram, ComponentRunner, check_header};
use crate::engine::{self, EngineError, EpochClock, PoolConfig};
use crate::event::Event;
use crate::guest_memory::{FunctionMemory, GuestMemory, Reservation};
use crate::host::{Host, LogLevel};
use crate::js::{self, JsEngine, JsProgram};
use crate::outcome::{Completion, InvocationMeta, Limits, RunError};
use crate::source::ModuleGraph;
use crate::turns::Turns;
use crate::warm::{Instance, Isolation, Place, Taken, Warm, WarmPool};

/// How isolates are set up.
#[derive(Debug, Clone)]
pub struct IsolatesConfig {
    /// Sizes of the pool.
    pub pool: PoolConfig,
    /// Where compiling happens.
    pub compiler: Compiler,
    /// Where compiled code is kept; nowhere without.
    pub code_cache: Option<CacheFolder>,
}

/// What a function is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FunctionSource {
    /// A WebAssembly component of the world in `wit/`.
    Component(Bytes),
    /// JavaScript or TypeScript modules.
    JavaScript(ModuleGraph),
}

impl FunctionSource {
    /// `component` or `javascript`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Component(_) => "component",
            Self::JavaScript(_) => "javascript",
        }
    }

    /// The size of what the user wrote or built, in bytes.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Component(wasm) => wasm.len(),
            Self::JavaScript(graph) => graph.modules.iter().map(|module| module.source.len()).sum(),
        }
    }
}

/// A function that is to be prepared.
#[derive(Debug, Clone, Copy)]
pub struct Preparing<'a> {
    /// What errors call it.
    pub name: &'a str,
    /// Whose memory after its top-level code is kept: a name that no other function and no other revision has.
    pub owner: &'a str,
    /// What it is made of.
    pub source: &'a FunctionSource,
    /// What it may read in place.
    pub assets: &'a [Asset],
    /// Its own limit, assets not counted. JavaScript whose memory after its top-level code is above it is refused; a
    /// component's memory is held against it when it runs.
    pub memory_bytes: usize,
    /// How its instances follow one another.
    pub isolation: Isolation,
    /// Whether JavaScript is evaluated though the result of an earlier time is kept.
    pub anew: bool,
}

/// A function that is ready to run: compiled, linked and, for JavaScript, with its top level evaluated.
/// Cheap to clone.
#[derive(Clone)]
pub struct Program(Arc<Prepared>);

struct Prepared {
    kind: ProgramKind,
    /// Instances that wait for their next invocation, where the function wants that.
    warm: Option<Arc<Warm>>,
    turns: Arc<Turns>,
    memory: Arc<FunctionMemory>,
    took: Duration,
}

/// What an invocation begins with: an instance that has waited for it, or memory for a new one.
pub struct Start {
    begin: Begin,
    busy: Arc<Busy>,
}

/// What an invocation uses, also after its run was dropped.
pub struct Usage {
    busy: Arc<Busy>,
    warm: bool,
}

impl Start {
    /// What the invocation is going to use.
    pub fn usage(&self) -> Usage {
        Usage { busy: self.busy.clone(), warm: matches!(self.begin, Begin::Warm(_)) }
    }
}

impl Usage {
    /// Processor time so far.
    pub fn cpu(&self) -> Duration {
        self.busy.spent()
    }

    /// Whether its instance was there already.
    pub fn warm(&self) -> bool {
        self.warm
    }
}

enum Begin {
    Warm(Taken),
    New(Reservation),
}

enum ProgramKind {
    Component(ComponentProgram),
    JavaScript(Arc<JsEngine>, JsProgram),
}

impl Program {
    fn start(&self, begin: Begin, limits: Limits) -> Start {
        Start { begin, busy: Busy::new(limits.cpu, self.0.turns.clone()) }
    }

    /// How long it took to compile or to evaluate it, or to load what was kept of that.
    pub fn prepare_time(&self) -> Duration {
        self.0.took
    }

    /// What its top-level code logged when it was prepared.
    pub fn prepare_log(&self) -> &[(LogLevel, String)] {
        match &self.0.kind {
            ProgramKind::Component(_) => &[],
            ProgramKind::JavaScript(_, program) => program.deploy_log(),
        }
    }
}

/// Why a source can't be a function.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A component that is none, or of another world.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// Compiling failed.
    #[error("{name} cannot be compiled: {reason}")]
    Compile {
        /// The function.
        name: String,
        /// Why.
        reason: CompileError,
    },
    /// JavaScript that does not parse, link or load.
    #[error(transparent)]
    JavaScript(#[from] js::PrepareError),
    /// The node is at fault.
    #[error("the JavaScript engine cannot be started: {0}")]
    Engine(String),
}

/// The isolates of a node.
pub struct Isolates {
    engine: Engine,
    code: Arc<CodeCache>,
    components: Arc<ComponentRunner>,
    // Made at the first JavaScript function: a node without one saves its time and memory.
    javascript: OnceCell<Arc<JsEngine>>,
    clock: EpochClock,
    pool: PoolConfig,
    warm: Arc<WarmPool>,
    memory: Arc<GuestMemory>,
    running: AtomicU32,
}

impl Isolates {
    /// Sets up engine, pool and clock. Nothing is compiled yet.
    pub fn new(config: &IsolatesConfig) -> Result<Self, EngineError> {
        let engine = engine::build(config.pool)?;
        let failed = |reason: String| EngineError::new(config.pool.max_isolates, reason);
        let components = ComponentRunner::new(&engine).map_err(|error| failed(format!("{error:#}")))?;
        let clock = EpochClock::start(engine.clone()).map_err(|error| failed(error.to_string()))?;
        let warm = WarmPool::new(config.pool.max_warm() as usize);
        Ok(Self {
            code: Arc::new(CodeCache::new(config.compiler.clone(), config.code_cache.clone())),
            components: Arc::new(components),
            javascript: OnceCell::new(),
            clock,
            pool: config.pool,
            memory: GuestMemory::new(config.pool.guest_bytes, warm.clone()),
            warm,
            running: AtomicU32::new(0),
            engine,
        })
    }

    /// Compiles, links and checks a source. Work that takes long is done on the runtime's blocking threads; dropping the
    /// future lets it end there unseen.
    pub async fn prepare(&self, wanted: Preparing<'_>) -> Result<Program, PrepareError> {
        if matches!(wanted.source, FunctionSource::JavaScript(_)) {
            // Compiled once a node, and no part of any function's own time.
            self.javascript().await?;
        }
        let began = Instant::now();
        let kind = self.prepare_kind(wanted).await?;
        let took = began.elapsed();
        let warm = match wanted.isolation {
            Isolation::Fresh => None,
            Isolation::Reuse { max } => Some(self.warm.function(max)),
        };
        Ok(Program(Arc::new(Prepared { kind, warm, turns: Arc::default(), memory: Arc::default(), took })))
    }

    async fn prepare_kind(&self, wanted: Preparing<'_>) -> Result<ProgramKind, PrepareError> {
        let Preparing { name, owner, source, assets, memory_bytes, anew, .. } = wanted;
        match source {
            FunctionSource::Component(wasm) => {
                check_header(name, wasm)?;
                let (engine, code, components) =
                    (self.engine.clone(), self.code.clone(), self.components.clone());
                let (name, wasm, assets) = (name.to_owned(), wasm.clone(), assets.to_vec());
                blocking(move || {
                    let (component, assets) = compiled(&engine, &code, &name, &wasm, &assets)?;
                    Ok(ProgramKind::Component(components.prepare(&name, &component, assets)?))
                })
                .await
            }
            FunctionSource::JavaScript(graph) => {
                let javascript = self.javascript().await?;
                let _running = self.clock.running();
                let script = js::Script { owner, graph, assets, memory_bytes, anew };
                let program = javascript.prepare_script(script).await?;
                Ok(ProgramKind::JavaScript(javascript.clone(), program))
            }
        }
    }

    /// What an invocation begins with, if there is memory for it now and no other one waits for memory.
    pub fn try_start(&self, program: &Program, limits: Limits) -> Option<Start> {
        let Prepared { warm, memory, .. } = &*program.0;
        if let Some(taken) = warm.as_ref().and_then(|warm| warm.take(Instant::now())) {
            return Some(program.start(Begin::Warm(taken), limits));
        }
        let reservation = self.memory.try_reserve(memory, limits.memory_bytes as u64)?;
        Some(program.start(Begin::New(reservation), limits))
    }

    /// The same of an invocation that an isolate waits for. It passes those that wait: its caller holds memory, which would
    /// not be free before.
    pub fn start_nested(&self, program: &Program, limits: Limits) -> Option<Start> {
        self.try_start(program, limits).or_else(|| {
            let memory = self.memory.reserve_nested(&program.0.memory, limits.memory_bytes as u64)?;
            Some(program.start(Begin::New(memory), limits))
        })
    }

    /// Waits for memory. Dropping the future gives the place in the queue up.
    pub async fn start(&self, program: &Program, limits: Limits) -> Option<Start> {
        if let Some(start) = self.try_start(program, limits) {
            return Some(start);
        }
        let granted = self.memory.reserve(&program.0.memory, limits.memory_bytes as u64).await?;
        Some(program.start(Begin::New(granted), limits))
    }

    /// The memory of all isolates.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Runs one invocation once there is memory for it: see [`run_started`](Self::run_started).
    pub async fn run(
        &self,
        program: &Program,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> Completion {
        let began = Instant::now();
        match tokio::time::timeout(limits.timeout, self.start(program, limits)).await {
            Ok(Some(start)) => self.run_started(program, start, meta, event, limits, host).await,
            _ => {
                let max_bytes = self.memory.reading().max_bytes;
                Completion::refused(RunError::NodeOutOfMemory { max_bytes }, began.elapsed())
            }
        }
    }

    /// Runs one invocation in an isolate of its own, which is gone afterwards unless the program was prepared for
    /// [reuse](Isolation::Reuse). Dropping the future ends the run, and the isolate with it.
    pub async fn run_started(
        &self,
        program: &Program,
        start: Start,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> Completion {
        let _clock = self.clock.running();
        let _count = Count::up(&self.running);
        let Prepared { kind, warm, .. } = &*program.0;
        // While others wait for memory, an instance does not keep its own.
        let keep = warm.is_some() && !self.memory.is_short();
        let Start { begin, busy } = start;
        let (taken, reservation, uses) = match begin {
            Begin::Warm(taken) => (Some(taken.instance), None, taken.uses),
            Begin::New(reservation) => (None, Some(reservation), 0),
        };
        let reservation = reservation.unwrap_or_else(|| self.memory.empty(&program.0.memory));
        let (mut completion, kept) = match kind {
            ProgramKind::Component(program) => {
                let instance = match taken {
                    Some(Instance::Component(instance)) => Some(instance),
                    _ => None,
                };
                let place = Place { instance, reservation, keep, busy };
                let (completion, kept) =
                    self.components.run(program, place, meta, event, limits, host).await;
                (completion, kept.map(Instance::Component))
            }
            ProgramKind::JavaScript(engine, program) => {
                let instance = match taken {
                    Some(Instance::JavaScript(instance)) => Some(instance),
                    _ => None,
                };
                let place = Place { instance, reservation, keep, busy };
                let (completion, kept) = engine.run_in(program, place, meta, event, limits, host).await;
                (completion, kept.map(Instance::JavaScript))
            }
        };
        if let (Some(warm), Some(kept)) = (warm, kept) {
            warm.give_back(kept, uses, completion.start + completion.execution, Instant::now());
            // One that began to wait meanwhile has not seen this instance.
            if self.memory.is_short() {
                self.warm.evict(1);
            }
        }
        if let Err(RunError::NoCapacity { limit }) = &mut completion.result {
            *limit = self.pool.max_isolates;
        }
        completion
    }

    /// How many isolates run now.
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// How many wait for their next invocation.
    pub fn waiting(&self) -> usize {
        self.warm.len()
    }

    /// Bytes that the pool keeps resident in places that nobody uses, so that the next isolate of a function starts faster. Many calls at
    /// once leave many such places; those of a function go with its program.
    pub fn kept_bytes(&self) -> u64 {
        self.engine
            .pooling_allocator_metrics()
            .map_or(0, |metrics| metrics.unused_memory_bytes_resident() as u64)
    }

    /// Lets go of instances that have waited for long.
    pub fn tidy(&self) {
        self.warm.tidy(Instant::now());
    }

    /// Memory is short: lets go of the half of the waiting instances that was not used for longest, of all when one is left;
    /// says how many went.
    pub fn relieve(&self) -> usize {
        self.warm.evict(self.warm.len().div_ceil(2))
    }

    /// How many may run.
    pub fn max_isolates(&self) -> u32 {
        self.pool.max_isolates
    }

    async fn javascript(&self) -> Result<&Arc<JsEngine>, PrepareError> {
        self.javascript
            .get_or_try_init(|| async {
                let (engine, code, pool) = (self.engine.clone(), self.code.clone(), self.pool);
                let memory = self.memory.clone();
                blocking(move || {
                    JsEngine::load(&engine, code, pool)
                        .map(|engine| Arc::new(engine.sharing(memory)))
                        .map_err(|error| PrepareError::Engine(error.to_string()))
                })
                .await
            })
            .await
    }
}

/// The version of [`AssetTable`] as it is kept with native code.
const TABLE_FORMAT: &[u8] = &[1];

/// Kept with the code of a component that reads no assets, so that it is not compiled again when assets change.
const READS_NONE: &[u8] = b"reads no assets";

/// The native code of a component, and where its assets are.
fn compiled(
    engine: &Engine,
    code: &CodeCache,
    name: &str,
    wasm: &Bytes,
    assets: &[Asset],
) -> Result<(Component, AssetTable), PrepareError> {
    let refused = |reason: CompileError| match reason {
        CompileError::Invalid(reason) => ComponentError::Invalid { name: name.to_owned(), reason }.into(),
        reason => PrepareError::Compile { name: name.to_owned(), reason },
    };
    let unreadable = |reason: String| refused(CompileError::Assets(reason));
    let damaged = |error: postcard::Error| unreadable(format!("their table is damaged: {error}"));
    let identity = assets::identity(assets);
    let (plain, with_assets): (&[&[u8]], &[&[u8]]) = (&[wasm], &[wasm, &identity, TABLE_FORMAT]);
    if !assets.is_empty()
        && let Some((component, table)) = code.kept(engine, with_assets)
    {
        return Ok((component, postcard::from_bytes(&table).map_err(damaged)?));
    }
    if let Some((component, about)) = code.kept(engine, plain)
        && (assets.is_empty() || about == READS_NONE)
    {
        return Ok((component, AssetTable::default()));
    }
    let contents = assets::read_all(assets).map_err(|error| unreadable(error.to_string()))?;
    let task = ComponentTask { wasm: wasm.clone(), assets: contents };
    let CompiledComponent { native, assets: table } =
        code.compiler().component(engine, task).map_err(refused)?;
    let (key, about) = match &table {
        Some(table) => (with_assets, postcard::to_allocvec(table).map_err(damaged)?),
        None if assets.is_empty() => (plain, Vec::new()),
        None => (plain, READS_NONE.to_vec()),
    };
    let (component, _) = code.keep(engine, key, &native, about).map_err(refused)?;
    Ok((component, table.unwrap_or_default()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(PrepareError::Engine(format!("a task ended early: {error}"))),
    }
}

struct Count<'a>(&'a AtomicU32);

impl<'a> Count<'a> {
    fn up(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
