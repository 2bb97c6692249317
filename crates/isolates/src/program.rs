//! Functions that are prepared to run: their sources compiled, linked and, for JavaScript, evaluated.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::assets::{self, Asset, AssetError, AssetTable};
use crate::code_cache::CodeCache;
use crate::compile::{CompileError, CompiledComponent, ComponentTask};
use crate::component::{ComponentError, ComponentProgram};
use crate::cpu_time::CpuTime;
use crate::guest_memory::FunctionMemory;
use crate::host::LogLevel;
use crate::js::{self, JsEngine, JsEngineError, JsProgram};
use crate::outcome::Limits;
use crate::source::ModuleGraph;
use crate::start::{Start, StartWith, WarmInstance};
use crate::turns::Turns;
use crate::warm::{Isolation, Warm};

/// The source of a function.
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

    /// The size of the source in bytes.
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
    /// The function's name in errors.
    pub name: &'a str,
    /// The owner of the cached snapshot: a name that no other function and no other revision has.
    pub owner: &'a str,
    /// The source.
    pub source: &'a FunctionSource,
    /// Assets of the app.
    pub assets: &'a [Asset],
    /// The function's memory limit in bytes, assets not counted. A JavaScript snapshot above it is refused; the memory of a
    /// component is checked when it runs.
    pub memory_bytes: usize,
    /// Isolation of invocations: they share instances or not.
    pub isolation: Isolation,
    /// True if JavaScript is evaluated again though its snapshot is cached.
    pub anew: bool,
}

/// A function that is ready to run: compiled, linked and, for JavaScript, with its top level evaluated.
/// Cheap to clone.
#[derive(Clone)]
pub struct Program(pub(crate) Arc<Prepared>);

pub(crate) struct Prepared {
    pub(crate) kind: ProgramKind,
    /// Idle instances, if the function reuses them.
    pub(crate) warm: Option<Arc<Warm<WarmInstance>>>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) memory: Arc<FunctionMemory>,
    pub(crate) took: Duration,
}

pub(crate) enum ProgramKind {
    Component(ComponentProgram),
    JavaScript(Arc<JsEngine>, JsProgram),
}

impl Program {
    pub(crate) fn start(&self, with: StartWith, limits: Limits) -> Start {
        Start { with, cpu_time: CpuTime::new(limits.cpu, self.0.turns.clone()) }
    }

    /// The time that compiling or evaluating took, or loading the cached result.
    pub fn prepare_time(&self) -> Duration {
        self.0.took
    }

    /// Log lines of the top-level code.
    pub fn prepare_log(&self) -> &[(LogLevel, String)] {
        match &self.0.kind {
            ProgramKind::Component(_) => &[],
            ProgramKind::JavaScript(_, program) => program.deploy_log(),
        }
    }
}

/// A source cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The source is not a component, or is a component of another world.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// Compiling failed.
    #[error("{name} cannot be compiled: {reason}")]
    Compile {
        /// The function.
        name: String,
        /// Error of the compiler.
        reason: CompileError,
    },
    /// JavaScript that cannot be parsed, linked or evaluated.
    #[error(transparent)]
    JavaScript(#[from] js::PrepareError),
    /// The JavaScript engine cannot be loaded.
    #[error("the JavaScript engine cannot be started: {0}")]
    Engine(#[from] JsEngineError),
    /// A blocking task panicked or was cancelled.
    #[error("a task ended early: {0}")]
    Task(#[from] JoinError),
}

/// The version of [`AssetTable`] as it is kept with native code.
const TABLE_FORMAT: &[u8] = &[1];

/// Stored with the code of a component that reads no assets, so that it is not compiled again when assets change.
const READS_NONE: &[u8] = b"reads no assets";

/// The native code of a component, and the addresses of its assets. Blocks.
pub(crate) fn compiled(
    engine: &Engine,
    code: &CodeCache,
    name: &str,
    wasm: &Bytes,
    assets: &[Asset],
) -> Result<(Component, AssetTable), PrepareError> {
    let refused = |reason: CompileError| match reason {
        CompileError::Invalid { detail } => {
            ComponentError::Invalid { name: name.to_owned(), reason: detail }.into()
        }
        reason => PrepareError::Compile { name: name.to_owned(), reason },
    };
    let damaged = |error: postcard::Error| refused(AssetError::Table { detail: error.to_string() }.into());
    let identity = assets::identity(assets);
    let (plain, with_assets): (&[&[u8]], &[&[u8]]) = (&[wasm], &[wasm, &identity, TABLE_FORMAT]);
    if !assets.is_empty()
        && let Some(cached) = code.get(engine, with_assets)
    {
        return Ok((cached.code, postcard::from_bytes(&cached.metadata).map_err(damaged)?));
    }
    if let Some(cached) = code.get(engine, plain)
        && (assets.is_empty() || cached.metadata == READS_NONE)
    {
        return Ok((cached.code, AssetTable::default()));
    }
    let contents = assets::read_all(assets).map_err(|error| refused(error.into()))?;
    let task = ComponentTask { wasm: wasm.clone(), assets: contents };
    let CompiledComponent { native, assets: table } =
        code.compiler().component(engine, task).map_err(refused)?;
    let (key, metadata) = match &table {
        Some(table) => (with_assets, postcard::to_allocvec(table).map_err(damaged)?),
        None if assets.is_empty() => (plain, Vec::new()),
        None => (plain, READS_NONE.to_vec()),
    };
    let cached = code.put(engine, key, &native, metadata).map_err(refused)?;
    Ok((cached.code, table.unwrap_or_default()))
}
