//! Limits of one evaluation: steps, memory and stack. jq text can loop without end and double a value with every
//! step, and the interpreter itself counts nothing. There is no clock: the same expression with the same values ends at
//! the same step on every machine, however busy it is.
//!
//! The meter belongs to the thread, since operators on values (`+`, comparisons) have no other way to
//! reach it. It is set at the start of each evaluation and read at its end.

use std::cell::Cell;

/// Steps of one evaluation: outputs of generators, calls of functions and work on values.
pub(super) const STEPS: u64 = 250_000;
/// The maximum sum of all allocations of one evaluation, freed or not, in bytes.
pub(super) const ALLOCATED_BYTES: u64 = 128 << 20;
/// Ratio of the maximum sum of allocations to the maximum size of a value.
const MADE_SHARE: u64 = 4;
/// The maximum length of a string, in bytes.
pub(super) const STRING_BYTES: usize = 16 << 20;
/// The maximum of items of an array and of keys of an object.
pub(super) const ITEMS: usize = 1_000_000;
/// The maximum size of a value, in bytes. A part that occurs several times counts each time.
pub(super) const VALUE_BYTES: u64 = 64 << 20;
/// The maximum nesting depth of a value.
pub(super) const DEPTH: u32 = 256;
/// The maximum stack of one evaluation, in bytes. A thread has 2 MiB. The rest is a reserve for the code that runs
/// between two checks.
pub(super) const STACK_BYTES: usize = 1 << 20;

/// Maximum number of calls of functions that call themselves with functions as arguments, and of keys in a path. Each
/// adds a link to a chain that jaq frees recursively, on the stack.
pub(super) const CHAIN: u32 = 3_000;

/// Bytes of work on values that count as one step.
const BYTES_PER_STEP: u64 = 64;

/// The time and the memory limit of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The result of jq's `now`, in milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
    /// The maximum size of a value that it creates, in bytes. The general limits also apply: 16 MiB for a string, 64
    /// MiB for any other value.
    pub memory_bytes: u64,
}

impl Bounds {
    /// With the general limits only.
    pub fn at(now_unix_ms: u64) -> Self {
        Self { now_unix_ms, memory_bytes: u64::MAX }
    }
}

/// The reason why an evaluation was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The steps are used up.
    Steps,
    /// Functions call each other too deeply.
    Stack,
    /// Functions call themselves with functions as arguments too often.
    Chain,
    /// The sum of its allocations is too large.
    Allocated,
    /// It needs more memory than its instance may hold.
    Memory,
    /// A string is too long.
    StringBytes,
    /// An array or an object has too many items.
    Items,
    /// A value is too large, with all of its parts.
    ValueBytes,
    /// A value nests too deeply.
    Depth,
}

thread_local! {
    static METER: Meter = const { Meter::new() };
}

struct Meter {
    steps: Cell<u64>,
    chain: Cell<u32>,
    bytes: Cell<u64>,
    /// The maximum size of a value, in bytes, if it is below the general limit.
    value_bytes: Cell<u64>,
    stack_base: Cell<usize>,
    stop: Cell<Option<Stop>>,
    /// Steps of all evaluations on this thread.
    spent: Cell<u64>,
    now_unix_ms: Cell<u64>,
}

impl Meter {
    const fn new() -> Self {
        Self {
            steps: Cell::new(0),
            chain: Cell::new(0),
            bytes: Cell::new(0),
            value_bytes: Cell::new(0),
            stack_base: Cell::new(0),
            stop: Cell::new(None),
            spent: Cell::new(0),
            now_unix_ms: Cell::new(0),
        }
    }
}

/// Ends the count for one evaluation.
pub(super) fn finish() {
    METER.with(|meter| {
        let steps = STEPS - meter.steps.get();
        meter.spent.set(meter.spent.get().wrapping_add(steps));
    });
}

/// Steps of all evaluations on this thread so far; wraps around.
pub(super) fn spent() -> u64 {
    METER.with(|meter| meter.spent.get())
}

/// Starts the count for one evaluation.
pub(super) fn start(bounds: Bounds) {
    METER.with(|meter| {
        meter.steps.set(STEPS);
        meter.chain.set(CHAIN);
        meter.bytes.set(bounds.memory_bytes.saturating_mul(MADE_SHARE).min(ALLOCATED_BYTES));
        meter.value_bytes.set(bounds.memory_bytes);
        meter.stack_base.set(stack_address());
        meter.stop.set(None);
        meter.now_unix_ms.set(bounds.now_unix_ms);
    });
}

/// The reason why the evaluation was stopped, if it was. It stays until the next [`start`].
pub(super) fn stopped() -> Option<Stop> {
    METER.with(|meter| meter.stop.get())
}

/// The result of `now`.
pub(super) fn now_unix_ms() -> u64 {
    METER.with(|meter| meter.now_unix_ms.get())
}

/// Stops the evaluation. The first reason is kept.
pub(super) fn stop(why: Stop) -> Stop {
    METER.with(|meter| match meter.stop.get() {
        Some(first) => first,
        None => {
            meter.stop.set(Some(why));
            why
        }
    })
}

/// Counts one step and checks the stack.
pub(super) fn tick() -> Result<(), Stop> {
    METER.with(|meter| {
        if meter.stack_base.get().abs_diff(stack_address()) > STACK_BYTES {
            return Err(stop(Stop::Stack));
        }
        steps(meter, 1)
    })
}

/// Like [`tick`], and also counts a link of the chain.
pub(super) fn tick_chain() -> Result<(), Stop> {
    tick()?;
    METER.with(|meter| match meter.chain.get().checked_sub(1) {
        Some(left) => {
            meter.chain.set(left);
            Ok(())
        }
        None => Err(stop(Stop::Chain)),
    })
}

/// Counts work on `bytes` of values.
pub(super) fn work(bytes: u64) -> Result<(), Stop> {
    METER.with(|meter| steps(meter, 1 + bytes / BYTES_PER_STEP))
}

/// Counts an allocation.
pub(super) fn allocate(bytes: u64) -> Result<(), Stop> {
    allocate_with(0, bytes)
}

/// Counts an allocation: `bytes` for the contents of a value, `own_bytes` for the value itself. Only `bytes` counts
/// as work.
pub(super) fn allocate_with(own_bytes: u64, bytes: u64) -> Result<(), Stop> {
    METER.with(|meter| {
        let Some(left) = meter.bytes.get().checked_sub(own_bytes.saturating_add(bytes)) else {
            let is_own = meter.value_bytes.get() < ALLOCATED_BYTES / MADE_SHARE;
            return Err(stop(if is_own { Stop::Memory } else { Stop::Allocated }));
        };
        meter.bytes.set(left);
        steps(meter, 1 + bytes / BYTES_PER_STEP)
    })
}

/// Checks that a string may have `bytes` bytes.
pub(super) fn string(bytes: usize) -> Result<(), Stop> {
    if bytes > STRING_BYTES { Err(stop(Stop::StringBytes)) } else { value_within(bytes as u64) }
}

/// Checks that a value may have `bytes` bytes.
pub(super) fn value(bytes: u64) -> Result<(), Stop> {
    if bytes > VALUE_BYTES { Err(stop(Stop::ValueBytes)) } else { value_within(bytes) }
}

fn value_within(bytes: u64) -> Result<(), Stop> {
    METER.with(|meter| if bytes > meter.value_bytes.get() { Err(stop(Stop::Memory)) } else { Ok(()) })
}

fn steps(meter: &Meter, count: u64) -> Result<(), Stop> {
    if let Some(why) = meter.stop.get() {
        return Err(why);
    }
    let Some(left) = meter.steps.get().checked_sub(count) else {
        return Err(stop(Stop::Steps));
    };
    meter.steps.set(left);
    Ok(())
}

/// The approximate position of the stack: the address of a local variable.
#[inline(never)]
fn stack_address() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}
