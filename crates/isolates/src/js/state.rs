//! The state in the store of an isolate.

use std::sync::Arc;

use wasmtime::{Memory, ResourceLimiter};

use super::guest_clock::GuestClock;
use super::stack::Files;
use super::tickets::Tickets;
use crate::assets::AssetTable;
use crate::guest_memory::Reservation;
use crate::{Host, LogLevel};

/// The state of an isolate.
pub struct State {
    /// The work of the isolate.
    pub stage: Stage,
    /// The isolate's memory, after it is instantiated.
    pub memory: Option<Memory>,
    /// Limit of the isolate's memory.
    pub limit: MemoryLimit,
    /// Host calls in flight.
    pub tickets: Tickets,
    /// Files of the function, for stacks in log lines.
    pub files: Arc<Files>,
    /// The assets in its memory.
    pub assets: Arc<AssetTable>,
    /// The time as the invocation sees it.
    pub time: GuestClock,
    /// The last answer, until the engine takes it.
    pub(super) answer: Vec<u8>,
}

/// The work of an isolate.
pub enum Stage {
    /// The isolate evaluates top-level code, without a host. The variant has the log lines so far.
    Deploy(Vec<(LogLevel, String)>),
    /// The isolate runs a handler.
    Run(Box<dyn Host>),
}

impl State {
    /// The state of a new isolate, which may have `memory_bytes`, assets included.
    pub fn new(
        stage: Stage,
        memory_bytes: usize,
        files: Arc<Files>,
        assets: Arc<AssetTable>,
        reservation: Reservation,
        time: GuestClock,
    ) -> Self {
        Self {
            stage,
            memory: None,
            limit: MemoryLimit {
                bytes: memory_bytes,
                exceeded: false,
                shared_bytes: assets.memory_bytes,
                reservation,
            },
            tickets: Tickets::default(),
            files,
            assets,
            time,
            answer: Vec::new(),
        }
    }
}

/// The limit of an isolate's linear memory.
pub struct MemoryLimit {
    /// The limit in bytes, assets included.
    pub bytes: usize,
    /// True if the isolate asked for more.
    pub exceeded: bool,
    /// Bytes of the assets, which are mapped from a file that all instances share.
    pub shared_bytes: usize,
    /// The isolate's part of the memory of all isolates.
    pub(crate) reservation: Reservation,
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let allowed = desired <= self.bytes;
        self.exceeded |= !allowed;
        Ok(allowed && self.reservation.cover(desired.saturating_sub(self.shared_bytes)))
    }

    fn table_growing(&mut self, current: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(current == 0)
    }
}
