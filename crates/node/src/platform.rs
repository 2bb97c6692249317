//! What a node takes from the machine and a test or a simulation may give it instead.

use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_isolates::{Compiler, Machine, ProcessMemory};
use edgefaas_platform::Clock;

/// The outside of a node: its clock, the way it compiles, and the machine.
#[derive(Clone)]
pub struct Platform {
    /// The wall clock.
    pub clock: Clock,
    /// Where WebAssembly becomes native code.
    pub compiler: Compiler,
    /// Where workflows are compiled first, whose compiler must not use up the node: a child that calls
    /// [`dry_run_workflows`](edgefaas_functions::registry::dry_run_workflows). Nowhere without.
    pub dry_run: Option<ChildCompiler>,
    /// What isolates are sized to.
    pub machine: Machine,
    /// The memory that everything is sized to.
    pub memory: ProcessMemory,
}

impl Platform {
    /// The machine's clock, and compiling in this process.
    pub fn system() -> Self {
        Self {
            clock: Clock::system(),
            compiler: Compiler::InProcess,
            dry_run: None,
            machine: Machine::probe(),
            memory: ProcessMemory::find(),
        }
    }
}
