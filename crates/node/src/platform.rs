//! Inputs that a node gets from the machine, and that tests and simulations replace.

use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_isolates::{Compiler, Machine, ProcessMemory};
use edgefaas_platform::Clock;

/// The environment of a node: clock, compiler and machine.
#[derive(Clone)]
pub struct Platform {
    /// The clock, which `edgefaas test` can advance.
    pub clock: Clock,
    /// Compiler of functions to native code: in this process or in a child process.
    pub compiler: Compiler,
    /// Child process that compiles workflows first, so that their compilation cannot exhaust the memory of the node. It
    /// calls [`dry_run_workflows`](edgefaas_functions::registry::dry_run_workflows). With `None` there is no dry run.
    pub dry_run: Option<ChildCompiler>,
    /// The machine that the pool of isolates is sized for.
    pub machine: Machine,
    /// Memory limit and free memory of the process, for the memory plan and memory pressure.
    pub memory: ProcessMemory,
}

impl Platform {
    /// The environment of this machine: its clock and memory, and compilation in this process.
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
