//! Workflows of a deploy compiled in a child process before the node compiles them.
//!
//! The libraries for YAML, jq, JSON Schema and regular expressions have limits for each text, but not for the sum: a definition of
//! 1 MiB may hold thousands of regular expressions of megabytes each. A compiled workflow cannot be handed from process to
//! process. So the child does the same with less: what it survives, the node survives.

use std::collections::BTreeMap;
use std::time::Duration;

use edgefaas_isolates::Machine;
use edgefaas_isolates::compile::{ChildCompiler, CompileError};

/// The stack of the child's compiler: half of what the node's threads have (2 MiB).
pub const DRY_RUN_STACK_BYTES: usize = 1 << 20;

/// How long all workflows of a deploy may take to compile.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What a child needs for nothing: the binary's data, and the stack that a large jq expression is parsed on.
const BASE_BYTES: u64 = 112 << 20;
/// The most that the workflows of a deploy may take; an eighth of the machine's memory, if that is less.
const MAX_WORKFLOWS_BYTES: u64 = 256 << 20;

/// The memory that the child may use, in bytes.
pub fn dry_run_memory_bytes(machine: &Machine) -> u64 {
    BASE_BYTES + (machine.memory_bytes / 8).min(MAX_WORKFLOWS_BYTES)
}

/// Workflows cannot be compiled within the limits of the child.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DryRunError {
    /// They take too much memory.
    #[error(
        "{file}: the workflow takes more memory to compile than {} MiB; use fewer or smaller schemas and regular \
         expressions (repetitions such as `{{1,1000}}` count as often as they repeat)",
        memory_bytes >> 20
    )]
    TooLarge {
        /// The file it was at.
        file: String,
        /// The limit in bytes.
        memory_bytes: u64,
    },
    /// They take too long.
    #[error("{file}: compiling the workflow does not end within {limit:?}; make it smaller")]
    TooLong {
        /// The file it was at.
        file: String,
        /// The limit.
        limit: Duration,
    },
    /// A text nests too deeply.
    #[error("{file}: the workflow is nested too deeply; split up what nests")]
    TooDeep {
        /// The file it was at.
        file: String,
    },
    /// The compiler panicked, in the node.
    #[error("the workflows cannot be compiled: {0}; please report it")]
    Ended(String),
    /// The child failed otherwise.
    #[error("the workflows cannot be compiled: {0}")]
    Process(CompileError),
}

/// Compiles all workflows in a child process. Does nothing without workflows or `child`.
pub(super) async fn look(
    child: Option<&ChildCompiler>,
    workflows: &BTreeMap<String, String>,
) -> Result<(), DryRunError> {
    let Some(child) = child.filter(|_| !workflows.is_empty()).cloned() else { return Ok(()) };
    let failed =
        |reason: String| DryRunError::Process(CompileError::Process { program: String::new(), reason });
    let content = postcard::to_allocvec(workflows).map_err(|error| failed(error.to_string()))?;
    let looked = tokio::task::spawn_blocking(move || child.dry_run(content, TIME_LIMIT)).await;
    let looked = looked.map_err(|error| failed(error.to_string()))?;
    looked.map_err(|error| match error {
        CompileError::OutOfMemory { at: Some(file), memory_bytes } => {
            DryRunError::TooLarge { file, memory_bytes: memory_bytes.saturating_sub(BASE_BYTES) }
        }
        CompileError::TimedOut { at: Some(file), limit } => DryRunError::TooLong { file, limit },
        CompileError::TooDeep { at: Some(file) } => DryRunError::TooDeep { file },
        error => DryRunError::Process(error),
    })
}

/// The child's part: compiles the workflows in `content`, and tells `report` the file that it begins with. What is wrong with
/// them is the node's to say.
pub fn dry_run_workflows(content: &[u8], report: fn(&str)) {
    let Ok(workflows) = postcard::from_bytes::<BTreeMap<String, String>>(content) else { return };
    let mut kept = Vec::with_capacity(workflows.len());
    for (file, text) in &workflows {
        report(file);
        // All are kept, as in the node.
        kept.push(edgefaas_workflow::compile(text, file));
    }
}
