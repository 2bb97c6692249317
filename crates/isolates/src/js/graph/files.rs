//! Files of a graph: read, parsed and kept by their paths.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::node_modules::{self, PATH_PREFIX};
use super::resolve::{PackageFacts, is_in_package};
use super::scan::{Form, Language, Scanned, scan};
use super::url_specifier::escaped;
use super::{CollectError, MAX_PARSED, MAX_PARSED_BYTES, SourceFileError, TEST_MODULE_PATH};
use crate::app_folder::{AppFileError, AppFolder};
use crate::js::transpile::{MAX_SOURCE_BYTES, SyntaxError, too_large, transpile};

/// The index of a file.
pub(super) type FileId = usize;

/// A file that was parsed.
#[derive(Clone)]
pub(super) struct File {
    /// Its path without links, or the name of a module that is no file.
    pub path: PathBuf,
    /// Its path in the graph.
    pub name: String,
    pub source: String,
    pub scanned: Scanned,
    pub package: PackageFacts,
    /// The file that named it first.
    pub importer: Option<FileId>,
}

impl File {
    pub fn is_packaged(&self) -> bool {
        is_in_package(&self.path)
    }

    /// True if the engine gets the text without types.
    pub fn is_typescript(&self) -> bool {
        matches!(extension(&self.path), Some("ts" | "mts"))
    }

    /// True for an ES module by its extension or `package.json`.
    pub fn is_module_by_name(&self) -> bool {
        matches!(extension(&self.path), Some("mjs" | "mts")) || self.package.module
    }
}

/// The files of a function.
pub(super) struct Files {
    folder: AppFolder,
    report: fn(&str),
    files: Vec<File>,
    /// The texts of all files together.
    bytes: usize,
    known: HashMap<PathBuf, FileId>,
    /// Further instances of ES modules and JSON, by the suffixes of their URLs.
    instances: HashMap<(FileId, String), FileId>,
}

/// A file cannot be had: outside of the app folder, or another error.
pub(super) enum OpenError {
    Outside(AppFileError),
    Other(CollectError),
}

impl<E: Into<CollectError>> From<E> for OpenError {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl Files {
    pub fn new(folder: AppFolder, report: fn(&str)) -> Self {
        Self {
            folder,
            report,
            files: Vec::new(),
            bytes: 0,
            known: HashMap::new(),
            instances: HashMap::new(),
        }
    }

    pub fn get(&self, id: FileId) -> &File {
        &self.files[id]
    }

    /// The file at `path`, parsed if it is new.
    pub fn open(
        &mut self,
        path: &Path,
        package: PackageFacts,
        importer: Option<FileId>,
    ) -> Result<FileId, OpenError> {
        if let Some(&id) = self.known.get(path) {
            return Ok(id);
        }
        let located = self.folder.locate(path).map_err(OpenError::Outside)?;
        if let Some(&id) = self.known.get(&located) {
            return Ok(id);
        }
        let name = relative(&located, self.folder.root());
        (self.report)(&name);
        let source = match self.folder.read(&located, MAX_SOURCE_BYTES as u64) {
            Ok(source) => source,
            Err(AppFileError::TooLarge { bytes, .. }) => {
                return Err(SyntaxError::at(&name, "", 0, too_large(bytes)).into());
            }
            Err(error) => return Err(error.into()),
        };
        let mut source =
            String::from_utf8(source).map_err(|_| SourceFileError::NotUtf8 { path: name.clone() })?;
        // Node.js takes a byte order mark, JSON has none.
        if extension(&located) == Some("json") && source.starts_with('\u{feff}') {
            source.remove(0);
        }
        let scanned = parse(&located, &name, &source, package)?;
        Ok(self.add(File { path: located, name, source, scanned, package, importer })?)
    }

    /// The instance of a file for the URL with this suffix. A CommonJS module has one for all URLs, as in Node.js.
    pub fn instance(&mut self, id: FileId, suffix: String) -> Result<FileId, CollectError> {
        let file = &self.files[id];
        if suffix.is_empty() || file.scanned.form == Form::CommonJs {
            return Ok(id);
        }
        let key = (id, suffix);
        if let Some(&instance) = self.instances.get(&key) {
            return Ok(instance);
        }
        let name = format!("{}{}", file.name, key.1);
        let instance = self.push(File { name, ..file.clone() })?;
        self.instances.insert(key, instance);
        Ok(instance)
    }

    /// The bundled module of Node.js with this name.
    pub fn bundled(&mut self, node: &'static str, importer: FileId) -> Result<FileId, CollectError> {
        let name = format!("{PATH_PREFIX}{node}.js");
        let path = PathBuf::from(&name);
        if let Some(&id) = self.known.get(&path) {
            return Ok(id);
        }
        let unreadable = |error: std::io::Error| CollectError::Bundled {
            name: node.to_owned(),
            detail: error.to_string(),
        };
        let source = node_modules::text(node).map_err(unreadable)?;
        let scanned = scan(&name, &source, Language::CommonJs)?;
        self.add(File {
            path,
            name,
            source,
            scanned,
            package: PackageFacts::default(),
            importer: Some(importer),
        })
    }

    /// The module that stands for all that a `browser` field leaves out.
    pub fn empty(&mut self, importer: FileId) -> Result<FileId, CollectError> {
        let path = PathBuf::from("edgefaas:empty.js");
        if let Some(&id) = self.known.get(&path) {
            return Ok(id);
        }
        let scanned = Scanned { form: Form::CommonJs, ..Scanned::json() };
        let (name, source) = (path.to_string_lossy().into_owned(), String::new());
        let package = PackageFacts::default();
        self.add(File { path, name, source, scanned, package, importer: Some(importer) })
    }

    /// [`TEST_MODULE`](super::TEST_MODULE): its text is not known here.
    pub fn test_module(&mut self, importer: FileId) -> Result<FileId, CollectError> {
        let path = PathBuf::from(TEST_MODULE_PATH);
        if let Some(&id) = self.known.get(&path) {
            return Ok(id);
        }
        let scanned = Scanned { form: Form::Module, ..Scanned::json() };
        let (name, source) = (TEST_MODULE_PATH.to_owned(), String::new());
        let package = PackageFacts::default();
        self.add(File { path, name, source, scanned, package, importer: Some(importer) })
    }

    fn add(&mut self, file: File) -> Result<FileId, CollectError> {
        let path = file.path.clone();
        let id = self.push(file)?;
        self.known.insert(path, id);
        Ok(id)
    }

    fn push(&mut self, file: File) -> Result<FileId, CollectError> {
        if self.files.len() >= MAX_PARSED {
            return Err(CollectError::TooManyParsed { limit: MAX_PARSED });
        }
        self.bytes += file.source.len();
        if self.bytes > MAX_PARSED_BYTES {
            return Err(CollectError::TooLarge { path: file.name, limit_bytes: MAX_PARSED_BYTES });
        }
        let id = self.files.len();
        self.files.push(file);
        Ok(id)
    }
}

fn extension(path: &Path) -> Option<&str> {
    path.extension().and_then(|extension| extension.to_str())
}

fn parse(path: &Path, name: &str, source: &str, package: PackageFacts) -> Result<Scanned, SyntaxError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(SyntaxError::at(name, "", 0, too_large(source.len() as u64)));
    }
    let language = match extension(path) {
        Some("json") => return transpile(name, source).map(|_| Scanned::json()),
        Some("ts" | "mts") => Language::TypeScript,
        Some("mjs") => Language::Module,
        Some("cjs") => Language::CommonJs,
        Some("js") if is_in_package(path) && !package.module => Language::Either { plain: Form::CommonJs },
        Some("js") => Language::Either { plain: Form::Module },
        _ => {
            let message = "not a module: the file must end in .js, .mjs, .cjs, .ts, .mts or .json";
            return Err(SyntaxError::at(name, source, 0, message));
        }
    };
    scan(name, source, language)
}

/// `path`, which is below `root`, seen from there, with `/`.
fn relative(path: &Path, root: &Path) -> String {
    let names = path.strip_prefix(root).unwrap_or(path).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    escaped(&names.collect::<Vec<_>>().join("/"))
}
