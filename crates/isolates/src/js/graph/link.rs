//! The modules that a function uses, and their texts.
//!
//! A module is included if another included module takes a name from it, or if it may have effects. `export … from` of names
//! that nobody takes is left out with its module, if the package's `sideEffects` allows it. Within a module nothing is left out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::Path;

use super::emit::{self, Interop, Required};
use super::files::{FileId, Files, OpenError};
use super::node_modules;
use super::resolve::{By, Found, NotFound, Resolvers};
use super::scan::{Form, Wants};
use super::{CollectError, MAX_MODULES, TEST_MODULE_PATH};
use crate::app_folder::{AppFileError, AppFolder};
use crate::js::transpile::SyntaxError;
use crate::{Module, ModuleGraph};

/// The maximum of importers that an error names.
const MAX_CHAIN: usize = 6;

/// The names that others take from a module.
#[derive(Debug, Clone, Default)]
struct Needed {
    /// True if the whole namespace is used.
    all: bool,
    names: BTreeSet<String>,
}

impl Needed {
    fn all() -> Self {
        Self { all: true, names: BTreeSet::new() }
    }

    fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        Self { all: false, names: names.into_iter().cloned().collect() }
    }

    /// Adds names; true if there are new ones.
    fn add(&mut self, other: Self) -> bool {
        let before = (self.all, self.names.len());
        self.all |= other.all;
        self.names.extend(other.names);
        before != (self.all, self.names.len())
    }

    fn takes(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }
}

/// Modules that other modules name.
type Targets = HashMap<(FileId, By, String), Option<FileId>>;

/// Builds a graph.
pub(super) struct Linker {
    files: Files,
    resolvers: Resolvers,
    targets: Targets,
    needed: HashMap<FileId, Needed>,
    /// Included files, in the order in which they were found.
    included: Vec<FileId>,
    queue: VecDeque<(FileId, Needed)>,
}

impl Linker {
    pub fn new(folder: AppFolder, report: fn(&str)) -> Self {
        let resolvers = Resolvers::new(folder.root());
        Self {
            files: Files::new(folder, report),
            resolvers,
            targets: HashMap::new(),
            needed: HashMap::new(),
            included: Vec::new(),
            queue: VecDeque::new(),
        }
    }

    /// The graph of the module at `entry`, which is inside of the app folder.
    pub fn link(mut self, entry: &Path) -> Result<ModuleGraph, CollectError> {
        let package = self.resolvers.package(entry)?;
        let entry = self.files.open(entry, package, None).map_err(|error| match error {
            OpenError::Outside(error) => error.into(),
            OpenError::Other(error) => error,
        })?;
        self.queue.push_back((entry, Needed::all()));
        while let Some((id, needed)) = self.queue.pop_front() {
            self.include(id, needed)?;
        }
        self.emit(entry)
    }

    fn include(&mut self, id: FileId, needed: Needed) -> Result<(), CollectError> {
        let first = !self.needed.contains_key(&id);
        let changed = self.needed.entry(id).or_default().add(needed);
        if first {
            self.included.push(id);
            if self.included.len() > MAX_MODULES {
                return Err(CollectError::TooMany { limit: MAX_MODULES });
            }
        } else if !changed {
            return Ok(());
        }
        let form = self.files.get(id).scanned.form;
        match form {
            Form::Json => return Ok(()),
            Form::CommonJs if first => self.include_requires(id)?,
            Form::CommonJs => {}
            Form::Module => {
                self.include_imports(id, first)?;
                self.include_demands(id, first)?;
            }
        }
        if first {
            self.include_dynamic(id)?;
        }
        Ok(())
    }

    fn include_requires(&mut self, id: FileId) -> Result<(), CollectError> {
        let scanned = &self.files.get(id).scanned;
        let globals = emit::GLOBALS.iter().filter(|(name, ..)| scanned.globals.contains(name));
        let mut requires: Vec<_> =
            globals.map(|(_, module, _)| (format!("node:{module}"), 0, false)).collect();
        let own = scanned.requires.iter();
        requires.extend(own.map(|one| (one.specifier.clone(), one.offset, one.guarded)));
        for (specifier, offset, guarded) in requires {
            match self.target(id, By::Require, &specifier, offset) {
                Ok(target) => {
                    let whole = self.files.get(target).scanned.form != Form::CommonJs;
                    self.queue.push_back((target, Needed { all: whole, ..Needed::default() }));
                }
                // It throws when it runs, which the module expects.
                Err(CollectError::Module(_)) if guarded => {
                    self.targets.insert((id, By::Require, specifier), None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn include_dynamic(&mut self, id: FileId) -> Result<(), CollectError> {
        for import in self.files.get(id).scanned.dynamic.clone() {
            let packaged = self.files.get(id).is_packaged();
            let found = match &import.specifier {
                Some(specifier) => self.target(id, By::Import, specifier, import.offset),
                None => {
                    let message = "import() of a computed name: all modules are deployed together, so the name must be \
                                   a string in the text";
                    Err(self.refuse(id, import.offset, message).into())
                }
            };
            match found {
                Ok(target) => self.queue.push_back((target, Needed::all())),
                // Packages look for other platforms' modules this way, and go on without them.
                Err(CollectError::Module(_)) if packaged => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn include_imports(&mut self, id: FileId, first: bool) -> Result<(), CollectError> {
        for index in 0..self.files.get(id).scanned.imports.len() {
            let import = &self.files.get(id).scanned.imports[index];
            let (specifier, offset, wants) =
                (import.specifier.clone(), import.offset, import.wants.clone());
            if !first && matches!(wants, Wants::Names(_) | Wants::All(_)) {
                continue;
            }
            let target = self.target(id, By::Import, &specifier, offset)?;
            let needed = match &wants {
                Wants::Names(names) => Some(Needed::names(names)),
                Wants::All(members) => Some(Needed { all: true, ..Needed::names(members) }),
                Wants::Reexported(names) => {
                    let keep = self.kept(id, target, names);
                    let kept = names.iter().zip(&keep).filter(|(_, keep)| **keep);
                    let used = keep.is_empty() || keep.contains(&true);
                    used.then(|| Needed::names(kept.map(|((local, _), _)| local)))
                }
                Wants::StarAs(name) => self.is_kept(id, target, name).then(Needed::all),
                Wants::Star => self.starred(id, target)?,
            };
            if let Some(needed) = needed {
                self.check_names(id, index, target)?;
                self.queue.push_back((target, needed));
            }
        }
        Ok(())
    }

    /// Refuses names that a bundled module of Node.js does not export. The engine checks those of ES modules.
    fn check_names(&self, id: FileId, index: usize, target: FileId) -> Result<(), SyntaxError> {
        let import = &self.files.get(id).scanned.imports[index];
        let Some(node) = node_modules::bundled_name(&self.files.get(target).name) else { return Ok(()) };
        let Some(name) = import.named.iter().find(|name| !node_modules::may_export(node, name)) else {
            return Ok(());
        };
        let message = format!(
            "{:?} exports no {name:?} here: the module of Node.js is available in part; use the Web APIs or a package, or \
             take it as a member of the default import, where it is undefined",
            import.specifier
        );
        Err(self.refuse(id, import.offset, &message))
    }

    fn include_demands(&mut self, id: FileId, first: bool) -> Result<(), CollectError> {
        let file = self.files.get(id);
        if !first || !file.is_packaged() {
            return Ok(());
        }
        for (_, specifier, member) in emit::demanded(&file.scanned).collect::<Vec<_>>() {
            let target = self.target(id, By::Import, &specifier, 0)?;
            self.queue.push_back((target, Needed::names([&member.to_owned()])));
        }
        Ok(())
    }

    /// True if `name`, which `id` passes on from `target`, is not left out.
    fn is_kept(&self, id: FileId, target: FileId, name: &str) -> bool {
        let file = self.files.get(id);
        // A text with types stays as it is.
        file.is_typescript()
            || !self.files.get(target).package.pure
            || self.needed.get(&id).is_some_and(|needed| needed.takes(name))
    }

    fn kept(&self, id: FileId, target: FileId, names: &[(String, String)]) -> Vec<bool> {
        names.iter().map(|(_, exported)| self.is_kept(id, target, exported)).collect()
    }

    /// The names that `export * from` of `id` takes from `target`; none if it is left out.
    fn starred(&mut self, id: FileId, target: FileId) -> Result<Option<Needed>, CollectError> {
        let needed = self.needed.get(&id).cloned().unwrap_or_default();
        if needed.all || self.files.get(id).is_typescript() {
            return Ok(Some(Needed::all()));
        }
        let mut taken = Needed::default();
        for name in needed.names {
            let own = self.files.get(id).scanned.exports.contains(&name);
            if !own && name != "default" && self.provides(target, &name, &mut HashSet::new())? {
                taken.names.insert(name);
            }
        }
        let left_out = taken.names.is_empty() && self.files.get(target).package.pure;
        Ok((!left_out).then_some(taken))
    }

    /// True if a module exports `name`, itself or by `export *`.
    fn provides(
        &mut self,
        id: FileId,
        name: &str,
        seen: &mut HashSet<FileId>,
    ) -> Result<bool, CollectError> {
        if !seen.insert(id) {
            return Ok(false);
        }
        let scanned = &self.files.get(id).scanned;
        if scanned.exports.contains(name) {
            return Ok(true);
        }
        match scanned.form {
            Form::Json => Ok(false),
            // Its syntax may not show all.
            Form::CommonJs => Ok(true),
            Form::Module => {
                let stars = scanned.imports.iter().filter(|import| import.wants == Wants::Star);
                let stars: Vec<_> = stars.map(|import| (import.specifier.clone(), import.offset)).collect();
                for (specifier, offset) in stars {
                    let target = self.target(id, By::Import, &specifier, offset)?;
                    if self.provides(target, name, seen)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// The module that `specifier` names in `id`.
    fn target(
        &mut self,
        id: FileId,
        by: By,
        specifier: &str,
        offset: usize,
    ) -> Result<FileId, CollectError> {
        let key = (id, by, specifier.to_owned());
        if let Some(Some(target)) = self.targets.get(&key) {
            return Ok(*target);
        }
        let target = match self.resolvers.resolve(&self.files.get(id).path, specifier, by) {
            Ok(Found::File { path, package, suffix }) => {
                let file = self.files.open(&path, package, Some(id)).map_err(|error| match error {
                    OpenError::Outside(error) => self.outside(id, offset, specifier, &error).into(),
                    OpenError::Other(error) => error,
                })?;
                self.files.instance(file, suffix)?
            }
            Ok(Found::Bundled(name)) => self.files.bundled(name, id)?,
            Ok(Found::Empty) => self.files.empty(id)?,
            Ok(Found::Test) => self.files.test_module(id)?,
            Err(NotFound::Unreadable(error)) => return Err(error.into()),
            Err(NotFound::Node(remedy)) => {
                let message = format!(
                    "{specifier:?} belongs to Node.js and is not available here: {remedy}{}",
                    self.advice(id)
                );
                return Err(self.refuse(id, offset, &message).into());
            }
            Err(NotFound::Other(remedy)) => {
                let message = format!("cannot find module {specifier:?}: {remedy}");
                return Err(self.refuse(id, offset, &message).into());
            }
        };
        self.targets.insert(key, Some(target));
        Ok(target)
    }

    /// What to take instead of a package that is known to need Node.js.
    fn advice(&self, id: FileId) -> &'static str {
        let mut file = Some(id);
        for _ in 0..MAX_ADVICE_CHAIN {
            let Some(id) = file else { break };
            let found = self.files.get(id);
            if found.name.starts_with("node_modules/express/") {
                return "; Express is made for Node's HTTP server: use Hono, whose handlers run here unmodified";
            }
            file = found.importer;
        }
        ""
    }

    fn refuse(&self, id: FileId, offset: usize, message: &str) -> SyntaxError {
        let file = self.files.get(id);
        let mut chain = String::new();
        let mut importer = file.importer;
        for _ in 0..MAX_CHAIN {
            let Some(id) = importer else { break };
            let file = self.files.get(id);
            chain.push_str(if chain.is_empty() { " (imported by " } else { ", by " });
            chain.push_str(&file.name);
            importer = file.importer;
        }
        if importer.is_some() {
            chain.push_str(", …");
        }
        if !chain.is_empty() {
            chain.push(')');
        }
        SyntaxError::at(&file.name, &file.source, offset, format!("{message}{chain}"))
    }

    /// An import of a file that is not in the app folder.
    fn outside(&self, id: FileId, offset: usize, specifier: &str, error: &AppFileError) -> SyntaxError {
        let message = match error {
            AppFileError::Outside { target, .. } if super::resolve::is_in_package(target) => format!(
                "cannot import {specifier:?}: the package is installed outside of the app folder ({}); install it in the app \
                 folder, or bundle the function first",
                target.display()
            ),
            error => format!("cannot import {specifier:?}: {error}"),
        };
        self.refuse(id, offset, &message)
    }

    /// All exports that the syntax of a CommonJS module shows.
    fn shown(&self, id: FileId, names: &mut BTreeSet<String>, seen: &mut HashSet<FileId>) {
        if !seen.insert(id) {
            return;
        }
        let scanned = &self.files.get(id).scanned;
        names.extend(scanned.exports.iter().cloned());
        for specifier in &scanned.passed_on {
            if let Some(Some(target)) = self.targets.get(&(id, By::Require, specifier.clone())) {
                self.shown(*target, names, seen);
            }
        }
    }

    fn emit(&mut self, entry: FileId) -> Result<ModuleGraph, CollectError> {
        let mut modules = Vec::with_capacity(self.included.len());
        let mut facades = BTreeSet::new();
        let mut entry_path = self.files.get(entry).name.clone();
        if self.files.get(entry).scanned.form == Form::CommonJs {
            entry_path = emit::facade_path(&entry_path, Interop::Node);
            facades.insert((entry, Interop::Node));
        }
        let mut common_js = false;
        for id in self.included.clone() {
            if self.files.get(id).name == TEST_MODULE_PATH {
                continue;
            }
            let form = self.files.get(id).scanned.form;
            common_js |= form == Form::CommonJs;
            modules.push(match form {
                Form::CommonJs => self.emit_common_js(id, &mut facades),
                Form::Module | Form::Json => self.emit_module(id, &mut facades)?,
            });
        }
        for (id, interop) in facades {
            let needed = self.needed.get(&id).cloned().unwrap_or_default();
            let mut names = needed.names;
            if needed.all {
                self.shown(id, &mut names, &mut HashSet::new());
            }
            let path = self.files.get(id).name.clone();
            modules.push(Module {
                path: emit::facade_path(&path, interop),
                source: emit::facade(&names, interop),
                imports: vec![
                    (emit::RUNTIME_PATH.to_owned(), emit::RUNTIME_PATH.to_owned()),
                    (emit::FACADE_TARGET.to_owned(), path),
                ],
            });
        }
        if common_js {
            modules.push(Module {
                path: emit::RUNTIME_PATH.to_owned(),
                source: emit::RUNTIME.to_owned(),
                imports: Vec::new(),
            });
        }
        if let Some(at) = modules.iter().position(|module| module.path == entry_path) {
            modules.swap(0, at);
        }
        Ok(ModuleGraph { entry: entry_path, modules })
    }

    /// The path by which an ES module or `import()` in `id` imports `target`.
    fn imported_path(
        &self,
        id: FileId,
        target: FileId,
        facades: &mut BTreeSet<(FileId, Interop)>,
    ) -> String {
        let (importer, imported) = (self.files.get(id), self.files.get(target));
        if imported.scanned.form != Form::CommonJs {
            return imported.name.clone();
        }
        let interop = if importer.is_module_by_name() { Interop::Node } else { Interop::Babel };
        facades.insert((target, interop));
        emit::facade_path(&imported.name, interop)
    }

    fn dynamic_imports(
        &self,
        id: FileId,
        facades: &mut BTreeSet<(FileId, Interop)>,
        imports: &mut BTreeMap<String, String>,
    ) {
        for import in &self.files.get(id).scanned.dynamic {
            let Some(specifier) = &import.specifier else { continue };
            let target = self.targets.get(&(id, By::Import, specifier.clone()));
            if let Some(Some(target)) = target {
                imports.insert(specifier.clone(), self.imported_path(id, *target, facades));
            }
        }
    }

    fn emit_common_js(&self, id: FileId, facades: &mut BTreeSet<(FileId, Interop)>) -> Module {
        let file = self.files.get(id);
        let mut imports = BTreeMap::from([(emit::RUNTIME_PATH.to_owned(), emit::RUNTIME_PATH.to_owned())]);
        let mut required: Vec<(String, Required)> = Vec::new();
        let mut known = HashSet::new();
        let globals = emit::GLOBALS.iter().filter(|(name, ..)| file.scanned.globals.contains(name));
        let globals = globals.map(|(_, module, _)| format!("node:{module}"));
        let own = file.scanned.requires.iter().map(|one| one.specifier.clone());
        for specifier in globals.chain(own) {
            let target = self.targets.get(&(id, By::Require, specifier.clone()));
            let Some(Some(target)) = target else { continue };
            if !known.insert(specifier.clone()) {
                continue;
            }
            let target = self.files.get(*target);
            imports.insert(emit::requirement(required.len()), target.name.clone());
            required.push((
                specifier,
                match target.scanned.form {
                    Form::CommonJs => Required::CommonJs,
                    Form::Module => Required::Module,
                    Form::Json => Required::Json,
                },
            ));
        }
        self.dynamic_imports(id, facades, &mut imports);
        Module {
            path: file.name.clone(),
            source: emit::common_js(&file.name, &file.source, &file.scanned, &required),
            imports: imports.into_iter().collect(),
        }
    }

    fn emit_module(
        &mut self,
        id: FileId,
        facades: &mut BTreeSet<(FileId, Interop)>,
    ) -> Result<Module, CollectError> {
        let mut edits = self.files.get(id).scanned.edits.clone();
        let mut imports = BTreeMap::new();
        for index in 0..self.files.get(id).scanned.imports.len() {
            let import = self.files.get(id).scanned.imports[index].clone();
            let target = self.target(id, By::Import, &import.specifier, import.offset)?;
            let keep = match &import.wants {
                Wants::Names(_) | Wants::All(_) => vec![true],
                Wants::Reexported(names) => self.kept(id, target, names),
                Wants::StarAs(name) => vec![self.is_kept(id, target, name)],
                Wants::Star => vec![self.starred(id, target)?.is_some()],
            };
            // `export {} from "x"` has no names and is kept for its effects.
            if keep.contains(&true) || keep.is_empty() {
                imports.insert(import.specifier.clone(), self.imported_path(id, target, facades));
            }
            if keep.contains(&false) {
                let source = &self.files.get(id).source;
                let text = emit::trimmed(source, import.span, &import.wants, &keep, &import.specifier);
                edits.push((import.span, text));
            }
        }
        self.dynamic_imports(id, facades, &mut imports);
        let file = self.files.get(id);
        let mut source = emit::edited(&file.source, &edits);
        if file.is_packaged() {
            for (_, specifier, _) in emit::demanded(&file.scanned) {
                let target = self.targets.get(&(id, By::Import, specifier.clone())).copied().flatten();
                if let Some(target) = target {
                    imports.insert(specifier, self.imported_path(id, target, facades));
                }
            }
            source.push_str(&emit::demands(&file.scanned));
        }
        Ok(Module { path: file.name.clone(), source, imports: imports.into_iter().collect() })
    }
}

/// The maximum of importers among which a known package is looked for.
const MAX_ADVICE_CHAIN: usize = 64;
