//! An app on disk: its manifest, and its sources in the form for a deploy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytesize::ByteSize;
use edgefaas_api::control as proto;
use edgefaas_isolates::{AppFileError, AppFolder, Machine, js};
use edgefaas_manifest::{Function, MAX_ASSETS, Manifest, Permission, SourceKind};
use edgefaas_platform::{regular_file, this_program};
use edgefaas_workflow::api_document::ApiDocument;
use prost::Message;

use crate::args;
use crate::cargo;
use crate::connection::MESSAGE_BYTES;
use crate::exit::{Exit, Failure};
use crate::progress::Step;
use crate::sdk_sources::{self, Part};

/// Name of the command that parses the modules of a JavaScript function in a child process.
pub const COLLECT: &str = "collect-stdio";

/// The first 8 bytes of a WebAssembly component, and of a core module.
const COMPONENT_MAGIC: &[u8] = b"\0asm\x0d\0\x01\0";
const MODULE_MAGIC: &[u8] = b"\0asm\x01\0\0\0";

/// An app whose manifest is valid.
#[derive(Debug)]
pub struct App {
    /// The folder that paths in the manifest are relative to.
    pub root: PathBuf,
    /// The manifest's text, from a file or made for a single file.
    pub text: String,
    /// The parsed manifest.
    pub manifest: Manifest,
    /// The app is a single file, whose folder has other files too.
    pub is_file: bool,
}

impl App {
    /// Reads the manifest of a folder, or makes that of a single file.
    pub fn load(app: &args::App) -> anyhow::Result<Self> {
        let path = &app.path;
        let metadata = std::fs::metadata(path).map_err(|error| {
            let message =
                format!("{}: {error}; name an app folder or a single source file", path.display());
            Failure::new(Exit::Usage, message)
        })?;
        if metadata.is_dir() {
            Self::folder(path, &app.allow)
        } else if path.file_name().is_some_and(|name| name == edgefaas_manifest::FILE_NAME) {
            Self::folder(&parent(path), &app.allow)
        } else {
            Self::single_file(path, &app.allow)
        }
    }

    fn folder(root: &Path, allow: &[Permission]) -> anyhow::Result<Self> {
        let file = root.join(edgefaas_manifest::FILE_NAME);
        if !allow.is_empty() {
            let message = format!(
                "--allow is for single files; write the permissions into {} under [functions.NAME]",
                file.display()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        let text = read_manifest(&file).map_err(|error| {
            let message = match error.kind() {
                ErrorKind::NotFound => format!(
                    "{} is not an app: it has no {}; write one, start with `edgefaas new NAME --lang js`, or \
                     name a single .js, .ts or .wasm file",
                    root.display(),
                    edgefaas_manifest::FILE_NAME
                ),
                _ => format!("{} cannot be read: {error}", file.display()),
            };
            Failure::new(Exit::Invalid, message)
        })?;
        let manifest = Manifest::parse(&text, &file.display().to_string())?;
        Ok(Self { root: root.to_owned(), text, manifest, is_file: false })
    }

    fn single_file(path: &Path, allow: &[Permission]) -> anyhow::Result<Self> {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        match &*extension {
            "js" | "mjs" | "ts" | "wasm" => {}
            "yaml" | "yml" | "json" => return Self::single_workflow(path, allow),
            _ => {
                let message = format!(
                    "{} cannot be deployed: name a .js, .mjs, .ts or .wasm file, a workflow's .yaml, or a folder \
                     with {}",
                    path.display(),
                    edgefaas_manifest::FILE_NAME
                );
                return Err(Failure::new(Exit::Usage, message));
            }
        }
        let name = edgefaas_manifest::single_file_name(path)?;
        let main = path.file_name().unwrap_or_default().to_string_lossy();
        let text = edgefaas_manifest::single_file(&name, &main, allow);
        let manifest = Manifest::parse(&text, &format!("the manifest made for {}", path.display()))?;
        Ok(Self { root: parent(path), text, manifest, is_file: true })
    }

    fn single_workflow(path: &Path, allow: &[Permission]) -> anyhow::Result<Self> {
        let app = edgefaas_manifest::single_file_name(path)?;
        let text = read_workflow(path, &AppFolder::open(&parent(path)).map_err(refused)?)?;
        let compiled = edgefaas_workflow::compile_for_deploy(&text, &path.display().to_string())?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let text = edgefaas_manifest::single_workflow(&app, &compiled.program.name, &file, allow);
        let manifest = Manifest::parse(&text, &format!("the manifest made for {}", path.display()))?;
        Ok(Self { root: parent(path), text, manifest, is_file: true })
    }

    /// Reads and checks the workflows that the manifest names, in the order of their files.
    pub fn workflows(&self) -> anyhow::Result<Vec<proto::WorkflowFile>> {
        let (folder, mut workflows) = (self.files()?, Vec::new());
        for (file, path) in self.named_files("workflows", &self.manifest.workflows.files)? {
            let text = read_workflow(&path, &folder)?;
            let shown = path.display().to_string();
            match ApiDocument::is_one(&text) {
                true => drop(ApiDocument::read(&text).with_context(|| shown)?),
                false => drop(edgefaas_workflow::compile_for_deploy(&text, &shown)?),
            }
            workflows.push(proto::WorkflowFile { file, text });
        }
        Ok(workflows)
    }

    /// Names of the secrets that functions and workflows read.
    pub fn secret_names(&self) -> anyhow::Result<BTreeSet<String>> {
        let functions = self.manifest.functions.values();
        let mut names: BTreeSet<_> = functions.flat_map(|function| function.secrets.clone()).collect();
        for proto::WorkflowFile { file, text } in self.workflows()? {
            if !ApiDocument::is_one(&text) {
                names.extend(
                    edgefaas_workflow::compile_for_deploy(&text, &file)?.program.secrets.iter().cloned(),
                );
            }
        }
        Ok(names)
    }

    /// Builds and reads every function, in the order of their names.
    pub async fn build(&self) -> anyhow::Result<Vec<proto::Artifact>> {
        let mut artifacts = Vec::with_capacity(self.manifest.functions.len());
        let scripts = self
            .manifest
            .functions
            .values()
            .filter(|function| function.source_kind() == SourceKind::Script);
        let mut graphs = self.collect(scripts.map(|script| self.main(script)).collect()).await?.into_iter();
        for (name, function) in &self.manifest.functions {
            let source = self
                .source(name, function, &mut graphs)
                .await
                .with_context(|| format!("function `{name}`"))?;
            artifacts.push(proto::Artifact { function: name.clone(), source: Some(source) });
        }
        Ok(artifacts)
    }

    /// Reads the files that `assets` of the manifest names, in the order of their names.
    fn assets(&self) -> anyhow::Result<Vec<proto::Asset>> {
        let (folder, mut left_bytes) = (self.files()?, MESSAGE_BYTES as u64);
        let mut assets = Vec::new();
        let named = self.named_files("assets", &self.manifest.assets)?;
        if named.len() > MAX_ASSETS {
            let (count, app) = (named.len(), &self.manifest.app);
            let message = format!(
                "the app `{app}` has {count} assets; the limit is {MAX_ASSETS}: put several of them into one file"
            );
            return Err(Failure::new(Exit::Invalid, message));
        }
        for (name, path) in named {
            let content = folder.read(&path, left_bytes).map_err(|error| match error {
                AppFileError::TooLarge { path, .. } => {
                    let max = ByteSize::b(MESSAGE_BYTES as u64);
                    let reason = format!("with its assets the app is too large to deploy: more than {max}");
                    Failure::new(Exit::Invalid, format!("{}: {reason}", path.display()))
                }
                error => refused(error),
            })?;
            left_bytes -= content.len() as u64;
            assets.push(proto::Asset { name, content });
        }
        Ok(assets)
    }

    /// The files of the app.
    fn files(&self) -> anyhow::Result<AppFolder> {
        AppFolder::open(&self.root).map_err(refused)
    }

    /// The files that a key of the manifest names, by their names in the app folder.
    fn named_files(&self, key: &str, patterns: &[String]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let invalid = |reason: String| Failure::new(Exit::Invalid, reason);
        let root = self.root.to_str().ok_or_else(|| {
            invalid(format!(
                "{}: the folder of an app with {key} needs a name in UTF-8",
                self.root.display()
            ))
        })?;
        let mut named = BTreeMap::new();
        for pattern in patterns {
            // As in a shell, `*` does not match names that begin with a dot, nor `..`.
            let options =
                glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
            let found = glob::glob_with(&format!("{}/{pattern}", glob::Pattern::escape(root)), options)?;
            let mut files = 0;
            for path in found {
                let path =
                    path.map_err(|error| invalid(format!("a file of `{key}` cannot be read: {error}")))?;
                // A folder is not meant, nor is a link without a target.
                let Ok(metadata) = path.metadata() else { continue };
                if metadata.is_dir() {
                    continue;
                }
                regular_file::check(&metadata).map_err(|error| {
                    invalid(format!("{}, which `{key}` names, cannot be read: {error}", path.display()))
                })?;
                files += 1;
                let inside = path.strip_prefix(&self.root).unwrap_or(&path);
                let Some(name) = inside.to_str().filter(|name| edgefaas_manifest::is_asset_name(name))
                else {
                    let reason = format!("a file of `{key}` needs a name in UTF-8, inside the app folder");
                    return Err(invalid(format!("{}: {reason}", path.display())));
                };
                named.insert(name.to_owned(), path);
            }
            if files == 0 {
                let message = format!("`{key}` names `{pattern}`, but there is no such file in {root}");
                return Err(invalid(message));
            }
        }
        Ok(named)
    }

    /// The path of a function's source.
    fn main(&self, function: &Function) -> PathBuf {
        // Collected again to show `app`, not `app/.`.
        self.root.join(&function.main).components().collect()
    }

    /// The source of a function; `graphs` has the modules of the next script.
    async fn source(
        &self,
        name: &str,
        function: &Function,
        graphs: &mut impl Iterator<Item = anyhow::Result<proto::ModuleGraph>>,
    ) -> anyhow::Result<proto::artifact::Source> {
        use proto::artifact::Source;
        let main = self.main(function);
        match function.source_kind() {
            SourceKind::Script => {
                let graph = graphs.next().context("its modules were not collected")??;
                let is_test = |module: &proto::Module| module.imports.contains_key(js::TEST_MODULE);
                if let Some(module) = graph.modules.iter().find(|module| is_test(module)) {
                    let message = format!(
                        "{} imports {}: it is a test; `edgefaas test` runs the files *.test.js and *.test.ts",
                        module.path,
                        js::TEST_MODULE
                    );
                    return Err(Failure::new(Exit::Invalid, message));
                }
                Ok(Source::Modules(graph))
            }
            SourceKind::Component => {
                let wasm = self.files()?.read(&main, MESSAGE_BYTES as u64).map_err(refused)?;
                Ok(Source::Component(component(&main, wasm)?))
            }
            SourceKind::Crate => {
                // If the folder does not exist, the builder's error lists the forms of `main`.
                if let Err(error @ AppFileError::Outside { .. }) = self.files()?.locate(&main) {
                    return Err(refused(error));
                }
                let step = Step::start(format!("Building {name}"));
                // The user chooses cargo's target folder; it may be outside the app folder.
                let artifact = cargo::build(&main, &step).await?;
                let wasm = std::fs::read(&artifact).map_err(|error| {
                    Failure::new(Exit::Invalid, format!("{}: {error}", artifact.display()))
                })?;
                Ok(Source::Component(component(&artifact, wasm)?))
            }
        }
    }
}

impl App {
    /// The modules in files of the app, with all that they import, parsed in child processes. Results are those of the first
    /// files: up to one that fails.
    async fn collect(
        &self,
        files: Vec<PathBuf>,
    ) -> anyhow::Result<Vec<anyhow::Result<proto::ModuleGraph>>> {
        let program = this_program().context("this program's own file is unknown")?;
        let root = self.root.clone();
        let memory_bytes = Machine::probe().compile_memory_bytes();
        let memory = memory_bytes.to_string().into();
        let arguments = [COLLECT.into(), memory, "--".into(), root.into()];
        let collect = move || js::collect_all_in_child(&program, &arguments, &files, memory_bytes);
        let graphs = tokio::task::spawn_blocking(collect).await?.into_iter();
        let invalid = |error: js::CollectError| Failure::new(Exit::Invalid, error.to_string());
        Ok(graphs.map(|graph| Ok(modules(graph.map_err(invalid)?))).collect())
    }

    /// The modules of a function that runs the tests in a file of the app.
    ///
    /// # Errors
    /// A module cannot be parsed, or has an import that cannot be resolved.
    pub async fn test_modules(&self, file: &Path) -> anyhow::Result<proto::ModuleGraph> {
        /// No file has this name.
        const ENTRY: &str = "@edgefaas/test-entry.js";
        let collected = self.collect(vec![file.to_owned()]).await?.pop();
        let mut graph = collected.context("its modules were not collected")??;
        let source = sdk_sources::files(Part::Js)?.into_iter().find(|(path, _)| path == "test.js");
        let (_, source) = source.context("the SDK in this program has no test.js")?;
        let path = js::TEST_MODULE_PATH.to_owned();
        graph.modules.push(proto::Module { path: path.clone(), source, imports: HashMap::new() });
        let tests = std::mem::replace(&mut graph.entry, ENTRY.to_owned());
        graph.modules.push(proto::Module {
            path: ENTRY.to_owned(),
            source: "import \"tests\";\nexport { default } from \"runner\";\n".to_owned(),
            imports: [("tests".to_owned(), tests), ("runner".to_owned(), path)].into(),
        });
        Ok(graph)
    }
}

/// The request that deploys `app`, if it fits into a message.
pub fn deploy_request(
    app: &App,
    artifacts: Vec<proto::Artifact>,
    strict: bool,
) -> anyhow::Result<proto::DeployRequest> {
    let (assets, workflows) = (app.assets()?, app.workflows()?);
    let manifest = app.text.clone();
    let request =
        proto::DeployRequest { manifest, artifacts, assets, workflows, strict, ..Default::default() };
    if request.encoded_len() <= MESSAGE_BYTES {
        return Ok(request);
    }
    let largest = request.artifacts.iter().max_by_key(|artifact| source_bytes(artifact));
    let assets: usize = request.assets.iter().map(|asset| asset.content.len()).sum();
    let message = format!(
        "the app `{}` is too large to deploy: {} of at most {}, {} of them assets; its largest function is `{}`; for \
         Rust, `strip = true` and `opt-level = \"s\"` in [profile.release] help",
        app.manifest.app,
        ByteSize::b(request.encoded_len() as u64),
        ByteSize::b(MESSAGE_BYTES as u64),
        ByteSize::b(assets as u64),
        largest.map_or("", |artifact| &artifact.function)
    );
    Err(Failure::new(Exit::Invalid, message))
}

/// Size of a function's source in bytes.
pub fn source_bytes(artifact: &proto::Artifact) -> u64 {
    use proto::artifact::Source;
    match &artifact.source {
        Some(Source::Component(bytes)) => bytes.len() as u64,
        Some(Source::Modules(graph)) => graph.modules.iter().map(|module| module.source.len() as u64).sum(),
        None => 0,
    }
}

fn modules(graph: edgefaas_isolates::ModuleGraph) -> proto::ModuleGraph {
    let module = |module: edgefaas_isolates::Module| proto::Module {
        path: module.path,
        source: module.source,
        imports: module.imports.into_iter().collect(),
    };
    proto::ModuleGraph { entry: graph.entry, modules: graph.modules.into_iter().map(module).collect() }
}

/// `bytes`, if they begin like a component.
fn component(path: &Path, bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let invalid = |reason: String| Failure::new(Exit::Invalid, format!("{}: {reason}", path.display()));
    if bytes.starts_with(COMPONENT_MAGIC) {
        return Ok(bytes);
    }
    Err(invalid(if bytes.starts_with(MODULE_MAGIC) {
        "this is a WebAssembly core module, not a component; build it for wasm32-wasip2".into()
    } else {
        "this is not a WebAssembly component".into()
    }))
}

/// The text of a manifest.
///
/// # Errors
/// It does not exist, is no regular file or no UTF-8, or does not fit into a deploy.
pub fn read_manifest(file: &Path) -> std::io::Result<String> {
    let text = regular_file::read(file, MESSAGE_BYTES as u64)?;
    String::from_utf8(text).map_err(|_| std::io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

fn read_workflow(path: &Path, files: &AppFolder) -> anyhow::Result<String> {
    let text = files.read(path, MESSAGE_BYTES as u64).map_err(refused)?;
    String::from_utf8(text)
        .map_err(|_| Failure::new(Exit::Invalid, format!("{}: it is not UTF-8", path.display())))
}

fn refused(error: AppFileError) -> anyhow::Error {
    Failure::new(Exit::Invalid, error.to_string())
}

/// The folder of a file, `.` if it has no other.
fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
