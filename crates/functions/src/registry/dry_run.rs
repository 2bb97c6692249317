//! Dry run of a deploy: a child process compiles its workflows before the node compiles them.
//!
//! The libraries for YAML, jq, JSON Schema and regular expressions have limits for each text, but not for the sum: a
//! definition of 1 MiB may have thousands of regular expressions that need megabytes each. A compiled workflow cannot be
//! passed between processes. So the child compiles with less memory and stack: if it succeeds, the node does too.

use std::collections::BTreeMap;
use std::time::Duration;

use edgefaas_isolates::Machine;
use edgefaas_isolates::compile::{ChildCompiler, CompileError};

/// Size of the stack on which the child compiles: half of that of the node's threads (2 MiB).
pub const DRY_RUN_STACK_BYTES: usize = 1 << 20;

/// Maximum time to compile all workflows of a deploy.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Memory that the child needs without workflows: the data of the binary, and the stack for parsing a large jq expression.
const BASE_BYTES: u64 = 112 << 20;
/// Maximum memory for the workflows of a deploy. On a small machine it is an eighth of the memory.
const MAX_WORKFLOWS_BYTES: u64 = 256 << 20;

/// Maximum memory of the child, in bytes.
pub fn dry_run_memory_bytes(machine: &Machine) -> u64 {
    BASE_BYTES + (machine.memory_bytes / 8).min(MAX_WORKFLOWS_BYTES)
}

/// Errors of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DryRunError {
    /// The workflows need too much memory.
    #[error(
        "{file}: the workflow takes more memory to compile than {} MiB; use fewer or smaller schemas and regular \
         expressions (repetitions such as `{{1,1000}}` count as often as they repeat)",
        memory_bytes >> 20
    )]
    TooLarge {
        /// The file that the child was compiling.
        file: String,
        /// The limit in bytes.
        memory_bytes: u64,
    },
    /// The workflows need too much time.
    #[error("{file}: compiling the workflow takes longer than {limit:?}; make it smaller")]
    TooLong {
        /// The file that the child was compiling.
        file: String,
        /// The limit.
        limit: Duration,
    },
    /// A text nests too deeply.
    #[error("{file}: the workflow is nested too deeply; split up what nests")]
    TooDeep {
        /// The file that the child was compiling.
        file: String,
    },
    /// The compiler panicked, in the node.
    #[error("the workflows cannot be compiled: {0}; please report it")]
    Ended(String),
    /// The child failed for another reason.
    #[error("the workflows cannot be compiled: {0}")]
    Process(CompileError),
}

/// Compiles all workflows in a child process. Does nothing without workflows or without `child`.
pub(super) async fn compile_in_child(
    child: Option<&ChildCompiler>,
    workflows: &BTreeMap<String, String>,
) -> Result<(), DryRunError> {
    let Some(child) = child.filter(|_| !workflows.is_empty()).cloned() else { return Ok(()) };
    let failed =
        |reason: String| DryRunError::Process(CompileError::Process { program: String::new(), reason });
    let content = postcard::to_allocvec(workflows).map_err(|error| failed(error.to_string()))?;
    let compiled = tokio::task::spawn_blocking(move || child.dry_run(content, TIME_LIMIT)).await;
    let compiled = compiled.map_err(|error| failed(error.to_string()))?;
    compiled.map_err(|error| match error {
        CompileError::OutOfMemory { at: Some(file), memory_bytes } => {
            DryRunError::TooLarge { file, memory_bytes: memory_bytes.saturating_sub(BASE_BYTES) }
        }
        CompileError::TimedOut { at: Some(file), limit } => DryRunError::TooLong { file, limit },
        CompileError::TooDeep { at: Some(file) } => DryRunError::TooDeep { file },
        error => DryRunError::Process(error),
    })
}

/// Runs in the child: compiles the workflows in `content`. Calls `report` with each file before it compiles it. Ignores errors
/// in the workflows, which the node reports.
pub fn dry_run_workflows(content: &[u8], report: fn(&str)) {
    let Ok(workflows) = postcard::from_bytes::<BTreeMap<String, String>>(content) else { return };
    let mut kept = Vec::with_capacity(workflows.len());
    for (file, text) in &workflows {
        report(file);
        // The compiled workflows stay in memory, as in the node.
        kept.push(edgefaas_workflow::compile(text, file));
    }
}
