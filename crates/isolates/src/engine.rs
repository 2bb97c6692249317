//! The wasmtime engine all isolates share: its configuration, its pool and its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::lane;

/// Interval at which running isolates are interrupted: the granularity of deadlines and the longest time that one isolate
/// keeps its thread before the others on it have a turn.
pub const TICK: Duration = Duration::from_millis(5);

/// The tick while isolates compute for long: the slice of each.
pub const FINE_TICK: Duration = Duration::from_millis(1);
/// Number of ticks after the last long run for which the fine tick stays in use.
const FINE_TICKS: u32 = 100;

/// The maximum of elements of a table.
pub const MAX_TABLE_ELEMENTS: usize = 20_000;

/// The clock stops after this long without an invocation, so that an idle node does not wake up.
const CLOCK_IDLE: Duration = Duration::from_secs(1);

/// 4 GiB of reservation lets the compiler leave out bounds checks on 32-bit memories.
pub(crate) const FULL_RESERVATION_BYTES: u64 = 4 << 30;
/// The guard behind each reservation, which is never mapped.
pub(crate) const GUARD_BYTES: u64 = 32 << 20;
/// The reservation where address space is short; the code then checks bounds.
pub(crate) const SMALL_RESERVATION_BYTES: u64 = 64 << 20;
pub(crate) const SMALL_GUARD_BYTES: u64 = 64 << 10;

/// Memory images up to this size are mapped however little of them is filled.
const DENSE_IMAGE_BYTES: u64 = 256 << 20;

/// Sizes of the isolate pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Maximum number of isolates that run at the same time.
    pub max_isolates: u32,
    /// The maximum of linear memory of an isolate, in bytes. The limit of a function is at most this.
    pub max_memory_bytes: usize,
    /// Address space that each of them reserves, in bytes. Native code depends on it.
    pub reservation_bytes: u64,
    /// Memory that all of them may have together, in bytes.
    pub guest_bytes: u64,
    /// Memory that a slot keeps resident without an isolate, in bytes: the next isolate starts faster.
    pub kept_bytes: usize,
}

/// Ratio: the pool has one slot for an idle instance per this number of running ones.
const WARM_SHARE: u32 = 8;
/// Ratio: the same, for instances that were reset, and as many slots for the images that they are reset from.
const CLEAN_SHARE: u32 = 16;

impl PoolConfig {
    /// The maximum of idle instances, beside `max_isolates` running ones.
    pub fn max_warm(&self) -> u32 {
        self.max_isolates.div_ceil(WARM_SHARE)
    }

    /// The maximum of idle instances that were reset, beside those.
    pub fn max_clean(&self) -> u32 {
        self.max_isolates.div_ceil(CLEAN_SHARE)
    }

    /// The slots of the pool.
    pub fn slots(&self) -> u32 {
        let idle = self.max_warm().saturating_add(self.max_clean().saturating_mul(2));
        self.max_isolates.saturating_add(idle)
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            max_isolates: 1000,
            max_memory_bytes: 256 << 20,
            reservation_bytes: FULL_RESERVATION_BYTES,
            guest_bytes: 16 << 30,
            kept_bytes: 1 << 20,
        }
    }
}

/// The isolates of a node cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system has no address space for the pool.
    #[error(
        "the isolate pool for {max_isolates} isolates cannot be set up: {reason:#}; lower isolates.max or isolates.reservation"
    )]
    Pool {
        /// Isolates of the pool.
        max_isolates: u32,
        /// The reason, from wasmtime.
        reason: wasmtime::Error,
    },
    /// The imports of components cannot be linked.
    #[error("the imports of components cannot be linked: {0:#}")]
    Linker(wasmtime::Error),
    /// The thread of the epoch clock cannot be started.
    #[error("the thread of the epoch clock cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// Makes the engine and reserves its address space.
///
/// # Errors
/// The system has no room for so many isolates.
pub fn build(pool: PoolConfig) -> Result<Engine, EngineError> {
    let mut config = settings(pool);
    without_avx(&mut config);
    Engine::new(&config).map_err(|reason| EngineError::Pool { max_isolates: pool.max_isolates, reason })
}

/// The settings of an engine, without those of one processor: compiled code depends on them, and the compiling process has
/// the same.
pub fn settings(pool: PoolConfig) -> Config {
    let reservation_bytes = pool.reservation_bytes;
    let isolates = pool.slots();
    let mut pooling = PoolingAllocationConfig::new();
    pooling
        .total_component_instances(isolates)
        // A component made by a toolchain holds a few core instances; a JavaScript isolate holds two.
        .total_core_instances(isolates.saturating_mul(6))
        .total_memories(isolates)
        .total_tables(isolates.saturating_mul(3))
        .total_stacks(isolates)
        .max_memory_size(pool.max_memory_bytes)
        .table_elements(MAX_TABLE_ELEMENTS)
        .max_core_instance_size(1 << 20)
        .max_component_instance_size(1 << 20)
        .max_unused_warm_slots(64);
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        // Only dirty pages are restored, so keeping more resident costs nothing.
        pooling
            .pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(pool.kept_bytes)
            .table_keep_resident(16 << 10)
            .async_stack_keep_resident(16 << 10);
    }

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pooling))
        .memory_reservation(reservation_bytes)
        .memory_guard_size(GUARD_BYTES)
        // Images with wide gaps, such as an asset behind empty memory, are mapped as well and not copied.
        .memory_guaranteed_dense_image_size(DENSE_IMAGE_BYTES)
        .epoch_interruption(true)
        .concurrency_support(false)
        .async_stack_zeroing(false)
        .max_wasm_stack(512 << 10)
        .async_stack_size(1 << 20);
    if reservation_bytes < FULL_RESERVATION_BYTES {
        config.memory_guard_size(SMALL_GUARD_BYTES);
    }
    config
}

/// Compiles for SSE on x86: spilled floats are moved with SSE instructions, computed with AVX, and where a library has left
/// the upper halves of the registers in use, each change from one to the other costs some hundred cycles on processors from
/// Ice Lake on. A loop over floats took 3.5 s in place of 25 ms so, every third time.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn without_avx(config: &mut Config) {
    for feature in ["has_avx", "has_avx2", "has_fma", "has_avx512f", "has_avx512dq", "has_avx512vl"]
        .into_iter()
        .chain(["has_avx512bitalg", "has_avx512vbmi"])
    {
        // SAFETY: code that uses fewer features runs wherever code with more of them does.
        unsafe { config.cranelift_flag_set(feature, "false") };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn without_avx(_: &mut Config) {}

/// Drives the engine's epoch while isolates run, and idles while none does.
pub struct EpochClock {
    shared: Arc<ClockState>,
    thread: Option<JoinHandle<()>>,
    handle: Thread,
}

struct ClockState {
    /// Milliseconds since `origin` at which an isolate last ended.
    last_end_ms: AtomicU64,
    running: AtomicU64,
    idle: AtomicBool,
    stop: AtomicBool,
    origin: Instant,
}

impl EpochClock {
    /// Starts the clock's thread.
    pub fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(ClockState {
            last_end_ms: AtomicU64::new(0),
            running: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            origin: Instant::now(),
        });
        let state = shared.clone();
        let thread =
            std::thread::Builder::new().name("epoch".into()).spawn(move || tick(&engine, &state))?;
        let handle = thread.thread().clone();
        Ok(Self { shared, thread: Some(thread), handle })
    }

    /// Keeps the clock going for as long as the guard lives.
    pub fn running(&self) -> Running<'_> {
        let state = &*self.shared;
        state.running.fetch_add(1, Ordering::SeqCst);
        if state.idle.load(Ordering::SeqCst) {
            self.handle.unpark();
        }
        Running { state }
    }
}

impl Drop for EpochClock {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.handle.unpark();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An isolate is running.
pub struct Running<'a> {
    state: &'a ClockState,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let now_ms = self.state.origin.elapsed().as_millis() as u64;
        self.state.last_end_ms.store(now_ms, Ordering::Relaxed);
        self.state.running.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tick(engine: &Engine, state: &ClockState) {
    let mut fine_ticks = 0_u32;
    while !state.stop.load(Ordering::SeqCst) {
        fine_ticks = if lane::has_long_runs() { FINE_TICKS } else { fine_ticks.saturating_sub(1) };
        std::thread::park_timeout(if fine_ticks > 0 { FINE_TICK } else { TICK });
        engine.increment_epoch();
        let unused_ms = (state.origin.elapsed().as_millis() as u64)
            .saturating_sub(state.last_end_ms.load(Ordering::Relaxed));
        if state.running.load(Ordering::SeqCst) == 0 && unused_ms > CLOCK_IDLE.as_millis() as u64 {
            // `idle` is set before the second look at `running`, so that a start in between sees it and wakes this thread.
            state.idle.store(true, Ordering::SeqCst);
            while state.running.load(Ordering::SeqCst) == 0 && !state.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            state.idle.store(false, Ordering::SeqCst);
        }
    }
}
