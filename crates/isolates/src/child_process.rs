//! The child process that parses, evaluates and compiles deployed code: its task comes from stdin, its result goes to stdout.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use edgefaas_platform::Clock;
use serde::{Deserialize, Serialize};

use crate::compile::{CodeKind, CompileError, ComponentTask, ParseThread, ParseThreadError, Task, compile};
use crate::engine::{EngineError, PoolConfig};
use crate::js::{self, TaskError};

/// The exit code of a Rust program that panics.
const PANIC_EXIT: i32 = 101;

/// The child process has no result. Its parent reads this error on stderr.
#[derive(Debug, thiserror::Error)]
enum ChildError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the task is not understood: {0}")]
    Task(#[source] postcard::Error),
    #[error("the result cannot be encoded: {0}")]
    Result(#[source] postcard::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Script(#[from] TaskError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Parser(#[from] ParseThreadError),
}

/// The main function of a process that compiles: it carries out `task` on its stdin. Top-level code reads the wall clock from
/// `clock`.
///
/// The exit code is 0 if there is a result, which may be that the code is refused, else 1 with the reason on stderr.
pub fn compile_stdio(clock: Clock, pool: PoolConfig, memory_bytes: u64, task: Task) -> ExitCode {
    stdio(|input| {
        let engine = crate::engine::build(pool)?;
        match task {
            Task::Module => Ok(compile(&engine, CodeKind::Module, &input)?),
            Task::Component => {
                let task: ComponentTask = decode(input)?;
                encode(&task.run(&engine))
            }
            Task::Script => encode(&js::run_task(decode(input)?, &engine, pool, memory_bytes, clock)?),
        }
    })
}

/// The main function of a process that collects functions' modules on the user's machine. The paths of their entries come from
/// stdin; the results of [`js::collect`](crate::js::collect) go to stdout.
pub fn collect_stdio(root: &std::path::Path, memory_bytes: u64) -> ExitCode {
    stdio(|input| {
        let entries: Vec<PathBuf> = decode(input)?;
        encode(&js::gather_all(&entries, root, ParseThread::in_child(memory_bytes)))
    })
}

/// The main function of a process that parses content from stdin before its parent does, on a thread with a stack of
/// `stack_bytes`. `look` gets the content, and a function to call with each file that it begins; its errors are left to the
/// parent, which finds them again.
pub fn dry_run_stdio(stack_bytes: usize, look: impl FnOnce(&[u8], fn(&str)) + Send) -> ExitCode {
    stdio(|input| {
        let thread = ParseThread::with_stack(stack_bytes);
        thread.run(|| look(&input, thread.report))?;
        Ok(Vec::new())
    })
}

fn stdio(work: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, ChildError>) -> ExitCode {
    // A panic on any thread ends the process, with the exit code that the parent expects.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::exit(PANIC_EXIT);
    }));
    let mut input = Vec::new();
    let result = std::io::stdin()
        .lock()
        .read_to_end(&mut input)
        .map_err(ChildError::Io)
        .and_then(|_| work(input))
        .and_then(|output| Ok(std::io::stdout().lock().write_all(&output)?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn decode<T: for<'a> Deserialize<'a>>(input: Vec<u8>) -> Result<T, ChildError> {
    postcard::from_bytes(&input).map_err(ChildError::Task)
}

fn encode<T: Serialize>(result: &T) -> Result<Vec<u8>, ChildError> {
    postcard::to_allocvec(result).map_err(ChildError::Result)
}
