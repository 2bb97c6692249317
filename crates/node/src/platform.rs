//! What a node takes from the machine and a test or a simulation may give it instead.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_isolates::{Compiler, Machine, ProcessMemory};

/// The outside of a node: its clock, the way it compiles, and the machine.
#[derive(Clone)]
pub struct Platform {
    /// The wall clock.
    pub clock: Clock,
    /// Where WebAssembly becomes native code.
    pub compiler: Compiler,
    /// Where workflows are compiled first, whose compiler must not use up the node: a child that calls
    /// [`dry_run_workflows`](crate::registry::dry_run_workflows). Nowhere without.
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

/// A wall clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::new(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
        })
    }

    /// A clock of one's own.
    pub fn new(now_unix_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_unix_ms))
    }

    /// Microseconds since the Unix epoch: as fine as the machine's clock, where it is that.
    pub fn now_unix_us(&self) -> u64 {
        let fine = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let ms = self.now_unix_ms();
        if fine / 1000 == ms { fine } else { ms * 1000 }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_unix_ms(&self) -> u64 {
        (self.0)()
    }
}
