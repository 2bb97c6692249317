//! Errors of preparing a function's modules.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::transpile::SyntaxError;
use crate::assets::AssetError;
use crate::compile::{CompileError, ParseThreadError};

/// A function cannot be deployed.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub enum PrepareError {
    /// A module does not parse.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The entry module is not among the modules.
    #[error("{entry}: there is no such module among those deployed")]
    NoEntry {
        /// Path of the entry module.
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
    /// The entry module exports no handler.
    #[error("{entry}: {}", describe_missing_handler(exports, default.as_deref()))]
    NoHandler {
        /// The entry module.
        entry: String,
        /// Exports of the entry module.
        exports: Vec<String>,
        /// The type of its default export.
        default: Option<String>,
    },
    /// A top-level `await` cannot settle at deploy.
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
        /// Origin of the limit.
        limit: DeployMemory,
    },
    /// The memory that the function starts with exceeds its own limit.
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
        /// The memory of the engine itself, in bytes.
        least_bytes: usize,
        /// `limits.memory` in bytes.
        allowed_bytes: usize,
    },
    /// The app's assets cannot be added to its memory.
    #[error(transparent)]
    Assets(#[from] AssetError),
    /// Top-level code overflowed its stack.
    #[error("{entry}: top-level code overflowed its stack")]
    StackOverflow {
        /// The entry module.
        entry: String,
    },
    /// The process that parses and evaluates it failed.
    #[error("{entry}: {reason}")]
    Process {
        /// The entry module.
        entry: String,
        /// Error of the process.
        reason: CompileError,
    },
    /// The node is at fault.
    #[error("internal error: {0}")]
    Internal(#[from] PrepareFault),
}

/// A fault of the node while a function is prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PrepareFault {
    /// The WebAssembly engine failed.
    #[error("{detail}")]
    Engine {
        /// The engine's message, with its causes.
        detail: String,
    },
    /// A message to the JavaScript engine, a cache key or metadata cannot be encoded or decoded.
    #[error("{detail}")]
    Codec {
        /// The codec's message.
        detail: String,
    },
    /// The native code cannot be compiled or loaded.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A blocking task panicked or was cancelled.
    #[error("a task ended early: {detail}")]
    Task {
        /// The message of the async runtime.
        detail: String,
    },
    /// The parser's thread gave no result.
    #[error("the parser could not be run: {0}")]
    Parser(#[from] ParseThreadError),
    /// The child process has evaluated nothing.
    #[error("the child process has no result")]
    NoResult,
    /// The isolate is no longer in the stage of a deploy.
    #[error("the stage changed")]
    Stage,
}

impl PrepareFault {
    /// A fault of the WebAssembly engine.
    pub(super) fn engine(error: &wasmtime::Error) -> Self {
        Self::Engine { detail: format!("{error:#}") }
    }

    /// A value cannot be encoded or decoded.
    pub(super) fn codec(error: impl fmt::Display) -> Self {
        Self::Codec { detail: error.to_string() }
    }
}

/// The limits of memory for top-level code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeployMemory {
    /// `isolates.max_memory` of the node.
    Node,
    /// The memory limit of all deploys.
    Deploy,
}

impl fmt::Display for DeployMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "the node's isolates.max_memory",
            Self::Deploy => "the limit while a function is deployed",
        })
    }
}

fn describe_missing_handler(exports: &[String], default: Option<&str>) -> String {
    let remedy = "write `export default async function handler(event, context) { … }` or \
                  `export default { fetch(request, env, ctx) { … } }`";
    match default {
        Some(kind) => format!(
            "the default export is not a handler (it is of type {kind}, without fetch, message or scheduled); {remedy}"
        ),
        None if exports.is_empty() => format!("it exports nothing; {remedy}"),
        None => format!("it has no default export, only {}; {remedy}", exports.join(", ")),
    }
}
