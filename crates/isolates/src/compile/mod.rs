//! Compiling WebAssembly to native code, and the child process that handles deployed code.
//!
//! Deployed code is not trusted, and no step of it (parsing, transpiling, evaluating the top level of JavaScript, compiling)
//! has a known bound on its stack, memory or time. A node therefore leaves all steps to a short-lived child process of the
//! same binary, with [limits](ProcessLimits) on all three. If the child dies, the deploy fails ([`child`]). The main
//! functions of the child are in [`child_process`](crate::child_process).

mod child;
mod component;
mod parse_thread;
mod process;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use crate::assets::{AssetError, PlainAsset};

pub(crate) use child::{Input, run};
pub(crate) use component::{CompiledComponent, ComponentTask};
pub(crate) use parse_thread::ParseThread;
pub use parse_thread::ParseThreadError;
pub use process::ProcessLimits;

/// Compiles deployed code in this process or in a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiler {
    /// Compiles in this process: for tests and benches, with trusted code.
    InProcess,
    /// Compiles in a child process.
    Child(ChildCompiler),
}

/// A program that calls [`compile_stdio`](crate::child_process::compile_stdio).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildCompiler {
    /// The program.
    pub program: PathBuf,
    /// Arguments of the program; the name of the [`Task`] is added.
    pub arguments: Vec<String>,
    /// The limit in bytes that it sets itself with [`ProcessLimits::apply`], for errors.
    pub memory_bytes: u64,
}

/// The time limit of a child process.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(120);

impl Compiler {
    /// Compiles a core module. Blocks.
    pub(crate) fn module(&self, engine: &Engine, wasm: Vec<u8>) -> Result<Vec<u8>, CompileError> {
        match self {
            Self::InProcess => compile(engine, CodeKind::Module, &wasm),
            Self::Child(child) => child.run(Task::Module, wasm.into(), TIME_LIMIT),
        }
    }

    /// Adds assets to a component and compiles it. Blocks.
    pub(crate) fn component(
        &self,
        engine: &Engine,
        task: ComponentTask,
    ) -> Result<CompiledComponent, CompileError> {
        match self {
            Self::InProcess => task.run(engine),
            Self::Child(child) => child.exchange(Task::Component, &task)?,
        }
    }
}

impl ChildCompiler {
    /// Runs a child, whose arguments are complete, on `content` and drops its result: see [`dry_run_stdio`](crate::child_process::dry_run_stdio). Blocks.
    ///
    /// # Errors
    /// The child died, or took too long.
    pub fn dry_run(&self, content: Vec<u8>, time_limit: Duration) -> Result<(), CompileError> {
        let (program, memory_bytes) = (&self.program, self.memory_bytes);
        let arguments = self.arguments.iter().map(Into::into).collect();
        run(Input {
            program,
            arguments,
            stdin: content.into(),
            time_limit,
            memory_bytes,
            max_output_bytes: 0,
        })
        .map(drop)
    }

    /// Sends a task to a child and returns its result. Blocks.
    pub(crate) fn exchange<T: DeserializeOwned>(
        &self,
        task: Task,
        content: &impl Serialize,
    ) -> Result<T, CompileError> {
        self.exchange_within(task, content, TIME_LIMIT)
    }

    /// Does the same within a time limit. Blocks.
    pub(crate) fn exchange_within<T: DeserializeOwned>(
        &self,
        task: Task,
        content: &impl Serialize,
        time_limit: Duration,
    ) -> Result<T, CompileError> {
        let not_understood = |error: postcard::Error| CompileError::Process {
            program: self.program.display().to_string(),
            reason: format!("its task or its result cannot be encoded or decoded: {error}"),
        };
        let content = postcard::to_allocvec(content).map_err(not_understood)?;
        postcard::from_bytes(&self.run(task, content.into(), time_limit)?).map_err(not_understood)
    }

    fn run(&self, task: Task, stdin: Bytes, time_limit: Duration) -> Result<Vec<u8>, CompileError> {
        run(Input {
            program: &self.program,
            arguments: self
                .arguments
                .iter()
                .map(String::as_str)
                .chain([task.as_str()])
                .map(Into::into)
                .collect(),
            stdin,
            time_limit,
            memory_bytes: self.memory_bytes,
            // The node holds the result once more while it keeps it.
            max_output_bytes: self.memory_bytes / 2,
        })
    }
}

/// The task of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Compiles a core module.
    Module,
    /// Compiles a component, with assets in its memory.
    Component,
    /// Evaluates JavaScript functions and makes snapshots of the memory.
    Script,
}

impl Task {
    /// Name of the task on the child's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Component => "component",
            Self::Script => "script",
        }
    }
}

/// The child process could not do its task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CompileError {
    /// The code is not valid WebAssembly, or the child process failed with an error message.
    #[error("{detail}")]
    Invalid {
        /// The message of the compiler or of the child process.
        detail: String,
    },
    /// The app's assets cannot be added to its memory.
    #[error(transparent)]
    Assets(#[from] AssetError),
    /// The child process could not be run.
    #[error("the compiler {program} could not be run: {reason}")]
    Process {
        /// The program.
        program: String,
        /// The error of the system.
        reason: String,
    },
    /// The child process took too long and was killed.
    #[error(
        "{}compiling it did not end within {limit:?}; try again when the machine has less to do, or make the code smaller",
        prefix(at.as_deref())
    )]
    TimedOut {
        /// The last file that it began.
        at: Option<String>,
        /// Time limit of the child process.
        limit: Duration,
    },
    /// The child process exceeded its memory limit.
    #[error(
        "{}compiling it takes more than {} MiB of memory; make the code smaller (for Rust: opt-level = \"s\" and \
         strip = true), or raise isolates.compile_memory",
        prefix(at.as_deref()), memory_bytes >> 20
    )]
    OutOfMemory {
        /// The last file that it began.
        at: Option<String>,
        /// The limit in bytes.
        memory_bytes: u64,
    },
    /// The child process was killed from outside.
    #[error(
        "{}the compiler was killed, as the system does when the machine's memory is used up: if it happens again, the code takes more to \
         compile, or its top level more to run, than this node has; make it smaller, or use a larger machine",
        prefix(at.as_deref())
    )]
    Killed {
        /// The last file that it began.
        at: Option<String>,
    },
    /// The child process overflowed its stack.
    #[error("{}the code is nested too deeply; split up what nests (brackets, operators, branches)", prefix(at.as_deref()))]
    TooDeep {
        /// The last file that it began.
        at: Option<String>,
    },
    /// The result does not fit.
    #[error(
        "what is compiled from it has more than {} MiB; make the code smaller, or raise isolates.compile_memory",
        limit_bytes >> 20
    )]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The child process crashed: a fault of the parser or compiler.
    #[error("{}the compiler crashed on this code ({reason}); please report it", prefix(at.as_deref()))]
    Crashed {
        /// The last file that it began.
        at: Option<String>,
        /// Exit status of the child process, and the end of its stderr.
        reason: String,
    },
}

/// The prefix of a message with the file.
fn prefix(at: Option<&str>) -> String {
    at.map(|file| format!("{file}: ")).unwrap_or_default()
}

/// The kinds of WebAssembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeKind {
    Module,
    Component,
}

/// Compiles for `engine` in this process.
pub(crate) fn compile(engine: &Engine, kind: CodeKind, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
    let native = match kind {
        CodeKind::Module => engine.precompile_module(wasm),
        CodeKind::Component => engine.precompile_component(wasm),
    };
    native.map_err(|error| CompileError::Invalid { detail: format!("{error:#}") })
}

/// Puts assets, names with contents, into a component that reads any, and compiles it in this process, for the fuzzer.
///
/// # Errors
/// It is not a component, or has no memory for assets.
pub fn compile_component(
    engine: &Engine,
    wasm: Bytes,
    assets: Vec<(String, Vec<u8>)>,
) -> Result<Vec<u8>, CompileError> {
    let assets = assets.into_iter().map(|(name, content)| PlainAsset { name, content: content.into() });
    Ok(ComponentTask { wasm, assets: assets.collect() }.run(engine)?.native.to_vec())
}
