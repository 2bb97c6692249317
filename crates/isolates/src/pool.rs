//! All isolates of a node: one engine, one pool, one epoch clock, two languages.

mod many;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use edgefaas_platform::Clock;
use tokio::sync::OnceCell;
use wasmtime::Engine;

use crate::code_cache::{CacheFolder, CodeCache};
use crate::compile::Compiler;
use crate::component::{ComponentRunner, check_header};
use crate::engine::{self, EngineError, EpochClock, PoolConfig};
use crate::event::Event;
use crate::guest_memory::GuestMemory;
use crate::host::Host;
use crate::js::{self, JsEngine};
use crate::lane;
use crate::outcome::{Completion, InvocationMeta, Limits, RunError};
use crate::program::{FunctionSource, PrepareError, Prepared, Preparing, Program, ProgramKind, compiled};
use crate::run_resources::{Isolate, RunResources};
use crate::source::ModuleGraph;
use crate::start::{Admitted, Start, StartWith, WarmInstance};
use crate::warm::{Isolation, Taken, WarmPool};

pub use many::PreparedFunction;

/// Settings of [`Isolates`].
#[derive(Debug, Clone)]
pub struct IsolatesConfig {
    /// Sizes of the pool.
    pub pool: PoolConfig,
    /// The process that compiles: this one or a child.
    pub compiler: Compiler,
    /// The folder of cached code; without it nothing is cached.
    pub code_cache: Option<CacheFolder>,
    /// The wall clock of functions and of the code cache.
    pub clock: Clock,
}

/// The isolates of a node.
pub struct Isolates {
    engine: Engine,
    code: Arc<CodeCache>,
    components: Arc<ComponentRunner>,
    // Made at the first JavaScript function: a node without one saves its time and memory.
    javascript: OnceCell<Arc<JsEngine>>,
    epoch: EpochClock,
    wall: Clock,
    pool: PoolConfig,
    warm: Arc<WarmPool<WarmInstance>>,
    memory: Arc<GuestMemory>,
    running: AtomicU32,
}

/// An instance that is kept for reuse is dropped after this time without an invocation.
const MAX_IDLE: Duration = Duration::from_secs(300);

/// A future that this crate compiles, once. Without the box each crate that polls it would compile the engine's generic code.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Isolates {
    /// Sets up engine, pool and epoch clock. Nothing is compiled yet.
    ///
    /// # Errors
    /// The system refuses the pool's address space, or a thread.
    pub fn new(config: &IsolatesConfig) -> Result<Self, EngineError> {
        let engine = engine::build(config.pool)?;
        let components =
            ComponentRunner::new(&engine, config.clock.clone()).map_err(EngineError::Linker)?;
        let epoch = EpochClock::start(engine.clone()).map_err(EngineError::Thread)?;
        let warm = WarmPool::new(config.pool.max_warm() as usize, MAX_IDLE);
        let code = CodeCache::new(config.compiler.clone(), config.code_cache.clone(), config.clock.clone());
        let idle = warm.clone();
        Ok(Self {
            code: Arc::new(code),
            components: Arc::new(components),
            javascript: OnceCell::new(),
            epoch,
            wall: config.clock.clone(),
            pool: config.pool,
            memory: GuestMemory::new(config.pool.guest_bytes, move || idle.evict(1) > 0),
            warm,
            running: AtomicU32::new(0),
            engine,
        })
    }

    /// Compiles, links and checks a source. Long work runs on the runtime's blocking threads; dropping the future abandons
    /// it there: it ends by itself and its result is dropped.
    pub fn prepare<'a>(&'a self, function: Preparing<'a>) -> Boxed<'a, Result<Program, PrepareError>> {
        Box::pin(self.compile_and_link(function))
    }

    async fn compile_and_link(&self, function: Preparing<'_>) -> Result<Program, PrepareError> {
        if matches!(function.source, FunctionSource::JavaScript(_)) {
            // Compiled once a node, and no part of any function's own time.
            self.javascript().await?;
        }
        let began = Instant::now();
        let kind = self.prepare_kind(function).await?;
        Ok(self.program(kind, function.isolation, began.elapsed()))
    }

    fn program(&self, kind: ProgramKind, isolation: Isolation, took: Duration) -> Program {
        let warm = match isolation {
            Isolation::Fresh => None,
            Isolation::Reuse { max } => Some(self.warm.function(max)),
        };
        Program(Arc::new(Prepared { kind, warm, turns: Arc::default(), memory: Arc::default(), took }))
    }

    async fn prepare_kind(&self, function: Preparing<'_>) -> Result<ProgramKind, PrepareError> {
        let Preparing { name, source, assets, .. } = function;
        match source {
            FunctionSource::Component(wasm) => {
                check_header(name, wasm)?;
                let (engine, code, components) =
                    (self.engine.clone(), self.code.clone(), self.components.clone());
                let (name, wasm, assets) = (name.to_owned(), wasm.clone(), assets.to_vec());
                tokio::task::spawn_blocking(move || {
                    let (component, assets) = compiled(&engine, &code, &name, &wasm, &assets)?;
                    Ok(ProgramKind::Component(components.prepare(&name, &component, assets)?))
                })
                .await?
            }
            FunctionSource::JavaScript(graph) => {
                let javascript = self.javascript().await?;
                let _running = self.epoch.running();
                let program = javascript.prepare_script(script_of(&function, graph)).await?;
                Ok(ProgramKind::JavaScript(javascript.clone(), program))
            }
        }
    }

    /// Waits until this thread has time for one more invocation, in the order of arrival, one of each function after the other. An
    /// invocation waits here before it takes memory or a warm instance, so that of a burst only those that run hold them.
    /// Dropping the future stops waiting.
    pub async fn turn(&self, program: &Program) -> Admitted {
        lane::admit(Arc::as_ptr(&program.0.turns) as lane::FunctionId).await;
        Admitted(())
    }

    /// Starts an invocation, if there is memory for it now and no other one waits for memory.
    pub fn try_start(&self, program: &Program, limits: Limits) -> Option<Start> {
        let Prepared { warm, memory, .. } = &*program.0;
        if let Some(taken) = warm.as_ref().and_then(|warm| warm.take(Instant::now())) {
            return Some(program.start(StartWith::Warm(taken), limits));
        }
        let reservation = self.memory.try_reserve(memory, limits.memory_bytes as u64)?;
        Some(program.start(StartWith::New(reservation), limits))
    }

    /// Does the same as [`try_start`](Self::try_start), for an invocation that an isolate waits for. It passes waiting
    /// invocations: its caller holds memory until it has ended.
    pub fn start_nested(&self, program: &Program, limits: Limits) -> Option<Start> {
        self.try_start(program, limits).or_else(|| {
            let memory = self.memory.reserve_nested(&program.0.memory, limits.memory_bytes as u64)?;
            Some(program.start(StartWith::New(memory), limits))
        })
    }

    /// Waits for memory. Dropping the future cancels the request.
    pub async fn start(&self, program: &Program, limits: Limits) -> Option<Start> {
        if let Some(start) = self.try_start(program, limits) {
            return Some(start);
        }
        let granted = self.memory.reserve(&program.0.memory, limits.memory_bytes as u64).await?;
        Some(program.start(StartWith::New(granted), limits))
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
        let _clock = self.epoch.running();
        let _count = Count::up(&self.running);
        let Prepared { kind, warm, .. } = &*program.0;
        // No instance stays idle while invocations wait for memory.
        let keep = warm.is_some() && !self.memory.is_short();
        let Start { with, cpu_time } = start;
        let uses = match &with {
            StartWith::Warm(taken) => taken.uses,
            StartWith::New(_) => 0,
        };
        let (mut completion, kept) = match kind {
            ProgramKind::Component(component) => {
                let isolate = match with {
                    StartWith::Warm(Taken { instance: WarmInstance::Component(instance), .. }) => {
                        Isolate::Warm(instance)
                    }
                    StartWith::Warm(_) => Isolate::New(self.memory.empty(&program.0.memory)),
                    StartWith::New(reservation) => Isolate::New(reservation),
                };
                let resources = RunResources { isolate, keep, cpu_time };
                let (completion, kept) =
                    self.components.run(component, resources, meta, event, limits, host).await;
                (completion, kept.map(WarmInstance::Component))
            }
            ProgramKind::JavaScript(engine, script) => {
                let isolate = match with {
                    StartWith::Warm(Taken { instance: WarmInstance::JavaScript(instance), .. }) => {
                        Isolate::Warm(instance)
                    }
                    StartWith::Warm(_) => Isolate::New(self.memory.empty(&program.0.memory)),
                    StartWith::New(reservation) => Isolate::New(reservation),
                };
                let resources = RunResources { isolate, keep, cpu_time };
                let (completion, kept) = engine.run_in(script, resources, meta, event, limits, host).await;
                (completion, kept.map(WarmInstance::JavaScript))
            }
        };
        if let (Some(warm), Some(kept)) = (warm, kept) {
            warm.give_back(kept, uses, completion.start + completion.execution, Instant::now());
            // A request that was queued meanwhile has not seen this instance.
            if self.memory.is_short() {
                self.warm.evict(1);
            }
        }
        if let Err(RunError::NoCapacity { limit }) = &mut completion.result {
            *limit = self.pool.max_isolates;
        }
        completion
    }

    /// The number of isolates that run now.
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// The number of idle instances.
    pub fn waiting(&self) -> usize {
        self.warm.len()
    }

    /// Bytes that the pool keeps resident in free slots, so that the next isolate of a function starts faster. Many calls at
    /// once leave many such slots; those of a function are released with its program.
    pub fn kept_bytes(&self) -> u64 {
        self.engine
            .pooling_allocator_metrics()
            .map_or(0, |metrics| metrics.unused_memory_bytes_resident() as u64)
    }

    /// Drops instances that were idle for long.
    pub fn tidy(&self) {
        let now = Instant::now();
        self.warm.tidy(now);
        if let Some(javascript) = self.javascript.get() {
            javascript.clean.tidy(now);
        }
    }

    /// Releases snapshots of JavaScript functions that have had no calls for some seconds, if there are many; they stay in their
    /// files. Returns how many were released.
    pub async fn release_snapshots(&self) -> usize {
        match self.javascript.get() {
            Some(javascript) => javascript.release_snapshots().await,
            None => 0,
        }
    }

    /// Drops all idle instances that were reset, and the less recently used half of those that keep their state, rounded up,
    /// because memory is short. Returns how many were dropped.
    pub fn relieve(&self) -> usize {
        let clean = self.javascript.get().map_or(0, |javascript| javascript.clean.evict(usize::MAX));
        clean + self.warm.evict(self.warm.len().div_ceil(2))
    }

    /// Maximum number of isolates that run at the same time.
    pub fn max_isolates(&self) -> u32 {
        self.pool.max_isolates
    }

    async fn javascript(&self) -> Result<&Arc<JsEngine>, PrepareError> {
        self.javascript
            .get_or_try_init(|| async {
                let (engine, code, pool) = (self.engine.clone(), self.code.clone(), self.pool);
                let (memory, wall) = (self.memory.clone(), self.wall.clone());
                let load = move || JsEngine::load(&engine, code, pool, wall);
                let engine = tokio::task::spawn_blocking(load).await??;
                Ok(Arc::new(engine.sharing(memory)))
            })
            .await
    }
}

/// A function as the JavaScript engine prepares it.
fn script_of<'a>(function: &Preparing<'a>, graph: &'a ModuleGraph) -> js::Script<'a> {
    let Preparing { owner, assets, memory_bytes, anew, .. } = *function;
    js::Script { owner, graph, assets, memory_bytes, anew }
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
