//! `edgefaas compile-stdio`, `dry-run-stdio` and `collect-stdio`, hidden: the child processes that parse and compile untrusted code.

use std::process::ExitCode;

use edgefaas_functions::registry::{DRY_RUN_STACK_BYTES, dry_run_workflows};
use edgefaas_isolates::child_process::{collect_stdio, compile_stdio, dry_run_stdio};
use edgefaas_isolates::compile::{ProcessLimits, Task};
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_platform::Clock;

use crate::args::{Collect, Compile, CompileTask, DryRun};

pub fn compile(args: &Compile) -> anyhow::Result<ExitCode> {
    let memory_bytes = args.compile_memory_bytes;
    // If memory still runs out, the kernel ends this process and not the node.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    ProcessLimits { memory_bytes }.apply()?;
    let pool = PoolConfig {
        // One isolate, for the top level of one function; room for more would count towards the limit.
        max_isolates: 1,
        max_memory_bytes: args.max_memory_bytes,
        reservation_bytes: args.reservation_bytes,
        ..PoolConfig::default()
    };
    let task = match args.task {
        CompileTask::Module => Task::Module,
        CompileTask::Component => Task::Component,
        CompileTask::Script => Task::Script,
    };
    Ok(compile_stdio(Clock::system(), pool, memory_bytes, task))
}

pub fn collect(args: &Collect) -> anyhow::Result<ExitCode> {
    ProcessLimits { memory_bytes: args.memory_bytes }.apply()?;
    Ok(collect_stdio(&args.root, args.memory_bytes))
}

pub fn dry_run(args: &DryRun) -> anyhow::Result<ExitCode> {
    ProcessLimits { memory_bytes: args.memory_bytes }.apply()?;
    Ok(dry_run_stdio(DRY_RUN_STACK_BYTES, dry_run_workflows))
}
