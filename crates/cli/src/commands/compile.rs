//! `edgefaas compile-stdio`, hidden: the child process that a node compiles in.

use std::process::ExitCode;

use edgefaas_isolates::compile::{self, compile_stdio, limit_memory};
use edgefaas_isolates::engine::{self, PoolConfig};

use crate::args::{CodeKind, Compile};

pub fn run(args: &Compile) -> anyhow::Result<ExitCode> {
    limit_memory(args.compile_memory_bytes)?;
    let pool = PoolConfig {
        // Nothing runs here, and room for more would count for the limit.
        max_isolates: 1,
        max_memory_bytes: args.max_memory_bytes,
    };
    let engine = engine::build(pool)?;
    let kind = match args.kind {
        CodeKind::Module => compile::CodeKind::Module,
        CodeKind::Component => compile::CodeKind::Component,
    };
    Ok(compile_stdio(&engine, kind))
}
