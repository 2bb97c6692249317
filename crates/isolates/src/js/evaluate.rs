//! Evaluating a function's modules: they are transpiled and run to the end of their top level, and the memory becomes a
//! snapshot.
//!
//! A node leaves this to a [child process](crate::compile).

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_js_abi::{self as abi, Load, Loaded, Source, Thrown, ThrownKind};
use wasmtime::{Module, Store, TypedFunc};

use super::blocking::{blocking, internal};
use super::calls;
use super::engine::JsEngine;
use super::engine_wasm::{self, ENGINE_WASM};
use super::error::{DeployMemory, PrepareError, PrepareFault};
use super::graph::lines_before;
use super::snapshot::{Base, BaseMetadata, MemoryFacts, Snapshot, SnapshotMetadata};
use super::stack::Files;
use super::state::{Stage, State};
use super::transpile::transpile;
use crate::ModuleGraph;
use crate::assets::{self, AssetTable, PlainAsset};
use crate::code_cache::Cached;
use crate::compile::{self, CodeKind, ParseThread};
use crate::cpu_time::{Counted, CpuTime, TimeUsed};
use crate::deadline::{self, DeadlinePassed};
use crate::image_modules::ImageModules;
use crate::memory_image::{MemoryImage, PAGE_BYTES};

/// The processor time of top-level code at deploy.
///
/// The largest package that is known to work, mathjs, takes near 5 s on a Raspberry Pi.
const PREPARE_CPU: Duration = Duration::from_secs(15);

/// The wall-clock time of it, since other isolates compute as well.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The memory of top-level code.
const PREPARE_MEMORY_BYTES: usize = 128 << 20;

/// The snapshot of a function, compiled.
pub(super) struct EvaluatedScript {
    /// A compiled module without functions.
    pub native: Vec<u8>,
    pub metadata: SnapshotMetadata,
}

impl JsEngine {
    /// Evaluates modules in this process, which ends if their text overflows the parser's stack.
    pub(super) async fn evaluate(
        &self,
        graph: &ModuleGraph,
        assets: Vec<PlainAsset>,
        memory_bytes: usize,
        thread: ParseThread,
    ) -> Result<EvaluatedScript, PrepareError> {
        let (files, codes) = transpile_all(graph.clone(), thread).await?;
        if !graph.modules.iter().any(|module| module.path == graph.entry) {
            return Err(PrepareError::NoEntry { entry: graph.entry.clone() });
        }
        let modules = graph.modules.iter().zip(&codes).map(|(module, code)| Source {
            path: &module.path,
            code,
            imports: module.imports.iter().map(|(name, path)| (name.as_str(), path.as_str())).collect(),
        });
        let load = Load { entry: &graph.entry, modules: modules.collect(), seed: rand::random() };
        let load = abi::encode(&load).map_err(PrepareFault::codec)?;

        let files = Arc::new(files);
        let base = self.base.get_or_try_init(|| self.make_base()).await?;
        if base.snapshot.memory_bytes > memory_bytes {
            return Err(PrepareError::LimitBelowEngine {
                entry: graph.entry.clone(),
                least_bytes: base.snapshot.memory_bytes,
                allowed_bytes: memory_bytes,
            });
        }
        let (deadline, cpu_time) =
            (Instant::now() + PREPARE_TIMEOUT, CpuTime::new(PREPARE_CPU, Arc::default()));
        let mut store = self.deploy_store(files.clone());
        deadline::arm(&mut store, deadline, cpu_time.clone());
        let run = Counted::new(cpu_time, Box::pin(evaluate(self, &base.snapshot, &mut store, &load)));
        let evaluated = deadline::limit(deadline, run).await.unwrap_or_else(|passed| Err(passed.into()));
        let loaded = evaluated.map_err(|error| self.prepare_error(&error, &store, &graph.entry))?;
        drop(load);
        self.accept(loaded, &files, &graph.entry)?;

        let needed_bytes = store.data().memory.map_or(0, |memory| memory.data_size(&store));
        check_limit(&graph.entry, needed_bytes, memory_bytes)?;
        let image = image(&store, base.stack_top).map_err(internal)?;
        let Stage::Deploy(lines) =
            std::mem::replace(&mut store.data_mut().stage, Stage::Deploy(Vec::new()))
        else {
            return Err(PrepareFault::Stage.into());
        };
        drop(store);
        let metadata = SnapshotMetadata {
            input: base.snapshot.input,
            memory_bytes: image.len(),
            filled_bytes: image.filled_bytes(),
            lines,
            files: Arc::into_inner(files).unwrap_or_default(),
            assets: AssetTable::default(),
        };
        let (engine, functions, images) = (self.engine.clone(), self.passed_on(), base.images.clone());
        blocking(move || {
            let pages = image.len().div_ceil(PAGE_BYTES) as u64;
            let (assets, contents) = assets::lay_out(pages, &assets)?;
            let native = if contents.is_empty() {
                images.compile(&image)
            } else {
                let wasm = image.to_module(&functions, &contents, assets.memory_bytes);
                drop((image, contents));
                compile::compile(&engine, CodeKind::Module, &wasm)
            };
            let native = native.map_err(PrepareFault::from)?;
            Ok(EvaluatedScript { native, metadata: SnapshotMetadata { assets, ..metadata } })
        })
        .await
    }

    /// A store for top-level code.
    fn deploy_store(&self, files: Arc<Files>) -> Store<State> {
        let (stage, reservation) = (Stage::Deploy(Vec::new()), self.no_reservation());
        self.store(stage, self.deploy_memory_bytes(), files, Arc::default(), reservation)
    }

    /// The snapshot of the engine with its prelude, from the cache or made now.
    async fn make_base(&self) -> Result<Base, PrepareError> {
        let (engine, cache, [kind, key]) = (self.engine.clone(), self.cache.clone(), self.base_key());
        let cached = blocking(move || Ok(cache.get::<Module>(&engine, &[&kind, &key]))).await?;
        if let Some(Cached { code: module, metadata, .. }) = cached
            && let Ok(metadata) = postcard::from_bytes::<BaseMetadata>(&metadata)
        {
            let BaseMetadata { input, memory_bytes, filled_bytes, stack_top } = metadata;
            let facts = MemoryFacts { input, memory_bytes, filled_bytes };
            let snapshot = self.link(&module, facts).map_err(internal)?;
            return Ok(Base { snapshot, stack_top, images: self.images(stack_top) });
        }
        self.init_base().await.map_err(internal)
    }

    async fn init_base(&self) -> wasmtime::Result<Base> {
        let parts = engine_wasm::split(ENGINE_WASM)?;
        let memory = MemoryImage::new(parts.memory);
        let facts = MemoryFacts { input: 0, memory_bytes: memory.len(), filled_bytes: 0 };
        let wasm = memory.to_module(&self.passed_on(), &[], 0);
        let raw = self.link(&Module::new(&self.engine, &wasm)?, facts)?;
        let mut store = self.deploy_store(Arc::default());
        let cpu_time = CpuTime::new(Duration::MAX, Arc::default());
        deadline::arm(&mut store, Instant::now() + PREPARE_TIMEOUT, cpu_time);
        let (instance, _) = raw.start(&self.code, &mut store).await?;
        let version: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "abi_version")?;
        let version = version.call_async(&mut store, ()).await?;
        if version != abi::VERSION {
            wasmtime::bail!("engine.wasm is of version {version}, expected {}: rebuild it", abi::VERSION);
        }
        let init: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "engine_init")?;
        init.call_async(&mut store, ()).await?;
        let input: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "input")?;
        let input = input.call_async(&mut store, ()).await?;

        let stack_top = parts.stack_top;
        let image = image(&store, stack_top)?;
        let (memory_bytes, filled_bytes) = (image.len(), image.filled_bytes());
        let metadata = BaseMetadata { input, memory_bytes, filled_bytes, stack_top };
        let wasm = image.to_module(&self.passed_on(), &[], 0);
        let native = compile::compile(&self.engine, CodeKind::Module, &wasm)?;
        let [kind, key] = self.base_key();
        let metadata = postcard::to_allocvec(&metadata)?;
        let cached = self.cache.put::<Module>(&self.engine, &[&kind, &key], &native, metadata)?;
        let facts = MemoryFacts { input, memory_bytes, filled_bytes };
        Ok(Base { snapshot: self.link(&cached.code, facts)?, stack_top, images: self.images(stack_top) })
    }

    /// The compiler of memories that begin with an empty stack.
    fn images(&self, stack_top: usize) -> Arc<ImageModules> {
        Arc::new(ImageModules::new(self.engine.clone(), self.passed_on(), stack_top))
    }

    /// The memory of top-level code, in bytes.
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
            PrepareFault::engine(error).into()
        }
    }
}

/// The memory of a store, as other isolates may start from it. The stack, which lies below `stack_top`, is dead between
/// calls.
fn image(store: &Store<State>, stack_top: usize) -> wasmtime::Result<MemoryImage> {
    let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
    let mut image = memory.data(store).to_vec();
    image[..stack_top].fill(0);
    Ok(MemoryImage::new(image))
}

/// The files for stacks, and the code of each module. Parsed on a large stack while a blocking thread waits,
/// so that the runtime's threads are free.
async fn transpile_all(
    graph: ModuleGraph,
    thread: ParseThread,
) -> Result<(Files, Vec<String>), PrepareError> {
    let parse = move || {
        let mut files = Files::default();
        let mut codes = Vec::with_capacity(graph.modules.len());
        for module in &graph.modules {
            (thread.report)(&module.path);
            let transpiled = transpile(&module.path, &module.source)?;
            files.insert(module.path.clone(), transpiled.map, lines_before(module));
            codes.push(transpiled.code);
        }
        Ok((files, codes))
    };
    blocking(move || {
        let parsed = thread.run(parse);
        parsed.map_err(PrepareFault::from)?
    })
    .await
}

async fn evaluate(
    engine: &JsEngine,
    base: &Snapshot,
    store: &mut Store<State>,
    load: &[u8],
) -> wasmtime::Result<Loaded> {
    let (instance, memory) = base.start(&engine.code, store).await?;
    let alloc: TypedFunc<u32, u32> = instance.get_typed_func(&mut *store, "alloc")?;
    let at = alloc.call_async(&mut *store, load.len() as u32).await?;
    memory.write(&mut *store, at as usize, load)?;
    let run: TypedFunc<(u32, u32), u64> = instance.get_typed_func(&mut *store, "load")?;
    let packed = run.call_async(&mut *store, (at, load.len() as u32)).await?;
    let loaded = calls::message(memory.data(&store), (packed >> 32) as u32, packed as u32)?;
    Ok(abi::decode(loaded)?)
}

/// Checks the memory that a function starts with against its own limit.
pub(super) fn check_limit(
    entry: &str,
    needed_bytes: usize,
    allowed_bytes: usize,
) -> Result<(), PrepareError> {
    if needed_bytes <= allowed_bytes {
        return Ok(());
    }
    Err(PrepareError::OverMemoryLimit { entry: entry.to_owned(), needed_bytes, allowed_bytes })
}
