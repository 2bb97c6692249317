//! A function's modules, gathered from the app folder on the user's machine.
//!
//! Packages are gathered as bundlers do it: ES modules and CommonJS, with `package.json`'s conditions for platforms with Web
//! APIs. CommonJS is rewritten ([`emit`]); modules that nothing uses are left out ([`link`]).

mod constants;
mod emit;
mod files;
mod link;
mod node_modules;
mod package_files;
mod resolve;
mod scan;
mod url_specifier;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(super) use emit::lines_before;
pub(super) use url_specifier::without_suffix;

use super::transpile::SyntaxError;
use crate::ModuleGraph;
use crate::app_folder::{AppFileError, AppFolder};
use crate::compile::{self, CompileError, ParseThread, ParseThreadError};

/// The maximum of modules of a function. More modules are a package meant for a build step.
const MAX_MODULES: usize = 4000;

/// The import of test files, which is no file of the app: `edgefaas test` adds the module.
pub const TEST_MODULE: &str = "@edgefaas/sdk/test";

/// The path of that module in a graph.
pub const TEST_MODULE_PATH: &str = "@edgefaas/sdk/test.js";

/// The maximum of files that are parsed for a function, with those that are left out.
const MAX_PARSED: usize = 3 * MAX_MODULES;

/// The maximum of all files that are parsed for a function, in bytes: twice what a deploy can send.
const MAX_PARSED_BYTES: usize = 128 << 20;

/// The time limit of the child process.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The maximum of functions for one child process.
const MAX_BATCH: usize = 256;

/// A child process begins with no further function after this time, or with modules of this size together.
const BATCH_TIME: Duration = Duration::from_secs(10);
const BATCH_BYTES: usize = 16 << 20;

/// The maximum of all modules of a function, with their paths and imports, in bytes.
const MAX_GRAPH_BYTES: u64 = 256 << 20;

/// A function's modules cannot be gathered.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub enum CollectError {
    /// A file is outside of the app folder, or cannot be read.
    #[error(transparent)]
    File(#[from] SourceFileError),
    /// A module cannot be parsed, or has an import that cannot be resolved.
    #[error(transparent)]
    Module(#[from] SyntaxError),
    /// The function reaches too many modules.
    #[error("the function reaches more than {limit} modules; bundle it first")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The packages of the function have too many files.
    #[error(
        "more than {limit} files would be parsed to find the function's modules; import from a smaller part of the \
         package, or bundle it first"
    )]
    TooManyParsed {
        /// The limit.
        limit: usize,
    },
    /// The files that are parsed for the function are too large together.
    #[error(
        "{path}: with it, more than {} MiB would be parsed to find the function's modules; import from a smaller part of \
         the package, or bundle it first",
        limit_bytes >> 20
    )]
    TooLarge {
        /// The file with which the limit is exceeded.
        path: String,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// A module of Node.js that is part of this program cannot be decompressed.
    #[error("the bundled module {name} cannot be read: {detail}")]
    Bundled {
        /// Its name.
        name: String,
        /// The decompressor's message.
        detail: String,
    },
    /// The process that parses did not end well.
    #[error(transparent)]
    Process(#[from] CompileError),
    /// The parser's thread gave no result.
    #[error("the parser could not be run: {0}")]
    Parser(#[from] ParseThreadError),
    /// The result of the process that parses cannot be decoded.
    #[error("the result of the parser cannot be decoded: {detail}")]
    Result {
        /// The codec's message.
        detail: String,
    },
}

/// A source file cannot be read. A child process sends this error to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SourceFileError {
    /// The app folder does not give the file.
    #[error("{detail}")]
    AppFile {
        /// The text of the [`AppFileError`], which names the file.
        detail: String,
    },
    /// The file is not text.
    #[error("{path}: cannot be read: it is not valid UTF-8")]
    NotUtf8 {
        /// Path of the file.
        path: String,
    },
}

impl From<AppFileError> for CollectError {
    fn from(error: AppFileError) -> Self {
        SourceFileError::AppFile { detail: error.to_string() }.into()
    }
}

/// Gathers the module at `entry` and all it imports. Paths in the result are relative to `root`, and no file outside of `root`
/// is read.
///
/// Blocks while it reads and parses. A module may have 8 MiB, a function 4000 modules. Text that nests too deeply for the parser
/// ends this process: see [`collect_all_in_child`].
pub fn collect(entry: &Path, root: &Path) -> Result<ModuleGraph, CollectError> {
    gather(entry, root, ParseThread::in_process())
}

/// Does the same for many entries in child processes, as many in one as it takes: `program` with `arguments`, which calls
/// [`collect_stdio`](crate::child_process::collect_stdio) within `memory_bytes`. Results are those of the first entries: up to one
/// that fails. Blocks.
pub fn collect_all_in_child(
    program: &Path,
    arguments: &[OsString],
    entries: &[PathBuf],
    memory_bytes: u64,
) -> Vec<Result<ModuleGraph, CollectError>> {
    let mut results = Vec::with_capacity(entries.len());
    // After the death of a child each entry has one of its own, so that the error is that of the right entry.
    let mut max = MAX_BATCH;
    while results.len() < entries.len() && results.last().is_none_or(Result::is_ok) {
        let rest = &entries[results.len()..];
        let batch = &rest[..rest.len().min(max)];
        match collect_batch(program, arguments, batch, memory_bytes) {
            Ok(collected) => results.extend(collected),
            Err(_) if batch.len() > 1 => max = 1,
            Err(error) => results.push(Err(error)),
        }
    }
    results
}

fn collect_batch(
    program: &Path,
    arguments: &[OsString],
    entries: &[PathBuf],
    memory_bytes: u64,
) -> Result<Vec<Result<ModuleGraph, CollectError>>, CollectError> {
    let undecodable = |detail: String| CollectError::Result { detail };
    let stdin = postcard::to_allocvec(entries).map_err(|error| undecodable(error.to_string()))?;
    let collected = compile::run(compile::Input {
        program,
        arguments: arguments.to_vec(),
        stdin: stdin.into(),
        time_limit: TIME_LIMIT,
        memory_bytes,
        max_output_bytes: MAX_GRAPH_BYTES,
    })?;
    let collected: Vec<_> =
        postcard::from_bytes(&collected).map_err(|error| undecodable(error.to_string()))?;
    if collected.is_empty() || collected.len() > entries.len() {
        return Err(undecodable(format!(
            "it has {} results for {} entries",
            collected.len(),
            entries.len()
        )));
    }
    Ok(collected)
}

/// The modules of the first entries: up to one that fails, or that takes the time or memory of others.
pub(crate) fn gather_all(
    entries: &[PathBuf],
    root: &Path,
    thread: ParseThread,
) -> Vec<Result<ModuleGraph, CollectError>> {
    let began = Instant::now();
    let (mut gathered, mut bytes) = (Vec::new(), 0);
    for entry in entries {
        if !gathered.is_empty() && (began.elapsed() > BATCH_TIME || bytes > BATCH_BYTES) {
            break;
        }
        let graph = gather(entry, root, thread);
        bytes += graph
            .as_ref()
            .map_or(0, |graph| graph.modules.iter().map(|module| module.source.len()).sum::<usize>());
        let is_failed = graph.is_err();
        gathered.push(graph);
        if is_failed {
            break;
        }
    }
    gathered
}

fn gather(entry: &Path, root: &Path, thread: ParseThread) -> Result<ModuleGraph, CollectError> {
    thread.run(|| {
        let folder = AppFolder::open(root)?;
        let entry = folder.locate(entry)?;
        link::Linker::new(folder, thread.report).link(&entry)
    })?
}
