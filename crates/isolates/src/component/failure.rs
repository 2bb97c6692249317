//! Errors that end the run of a component.

use wasmtime::component::ResourceTableError;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::state::{ComponentState, MAX_RESOURCES};
use crate::outcome::{InternalError, Limits, RunError};

/// The error of a run: the limit that it hit, else the trap.
pub fn classify(error: &wasmtime::Error, state: &ComponentState, limits: Limits) -> RunError {
    if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        tracing::warn!(error = %full, "the isolate pool is full");
        return RunError::NoCapacity { limit: 0 };
    }
    // A refused memory.grow makes the guest abort: the trap itself would only say "unreachable".
    if state.out_of_memory {
        return RunError::OutOfMemory { limit_bytes: limits.memory_bytes };
    }
    if let Some(error) = state.reservation.refusal() {
        return error;
    }
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    let frame = backtrace.and_then(user_frame);
    let stack = backtrace.map(|backtrace| backtrace.to_string());
    if let Some((location, message)) = state.stdio.panic() {
        return RunError::Trapped {
            message: format!("panicked: {message}"),
            location: Some(location),
            stack,
        };
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
        let message =
            format!("it holds more than {MAX_RESOURCES} streams, requests and other things of WASI's");
        return RunError::Trapped { message, location: frame, stack };
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => RunError::StackOverflow { location: frame },
        Some(Trap::MemoryOutOfBounds) if backtrace.is_some_and(is_recursion) => {
            RunError::StackOverflow { location: frame }
        }
        Some(trap) => RunError::Trapped { message: trap.to_string(), location: frame, stack },
        None => match error.downcast_ref::<I32Exit>() {
            Some(exit) => RunError::Trapped {
                message: format!("the function ended its process with exit code {}", exit.0),
                location: frame,
                stack,
            },
            None => InternalError::Engine { detail: error.root_cause().to_string() }.into(),
        },
    }
}

/// A toolchain's own stack lies at the start of linear memory; running out of it is an access below
/// address 0. That it was the stack shows in the trace: the same few functions, as deep as it reaches.
fn is_recursion(backtrace: &WasmBacktrace) -> bool {
    const DEEP_FRAMES: usize = 16;
    let frames = backtrace.frames();
    let mut functions: Vec<u32> = frames.iter().map(|frame| frame.func_index()).collect();
    functions.sort_unstable();
    functions.dedup();
    frames.len() >= DEEP_FRAMES && functions.len() <= frames.len() / 4
}

/// The first frame with a source position outside the toolchain and its libraries.
fn user_frame(backtrace: &WasmBacktrace) -> Option<String> {
    backtrace.frames().iter().flat_map(|frame| frame.symbols()).find_map(|symbol| {
        let file = symbol.file()?;
        let foreign = file.starts_with("/rustc/") || file.contains("/registry/src/");
        (!foreign).then(|| {
            let (line, column) = (symbol.line().unwrap_or(0), symbol.column().unwrap_or(0));
            format!("{file}:{line}:{column}")
        })
    })
}
