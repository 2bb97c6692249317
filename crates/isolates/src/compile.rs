//! WebAssembly to native code.
//!
//! Compiling leaves tens of megabytes behind, and nobody knows beforehand how many it takes: a node lets a short-lived
//! process of the same binary do it, which has a limit on its memory and one on its time.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wasmtime::Engine;

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
        /// The limit that it sets itself with [`limit_memory`], for errors.
        memory_bytes: u64,
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
    /// The app's assets can't be put into its memory.
    #[error("{0}")]
    Assets(String),
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
    /// The compiling process wanted more memory than it may have.
    #[error(
        "compiling it takes more than {} MiB of memory; make the module smaller (build with opt-level = \"s\" and \
         strip = true), or raise isolates.compile_memory",
        memory_bytes >> 20
    )]
    OutOfMemory {
        /// What it may have.
        memory_bytes: u64,
    },
}

/// How long the compiling process may take.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(120);

/// What a process says last that has no memory left.
const OUT_OF_MEMORY: [&str; 4] =
    ["memory allocation of", "Cannot allocate memory", "out of memory", "failed to spawn thread"];

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

/// Bounds what this process may allocate: address space that is only reserved does not count.
///
/// # Errors
/// The system refuses.
pub fn limit_memory(bytes: u64) -> std::io::Result<()> {
    let limit = getrlimit(Resource::Data);
    let most = limit.maximum.map_or(bytes, |maximum| maximum.min(bytes));
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(most), ..limit })?)
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

/// Compiles where `compiler` says. Blocks.
pub(crate) fn compile_with(
    compiler: &Compiler,
    engine: &Engine,
    kind: CodeKind,
    wasm: &[u8],
) -> Result<Vec<u8>, CompileError> {
    match compiler {
        Compiler::InProcess => compile(engine, kind, wasm),
        Compiler::Child { program, arguments, memory_bytes } => {
            compile_in_child(program, arguments, kind, wasm, COMPILE_TIMEOUT, *memory_bytes)
        }
    }
}

fn compile_in_child(
    program: &Path,
    arguments: &[String],
    kind: CodeKind,
    wasm: &[u8],
    limit: Duration,
    memory_bytes: u64,
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
        // The allocator ends the process, or a thread can't be started.
        _ if OUT_OF_MEMORY.iter().any(|words| reason.contains(words)) => {
            Err(CompileError::OutOfMemory { memory_bytes })
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, wasm: &[u8], limit: Duration) -> Result<Vec<u8>, CompileError> {
        let arguments = ["-c".to_owned(), script.to_owned()];
        compile_in_child(Path::new("/bin/sh"), &arguments, CodeKind::Module, wasm, limit, 7 << 20)
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
        let error =
            shell("echo 'memory allocation of 8 bytes failed' >&2; exit 134", &wasm, limit).unwrap_err();
        assert_eq!(error, CompileError::OutOfMemory { memory_bytes: 7 << 20 });
    }
}
