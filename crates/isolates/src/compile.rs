//! WebAssembly to native code, and the cache that keeps it.
//!
//! Native code is a cache: it is made on this machine, from sources that are kept elsewhere, and only
//! files that carry this node's own authentication code are ever loaded. Compiling leaves tens of
//! megabytes behind, so that a node lets a short-lived process of the same binary do it.

use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

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
    /// The compiling process took too long and was ended.
    #[error(
        "the compiler {program} did not end within {limit:?}; try again when the machine has less to do, or \
         make the module smaller (build with opt-level = \"s\" and strip = true)"
    )]
    TimedOut {
        /// The program.
        program: String,
        /// How long it had.
        limit: Duration,
    },
}

/// How long the compiling process may take.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// How often is looked whether it has ended.
const CHILD_POLL: Duration = Duration::from_millis(5);

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
        self.load(engine, CodeKind::Module, wasm, load_module)
    }

    /// The component, compiled now or earlier. Blocks for as long as compiling takes.
    pub fn component(&self, engine: &Engine, wasm: &[u8]) -> Result<Component, CompileError> {
        self.load(engine, CodeKind::Component, wasm, load_component)
    }

    fn load<T>(
        &self,
        engine: &Engine,
        kind: CodeKind,
        wasm: &[u8],
        load: fn(&Engine, &[u8]) -> wasmtime::Result<T>,
    ) -> Result<T, CompileError> {
        let entry = self.folder.as_ref().map(|(folder, key)| {
            let name = entry_name(engine, kind, wasm);
            Entry { path: folder.join(&name), name, key }
        });
        if let Some(entry) = &entry
            && let Some(native) = entry.read()
        {
            match load(engine, &native) {
                Ok(code) => return Ok(code),
                Err(error) => {
                    let path = entry.path.display();
                    tracing::warn!(%path, %error, "compiled code does not load; compiling anew");
                    // If it stays, the new one replaces it.
                    let _ = std::fs::remove_file(&entry.path);
                }
            }
        }
        let native = self.compile(engine, kind, wasm)?;
        let code = load(engine, &native).map_err(|error| CompileError::Invalid(format!("{error:#}")))?;
        // Kept only now that it has loaded. A cache that can't be written costs time at the next start,
        // nothing else.
        if let Some(entry) = &entry
            && let Err(error) = entry.write(&native)
        {
            tracing::warn!(path = %entry.path.display(), %error, "compiled code could not be kept");
        }
        Ok(code)
    }

    fn compile(&self, engine: &Engine, kind: CodeKind, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        match &self.compiler {
            Compiler::InProcess => compile(engine, kind, wasm),
            Compiler::Child { program, arguments } => {
                compile_in_child(program, arguments, kind, wasm, COMPILE_TIMEOUT)
            }
        }
    }
}

fn compile_in_child(
    program: &Path,
    arguments: &[String],
    kind: CodeKind,
    wasm: &[u8],
    limit: Duration,
) -> Result<Vec<u8>, CompileError> {
    let deadline = Instant::now() + limit;
    let program_name = || program.display().to_string();
    let failed = |reason: String| CompileError::Process { program: program_name(), reason };
    let io = |error: std::io::Error| failed(error.to_string());
    let timed_out = || CompileError::TimedOut { program: program_name(), limit };
    let child = Command::new(program)
        .args(arguments)
        .arg(kind.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    let mut child = EndedOnDrop(child);
    let (stdin, stdout, stderr) = (child.0.stdin.take(), child.0.stdout.take(), child.0.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(failed("it has no pipes".to_owned()));
    };
    // Each pipe has a thread, so that no order of reading and writing blocks. They end with the child. If
    // it dies early the write fails, and its stderr says why.
    let wasm = wasm.to_vec();
    let written = in_thread(move || stdin.write_all(&wasm)).map_err(io)?;
    let native = in_thread(move || read_all(stdout)).map_err(io)?;
    let reason = in_thread(move || read_all(stderr)).map_err(io)?;

    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(io)? {
            break status;
        }
        if Instant::now() >= deadline {
            return Err(timed_out());
        }
        std::thread::sleep(CHILD_POLL);
    };
    // What is in the pipes still is read at once, even if the time was just up.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let written = written.recv_timeout(left).map_err(|_| timed_out())?;
    let native = native.recv_timeout(left).map_err(|_| timed_out())?.map_err(io)?;
    if status.success() && written.is_ok() {
        return Ok(native);
    }
    let reason = reason.recv_timeout(left).map_err(|_| timed_out())?.map_err(io)?;
    let reason = String::from_utf8_lossy(&reason).trim().to_owned();
    match status.code() {
        Some(1) => Err(CompileError::Invalid(reason)),
        _ => Err(failed(format!("it ended with {status}: {reason}"))),
    }
}

/// A child that is killed, if it still runs, and always waited for.
struct EndedOnDrop(Child);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Receiver<T>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        // Nobody listens any more if time is up.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("compile-pipe".to_owned()).spawn(run)?;
    Ok(receiver)
}

fn read_all(mut from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).map(|_| bytes)
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

/// A file of the cache: the authentication code of name and content, then the content.
struct Entry<'a> {
    name: String,
    path: PathBuf,
    key: &'a [u8; 32],
}

impl Entry<'_> {
    /// With the name, so that one entry cannot take another's place. All names are equally long.
    fn code(&self, native: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(self.key).update(self.name.as_bytes()).update(native).finalize()
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut file = std::fs::read(&self.path).ok()?;
        let authentic = file.split_at_checked(CODE_BYTES).is_some_and(|(code, native)| {
            <[u8; CODE_BYTES]>::try_from(code).is_ok_and(|code| self.code(native) == code)
        });
        if !authentic {
            tracing::warn!(path = %self.path.display(), "compiled code is damaged or foreign; compiling anew");
            return None;
        }
        file.drain(..CODE_BYTES);
        Some(file)
    }

    fn write(&self, native: &[u8]) -> std::io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}-{write}.tmp", std::process::id()));
        let written = self.write_to(&temporary, native);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    fn write_to(&self, temporary: &Path, native: &[u8]) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        file.write_all(self.code(native).as_bytes())?;
        file.write_all(native)?;
        drop(file);
        std::fs::rename(temporary, &self.path)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";
    /// An empty module with an empty custom section "a".
    const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";

    fn entry<'a>(engine: &Engine, folder: &Path, wasm: &[u8]) -> Entry<'a> {
        let name = entry_name(engine, CodeKind::Module, wasm);
        Entry { path: folder.join(&name), name, key: &KEY }
    }

    /// A cache that cannot compile: what it gives was kept.
    fn only_kept(folder: &Path) -> CodeCache {
        let compiler = Compiler::Child { program: "/no/such/compiler".into(), arguments: Vec::new() };
        CodeCache::new(compiler, Some((folder.to_owned(), KEY)))
    }

    #[test]
    fn an_entry_that_does_not_load_is_compiled_anew() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some((folder.path().to_owned(), KEY)));
        let entry = entry(&engine, folder.path(), EMPTY);
        entry.write(b"authentic, but no code").unwrap();
        only_kept(folder.path()).module(&engine, EMPTY).unwrap_err();
        assert!(!entry.path.exists());
        entry.write(b"authentic, but no code").unwrap();
        cache.module(&engine, EMPTY).unwrap();
        only_kept(folder.path()).module(&engine, EMPTY).unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "no temporary file stays");
    }

    #[test]
    fn an_entry_cannot_take_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some((folder.path().to_owned(), KEY)));
        cache.module(&engine, EMPTY).unwrap();
        let (here, there) = (entry(&engine, folder.path(), EMPTY), entry(&engine, folder.path(), OTHER));
        std::fs::copy(&here.path, &there.path).unwrap();
        assert!(here.read().is_some());
        assert_eq!(there.read(), None);
    }

    fn shell(script: &str, wasm: &[u8], limit: Duration) -> Result<Vec<u8>, CompileError> {
        let arguments = ["-c".to_owned(), script.to_owned()];
        compile_in_child(Path::new("/bin/sh"), &arguments, CodeKind::Module, wasm, limit)
    }

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        let limit = Duration::from_millis(100);
        let error = shell("exec sleep 1000", &[0; 1 << 20], limit).unwrap_err();
        assert!(matches!(error, CompileError::TimedOut { .. }), "{error:?}");
    }

    #[test]
    fn pipes_never_wait_for_each_other() {
        let wasm = vec![5; 4 << 20];
        let limit = Duration::from_secs(60);
        // Answers while it reads, and complains all the while.
        assert_eq!(shell("tee /dev/stderr", &wasm, limit).unwrap(), wasm);
        let error = shell("echo bad >&2; exit 1", &wasm, limit).unwrap_err();
        assert_eq!(error, CompileError::Invalid("bad".to_owned()));
        let error = shell("exit 3", &wasm, limit).unwrap_err();
        assert!(matches!(error, CompileError::Process { .. }), "{error:?}");
    }
}
