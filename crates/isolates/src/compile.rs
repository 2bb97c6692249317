//! WebAssembly to native code, and the cache that keeps it.
//!
//! Native code is a cache: it is made on this machine, from sources that are kept elsewhere, and only
//! files that carry this node's own authentication code are ever loaded. Compiling leaves tens of
//! megabytes behind, so that a node lets a short-lived process of the same binary do it.

use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

/// Where compiling happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiler {
    /// In this process: tests and benches.
    InProcess,
    /// In a child: this program with these arguments, which calls [`compile_stdio`].
    Child {
        /// The program.
        program: PathBuf,
        /// Its arguments; the kind (`module` or `component`) is added.
        arguments: Vec<String>,
    },
}

/// What is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeKind {
    /// A core module.
    Module,
    /// A component.
    Component,
}

impl CodeKind {
    /// The word for it on the compiling process's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Component => "component",
        }
    }

    /// The kind that a word on the command line names.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Module, Self::Component].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Compiling failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The code is not valid WebAssembly.
    #[error("{0}")]
    Invalid(String),
    /// The compiling process could not be run.
    #[error("the compiler {program} could not be run: {reason}")]
    Process {
        /// The program.
        program: String,
        /// What the system says.
        reason: String,
    },
}

/// Compiles for `engine`, without a cache.
pub fn compile(engine: &Engine, kind: CodeKind, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
    let native = match kind {
        CodeKind::Module => engine.precompile_module(wasm),
        CodeKind::Component => engine.precompile_component(wasm),
    };
    native.map_err(|error| CompileError::Invalid(format!("{error:#}")))
}

/// The compiling process: WebAssembly from stdin, native code to stdout.
///
/// The exit code is 0 if it was compiled, else 1 with the reason on stderr.
pub fn compile_stdio(engine: &Engine, kind: CodeKind) -> std::process::ExitCode {
    let mut wasm = Vec::new();
    let result = std::io::stdin()
        .lock()
        .read_to_end(&mut wasm)
        .map_err(|error| error.to_string())
        .and_then(|_| compile(engine, kind, &wasm).map_err(|error| error.to_string()))
        .and_then(|native| std::io::stdout().lock().write_all(&native).map_err(|error| error.to_string()));
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Compiles what is not in its folder yet and loads what is.
#[derive(Debug)]
pub struct CodeCache {
    compiler: Compiler,
    /// Files and the key they are authenticated with; without it nothing is kept.
    folder: Option<(PathBuf, [u8; 32])>,
}

impl CodeCache {
    /// A cache in `folder`, whose files are authenticated with `key`.
    pub fn new(compiler: Compiler, folder: Option<(PathBuf, [u8; 32])>) -> Self {
        Self { compiler, folder }
    }

    /// The core module, compiled now or earlier. Blocks for as long as compiling takes.
    pub fn module(&self, engine: &Engine, wasm: &[u8]) -> Result<Module, CompileError> {
        let native = self.native(engine, CodeKind::Module, wasm)?;
        load_module(engine, &native).map_err(|error| CompileError::Invalid(format!("{error:#}")))
    }

    /// The component, compiled now or earlier. Blocks for as long as compiling takes.
    pub fn component(&self, engine: &Engine, wasm: &[u8]) -> Result<Component, CompileError> {
        let native = self.native(engine, CodeKind::Component, wasm)?;
        load_component(engine, &native).map_err(|error| CompileError::Invalid(format!("{error:#}")))
    }

    fn native(&self, engine: &Engine, kind: CodeKind, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        let Some((folder, key)) = &self.folder else {
            return self.compile(engine, kind, wasm);
        };
        let path = folder.join(entry_name(engine, kind, wasm));
        if let Some(native) = read_authentic(&path, key) {
            return Ok(native);
        }
        let native = self.compile(engine, kind, wasm)?;
        // A cache that can't be written costs time at the next start, nothing else.
        if let Err(error) = write_authentic(&path, key, &native) {
            tracing::warn!(path = %path.display(), %error, "compiled code could not be kept");
        }
        Ok(native)
    }

    fn compile(&self, engine: &Engine, kind: CodeKind, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        match &self.compiler {
            Compiler::InProcess => compile(engine, kind, wasm),
            Compiler::Child { program, arguments } => compile_in_child(program, arguments, kind, wasm),
        }
    }
}

fn compile_in_child(
    program: &Path,
    arguments: &[String],
    kind: CodeKind,
    wasm: &[u8],
) -> Result<Vec<u8>, CompileError> {
    let failed = |reason: String| CompileError::Process { program: program.display().to_string(), reason };
    let mut child = Command::new(program)
        .args(arguments)
        .arg(kind.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut stdin = child.stdin.take().ok_or_else(|| failed("it has no stdin".into()))?;
    // The child reads all of its input before it writes, so that neither waits for the other. If it dies
    // early the write fails, and its stderr says why.
    let written = stdin.write_all(wasm);
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() && written.is_ok() {
        return Ok(output.stdout);
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(1) => Err(CompileError::Invalid(reason)),
        _ => Err(failed(format!("it ended with {}: {reason}", output.status))),
    }
}

/// Files are named by all that the code depends on: source, engine settings and version, processor.
fn entry_name(engine: &Engine, kind: CodeKind, wasm: &[u8]) -> String {
    let mut settings = std::hash::DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut settings);
    let mut digest = blake3::Hasher::new();
    digest.update(kind.as_str().as_bytes());
    digest.update(&settings.finish().to_le_bytes());
    digest.update(wasm);
    format!("{}.native", digest.finalize().to_hex())
}

const CODE_BYTES: usize = blake3::OUT_LEN;

fn read_authentic(path: &Path, key: &[u8; 32]) -> Option<Vec<u8>> {
    let mut file = std::fs::read(path).ok()?;
    let (code, native) = file.split_at_checked(CODE_BYTES)?;
    let code = blake3::Hash::from_bytes(code.try_into().ok()?);
    if blake3::keyed_hash(key, native) != code {
        tracing::warn!(path = %path.display(), "compiled code is damaged or foreign; compiling anew");
        return None;
    }
    file.drain(..CODE_BYTES);
    Some(file)
}

fn write_authentic(path: &Path, key: &[u8; 32], native: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(blake3::keyed_hash(key, native).as_bytes())?;
    file.write_all(native)?;
    drop(file);
    std::fs::rename(&temporary, path)
}

#[allow(unsafe_code)]
fn load_module(engine: &Engine, native: &[u8]) -> wasmtime::Result<Module> {
    // SAFETY: the bytes were made by `compile` on this machine: just now, or earlier and authenticated
    // with the node's own key. wasmtime checks that version and settings match.
    unsafe { Module::deserialize(engine, native) }
}

#[allow(unsafe_code)]
fn load_component(engine: &Engine, native: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: as for modules.
    unsafe { Component::deserialize(engine, native) }
}
