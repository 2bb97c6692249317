//! The parent's side of the child process: feeds it, waits for it, and says how it ended.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;

use super::CompileError;
use super::process::{CPU_LIMIT, PROGRESS_PREFIX};

/// A child lives too short to give memory back; and where its limit has no room for jemalloc's thread, jemalloc would try to start
/// it again and again.
const ALLOCATOR_SETTINGS: (&str, &str) = ("_RJEM_MALLOC_CONF", "background_thread:false");

/// What a process says last that has no memory left.
const OUT_OF_MEMORY: [&str; 4] =
    ["memory allocation of", "Cannot allocate memory", "out of memory", "failed to spawn thread"];

/// What Rust says before it ends a process whose stack has overflowed.
const STACK_OVERFLOW: &str = "has overflowed its stack";

/// How often is looked whether a child has ended that has closed its stdout.
const CHILD_POLL: Duration = Duration::from_millis(1);

/// How long what is left in the pipes may take to read after the child's end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The end of stderr that is kept, in bytes: the last file and the reason are in it.
const MAX_STDERR_BYTES: usize = 16 << 10;

/// The last words of a crash that are shown, in characters.
const MAX_REASON_CHARS: usize = 300;

/// The program, its limits and its input.
pub(crate) struct Input<'a> {
    /// The program.
    pub program: &'a Path,
    /// All of its arguments.
    pub arguments: Vec<OsString>,
    /// What it reads from stdin.
    pub stdin: Bytes,
    /// How long it may take.
    pub time_limit: Duration,
    /// The limit that it sets itself, for errors.
    pub memory_bytes: u64,
    /// The most that it may answer.
    pub max_output_bytes: u64,
}

/// Runs a child to its end and gives its stdout. Blocks.
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
    let mut child = EndedOnDrop(child);
    let (stdin, stdout, stderr) = (child.0.stdin.take(), child.0.stdout.take(), child.0.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(failed("it has no pipes".to_owned()));
    };
    // Each pipe has a thread, so that no order of reading and writing blocks. They end with the child. If
    // it dies early the write fails, and its stderr says why.
    let written = in_thread(move || stdin.write_all(&bytes)).map_err(io)?;
    let output = in_thread(move || read_at_most(stdout, max_output_bytes)).map_err(io)?;
    let words = in_thread(move || read_end(stderr)).map_err(io)?;

    // A child closes its stdout when it ends, or when it is about to.
    let output = match wait(&output, deadline.saturating_duration_since(Instant::now())) {
        Some(output) => Some(output.map_err(io)?),
        None => None,
    };
    if output.as_ref().is_some_and(|output| output.len() as u64 > max_output_bytes) {
        return Err(CompileError::TooLarge { limit_bytes: max_output_bytes });
    }
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(io)? {
            break Some(status);
        }
        if Instant::now() >= deadline {
            break None;
        }
        std::thread::sleep(CHILD_POLL);
    };
    let (Some(output), Some(status)) = (output, status) else {
        drop(child);
        let words = wait(&words, DRAIN_TIMEOUT).and_then(Result::ok).unwrap_or_default();
        return Err(CompileError::TimedOut { at: Words::new(&words).at, limit: time_limit });
    };
    let timed_out = || CompileError::TimedOut { at: None, limit: time_limit };
    let written = wait(&written, DRAIN_TIMEOUT).ok_or_else(timed_out)?;
    if status.success() && written.is_ok() {
        return Ok(output);
    }
    let words = wait(&words, DRAIN_TIMEOUT).ok_or_else(timed_out)?.map_err(io)?;
    Err(ended(status, &words, memory_bytes))
}

/// Why a child failed.
fn ended(status: ExitStatus, words: &str, memory_bytes: u64) -> CompileError {
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
            Some(1) => CompileError::Invalid(reason),
            _ => {
                let reason: String = format!("{status}: {reason}").chars().take(MAX_REASON_CHARS).collect();
                CompileError::Crashed { at, reason }
            }
        }
    }
}

/// What a child said on stderr.
struct Words {
    /// The file that it began last.
    at: Option<String>,
    /// All the rest.
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

/// What a thread gives within `limit`, nothing if it takes longer.
fn wait<T>(from: &Receiver<T>, limit: Duration) -> Option<T> {
    from.recv_timeout(limit).ok()
}

/// Reads one byte more than allowed, by which the caller sees that it is too much.
fn read_at_most(from: impl Read, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    from.take(bytes.saturating_add(1)).read_to_end(&mut read).map(|_| read)
}

/// Reads to the end and keeps the last of it.
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
        let limit = Duration::from_millis(100);
        for script in
            ["exec sleep 1000", "exec >&-; exec sleep 1000", "echo 'at: f.js' >&2; exec sleep 1000"]
        {
            let error = shell(script, &[0; 1 << 20], limit).unwrap_err();
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
        assert_eq!(shell("echo bad >&2; exit 1"), CompileError::Invalid("bad".to_owned()));
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
