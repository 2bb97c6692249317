//! A function's modules, gathered from disk.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Component, Path, PathBuf};

use oxc_resolver::{ResolveOptions, Resolver};

use super::nesting::on_large_stack;
use super::transpile::{ImportSite, MAX_SOURCE_BYTES, SyntaxError, too_large, transpile};
use crate::{Module, ModuleGraph};

/// The most modules a function may have; more is a package meant for a build step.
const MAX_MODULES: usize = 2000;

/// A function's modules cannot be gathered.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A file cannot be read.
    #[error("{file}: cannot be read: {source}")]
    Read {
        /// Its path.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A module does not parse, or imports what cannot be imported; the message says which.
    #[error(transparent)]
    Module(#[from] SyntaxError),
    /// There are too many modules.
    #[error("the function reaches more than {limit} modules; bundle it first")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The parser's thread did not start or ended early.
    #[error("the parser could not be run: {0}")]
    Parser(String),
}

/// Gathers the module at `entry` and all it imports. Paths in the result are relative to `root`.
///
/// Blocks while it reads and parses. A module may have 8 MiB, a function 2000 modules.
pub fn collect(entry: &Path, root: &Path) -> Result<ModuleGraph, CollectError> {
    on_large_stack(|| gather(entry, root)).map_err(CollectError::Parser)?
}

fn gather(entry: &Path, root: &Path) -> Result<ModuleGraph, CollectError> {
    let unreadable = |path: &Path| {
        let file = path.display().to_string();
        move |source| CollectError::Read { file, source }
    };
    let root = root.canonicalize().map_err(unreadable(root))?;
    let entry = entry.canonicalize().map_err(unreadable(entry))?;
    let resolver = Resolver::new(ResolveOptions {
        extensions: [".ts", ".mts", ".js", ".mjs", ".json"].map(str::to_owned).to_vec(),
        // What TypeScript lets one write: the name that the file would have once compiled.
        extension_alias: vec![
            (".js".to_owned(), [".ts", ".js"].map(str::to_owned).to_vec()),
            (".mjs".to_owned(), [".mts", ".mjs"].map(str::to_owned).to_vec()),
        ],
        condition_names: ["edgefaas", "worker", "import", "module", "default"].map(str::to_owned).to_vec(),
        main_fields: ["module", "main"].map(str::to_owned).to_vec(),
        builtin_modules: true,
        ..ResolveOptions::default()
    });

    let mut names = BTreeMap::from([(entry.clone(), relative(&entry, &root))]);
    let mut queue = VecDeque::from([entry.clone()]);
    let mut modules = Vec::new();
    while let Some(file) = queue.pop_front() {
        let path = names[&file].clone();
        let unreadable = |source| CollectError::Read { file: path.clone(), source };
        let bytes = std::fs::metadata(&file).map_err(unreadable)?.len();
        if bytes > MAX_SOURCE_BYTES as u64 {
            return Err(SyntaxError::at(&path, "", 0, too_large(bytes)).into());
        }
        let source = std::fs::read_to_string(&file).map_err(unreadable)?;
        let transpiled = transpile(&path, &source)?;
        if is_common_js(&file, &transpiled.code, &transpiled.imports) {
            let message = "a CommonJS module (it uses require or module.exports); only ES modules run here, \
                           look for an ES module version of the package or bundle it first";
            return Err(SyntaxError::at(&path, &source, 0, message).into());
        }
        let mut imports: Vec<(String, String)> = Vec::new();
        for site in &transpiled.imports {
            let (specifier, target) = match resolve(&resolver, &file, &path, &source, site) {
                Ok(found) => found,
                // Packages look for other platforms' modules this way, and go on without them.
                Err(_) if site.dynamic && is_in_package(&path) => continue,
                Err(error) => return Err(error.into()),
            };
            let name = names.entry(target.clone()).or_insert_with(|| {
                let name = relative(&target, &root);
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

/// Whether a module's path is that of a package's file.
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

/// `path` seen from `root`, with `/`.
fn relative(path: &Path, root: &Path) -> String {
    let common = path.components().zip(root.components()).take_while(|(a, b)| a == b).count();
    let up = root.components().skip(common).map(|_| "..".into());
    let down = path.components().skip(common).filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    up.chain(down).collect::<Vec<_>>().join("/")
}
