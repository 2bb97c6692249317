//! The thread that parsers run on, which recurse as deep as the text nests.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// A line of stderr with this prefix names the file that the child begins with.
pub(super) const PROGRESS_PREFIX: &str = "at: ";

/// The stack of parsers, which recurse once or more for each level of the text. Address space, of which only touched pages
/// become memory.
const MAX_STACK_BYTES: u64 = 128 << 20;
/// The minimum of it: the stack of a process's main thread.
const MIN_STACK_BYTES: u64 = 8 << 20;

/// The parser's thread gave no result. A child process sends this error to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ParseThreadError {
    /// The thread did not start.
    // The parent of this process looks for "failed to spawn thread" to tell that memory was short.
    #[error("failed to spawn thread with a stack of {stack_bytes} bytes: {detail}")]
    Start {
        /// Size of its stack.
        stack_bytes: usize,
        /// The error of the system.
        detail: String,
    },
    /// The parser panicked.
    #[error("the parser panicked")]
    Panicked,
}

/// Settings of the thread that parsers run on.
#[derive(Clone, Copy)]
pub(crate) struct ParseThread {
    stack_bytes: usize,
    /// Called with each file that is begun.
    pub report: fn(&str),
}

impl ParseThread {
    /// A thread with a stack of `stack_bytes`, in a child process.
    pub fn with_stack(stack_bytes: usize) -> Self {
        Self { stack_bytes, report: report_progress }
    }

    /// A thread in this process, for trusted text.
    pub fn in_process() -> Self {
        Self { stack_bytes: MAX_STACK_BYTES as usize, report: |_| {} }
    }

    /// A thread in a child process with a memory limit of `memory_bytes`, which includes the whole stack.
    pub fn in_child(memory_bytes: u64) -> Self {
        let stack_bytes = (memory_bytes / 4).clamp(MIN_STACK_BYTES, MAX_STACK_BYTES) as usize;
        Self { stack_bytes, report: report_progress }
    }

    /// Runs `work` on a thread with room for deep recursion, and waits for it.
    pub fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> Result<T, ParseThreadError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("parse".to_owned())
                .stack_size(self.stack_bytes)
                .spawn_scoped(scope, work)
                .map_err(|error| ParseThreadError::Start {
                    stack_bytes: self.stack_bytes,
                    detail: error.to_string(),
                })?;
            thread.join().map_err(|_| ParseThreadError::Panicked)
        })
    }
}

/// Writes the name of a file to stderr, for the error if this process dies while it parses it.
fn report_progress(file: &str) {
    // Each line is one write. A failure is ignored: the parent has ended.
    let _ = std::io::stderr().write_all(format!("{PROGRESS_PREFIX}{}\n", file.escape_debug()).as_bytes());
}
