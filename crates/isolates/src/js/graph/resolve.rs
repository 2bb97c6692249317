//! Files of import specifiers, by the rules of packages.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use oxc_resolver::{PackageJson, PackageType, ResolveError, ResolveOptions, ResolverGeneric, SideEffects};

use super::node_modules::{self, NodeName};
use super::package_files::{PackageFiles, Unreadable};
use super::url_specifier;
use super::{SourceFileError, TEST_MODULE};

/// The statement that names a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum By {
    /// `import`, `export … from` or `import()`.
    Import,
    /// `require`.
    Require,
}

/// A module that a specifier names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// A file, not yet checked to be in the app folder.
    File {
        /// Its path, without links.
        path: PathBuf,
        /// Facts of the `package.json` above it.
        package: PackageFacts,
        /// The query and the fragment of the specifier of an ES module.
        suffix: String,
    },
    /// A module of Node.js, by its name without `node:`.
    Bundled(&'static str),
    /// A module that the `browser` field leaves out.
    Empty,
    /// [`TEST_MODULE`], which the caller adds.
    Test,
}

/// Facts of the `package.json` above a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PackageFacts {
    /// True for `"type": "module"`.
    pub module: bool,
    /// True if `sideEffects` says that the file may be left out when none of its exports is used.
    pub pure: bool,
}

/// A specifier that names no module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotFound {
    /// A module of Node.js without a pure form, with its remedy.
    Node(&'static str),
    /// A `package.json` cannot be read.
    Unreadable(SourceFileError),
    /// Another specifier, with the error.
    Other(String),
}

impl From<SourceFileError> for NotFound {
    fn from(error: SourceFileError) -> Self {
        Self::Unreadable(error)
    }
}

/// The conditions of `exports` and `imports` beside `import` or `require`; `default` always holds. The first that a package lists wins.
///
/// `edgefaas` is for packages that know this platform. `worker` and `browser` are those of platforms with Web APIs only, which
/// bundlers for them set as well; `node` is not among them. `module` is a bundlers' name for ES modules.
const CONDITIONS: [&str; 5] = ["edgefaas", "worker", "browser", "module", "default"];

/// Resolvers for both statements, with one cache.
pub(super) struct Resolvers {
    /// For files of the app, where TypeScript goes before JavaScript.
    app: PackageResolver,
    import: PackageResolver,
    require: PackageResolver,
    unreadable: Unreadable,
}

type PackageResolver = ResolverGeneric<PackageFiles>;

impl Resolvers {
    /// Resolvers for the app folder at `root`, a path without links.
    pub fn new(root: &Path) -> Self {
        let (files, unreadable) = PackageFiles::new(root);
        let import = PackageResolver::new_with_file_system(files, options(By::Import));
        let require = import.clone_with_options(options(By::Require));
        let app = import.clone_with_options(ResolveOptions {
            extensions: names(&[".ts", ".mts", ".js", ".mjs", ".cjs", ".json"]),
            // TypeScript imports a file by the name that it has after compiling.
            extension_alias: vec![
                (".js".to_owned(), names(&[".ts", ".js"])),
                (".mjs".to_owned(), names(&[".mts", ".mjs"])),
            ],
            ..options(By::Import)
        });
        Self { app, import, require, unreadable }
    }

    /// Facts of the `package.json` above `file`, which exists.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn package(&self, file: &Path) -> Result<PackageFacts, SourceFileError> {
        let mut folders = file.ancestors().skip(1);
        let found = folders.find_map(|folder| {
            let found = self.import.resolve(folder, "./package.json").ok()?;
            Some(found.package_json().map(|json| facts(json, file)).unwrap_or_default())
        });
        self.unreadable()?;
        Ok(found.unwrap_or_default())
    }

    fn unreadable(&self) -> Result<(), SourceFileError> {
        self.unreadable.lock().clone().map_or(Ok(()), Err)
    }

    /// The module that `specifier` names in `file`.
    pub fn resolve(&self, file: &Path, specifier: &str, by: By) -> Result<Found, NotFound> {
        if specifier == TEST_MODULE && by == By::Import && !is_in_package(file) {
            return Ok(Found::Test);
        }
        let (specifier, suffix) = match by {
            By::Import => {
                let url = url_specifier::parse(specifier);
                let url = url.map_err(|malformed| NotFound::Other(malformed.to_string()))?;
                (Cow::Owned(url.path), url.suffix)
            }
            By::Require => (Cow::Borrowed(specifier), String::new()),
        };
        let found = self.resolve_path(file, &specifier, by);
        self.unreadable()?;
        match found {
            Ok(Found::File { path, package, suffix: target }) => {
                Ok(Found::File { path, package, suffix: target + &suffix })
            }
            found => found,
        }
    }

    fn resolve_path(&self, file: &Path, specifier: &str, by: By) -> Result<Found, NotFound> {
        let directory = file.parent().unwrap_or(file);
        let resolver = match by {
            By::Import if is_in_package(file) => &self.import,
            By::Import => &self.app,
            By::Require => &self.require,
        };
        if specifier.contains('?') {
            return self.resolve_literally(directory, specifier, resolver.options());
        }
        let node = node_modules::find(specifier);
        // Resolved also if it is Node's: the package's `browser` field may name another one.
        match (resolver.resolve(directory, specifier), node) {
            (Err(ResolveError::Ignored(_)), _) => Ok(Found::Empty),
            (Ok(resolution), Some(NodeName::Bundled(name))) if is_named(resolution.path(), specifier) => {
                Ok(Found::Bundled(name))
            }
            (Ok(resolution), _) => {
                let path = resolution.path();
                let package = resolution.package_json().map(|json| facts(json, path)).unwrap_or_default();
                // A target in `exports` may have one.
                let suffix = match by {
                    By::Import => {
                        [resolution.query(), resolution.fragment()].into_iter().flatten().collect()
                    }
                    By::Require => String::new(),
                };
                Ok(Found::File { path: path.to_owned(), package, suffix })
            }
            (Err(_), Some(NodeName::Bundled(name))) => Ok(Found::Bundled(name)),
            (Err(_), Some(NodeName::Refused(remedy))) => Err(NotFound::Node(remedy)),
            (Err(error), None) => self.not_found(specifier, error),
        }
    }

    /// A path with `?` in a name, which the resolver would take for the begin of a query.
    fn resolve_literally(
        &self,
        directory: &Path,
        specifier: &str,
        options: &ResolveOptions,
    ) -> Result<Found, NotFound> {
        let missing = || NotFound::Other("there is no such file".to_owned());
        if !specifier.starts_with(['.', '/']) {
            return Err(missing());
        }
        let endings = options.extensions.iter().map(String::as_str);
        let mut paths =
            std::iter::once("").chain(endings).map(|end| directory.join(format!("{specifier}{end}")));
        let path = paths.find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
        let path = path.ok_or_else(missing)?;
        let package = self.package(&path)?;
        Ok(Found::File { path, package, suffix: String::new() })
    }

    fn not_found(&self, specifier: &str, error: ResolveError) -> Result<Found, NotFound> {
        let remedy = match error {
            // A `browser` field may lead to a module of Node.
            ResolveError::NotFound(name) if name != specifier => match node_modules::find(&name) {
                Some(NodeName::Bundled(name)) => return Ok(Found::Bundled(name)),
                Some(NodeName::Refused(remedy)) => return Err(NotFound::Node(remedy)),
                None => format!("it leads to {name:?}, which is not installed"),
            },
            ResolveError::NotFound(_) if specifier.starts_with(['.', '/']) => {
                "there is no such file".to_owned()
            }
            ResolveError::NotFound(_) => "no such package in node_modules; npm install it first".to_owned(),
            ResolveError::Json(json) => {
                format!("{}:{}:{}: {}", json.path.display(), json.line, json.column, json.message)
            }
            other => other.to_string(),
        };
        Err(NotFound::Other(remedy))
    }
}

/// True if the file is that of the installed package `name`.
fn is_named(file: &Path, name: &str) -> bool {
    let parts: Vec<_> = file.iter().collect();
    // `readable-stream` requires `buffer/` where it means the package, and Node has no such name.
    let mut packages = parts.windows(2).filter(|pair| pair[0] == "node_modules");
    packages.next_back().is_some_and(|pair| pair[1] == name.split('/').next().unwrap_or(name))
}

fn options(by: By) -> ResolveOptions {
    let (condition, main_fields) = match by {
        By::Import => ("import", ["browser", "module", "main"]),
        // `main` is what `require` expects: an ES module would be another object.
        By::Require => ("require", ["browser", "main", "module"]),
    };
    ResolveOptions {
        extensions: names(&[".js", ".mjs", ".cjs", ".json", ".ts", ".mts"]),
        condition_names: [&CONDITIONS[..], &[condition]].concat().into_iter().map(str::to_owned).collect(),
        main_fields: names(&main_fields),
        alias_fields: vec![names(&["browser"])],
        ..ResolveOptions::default()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// True for a file of an installed package.
pub(super) fn is_in_package(path: &Path) -> bool {
    path.iter().any(|part| part == "node_modules")
}

fn facts(package: &PackageJson, file: &Path) -> PackageFacts {
    let pure = match package.side_effects() {
        None | Some(SideEffects::Bool(true)) => false,
        Some(SideEffects::Bool(false)) => true,
        Some(SideEffects::String(pattern)) => !matches(package, file, pattern),
        Some(SideEffects::Array(patterns)) => {
            !patterns.iter().any(|pattern| matches(package, file, pattern))
        }
    };
    PackageFacts { module: package.r#type() == Some(PackageType::Module), pure }
}

/// True if a pattern of `sideEffects` means `file`. An invalid pattern means all files.
fn matches(package: &PackageJson, file: &Path, pattern: &str) -> bool {
    let root = package.realpath().parent().unwrap_or(Path::new("/"));
    let file = file.strip_prefix(root).unwrap_or(file);
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    // Without a folder it means the name in any folder.
    let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    glob::Pattern::new(&pattern).map_or(true, |pattern| pattern.matches_path(file))
}
