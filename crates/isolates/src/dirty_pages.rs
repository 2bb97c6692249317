//! The pages of a linear memory that its isolate has written.
//!
//! An isolate's memory is a private mapping of an image. Its first write to a page makes the kernel copy that page, which
//! is a page fault of the thread that writes. So the pages that may differ from the image are those that the kernel lists
//! as copied (`/proc/self/pagemap`: Linux, `Documentation/admin-guide/mm/pagemap.rst`), and they stay the same for as long
//! as the thread has no page fault (`getrusage(2)`). Reading the list costs some ten microseconds, the count of faults a
//! quarter of one.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::thread::ThreadId;

use nix::sys::resource::{UsageWho, getrusage};

use crate::warm::thread_id;

/// The page has a frame of memory.
const PRESENT: u64 = 1 << 63;
/// The page is in the swap.
const SWAPPED: u64 = 1 << 62;
/// The page is one of a file, or shared memory: nobody has written it.
const OF_FILE: u64 = 1 << 61;
/// Bytes of an entry of the list.
const ENTRY_BYTES: usize = size_of::<u64>();

/// The page faults of one thread so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFaults {
    thread: ThreadId,
    count: i64,
}

impl PageFaults {
    /// The page faults of this thread. None if the system does not tell.
    pub fn here() -> Option<Self> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let count = usage.minor_page_faults() + usage.major_page_faults();
        Some(Self { thread: thread_id(), count })
    }
}

/// The pages of one memory that were written since it was mapped, and perhaps others.
#[derive(Debug, Default)]
pub(crate) struct DirtyPages {
    /// Offsets of bytes, in whole pages, in ascending order.
    ranges: Vec<Range<usize>>,
}

impl DirtyPages {
    /// The pages of `memory`, which begins at a page, that were written so far. None if the system does not tell.
    pub fn find(memory: &[u8]) -> Option<Self> {
        static PAGEMAP: OnceLock<Option<File>> = OnceLock::new();
        let pagemap = PAGEMAP.get_or_init(|| File::open("/proc/self/pagemap").ok()).as_ref()?;
        let page_bytes = rustix::param::page_size();
        let first_page = memory.as_ptr().addr() / page_bytes;
        let mut entries = vec![0; memory.len() / page_bytes * ENTRY_BYTES];
        pagemap.read_exact_at(&mut entries, (first_page * ENTRY_BYTES) as u64).ok()?;
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (page, entry) in entries.iter().enumerate() {
            let entry = u64::from_ne_bytes(*entry);
            if entry & (PRESENT | SWAPPED) == 0 || entry & OF_FILE != 0 {
                continue;
            }
            let start = page * page_bytes;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += page_bytes,
                _ => ranges.push(start..start + page_bytes),
            }
        }
        Some(Self { ranges })
    }

    /// True if the byte at this offset is on one of these pages.
    pub fn contains(&self, offset: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&offset))
    }

    /// The size of these pages.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }

    /// The number of these pages of `memory` whose content is not that of `image`.
    pub fn differing(&self, memory: &[u8], image: &[u8]) -> usize {
        let page_bytes = rustix::param::page_size();
        let differing = |range: &Range<usize>| {
            let pages =
                memory[range.clone()].chunks(page_bytes).zip(image[range.clone()].chunks(page_bytes));
            pages.filter(|(page, image)| page != image).count()
        };
        self.ranges.iter().map(differing).sum()
    }

    /// Gives these pages of `memory` the content that they have in `image`.
    pub fn restore(&self, memory: &mut [u8], image: &[u8]) {
        for range in &self.ranges {
            memory[range.clone()].copy_from_slice(&image[range.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wasmtime::{Engine, Instance, Module, Store};

    use super::*;
    use crate::engine::{self, PoolConfig};
    use crate::memory_image::{MemoryImage, PAGE_BYTES};

    fn engine() -> &'static Engine {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        ENGINE.get_or_init(|| {
            engine::build(PoolConfig { max_isolates: 8, guest_bytes: 1 << 30, ..PoolConfig::default() })
                .unwrap()
        })
    }

    /// An image of four pages of wasm: the first is empty, and there are gaps.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 4 * PAGE_BYTES];
        image[PAGE_BYTES..PAGE_BYTES + 20_000].fill(7);
        image[3 * PAGE_BYTES + 100] = 9;
        image
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_is_written_is_found_and_restored(
            runs in prop::collection::vec(
                prop::collection::vec((0..4 * PAGE_BYTES, any::<u8>()), 0..20), 1..6)
        ) {
            let module = Module::new(engine(), MemoryImage::new(image()).to_module(&[], &[], 0)).unwrap();
            let mut store = Store::new(engine(), ());
            store.set_epoch_deadline(1);
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            let mut known = DirtyPages::find(memory.data(&store)).unwrap();
            for writes in runs {
                let before = PageFaults::here().unwrap();
                for (at, value) in writes {
                    memory.data_mut(&mut store)[at] = value;
                }
                if PageFaults::here().unwrap() != before {
                    known = DirtyPages::find(memory.data(&store)).unwrap();
                }
                known.restore(memory.data_mut(&mut store), &image());
                prop_assert!(memory.data(&store) == image());
            }
        }
    }

    #[test]
    fn pages_that_are_only_read_are_not_dirty() {
        let module = Module::new(engine(), MemoryImage::new(image()).to_module(&[], &[], 0)).unwrap();
        let mut store = Store::new(engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let data = memory.data(&store);
        let filled = &data[PAGE_BYTES..PAGE_BYTES + 20_000];
        assert!(filled.iter().all(|byte| *byte == 7));
        let before = DirtyPages::find(data).unwrap().bytes();
        memory.data_mut(&mut store)[PAGE_BYTES] = 1;
        let page_bytes = rustix::param::page_size();
        assert_eq!(DirtyPages::find(memory.data(&store)).unwrap().bytes(), before + page_bytes);
    }

    #[test]
    fn a_write_to_another_page_is_a_fault_of_its_thread() {
        let mut memory = vec![0_u8; 64 << 20];
        let before = PageFaults::here().unwrap();
        memory[32 << 20] = 1;
        let after = PageFaults::here().unwrap();
        assert_ne!(before, after);
        assert_ne!(std::thread::spawn(PageFaults::here).join().unwrap(), Some(after));
    }
}
