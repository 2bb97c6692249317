//! The child process: limits for itself, a task from stdin, its result to stdout.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use super::{CodeKind, CompileError, Task, compile};
use crate::assets::{self, AssetTable, PlainAsset};
use crate::engine::{EngineError, PoolConfig};
use crate::js::{self, JsEngineError};

/// The processor time of a child. Its parent ends it earlier; this is for a child whose parent has died.
pub(super) const CPU_LIMIT: Duration = Duration::from_secs(600);

/// A line of stderr that begins like this names the file that the child begins with.
pub(super) const PROGRESS_PREFIX: &str = "at: ";

/// The exit code of a Rust program that panics.
const PANIC_EXIT: i32 = 101;

/// The stack for parsers, which recurse once or more for each level of the text. Address space, of which only the touched
/// part becomes memory.
const MAX_STACK_BYTES: u64 = 128 << 20;
/// The least of it: as much as the main thread of a process has.
const MIN_STACK_BYTES: u64 = 8 << 20;

/// Limits of a child process, which it sets itself before it reads what others wrote.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLimits {
    /// Memory that it may allocate, in bytes. Address space that is only reserved does not count.
    pub memory_bytes: u64,
}

impl ProcessLimits {
    /// Limits this process. Where the machine's memory is used up the system ends this process before others; it leaves no
    /// core file, and ends with its parent.
    ///
    /// # Errors
    /// The system refuses.
    pub fn apply(self) -> std::io::Result<()> {
        limit(Resource::Data, self.memory_bytes)?;
        limit(Resource::Cpu, CPU_LIMIT.as_secs())?;
        limit(Resource::Core, 0)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Where /proc is read-only the system chooses by size, which is mostly this process as well.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        Ok(())
    }
}

fn limit(resource: Resource, most: u64) -> std::io::Result<()> {
    let limit = getrlimit(resource);
    let current = limit.maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(current), ..limit })?)
}

/// Why a parser's thread gave no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseThreadError {
    #[error("failed to spawn thread with a stack of {stack_bytes} bytes: {source}")]
    Start { stack_bytes: usize, source: std::io::Error },
    #[error("the parser panicked")]
    Panicked,
}

/// Why a child process has no result. Its parent reads this on stderr.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the task is not understood: {0}")]
    Task(#[source] postcard::Error),
    #[error("the result cannot be encoded: {0}")]
    Result(#[source] postcard::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    JsEngine(#[from] JsEngineError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Parser(#[from] ParseThreadError),
}

/// The thread that parsers run on.
#[derive(Clone, Copy)]
pub(crate) struct Parsing {
    stack_bytes: usize,
    /// Is told each file that is begun.
    pub report: fn(&str),
}

impl Parsing {
    /// In this process, for text that is known.
    pub fn in_process() -> Self {
        Self { stack_bytes: MAX_STACK_BYTES as usize, report: |_| {} }
    }

    /// In a child process that may have `memory_bytes`: all of the stack counts for that.
    pub fn in_child(memory_bytes: u64) -> Self {
        let stack_bytes = (memory_bytes / 4).clamp(MIN_STACK_BYTES, MAX_STACK_BYTES) as usize;
        Self { stack_bytes, report: report_progress }
    }

    /// Runs `work` on a thread with room for deep recursion, and waits for it.
    pub fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> Result<T, ParseThreadError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("parse".to_owned())
                .stack_size(self.stack_bytes)
                .spawn_scoped(scope, work)
                .map_err(|source| ParseThreadError::Start { stack_bytes: self.stack_bytes, source })?;
            thread.join().map_err(|_| ParseThreadError::Panicked)
        })
    }
}

/// Names the file that is begun, for the error if this process dies over it.
fn report_progress(file: &str) {
    // One write a line; without a reader it does not matter.
    let _ = std::io::stderr().write_all(format!("{PROGRESS_PREFIX}{}\n", file.escape_debug()).as_bytes());
}

/// A component and what is to lie in its memory.
#[derive(Serialize, Deserialize)]
pub(crate) struct ComponentTask {
    pub wasm: Bytes,
    pub assets: Vec<PlainAsset>,
}

/// A compiled component.
#[derive(Serialize, Deserialize)]
pub(crate) struct CompiledComponent {
    pub native: Bytes,
    /// Where its assets are; nothing if it does not read any.
    pub assets: Option<AssetTable>,
}

impl ComponentTask {
    /// Puts the assets in and compiles it, in this process.
    pub fn run(self, engine: &Engine) -> Result<CompiledComponent, CompileError> {
        let Self { wasm, assets } = self;
        if assets.is_empty() || !assets::reads_assets(&wasm) {
            let native = compile(engine, CodeKind::Component, &wasm)?.into();
            return Ok(CompiledComponent { native, assets: None });
        }
        let (wasm, table) = assets::add_to_component(&wasm, &assets)
            .map_err(|error| CompileError::Assets(error.to_string()))?;
        let native = compile(engine, CodeKind::Component, &wasm)?.into();
        Ok(CompiledComponent { native, assets: Some(table) })
    }
}

/// The compiling process: does `task` with what comes from stdin, and writes the result to stdout.
///
/// The exit code is 0 if there is a result, which may be that the code is refused, else 1 with the reason on stderr.
pub fn compile_stdio(pool: PoolConfig, memory_bytes: u64, task: Task) -> ExitCode {
    stdio(|input| {
        let engine = crate::engine::build(pool)?;
        match task {
            Task::Module => Ok(compile(&engine, CodeKind::Module, &input)?),
            Task::Component => {
                let task: ComponentTask = decode(input)?;
                encode(&task.run(&engine))
            }
            Task::Script => encode(&js::run_task(decode(input)?, &engine, pool, memory_bytes)?),
        }
    })
}

/// The process in which a function's modules are collected, for an app on the user's machine: the result of
/// [`js::collect`](crate::js::collect) goes to stdout.
pub fn collect_stdio(entry: &std::path::Path, root: &std::path::Path, memory_bytes: u64) -> ExitCode {
    stdio(|_| encode(&js::gather(entry, root, Parsing::in_child(memory_bytes))))
}

/// The process that looks at content from stdin, on a thread with a stack of `stack_bytes`, before its parent does the same with
/// more. `look` gets the content and what to tell the file that it begins with; what it finds wrong is for the parent to find again.
pub fn dry_run_stdio(stack_bytes: usize, look: impl FnOnce(&[u8], fn(&str)) + Send) -> ExitCode {
    stdio(|input| {
        let parsing = Parsing { stack_bytes, report: report_progress };
        parsing.run(|| look(&input, parsing.report))?;
        Ok(Vec::new())
    })
}

fn stdio(work: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, ChildError>) -> ExitCode {
    // A panic on any thread is the end, with the code by which the parent knows it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::exit(PANIC_EXIT);
    }));
    let mut input = Vec::new();
    let result = std::io::stdin()
        .lock()
        .read_to_end(&mut input)
        .map_err(ChildError::Io)
        .and_then(|_| work(input))
        .and_then(|output| Ok(std::io::stdout().lock().write_all(&output)?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn decode<T: for<'a> Deserialize<'a>>(input: Vec<u8>) -> Result<T, ChildError> {
    postcard::from_bytes(&input).map_err(ChildError::Task)
}

fn encode<T: Serialize>(result: &T) -> Result<Vec<u8>, ChildError> {
    postcard::to_allocvec(result).map_err(ChildError::Result)
}
