//! A function's modules, gathered from the app folder on the user's machine.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use oxc_resolver::{ResolveOptions, Resolver};
use serde::{Deserialize, Serialize};

use super::transpile::{ImportSite, MAX_SOURCE_BYTES, SyntaxError, too_large, transpile};
use crate::app_folder::{AppFileError, AppFolder};
use crate::compile::{self, CompileError, ParseThread, ParseThreadError};
use crate::{Module, ModuleGraph};

/// The maximum of modules of a function. More modules are a package meant for a build step.
const MAX_MODULES: usize = 2000;

/// The import of test files, which is no file of the app: `edgefaas test` adds the module.
pub const TEST_MODULE: &str = "@edgefaas/sdk/test";

/// The path of that module in a graph.
pub const TEST_MODULE_PATH: &str = "@edgefaas/sdk/test.js";

/// The time limit of the child process.
const TIME_LIMIT: Duration = Duration::from_secs(120);

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
/// Blocks while it reads and parses. A module may have 8 MiB, a function 2000 modules. Text that nests too deeply for the parser
/// ends this process: see [`collect_in_child`].
pub fn collect(entry: &Path, root: &Path) -> Result<ModuleGraph, CollectError> {
    gather(entry, root, ParseThread::in_process())
}

/// Does the same in a child process: `program` with `arguments`, which calls
/// [`collect_stdio`](crate::child_process::collect_stdio) within `memory_bytes`. Blocks.
pub fn collect_in_child(
    program: &Path,
    arguments: Vec<OsString>,
    memory_bytes: u64,
) -> Result<ModuleGraph, CollectError> {
    let collected = compile::run(compile::Input {
        program,
        arguments,
        stdin: Bytes::new(),
        time_limit: TIME_LIMIT,
        memory_bytes,
        max_output_bytes: MAX_GRAPH_BYTES,
    })?;
    let collected: Result<ModuleGraph, CollectError> = postcard::from_bytes(&collected)
        .map_err(|error| CollectError::Result { detail: error.to_string() })?;
    collected
}

pub(crate) fn gather(entry: &Path, root: &Path, thread: ParseThread) -> Result<ModuleGraph, CollectError> {
    thread.run(|| gather_here(entry, root, thread.report))?
}

fn gather_here(entry: &Path, root: &Path, report: fn(&str)) -> Result<ModuleGraph, CollectError> {
    let folder = AppFolder::open(root)?;
    let entry = folder.locate(entry)?;
    let resolver = Resolver::new(ResolveOptions {
        extensions: [".ts", ".mts", ".js", ".mjs", ".json"].map(str::to_owned).to_vec(),
        // TypeScript imports a file by the name that it has after compiling.
        extension_alias: vec![
            (".js".to_owned(), [".ts", ".js"].map(str::to_owned).to_vec()),
            (".mjs".to_owned(), [".mts", ".mjs"].map(str::to_owned).to_vec()),
        ],
        condition_names: ["edgefaas", "worker", "import", "module", "default"].map(str::to_owned).to_vec(),
        main_fields: ["module", "main"].map(str::to_owned).to_vec(),
        builtin_modules: true,
        ..ResolveOptions::default()
    });

    let mut names = BTreeMap::from([(entry.clone(), relative(&entry, folder.root()))]);
    let mut queue = VecDeque::from([entry.clone()]);
    let mut modules = Vec::new();
    while let Some(file) = queue.pop_front() {
        let path = names[&file].clone();
        report(&path);
        let source = match folder.read(&file, MAX_SOURCE_BYTES as u64) {
            Ok(source) => source,
            Err(AppFileError::TooLarge { bytes, .. }) => {
                return Err(SyntaxError::at(&path, "", 0, too_large(bytes)).into());
            }
            Err(error) => return Err(error.into()),
        };
        let source =
            String::from_utf8(source).map_err(|_| SourceFileError::NotUtf8 { path: path.clone() })?;
        let transpiled = transpile(&path, &source)?;
        if is_common_js(&file, &transpiled.code, &transpiled.imports) {
            let message = "a CommonJS module (it uses require or module.exports); only ES modules run here, \
                           look for an ES module version of the package or bundle it first";
            return Err(SyntaxError::at(&path, &source, 0, message).into());
        }
        let mut imports: Vec<(String, String)> = Vec::new();
        for site in &transpiled.imports {
            if site.specifier.as_deref() == Some(TEST_MODULE) {
                imports.push((TEST_MODULE.to_owned(), TEST_MODULE_PATH.to_owned()));
                continue;
            }
            let found =
                resolve(&resolver, &file, &path, &source, site).and_then(
                    |(specifier, target)| match folder.locate(&target) {
                        Ok(target) => Ok((specifier, target)),
                        Err(error) => Err(outside(&path, &source, site, &specifier, &error)),
                    },
                );
            let (specifier, target) = match found {
                Ok(found) => found,
                // Packages look for other platforms' modules this way, and go on without them.
                Err(_) if site.dynamic && is_in_package(&path) => continue,
                Err(error) => return Err(error.into()),
            };
            let name = names.entry(target.clone()).or_insert_with(|| {
                let name = relative(&target, folder.root());
                queue.push_back(target);
                name
            });
            if imports.iter().all(|(known, _)| *known != specifier) {
                imports.push((specifier, name.clone()));
            }
        }
        modules.push(Module { path, source, imports });
        if names.len() > MAX_MODULES {
            return Err(CollectError::TooMany { limit: MAX_MODULES });
        }
    }
    Ok(ModuleGraph { entry: names[&entry].clone(), modules })
}

/// An import of a file that is not in the app folder.
fn outside(
    path: &str,
    source: &str,
    site: &ImportSite,
    specifier: &str,
    error: &AppFileError,
) -> SyntaxError {
    let message = match error {
        AppFileError::Outside { target, .. } if is_in_package(&target.to_string_lossy()) => format!(
            "cannot import {specifier:?}: the package is installed outside of the app folder ({}); install it in the app \
             folder, or bundle the function first",
            target.display()
        ),
        error => format!("cannot import {specifier:?}: {error}"),
    };
    SyntaxError::at(path, source, site.offset, message)
}

/// True if a module's path is that of a package's file.
fn is_in_package(path: &str) -> bool {
    path.split('/').any(|part| part == "node_modules")
}

fn resolve(
    resolver: &Resolver,
    file: &Path,
    path: &str,
    source: &str,
    site: &ImportSite,
) -> Result<(String, PathBuf), SyntaxError> {
    let refuse = |message: String| SyntaxError::at(path, source, site.offset, message);
    let Some(specifier) = &site.specifier else {
        let message = "import() of a computed name: all modules are deployed together, so the name must be \
                       a string in the text";
        return Err(refuse(message.to_owned()));
    };
    let directory = file.parent().unwrap_or(file);
    match resolver.resolve(directory, specifier) {
        Ok(resolution) => Ok((specifier.clone(), resolution.into_path_buf())),
        Err(oxc_resolver::ResolveError::Builtin { resolved, .. }) => Err(refuse(format!(
            "{resolved} belongs to Node.js and is not available here; use the Web APIs (fetch's types, URL, \
             TextEncoder, crypto.getRandomValues) or a package that needs no Node.js"
        ))),
        Err(oxc_resolver::ResolveError::NotFound(_)) => {
            let remedy = if specifier.starts_with('.') || specifier.starts_with('/') {
                "there is no such file"
            } else {
                "no such package in node_modules; npm install it first"
            };
            Err(refuse(format!("cannot find module {specifier:?}: {remedy}")))
        }
        Err(error) => Err(refuse(format!("cannot find module {specifier:?}: {error}"))),
    }
}

/// A `.js` file without ES module syntax that speaks CommonJS.
fn is_common_js(file: &Path, code: &str, imports: &[ImportSite]) -> bool {
    let packaged = file.components().any(|part| part.as_os_str() == "node_modules");
    let marks = ["module.exports", "exports.", "require("];
    packaged
        && imports.is_empty()
        && file.extension().is_some_and(|extension| extension == "js" || extension == "cjs")
        && !code.contains("export ")
        && !code.contains("export{")
        && marks.iter().any(|mark| code.contains(mark))
}

/// `path`, which is below `root`, seen from there, with `/`.
fn relative(path: &Path, root: &Path) -> String {
    let names = path.strip_prefix(root).unwrap_or(path).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    names.collect::<Vec<_>>().join("/")
}
