//! The parent's side of the child process: its input, its output, and how it ended.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::CompileError;
use super::parse_thread::PROGRESS_PREFIX;
use super::process::CPU_LIMIT;

/// A child ends before it would give memory back. Where its limit has no room for jemalloc's thread, jemalloc would try to start
/// it again and again.
const ALLOCATOR_SETTINGS: (&str, &str) = ("_RJEM_MALLOC_CONF", "background_thread:false");

/// The last words of a process without memory.
const OUT_OF_MEMORY: [&str; 4] =
    ["memory allocation of", "Cannot allocate memory", "out of memory", "failed to spawn thread"];

/// The last words of a Rust process whose stack has overflowed.
const STACK_OVERFLOW: &str = "has overflowed its stack";

/// The time limit for reading the rest of the pipes after the child's end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of stderr that is kept, in bytes: its end has the last file and the reason.
const MAX_STDERR_BYTES: usize = 16 << 10;

/// The maximum of the last words that an error shows, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The program, its limits and its input.
pub(crate) struct Input<'a> {
    /// The program.
    pub program: &'a Path,
    /// All of its arguments.
    pub arguments: Vec<OsString>,
    /// Bytes for the program's stdin.
    pub stdin: Bytes,
    /// The time limit.
    pub time_limit: Duration,
    /// The limit in bytes that it sets itself, for errors.
    pub memory_bytes: u64,
    /// The maximum of its stdout.
    pub max_output_bytes: u64,
}

/// Runs a child to its end and returns its stdout. Blocks.
///
/// # Errors
/// The child cannot be started, exceeds a limit, or fails.
pub(crate) fn run(input: Input<'_>) -> Result<Vec<u8>, CompileError> {
    let Input { program, arguments, stdin: bytes, time_limit, memory_bytes, max_output_bytes } = input;
    let deadline = Instant::now() + time_limit;
    let failed = |reason: String| CompileError::Process { program: program.display().to_string(), reason };
    let io = |error: std::io::Error| failed(error.to_string());
    let child = Command::new(program)
        .args(arguments)
        .env(ALLOCATOR_SETTINGS.0, ALLOCATOR_SETTINGS.1)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    let mut child = RunningChild::new(child);
    let pipes = (child.process.stdin.take(), child.process.stdout.take(), child.process.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(failed("it has no pipes".to_owned()));
    };
    // Each pipe has a thread, so that no order of reading and writing blocks. If the child dies early the write fails, and
    // its stderr has the reason.
    let written = child.in_thread("compile-pipe", move || stdin.write_all(&bytes)).map_err(io)?;
    let read = move || read_at_most(stdout, max_output_bytes);
    let output = child.in_thread("compile-pipe", read).map_err(io)?;
    let words = child.in_thread("compile-pipe", move || read_end(stderr)).map_err(io)?;
    let ended = child.end().map_err(io)?;
    let left = || deadline.saturating_duration_since(Instant::now());

    let output = wait(&output, left()).transpose().map_err(io)?;
    if output.as_ref().is_some_and(|output| output.len() as u64 > max_output_bytes) {
        return Err(CompileError::TooLarge { limit_bytes: max_output_bytes });
    }
    let status = match wait(&ended, left()).transpose().map_err(io)? {
        Some(()) => Some(child.process.wait().map_err(io)?),
        None => None,
    };
    let (Some(output), Some(status)) = (output, status) else {
        child.kill();
        let words = wait(&words, DRAIN_TIMEOUT).and_then(Result::ok).unwrap_or_default();
        return Err(CompileError::TimedOut { at: Words::new(&words).at, limit: time_limit });
    };
    let timed_out = || CompileError::TimedOut { at: None, limit: time_limit };
    let written = wait(&written, DRAIN_TIMEOUT).ok_or_else(timed_out)?;
    if status.success() && written.is_ok() {
        return Ok(output);
    }
    let words = wait(&words, DRAIN_TIMEOUT).ok_or_else(timed_out)?.map_err(io)?;
    Err(error_of(status, &words, memory_bytes))
}

/// The error of a child that failed.
fn error_of(status: ExitStatus, words: &str, memory_bytes: u64) -> CompileError {
    let Words { at, reason } = Words::new(words);
    let is = |signal: Signal| status.signal() == Some(signal.as_raw());
    if OUT_OF_MEMORY.iter().any(|words| reason.contains(words)) {
        // The allocator ends the process, or a thread can't be started.
        CompileError::OutOfMemory { at, memory_bytes }
    } else if is(Signal::SEGV) || is(Signal::BUS) || reason.contains(STACK_OVERFLOW) {
        CompileError::TooDeep { at }
    } else if is(Signal::KILL) {
        CompileError::Killed { at }
    } else if is(Signal::XCPU) {
        CompileError::TimedOut { at, limit: CPU_LIMIT }
    } else {
        match status.code() {
            Some(1) => CompileError::Invalid { detail: reason },
            _ => {
                let reason: String = format!("{status}: {reason}").chars().take(MAX_REASON_CHARS).collect();
                CompileError::Crashed { at, reason }
            }
        }
    }
}

/// The stderr of a child.
struct Words {
    /// The last file that it began.
    at: Option<String>,
    /// All other lines.
    reason: String,
}

impl Words {
    fn new(stderr: &str) -> Self {
        let progress = |line: &&str| line.starts_with(PROGRESS_PREFIX);
        let at = stderr.lines().rfind(progress).map(|line| line[PROGRESS_PREFIX.len()..].to_owned());
        let rest: Vec<&str> = stderr.lines().filter(|line| !progress(line)).collect();
        Self { at, reason: rest.join("\n").trim().to_owned() }
    }
}

/// A child with the threads that serve it. On drop it is killed, if it still runs, and reaped, and the threads are joined.
struct RunningChild {
    process: Child,
    threads: Vec<JoinHandle<()>>,
    /// Cloned into each thread, so that `ended` is disconnected when all have ended.
    alive: Option<SyncSender<Infallible>>,
    ended: Receiver<Infallible>,
}

impl RunningChild {
    fn new(process: Child) -> Self {
        let (alive, ended) = mpsc::sync_channel(0);
        Self { process, threads: Vec::new(), alive: Some(alive), ended }
    }

    /// Starts a thread, which ends with the child, and returns its result over a channel.
    fn in_thread<T: Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<Receiver<T>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let alive = self.alive.clone();
        let run = move || {
            // Fails if the time limit is over.
            let _ = sender.send(work());
            drop(alive);
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(receiver)
    }

    /// Notifies of the child's end. The child stays a zombie, so that its process id is not used again until it is reaped
    /// here.
    fn end(&mut self) -> std::io::Result<Receiver<std::io::Result<()>>> {
        let child = Pid::from_child(&self.process);
        self.in_thread("compile-wait", move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            Ok(rustix::io::retry_on_intr(|| waitid(WaitId::Pid(child), options)).map(drop)?)
        })
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        self.kill();
        self.alive = None;
        // A process that the child has started may hold a pipe open. The thread of that pipe ends with that process.
        if self.ended.recv_timeout(DRAIN_TIMEOUT) == Err(RecvTimeoutError::Disconnected) {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// The result of a thread within `limit`, none if it takes longer.
fn wait<T>(from: &Receiver<T>, limit: Duration) -> Option<T> {
    from.recv_timeout(limit).ok()
}

/// Reads up to one byte more than allowed: the caller sees by it that the output is too large.
fn read_at_most(from: impl Read, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    from.take(bytes.saturating_add(1)).read_to_end(&mut read).map(|_| read)
}

/// Reads to the end and keeps the last [`MAX_STDERR_BYTES`].
fn read_end(mut from: impl Read) -> std::io::Result<String> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let bytes = from.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(String::from_utf8_lossy(&kept).into_owned());
        }
        kept.extend_from_slice(&buffer[..bytes]);
        let surplus = kept.len().saturating_sub(MAX_STDERR_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, stdin: &[u8], time_limit: Duration) -> Result<Vec<u8>, CompileError> {
        run(Input {
            program: Path::new("/bin/sh"),
            arguments: vec!["-c".into(), script.into()],
            stdin: Bytes::copy_from_slice(stdin),
            time_limit,
            memory_bytes: 7 << 20,
            max_output_bytes: 8 << 20,
        })
    }

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        for (script, limit_ms) in [
            ("exec sleep 1000", 100),
            ("exec >&-; exec sleep 1000", 100),
            // Time for the shell to start and say it.
            ("echo 'at: f.js' >&2; exec sleep 1000", 3000),
        ] {
            let error = shell(script, &[0; 1 << 20], Duration::from_millis(limit_ms)).unwrap_err();
            let CompileError::TimedOut { at, .. } = error else { panic!("{error:?}") };
            assert_eq!(at.is_some(), script.contains("f.js"));
        }
    }

    #[test]
    fn pipes_never_wait_for_each_other() {
        let stdin = vec![5; 4 << 20];
        // Answers while it reads, and complains all the while.
        assert_eq!(shell("tee /dev/stderr", &stdin, Duration::from_secs(60)).unwrap(), stdin);
    }

    #[test]
    fn the_end_of_a_child_says_what_is_wrong() {
        let shell = |script: &str| shell(script, b"x", Duration::from_secs(60)).unwrap_err();
        assert_eq!(shell("echo bad >&2; exit 1"), CompileError::Invalid { detail: "bad".to_owned() });
        let error = shell("echo 'at: a.js' >&2; echo 'at: b.js' >&2; echo 'panicked at x' >&2; exit 101");
        let CompileError::Crashed { at, reason } = error else { panic!("{error:?}") };
        assert_eq!(at.as_deref(), Some("b.js"));
        assert!(reason.contains("101") && reason.ends_with("panicked at x"), "{reason}");
        let error = shell("echo 'memory allocation of 8 bytes failed' >&2; exit 134");
        assert_eq!(error, CompileError::OutOfMemory { at: None, memory_bytes: 7 << 20 });
        let at = Some("f.js".to_owned());
        assert_eq!(shell("echo 'at: f.js' >&2; kill -SEGV $$"), CompileError::TooDeep { at: at.clone() });
        let overflow =
            "echo 'at: f.js' >&2; echo \"thread 'parse' has overflowed its stack\" >&2; kill -ABRT $$";
        assert_eq!(shell(overflow), CompileError::TooDeep { at });
        assert_eq!(shell("kill -KILL $$"), CompileError::Killed { at: None });
        let error = shell("exec head -c 9000000 /dev/zero");
        assert_eq!(error, CompileError::TooLarge { limit_bytes: 8 << 20 });
    }
}
