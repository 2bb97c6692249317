//! The guest's allocator: first an arena of fixed size, then the system's allocator.
//!
//! A fresh isolate has no heap, so the system's allocator would grow the memory at the first allocation.
//! That costs the node more than the rest of a small invocation: two `mprotect` calls
//! that stop its other threads. The arena is .bss and exists from the start.
//!
//! The C library does not know the arena. It releases the node's data for itself (the environment, which a panic
//! reads) with its own `free`; this allocator releases the node's data for the SDK
//! and distinguishes both kinds of blocks. So [`cabi_realloc`], which serves both, uses the arena only
//! for the SDK: for the arguments of an export, and within [`receiving`].

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Large enough for an invocation with payloads of some tens of kilobytes.
const ARENA_BYTES: usize = 96 << 10;

#[global_allocator]
static ALLOCATOR: Arena =
    Arena { bytes: UnsafeCell::new([0; ARENA_BYTES]), used: Cell::new(0), running: Cell::new(false) };

/// Runs a call of the node whose result may be put into the arena.
pub(crate) fn receiving<T>(call: impl FnOnce() -> T) -> T {
    let running = ALLOCATOR.running.replace(false);
    let result = call();
    ALLOCATOR.running.set(running);
    result
}

/// Runs the function; its arguments may be put into the arena, allocations of the C library
/// in the meantime not.
pub(crate) fn running<T>(function: impl FnOnce() -> T) -> T {
    ALLOCATOR.running.set(true);
    let result = function();
    ALLOCATOR.running.set(false);
    result
}

/// Allocates the lists and strings that the node passes in (Canonical ABI, `realloc`). Replaces
/// std's, which is a weak symbol and always uses the global allocator.
///
/// # Safety
/// As for `realloc` with a layout of `old_size` and `align`; `old_size` 0 is an allocation.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(
    block: *mut u8,
    old_size: usize,
    align: usize,
    new_size: usize,
) -> *mut u8 {
    if old_size == 0 && new_size == 0 {
        return std::ptr::without_provenance_mut(align);
    }
    // SAFETY: the node passes a valid size and alignment, and a block it got from here. Blocks in the arena
    // are only resized by the arena: the node does not hold one across calls.
    let result = unsafe {
        let layout = |size| Layout::from_size_align_unchecked(size, align);
        match (ALLOCATOR.running.get(), old_size) {
            (false, 0) => ALLOCATOR.alloc(layout(new_size)),
            (false, _) => ALLOCATOR.realloc(block, layout(old_size), new_size),
            (true, 0) => System.alloc(layout(new_size)),
            (true, _) => System.realloc(block, layout(old_size), new_size),
        }
    };
    if result.is_null() {
        std::process::abort();
    }
    result
}

/// Hands out its bytes from the front. Only the newest block can be released or resized in place:
/// the isolate ends with the invocation, so a finer scheme does not pay.
///
/// Its first value is all zeros, or the whole arena would be part of the component.
#[repr(C, align(16))]
struct Arena {
    bytes: UnsafeCell<[u8; ARENA_BYTES]>,
    used: Cell<usize>,
    /// The function's own code runs, and with it perhaps the C library.
    running: Cell<bool>,
}

#[cfg(target_feature = "atomics")]
compile_error!("the arena allocator is for one thread; turn the feature `arena-allocator` off");

// SAFETY: without the target feature `atomics`, checked above, a wasm instance has one thread.
#[allow(unsafe_code)]
unsafe impl Sync for Arena {}

impl Arena {
    /// The offset of a block that lies in the arena.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        let offset = (block as usize).wrapping_sub(self.bytes.get() as usize);
        (offset < ARENA_BYTES).then_some(offset)
    }

    /// Whether a block of the arena is the one that was handed out last.
    fn is_newest(&self, offset: usize, size: usize) -> bool {
        offset + size == self.used.get()
    }
}

// SAFETY: `alloc` gives out [start, end) of the arena with `start` at or after the end of every block that
// is still in use (`used` only falls in `dealloc` and `realloc`, and then to the start or the new end of the
// newest block), aligned because the arena is aligned to 16 and greater alignments go to the system. Blocks
// outside the arena come from the system and go back to it with the layout they came with. Nothing
// here panics or allocates.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.used.get().next_multiple_of(layout.align());
        match start.checked_add(layout.size()) {
            Some(end) if end <= ARENA_BYTES && layout.align() <= align_of::<Self>() => {
                self.used.set(end);
                // SAFETY: `start` is within the arena, or at its end for a block of no bytes.
                unsafe { self.bytes.get().cast::<u8>().add(start) }
            }
            // SAFETY: the caller's promises are passed on.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            Some(offset) if self.is_newest(offset, layout.size()) => self.used.set(offset),
            Some(_) => {}
            // SAFETY: a block outside the arena came from the system with this layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(offset) = self.offset(block) else {
            // SAFETY: a block outside the arena came from the system with this layout.
            return unsafe { System.realloc(block, layout, new_size) };
        };
        if self.is_newest(offset, layout.size()) && new_size <= ARENA_BYTES - offset {
            self.used.set(offset + new_size);
            return block;
        }
        // SAFETY: the caller promises that `new_size` makes a valid layout; the blocks do not overlap,
        // as the old one is still in use, and both have at least the bytes that are copied.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}
