//! The guest's allocator: an arena of fixed size first, the system's allocator once that is full.
//!
//! A fresh instance has no heap, so the system's allocator would ask for memory at the first allocation,
//! and growing a memory costs the node more than all the rest of a small invocation: two `mprotect` calls
//! that stop its other threads. The arena is .bss and there from the start.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Large enough for an invocation with payloads of some kilobytes.
const ARENA_BYTES: usize = 96 << 10;

#[global_allocator]
static ALLOCATOR: Arena = Arena { bytes: UnsafeCell::new([0; ARENA_BYTES]), used: Cell::new(0) };

/// Hands out its bytes from the front. Only the newest block can be given back or resized in place:
/// the instance ends with the invocation, so nothing finer pays.
#[repr(C, align(16))]
struct Arena {
    bytes: UnsafeCell<[u8; ARENA_BYTES]>,
    used: Cell<usize>,
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
